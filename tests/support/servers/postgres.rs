//! One PostgreSQL.
//!
//! It refuses to run as root, so a test that does runs it as another user: its directory is then
//! that user's. Durability is as the test asks for it, see [`Postgres::start`].

use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::Wait;
use super::process::{self, Berth, User};

/// Where distributions put the server's programs, besides the PATH.
const PLACES: [&str; 2] = ["/usr/lib/postgresql", "/usr/pgsql"];

const PASSWORD: &str = "test/p@ss";
const LOG: &str = "log";
const DATA: &str = "data";

/// A PostgreSQL of its own, on a port and in a directory of its own. Dropping it kills it.
#[derive(Debug)]
pub struct Postgres {
    /// The directory of `postgres`, `initdb` and the others.
    programs: PathBuf,
    /// Whom it runs as, if not as the test.
    user: Option<User>,
    child: Mutex<Option<Child>>,
    berth: Berth,
}

impl Postgres {
    /// Starts a server and returns once it answers. What it has committed survives
    /// [`Postgres::crash`], though not a loss of power: tests need not wait for the disk.
    ///
    /// # Panics
    ///
    /// If it is not installed, or does not start: with its log.
    pub async fn start() -> Self {
        let server = Self {
            programs: programs(),
            user: process::other_user_if_root(),
            child: Mutex::new(None),
            berth: Berth::claim(),
        };
        server.initialise();
        server.launch().await;
        server
    }

    /// Makes the data directory, with one user and a password that a URL has to encode.
    fn initialise(&self) {
        let dir = self.berth.dir();
        fs::write(dir.join("password"), PASSWORD).expect("the password must be written");
        if let Some(user) = &self.user {
            user.own(dir);
            user.own(&dir.join("password"));
        }
        let mut initdb = self.command("initdb");
        initdb.args(["--username=windlass", "--auth=scram-sha-256", "--encoding=UTF8", "--no-sync", "--no-locale"]);
        initdb.arg(format!("--pwfile={}", dir.join("password").display())).arg(dir.join(DATA));
        let Output { status, stdout, stderr } = initdb.output().expect("initdb must start");
        let said = [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).join("\n");
        assert!(status.success(), "initdb failed: {said}");
    }

    /// A command that runs as the server's user.
    fn command(&self, program: &str) -> Command {
        let program = self.programs.join(program);
        let mut command = match &self.user {
            None => Command::new(program),
            Some(user) => user.command(&program),
        };
        // A directory that the user may enter.
        command.current_dir(self.berth.dir());
        command
    }

    async fn launch(&self) {
        let dir = self.berth.dir();
        let text = |path: &Path| path.to_str().expect("paths must be UTF-8").to_owned();
        let mut args = vec!["-D".to_owned(), text(&dir.join(DATA)), "-p".to_owned(), self.port().to_string()];
        for setting in [
            "listen_addresses=127.0.0.1".to_owned(),
            format!("unix_socket_directories={}", text(dir)),
            "fsync=off".to_owned(),
            "max_connections=30".to_owned(),
            "shared_buffers=16MB".to_owned(),
        ] {
            args.extend(["-c".to_owned(), setting]);
        }
        let program = self.programs.join("postgres");
        let child = process::spawn_as(self.user.as_ref(), &program, &args, &dir.join(LOG));
        *self.child() = Some(child);
        let mut wait = Wait::new(format!("PostgreSQL to answer on {}", self.port()));
        while let Err(seen) = self.query("SELECT 1") {
            let ended = self.child().as_mut().and_then(|child| child.try_wait().ok().flatten());
            assert!(ended.is_none(), "PostgreSQL did not start ({ended:?}); its log:\n{}", self.log());
            wait.again(format!("{seen}; its log:\n{}", self.log())).await;
        }
    }

    /// The port, the same for the server's whole life.
    pub fn port(&self) -> u16 {
        self.berth.port()
    }

    /// The url of its database `postgres`.
    pub fn url(&self) -> String {
        self.url_of("postgres")
    }

