//! The README's first queue on one machine: its blocks as they are, in an empty folder and two terminals.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::support::servers::{Flavor, Wait};

/// The script below a heading of the README, by a line that it has.
fn block(with: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = std::fs::read_to_string(path).expect("the README can be read");
    let (_, section) = text.split_once("\n## Your first queue\n").expect("it has the section");
    let (section, _) = section.split_once("\n## ").expect("another one follows");
    let mut blocks =
        section.split("```sh\n").skip(1).filter_map(|rest| rest.split_once("\n```").map(|(block, _)| block));
    blocks
        .find(|block| block.lines().any(|line| line == with))
        .unwrap_or_else(|| panic!("no block has {with}"))
        .to_owned()
}

/// A folder that is empty at first, and what is typed in it.
struct Person(tempfile::TempDir);

impl Person {
    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A terminal that runs this, with `windlass` and a redis-server on its `PATH` and nothing else of this test.
    fn terminal(&self, script: &str) -> Command {
        let programs = [PathBuf::from(env!("CARGO_BIN_EXE_windlass")), Flavor::Redis70.binary()];
        let own = programs.iter().map(|program| program.parent().expect("a folder").to_owned());
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let path = std::env::join_paths(own.chain(std::env::split_paths(&inherited))).expect("no colons");
        let mut shell = Command::new("bash");
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WINDLASS_")) {
            shell.env_remove(name);
        }
        shell.arg("-c").arg(script).env("PATH", path).current_dir(self.0.path()).stdin(Stdio::null());
        // Ctrl-C goes to all that a terminal runs.
        shell.process_group(0);
        shell
    }

    /// Types this in the first terminal, and waits until it is ready.
    async fn begins(&self, script: &str) -> Running {
        let output = File::options().create(true).append(true).open(self.file("said")).expect("a log");
        let errors = output.try_clone().expect("a second handle");
        let child = self.terminal(script).stdout(output).stderr(errors).spawn().expect("bash starts");
        let mut running = Running(child);
        let mut wait = Wait::new("windlass dev to be ready");
        while !self.file(".windlass/env").exists() {
            assert!(running.ended().is_none(), "windlass dev ended:\n{}", self.log());
            wait.again(self.log()).await;
        }
        running
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file("said")).unwrap_or_default()
    }

    /// Types a line in the second terminal; gives what it printed.
    async fn types(&self, line: &str) -> String {
        let mut shell = self.terminal(&format!(". .windlass/env\n{line}"));
        let run = move || shell.output().expect("bash starts");
        let output = tokio::task::spawn_blocking(run).await.expect("no panic");
        assert!(output.status.success(), "{line}\n{output:?}\n{}", self.log());
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Types a line until it prints all of these words, as somebody does who waits for something.
    async fn sees(&self, line: &str, words: &[&str]) {
        let mut wait = Wait::new(format!("{line} to print {words:?}"));
        loop {
            let said = self.types(line).await;
            if words.iter().all(|word| said.contains(word)) {
                return;
            }
            wait.again(said).await;
        }
    }

    /// Lets a line run until it prints this word, and ends it by Ctrl-C.
    async fn watches(&self, line: &str, word: &str) {
        let output = File::create(self.file("watched")).expect("a log");
        let mut shell = self.terminal(&format!(". .windlass/env\n{line}"));
        let running = Running(shell.stdout(output).spawn().expect("bash starts"));
        let said = || std::fs::read_to_string(self.file("watched")).unwrap_or_default();
        let mut wait = Wait::new(format!("{line} to print {word}"));
        while !said().contains(word) {
            wait.again(said()).await;
        }
        running.ctrl_c().await;
    }
}

/// What a terminal runs. It ends with this value.
struct Running(Child);

impl Running {
    /// Ends it as a person does.
    async fn ctrl_c(mut self) -> ExitStatus {
        self.signal("INT");
        let mut wait = Wait::new("it to end");
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            wait.again("it runs").await;
        }
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("a child's state is known")
    }

    fn signal(&self, signal: &str) {
        let group = format!("-{}", self.0.id());
        let done = Command::new("kill").args([&format!("-{signal}"), "--", &group]).status().expect("kill runs");
        assert!(done.success(), "what was started is there");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended().is_none() {
            // Guards end what `windlass dev` had started.
            self.signal("KILL");
            let _ = self.0.wait();
        }
    }
}

/// What a line of the second block shows, at once or after a while.
fn shows(line: &str) -> &'static [&'static str] {
    match line.split_whitespace().skip(1).take(2).collect::<Vec<_>>()[..] {
        ["task", "list"] => &["succeeded", "failed"],
        ["task", "explain"] => &["KeyError: 'name'", "4 attempts"],
        ["dlq", "list"] => &["KeyError: 'name'", "exit_1"],
        ["events", _] => &["task.succeeded", "task.retrying", "task.failed"],
        _ => panic!("the README has a line that this test does not know: {line}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_queue_of_the_readme_does_what_it_says_in_an_empty_folder() {
    let person = Person(tempfile::tempdir().expect("a folder"));
    let (begin, script) = (block("windlass dev -f queue.yaml"), block("windlass dlq list -q greetings"));
    let first = person.begins(&begin).await;
    let mut lines = script.lines();
    assert!(lines.next().is_some_and(|line| line.starts_with(". .windlass/env ")), "{script}");

    let mut enqueued = Vec::new();
    for line in lines {
        if line.starts_with("windlass task enqueue ") {
            enqueued.push(person.types(line).await);
        } else if line.starts_with("windlass queue watch ") {
            person.watches(line, "default/greetings").await;
        } else {
            // The one word that a reader fills in: the task that fails, which told its id as JSON.
            let told: serde_json::Value = serde_json::from_str(&enqueued[1]).expect("JSON");
            let line = line.replace(" ID ", &format!(" {} ", told["id"].as_str().expect("an id")));
            person.sees(&line, shows(&line)).await;
        }
    }
    let ended = first.ctrl_c().await;
    assert!(ended.success() && person.log().trim_end().ends_with("ended"), "{ended}\n{}", person.log());

    // As it says: it goes on where it was.
    let again = person.begins("windlass dev -f queue.yaml").await;
    person.sees("windlass task list -q greetings", shows("windlass task list")).await;
    assert!(again.ctrl_c().await.success(), "{}", person.log());
}
