//! What a test does to nodes: run something on one, cut one off, enter their network.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::Deserialize;

use super::{Kubernetes, OWN_CLUSTER, harness};

/// Joins the control group of a process and takes memory until that is killed; itself, the kernel spares. A container
/// that has ended takes all with it that is in its group, so it is a child that joins.
const GLUTTON: &str = r#"
import os, sys
pid = sys.argv[1]
groups = dict(line.strip().split(":", 2)[1:] for line in open(f"/proc/{pid}/cgroup"))
folder = "/sys/fs/cgroup" + ("/memory" + groups["memory"] if "memory" in groups else groups[""])
child = os.fork()
if child:
    status = os.waitpid(child, 0)[1]
    sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0)
open("/proc/self/oom_score_adj", "w").write("-1000")
open(folder + "/cgroup.procs", "w").write(str(os.getpid()))
taken = []
while os.path.exists(f"/proc/{pid}") and len(taken) < 4096:
    taken.append(b"x" * (256 << 10))
"#;

/// Says that pods could run here a moment ago, so that it is a failure when they cannot.
pub const NODES_REQUIRED: &str = "WINDLASS_TEST_REQUIRE_NODES";

/// A node of a cluster of ours.
#[derive(Debug, Deserialize)]
pub(super) struct Node {
    pub(super) name: String,
    /// How a program gets to the node's namespaces from where the control plane is.
    enter: Vec<String>,
    /// The control plane's end of the node's cable, if it has one.
    cable: Option<String>,
    /// Where containerd listens.
    pub(super) containerd: String,
    /// The kubelet's process, by its number inside.
    kubelet: u32,
}

/// Whether pods can run on this machine; where they cannot, one sentence says why.
///
/// # Panics
///
/// If they cannot and [`NODES_REQUIRED`] is set.
pub(super) fn can_run() -> bool {
    let check = Command::new(harness("cluster.py")).arg("check").output().expect("cluster.py starts");
    let said = String::from_utf8_lossy(&check.stdout);
    say(&said);
    assert!(matches!(check.status.code(), Some(0 | 3)), "{check:?}");
    let required = std::env::var_os(NODES_REQUIRED).is_some_and(|value| !value.is_empty());
    assert!(check.status.success() || !required, "{NODES_REQUIRED} is set, and yet: {said}");
    check.status.success()
}

/// Prints past the capture of the test harness, which shows nothing of a test that passes.
fn say(text: &str) {
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}

impl Kubernetes {
    /// The shared cluster with nodes, for tests that kill, cut off or take what only a cluster of ours may lose. On
    /// somebody's own they are left out, which is then said.
    pub async fn our_nodes() -> Option<&'static Self> {
        let shared = Self::nodes().await?;
        if shared.is_ours() {
            return Some(shared);
        }
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        say(&format!("{test} is left out: it does what a cluster of somebody's own ({OWN_CLUSTER}) is spared.\n"));
        None
    }

    /// Whether this cluster is ours, so that nodes can be cut off and entered.
    pub fn is_ours(&self) -> bool {
        self.keeper.is_some()
    }

    fn node(&self, name: &str) -> &Node {
        self.nodes.iter().find(|node| node.name == name).unwrap_or_else(|| panic!("there is no node {name} of ours"))
    }

    fn init(&self) -> String {
        self.init.expect("a cluster of ours with nodes").to_string()
    }

    /// Runs a program of this machine as root in the namespaces of a node and returns what it printed.
    ///
    /// # Panics
    ///
    /// If it fails, with what it said.
    pub async fn on_node(&self, node: &str, command: &[&str]) -> String {
        let output = tokio::process::Command::new("nsenter")
            .args(["--target", &self.init(), "--pid", "--mount", "--net", "--"])
            .args(&self.node(node).enter)
            .args(command)
            .output()
            .await
            .expect("nsenter starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?} on {node} failed: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Gives an image on every node a further name, as if it came from a registry.
    pub async fn name_image(&self, image: &str, name: &str) {
        for node in &self.nodes {
            let ctr = ["ctr", "--address", &node.containerd, "--namespace", "k8s.io", "images", "tag", "--force"];
            self.on_node(&node.name, &[&ctr[..], &[image, name]].concat()).await;
        }
    }

    /// Pulls the cable of node2: nobody reaches it and it reaches nobody, and its containers go on.
    pub async fn cut_off(&self, node: &str) {
        self.set_cable(node, "down").await;
    }

    /// Plugs the cable in again.
    pub async fn reconnect(&self, node: &str) {
        self.set_cable(node, "up").await;
    }

    async fn set_cable(&self, node: &str, state: &str) {
        let cable = self.node(node).cable.as_deref().unwrap_or_else(|| panic!("{node} has no cable; node2 has one"));
        self.on_node("node1", &["ip", "link", "set", cable, state]).await;
    }

    /// Stops a node's kubelet: the cluster takes the node for lost, while its containers go on and still
    /// reach all that they did.
    pub async fn freeze_kubelet(&self, node: &str) {
        self.signal_kubelet(node, "STOP").await;
    }

    /// Lets the kubelet go on.
    pub async fn thaw_kubelet(&self, node: &str) {
        self.signal_kubelet(node, "CONT").await;
    }

    async fn signal_kubelet(&self, node: &str, signal: &str) {
        let kubelet = self.node(node).kubelet.to_string();
        self.on_node(node, &["sh", "-c", r#"kill -s "$0" "$1""#, signal, &kubelet]).await;
    }

    /// The containers that run on a node, by their ids, as its runtime tells, whoever else can be reached.
    pub async fn running_containers(&self, node: &str) -> Vec<String> {
        let ctr = ["ctr", "--address", &self.node(node).containerd, "--namespace", "k8s.io", "tasks", "list"];
        let listed = self.on_node(node, &ctr).await;
        let running = listed.lines().filter(|line| line.ends_with("RUNNING"));
        running.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
    }

    /// Kills the first process of a container, by the container's id, with the signal that nobody can catch.
    pub async fn kill9(&self, node: &str, container: &str) {
        let pid = self.first_process(node, container).await;
        self.on_node(node, &["sh", "-c", r#"kill -s KILL "$0""#, &pid]).await;
    }

    /// Fills the memory that a container may use, until the kernel kills its first process.
    pub async fn exhaust_memory(&self, node: &str, container: &str) {
        let pid = self.first_process(node, container).await;
        self.on_node(node, &["python3", "-c", GLUTTON, &pid]).await;
    }

    async fn first_process(&self, node: &str, container: &str) -> String {
        let ctr = ["ctr", "--address", &self.node(node).containerd, "--namespace", "k8s.io", "tasks", "list"];
        let listed = self.on_node(node, &ctr).await;
        let of = |line: &&str| line.starts_with(container);
        listed.lines().find(of).and_then(|line| line.split_whitespace().nth(1)).expect("it runs").to_owned()
    }

    /// Runs something in the nodes' network, where pods and Services can be reached by their addresses
    /// (not by their names) and nothing else can. What it starts (threads, a runtime, programs) is there
    /// as well. It gets a thread of its own, because a thread that went there does not come back.
    pub fn in_network<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let network = File::open(format!("/proc/{}/ns/net", self.init())).expect("the cluster has a network");
        std::thread::scope(|scope| {
            let there = scope.spawn(move || {
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                    .expect("root may go there");
                work()
            });
            there.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}
