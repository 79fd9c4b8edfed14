//! Tasks are done, also when workers, Redis or handlers die.

use serde_json::json;
use windlass::State;
use windlass::broker::Broker;

use super::ground::{Ground, is_alive, manifest, send};
use crate::support::servers::Wait;

/// The first attempt never ends, and neither does what it starts in a session
/// of its own; both say who they are. Any other is done at once.
const NEVER_ENDS: &str = "if [ -e begun ]; then echo again; exit; fi
setsid sh -c 'echo $$ >apart.new; mv apart.new apart; exec sleep 600' &
echo $$ >handler
until [ -e apart ]; do sleep 0.02; done
touch begun
sleep 600
";

/// The processes of a [`NEVER_ENDS`] that has begun.
fn started(ground: &Ground) -> [u32; 2] {
    ["handler", "apart"].map(|name| ground.read(name).trim().parse().expect("a process"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_done_by_a_worker_process_from_the_manifests_folder() {
    let ground = Ground::new(&manifest("[sh, handle.sh]"));
    ground.write("handle.sh", "cat >seen.json; echo '{\"done\": true}'\n");
    let dev = ground.start().await;
    let queue = ground.queue("q");
    let id = queue.enqueue("greet", json!({"to": "ada"})).await;
    let task = queue.reaches(&id, State::Succeeded).await;
    assert!(format!("{:?}", task.result).contains("done"), "{task:?}");
    assert!(ground.read("seen.json").contains("ada"));
    ground.logged("succeeded").await;
    dev.stop().await;
}

/// They would look for a Sentinel, or for an authority that signs nothing here.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_shell_says_of_another_redis_is_not_passed_on_to_workers() {
    let mut ground = Ground::new(&manifest("[sh, handle.sh]"));
    ground.write("handle.sh", "echo 1\n");
    ground.environment = vec![
        ("WINDLASS_REDIS_TOPOLOGY", "sentinel"),
        ("WINDLASS_REDIS_MASTER", "other"),
        ("WINDLASS_REDIS_CA", "none"),
        ("WINDLASS_REDIS_CA_FILE", "/nowhere.pem"),
    ];
    let dev = ground.start().await;
    let queue = ground.queue("q");
    let id = queue.enqueue("greet", json!({})).await;
    queue.reaches(&id, State::Succeeded).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_is_started_again_and_its_task_done_at_once() {
    let ground = Ground::new(&manifest("[sh, handle.sh]"));
    // Its worker is killed under it.
    ground.write("handle.sh", NEVER_ENDS);
    let dev = ground.start().await;
    let queue = ground.queue("q");
    let id = queue.enqueue("slow", json!({})).await;
    queue.reaches(&id, State::Running).await;
    ground.made("begun").await;
    let left_behind = started(&ground);
    let killed = queue.workers(1).await.remove(0);
    send(killed.info.pid, "KILL");
    let task = queue.reaches(&id, State::Succeeded).await;
    assert_eq!((task.retry_count, task.crash_count), (0, 1), "a lost worker is no failure: {task:?}");
    assert!(!left_behind.into_iter().any(is_alive), "no attempt runs beside the next one:\n{}", ground.log());
    assert_ne!(queue.workers(1).await[0].info.id, killed.info.id);
    ground.logged("was killed by signal 9; starts again").await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_redis_is_started_again_on_its_data() {
    let ground = Ground::new(&manifest("[cat]"));
    let dev = ground.start().await;
    let queue = ground.queue("q");
    let first = queue.enqueue("a", json!(1)).await;
    queue.reaches(&first, State::Succeeded).await;
    // Everything that is acknowledged is in the file before it is killed.
    let mut connection = ground.connect().await;
    let _: String =
        redis::cmd("CONFIG").arg(&["SET", "appendfsync", "always"]).query_async(&mut connection).await.expect("set");
    let kept = queue.enqueue("a", json!(2)).await;
    queue.reaches(&kept, State::Succeeded).await;
    send(ground.redis_pid().await, "KILL");
    ground.logged("redis            │ was killed by signal 9; starts again").await;
    let mut wait = Wait::new("Redis to be back");
    while queue.broker.policy().await.is_err() {
        wait.again("no answer").await;
    }
    assert_eq!(queue.task(&first).await.state, State::Succeeded);
    let second = queue.enqueue("a", json!(2)).await;
    queue.reaches(&second, State::Succeeded).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_redis_gets_its_queues_again() {
    let ground = Ground::new(&manifest("[cat]"));
    let dev = ground.start().await;
    let mut connection = ground.connect().await;
    let _: () = redis::cmd("FLUSHALL").query_async(&mut connection).await.expect("flushed");
    ground.logged("queue was gone from Redis; made again").await;
    let queue = ground.queue("q");
    let id = queue.enqueue("a", json!({})).await;
    queue.reaches(&id, State::Succeeded).await;
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_lets_running_tasks_finish() {
    let ground = Ground::new(&manifest("[sh, handle.sh]"));
    ground.write("handle.sh", "touch begun; sleep 2; echo done\n");
    let mut dev = ground.start().await;
    let queue = ground.queue("q");
    let id = queue.enqueue("slow", json!({})).await;
    ground.made("begun").await;
    let worker = queue.workers(1).await[0].info.pid;
    dev.signal("INT");
    assert!(dev.end().await.success());
    assert!(ground.is_quiet() && !is_alive(worker));
    assert!(!ground.path("data/env").exists(), "nobody is sent to a Redis that is gone");
    let dev = ground.start().await;
    let task = ground.queue("q").task(&id).await;
    assert_eq!((task.state, task.release_count, task.crash_count), (State::Succeeded, 0, 0), "{task:?}");
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_ctrl_c_ends_at_once_and_gives_the_task_back() {
    let ground = Ground::new(&manifest("[sh, handle.sh]"));
    ground.write("handle.sh", NEVER_ENDS);
    let mut dev = ground.start().await;
    let queue = ground.queue("q");
    let id = queue.enqueue("slow", json!({})).await;
    ground.made("begun").await;
    let running = started(&ground);
    dev.signal("INT");
    ground.logged("ending: workers finish").await;
    dev.signal("INT");
    assert!(dev.end().await.success());
    assert!(ground.is_quiet() && !running.into_iter().any(is_alive), "{}", ground.log());
    let dev = ground.start().await;
    let task = ground.queue("q").reaches(&id, State::Succeeded).await;
    assert_eq!((task.release_count, task.crash_count), (1, 0), "its worker had time to give it back: {task:?}");
    dev.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_kill_9_without_time_to_drain_tasks_are_given_back_and_no_handler_is_left() {
    let ground = Ground::new(&manifest("[sh, handle.sh]").replace("drainTimeoutSeconds: 30", "drainTimeoutSeconds: 0"));
    ground.write("handle.sh", NEVER_ENDS);
    let dev = ground.start().await;
    let queue = ground.queue("q");
    let id = queue.enqueue("slow", json!({})).await;
    ground.made("begun").await;
    let running = started(&ground);
    dev.kill9();
    ground.quiet().await;
    assert!(!running.into_iter().any(is_alive), "{}", ground.log());
    let dev = ground.start().await;
    let task = ground.queue("q").reaches(&id, State::Succeeded).await;
    assert_eq!((task.release_count, task.crash_count), (1, 0), "without time to drain it is given back: {task:?}");
    dev.stop().await;
}
