//! How long each operation holds Redis, which does nothing else meanwhile.
//!
//! Every operation is called alone, again and again, in rounds that do the same.
//! By the clock alone a machine that takes the server off its core would be
//! judged, so a call counts with what [`Hold::most_ms`] leaves of it, and each
//! call of a round with its median over the rounds: what a script takes it takes
//! in every round, and a disturbance hits another call each time.

mod course;

use anyhow::{Context, Result};

use super::Bench;
use super::report::{Row, System, show};
use super::server::Hold;
use super::slow_log::SlowLogs;
use super::stats::Spread;

/// Rounds that are not counted: scripts are loaded in them.
const WARM_UP: usize = 1;
/// Fewer have no median that a disturbance leaves alone.
const FEWEST_ROUNDS: usize = 3;
/// How long any command may hold the server.
const MOST_MS: f64 = 2.0;

/// What the table cannot say by itself.
pub(super) const NOTES: [&str; 1] = [
    "\"Holds Redis\": the longest command of any call of the operation, each made alone. A call counts with what its \
     longest command took by the clock, or with the server's CPU time for all of it where that is less; and with its \
     median over rounds that do the same. \"By the clock\" is the worst that was seen at all.",
];

/// What the calls of each operation took, by operation and then by round.
#[derive(Default)]
struct Book {
    operations: Vec<(&'static str, Vec<Vec<Hold>>)>,
    round: usize,
}

impl Book {
    fn add(&mut self, operation: &'static str, hold: Hold) {
        let place = self.operations.iter().position(|(name, _)| *name == operation).unwrap_or_else(|| {
            self.operations.push((operation, Vec::new()));
            self.operations.len() - 1
        });
        let rounds = &mut self.operations[place].1;
        rounds.resize_with(rounds.len().max(self.round + 1), Vec::new);
        rounds[self.round].push(hold);
    }
}

/// Steps that [`measure`] will report.
pub(super) fn steps(bench: &Bench) -> usize {
    rounds(bench)
}

fn rounds(bench: &Bench) -> usize {
    WARM_UP + bench.settings.runs.max(FEWEST_ROUNDS)
}

/// Measures.
pub(super) async fn measure(bench: &mut Bench) -> Result<Vec<Row>> {
    let mut book = Book::default();
    for round in 0..rounds(bench) {
        bench.progress(&format!("what holds Redis, round {}", round + 1));
        if round == WARM_UP {
            book = Book::default();
        }
        book.round = round.saturating_sub(WARM_UP);
        bench.server.flush().await?;
        bench.server.log_for_alone().await?;
        course::batches(bench, &mut book).await.context("calls with batches failed")?;
        course::lanes(bench, &mut book).await.context("calls among many lanes failed")?;
        course::bare(bench, &mut book).await.context("bare commands failed")?;
    }
    Ok(rows(&book))
}

fn rows(book: &Book) -> Vec<Row> {
    let (bare, own): (Vec<_>, Vec<_>) = book.operations.iter().partition(|(name, _)| *name == course::BARE);
    let row = |who: System, (name, rounds): &(&str, Vec<Vec<Hold>>)| {
        let row = Row::new(format!("holds Redis, {name}, ms")).value(who, &[worst(rounds)]);
        row.note(Some(beside(rounds)))
    };
    let mut rows: Vec<Row> = own.iter().map(|operation| judged(row(System::Windlass, operation))).collect();
    let longest = own.iter().map(|(name, rounds)| (name, worst(rounds))).max_by(|a, b| a.1.total_cmp(&b.1));
    rows.extend(longest.map(|(name, worst)| {
        let row = Row::new("holds Redis, longest of all, ms").value(System::Windlass, &[worst]);
        judged(row.note(Some((*name).to_owned())))
    }));
    rows.extend(bare.iter().map(|operation| row(System::Bare, operation)));
    let mut slow = SlowLogs::default();
    for (who, operations) in [(System::Windlass, &own), (System::Bare, &bare)] {
        let holds = operations.iter().flat_map(|(_, rounds)| rounds.iter().flatten());
        holds.for_each(|hold| slow.add(who, hold.slow.clone()));
    }
    rows.push(slow.row("each operation alone"));
    rows
}

fn judged(row: Row) -> Row {
    let met = row.median(System::Windlass).map(|worst| worst <= MOST_MS);
    row.judged("≤ 2 ms", met)
}

/// The longest call of a round, each by its median over the rounds.
fn worst(rounds: &[Vec<Hold>]) -> f64 {
    let calls = rounds.iter().map(Vec::len).max().unwrap_or(0);
    let median = |call: usize| {
        let same: Vec<f64> = rounds.iter().filter_map(|round| Some(round.get(call)?.most_ms())).collect();
        Spread::of(&same).map(|spread| spread.median)
    };
    (0..calls).filter_map(median).fold(0.0, f64::max)
}

/// What is said beside the worst.
fn beside(rounds: &[Vec<Hold>]) -> String {
    let all: Vec<&Hold> = rounds.iter().flatten().collect();
    let mean = all.iter().map(|hold| hold.most_ms()).sum::<f64>() / all.len().max(1) as f64;
    let clock = all.iter().map(|hold| hold.clock_ms).fold(0.0, f64::max);
    format!("mean {} of {} calls, by the clock at worst {}", show(mean), show(all.len() as f64), show(clock))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(clock_ms: f64, cpu_ms: f64) -> Hold {
        Hold { clock_ms, cpu_ms, ..Hold::default() }
    }

    #[test]
    fn a_call_counts_with_what_the_machine_did_not_add() {
        assert_eq!(hold(9.0, 0.5).most_ms(), 0.5, "off its core for 8.5 ms");
        assert_eq!(hold(0.4, 3.0).most_ms(), 0.4, "the longest of several commands");
        assert_eq!(hold(0.4, 0.0).most_ms(), 0.4, "a clock that counts in ticks");
    }

    #[test]
    fn a_disturbance_is_not_the_worst_call_and_a_slow_script_is() {
        let slow_second = |first, second| vec![hold(first, first), hold(second, second)];
        let rounds = [slow_second(0.1, 2.5), slow_second(30.0, 2.4), slow_second(0.2, 2.6)];
        assert_eq!(worst(&rounds), 2.5);
        assert_eq!(beside(&rounds), "mean 6.30 of 6 calls, by the clock at worst 30");
    }

    #[test]
    fn operations_are_judged_one_by_one_and_bare_commands_are_not() {
        let mut book = Book::default();
        for round in 0..3 {
            book.round = round;
            book.add("fine", hold(1.9, 1.9));
            book.add("too long", hold(2.1, 2.1));
            book.add(course::BARE, hold(5.0, 5.0));
        }
        let rows: Vec<_> = rows(&book).iter().map(|row| serde_json::to_value(row).expect("a JSON form")).collect();
        let verdicts: Vec<_> = rows.iter().map(|row| row["budget"]["met"].as_bool()).collect();
        assert_eq!(verdicts, [Some(true), Some(false), Some(false), None, Some(true)]);
        assert_eq!((&rows[2]["note"], &rows[3]["values"]["bare"]["median"]), (&"too long".into(), &5.0.into()));
    }
}
