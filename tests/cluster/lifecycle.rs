//! Starting and ending clusters, also in the middle of either: nothing is left behind, and the next one
//! starts.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::kubernetes::{Kubernetes, LIMIT};
use crate::support::servers::process::{Berth, signal};

/// `full` for the long version.
const EXTENT: &str = "WINDLASS_CLUSTER";
/// Starts in the short version; half of them are killed. The long one has twenty.
const SHORT: usize = 4;
const LONG: usize = 20;
/// How soon a cluster is up, with nodes that are ready.
const PROMISED: Duration = Duration::from_secs(30);
/// Set for the process that is to be killed with its cluster.
const VICTIM: &str = "WINDLASS_TEST_VICTIM";

fn harness() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cluster/cluster.py")
}

fn start(level: &str, berth: &Berth) -> Child {
    up(level, berth).spawn().expect("cluster.py starts")
}

fn up(level: &str, berth: &Berth) -> Command {
    // What the cluster before it said is told by that one's assertions.
    let _ = std::fs::remove_dir_all(berth.dir());
    let mut up = Command::new(harness());
    up.args(["up", &format!("--level={level}"), &format!("--dir={}", berth.dir().display())])
        .arg(format!("--port={}", berth.port()))
        .arg(format!("--etcd-port={}", berth.bus_port()))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    up
}

/// Asks until `look` answers `Ok`; `Err` is what it saw instead.
fn wait(what: &str, mut look: impl FnMut() -> Result<(), String>) {
    let started = Instant::now();
    while let Err(seen) = look() {
        assert!(started.elapsed() < LIMIT, "waited {LIMIT:?} for {what}; last seen: {seen}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a cluster is up.
fn wait_until_up(cluster: &mut Child, berth: &Berth) {
    wait("the cluster to be up", || {
        if berth.dir().join("ready.json").exists() {
            return Ok(());
        }
        let ended = cluster.try_wait().expect("it is our child");
        assert!(ended.is_none(), "the cluster ended with {ended:?} instead of starting");
        Err("no ready.json".to_owned())
    });
}

/// What a cluster could leave behind on the machine: mounts and links such as it makes. Whoever else is here may make
/// others meanwhile.
#[derive(Debug, PartialEq, Eq)]
struct Traces {
    mounts: Vec<String>,
    links: BTreeSet<String>,
}

impl Traces {
    fn look(berth: &Berth) -> Self {
        let dir = berth.dir().to_str().expect("a path of ours");
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("Linux tells its mounts");
        // In its directory, or a folder in memory by the name that the harness gives to all of its own.
        let ours = |line: &&str| line.contains(dir) || line.contains(" - tmpfs windlass ");
        let links = std::fs::read_dir("/sys/class/net").expect("Linux tells its links").flatten();
        let names = links.map(|link| link.file_name().to_string_lossy().into_owned());
        Self {
            mounts: mounts.lines().filter(ours).map(str::to_owned).collect(),
            // Bridges, and cables between nodes.
            links: names
                .filter(|name| ["nodes", "pods"].contains(&name.as_str()) || name.starts_with("cable"))
                .collect(),
        }
    }
}

/// The processes that belong to the cluster on that port: those in its cgroups, and (at the API level,
/// which has none) those that were told of its directory. One that has ended and is not yet reaped by its
/// new parent, which is not ours to hurry, has neither.
fn processes(berth: &Berth) -> Vec<String> {
    let group = format!("/windlass-{}/", berth.port());
    let dir = berth.dir().to_str().expect("a path of ours").to_owned();
    let of = |pid: &str| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let words = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
        let groups = String::from_utf8_lossy(&read("cgroup")).into_owned();
        let alive = !words.is_empty();
        (alive && (groups.contains(&group) || words.contains(&dir))).then(|| format!("{pid}: {words}"))
    };
    let all = std::fs::read_dir("/proc").expect("Linux tells its processes");
    all.flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|pid| of(&pid))
        .collect()
}

/// The cgroups of the cluster on that port.
fn cgroups(berth: &Berth) -> Vec<PathBuf> {
    let name = format!("windlass-{}", berth.port());
    let tops = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    tops.chain([PathBuf::from("/sys/fs/cgroup")]).map(|top| top.join(&name)).filter(|group| group.exists()).collect()
}

/// The namespaces of the cluster in that directory, as far as it has come: those of its first process.
fn namespaces(berth: &Berth) -> Vec<PathBuf> {
    let Ok(init) = std::fs::read_to_string(berth.dir().join("init.pid")) else { return Vec::new() };
    namespaces_of(init.trim())
}

fn namespaces_of(pid: &str) -> Vec<PathBuf> {
    let of = |kind| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
    ["pid", "mnt", "net"].into_iter().filter_map(of).collect()
}

/// How many seconds after the machine a process was started.
fn started(pid: &str) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything; the start is the twentieth word after it, in hundredths.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    Some(ticks / 100.0)
}

