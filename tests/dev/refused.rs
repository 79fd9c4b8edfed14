//! Manifests that are refused: with the file, the line, and what would be right.

use std::path::PathBuf;
use std::process::Command;

use windlass::dev::{Refusal, read};

/// A queue with these lines as its spec, from line 5 on.
fn queue(spec: &str) -> String {
    format!("apiVersion: windlass.dev/v1alpha1\nkind: TaskQueue\nmetadata: {{name: emails}}\nspec:\n{spec}\n")
}

/// A pool with these lines in its spec, from line 8 on, and its queue behind it.
fn pool(spec: &str) -> String {
    format!(
        "apiVersion: windlass.dev/v1alpha1\nkind: WorkerPool\nmetadata: {{name: mailers}}\nspec:\n  \
         queueRef: {{name: emails}}\n  template:\n    spec: {{containers: [{{name: app, image: app:1}}]}}\n{spec}\n---\n{}",
        queue("  mode: Running")
    )
}

fn in_folder(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("manifest.yaml");
    std::fs::write(&file, text).expect("written");
    (folder, file)
}

fn refusals(text: &str) -> Vec<Refusal> {
    let (_folder, file) = in_folder(text);
    read(&[file]).expect_err(text)
}

/// What is wrong, the line and the words of the refusal.
fn cases() -> Vec<(&'static str, String, usize, &'static str)> {
    let exec = "  handler: {type: Exec, exec: {command: [cat]}}";
    vec![
        ("no YAML", "a: [1,\nb: 2\n".to_owned(), 3, "did not find"),
        ("a tab", "spec:\n\tmode: x\n".to_owned(), 2, "cannot start any token"),
        ("a field twice", queue("  mode: Running\n  mode: Paused"), 6, "the field mode is given twice"),
        ("a list", "- a\n- b\n".to_owned(), 1, "a manifest is a group of fields"),
        (
            "no apiVersion",
            "kind: TaskQueue\nmetadata: {name: a}\nspec: {}\n".to_owned(),
            1,
            "apiVersion is required: windlass.dev/v1alpha1",
        ),
        ("no kind", "apiVersion: windlass.dev/v1alpha1\n".to_owned(), 1, "kind is required: TaskQueue or WorkerPool"),
        (
            "an unknown kind",
            "apiVersion: windlass.dev/v1alpha1\nkind: TaskQeue\n".to_owned(),
            2,
            "write TaskQueue or WorkerPool",
        ),
        ("another version", queue("  {}").replace("v1alpha1", "v1"), 1, "write windlass.dev/v1alpha1"),
        ("no name", queue("  {}").replace("{name: emails}", "{labels: {}}"), 3, "metadata.name is required"),
        ("a name that is no text", queue("  {}").replace("name: emails", "name: 7"), 3, "must be a text"),
        ("a bad name", queue("  {}").replace("emails", "E_mails"), 3, "is not allowed"),
        (
            "no spec",
            "apiVersion: windlass.dev/v1alpha1\nkind: TaskQueue\nmetadata: {name: a}\n".to_owned(),
            1,
            "spec is required",
        ),
        ("a typo", queue("  retry:\n    maxRetrys: 3"), 6, "did you mean maxRetries?"),
        ("a field without its unit", queue("  visibilityTimeout: 60"), 5, "did you mean visibilityTimeoutSeconds?"),
        ("a field in the wrong place", queue("  maxRetries: 3"), 5, "it is a field of spec.retry"),
        ("an unknown field", queue("  colour: red"), 5, "known here: broker, deadLetter"),
        ("a field of status", queue("  mode: Running\nstatus:\n  backlog: many"), 7, "must be a whole number"),
        ("a text for a number", queue("  retry: {maxRetries: \"3\"}"), 5, "must be a whole number, not the text \"3\""),
        ("a fraction", queue("  heartbeatPeriodSeconds: 1.5"), 5, "must be a whole number, not 1.5"),
        ("a number for a text", queue("  mode: 3"), 5, "must be a text, not 3"),
        ("a text for a group", queue("  retry: never"), 5, "must be a group of fields"),
        ("no value", queue("  broker:"), 5, "has no value"),
        ("an unknown word", queue("  mode: Pauzed"), 5, "did you mean Paused?"),
        ("too small", queue("  heartbeatPeriodSeconds: 0"), 5, "must be between 1 and 86400"),
        ("too large", queue("  priority:\n    max: 101"), 6, "must be between 0 and 100"),
        ("an empty list", queue("  reclaim:\n    causes: []"), 6, "needs at least 1"),
        ("a cause twice", queue("  reclaim:\n    causes:\n    - WorkerLost\n    - WorkerLost"), 8, "is listed twice"),
        (
            "a type twice",
            queue("  taskTypes:\n  - name: a\n  - name: a\n    timeoutSeconds: 1"),
            7,
            "\"a\" is listed twice",
        ),
        ("a bad type", queue("  taskTypes:\n  - name: \"a b\""), 6, "does not match"),
        (
            "a short lease",
            queue("  heartbeatPeriodSeconds: 30\n  visibilityTimeoutSeconds: 60"),
            6,
            "at least three times heartbeatPeriodSeconds",
        ),
        (
            "a schedule without delays",
            queue("  retry:\n    backoff:\n      strategy: Schedule"),
            6,
            "delaysMilliseconds belongs to",
        ),
        (
            "jitter without its number",
            queue(
                "  retry:\n    backoff:\n      strategy: Fixed\n      baseMilliseconds: 5\n      jitter: {kind: Additive}",
            ),
            9,
            "milliseconds belongs to the jitter Additive",
        ),
        ("priorities in disorder", queue("  mode: Running\n  priority: {max: 3}"), 6, "min ≤ default ≤ max"),
        (
            "a password in a URL",
            queue("  broker:\n    type: Redis\n    redis:\n      url: redis://me:hunter2@cache"),
            8,
            "holds no user or password",
        ),
        ("keys without a broker", queue("  keys: {task: jobs}"), 5, "set broker as well"),
        ("no handler", pool("  replicas: 1"), 4, "handler is required"),
        ("a handler without its settings", pool("  handler: {type: HTTP}"), 8, "set http.port with that type"),
        ("an unknown handler", pool("  handler: {type: Lambda}"), 8, "known here: HTTP, Exec, SDK"),
        ("an empty command", pool("  handler: {type: Exec, exec: {command: []}}"), 8, "needs at least 1"),
        (
            "a command that is a text",
            pool("  handler: {type: Exec, exec: {command: cat}}"),
            8,
            "must be a list, not the text \"cat\"",
        ),
        ("a port that is none", pool("  handler: {type: HTTP, http: {port: 70000}}"), 8, "between 1 and 65535"),
        (
            "a container that is not there",
            pool("  handler:\n    type: Exec\n    exec:\n      command: [cat]\n      container: other"),
            12,
            "must name a container",
        ),
        ("replicas below zero", pool(&format!("{exec}\n  replicas: -1")), 9, "between 0 and 10000"),
        (
            "autoscaling upside down",
            pool(&format!("{exec}\n  autoscaling: {{minReplicas: 3, maxReplicas: 2}}")),
            9,
            "minReplicas must not be above",
        ),
        (
            "another queue",
            pool(exec).replacen("queueRef: {name: emails}", "queueRef: {name: letters}", 1),
            5,
            "there is no TaskQueue default/letters in these manifests; known: default/emails",
        ),
        (
            "a template that is no pod",
            pool(exec).replace("image: app:1", "image: app:1, command: python3"),
            6,
            "expected a sequence",
        ),
        (
            "the same queue twice",
            format!("{}---\n{}", queue("  {}"), queue("  {}")),
            9,
            "TaskQueue default/emails is already given in",
        ),
    ]
}

