"""Runs one task of the queue `orders`: JSON on standard input, the result on standard output.

How it ends is its exit status: 0 is done, 65 is wrong for good, 75 is "come back
later", and anything else is worth another attempt. What it writes to standard
error is the error that people read.
"""

import json
import os
import signal
import sys
import time

PERMANENT, LATER, FAILED = 65, 75, 1


def end(status, words):
    print(words, file=sys.stderr)
    sys.exit(status)


def charge(task):
    order, bank = task["payload"].get("order"), task["payload"].get("bank")
    if not isinstance(order, int) or order < 1:
        end(PERMANENT, f"there is no order {order}")
    if bank == "busy" and task["retryCount"] < 2:
        end(FAILED, "the bank does not answer")
    if bank == "slow down" and task["releaseCount"] < 1:
        end(LATER, "retry-after: 2\nthe bank asks for patience")
    return {"order": order, "charged": True, "attempt": task["attempt"]}


def pack(task):
    if task["crashCount"] < 1:
        # The worker is killed the hard way, in the middle of a task. In a pod it is
        # process 1, which nobody inside can kill: there the task simply succeeds.
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1)
    return {"packed": task["payload"].get("order"), "survived": True}


def export(_):
    end(FAILED, "ftp.example.com refuses the connection")


def main():
    task = json.load(sys.stdin)
    work = {"charge": charge, "pack": pack, "export": export}.get(task["type"])
    if work is None:
        end(PERMANENT, f"nobody here knows how to {task['type']}")
    json.dump(work(task), sys.stdout)


main()
