"""The outside of a cluster with nodes: namespaces, cgroups, and the one door into it.

Everything runs in a process, a mount and a network namespace of its own. That is what makes the end
simple: the kernel kills whatever is in a process namespace when its first process dies, and mounts,
links, routes and ports go with the last process of theirs. So the usual end and a `kill -9` in the
middle are the same thing, and only cgroups are left, which have no namespace: they are removed by us,
or, if we were killed too, by the next start.

The door: a socket that listens on this machine's loopback is made here and handed inside, where
somebody passes on what comes to the apiserver. It lets people and tests in, and nothing out.
"""

import contextlib
import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .process import Failed, tied

CGROUPS = Path("/sys/fs/cgroup")
PREFIX = "windlass-"
NEEDED = ["containerd", "ctr", "runc", "nft", "ip", "unshare", "nsenter", "mount", "setpriv"]
CNI_FOLDERS = ["/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"]
# What the kubelet wants to find in the cgroup of a node, of what the machine has. With version 2 alone: with version 1
# each is a hierarchy of its own.
CONTROLLERS = ["cpu", "cpuset", "memory", "hugetlb", "pids"]
# Where the kernel tells whether packets on a bridge pass the rules of nftables, and what makes it ask.
BRIDGE_FILTER, BRIDGE_MODULE = Path("/proc/sys/net/bridge/bridge-nf-call-iptables"), "br_netfilter"
# How long the kernel may take to end everything.
END_SECONDS = 60
# How long a port is waited for that is not free yet.
DOOR_SECONDS = 15


def why_not():
    """Why this machine cannot run pods, or None."""
    if sys.platform != "linux":
        return "it does not run Linux"
    if os.geteuid() != 0:
        return "that needs root"
    missing = [program for program in NEEDED if not shutil.which(program, path=search_path())]
    if missing:
        return f"there is no {', '.join(missing)}; `make kubernetes` installs them on Debian and Ubuntu"
    if not cni_folder():
        return "there are no CNI plugins; the package is containernetworking-plugins"
    load_bridge_filter()
    tried = subprocess.run(
        ["unshare", "--pid", "--mount", "--net", "--fork", "sh", "-c",
         "mount -t proc proc /proc && ip link add name b type bridge && nft list ruleset >/dev/null "
         f"&& {{ [ ! -e {BRIDGE_FILTER} ] || echo filtered; }}"],
        capture_output=True, text=True, check=False, env={**os.environ, "PATH": search_path()},
    )
    if tried.returncode != 0:
        said = tried.stderr.strip().splitlines() or [f"unshare ended with {tried.returncode}"]
        return f"namespaces cannot be made: {said[-1]}"
    if "filtered" not in tried.stdout:
        return f"packets between pods would not pass kube-proxy's rules: the kernel's module {BRIDGE_MODULE} is missing"
    name = f"{PREFIX}0-{os.getpid()}"
    # Nobody is in these: whoever starts a cluster meanwhile would take them for forgotten ones.
    with locked("cgroups"):
        try:
            make_cgroups(name)
        except (OSError, Failed) as error:
            return f"cgroups cannot be made: {error}"
        finally:
            remove_cgroups(name)
    return None


def search_path():
    """Where programs for root lie as well, which not every PATH has."""
    return os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"


def cni_folder():
    """The folder with the CNI plugins, or None."""
    return next((folder for folder in CNI_FOLDERS if os.access(f"{folder}/bridge", os.X_OK)), None)


def load_bridge_filter():
    """Loads the module without which packets between two pods of one bridge pass no rule, where it is one."""
    # It stays, as do those that the kernel loads by itself for namespaces and bridges.
    if not BRIDGE_FILTER.exists():
        with contextlib.suppress(OSError):
            subprocess.run(
                ["modprobe", BRIDGE_MODULE], capture_output=True, check=False,
                env={**os.environ, "PATH": search_path()},
            )


def run_up(chosen, here, say):
    """Runs a cluster in namespaces of its own until it is told to end, and removes what is left of it."""
    reason = why_not()
    if reason:
        raise Failed(f"This machine cannot run pods: {reason}.")
    os.environ["PATH"] = search_path()
    name = f"{PREFIX}{chosen.port}"
    # Its predecessor on the same port may still be ending.
    with locked(name), door(chosen.port) as listener:
        # What a predecessor that was killed left, as soon as the kernel has ended all of it.
        remove_cgroups(name)
        for told in ("init.pid", "ready.json"):
            (chosen.dir / told).unlink(missing_ok=True)
        for made in ("data", "identity"):
            shutil.rmtree(chosen.dir / made, ignore_errors=True)
        sandbox = None
        try:
            with locked("cgroups"):
                sweep()
                make_cgroups(name)
                sandbox = start(chosen, here, name, listener)
                joined(name, sandbox)
            raise Failed(f"the cluster has ended with {sandbox.wait()}")
        finally:
            # A second signal must not cut this short.
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            if sandbox:
                end(chosen.dir, sandbox)
            remove_cgroups(name)
            say("ended")


def door(port):
    """A socket that listens on this machine's loopback."""
    deadline = time.monotonic() + DOOR_SECONDS
    while True:
        try:
            return socket.create_server(("127.0.0.1", port), backlog=128)
        except OSError as error:
            # Of a cluster that was killed somebody inside may have the old one for a moment longer.
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise Failed(f"Port {port} cannot be used: {error}") from error
            time.sleep(0.05)


