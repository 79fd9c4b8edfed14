"""The inside of a cluster with nodes: its mounts, its network, its control plane, nodes and DNS.

Runs as root in namespaces that sandbox.py made; nothing here can leave them. The network is a bridge
with the control plane and node1 on it, node2 behind a cable, and on each node a bridge for its pods
(node.py). There is no default route anywhere, and so no way out.
"""

import asyncio
import socket
import threading

from . import image
from .control import SERVICE_RANGE, Control
from .node import BRIDGE, CONTROL_ADDRESS, Node
from .process import Failed, command, wait

API_PORT = 6443
ETCD_PORT = 2379

# The kubelet wants these, and writes them where they differ. They are the whole machine's, so it is
# shown what it wants to see and leaves them alone.
WANTED = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


def run(chosen, here, programs, say, write_ready, watch):
    """Runs the cluster until one of its programs ends; it is killed when nobody wants it any more."""
    prepare_mounts(chosen.dir)
    prepare_network()
    control = Control(programs, chosen.dir, CONTROL_ADDRESS, API_PORT, ETCD_PORT, names=[CONTROL_ADDRESS], say=say)
    open_door(chosen.listener)
    # While the controllers start, so do the nodes.
    nodes = [Node(number, chosen, programs, control) for number in range(1, chosen.nodes + 1)]
    control.start_controllers()
    control.start_scheduler()
    archives = image.built_in(programs)
    for node in nodes:
        node.import_images(archives)
        node.start_kubelet()
    running = [*control.programs, *(program for node in nodes for program in node.programs)]
    config = control.identity.kubeconfig("admin", f"https://127.0.0.1:{chosen.port}", chosen.dir / "kubeconfig")
    kubectl = [programs / "kubectl", "--kubeconfig", control.identity.kubeconfig("admin", control.url)]
    command([*kubectl, "apply", "--server-side", "-f", here / "manifests/dns.yaml"])
    for node in nodes:
        wait(node.name, printed([*kubectl, "get", "node", node.name, "-o", READY], "True"), running)
        say(f"{node.name} ready")
    available = [*kubectl, "-n", "kube-system", "get", "deployment", "dns", "-o", "jsonpath={.status.availableReplicas}"]
    wait("the cluster's DNS", printed(available, "1"), running)
    say("DNS ready")
    init = int((chosen.dir / "init.pid").read_text())
    write_ready(
        chosen.dir, level="node", kubeconfig=config, bin=programs, init=init, nodes=[node.facts() for node in nodes]
    )
    say(f"up; KUBECONFIG={config}")
    watch(running)


READY = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'


def printed(argv, wanted):
    """A condition: the command prints that."""

    def condition():
        try:
            seen = command(argv).strip()
        except Failed as failure:
            return str(failure)
        return None if seen == wanted else f"`{seen}`"

    return condition


def prepare_mounts(folder):
    """Gives the programs places of their own where they insist on a path."""
    # So that mounts of the kubelet reach containers; only within this namespace.
    command(["mount", "--make-rshared", "/"])
    # Sockets of containerd, network namespaces of pods, what CNI remembers: all in memory, and gone
    # with the namespace. The state of nodes as well; an overlay wants no other overlay below it.
    state = folder / "state"
    for made in (folder / "logs", state):
        made.mkdir(exist_ok=True)
    for place in ("/run", "/var/lib", state):
        command(["mount", "-t", "tmpfs", "-o", "mode=755", "windlass", place])
    for name, value in WANTED.items():
        shown = state / name.replace("/", "-")
        shown.write_text(f"{value}\n")
        command(["mount", "--bind", shown, f"/proc/sys/{name}"])


def prepare_network():
    """The bridge between the nodes, and where Services are."""
    for words in (
        f"link set lo up",
        f"link add name {BRIDGE} type bridge",
        f"addr add {CONTROL_ADDRESS}/24 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        # kube-proxy turns these addresses into pods'; a packet needs a route to get that far.
        f"route add {SERVICE_RANGE} dev {BRIDGE}",
    ):
        command(["ip", *words.split()])


def open_door(number):
    """Passes on what comes to the socket that sandbox.py made, which is outside, to the apiserver."""
    listener = socket.socket(fileno=number)

    async def pass_on(reader, writer):
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:
            writer.close()

    async def serve(reader, writer):
        try:
            to_server = await asyncio.open_connection(CONTROL_ADDRESS, API_PORT)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pass_on(reader, to_server[1]), pass_on(to_server[0], writer))
        for one in (writer, to_server[1]):
            one.close()

    async def forever():
        async with await asyncio.start_server(serve, sock=listener) as server:
            await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(forever()), name="door", daemon=True).start()