/// Waits until nothing is left that the kernel would have to end.
fn wait_until_gone(berth: &Berth, namespaces: &[PathBuf], before: &Traces) {
    // The kernel gives the number of a namespace that is gone to the next one, which may be a pod's of
    // another test: only what was there before the end is this cluster's.
    let uptime = std::fs::read_to_string("/proc/uptime").expect("Linux tells its uptime");
    let ended: f64 = uptime.split(' ').next().and_then(|word| word.parse().ok()).expect("seconds");
    wait("every process of the cluster to be gone", || {
        let left = processes(berth);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:#?}")) }
    });
    wait("its namespaces to be gone", || {
        let all = std::fs::read_dir("/proc").expect("Linux tells its processes").flatten();
        let held = all.filter(|entry| {
            let pid = entry.file_name().to_string_lossy().into_owned();
            let of = namespaces_of(&pid);
            of.iter().any(|one| namespaces.contains(one)) && started(&pid).is_some_and(|at| at < ended - 1.0)
        });
        let held: Vec<_> = held.map(|entry| entry.file_name()).collect();
        if held.is_empty() { Ok(()) } else { Err(format!("{held:?} are in one of {namespaces:?}")) }
    });
    wait("the ports to be free", || {
        for port in [berth.port(), berth.bus_port()] {
            TcpListener::bind(("127.0.0.1", port)).map_err(|error| format!("{port}: {error}"))?;
        }
        Ok(())
    });
    wait("mounts and links to be as before", || {
        let now = Traces::look(berth);
        if now == *before { Ok(()) } else { Err(format!("{now:#?} instead of {before:#?}")) }
    });
}

/// Starts and ends one cluster after the other; every other one is killed, each time at another moment.
fn start_and_end(level: &str) {
    let berth = Berth::claim();
    let before = Traces::look(&berth);
    let is_long = std::env::var(EXTENT).is_ok_and(|extent| extent == "full");
    let mut quickest = Duration::MAX;
    for round in 0..if is_long { LONG } else { SHORT } {
        let mut cluster = start(level, &berth);
        if round % 2 == 0 {
            // From the first process on to pods that run; a cluster takes some ten seconds.
            let moment = Duration::from_millis(fastrand::u64(0..12_000));
            std::thread::sleep(moment);
            let inside = namespaces(&berth);
            cluster.kill().expect("it is our child");
            cluster.wait().expect("it is our child");
            wait_until_gone(&berth, &inside, &before);
        } else {
            let began = Instant::now();
            wait_until_up(&mut cluster, &berth);
            quickest = quickest.min(began.elapsed());
            let inside = namespaces(&berth);
            let running = processes(&berth);
            for program in if level == "api" { &["etcd", "kube-apiserver"][..] } else { &["kubelet", "/coredns"][..] } {
                assert!(running.iter().any(|one| one.contains(program)), "{program} is missed among {running:#?}");
            }
            assert_eq!((inside.len(), cgroups(&berth).is_empty()), if level == "api" { (0, true) } else { (3, false) });
            signal(cluster.id(), if round % 4 == 1 { "TERM" } else { "INT" });
            cluster.wait().expect("it is our child");
            wait_until_gone(&berth, &inside, &before);
            assert_eq!(cgroups(&berth), Vec::<PathBuf>::new(), "what it made itself, and what the killed one left");
        }
    }
    eprintln!("measured: from nothing to a cluster that is up, {level}: {:.1} s", quickest.as_secs_f64());
    // In the short version there is but one other try, beside tests that keep the machine busy.
    assert!(!is_long || quickest < PROMISED, "{quickest:?} at best");
}

