//! What the harness itself promises: an explanation when something does not come, one sentence where no pods can run,
//! a cluster of somebody's own on request, and never the one that KUBECONFIG names.

use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Api, ListParams};
use rustix::process::geteuid;

use crate::kubernetes::{Kubernetes, LIMIT, NODES_REQUIRED, OWN_CLUSTER};

/// Runs one of these tests in a process of its own, with these variables besides.
fn run(test: &str, variables: &[(&str, &Path)]) -> Output {
    let mut child = Command::new(std::env::current_exe().expect("a test has a program"));
    child.args(["--exact", test, "--nocapture"]).envs(variables.iter().copied());
    child.output().expect("it starts")
}

#[tokio::test]
async fn when_something_does_not_come_it_is_told_what_a_person_would_look_at() {
    let cluster = Kubernetes::api().await;
    let namespace = cluster.namespace().await;
    let deployment = "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}}, spec: {containers: [{name: one, image: none}]}}}}";
    cluster.apply(&namespace, deployment).await;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await, &namespace);
    let told = cluster
        .wait_for(&namespace, "the pod and its event to be told of", async || {
            let found = pods.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let name = found.first().and_then(|pod| pod.metadata.name.clone()).ok_or("no pod")?;
            let told = cluster.explain(Some(&namespace)).await;
            if told.contains(&format!("Created pod: {name}")) { Ok(told) } else { Err(told) }
        })
        .await;
    for part in
        ["ReplicaSet/web-", "--- pod web-", "Pending", "--- log of web-", "--- kube-apiserver.log", "--- etcd.log"]
    {
        assert!(told.contains(part), "{part} is missing: {told}");
    }
}

#[test]
fn a_machine_that_cannot_run_pods_is_told_so_in_one_sentence() {
    // Another user is on a machine like that. The files are copied to where such a one may read them.
    let dir = tempfile::tempdir().expect("a directory");
    let files = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster");
    let copied = Command::new("cp").arg("-r").arg(&files).arg(dir.path()).status().expect("cp starts");
    assert!(copied.success());
    let opened = Command::new("chmod").args(["-R", "a+rX"]).arg(dir.path()).status().expect("chmod starts");
    assert!(opened.success());
    let script = dir.path().join("cluster/cluster.py");
    let mut check = match geteuid().is_root() {
        true => {
            let mut other = Command::new("setpriv");
            other.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(script);
            other
        }
        false => Command::new(script),
    };
    let output = check.arg("check").output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(3), "{output:?}");
    let words =
        "cluster: This machine cannot run pods (that needs root), so the tests that need running pods are left out.";
    assert_eq!(said.trim_end(), words);
}

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

#[test]
fn where_nodes_are_required_a_machine_that_cannot_run_pods_fails_the_tests_and_skips_none() {
    // One with Python and nothing else is like that.
    let dir = tempfile::tempdir().expect("a directory");
    // Not what the PATH has, which may be a script that asks for more.
    let asked =
        Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output().expect("python3 starts");
    let interpreter = String::from_utf8(asked.stdout).expect("a path");
    symlink(interpreter.trim(), dir.path().join("python3")).expect("a link");
    let test = "cluster::nodes::nothing_leaves_the_machine";
    let skips = run(test, &[("PATH", dir.path()), (NODES_REQUIRED, Path::new("")), (OWN_CLUSTER, Path::new(""))]);
    let said = String::from_utf8_lossy(&skips.stderr);
    assert!(skips.status.success() && said.contains("This machine cannot run pods"), "{said}");
    let fails = run(test, &[("PATH", dir.path()), (NODES_REQUIRED, Path::new("1")), (OWN_CLUSTER, Path::new(""))]);
    let said = String::from_utf8_lossy(&fails.stderr);
    assert!(!fails.status.success() && said.contains(NODES_REQUIRED), "{said}");
}

