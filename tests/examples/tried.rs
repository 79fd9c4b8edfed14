//! What each example's comment says to try, tried: `windlass dev` on its manifests with a Redis of its own, and in a second
//! shell the very commands of the comment.
//!
//! Only what would meet others on this machine is changed: the port 8080, and files in /tmp.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use windlass::State;

use super::tree::{Example, Try, examples, shown};
use crate::support::servers::{Flavor, Wait};

/// A folder with a copy of the examples, and `windlass dev` in it.
struct Machine {
    folder: tempfile::TempDir,
    dev: Option<Child>,
    path: std::ffi::OsString,
}

impl Machine {
    async fn start(example: &Example) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        copy(folder.path());
        let mut machine = Self { path: path(example), folder, dev: None };
        let output = File::create(machine.file("dev.log")).expect("a log");
        let errors = output.try_clone().expect("a second handle");
        let mut command = machine.command("windlass");
        command.args(["dev", "-f"]).args(&example.dev).env("WINDLASS_REDIS_SERVER", Flavor::Redis70.binary());
        machine.dev = Some(command.stdout(output).stderr(errors).spawn().expect("windlass dev starts"));
        let mut wait = Wait::new("windlass dev to be ready");
        while !machine.file(".windlass/env").exists() {
            let ended = machine.dev.as_mut().expect("it was started").try_wait().expect("a child's state is known");
            assert!(ended.is_none(), "windlass dev ended:\n{}", machine.log());
            wait.again(machine.log()).await;
        }
        machine
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.file("dev.log")).unwrap_or_default()
    }

    /// A program with nothing of Windlass in its environment.
    fn command(&self, program: &str) -> Command {
        // Looked for here: a `Command` looks in the test's own PATH.
        let found = std::env::split_paths(&self.path).map(|folder| folder.join(program)).find(|path| path.is_file());
        let mut command = Command::new(found.unwrap_or_else(|| panic!("there is no {program}")));
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("WINDLASS_")) {
            command.env_remove(name);
        }
        command.env("PATH", &self.path).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// What a second terminal does with a line.
    async fn run(&self, line: &str) -> Output {
        let mut shell = self.command("sh");
        shell.arg("-c").arg(format!(". .windlass/env\n{line}"));
        tokio::task::spawn_blocking(move || shell.output().expect("the shell runs")).await.expect("no panic")
    }

    /// Runs a line that must end well; gives what it printed.
    async fn say(&self, line: &str) -> String {
        let output = self.run(line).await;
        assert!(output.status.success(), "{line}\n{output:?}\n{}", self.log());
        String::from_utf8(output.stdout).expect("UTF-8")
    }

    /// Waits until a task is over, and compares.
    async fn ends(&self, task: &str, queue: &str, expected: State) {
        let output = self.run(&format!("windlass task wait {task} -q {queue} --timeout 60s -o json")).await;
        let seen: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{task}: {error}: {output:?}\n{}", self.log()));
        assert_eq!(seen["state"], expected.as_str(), "{seen}\n{}", self.log());
    }

    async fn stop(mut self) {
        let mut dev = self.dev.take().expect("it runs");
        let told = Command::new("kill").args(["-INT", &dev.id().to_string()]).status().expect("kill runs");
        assert!(told.success());
        let ended = tokio::task::spawn_blocking(move || dev.wait()).await.expect("no panic").expect("it ends");
        assert!(ended.success(), "{}", self.log());
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(mut dev) = self.dev.take() {
            // Its guards end what it had started.
            let _ = dev.kill();
            let _ = dev.wait();
        }
    }
}

/// Where `windlass` and `redis-cli` are found and, for the worker in Rust, what its comment has people build.
fn path(example: &Example) -> std::ffi::OsString {
    let mut own = vec![PathBuf::from(env!("CARGO_BIN_EXE_windlass")), Flavor::Redis70.binary()];
    if example.folder() == "rust" {
        own.push(crate::support::ground::example("worker"));
    }
    let own = own.into_iter().map(|program| program.parent().expect("a folder").to_owned());
    let inherited = std::env::var_os("PATH").unwrap_or_default();
    std::env::join_paths(own.chain(std::env::split_paths(&inherited))).expect("no colons")
}

