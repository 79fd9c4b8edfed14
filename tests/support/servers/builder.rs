//! What a server is to be, before it is started.

use std::fmt::Write as _;
use std::path::Path;

use super::process::Berth;
use super::server::{LOG, PortTaken};
use super::tls::Certificates;
use super::{Flavor, Server};

/// A server to be started: see [`Server::builder`].
#[derive(Clone, Debug)]
pub struct ServerBuilder {
    pub(super) flavor: Flavor,
    /// The lines of the configuration file, after those that every server has.
    lines: Vec<String>,
    pub(super) password: Option<String>,
    pub(super) tls: bool,
    pub(super) sentinel: bool,
}

impl ServerBuilder {
    /// A server with nothing but the defaults.
    pub(super) fn new(flavor: Flavor) -> Self {
        Self { flavor, lines: Vec::new(), password: None, tls: false, sentinel: false }
    }

    /// Writes every command to disk before it is answered: what a client was told is then still
    /// there after [`Server::kill9`] and [`Server::restart`].
    #[must_use]
    pub fn aof_always(self) -> Self {
        self.config("appendonly", "yes").config("appendfsync", "always")
    }

    /// Bounds the memory, e.g. `("64mb", "noeviction")`, to test what happens when it is full.
    #[must_use]
    pub fn maxmemory(self, bytes: &str, policy: &str) -> Self {
        self.config("maxmemory", bytes).config("maxmemory-policy", policy)
    }

    /// Demands a password of the default user; [`Server::url`] then contains it.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.config("requirepass", &quoted(password))
    }

    /// Adds a user, e.g. `("worker on >secret ~* &* +@all")`; connect with [`Server::url_as`].
    ///
    /// The default user must stay usable: the harness itself connects as that.
    #[must_use]
    pub fn acl(self, user: &str) -> Self {
        self.config("user", user)
    }

    /// Speaks TLS, and nothing else, with a certificate for `127.0.0.1` and `localhost` from an
    /// authority of its own, which a client must be told: [`Server::ca_pem`].
    ///
    /// Only for [`Flavor::Redis70`]: the others that `make servers` gets are built without TLS, and
    /// do not start with it.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Sets any directive of the configuration file. The value is written as it stands there, so
    /// that a directive with several values can be given, and one with spaces must be quoted.
    #[must_use]
    pub fn config(mut self, key: &str, value: &str) -> Self {
        let value = if value.is_empty() { r#""""# } else { value };
        self.lines.push(format!("{key} {value}"));
        self
    }

    /// Runs the server as a sentinel.
    pub(super) fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Starts the server and returns once it answers.
    ///
    /// # Panics
    ///
    /// If it does not start, with its log.
    pub async fn start(self) -> Server {
        let binary = self.flavor.binary();
        let mut log = String::new();
        for _ in 0..10 {
            let server = Server::prepare(&self, binary.clone());
            match server.launch().await {
                Ok(()) => return server,
                Err(PortTaken) => log = server.log(),
            }
        }
        panic!("ten ports in turn were taken before the server could bind them; its log:\n{log}");
    }

    /// The whole configuration file.
    pub(super) fn configuration(&self, berth: &Berth, tls: Option<&Certificates>) -> String {
        let path = |path: &Path| quoted(path.to_str().expect("paths must be UTF-8"));
        let mut text = String::new();
        let mut line = |key: &str, value: &str| {
            writeln!(text, "{key} {value}").expect("writing to a string cannot fail");
        };
        line("bind", "127.0.0.1");
        line("daemonize", "no");
        line("dir", &path(berth.dir()));
        line("logfile", &path(&berth.dir().join(LOG)));
        let port = berth.port().to_string();
        if let Some(tls) = tls {
            line("port", "0");
            line("tls-port", &port);
            line("tls-cert-file", &path(&tls.certificate));
            line("tls-key-file", &path(&tls.key));
            line("tls-ca-cert-file", &path(&tls.authority));
            line("tls-auth-clients", "no");
        } else {
            line("port", &port);
        }
        if !self.sentinel {
            // Nothing is kept on disk unless a test asks: tests that kill a server mean to know
            // what survives. The file's later lines win.
            line("save", r#""""#);
            line("appendonly", "no");
        }
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
        text
    }
}

/// A value of the configuration file in quotes.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', r"\\").replace('"', "\\\""))
}