/// Runs a program in Python that has the harness at hand.
fn python(program: &str) {
    let mut python = Command::new("python3");
    let output = python.args(["-c", program]).current_dir(project("tests/cluster")).output().expect("python3 starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_cgroup_that_goes_while_processes_are_looked_for_is_no_failure() {
    // What is listed is gone before anybody looks into it.
    python(
        r#"
import os, pathlib, tempfile
from harness import sandbox

class Listed(list):
    def __enter__(self): return iter(self)
    def __exit__(self, *_): pass
    def __next__(self): return self.pop() if self else next(iter(()))
    def close(self): pass

def vanishing(path, scan=os.scandir):
    with scan(path) as found:
        listed = Listed(found)
    for entry in listed:
        if entry.is_dir() and os.path.basename(path) == "node1":
            os.rmdir(entry.path)
    return listed

with tempfile.TemporaryDirectory() as folder:
    sandbox.CGROUPS = pathlib.Path(folder)
    (sandbox.CGROUPS / "cgroup.controllers").touch()
    for pod in ("a", "b"):
        os.makedirs(f"{folder}/windlass-1/node1/{pod}")
    os.makedirs(f"{folder}/windlass-1/cluster")
    pathlib.Path(folder, "windlass-1/cluster/cgroup.procs").write_text("1 2")
    scan, os.scandir = os.scandir, vanishing
    try:
        found = sandbox.members("windlass-1")
    finally:
        os.scandir = scan
    assert found == {"1", "2"}, found
"#,
    );
}

#[test]
fn cgroups_that_are_tried_out_are_nobodys_to_sweep() {
    if !geteuid().is_root() {
        return;
    }
    python(
        r#"
import fcntl, pathlib, tempfile
from harness import sandbox

def make(name, make=sandbox.make_cgroups):
    with open(pathlib.Path(tempfile.gettempdir(), "windlass-cluster-cgroups.lock"), "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return make(name)
    raise SystemExit("nobody has the lock")

sandbox.make_cgroups = make
sandbox.why_not()
"#,
    );
}

/// Makes a program of a shell script.
fn script(path: &Path, text: &str) {
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    std::fs::write(path, format!("#!/usr/bin/env bash\n{text}\n")).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it can be run");
}

#[test]
fn an_installation_leaves_the_folder_of_the_next_one_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let (install, build) = (dir.path().join("servers/install.sh"), dir.path().join("cluster/build.sh"));
    // While Kubernetes is built another run begins, and makes its folder.
    script(&build, r#"[[ ! -e $WINDLASS_CACHE/.tmp ]] && mkdir "$WINDLASS_CACHE/.tmp""#);
    std::fs::create_dir_all(dir.path().join("servers")).expect("a folder");
    std::fs::copy(project("tests/servers/install.sh"), &install).expect("copied");
    let cache = dir.path().join("cache");
    let mut run = Command::new(install);
    let ended = run.arg("--kubernetes").env("WINDLASS_CACHE", &cache).output().expect("it starts");
    assert!(ended.status.success(), "{ended:?}");
    assert!(cache.join(".tmp").is_dir(), "it is the other one's");
}

/// "dpkg was interrupted, you must manually run 'dpkg --configure -a'", says apt-get, and installs nothing.
#[test]
fn an_installation_finishes_what_an_earlier_one_was_killed_at() {
    let dir = tempfile::tempdir().expect("a directory");
    let bin = dir.path().join("bin");
    for name in ["apt-get", "dpkg"] {
        script(&bin.join(name), &format!(r#"echo "$(basename "$0") $*" >>{}/done"#, dir.path().display()));
    }
    script(&bin.join("sudo"), r#"exec "$@""#);
    // There is a machine's bash, but neither a Redis nor anything else that would have to be installed.
    for name in ["basename", "bash", "dirname", "env", "flock", "grep", "mkdir", "rm"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {name}")]).output().expect("sh starts");
        symlink(String::from_utf8(found.stdout).expect("a path").trim(), bin.join(name)).expect("a link");
    }
    let mut run = Command::new(project("tests/servers/install.sh"));
    run.arg("--redis").env("PATH", &bin).env("WINDLASS_CACHE", dir.path().join("cache"));
    let ended = run.output().expect("it starts");
    assert!(!ended.status.success(), "apt-get brought nothing: {ended:?}");
    let done = std::fs::read_to_string(dir.path().join("done")).expect("something was done");
    let place = |words: &str| done.lines().position(|line| line.contains(words));
    let (finished, installed) = (place("--configure -a"), place("install --no-install-recommends redis-tools"));
    assert!(finished.is_some() && finished < installed, "{done}");
}

#[test]
fn cgroups_of_version_2_hand_down_what_the_kubelet_wants() {
    // What the kernel does, in a folder: controllers come from above, and not by way of a group with processes.
    python(
        r#"
import errno, os, pathlib, tempfile
from harness import sandbox

class Group(type(pathlib.Path())):
    def mkdir(self, *arguments, **words):
        super().mkdir(*arguments, **words)
        above = sandbox.CGROUPS if self.parent == sandbox.CGROUPS else self.parent
        self.fill((above / "cgroup.subtree_control").read_text())
        for file in ("cgroup.subtree_control", "cgroup.procs"):
            (self / file).touch()

    def fill(self, controllers):
        pathlib.Path(self, "cgroup.controllers").write_text(controllers)

    def write_text(self, text):
        group = self.parent
        if text[1:] not in (group / "cgroup.controllers").read_text().split():
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
        if busy and (group / "cgroup.procs").read_text():
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        with open(self, "a") as file:
            file.write(f"{text[1:]} ")
        for below in group.iterdir():
            if below.is_dir():
                below.fill(self.read_text())

def controllers(there, procs):
    with tempfile.TemporaryDirectory() as folder:
        sandbox.CGROUPS = Group(folder)
        sandbox.CGROUPS.fill(there)
        pathlib.Path(folder, "cgroup.subtree_control").write_text("memory pids ")
        pathlib.Path(folder, "cgroup.procs").write_text(procs)
        sandbox.make_cgroups("windlass-1")
        for _ in range(2):
            sandbox.make_cgroups("windlass-1")
        return {part: set((sandbox.CGROUPS / "windlass-1" / part / "cgroup.controllers").read_text().split())
                for part in ("node1", "node2", "cluster")}

busy = False
for there in ("cpuset cpu io memory hugetlb pids rdma misc", "cpuset cpu io memory pids"):
    found = controllers(there, "1 2")
    assert found["node1"] == found["node2"] == set(there.split()) - {"io", "rdma", "misc"}, found

# In a container the topmost group that is seen is none: it holds processes, and the kernel says so.
busy = True
try:
    controllers("cpuset cpu memory pids", "1 2")
except sandbox.Failed as failure:
    assert "cannot hand down its controller cpu (Device or resource busy)" in str(failure), failure
else:
    raise SystemExit("nothing was said")
"#,
    );
}

#[test]
fn a_machine_whose_bridges_pass_by_kube_proxys_rules_cannot_run_pods() {
    if !geteuid().is_root() {
        return;
    }
    python(
        r#"
from harness import sandbox

if sandbox.why_not() is None:
    sandbox.BRIDGE_FILTER, sandbox.BRIDGE_MODULE = sandbox.BRIDGE_FILTER.with_name("none"), "windlass_none"
    reason = sandbox.why_not()
    assert reason and "the kernel's module windlass_none is missing" in reason, reason
"#,
    );
}

#[test]
fn a_build_that_is_killed_takes_along_what_it_started() {
    let dir = tempfile::tempdir().expect("a directory");
    let told = dir.path().join("told");
    let go = format!(
        r#"if [[ $1 == env ]]; then echo go1.26.0; else echo $$ >{told}.new; mv {told}.new {told}; exec sleep 1000; fi"#,
        told = told.display()
    );
    script(&dir.path().join("bin/go"), &go);
    let others = std::env::var_os("PATH").unwrap_or_default();
    let path = std::iter::once(dir.path().join("bin")).chain(std::env::split_paths(&others));
    let mut build = Command::new(project("tests/cluster/build.sh"))
        .env("PATH", std::env::join_paths(path).expect("folders without colons"))
        .env("WINDLASS_CACHE", dir.path().join("cache"))
        .stdout(Stdio::null())
        .spawn()
        .expect("it starts");
    let number = wait_for("go to be started", || std::fs::read_to_string(&told).ok());
    build.kill().expect("it is our child");
    build.wait().expect("it is our child");
    // One that nobody has waited for yet has no command line any more.
    let words = Path::new("/proc").join(number.trim()).join("cmdline");
    wait_for("go to be gone", || std::fs::read(&words).unwrap_or_default().is_empty().then_some(()));
}

fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(started.elapsed() < LIMIT, "waited {LIMIT:?} for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A kubeconfig that leads to somebody who counts who comes.
fn bait(dir: &Path) -> (TcpListener, std::path::PathBuf) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it does not wait");
    let address = listener.local_addr().expect("an address");
    let config = format!(
        "{{apiVersion: v1, kind: Config, current-context: it, contexts: [{{name: it, context: {{cluster: it, user: it}}}}], \
         clusters: [{{name: it, cluster: {{server: 'http://{address}'}}}}], users: [{{name: it, user: {{token: t}}}}]}}"
    );
    let path = dir.join("production");
    std::fs::write(&path, config).expect("written");
    (listener, path)
}

#[tokio::test]
async fn a_plain_kubeconfig_is_never_used() {
    let dir = tempfile::tempdir().expect("a directory");
    let (listener, config) = bait(dir.path());
    let test = "cluster::api::helm_installs_and_removes_a_chart";
    let child = tokio::task::spawn_blocking(move || run(test, &[("KUBECONFIG", &config)])).await.expect("it ends");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    let came = listener.accept().expect_err("nobody comes");
    assert_eq!(came.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn a_cluster_of_somebodys_own_is_used_where_it_is_named_and_left_clean() {
    let Some(cluster) = Kubernetes::our_nodes().await else { return };
    let dir = tempfile::tempdir().expect("a directory");
    let (listener, config) = bait(dir.path());
    let ours = cluster.kubeconfig().to_owned();
    let test = "cluster::nodes::a_rolling_update_replaces_every_pod";
    let child = tokio::task::spawn_blocking(move || run(test, &[(OWN_CLUSTER, &ours), ("KUBECONFIG", &config)]));
    let id = std::process::id();
    let child = child.await.expect("it ends");
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&child.stderr));
    listener.accept().expect_err("nobody comes to the other one");
    // It made a namespace there, and has deleted it.
    let namespaces: Api<Namespace> = Api::all(cluster.client().await);
    cluster
        .wait_for("default", "the other process's namespace to be gone", async || {
            let all = namespaces.list(&ListParams::default()).await.map_err(|error| error.to_string())?.items;
            let names: Vec<String> = all.into_iter().filter_map(|one| one.metadata.name).collect();
            let theirs = |name: &&String| name.starts_with("test-") && !name.starts_with(&format!("test-{id}-"));
            let left: Vec<_> = names.iter().filter(theirs).collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        })
        .await;
}

#[tokio::test]
async fn a_cluster_that_is_named_and_is_not_there_fails_the_tests_and_skips_none() {
    let test = "cluster::nodes::nothing_leaves_the_machine";
    let child = run(test, &[(OWN_CLUSTER, Path::new("/nowhere/kubeconfig"))]);
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(!child.status.success() && said.contains("/nowhere/kubeconfig, which is no file"), "{said}");
}
