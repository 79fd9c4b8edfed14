//! One-machine mode: the manifests of a cluster, carried out here.
//!
//! Owns: reading manifests, a redis-server of its own, the loops of the queues
//! and a process for each replica of each pool. Must not know: Kubernetes
//! beyond the types in `crd`, how a worker runs a task.
//!
//! Main flow: [`run`] reads the manifests (`manifest`), takes the data directory
//! (`data_dir`), starts Redis (`redis_server`) and applies what is asked for
//! (`machine`, `pool`); then it applies each edit. Every program is kept running
//! by a `keeper`, behind a [`guard`] that ends it should this process be killed,
//! and whatever it leaves behind.
//!
//! What survives: everything that matters is in Redis and the event log, in the
//! data directory. After a kill -9 of this process, workers drain, Redis ends
//! after them, and the next start goes on where this one stopped.

mod data_dir;
pub mod guard;
mod keeper;
mod machine;
mod manifest;
mod pool;
mod redis_server;
mod screen;
mod speech;
mod ticker;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use self::data_dir::DataDir;
use self::keeper::Household;
use self::machine::Machine;
pub use self::manifest::{Manifests, PoolManifest, QueueManifest, Refusal};
use self::pool::Surroundings;
use self::redis_server::RedisServer;
use self::screen::{Screen, Tone};
use crate::broker::redis::{Redis, RedisOptions};
use crate::event_log::EventLog;

/// How often the manifests are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often Redis is looked at.
const REPAIR: Duration = Duration::from_secs(5);

/// What to run, and where.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Manifests, and folders of them.
    pub files: Vec<PathBuf>,
    /// A Redis to use instead of one of our own.
    pub redis_url: Option<String>,
    /// Where Redis and the event log keep what survives.
    pub data_dir: PathBuf,
    /// An event log to use instead of the one in the data directory.
    pub event_log: Option<String>,
}

/// Reads manifests, or says all that is wrong with them.
pub fn read(files: &[PathBuf]) -> Result<Manifests, Vec<Refusal>> {
    let sources = manifest::sources(files).map_err(|refusal| vec![refusal])?;
    Manifests::read(&sources, None)
}

/// What is wrong with the manifests; nothing was started.
#[derive(Debug, thiserror::Error)]
#[error("nothing was started, because of the manifests:\n{}", lines(.0))]
pub struct Refused(pub Vec<Refusal>);

