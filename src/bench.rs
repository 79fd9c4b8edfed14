//! `windlass bench`: what the broker costs, beside bare Redis commands and other queues.
//!
//! Owns: the measurements, the server that they run on, and the report. Must
//! not know: how the broker works inside; it is measured from outside, through
//! its trait and through what the server counts.
//!
//! Main flow: [`run`] pins this process to one core and starts a Redis on
//! another; each measurement flushes it, drives one system at a time, checks
//! that every task was done exactly once, and adds rows to the report.

mod bare;
mod delayed;
mod delivery;
mod holds;
mod idle;
mod info;
mod latency;
mod load;
mod machine;
mod memory;
mod peers;
mod players;
mod reclaim;
mod report;
mod scale;
mod server;
mod settings;
mod slow_log;
mod stats;
mod throughput;
mod windlass;
mod wire;
mod worker;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use self::machine::{Machine, Pinning};
use self::peers::Peers;
use self::report::{Report, Row, System};
use self::server::Server;
use self::settings::Settings;
pub use self::settings::{Args, Measurement, Output};

/// What the measurements share.
struct Bench {
    settings: Settings,
    server: Server,
    peers: Option<Peers>,
    /// What the slowest queue did in a second, task by task, once that is known.
    slowest_single: Option<f64>,
    step: usize,
    steps: usize,
}

impl Bench {
    fn systems(&self) -> Vec<System> {
        let all = System::ALL.into_iter();
        all.filter(|system| self.peers.is_some() || *system == System::Windlass || system.is_bare()).collect()
    }

    fn peers(&self) -> Result<&Peers> {
        self.peers.as_ref().context("the peers were left out")
    }

    /// Says on stderr what is done next.
    fn progress(&mut self, what: &str) {
        self.step += 1;
        // The numbers go elsewhere; nobody has to read this.
        let _ = writeln!(std::io::stderr(), "[{}/{}] {what}", self.step, self.steps);
    }

    /// Says on stderr what is done besides.
    fn remark(&self, what: &str) {
        let _ = writeln!(std::io::stderr(), "[{}/{}] {what}", self.step, self.steps);
    }

    async fn measure(&mut self, what: Measurement) -> Result<Vec<Row>> {
        match what {
            Measurement::Throughput => throughput::measure(self).await,
            Measurement::Latency => latency::measure(self).await,
            Measurement::Delayed => delayed::measure(self).await,
            Measurement::Memory => memory::measure(self).await,
            Measurement::Scale => scale::measure(self).await,
            Measurement::Reclaim => reclaim::measure(self).await,
            Measurement::Holds => holds::measure(self).await,
            Measurement::Idle => idle::measure(self).await,
            Measurement::Worker => worker::measure(self).await,
        }
    }

    fn steps_of(&self, what: Measurement) -> usize {
        match what {
            Measurement::Throughput => throughput::steps(self),
            Measurement::Latency => latency::steps(self),
            Measurement::Delayed => delayed::steps(self),
            Measurement::Memory => memory::steps(self),
            Measurement::Scale => scale::steps(self),
            Measurement::Reclaim => reclaim::steps(self),
            Measurement::Holds => holds::steps(self),
            Measurement::Idle => idle::steps(self),
            Measurement::Worker => worker::steps(self),
        }
    }
}

/// Whether the peers do it too.
fn has_peers(what: Measurement) -> bool {
    !matches!(what, Measurement::Scale | Measurement::Reclaim | Measurement::Holds | Measurement::Idle)
}

/// What the table of a measurement cannot say by itself.
fn notes(what: Measurement) -> &'static [&'static str] {
    match what {
        Measurement::Throughput => &throughput::NOTES,
        Measurement::Delayed => &delayed::NOTES,
        Measurement::Idle => &idle::NOTES,
        Measurement::Worker => &worker::NOTES,
        Measurement::Memory => &memory::NOTES,
        Measurement::Holds => &holds::NOTES,
        Measurement::Latency | Measurement::Scale | Measurement::Reclaim => &[],
    }
}

/// Measures and prints.
pub async fn run(args: Args) -> Result<()> {
    if let Some(port) = args.look_after {
        return Box::pin(idle::look_after(port, args.idle_queues.unwrap_or_default())).await;
    }
    let machine = Machine::here();
    let pinning = Pinning::apply(args.server_core.zip(args.client_core)).await?;
    let output = args.output;
    // All clients share one core, so a second thread would only be in the way.
    let measured = tokio::task::spawn_blocking(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(measure(args, machine, pinning))
    });
    let report = measured.await.context("the benchmark was cut off")??;
    let text = match output {
        Output::Markdown => report.markdown(),
        Output::Json => report.json()?,
    };
    std::io::stdout().write_all(text.as_bytes()).context("the result could not be printed")
}

async fn measure(args: Args, machine: Machine, pinning: Pinning) -> Result<Report> {
    let wanted: BTreeSet<Measurement> = match args.only.is_empty() {
        true => Measurement::value_variants().iter().copied().collect(),
        false => args.only.iter().copied().collect(),
    };
    let cache = cache()?;
    let beside_peers = !args.no_peers && wanted.iter().any(|what| has_peers(*what));
    let peers = if beside_peers { Some(Peers::find(&cache).await?) } else { None };
    let server = Server::start(&server::find_program(args.redis_server.clone(), &cache)?, &pinning).await?;

    let mut versions = vec![server.version.clone()];
    versions.extend(peers.iter().flat_map(|peers| peers.versions.clone()));
    let settings = Settings::from(&args);
    let mut report = Report {
        date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
        machine,
        pinning: pinning.sentence(),
        versions,
        settings: settings.sentence(),
        rows: Vec::new(),
        notes: wanted.iter().flat_map(|what| notes(*what)).chain(&slow_log::NOTES).copied().collect(),
    };
    let mut bench = Bench { settings, server, peers, slowest_single: None, step: 0, steps: 0 };
    bench.steps = wanted.iter().map(|what| bench.steps_of(*what)).sum();
    let outcome = tokio::select! {
        outcome = measure_all(&mut bench, wanted) => outcome,
        outcome = interrupted() => outcome,
    };
    bench.server.stop().await?;
    report.rows = outcome?;
    Ok(report)
}

async fn measure_all(bench: &mut Bench, wanted: BTreeSet<Measurement>) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for what in wanted {
        rows.extend(bench.measure(what).await?);
    }
    Ok(rows)
}

/// Ends, with an error, when somebody wants this process to end.
async fn interrupted() -> Result<Vec<Row>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
    bail!("interrupted; what was measured so far is lost")
}

/// Where `make` puts servers and peers.
fn cache() -> Result<PathBuf> {
    if let Some(cache) = std::env::var_os("WINDLASS_CACHE").filter(|cache| !cache.is_empty()) {
        return Ok(cache.into());
    }
    let home = std::env::var_os("HOME").context("neither WINDLASS_CACHE nor HOME is set: set one of them")?;
    Ok(PathBuf::from(home).join(".cache/windlass"))
}
