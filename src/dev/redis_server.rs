//! A redis-server of our own: durable, on loopback, at the same port each time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::data_dir::DataDir;
use super::keeper::{Ask, Household, Keeper, Port, Recipe};
use super::screen::Tone;
use super::speech::Speech;

/// The port that is tried first.
const FIRST_PORT: u16 = 16_379;
/// How long it may take to load its data.
const START_LIMIT: Duration = Duration::from_secs(120);
/// How long it may take to write its data and end.
const GRACE: Duration = Duration::from_secs(30);
/// How often it is asked whether it is there.
const POLL: Duration = Duration::from_millis(50);
/// How long one question may take.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// How often it may die before it has ever answered.
const MOST_DEATHS: u32 = 3;

/// A server that runs.
pub(super) struct RedisServer {
    keeper: Keeper,
    port: u16,
    /// Which program it is.
    pub(super) program: PathBuf,
}

impl RedisServer {
    /// Starts it on what the directory holds, and returns once it answers.
    pub(super) async fn start(data: &DataDir, household: &Household) -> Result<Self> {
        let program = find()?;
        let folder = data.join("redis");
        end_leftover(data, &folder, household).await?;
        loop {
            let port = choose_port(data).await?;
            // However much of a hurry there is, Redis writes its data.
            let calm = Household { hurry: CancellationToken::new(), ..household.clone() };
            let keeper = Keeper::new("redis".to_owned(), calm);
            keeper.run(recipe(&program, &folder, port, data));
            let server = Self { keeper, port, program: program.clone() };
            match server.wait_until_ready(&folder).await? {
                Start::Ready => {
                    std::fs::write(data.join(PORT), port.to_string()).context("the port of Redis cannot be written")?;
                    return Ok(server);
                }
                Start::PortTaken => server.stop().await,
            }
        }
    }

    /// Where it is.
    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Lets it write its data and ends it.
    pub(super) async fn stop(self) {
        self.keeper.leave().await;
    }

    async fn wait_until_ready(&self, folder: &Path) -> Result<Start> {
        let began = Instant::now();
        while !is_ours(self.port, folder).await {
            if self.keeper.deaths() > 0 && TcpListener::bind(("127.0.0.1", self.port)).await.is_err() {
                // It may have come up again by now; else somebody was faster.
                let ours = is_ours(self.port, folder).await;
                return Ok(if ours { Start::Ready } else { Start::PortTaken });
            }
            if self.keeper.deaths() >= MOST_DEATHS || began.elapsed() > START_LIMIT {
                let log = std::fs::read_to_string(folder.join(LOG)).unwrap_or_default();
                let lines: Vec<&str> = log.lines().collect();
                let last = lines[lines.len().saturating_sub(10)..].join("\n  ");
                bail!("{} does not start; its last words:\n  {last}", self.program.display());
            }
            tokio::time::sleep(POLL).await;
        }
        Ok(Start::Ready)
    }
}

/// How a start went.
enum Start {
    Ready,
    /// Somebody else took the port between our look and the server's.
    PortTaken,
}

const PORT: &str = "redis.port";
const LOG: &str = "redis.log";

fn recipe(program: &Path, folder: &Path, port: u16, data: &DataDir) -> Recipe {
    let port = port.to_string();
    let settings = [
        ["--bind", "127.0.0.1"],
        ["--port", &port],
        ["--daemonize", "no"],
        ["--appendonly", "yes"],
        ["--appendfsync", "everysec"],
        ["--maxmemory-policy", "noeviction"],
        // The append-only file is what is kept; snapshots beside it would only cost.
        ["--save", ""],
        ["--logfile", LOG],
    ];
    let program = program.display().to_string();
    Recipe {
        command: [program].into_iter().chain(settings.into_iter().flatten().map(str::to_owned)).collect(),
        environment: Default::default(),
        folder: folder.to_owned(),
        grace: GRACE,
        ask: Ask::Program,
        port: Port::None,
        speech: Speech::Plain,
        after: Some(data.children()),
        hold: data.redis(),
    }
}

/// The server's program: the one that is named, the one in the path, or the one that the tests run against.
fn find() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("WINDLASS_REDIS_SERVER").filter(|named| !named.is_empty()) {
        return Ok(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path)
        .flat_map(|folder| [folder.join("redis-server"), folder.join("valkey-server")])
        .collect();
    let cache = std::env::var_os("WINDLASS_CACHE").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/windlass")));
    places.extend(cache.map(|cache| cache.join("servers/redis-7.0/redis-server")));
    places.into_iter().find(|place| place.is_file()).context(
        "there is no redis-server on this machine: install it (Debian: apt install redis-server, macOS: brew install \
         redis), name one in WINDLASS_REDIS_SERVER, or give the URL of a running one with --redis-url",
    )
}

/// The port of the last time if it is free, so that a URL that somebody noted stays right.
async fn choose_port(data: &DataDir) -> Result<u16> {
    let last = std::fs::read_to_string(data.join(PORT)).ok().and_then(|port| port.trim().parse().ok());
    for port in last.into_iter().chain([FIRST_PORT, 0]) {
        if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)).await {
            return Ok(listener.local_addr()?.port());
        }
    }
    bail!("no port on 127.0.0.1 is free for Redis")
}

/// Two servers on one directory would spoil it: ends one that was left without its guard.
async fn end_leftover(data: &DataDir, folder: &Path, household: &Household) -> Result<()> {
    let Ok(port) = std::fs::read_to_string(data.join(PORT)) else { return Ok(()) };
    let Ok(port) = port.trim().parse() else { return Ok(()) };
    if !is_ours(port, folder).await {
        return Ok(());
    }
    household.screen.say(Tone::Faint, "a redis-server was left behind on this data directory; ending it");
    let began = Instant::now();
    while is_ours(port, folder).await {
        // It closes the connection instead of answering.
        let _ = ask(port, "SHUTDOWN").await;
        if began.elapsed() > GRACE {
            bail!("the redis-server on port {port}, left behind on this data directory, does not end: stop it");
        }
        tokio::time::sleep(POLL).await;
    }
    Ok(())
}

/// Whether the server on that port is ready and works on that directory.
async fn is_ours(port: u16, folder: &Path) -> bool {
    let folder = folder.display().to_string();
    let answer = ask(port, "CONFIG GET dir").await.unwrap_or_default();
    answer.lines().any(|line| line == folder)
}

/// What the server says to a command, as text.
async fn ask(port: u16, command: &str) -> std::io::Result<String> {
    let conversation = async {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
        // The second answer says that the first one is whole; it is an error while data is loaded.
        stream.write_all(format!("{command}\r\nPING\r\n").as_bytes()).await?;
        let mut answer = Vec::new();
        while !answer.ends_with(b"+PONG\r\n") {
            if stream.read_buf(&mut answer).await? == 0 || answer.starts_with(b"-") {
                return Err(std::io::ErrorKind::ConnectionRefused.into());
            }
        }
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    tokio::time::timeout(ANSWER_LIMIT, conversation).await?
}
