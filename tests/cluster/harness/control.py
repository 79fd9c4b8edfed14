"""The control plane: etcd, the apiserver, the controller manager, and with nodes the scheduler.

Needs no root. What is not worth keeping is not kept: etcd does not wait for the disk, nobody elects
a leader, and nothing but the apiserver and etcd opens a port.
"""

from .identity import API_SERVICE, Identity
from .process import answers, start, wait

POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
# Few requests a second are a guess about somebody else's cluster; tests would wait for them.
FAST = ["--kube-api-qps=1000", "--kube-api-burst=2000"]


class Control:
    """A running control plane."""

    def __init__(self, bin_dir, folder, address, port, etcd_port, names=(), say=print):
        self.bin = bin_dir
        self.logs = folder / "logs"
        self.data = folder / "data"
        self.address = address
        self.port = port
        self.url = f"https://{address}:{port}"
        self.say = say
        for made in (self.logs, self.data):
            made.mkdir(exist_ok=True)
        self.identity = Identity(folder / "identity", ["127.0.0.1", API_SERVICE, *names])
        self.programs = []
        self._start_etcd(etcd_port)
        self._start_apiserver(etcd_port)

    def _start(self, name, *flags):
        program = start(name, [self.bin / name, *flags], self.logs)
        self.programs.append(program)
        return program

    def _start_etcd(self, port):
        # A cluster of one never talks to a peer: any port will do.
        peer = "http://127.0.0.1:0"
        client = f"http://127.0.0.1:{port}"
        self._start(
            "etcd", "--name=one", f"--data-dir={self.data}/etcd", "--unsafe-no-fsync", "--log-level=warn",
            f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=one={peer}",
        )
        wait("etcd", answers(f"{client}/health"), self.programs)

    def _start_apiserver(self, etcd_port):
        who = self.identity
        # On loopback the apiserver cannot be anybody's endpoint, and would say so every ten seconds.
        reconciler = "none" if self.address == "127.0.0.1" else "master-count"
        self._start(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            f"--bind-address={self.address}", f"--advertise-address={self.address}", f"--secure-port={self.port}",
            f"--endpoint-reconciler-type={reconciler}", f"--cert-dir={self.data}/apiserver",
            f"--tls-cert-file={who.server}", f"--tls-private-key-file={who.server_key}",
            f"--client-ca-file={who.ca}", f"--token-auth-file={who.tokens_file}",
            f"--kubelet-client-certificate={who.server}", f"--kubelet-client-key={who.server_key}",
            "--kubelet-preferred-address-types=InternalIP",
            "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-account-key-file={who.accounts}", f"--service-account-signing-key-file={who.accounts_key}",
            f"--service-cluster-ip-range={SERVICE_RANGE}", "--profiling=false",
        )
        wait("the apiserver", answers(f"{self.url}/readyz", who.ca, who.tokens["admin"]), self.programs)
        self.say("apiserver ready")

    def start_controllers(self):
        """Starts the controllers, and waits for what the first pod of all needs."""
        who = self.identity
        config = who.kubeconfig("controller-manager", self.url)
        self._start(
            "kube-controller-manager", f"--kubeconfig={config}", *FAST, "--leader-elect=false", "--secure-port=0",
            f"--root-ca-file={who.ca}", f"--service-account-private-key-file={who.accounts_key}",
            f"--cluster-signing-cert-file={who.ca}", f"--cluster-signing-key-file={who.ca_key}",
            "--use-service-account-credentials=true",
            # A node that was cut off is noticed after this, and its pods are removed after their
            # tolerations; the usual times (50 s and 5 minutes) are for networks that hiccup.
            "--node-monitor-period=1s", "--node-monitor-grace-period=10s",
        )
        # Pods are refused until their namespace has its ServiceAccount.
        account = f"{self.url}/api/v1/namespaces/default/serviceaccounts/default"
        wait("the default ServiceAccount", answers(account, who.ca, who.tokens["admin"]), self.programs)
        self.say("controllers ready")

    def start_scheduler(self):
        """Starts the scheduler; without nodes nobody would miss it."""
        config = self.identity.kubeconfig("scheduler", self.url)
        # The only one that opens a port for its health, in the nodes' own network.
        settings = self.data / "scheduler.yaml"
        settings.write_text(
            "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
            f"clientConnection: {{kubeconfig: {config}, qps: 1000, burst: 2000}}\nleaderElection: {{leaderElect: false}}\n"
        )
        self._start("kube-scheduler", f"--config={settings}", "--secure-port=0")
