//! The operating system's side of a server: its port, its directory and its process.
//!
//! # Why servers are started by a thread of their own
//!
//! A server must not outlive the test process, however that ends. Destructors do not run on
//! `kill -9`, so each server is started through `setpriv --pdeathsig KILL`, which asks the kernel to
//! kill it when its parent dies. But to the kernel that parent is the *thread* that started it, and
//! the threads of a test binary come and go: the harness runs each test on a thread that ends with
//! the test, and a runtime ends its threads with itself. A server shared by several tests would be
//! killed when the first of them ends. So all servers are started by one thread that is never
//! joined and dies only with the process.
//!
//! # Why ports are locked
//!
//! A port is free or not at the moment of looking; nothing keeps it until the server binds it, nor
//! while a killed server waits to be restarted on it. Against the other tests, of this process or of
//! another, a lock on a file named after the port keeps it. Against strangers nothing can: there the
//! start is tried again on another port.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Once, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::geteuid;

/// The ports to choose from. Below the ephemeral range (from 32768 on Linux), so that no outgoing
/// connection takes one by chance, and so are their [`bus_port`]s.
const PORTS: Range<u16> = 12_000..14_000;

/// The port of the cluster bus, which the server itself places 10000 above the client port.
fn bus_port(port: u16) -> u16 {
    port + 10_000
}

/// A port, and the directory named after it, that belong to one server for as long as this value
/// lives, whether the server runs or not.
#[derive(Debug)]
pub(crate) struct Berth {
    port: u16,
    dir: PathBuf,
    /// The lock is the claim. The kernel releases it however this process ends.
    _lock: File,
}

impl Berth {
    /// Claims a free port (whose bus port is free as well) and an empty directory.
    ///
    /// # Panics
    ///
    /// If no port can be claimed.
    pub(crate) fn claim() -> Self {
        static SWEEP: Once = Once::new();
        SWEEP.call_once(sweep);

        let first = fastrand::u16(PORTS);
        let mut last_error = None;
        for port in (first..PORTS.end).chain(PORTS.start..first) {
            match Self::claim_port(port) {
                Ok(berth) => return berth,
                Err(error) => last_error = Some(error),
            }
        }
        panic!("no port of {PORTS:?} can be claimed in {}; the last one said: {last_error:?}", root().display());
    }

    /// Claims `port` if nobody has it.
    fn claim_port(port: u16) -> io::Result<Self> {
        let lock = lock(port)?;
        for port in [port, bus_port(port)] {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        }
        let dir = root().join(port.to_string());
        remove_dir(&dir)?;
        fs::create_dir(&dir)?;
        Ok(Self { port, dir, _lock: lock })
    }

    /// The claimed port.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The second port that is claimed with it.
    pub(crate) fn bus_port(&self) -> u16 {
        bus_port(self.port)
    }

    /// The claimed directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        // A failure is left to the next test process, which sweeps: a panic here, during another
        // panic, would abort and hide the one that matters.
        let _ = remove_dir(&self.dir);
    }
}

/// The directory with one directory and one lock file per port, shared by all test processes of this user; another one
/// could neither lock these files nor remove what lies there.
fn root() -> PathBuf {
    std::env::temp_dir().join(format!("windlass-test-servers-{}", geteuid().as_raw()))
}

/// Takes the lock of `port`, or fails at once if it is held.
///
/// The (empty) lock file stays behind: to remove it would let two processes hold the lock of the
/// same port, one on the removed file and one on its successor.
fn lock(port: u16) -> io::Result<File> {
    fs::create_dir_all(root())?;
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(root().join(format!("{port}.lock")))?;
    file.try_lock()?;
    Ok(file)
}

/// Removes the directories of servers whose test process was killed, or kept its servers in a
/// `static`, which is never dropped. A directory without the lock of its port has no owner.
fn sweep() {
    let Ok(entries) = fs::read_dir(root()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let port = name.to_str().and_then(|name| name.parse().ok());
        if let Some(Ok(_lock)) = port.map(lock) {
            let _ = remove_dir(&entry.path());
        }
    }
}

/// Removes a directory, if it is there.
///
/// More than once if need be: a killed server may leave a forked child (a snapshot, a rewrite of
/// the AOF) that still writes for a moment, until it finds its parent gone.
fn remove_dir(dir: &Path) -> io::Result<()> {
    let mut tries = 0;
    loop {
        match fs::remove_dir_all(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) if tries < 100 => thread::sleep(Duration::from_millis(10)),
            result => return result,
        }
        tries += 1;
    }
}

/// Starts `binary` with `args` such that it dies with this process; what it prints goes to the end
/// of the file `output`. The process id is that of the server itself, not of a wrapper.
///
/// # Panics
///
/// If the program cannot be started at all.
pub(super) fn spawn(binary: &Path, args: &[String], output: &Path) -> Child {
    spawn_as(None, binary, args, output)
}

/// Starts a program as [`spawn`] does, but as another user.
pub(super) fn spawn_as(user: Option<&User>, binary: &Path, args: &[String], output: &Path) -> Child {
    spawn_told(Told::Nothing, user, binary, args, output)
}

/// Whether a program hears of the end of this process before it ends itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// It is killed.
    Nothing,
    /// It gets a SIGTERM, because it has to clean up; that it ends is its own duty.
    ToEnd,
}

