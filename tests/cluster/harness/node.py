"""A node: containerd, a kubelet and kube-proxy.

node1 lives where the control plane does. Every other node has a network and a mount namespace of its
own, at the end of a cable that can be cut (`ip link set cable2 down`) while its containers go on.
"""

import json
import subprocess

from .control import POD_RANGE, SERVICE_RANGE
from .process import Failed, command, start, tied, wait
from .sandbox import BRIDGE_FILTER, cni_folder

BRIDGE = "nodes"
CONTROL_ADDRESS = "10.99.0.1"
DNS_ADDRESS = "10.96.0.10"
SOCKET = "/run/windlass-containerd.sock"
NAMESPACE = "k8s.io"


class Node:
    """A node whose container runtime is up; the kubelet is started once images are there."""

    def __init__(self, number, chosen, bin_dir, control):
        self.number = number
        self.name = f"node{number}"
        self.address = f"10.99.0.{number}"
        self.pods = f"10.244.{number}"
        self.bin = bin_dir
        self.logs = control.logs
        self.control = control
        self.state = chosen.dir / "state" / self.name
        self.state.mkdir()
        self.cgroup = f"/windlass-{chosen.port}/{self.name}"
        self.programs = []
        # How a program is run on this node.
        self.enter = []
        if number > 1:
            self._make_namespaces()
        self._prepare_network()
        self._start_containerd()

    def facts(self):
        """What a test needs to act on this node."""
        cable = f"cable{self.number}" if self.number > 1 else None
        kubelet = next(program.process.pid for program in self.programs if program.name.startswith("kubelet"))
        return {"name": self.name, "enter": self.enter, "cable": cable, "containerd": SOCKET, "kubelet": kubelet}

    def _start(self, name, *argv, env=None):
        program = start(f"{name}-{self.name}", [*self.enter, *argv], self.logs, env)
        self.programs.append(program)
        return program

    def _on_node(self, *argv):
        return command([*self.enter, *argv])

    def _make_namespaces(self):
        # A sleeper keeps them. Sockets and network namespaces of pods have their places under /run.
        script = (
            "mount -t tmpfs -o mode=755 windlass /run && mount -t tmpfs -o mode=755 windlass /var/lib "
            "&& echo made && exec sleep infinity"
        )
        argv = ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", script]
        keeper = subprocess.Popen(tied(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        if keeper.stdout.readline().strip() != "made":
            raise Failed(f"{self.name} gets no namespaces.")
        self.enter = ["nsenter", "--target", str(keeper.pid), "--net", "--mount", "--"]
        self._on_node("mount", "--make-rshared", "/")
        cable = f"cable{self.number}"
        for words in (
            f"link add {cable} type veth peer name eth0 netns {keeper.pid}",
            f"link set {cable} master {BRIDGE} up",
            f"route add {self.pods}.0/24 via {self.address} dev {BRIDGE} onlink",
        ):
            command(["ip", *words.split()])
        for words in (
            "link set lo up",
            f"addr add {self.address}/24 dev eth0",
            "link set eth0 up",
            f"route add 10.244.1.0/24 via {CONTROL_ADDRESS}",
            f"route add {SERVICE_RANGE} dev eth0",
        ):
            self._on_node("ip", *words.split())

    def _prepare_network(self):
        # Packets pass from pod to pod, and those between two pods of one bridge pass kube-proxy's
        # rules too: a Service may have led there, and its answer has to come back as the Service's. Both are
        # settings of this node's network alone.
        self._on_node("sh", "-c", f"echo 1 >/proc/sys/net/ipv4/ip_forward && echo 1 >{BRIDGE_FILTER}")
        folder = self.state / "cni"
        folder.mkdir()
        bridge = {
            "type": "bridge", "bridge": "pods", "isGateway": True, "hairpinMode": True,
            "ipam": {
                "type": "host-local", "dataDir": "/run/windlass-addresses",
                "ranges": [[{"subnet": f"{self.pods}.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
            },
        }
        config = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge]}
        (folder / "pods.conflist").write_text(json.dumps(config))

    def _start_containerd(self):
        # Restricting the score spares us a capability that a machine in a machine may not have.
        config = self.state / "containerd.toml"
        config.write_text(f"""
version = 2
root = "{self.state}/containerd"
state = "/run/windlass-containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.aufs", "io.containerd.internal.v1.opt"]
[grpc]
address = "{SOCKET}"
[ttrpc]
address = "{SOCKET}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:test"
disable_apparmor = true
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni_folder()}"
conf_dir = "{self.state}/cni"
""")
        self._start("containerd", "containerd", "--config", config)

    def import_images(self, archives):
        """Puts images where the kubelet finds them."""

        def serves():
            try:
                self._on_node("ctr", "--address", SOCKET, "version")
            except Failed as failure:
                return str(failure)
            return None

        wait(f"containerd of {self.name}", serves, self.programs)
        for archive in archives:
            self._on_node("ctr", "--address", SOCKET, "--namespace", NAMESPACE, "images", "import", archive)

    def start_kubelet(self):
        """Starts what makes this a node of the cluster."""
        who = self.control.identity
        settings = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # Not every machine has cgroups of version 2 yet.
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "address": self.address,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}, "x509": {"clientCAFile": str(who.ca)}},
            "authorization": {"mode": "Webhook"},
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            # Pods ask the cluster's DNS and nobody else.
            "resolvConf": "",
            "podLogsDir": f"{self.state}/pod-logs",
            "volumePluginDir": f"{self.state}/plugins",
            "failSwapOn": False,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": 8,
            # A machine that is nearly full is no reason to evict the tests' pods.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "enforceNodeAllocatable": ["pods"],
            "makeIPTablesUtilChains": False,
        }
        config = self.state / "kubelet.json"
        config.write_text(json.dumps(settings))
        self._start(
            "kubelet", self.bin / "kubelet", "--config", config, "--kubeconfig",
            who.kubeconfig(self.name, self.control.url), "--hostname-override", self.name, "--node-ip", self.address,
            "--root-dir", f"{self.state}/kubelet", "--cert-dir", f"{self.state}/certificates",
        )
        self._start_proxy()

    def _start_proxy(self):
        settings = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": str(self.control.identity.kubeconfig("proxy", self.control.url))},
            "hostnameOverride": self.name,
            "bindAddress": self.address,
            "clusterCIDR": POD_RANGE,
            "nodePortAddresses": [f"{self.address}/32"],
            # The machine's tables of connections are not ours to size.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
        config = self.state / "proxy.json"
        config.write_text(json.dumps(settings))
        self._start("kube-proxy", self.bin / "kube-proxy", "--config", config)