def start(chosen, here, name, listener):
    """Starts what runs inside, in its cgroups from the first moment on."""
    # The first shell is still outside: it joins the cgroups and leaves no trace. The second one is the
    # first process inside. Before it has a /proc of its own, the old one tells it its number outside.
    outside = (
        f'for group in {CGROUPS}/{name}/cluster {CGROUPS}/*/{name}/cluster; do '
        '[ ! -w "$group/cgroup.procs" ] || echo $$ >"$group/cgroup.procs" 2>/dev/null || :; done; '
        # Of a child that was killed unshare says something about signal masks, to everybody's surprise.
        'exec 3>&2 2>/dev/null "$@"'
    )
    inside = (
        'exec 2>&3 3>&-; read -r number _ </proc/self/stat && echo "$number" >"$0/init.pid" && mount -t proc proc /proc '
        '&& { "$@" & wait $!; }'
    )
    arguments = [
        "sh", "-c", outside, "outside",
        "unshare", "--pid", "--mount", "--net", "--ipc", "--uts", "--fork", "--kill-child=KILL", "--",
        "sh", "-c", inside, str(chosen.dir),
        sys.executable, str(here / "cluster.py"), "inside", "--dir", str(chosen.dir), "--nodes", str(chosen.nodes),
        "--port", str(chosen.port), "--listener", str(listener.fileno()),
    ]
    # A session of its own, so that a Ctrl-C reaches us alone.
    return subprocess.Popen(
        tied(arguments), stdin=subprocess.DEVNULL, pass_fds=[listener.fileno()], start_new_session=True
    )


def end(folder, sandbox):
    """Kills the first process inside, and thereby all."""
    try:
        os.kill(int((folder / "init.pid").read_text()), signal.SIGKILL)
    except (OSError, ValueError):
        # There is none yet, or none any more; whoever would make it goes.
        sandbox.kill()
    try:
        # It ends after its child, and has then waited for it.
        sandbox.wait(timeout=END_SECONDS)
    except subprocess.TimeoutExpired:
        sandbox.kill()
        sandbox.wait()


def hierarchies():
    """The cgroup hierarchies: one with version 2, several with version 1."""
    if (CGROUPS / "cgroup.controllers").exists():
        return [CGROUPS]
    return [folder for folder in CGROUPS.iterdir() if folder.is_dir() and not folder.is_symlink()]


def make_cgroups(name):
    """Makes the cgroups of a cluster: one for its own programs, and one a node for the pods."""
    for hierarchy in hierarchies():
        for part in ("cluster", "node1", "node2"):
            (hierarchy / name / part).mkdir(parents=True, exist_ok=True)
    if (CGROUPS / "cgroup.controllers").exists():
        hand_down(name)


def hand_down(name):
    """Gives the nodes' cgroups the controllers that the kubelet wants, which with version 2 come from above only."""
    # No process may be in a group that hands controllers down, but in the topmost one of all. Ours are in `cluster`,
    # and the kubelet's in groups that it makes below the nodes'.
    there = words(CGROUPS / "cgroup.controllers")
    wanted = [controller for controller in CONTROLLERS if controller in there]
    for group in (CGROUPS, CGROUPS / name):
        # What the topmost one hands down stays so: others may have come to use it.
        for controller in wanted:
            if controller in words(group / "cgroup.subtree_control"):
                continue
            try:
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError as error:
                raise Failed(f"{group} cannot hand down its controller {controller} ({error.strerror})") from error


def words(file):
    """The words of a file."""
    return file.read_text().split()


def joined(name, sandbox):
    """Waits until the cluster is in its cgroup, so that nobody takes that for a forgotten one."""
    while sandbox.poll() is None and not members(name):
        time.sleep(0.01)


def members(name):
    """The processes in the cgroups of a cluster."""
    found = set()
    for hierarchy in hierarchies():
        # Groups of pods come and go while we look, which `os.walk` takes as it comes.
        for folder, _, _ in os.walk(hierarchy / name):
            with contextlib.suppress(OSError):
                found.update(Path(folder, "cgroup.procs").read_text().split())
    return found


def remove_cgroups(name):
    """Removes the cgroups of a cluster whose processes are gone, or about to be."""
    deadline = time.monotonic() + END_SECONDS
    for hierarchy in hierarchies():
        top = hierarchy / name
        while top.exists():
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
            if time.monotonic() > deadline:
                raise Failed(f"{top} cannot be removed; its processes: {members(name)}")
            if top.exists():
                time.sleep(0.02)


def sweep():
    """Removes the cgroups of clusters that were killed together with whoever would have removed them."""
    names = {folder.name for hierarchy in hierarchies() for folder in hierarchy.glob(f"{PREFIX}*")}
    for name in names:
        if not members(name):
            remove_cgroups(name)


@contextlib.contextmanager
def locked(name):
    """Holds a lock of this machine; the kernel gives it back, however we end."""
    # Not handed on to what we start: it would hold the lock as long as that lives.
    path = Path(tempfile.gettempdir()) / f"windlass-cluster-{name}.lock"
    with open(path, "a", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