/// Copies the examples, with a port and files of their own.
fn copy(to: &Path) {
    let port =
        std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|socket| socket.local_addr()).expect("a port").port();
    for file in super::tree::files() {
        let target = to.join(shown(&file));
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("made");
        let text = std::fs::read_to_string(&file).expect("readable");
        let text = text.replace("8080", &port.to_string()).replace("/tmp/windlass", &format!("{}/", to.display()));
        std::fs::write(target, text).expect("written");
    }
}

/// The ids of the table that `task enqueue` prints.
fn ids(table: &str) -> Vec<String> {
    let rows = table.lines().skip_while(|line| !line.starts_with("ID")).skip(1);
    let first = rows.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    // A task's id; a summary below the table is no row.
    first.take_while(|word| word.contains('-') && word.len() > 30).collect()
}

/// What follows `-q` in a line.
fn queue_of(line: &str) -> &str {
    line.split_once(" -q ").and_then(|(_, rest)| rest.split_whitespace().next()).expect("the line names a queue")
}

async fn one(machine: &Machine, Try { command, ends }: &Try, said: &mut String) {
    writeln!(said, "$ {command}").expect("a string takes it");
    let Some(ends) = *ends else {
        return said.push_str(&machine.say(command).await);
    };
    if command.contains("task wait") {
        let output = machine.run(command).await;
        let words = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.success(), ends == State::Succeeded, "{command}: {output:?}\n{}", machine.log());
        assert!(words.contains(ends.as_str()), "{command}: {words}");
        return said.push_str(&words);
    }
    let table = machine.say(command).await;
    let ids = ids(&table);
    let count = command.split_once(" -n ").map_or(1, |(_, rest)| rest.trim().parse().expect("a number"));
    assert_eq!(ids.len(), count, "{command}: {table}");
    for id in ids {
        machine.ends(&id, queue_of(command), ends).await;
    }
    said.push_str(&table);
}

/// Tries an example; gives what its commands printed.
async fn tried(folder: &str) -> String {
    let example = examples().into_iter().find(|example| example.folder() == folder).expect("the example is there");
    let machine = Machine::start(&example).await;
    let mut said = String::new();
    for one_try in &example.tries {
        one(&machine, one_try, &mut said).await;
    }
    machine.stop().await;
    eprintln!("{folder}:\n{said}");
    said
}

/// Makes a test of each example, and a list of them.
macro_rules! each {
    ($($test:ident: $folder:literal, says [$($words:literal),*];)*) => {
        const TRIED: &[&str] = &[$($folder),*];
        $(
            #[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let said = tried($folder).await;
                let words: &[&str] = &[$($words),*];
                for words in words {
                    assert!(said.contains(words), "{words:?} is not in:\n{said}");
                }
            }
        )*
    };
}

each! {
    the_demo_by_hand: "demo", says ["there is no order -1"];
    an_exec_handler_in_each_language: "exec", says ["the payload names no order"];
    an_http_handler_in_python: "http-python", says ["http_422", "the payload names no"];
    an_http_handler_in_node: "http-node", says ["charge", "receipt"];
    a_worker_in_rust: "rust", says [];
    a_pool_that_scales_has_one_worker_here: "autoscaling", says [];
    the_base_of_a_gitops_repository: "gitops", says [];
    the_task_queue_protocol: "profiles/task-queue-protocol", says ["stream", "failed_at"];
    loki: "profiles/loki", says ["false", "eng-backend", "ops-devops"];
    gate_b2_and_its_replays: "profiles/gate-b2", says ["RP-005", "TQP-4"];
    the_agent_development_environment: "profiles/ade", says ["a-1"];
    automechanica: "profiles/automechanica", says ["generate_fitment"];
}

#[test]
fn no_example_is_left_untried() {
    let told: BTreeSet<String> = examples().iter().map(Example::folder).collect();
    let tried: BTreeSet<String> = TRIED.iter().map(|folder| (*folder).to_owned()).collect();
    assert_eq!(tried, told);
}
