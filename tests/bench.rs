//! `windlass bench` measures, checks what it measured, and prints it.
//!
//! The numbers here mean nothing: the runs are as short as they can be.

mod support;

use std::process::Stdio;

use serde_json::Value;
use support::servers::Flavor;
use tokio::process::Command;

/// Runs it without peers and with little to do; returns what it printed.
async fn bench(arguments: &[&str]) -> String {
    let small = ["--tasks", "300", "--seconds", "1", "--memory-tasks", "500", "--scale-tasks", "1000"];
    let smaller = ["--delayed-tasks", "100", "--idle-queues", "40", "--reclaim-tasks", "500"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
    command.args(["bench", "--quick", "--no-peers"]).args(small).args(smaller).args(arguments);
    command.arg("--redis-server").arg(Flavor::Redis70.binary());
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await.expect("it starts");
    assert!(output.status.success(), "it failed: {}", String::from_utf8_lossy(&output.stderr));
    let progress = String::from_utf8_lossy(&output.stderr);
    assert!(progress.contains("[1/"), "it says how far it is: {progress}");
    String::from_utf8(output.stdout).expect("text")
}

/// Runs some measurements; returns their rows.
async fn rows(only: &str) -> Vec<Value> {
    let report: Value = serde_json::from_str(&bench(&["--only", only, "-o", "json"]).await).expect("JSON");
    report["rows"].as_array().expect("rows").clone()
}

fn name(row: &Value) -> &str {
    row["measure"].as_str().expect("a name")
}

fn median(row: &Value, whose: &str) -> Option<f64> {
    row["values"][whose]["median"].as_f64()
}

/// Runs some measurements; returns the names of their rows.
async fn measure(only: &str) -> Vec<String> {
    let rows = rows(only).await;
    for row in &rows {
        // Only what Redis alone takes, so that the rows beside it can be judged, is no number of ours.
        let of_redis = ["HSETNX", "holds Redis, a bare XADD"].iter().any(|bare| name(row).starts_with(bare));
        let whose = if of_redis { "bare" } else { "windlass" };
        assert!(median(row, whose).is_some_and(|median| median >= 0.0), "every row has its number: {row}");
    }
    rows.iter().map(|row| name(row).to_owned()).collect()
}

/// One row begins like each of these, and every measurement tells what was slow.
fn check(rows: &[String], beginnings: &[&str]) {
    for beginning in beginnings.iter().chain(&["commands over 2 ms"]) {
        assert!(rows.iter().any(|row| row.starts_with(beginning)), "no row begins with {beginning:?}: {rows:#?}");
    }
}

#[tokio::test]
async fn throughput_and_pick_up_are_measured() {
    let rows = measure("throughput,latency").await;
    check(&rows, &["end to end, single", "Redis CPU, batches of 100", "commands sent, batches of 10", "pick-up at"]);
}

#[tokio::test]
async fn delayed_tasks_are_measured_with_and_without_a_leader() {
    let rows = measure("delayed").await;
    check(&rows, &["100 tasks due over 3 s, lateness p99", "100 tasks due over 3 s, no leader, lateness p99"]);
}

#[tokio::test]
async fn memory_and_scale_are_measured() {
    let rows = measure("memory,scale").await;
    check(&rows, &["memory, queued, bytes/task", "enqueue, Redis CPU, 1,000 queued", "claim of nothing"]);
}

#[tokio::test]
async fn taking_tasks_back_is_measured() {
    let rows = measure("reclaim").await;
    check(&rows, &["reclaim of 500, steps", "reclaim of 500, Redis CPU"]);
}

#[tokio::test]
async fn what_holds_redis_is_measured_operation_by_operation() {
    let rows = measure("holds").await;
    check(
        &rows,
        &[
            "holds Redis, enqueue of 100, ms",
            "holds Redis, settle and claim of 100, ms",
            "holds Redis, promote step, ms",
            "holds Redis, retain step, ms",
            "holds Redis, queue counts, 500 lanes, ms",
            "holds Redis, recovery of lost claims, 500 lanes, ms",
            "holds Redis, deregister, 500 lanes, ms",
            "holds Redis, sweep step, 500 lanes, ms",
            "holds Redis, longest of all, ms",
            "holds Redis, a bare XADD, ms",
        ],
    );
}

#[tokio::test]
async fn bare_commands_stand_beside_memory_waiting_times_and_slow_commands() {
    let rows = rows("memory,latency").await;
    for beginning in ["memory, queued, bytes/task", "memory, finished, bytes/task", "pick-up at", "commands over 2 ms"]
    {
        let of_these: Vec<_> = rows.iter().filter(|row| name(row).starts_with(beginning)).collect();
        assert!(!of_these.is_empty(), "no row begins with {beginning:?}");
        assert!(of_these.iter().all(|row| median(row, "bare").is_some()), "{of_these:#?}");
    }
    // An entry takes what it carries, and with so few of them the buffers of a client are seen too.
    let queued = rows.iter().find(|row| name(row) == "memory, queued, bytes/task").expect("is there");
    assert!((100.0..1000.0).contains(&median(queued, "bare").expect("a number")), "{queued}");
    assert!(queued["ratios"].as_array().expect("ratios").iter().any(|ratio| ratio["over"] == "bare"), "{queued}");
}

#[tokio::test]
async fn idle_queues_are_measured_in_a_process_of_their_own() {
    let rows = measure("idle").await;
    check(&rows, &["40 idle queues, memory", "40 idle queues, CPU", "40 idle queues, commands run"]);
}

#[tokio::test]
async fn workers_are_measured() {
    let rows = measure("worker").await;
    check(
        &rows,
        &[
            "worker, 1 handler, from",
            "worker, 10 handlers, queue full",
            "worker, 100 handlers, from",
            "pick-up by an idle worker, p99, ms (after a raw XADD)",
        ],
    );
}

#[tokio::test]
async fn the_table_says_which_bare_commands_are_judged() {
    let table = bench(&["--only", "throughput"]).await;
    assert!(table.contains("| measure ") && table.contains("| bare, variadic |"), "{table}");
    assert!(table.contains("the budget is judged on it"), "{table}");
    for row in ["| Redis CPU, batches of 100,", "| commands sent, batches of 100,", "| commands run, batches of 100,"] {
        let line = table.lines().find(|line| line.starts_with(row)).expect("is there");
        assert!(line.contains("× bare, ") && line.contains("× bare, variadic"), "{line}");
    }
}
