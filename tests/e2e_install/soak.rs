//! Work for a long time, while everything is restarted.
//!
//! `make soak` runs it for ten minutes; every test run for one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;

use super::scene::{Place, Scene};

/// How much a process may grow beyond what it had when it was first looked at.
const GROWTH_MEBIBYTES: f64 = 24.0;
/// How much more it may have in the second half of the calm at the end than in the first.
const FLAT_MEBIBYTES: f64 = 4.0;
/// How often a process has to have been looked at in each half of the calm to be judged by them. The short run ends before
/// that: it holds processes to the bound of their growth alone.
const ENOUGH: usize = 8;
/// For how long no task is given out while Redis itself is restarted.
const GAP: Duration = Duration::from_secs(45);

/// How long, and how much of that goes without restarts at the end.
struct Scale {
    restarts: Duration,
    calm: Duration,
    /// Between two tasks.
    every: Duration,
    /// Between two restarts, at the least.
    pause: Duration,
    /// Of whom some process must have been judged by the halves of the calm.
    judged: &'static [&'static str],
}

fn scale() -> Scale {
    let seconds = Duration::from_secs;
    match std::env::var("WINDLASS_SOAK").as_deref() {
        Ok("full") => Scale {
            restarts: seconds(420),
            calm: seconds(180),
            every: Duration::from_millis(50),
            pause: seconds(10),
            judged: &["operator", "worker"],
        },
        _ => Scale {
            restarts: seconds(15),
            calm: seconds(20),
            every: Duration::from_millis(100),
            pause: seconds(0),
            judged: &[],
        },
    }
}

/// What is restarted, one after the other. The pool that stays has workers that live through all of it.
fn restarts(place: &Place, round: usize) -> Vec<(&'static str, String)> {
    let (system, jobs, store) = (&*place.system, &*place.jobs, &*place.store);
    let again = |namespace: &str, what: &str| {
        format!(
            "kubectl rollout restart -n {namespace} {what}; kubectl rollout status -n {namespace} {what} --timeout=3m"
        )
    };
    let version = format!(
        "kubectl patch -n {jobs} workerpool/workers --type=merge \
           -p '{{\"spec\": {{\"template\": {{\"metadata\": {{\"annotations\": {{\"version\": \"{round}\"}}}}}}}}}}'
         kubectl wait -n {jobs} --for='jsonpath={{.spec.template.metadata.annotations.version}}={round}' \
           deployment/workers --timeout=3m
         kubectl rollout status -n {jobs} deployment/workers --timeout=3m"
    );
    vec![
        ("operators", again(system, "deployment/windlass")),
        ("workers", again(jobs, "deployment/workers")),
        ("Redis", again(store, "statefulset/redis")),
        ("applications, with a new version", version),
    ]
}

#[tokio::test]
async fn a_soak_with_rolling_restarts_of_everything_loses_nothing_and_memory_stays_flat() {
    let Some(scene) = Scene::enter().await else { return };
    let scale = scale();
    let place = scene.place().await;
    scene.install(&place, "--set replicaCount=2").await;
    let work = scene.work(&place).await;
    let jobs = &*place.jobs;
    scene
        .types(&format!(
            "sed -e 's/name: workers/name: staying/' tests/e2e_install/work.yaml | kubectl apply -n {jobs} -f -
             kubectl wait -n {jobs} --for=condition=Ready workerpool/staying --timeout=3m"
        ))
        .await;
    let producing = work.begin(scale.every);
    let (start, began) = (Instant::now(), Timestamp::now());
    let mut memory = Memory::default();
    let mut round = 0;
    while start.elapsed() < scale.restarts {
        round += 1;
        for (what, how) in restarts(&place, round) {
            memory.look(&scene).await;
            scene.types(&how).await;
            eprintln!("{:>4} s: restarted {what}; {} tasks so far", start.elapsed().as_secs(), producing.accepted());
            memory.watch(&scene, scale.pause).await;
        }
    }
    let calm = Instant::now();
    memory.watch(&scene, scale.calm).await;
    let ended = Timestamp::now();
    let account = producing.stop().await.all_done().await;
    eprintln!("measured: a soak of {} s, everything restarted {round} times", start.elapsed().as_secs());
    account.claims_went_on(began, ended, GAP, "during the soak");
    memory.judge();
    let judged = memory.judge_calm(calm, scale.calm);
    assert!(scale.judged.iter().all(|role| judged.contains(role)), "only of {judged:?} enough was seen in the calm");
}

/// A worker that was looked at so often, all through a calm, and what memory it had each time.
fn looked_at(looks: usize, mebibytes: impl Fn(usize) -> f64) -> (Memory, Instant, Duration) {
    let (calm, long) = (Instant::now(), Duration::from_secs(600));
    let seen = (0..looks).map(|look| (calm + long.mul_f64(look as f64 / looks as f64), mebibytes(look))).collect();
    (Memory(BTreeMap::from([(("worker", "one".to_owned()), seen)])), calm, long)
}

