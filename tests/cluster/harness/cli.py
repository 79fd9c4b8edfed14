"""The command line: what `make` and the Rust support module call."""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from . import image, sandbox
from .control import Control
from .process import Failed, command, end_all, tail

HERE = Path(__file__).resolve().parent.parent
# Outside the range that tests choose from, and not where `windlass dev` puts its Redis.
OWN_PORT, OWN_ETCD_PORT = 16443, 16444


def main(arguments):
    """Runs one command and returns its exit code."""
    parser = argparse.ArgumentParser(prog="cluster.py")
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up")
    up.add_argument("--dir", type=Path, required=True)
    up.add_argument("--level", choices=["api", "node"], default="node")
    up.add_argument("--nodes", type=int, choices=[1, 2], default=2)
    up.add_argument("--port", type=int, default=OWN_PORT)
    up.add_argument("--etcd-port", type=int, default=OWN_ETCD_PORT)
    inside = commands.add_parser("inside")  # what `up` runs in the namespaces
    inside.add_argument("--dir", type=Path, required=True)
    inside.add_argument("--nodes", type=int, required=True)
    inside.add_argument("--port", type=int, required=True)
    inside.add_argument("--listener", type=int, required=True)
    commands.add_parser("start")
    commands.add_parser("stop")
    commands.add_parser("check")
    load = commands.add_parser("load")
    load.add_argument("--dir", type=Path, default=own_dir())
    load.add_argument("archive", type=Path)
    image.add_arguments(commands.add_parser("image"))
    chosen = parser.parse_args(arguments)
    try:
        return {"up": run_up, "inside": run_inside, "start": run_start, "stop": run_stop, "check": run_check,
                "load": run_load, "image": image.main}[chosen.command](chosen) or 0
    except Failed as failure:
        print(f"cluster: {failure}", file=sys.stderr, flush=True)
        return 1
    except KeyboardInterrupt:
        return 130


def say(text):
    """A line of progress."""
    print(f"cluster: {text}", flush=True)


def bin_dir():
    """Where build.sh puts the programs."""
    where = subprocess.run([HERE / "build.sh", "--where"], capture_output=True, text=True, check=True).stdout.strip()
    found = Path(where)
    needed = ["etcd", "kube-apiserver", "kube-controller-manager", "kubectl"]
    if any(not (found / program).is_file() for program in needed):
        raise Failed("There is no Kubernetes in the cache yet: run `make kubernetes`.")
    return found


def write_ready(folder, **facts):
    """Tells that the cluster is up, whole or not at all."""
    new = folder / ".ready.json"
    new.write_text(json.dumps(facts, indent=1, default=str))
    new.rename(folder / "ready.json")


def run_up(chosen):
    """Runs a cluster until it is told to end."""
    # Ends as Ctrl-C does, also in the middle of a start.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell starts what is in its background with SIGINT ignored; whoever sends one means it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen.dir.mkdir(parents=True, exist_ok=True)
    chosen.dir = chosen.dir.resolve()
    if chosen.level == "node":
        return sandbox.run_up(chosen, HERE, say)
    try:
        run_api(chosen)
    finally:
        end_all()


def run_api(chosen):
    """Runs the API level until it is told to end."""
    programs = bin_dir()
    control = Control(programs, chosen.dir, "127.0.0.1", chosen.port, chosen.etcd_port, say=say)
    control.start_controllers()
    config = control.identity.kubeconfig("admin", control.url, chosen.dir / "kubeconfig")
    write_ready(chosen.dir, level="api", kubeconfig=config, bin=programs, nodes=[])
    say(f"up; KUBECONFIG={config}")
    watch(control.programs)


def run_inside(chosen):
    """The same, in the namespaces that `up` made."""
    from . import inside  # needs what only a machine with nodes has

    inside.run(chosen, HERE, bin_dir(), say, write_ready, watch)


def watch(programs):
    """Looks on until one of the programs ends, which none should."""
    while True:
        for program in programs:
            program.check()
        time.sleep(0.5)


def own_dir():
    """The folder of the cluster that `make cluster` starts."""
    cache = os.environ.get("WINDLASS_CACHE") or Path.home() / ".cache/windlass"
    return Path(cache).resolve() / "cluster/run"


def keeper_of(folder):
    """The process that runs the cluster in that folder, or None. Its number alone could be anybody's."""
    try:
        number = int((folder / "keeper.pid").read_text())
        arguments = Path(f"/proc/{number}/cmdline").read_text().split("\0")
    except (OSError, ValueError):
        return None
    return number if f"--dir={folder}" in arguments else None


def run_start(_chosen):
    """Starts a cluster in the background and waits until it is up."""
    folder = own_dir()
    if keeper_of(folder):
        raise Failed("A cluster is running already; `make cluster-down` ends it.")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reason = sandbox.why_not()
    if reason:
        say(f"This machine cannot run pods ({reason}), so this cluster has no nodes.")
    level = "api" if reason else "node"
    with open(folder / "cluster.log", "wb") as log:
        keeper = subprocess.Popen(
            [sys.executable, HERE / "cluster.py", "up", f"--dir={folder}", f"--level={level}"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )
    (folder / "keeper.pid").write_text(str(keeper.pid))
    try:
        while not (folder / "ready.json").exists():
            if keeper.poll() is not None:
                raise Failed(f"The cluster did not start:\n{tail(folder / 'cluster.log')}")
            time.sleep(0.1)
    except BaseException:
        # Whoever stops waiting does not want it.
        keeper.terminate()
        keeper.wait()
        raise
    ready = json.loads((folder / "ready.json").read_text())
    say(f"up, with {len(ready['nodes'])} nodes; logs are in {folder}/logs. To use it:")
    say(f"  export KUBECONFIG={ready['kubeconfig']} PATH={ready['bin']}:$PATH")
    return 0


def run_stop(_chosen):
    """Ends the cluster that `start` started."""
    folder = own_dir()
    keeper = keeper_of(folder)
    if not keeper:
        say("no cluster is running")
        return 0
    os.kill(keeper, signal.SIGTERM)
    while keeper_of(folder):
        time.sleep(0.05)
    shutil.rmtree(folder)
    say("ended, and nothing is left of it")
    return 0


def run_load(chosen):
    """Puts an image on every node of a running cluster."""
    try:
        ready = json.loads((chosen.dir / "ready.json").read_text())
    except OSError as error:
        raise Failed(f"No cluster is up in {chosen.dir}.") from error
    for node in ready["nodes"]:
        # By way of the first process inside, whose number is the one out here.
        enter = ["nsenter", "--target", ready["init"], "--pid", "--mount", "--net", "--", *node["enter"]]
        with open(chosen.archive, "rb") as archive:
            command([*enter, "ctr", "--address", node["containerd"], "--namespace", "k8s.io", "images", "import", "-"], archive)
    return 0


def run_check(_chosen):
    """Says in one sentence if pods cannot run here."""
    reason = sandbox.why_not()
    if reason:
        say(f"This machine cannot run pods ({reason}), so the tests that need running pods are left out.")
        return 3
    return 0
