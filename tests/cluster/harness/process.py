"""Starts the programs of a cluster and waits for them.

Owns: how a program is started so that it cannot outlive us, where its output goes, and how a wait
ends with a sentence that helps. Must not know: what the programs are.
"""

import os
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

# How long anything is waited for. Only a start that fails ever waits so long.
LIMIT_SECONDS = 120
POLL_SECONDS = 0.05
# How much of a log explains a failure.
TAIL_LINES = 25


# Everything that was started and is to be ended, in that order.
STARTED = []


class Failed(Exception):
    """The cluster cannot be started, or a part of it has ended; the message is for people."""


class Program:
    """A running program of the cluster."""

    def __init__(self, name, process, log):
        self.name = name
        self.process = process
        self.log = log

    def check(self):
        """Ends with a sentence if the program has ended."""
        code = self.process.poll()
        if code is not None:
            raise Failed(f"{self.name} ended with {code}. Its last words, from {self.log}:\n{tail(self.log)}")


def tied(argv):
    """The command line that runs `argv` such that the kernel kills it when this process dies.

    If we die before `setpriv` has asked for that, the shell finds another parent and gives up. Both
    replace themselves by the next program, so that the process id is that of the program.
    """
    guard = 'test "$PPID" = "$0" && exec "$@"'
    return ["setpriv", "--pdeathsig", "KILL", "--", "sh", "-c", guard, str(os.getpid()), *map(str, argv)]


def start(name, argv, logs, env=None):
    """Starts a program that dies with us; what it prints goes to a file named after it."""
    log = Path(logs) / f"{name}.log"
    with open(log, "ab") as output:
        process = subprocess.Popen(
            tied(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**os.environ, **(env or {})}
        )
    program = Program(name, process, log)
    STARTED.append(program)
    return program


def end_all():
    """Ends what was started, at once: nothing that they hold is worth saving."""
    for program in reversed(STARTED):
        program.process.kill()
    for program in STARTED:
        program.process.wait()
    STARTED.clear()


def command(argv, source=subprocess.DEVNULL):
    """Runs a short command to its end and returns what it printed."""
    argv = [str(word) for word in argv]
    done = subprocess.run(argv, stdin=source, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise Failed(f"`{' '.join(argv)}` ended with {done.returncode}: {said}")
    return done.stdout


def wait(what, condition, programs):
    """Asks `condition` until it answers None; a word from it says what is still in the way."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        seen = condition()
        if seen is None:
            return
        for program in programs:
            program.check()
        if time.monotonic() > deadline:
            logs = "\n".join(f"--- {program.log}\n{tail(program.log)}" for program in programs)
            raise Failed(f"Waited {LIMIT_SECONDS} s for {what}; last seen: {seen}\n{logs}")
        time.sleep(POLL_SECONDS)


def answers(url, ca=None, token=None):
    """A condition: the URL answers with 200."""
    context = ssl.create_default_context(cafile=ca) if ca else None
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})

    # No proxy, whatever the environment says: this is a server of our own.
    handlers = [urllib.request.ProxyHandler({})]
    if context:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)

    def condition():
        try:
            with opener.open(request, timeout=5) as answer:
                return None if answer.status == 200 else f"{url} answers {answer.status}"
        except (OSError, urllib.error.URLError) as error:
            return f"{url}: {error}"

    return condition


def tail(log):
    """The last lines of a log."""
    try:
        return "\n".join(Path(log).read_text(errors="replace").splitlines()[-TAIL_LINES:])
    except OSError as error:
        return str(error)