#[test]
fn a_process_that_was_hardly_looked_at_is_not_said_to_be_judged() {
    let (memory, calm, long) = looked_at(2 * ENOUGH - 2, |_| 10.0);
    assert_eq!(memory.judge_calm(calm, long), BTreeSet::new());
    let (memory, calm, long) = looked_at(2 * ENOUGH, |_| 10.0);
    assert_eq!(memory.judge_calm(calm, long), BTreeSet::from(["worker"]));
}

#[test]
#[should_panic(expected = "worker one grows")]
fn a_process_that_grows_in_the_calm_is_seen() {
    let (memory, calm, long) = looked_at(40, |look| 10.0 + look as f64 / 4.0);
    memory.judge_calm(calm, long);
}

/// What the kubelets tell of memory, by process: a container that was started anew is another one.
#[derive(Default)]
struct Memory(BTreeMap<(&'static str, String), Vec<(Instant, f64)>>);

impl Memory {
    /// Looks for as long, once in a while.
    async fn watch(&mut self, scene: &Scene, long: Duration) {
        let end = Instant::now() + long;
        while Instant::now() < end {
            self.look(scene).await;
            tokio::time::sleep(Duration::from_secs(5).min(long)).await;
        }
    }

    async fn look(&mut self, scene: &Scene) {
        for node in ["node1", "node2"] {
            let said = scene.types(&format!("kubectl get --raw /api/v1/nodes/{node}/proxy/stats/summary")).await;
            let told: Value = serde_json::from_str(&said).expect("JSON");
            for pod in told["pods"].as_array().into_iter().flatten() {
                for container in pod["containers"].as_array().into_iter().flatten() {
                    self.note(&pod["podRef"]["name"], container);
                }
            }
        }
    }

    fn note(&mut self, pod: &Value, container: &Value) {
        let role = match container["name"].as_str() {
            Some("operator") => "operator",
            Some("windlass-worker") => "worker",
            Some("redis") => "Redis",
            _ => return,
        };
        let Some(bytes) = container["memory"]["workingSetBytes"].as_f64().filter(|bytes| *bytes > 0.0) else { return };
        let process = format!("{} since {}", pod.as_str().unwrap_or_default(), container["startTime"]);
        self.0.entry((role, process)).or_default().push((Instant::now(), bytes / f64::from(1 << 20)));
    }

    /// Prints what those that lived longest had at the beginning and at the end, and checks that it is no more.
    fn judge(&self) {
        for role in ["operator", "worker", "Redis"] {
            let of = |one: &&Vec<(Instant, f64)>| one[one.len() - 1].0 - one[0].0;
            let seen = self.0.iter().filter(|((of, _), _)| *of == role).map(|(_, seen)| seen);
            let Some(seen) = seen.max_by_key(of) else { panic!("the kubelets tell nothing of any {role}") };
            let (first, last) = (seen[0].1, seen[seen.len() - 1].1);
            let most = seen.iter().map(|(_, mebibytes)| *mebibytes).fold(0.0, f64::max);
            eprintln!(
                "measured: memory of the {role} that lived longest ({} s): {first:.1} MiB, at the end {last:.1}, at most {most:.1}",
                of(&seen).as_secs()
            );
            // Redis keeps the results.
            assert!(role == "Redis" || last < first + GROWTH_MEBIBYTES, "{role}: {first} MiB, then {last}");
        }
    }

    /// Compares the halves of the calm, each process with itself. Returns of whom there was enough of it to do so.
    fn judge_calm(&self, from: Instant, long: Duration) -> BTreeSet<&'static str> {
        let half = from + long / 2;
        let seen = self.0.iter().filter(|((role, _), _)| *role != "Redis");
        let mut judged = BTreeSet::new();
        for ((role, process), seen) in seen {
            let (first, second): (Vec<_>, Vec<_>) =
                seen.iter().filter(|(at, _)| *at >= from).partition(|(at, _)| *at < half);
            if first.len() < ENOUGH || second.len() < ENOUGH {
                continue;
            }
            let (first, second) = (median(first), median(second));
            eprintln!("measured: memory of {role} {process} when all is calm: {first:.1} MiB, then {second:.1}");
            assert!(second <= first + FLAT_MEBIBYTES, "{role} {process} grows: {first} MiB, then {second}");
            judged.insert(*role);
        }
        judged
    }
}

fn median(mut seen: Vec<&(Instant, f64)>) -> f64 {
    seen.sort_by(|one, other| one.1.total_cmp(&other.1));
    seen[seen.len() / 2].1
}