#[test]
fn each_mistake_is_refused_at_its_line_with_what_would_be_right() {
    for (what, text, line, says) in cases() {
        let refusals = refusals(&text);
        assert!(refusals[0].sentence.contains(says), "{what}: {refusals:#?}");
        assert_eq!(refusals[0].line, line, "{what}: {refusals:#?}\n{text}");
        assert_eq!(refusals.len(), 1, "{what}: {refusals:#?}");
    }
    assert!(cases().len() >= 40);
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_their_lines() {
    let text = format!("{}---\n{}", queue("  mode: Off\n  retry: {maxRetries: -1}\n  size: 3"), queue("  limits: 3"));
    let lines: Vec<usize> = refusals(&text).iter().map(|refusal| refusal.line).collect();
    assert_eq!(lines, [5, 6, 7, 13]);
}

#[test]
fn no_password_is_ever_repeated() {
    for (what, text, ..) in cases() {
        assert!(refusals(&text).iter().all(|refusal| !refusal.to_string().contains("hunter2")), "{what}");
    }
}

#[test]
fn a_folder_without_manifests_and_a_file_that_is_missing_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let refusal = &read(&[folder.path().to_owned()]).expect_err("empty")[0];
    assert!(refusal.sentence.contains("holds no manifest"), "{refusal}");
    let refusal = &read(&[folder.path().join("none.yaml")]).expect_err("missing")[0];
    assert!(refusal.to_string().contains("none.yaml: cannot be read"), "{refusal}");
}

#[test]
fn the_command_starts_nothing_and_says_where_the_mistake_is() {
    let (folder, file) = in_folder(&queue("  mode: Pauzed"));
    let output = Command::new(env!("CARGO_BIN_EXE_windlass"))
        .args(["dev", "-f"])
        .arg(&file)
        .arg("--data-dir")
        .arg(folder.path().join("data"))
        .output()
        .expect("the command runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("{}:5: spec.mode: ", file.display())), "{said}");
    assert!(!folder.path().join("data").exists(), "nothing was made");
}
