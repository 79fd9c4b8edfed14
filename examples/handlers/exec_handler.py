#!/usr/bin/env python3
"""An exec handler in Python, with nothing but the standard library.

    windlass worker -q shop/invoices --exec -- python3 exec_handler.py

One process runs one task. The task is JSON on standard input, standard output
is the result, and the exit status says how it went: 0 is done, 65 is wrong for
good, 75 is "slow down", anything else is worth another attempt.

It charges an order exactly once, even if the machine dies in the middle, and
then asks for a receipt to be sent by a task of its own. The "bank" is a file.
"""

import json
import os
import signal
import sys
import urllib.error
import urllib.request

PERMANENT, RATE_LIMITED = 65, 75


def windlass(method, path, body=None):
    """One request to the worker's local API; the token is this very task's."""
    request = urllib.request.Request(
        os.environ["WINDLASS_API"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": "Bearer " + os.environ["WINDLASS_API_TOKEN"]},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def once(key, effect, find):
    """Runs an outside effect at most once for a key, and remembers its answer.

    An attempt that died after `begin` and before `commit` leaves a doubt: only
    the other side knows whether the effect happened, so `find` asks there.
    """
    begun = windlass("POST", "/v1/once/begin", {"key": key})
    if begun["state"] == "done":
        return begun["answer"]
    if begun["state"] == "in-doubt":
        found = find()
        if found is not None:
            windlass("POST", "/v1/once/commit", {"key": key, "answer": found})
            return found
        # It did not happen. Somebody else may have found that out first.
        if windlass("POST", "/v1/once/resolve", {"key": key})["state"] != "begin":
            return once(key, effect, find)
    answer = effect()
    windlass("POST", "/v1/once/commit", {"key": key, "answer": answer})
    return answer


def charge(bank, order):
    with open(bank, "a") as ledger:
        ledger.write(f"charged {order}\n")
    return {"charged": order}


def find_charge(bank, order):
    """A real bank would be asked by our own reference for the payment."""
    try:
        with open(bank) as ledger:
            return {"charged": order} if f"charged {order}\n" in ledger else None
    except FileNotFoundError:
        return None


def main():
    # The worker asks with SIGTERM (cancelled, timed out, draining) and kills
    # the whole process group five seconds later. Python's default would end us
    # at once; raising lets `finally` blocks run first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("asked to end"))

    task = json.load(sys.stdin)
    order = task["payload"].get("order")
    if order is None:
        print("the payload names no order", file=sys.stderr)
        return PERMANENT
    if task["payload"].get("busy") and task["releaseCount"] == 0:
        print("the bank is busy\nretry-after: 1", file=sys.stderr)
        return RATE_LIMITED

    bank = os.environ.get("BANK", "bank.txt")
    windlass("POST", "/v1/progress", {"step": "charging", "percent": 10})
    receipt = once(f"charge:{order}", lambda: charge(bank, order), lambda: find_charge(bank, order))
    windlass("POST", "/v1/progress", {"step": "charged", "percent": 90})

    # Long work asks now and then whether it is still wanted.
    if windlass("GET", "/v1/cancelled")["cancelled"]:
        return 1

    # A follow-up is a child of this task, with its tenant and its trace. With a
    # key of its own it is made once, however often this task is tried.
    follow_up = {"type": "receipt", "payload": receipt, "idempotencyKey": f"receipt:{order}"}
    receipt["receipt"] = windlass("POST", "/v1/tasks", follow_up)["id"]
    json.dump(receipt, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