#[tokio::test]
async fn a_control_plane_that_ends_or_is_killed_leaves_nothing_and_the_next_one_starts() {
    tokio::task::spawn_blocking(|| start_and_end("api")).await.expect("it holds");
}

#[tokio::test]
async fn nodes_that_end_or_are_killed_leave_nothing_and_the_next_ones_start() {
    if Kubernetes::our_nodes().await.is_none() {
        return;
    }
    tokio::task::spawn_blocking(|| start_and_end("node")).await.expect("it holds");
}

/// Kills a cluster and starts the next one in its place at once; then kills a program of that.
fn killed_and_started_again() {
    let berth = Berth::claim();
    let before = Traces::look(&berth);
    let mut killed = start("node", &berth);
    wait_until_up(&mut killed, &berth);
    killed.kill().expect("it is our child");
    killed.wait().expect("it is our child");
    // What the kernel is still about to end must not be taken for the next one.
    drop(std::fs::remove_file(berth.dir().join("ready.json")));
    // What it says at its end is meant to be.
    let mut next = up("node", &berth).stderr(Stdio::null()).spawn().expect("cluster.py starts");
    wait_until_up(&mut next, &berth);

    let inside = namespaces(&berth);
    let running = processes(&berth);
    let of_containerd = |one: &&String| one.contains("containerd --config");
    let containerd = running.iter().find(of_containerd).and_then(|one| one.split(':').next());
    let number = containerd.unwrap_or_else(|| panic!("no containerd among {running:#?}")).parse().expect("a number");
    signal(number, "KILL");
    let status = next.wait().expect("it is our child");
    assert_eq!(status.code(), Some(1), "a cluster without one of its programs ends by itself");
    wait_until_gone(&berth, &inside, &before);
    assert_eq!(cgroups(&berth), Vec::<PathBuf>::new());
}

#[tokio::test]
async fn nodes_that_are_killed_start_again_at_once_and_end_when_one_of_their_programs_does() {
    if Kubernetes::our_nodes().await.is_none() {
        return;
    }
    tokio::task::spawn_blocking(killed_and_started_again).await.expect("it holds");
}

#[tokio::test]
async fn a_cluster_ends_with_the_process_that_started_it() {
    if std::env::var_os(VICTIM).is_some() {
        // The process that is going to be killed: it tells where its cluster is, and waits.
        let cluster = Kubernetes::start_api().await;
        eprintln!("victim: {}", cluster.kubeconfig().display());
        std::future::pending::<()>().await;
    }
    let mut victim = Command::new(std::env::current_exe().expect("a test has a program"))
        .args(["--exact", "cluster::lifecycle::a_cluster_ends_with_the_process_that_started_it", "--nocapture"])
        .env(VICTIM, "yes")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let said = BufReader::new(victim.stderr.take().expect("it was asked for"));
    let told = said.lines().map_while(Result::ok).find_map(|line| line.strip_prefix("victim: ").map(str::to_owned));
    let kubeconfig = PathBuf::from(told.expect("the victim's cluster comes up"));
    let dir = kubeconfig.parent().expect("it lies in a directory").to_str().expect("a path of ours").to_owned();
    let left = || {
        let listed = Command::new("ps").args(["-eo", "stat=,args="]).output().expect("ps starts");
        let text = String::from_utf8_lossy(&listed.stdout).into_owned();
        text.lines().filter(|line| line.contains(&dir)).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(left().len() >= 4, "the harness, etcd, apiserver and controller manager: {:#?}", left());
    victim.kill().expect("it is our child");
    let status = victim.wait().expect("it is our child");
    assert_eq!(status.signal(), Some(9));
    wait("the cluster to end", || if left().is_empty() { Ok(()) } else { Err(format!("{:#?}", left())) });
}