fn lines(refusals: &[Refusal]) -> String {
    refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// Runs until it is told to end by SIGINT, SIGTERM or SIGHUP.
pub async fn run(settings: Settings) -> Result<()> {
    let screen = Screen::new();
    let mut edits = Edits::new(settings.files.clone());
    let manifests = match edits.first() {
        Ok(manifests) => manifests,
        Err(refusals) => return Err(Refused(refusals).into()),
    };
    let mut signals = Signals::new()?;
    let data = DataDir::open(&settings.data_dir)?;
    let started = tokio::select! {
        started = Running::start(&settings, &data, &screen, &manifests) => started?,
        () = signals.next() => return Ok(()),
    };
    started.serve(&mut edits, manifests, &mut signals, &screen).await;
    Ok(())
}

/// Everything that was started.
struct Running {
    server: Option<RedisServer>,
    machine: Machine,
    hurry: CancellationToken,
}

impl Running {
    async fn start(settings: &Settings, data: &DataDir, screen: &Screen, manifests: &Manifests) -> Result<Self> {
        data.wait_for_leftovers(screen).await;
        let program = std::env::current_exe().context("this program's own file cannot be found")?;
        let hurry = CancellationToken::new();
        let household = Household { screen: screen.clone(), program, hurry: hurry.clone() };
        let server = match settings.redis_url {
            Some(_) => None,
            None => Some(RedisServer::start(data, &household).await?),
        };
        let url = settings.redis_url.clone().or(server.as_ref().map(RedisServer::url)).unwrap_or_default();
        let redis = Redis::new(RedisOptions::new(&url))?;
        machine::reach(&redis).await?;
        let own_log = format!("sqlite://{}", data.join("events.db").display());
        let log_url = settings.event_log.clone().unwrap_or(own_log);
        let log = EventLog::connect(&log_url).await?;
        let surroundings =
            Surroundings { household, redis_url: url.clone(), id: data.id().to_owned(), hold: data.children() };
        let mut machine = Machine::new(redis, log, surroundings);
        if !manifests.others.is_empty() {
            let others: Vec<&str> = manifests.others.iter().map(String::as_str).collect();
            screen.say(Tone::Faint, format!("not for one machine, left alone: {}", others.join(", ")));
        }
        if let Err(error) = machine.apply(manifests, &Manifests::default()).await {
            machine.stop().await;
            return Err(error);
        }
        data.publish(&[("WINDLASS_REDIS_URL", &url), ("WINDLASS_EVENT_LOG_URL", &log_url)])?;
        let running = Self { server, machine, hurry };
        running.introduce(data, screen, settings);
        Ok(running)
    }

    fn introduce(&self, data: &DataDir, screen: &Screen, settings: &Settings) {
        let say = |text: String| screen.say(Tone::Plain, text);
        match (&self.server, &settings.redis_url) {
            (Some(server), _) => {
                say(format!("{} at {}", server.program.display(), server.url()));
                say(format!("data in {}: it stays when this ends", data.join("").display()));
            }
            (None, _) => say("on the Redis of --redis-url".to_owned()),
        }
        say("ready. In another terminal:".to_owned());
        say(format!("  source {}", data.join(data_dir::ENVIRONMENT).display()));
        if let Some(server) = &self.server {
            say(format!("  (that is: export WINDLASS_REDIS_URL={})", server.url()));
        }
        if let Some(example) = self.machine.example() {
            say(format!("  {example}"));
        }
        say("edits to the manifests apply as you save them; Ctrl-C lets workers finish and ends".to_owned());
    }

    async fn serve(mut self, edits: &mut Edits, mut current: Manifests, signals: &mut Signals, screen: &Screen) {
        let (mut look, mut repair) = (tokio::time::interval(LOOK), tokio::time::interval(REPAIR));
        let mut outcome = Ok(());
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        repair.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = signals.next() => break,
                _ = repair.tick() => {
                    let work = async {
                        self.machine.repair().await;
                        // What could not be done is tried again.
                        if outcome.is_err() { self.machine.apply(&current, &current).await } else { Ok(()) }
                    };
                    tokio::select! {
                        done = work => outcome = done,
                        () = signals.next() => break,
                    }
                }
                _ = look.tick() => match edits.next(&current) {
                    None => {}
                    Some(Err(refusals)) => {
                        refusals.iter().for_each(|refusal| screen.say(Tone::Bad, refusal.to_string()));
                        screen.say(Tone::Bad, "the edit is not applied; what ran before goes on");
                    }
                    Some(Ok(asked)) => {
                        // A Redis that does not answer must not hold up the end.
                        tokio::select! {
                            done = self.machine.apply(&asked, &current) => outcome = done,
                            () = signals.next() => break,
                        }
                        current = asked;
                    }
                },
            }
        }
        self.stop(signals, screen).await;
    }

    async fn stop(self, signals: &mut Signals, screen: &Screen) {
        screen.say(Tone::Plain, "ending: workers finish what they hold (once more: at once)");
        let hurry = self.hurry;
        let stop = async {
            self.machine.stop().await;
            if let Some(server) = self.server {
                server.stop().await;
            }
        };
        tokio::pin!(stop);
        tokio::select! {
            () = &mut stop => {}
            () = signals.next() => {
                screen.say(Tone::Bad, "ending at once: workers give back what they hold");
                hurry.cancel();
                stop.await;
            }
        }
        screen.say(Tone::Plain, "ended");
    }
}

/// For how many looks in a row a file may be missing: an editor that replaces it takes it away for a moment.
const MISSING_LOOKS: u32 = 4;

/// The manifests as they are edited.
struct Edits {
    files: Vec<PathBuf>,
    /// Looks in a row that found a file missing.
    missing: u32,
    /// What was read last, also if it was refused.
    seen: Option<Vec<manifest::Source>>,
}

impl Edits {
    fn new(files: Vec<PathBuf>) -> Self {
        Self { files, missing: 0, seen: None }
    }

    fn first(&mut self) -> Result<Manifests, Vec<Refusal>> {
        self.next(&Manifests::default()).unwrap_or_else(|| Ok(Manifests::default()))
    }

    /// What is asked for now, if that is not what was read last.
    fn next(&mut self, current: &Manifests) -> Option<Result<Manifests, Vec<Refusal>>> {
        let sources = manifest::sources(&self.files);
        self.missing = if sources.is_err() { self.missing.saturating_add(1) } else { 0 };
        match sources {
            Err(_) if self.seen.is_some() && self.missing != MISSING_LOOKS => None,
            Err(refusal) => Some(Err(vec![refusal])),
            Ok(sources) if self.seen.as_ref() == Some(&sources) => None,
            Ok(sources) => {
                let read = Manifests::read(&sources, Some(current));
                self.seen = Some(sources);
                Some(read)
            }
        }
    }
}

/// The signals that end it.
struct Signals([Signal; 3]);

impl Signals {
    fn new() -> Result<Self> {
        let listen = |kind| signal(kind).context("signals cannot be listened to");
        Ok(Self([listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?]))
    }

    async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}
