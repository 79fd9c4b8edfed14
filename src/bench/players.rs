//! Who takes part where waiting times are compared, and how their lines look.

use std::sync::{Arc, Mutex};

use anyhow::{Context, Result};

use super::Bench;
use super::peers::Peer;
use super::report::{Row, System};
use super::stats::Waits;

/// Who takes part; `None` is Windlass.
pub(super) type Player = Option<Peer>;

/// What the runs of each player gave.
pub(super) type Results = Vec<(Player, Vec<Waits>)>;

/// Everybody, with nothing measured yet.
pub(super) fn nobody_yet(bench: &Bench) -> Results {
    players(bench).into_iter().map(|player| (player, Vec::new())).collect()
}

/// Everybody.
pub(super) fn players(bench: &Bench) -> Vec<Player> {
    let mut players = vec![None];
    if bench.peers.is_some() {
        players.extend([Some(Peer::Bullmq), Some(Peer::Asynq), Some(Peer::AsynqTuned)]);
    }
    players
}

/// What a player is called in progress lines.
pub(super) fn name(player: Player) -> &'static str {
    match player {
        None => "windlass",
        Some(Peer::Bullmq) => "BullMQ",
        Some(Peer::Asynq) => "asynq",
        Some(Peer::AsynqTuned) => "asynq, checking every 1 ms",
    }
}

/// A line for all as they are, and one for asynq tuned.
pub(super) fn rows(results: &Results, measure: &str, pick: impl Fn(&Waits) -> f64) -> Vec<Row> {
    let mut main = Row::new(measure);
    let mut tuned = Row::new(format!("{measure} (asynq checking every 1 ms)"));
    for (player, waits) in results {
        let values: Vec<f64> = waits.iter().map(&pick).collect();
        match player {
            None => main = main.value(System::Windlass, &values),
            Some(Peer::Bullmq) => main = main.value(System::Bullmq, &values),
            Some(Peer::Asynq) => main = main.value(System::Asynq, &values),
            Some(Peer::AsynqTuned) => tuned = tuned.value(System::Asynq, &values),
        }
    }
    let main = main.ratio_to(System::Bullmq).ratio_to(System::Asynq);
    if tuned.values.is_empty() { vec![main] } else { vec![main, tuned] }
}

/// Median, p99 and the longest wait, of which p99 has a budget: half of either
/// peer's, asynq's better figure included.
pub(super) fn judged_rows(results: &Results, what: &str) -> Vec<Row> {
    let mut all = rows(results, &format!("{what}, p50, ms"), |waits| waits.p50);
    all.extend(judge(rows(results, &format!("{what}, p99, ms"), |waits| waits.p99)));
    all.extend(rows(results, &format!("{what}, max, ms"), |waits| waits.max));
    all
}

fn judge(rows: Vec<Row>) -> Vec<Row> {
    let own = rows.iter().find_map(|row| row.median(System::Windlass));
    let others = rows.iter().flat_map(|row| [row.median(System::Bullmq), row.median(System::Asynq)]).flatten();
    let best = others.min_by(f64::total_cmp);
    let met = own.zip(best).map(|(own, best)| own <= best / 2.0);
    let mut rows = rows.into_iter();
    let first = rows.next().map(|row| row.judged("≤ ½ of either peer's", met));
    first.into_iter().chain(rows).collect()
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

    #[test]
    fn asynq_is_judged_by_its_better_figure() {
        let mut results = vec![of(None, 1.0), of(Some(Peer::Bullmq), 5.0), of(Some(Peer::Asynq), 900.0)];
        let verdict = |results: &Results| {
            let rows = judged_rows(results, "x");
            let row = rows.iter().find(|row| row.measure == "x, p99, ms").expect("is there");
            serde_json::to_value(row).expect("a JSON form")["budget"]["met"].clone()
        };
        assert_eq!(verdict(&results), true);
        results.push(of(Some(Peer::AsynqTuned), 1.5));
        assert_eq!(verdict(&results), false);
        assert_eq!(verdict(&vec![of(None, 1.0)]), serde_json::Value::Null);
    }

    #[test]
    fn asynq_tuned_has_a_line_of_its_own() {
        let rows = rows(&vec![of(None, 1.0), of(Some(Peer::AsynqTuned), 3.0)], "x", |waits| waits.p99);
        assert_eq!((rows.len(), rows[1].median(System::Asynq)), (2, Some(3.0)));
    }
}
