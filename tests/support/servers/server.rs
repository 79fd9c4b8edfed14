//! One server.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisResult, TlsCertificates};

use super::process::{self, Berth};
use super::tls::Certificates;
use super::{Flavor, ServerBuilder, Wait};

/// How long a command of the harness may take. Long, because a test may load or slow its server on
/// purpose; the default of the `redis` crate is half a second.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// How long one look at a starting server may take, before the next look.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// The names of the files in a server's directory.
pub(super) const LOG: &str = "server.log";
const CONFIG: &str = "server.conf";

/// The server gave up because somebody else has its port.
pub(super) struct PortTaken;

/// A running server, on a loopback port and in a directory of its own.
///
/// All methods take `&self`, so that a test can kill a server that its load still uses. Dropping it
/// kills the process and removes the directory.
#[derive(Debug)]
pub struct Server {
    flavor: Flavor,
    binary: PathBuf,
    sentinel: bool,
    password: Option<String>,
    ca_pem: Option<String>,
    /// The process, until it is known to be dead. As long as it is here it is not reaped, and so
    /// its process id is nobody else's.
    child: Mutex<Option<Child>>,
    /// After `child`, whose process [`Server::drop`] ends before this gives up port and directory.
    berth: Berth,
}

impl Server {
    /// Starts a server with nothing but the defaults: no persistence, no password, no TLS.
    ///
    /// # Panics
    ///
    /// If it is missing or does not start.
    pub async fn start(flavor: Flavor) -> Self {
        Self::builder(flavor).start().await
    }

    /// A server to be configured before it is started.
    pub fn builder(flavor: Flavor) -> ServerBuilder {
        ServerBuilder::new(flavor)
    }

    /// Claims port and directory and fills the directory, for [`Server::launch`].
    pub(super) fn prepare(builder: &ServerBuilder, binary: PathBuf) -> Self {
        let berth = Berth::claim();
        let tls = builder.tls.then(|| Certificates::generate(berth.dir()));
        let ca_pem = tls
            .as_ref()
            .map(|tls| fs::read_to_string(&tls.authority).expect("the authority's certificate must be there"));
        fs::write(berth.dir().join(CONFIG), builder.configuration(&berth, tls.as_ref()))
            .expect("the server's configuration must be written");
        Self {
            flavor: builder.flavor,
            binary,
            sentinel: builder.sentinel,
            password: builder.password.clone(),
            ca_pem,
            child: Mutex::new(None),
            berth,
        }
    }

    /// Starts the process and returns once it answers, through the loading of its data.
    pub(super) async fn launch(&self) -> Result<(), PortTaken> {
        let log_before = self.log().len();
        let mut args = vec![self.berth.dir().join(CONFIG).to_str().expect("paths must be UTF-8").to_owned()];
        if self.sentinel {
            args.push("--sentinel".into());
        }
        // What it prints goes where it logs: what is wrong with a configuration it prints, because
        // it does not know its log yet.
        let child = process::spawn(&self.binary, &args, &self.berth.dir().join(LOG));
        let pid = child.id();
        *self.child() = Some(child);

        let mut wait = Wait::new(format!("{:?} to answer on {}", self.flavor, self.port()));
        loop {
            if let Some(status) = self.exited() {
                let log = self.log();
                let new = log.get(log_before..).unwrap_or_default();
                if new.contains("Address already in use") || new.contains("Failed listening") {
                    return Err(PortTaken);
                }
                panic!("{:?} did not start ({status}); its log:\n{log}", self.flavor);
            }
            match self.probe(pid).await {
                Ok(()) => return Ok(()),
                Err(seen) => wait.again(format!("{seen}; its log:\n{}", self.log())).await,
            }
        }
    }

