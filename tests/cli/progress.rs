//! How far long work is: a bar in a terminal, and elsewhere lines that a log can hold.

use windlass::broker::Broker;
use windlass::protocol::policy::Policy;

use super::ground::{Ground, hasty, run_command};

const MANY: [&str; 8] = ["task", "enqueue", "--type", "send", "--payload", "{}", "-n", "20000"];

/// `script` gives the binary a terminal of its own.
#[tokio::test]
async fn in_a_terminal_a_bar_shows_how_far_it_is_and_goes_away() {
    let ground = Ground::new(&Policy::default()).await;
    let mut command = std::process::Command::new("script");
    let line = format!("{} {}", env!("CARGO_BIN_EXE_windlass"), MANY.join(" "));
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
    command.env("WINDLASS_REDIS_URL", &ground.url).env("WINDLASS_QUEUE", ground.name.to_string());
    let ran = run_command(command, None).await;
    assert!(ran.stdout.contains("/20000 tasks enqueued"), "{ran:?}");
    let (bars, last) = ran.stdout.trim_end().rsplit_once('\r').expect("a line that is drawn again");
    assert!(bars.contains("left"), "it says how long it still takes: {bars:?}");
    assert!(last.contains("20000 tasks enqueued into") && !last.contains("left"), "the bar is gone: {last:?}");
    assert_eq!(ground.broker.counts().await.expect("counted").backlog, 20_000);
}

#[tokio::test]
async fn without_a_terminal_there_is_a_line_now_and_then_and_nothing_that_draws() {
    let ground = Ground::new(&hasty()).await;
    for _ in 0..8 {
        ground.enqueued(&[]).await;
    }
    assert_eq!(ground.let_die("no route to host").await, 8);
    // Long enough for a line: the last of eight comes after three and a half seconds.
    let ran = ground.run(&["dlq", "replay", "--all", "--rate", "2/s"]).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.contains(" of 8 dead letters replayed after "), "{ran:?}");
    assert!(!format!("{}{}", ran.stdout, ran.stderr).contains(['\x1b', '\r']), "{ran:?}");
    // On a busy machine even that may take as long as a line.
    for attempt in 1.. {
        let quick = ground.run(&["task", "enqueue", "--type", "send", "--payload", "{}", "-n", "100"]).await;
        assert_eq!(quick.code, 0, "{quick:?}");
        if quick.stderr.is_empty() {
            break;
        }
        assert!(attempt < 3, "what is done at once needs no line: {quick:?}");
    }
}

#[tokio::test]
async fn the_bar_is_on_stderr_so_that_output_can_be_piped() {
    let ground = Ground::new(&Policy::default()).await;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out");
    let mut command = std::process::Command::new("script");
    let line = format!("{} {} -o json > {}", env!("CARGO_BIN_EXE_windlass"), MANY.join(" "), file.display());
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
    command.env("WINDLASS_REDIS_URL", &ground.url).env("WINDLASS_QUEUE", ground.name.to_string());
    let ran = run_command(command, None).await;
    assert!(ran.stdout.contains("tasks enqueued"), "the terminal shows the bar: {ran:?}");
    let piped = std::fs::read_to_string(file).expect("written");
    assert_eq!(piped.lines().count(), 20_000);
    assert!(piped.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "JSON alone");
}