    /// The url of one of its databases.
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://windlass:test%2Fp%40ss@127.0.0.1:{}/{database}", self.port())
    }

    /// The url of a new, empty database.
    ///
    /// # Panics
    ///
    /// If the server does not make it.
    pub fn fresh_database(&self) -> String {
        let name = format!("d{:016x}", fastrand::u64(..));
        self.query(&format!("CREATE DATABASE {name}")).expect("the database must be made");
        self.url_of(&name)
    }

    /// What a statement answers, without headings.
    pub fn query(&self, sql: &str) -> Result<String, String> {
        self.query_at(&self.url(), sql)
    }

    /// What a statement answers in the database at that url.
    pub fn query_at(&self, url: &str, sql: &str) -> Result<String, String> {
        let psql = Command::new(self.programs.join("psql"))
            .args(["--no-psqlrc", "--tuples-only", "--no-align", "--command", sql, url])
            .env("PGCONNECT_TIMEOUT", "5")
            .output()
            .map_err(|error| error.to_string())?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if psql.status.success() { Ok(text(&psql.stdout)) } else { Err(text(&psql.stderr)) }
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.berth.dir().join(LOG)).unwrap_or_default()).into_owned()
    }

    /// Stops the server as an administrator does who does not wait for clients, and returns once it is gone.
    pub async fn stop(&self) {
        self.end("INT").await;
    }

    /// Ends the server and all of its processes on the spot, and returns once they are gone: no checkpoint, no
    /// farewell to clients, and the next start has to recover.
    pub async fn crash(&self) {
        self.end("QUIT").await;
    }

    /// Kills every process of the server at once, as a machine does that goes down.
    pub async fn kill9(&self) {
        let Some(mut child) = self.child().take() else { return };
        // While the parent stands still it neither makes a new child nor mourns one.
        process::signal(child.id(), "STOP");
        let all = children(child.id());
        for one in &all {
            signal_if_there(*one, "KILL");
        }
        process::signal(child.id(), "KILL");
        child.wait().expect("a killed process ends");
        // Each holds on to the shared memory until it is gone.
        let mut wait = Wait::new("the server's processes to end");
        while all.iter().any(|one| is_alive(*one)) {
            wait.again("some are there").await;
        }
        let mut wait = Wait::new("its port to be closed");
        while TcpStream::connect(("127.0.0.1", self.port())).is_ok() {
            wait.again("still open").await;
        }
    }

    /// Stops every process of the server where it is: connections stay, and nobody answers.
    pub fn freeze(&self) {
        self.signal_all("STOP");
    }

    /// Lets a frozen server go on.
    pub fn thaw(&self) {
        self.signal_all("CONT");
    }

    /// The parent first: it makes no child between the look and the signal.
    fn signal_all(&self, signal: &str) {
        let parent = self.child().as_ref().map(Child::id).expect("the server runs");
        process::signal(parent, signal);
        for one in children(parent) {
            signal_if_there(one, signal);
        }
    }

    /// Starts it again on the same port with the same data.
    pub async fn restart(&self) {
        self.launch().await;
    }

    /// Sends a signal that ends it. (SIGKILL of the parent alone would leave its children for a while, and its
    /// shared memory for good.)
    async fn end(&self, signal: &str) {
        let Some(mut child) = self.child().take() else { return };
        process::signal(child.id(), signal);
        let mut wait = Wait::new("PostgreSQL to end");
        while child.try_wait().expect("the state of a child process must be known").is_none() {
            wait.again(self.log()).await;
        }
        let mut wait = Wait::new("its port to be closed");
        while TcpStream::connect(("127.0.0.1", self.port())).is_ok() {
            wait.again("still open").await;
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // A test that panicked elsewhere must not keep this server from being killed.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let Some(mut child) = self.child().take() else { return };
        // Asked to end, it takes its children and its shared memory with it; SIGKILL would leave them. It may
        // have been frozen.
        for one in children(child.id()).into_iter().chain([child.id()]) {
            signal_if_there(one, "CONT");
        }
        signal_if_there(child.id(), "QUIT");
        let asked = Instant::now();
        while asked.elapsed() < super::LIMIT {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(super::POLL);
        }
        let _ = child.kill().and_then(|()| child.wait());
    }
}

/// Whether a process is there and has not ended yet.
fn is_alive(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Signals a process that may end by itself meanwhile.
fn signal_if_there(pid: u32, signal: &str) {
    drop(Command::new("kill").arg(format!("-{signal}")).arg(pid.to_string()).output());
}

/// The processes that a process has started.
fn children(parent: u32) -> Vec<u32> {
    let text = |pid: u32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may hold spaces; what follows it is the state and the parent's id.
    let parent_of = |pid: u32| text(pid).rsplit_once(") ")?.1.split(' ').nth(1)?.parse::<u32>().ok();
    let all = fs::read_dir("/proc").expect("a list of processes").flatten();
    let all = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    all.filter(|pid| parent_of(*pid) == Some(parent)).collect()
}

/// The directory of the newest server that is installed.
fn programs() -> PathBuf {
    let on_path =
        std::env::var_os("PATH").into_iter().flat_map(|path| std::env::split_paths(&path).collect::<Vec<_>>());
    let versions = PLACES.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    let number = |path: &PathBuf| path.parent().and_then(|dir| dir.file_name()?.to_str()?.parse::<u32>().ok());
    versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
    let has_all = |dir: &PathBuf| ["postgres", "initdb", "psql"].iter().all(|program| dir.join(program).is_file());
    versions.into_iter().chain(on_path).find(has_all).expect("PostgreSQL is missing: run `make servers`")
}