    /// Whether the server that answers on the port is ready, is the process `pid`, and is of the
    /// right version: the port might be a stranger's, and the cache might hold another version.
    async fn probe(&self, pid: u32) -> Result<(), String> {
        let text = |error: redis::RedisError| error.to_string();
        let mut connection = self.connect_within(PROBE_TIMEOUT).await.map_err(text)?;
        let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await.map_err(text)?;
        let info = info_fields(&info);
        if info.get("process_id") != Some(&pid.to_string()) {
            return Err(format!("an answer, but of another process: {info:?}"));
        }
        let (field, expected) = self.flavor.version();
        let version = info.get(field).map_or("unknown", String::as_str);
        assert!(
            version.starts_with(expected),
            "{} is of {field} {version}, not {expected}x: run `make servers`",
            self.binary.display()
        );
        // Unlike INFO, this is refused as long as the data is being loaded.
        redis::cmd("PING").query_async(&mut connection).await.map_err(text)
    }

    /// Which server this is.
    pub fn flavor(&self) -> Flavor {
        self.flavor
    }

    /// The port, the same for the server's whole life.
    pub fn port(&self) -> u16 {
        self.berth.port()
    }

    /// The process id of the running server.
    ///
    /// # Panics
    ///
    /// If it is not running.
    pub fn pid(&self) -> u32 {
        let child = self.child();
        child.as_ref().expect("the server is not running").id()
    }

    /// Whether the process is there, be it frozen.
    pub fn is_running(&self) -> bool {
        self.exited();
        self.child().is_some()
    }

    /// The url to connect with, as the default user: `redis://…`, or `rediss://…` with TLS.
    pub fn url(&self) -> String {
        let credentials =
            self.password.as_ref().map_or_else(String::new, |password| format!(":{}@", encoded(password)));
        self.url_with(&credentials)
    }

    /// The url to connect with as a user that [`ServerBuilder::acl`] added.
    pub fn url_as(&self, user: &str, password: &str) -> String {
        self.url_with(&format!("{}:{}@", encoded(user), encoded(password)))
    }

    fn url_with(&self, credentials: &str) -> String {
        let scheme = self.ca_pem.as_ref().map_or("redis", |_| "rediss");
        format!("{scheme}://{credentials}127.0.0.1:{}", self.port())
    }

    /// The password of the default user, if there is one.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// The certificate of the authority that signed the server's.
    ///
    /// # Panics
    ///
    /// If the server does not speak TLS.
    pub fn ca_pem(&self) -> &str {
        self.ca_pem.as_deref().expect("the server must have been built with `.tls()`")
    }

    /// What the server has logged and printed since it was first started.
    pub fn log(&self) -> String {
        let log = fs::read(self.berth.dir().join(LOG)).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// A client that knows all that is needed to connect, the authority of the certificate included.
    pub fn client(&self) -> Client {
        match &self.ca_pem {
            None => Client::open(self.url()),
            Some(ca_pem) => Client::build_with_tls(
                self.url(),
                TlsCertificates { client_tls: None, root_cert: Some(ca_pem.clone().into_bytes()) },
            ),
        }
        .expect("the url of the harness must be valid")
    }

    /// A new connection, whose timeouts are long enough for a busy server.
    pub async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        self.connect_within(COMMAND_TIMEOUT).await
    }

