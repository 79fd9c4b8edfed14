//! Who takes part where waiting times are compared, and how their lines look.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};

use super::Bench;
use super::peers::Peer;
use super::report::{Row, System};
use super::stats::Waits;

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Player {
    /// Windlass.
    Windlass,
    /// Windlass, whose producer is a raw XADD.
    Raw,
    /// XADD and a blocked XREADGROUP, with nothing around them.
    Bare,
    /// Another queue.
    Peer(Peer),
}

/// What the runs of each player gave.
pub(super) type Results = Vec<(Player, Vec<Waits>)>;

impl Player {
    /// What it is called in progress lines.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Windlass => "windlass",
            Self::Raw => "windlass, after a raw XADD",
            Self::Bare => "bare",
            Self::Peer(Peer::Bullmq) => "BullMQ",
            Self::Peer(Peer::Asynq) => "asynq",
            Self::Peer(Peer::AsynqTuned) => "asynq, checking every 1 ms",
        }
    }

    /// In whose column it is.
    pub(super) fn system(self) -> System {
        match self {
            Self::Windlass | Self::Raw => System::Windlass,
            Self::Bare => System::Bare,
            Self::Peer(Peer::Bullmq) => System::Bullmq,
            Self::Peer(Peer::Asynq | Peer::AsynqTuned) => System::Asynq,
        }
    }
}

/// Those that are queues.
pub(super) fn queues(bench: &Bench) -> Vec<Player> {
    let mut queues = vec![Player::Windlass];
    if bench.peers.is_some() {
        queues.extend([Peer::Bullmq, Peer::Asynq, Peer::AsynqTuned].map(Player::Peer));
    }
    queues
}

/// Those, and bare commands.
pub(super) fn players(bench: &Bench) -> Vec<Player> {
    [Player::Bare].into_iter().chain(queues(bench)).collect()
}

/// These, with nothing measured yet.
pub(super) fn nobody_yet(players: Vec<Player>) -> Results {
    players.into_iter().map(|player| (player, Vec::new())).collect()
}

/// A line for all as they are, one for asynq tuned, and one for raw producers, of those that took part.
pub(super) fn rows(results: &Results, measure: &str, pick: impl Fn(&Waits) -> f64) -> Vec<Row> {
    let mut main = Row::new(measure);
    let mut tuned = Row::new(format!("{measure} (asynq checking every 1 ms)"));
    let mut raw = Row::new(format!("{measure} (after a raw XADD)"));
    for (player, waits) in results {
        let values: Vec<f64> = waits.iter().map(&pick).collect();
        let row = match player {
            Player::Peer(Peer::AsynqTuned) => &mut tuned,
            Player::Raw => &mut raw,
            _ => &mut main,
        };
        *row = std::mem::replace(row, Row::new("")).value(player.system(), &values);
    }
    let raw = raw.ratio("after an enqueue", main.median(System::Windlass));
    let main = main.ratio_to(System::Bullmq).ratio_to(System::Asynq).ratio_to(System::Bare);
    let others = [tuned, raw].into_iter().filter(|row| !row.values.is_empty());
    [main].into_iter().chain(others).collect()
}

/// Median, p99 and the longest wait, of which p99 has a budget: half of either
/// peer's, asynq's better figure included, and for a raw producer hardly more than for others.
pub(super) fn judged_rows(results: &Results, what: &str) -> Vec<Row> {
    let mut all = rows(results, &format!("{what}, p50, ms"), |waits| waits.p50);
    all.extend(judge(rows(results, &format!("{what}, p99, ms"), |waits| waits.p99)));
    all.extend(rows(results, &format!("{what}, max, ms"), |waits| waits.max));
    all
}

/// What a raw producer's task may wait longer than twice an enqueued one's, in milliseconds.
const RAW_MARGIN: f64 = 1.0;

fn judge(rows: Vec<Row>) -> Vec<Row> {
    let own = rows.first().and_then(|row| row.median(System::Windlass));
    let others = rows.iter().flat_map(|row| [row.median(System::Bullmq), row.median(System::Asynq)]).flatten();
    let best = others.min_by(f64::total_cmp);
    let met = own.zip(best).map(|(own, best)| own <= best / 2.0);
    let judge_other = |row: Row| match (row.median(System::Windlass), own) {
        (Some(raw), Some(own)) => {
            let met = raw <= own * 2.0 + RAW_MARGIN;
            row.judged(&format!("≤ 2× after an enqueue + {RAW_MARGIN} ms"), Some(met))
        }
        _ => row,
    };
    let mut rows = rows.into_iter();
    let first = rows.next().map(|row| row.judged("≤ ½ of either peer's", met));
    first.into_iter().chain(rows.map(judge_other)).collect()
}

/// A list that several workers add to.
#[derive(Clone, Default)]
pub(super) struct Collected(Arc<Mutex<Vec<f64>>>);

impl Collected {
    pub(super) fn add(&self, value: f64) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(value);
    }

    pub(super) fn waits(&self) -> Result<Waits> {
        let values = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        Waits::of(values).context("no task was done")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(player: Player, p99: f64) -> (Player, Vec<Waits>) {
        (player, vec![Waits { p50: 0.1, p99, max: 9.0, early: 0 }])
    }

    fn verdict(results: &Results, measure: &str) -> serde_json::Value {
        let rows = judged_rows(results, "x");
        let row = rows.iter().find(|row| row.measure == measure).expect("is there");
        serde_json::to_value(row).expect("a JSON form")["budget"]["met"].clone()
    }

    #[test]
    fn asynq_is_judged_by_its_better_figure() {
        let mut results = vec![
            of(Player::Bare, 0.1),
            of(Player::Windlass, 1.0),
            of(Player::Peer(Peer::Bullmq), 5.0),
            of(Player::Peer(Peer::Asynq), 900.0),
        ];
        assert_eq!(verdict(&results, "x, p99, ms"), true);
        results.push(of(Player::Peer(Peer::AsynqTuned), 1.5));
        assert_eq!(verdict(&results, "x, p99, ms"), false);
        assert_eq!(verdict(&vec![of(Player::Windlass, 1.0)], "x, p99, ms"), serde_json::Value::Null);
    }

    #[test]
    fn a_raw_producer_is_judged_by_what_an_enqueue_takes() {
        let raw = |p99| vec![of(Player::Windlass, 1.5), of(Player::Raw, p99)];
        assert_eq!(verdict(&raw(4.0), "x, p99, ms (after a raw XADD)"), true);
        assert_eq!(verdict(&raw(4.1), "x, p99, ms (after a raw XADD)"), false);
    }

    #[test]
    fn bare_commands_stand_beside_and_asynq_tuned_has_a_line_of_its_own() {
        let results = vec![of(Player::Bare, 0.5), of(Player::Windlass, 1.0), of(Player::Peer(Peer::AsynqTuned), 3.0)];
        let rows = rows(&results, "x", |waits| waits.p99);
        assert_eq!((rows.len(), rows[1].median(System::Asynq)), (2, Some(3.0)));
        assert_eq!(rows[0].median(System::Bare), Some(0.5));
        let main = serde_json::to_value(&rows[0]).expect("a JSON form");
        assert_eq!((&main["ratios"][0]["over"], &main["ratios"][0]["value"]), (&"bare".into(), &2.0.into()));
    }
}