/// Starts a program as [`spawn_as`] does, and says how it hears of the end of this process.
pub(crate) fn spawn_told(told: Told, user: Option<&User>, binary: &Path, args: &[String], output: &Path) -> Child {
    let mut command = Command::new(binary);
    command.args(args);
    let log =
        OpenOptions::new().create(true).append(true).open(output).expect("the file for the server's output must open");
    let log_too = log.try_clone().expect("the output file must be clonable");
    let mut command = tied(told, user, &command);
    command.stdin(Stdio::null()).stdout(log).stderr(log_too);
    start(command)
}

/// Starts a command such that it is killed when this process dies. Where it reads and writes, and its group, are for
/// `set_up` to say: a command cannot be asked for those.
///
/// # Panics
///
/// If the program cannot be started at all.
pub(crate) fn spawn_tied(command: &Command, set_up: impl FnOnce(&mut Command)) -> Child {
    let mut command = tied(Told::Nothing, None, command);
    set_up(&mut command);
    start(command)
}

/// A command that runs this one such that it hears of the end of the thread that starts it. Of what was set, it takes
/// the arguments, the environment and the folder.
fn tied(told: Told, user: Option<&User>, command: &Command) -> Command {
    let program = Path::new(command.get_program());
    let mut tied = if has_pdeathsig() {
        // If this process dies before `setpriv` has asked for the signal, the signal never comes;
        // the shell, which runs after that, then sees a foreign parent and gives up. Both replace
        // themselves by the next program, so that the process id stays.
        let mut tied = Command::new("setpriv");
        tied.args(user.into_iter().flat_map(User::setpriv))
            .args(["--pdeathsig", if told == Told::ToEnd { "TERM" } else { "KILL" }, "--", "sh", "-c"])
            .arg(r#"test "$PPID" = "$0" && exec "$@""#)
            .arg(std::process::id().to_string())
            .arg(program);
        tied
    } else {
        user.map_or_else(|| Command::new(program), |user| user.command(program))
    };
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => tied.env(name, value),
            None => tied.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        tied.current_dir(folder);
    }
    tied.args(command.get_args());
    tied
}

/// Starts a command by the thread that ends with this process.
fn start(command: Command) -> Child {
    type Job = (Command, mpsc::Sender<io::Result<Child>>);
    static SPAWNER: OnceLock<mpsc::Sender<Job>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<Job>();
        thread::Builder::new()
            .name("server-spawner".into())
            .spawn(move || {
                // Ends never: the sender is in a `static`.
                for (mut command, reply) in jobs {
                    // Nobody to reply to means that the caller panicked: then the child, which std
                    // does not kill by itself, has no owner.
                    if let Err(mpsc::SendError(Ok(mut child))) = reply.send(command.spawn()) {
                        let _ = child.kill().and_then(|()| child.wait());
                    }
                }
            })
            .expect("the thread that starts the servers must start");
        sender
    });
    let program = command.get_program().to_owned();
    let (reply, child) = mpsc::channel();
    spawner.send((command, reply)).expect("the thread that starts the servers must live");
    child
        .recv()
        .expect("the thread that starts the servers must answer")
        .unwrap_or_else(|error| panic!("{} cannot be started: {error}", program.display()))
}

/// Somebody else whom a server runs as.
#[derive(Debug)]
pub(crate) struct User(&'static str);

/// An unprivileged user if this process is root's, for servers that refuse to run as root.
pub(super) fn other_user_if_root() -> Option<User> {
    let is_root = geteuid().is_root();
    let is_there = |name: &&str| Command::new("id").arg(name).output().is_ok_and(|id| id.status.success());
    is_root.then(|| User(["postgres", "nobody"].into_iter().find(is_there).expect("some user besides root must exist")))
}

impl User {
    fn setpriv(&self) -> [String; 3] {
        // Set together with `--pdeathsig`: a later change of the user would clear that.
        [format!("--reuid={}", self.0), format!("--regid={}", self.group()), "--clear-groups".to_owned()]
    }

    fn group(&self) -> String {
        let id = Command::new("id").args(["-g", self.0]).output().expect("`id` must start");
        String::from_utf8_lossy(&id.stdout).trim().to_owned()
    }

    /// A command that runs as this user.
    pub(super) fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        command.args(self.setpriv()).arg("--").arg(program);
        command
    }

    /// Gives a file or directory to this user.
    pub(super) fn own(&self, path: &Path) {
        let status = Command::new("chown").arg(self.0).arg(path).status().expect("`chown` must start");
        assert!(status.success(), "{} cannot be given to {}", path.display(), self.0);
    }
}

/// Whether `setpriv` is there and knows `--pdeathsig` (that of util-linux does, BusyBox's does not).
/// Without it, servers survive a `kill -9` of the test process, and nothing else changes.
fn has_pdeathsig() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--", "true"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    })
}

/// Sends `signal` (a name without `SIG`) to the process `pid`, which the caller must not have
/// reaped. By the shell's builtin, because std only knows SIGKILL and a system call is unsafe code.
///
/// # Panics
///
/// If the signal cannot be sent.
pub(crate) fn signal(pid: u32, signal: &str) {
    let status = Command::new("sh")
        .args(["-c", r#"kill -s "$0" "$1""#, signal, &pid.to_string()])
        .status()
        .expect("a shell must start to send a signal");
    assert!(status.success(), "SIG{signal} cannot be sent to {pid}");
}

/// Whether the kernel reports `pid` as stopped; `None` where there is no `/proc` to ask.
pub(super) fn is_stopped(pid: u32) -> Option<bool> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // "pid (name) state …", where the name may itself contain spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(") ")?;
    Some(after_name.starts_with(['T', 't']))
}