    async fn connect_within(&self, timeout: Duration) -> RedisResult<MultiplexedConnection> {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(timeout)).set_response_timeout(Some(timeout));
        self.client().get_multiplexed_async_connection_with_config(&config).await
    }

    /// Runs one command, as `&["CONFIG", "SET", "maxmemory", "1mb"]`, on a connection of its own:
    /// a kept one would belong to the runtime of one test, and a server may be shared by several.
    ///
    /// # Panics
    ///
    /// If the command fails: the harness's commands are what a test stands on, not what it tests.
    pub async fn command(&self, args: &[&str]) -> redis::Value {
        self.query(args).await
    }

    /// Runs one command as [`Server::command`] does and converts its reply.
    ///
    /// # Panics
    ///
    /// If the command fails, or if its reply is of another type.
    pub async fn query<T: FromRedisValue>(&self, args: &[&str]) -> T {
        match self.try_query(args).await {
            Ok(reply) => reply,
            Err(error) => panic!("{args:?} on port {} failed: {error}", self.port()),
        }
    }

    /// Runs one command that may fail, because the server refuses it or is not there.
    pub async fn try_command(&self, args: &[&str]) -> RedisResult<redis::Value> {
        self.try_query(args).await
    }

    /// Runs one command that may fail and converts its reply.
    pub async fn try_query<T: FromRedisValue>(&self, args: &[&str]) -> RedisResult<T> {
        let mut cmd = Cmd::new();
        cmd.arg(args);
        cmd.query_async(&mut self.connect().await?).await
    }

    /// The fields of one section of `INFO`.
    ///
    /// # Panics
    ///
    /// If the server does not answer.
    pub async fn info(&self, section: &str) -> HashMap<String, String> {
        info_fields(&self.query::<String>(&["INFO", section]).await)
    }

    /// The fields of one section of `INFO`, of a server that may be gone or may break off.
    pub async fn try_info(&self, section: &str) -> RedisResult<HashMap<String, String>> {
        let text: String = self.try_query(&["INFO", section]).await?;
        Ok(info_fields(&text))
    }

    /// Kills the process with SIGKILL, as a machine that fails would, and returns once it is dead.
    /// The port stays reserved for [`Server::restart`]. A dead server is left as it is.
    ///
    /// # Panics
    ///
    /// If the process cannot be waited for.
    pub fn kill9(&self) {
        if let Some(mut child) = self.child().take() {
            // Fails only if the process is already dead.
            let _ = child.kill();
            child.wait().expect("a killed server must be waited for");
        }
    }

    /// Starts the server again, on the same port and with the same directory and configuration
    /// file, and returns once it answers and has loaded its data. One that still runs is killed
    /// with SIGKILL before. What `CONFIG SET` changed is lost, unless `CONFIG REWRITE` kept it.
    ///
    /// # Panics
    ///
    /// If it does not start, with its log.
    pub async fn restart(&self) {
        self.kill9();
        let mut wait = Wait::new(format!("port {} to be free again", self.port()));
        while let Err(PortTaken) = self.launch().await {
            wait.again("another process has it").await;
        }
    }

    /// Stops the process with SIGSTOP: connections stay open, and new ones are accepted by the
    /// kernel, but nothing is answered, as by a machine that hangs. Returns once it stands still.
    ///
    /// # Panics
    ///
    /// If it is not running.
    pub async fn freeze(&self) {
        self.signal("STOP", true).await;
    }

    /// Lets a frozen process continue with SIGCONT: it then does all that has piled up.
    ///
    /// # Panics
    ///
    /// If it is not running.
    pub async fn thaw(&self) {
        self.signal("CONT", false).await;
    }

    /// Sends `signal` and returns once the process is stopped, or is not.
    async fn signal(&self, signal: &str, stopped: bool) {
        let pid = {
            // Held, so that nobody reaps the process between the look and the signal.
            let child = self.child();
            let pid = child.as_ref().expect("the server is not running").id();
            process::signal(pid, signal);
            pid
        };
        let mut wait = Wait::new(format!("SIG{signal} to take effect on {pid}"));
        while process::is_stopped(pid) == Some(!stopped) {
            wait.again("no change").await;
        }
    }

    fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // A test that panicked elsewhere must not keep this server from being killed.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the process ended, if it has ended by itself; it is then forgotten.
    fn exited(&self) -> Option<std::process::ExitStatus> {
        let mut child = self.child();
        let status = child.as_mut()?.try_wait().expect("the state of a child process must be known");
        if status.is_some() {
            *child = None;
        }
        status
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill9();
    }
}

/// The `name:value` lines of a reply of `INFO`, or of `CLUSTER INFO`.
pub(super) fn info_fields(text: &str) -> HashMap<String, String> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// A part of a url, with all that is not surely harmless percent-encoded.
fn encoded(part: &str) -> String {
    part.bytes().fold(String::new(), |mut text, byte| {
        if byte.is_ascii_alphanumeric() {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02X}").expect("writing to a string cannot fail");
        }
        text
    })
}
