//! Runs sequences, several at a time, and makes those that fail shorter.

use std::any::Any;
use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::panic::AssertUnwindSafe;

use futures::{FutureExt, StreamExt, stream};
use redis::aio::MultiplexedConnection;

use super::compare::{Difference, beginning};
use super::draw::Draw;
use super::step::{Situation, Step};
use super::tally::Tally;
use super::twins::{Target, Twins};

/// Seeds that once failed.
const REGRESSIONS: &str = include_str!("../property_regressions.txt");

/// How many sequences run at a time.
const AT_A_TIME: usize = 8;

/// How often a failing sequence is run again to make it shorter.
const MOST_TRIES: usize = 150;

/// How long sequences are, and how much one step does.
pub(crate) struct Shape {
    pub(crate) steps: RangeInclusive<usize>,
    /// By how much batches are larger than what people do by hand.
    pub(crate) bulk: usize,
    /// So many tasks and dead letters are looked at after each step; all are at the end.
    pub(crate) looks: usize,
}

/// A sequence that showed a difference.
struct Failure {
    steps: Vec<Step>,
    /// Which steps of the whole sequence those are.
    numbers: Vec<usize>,
    difference: Box<Difference>,
}

/// Runs the regressions, then so many sequences from `first` on; panics with a report on the first that fails.
pub(crate) async fn hold(target: &Target<'_>, shape: &Shape, first: u64, cases: u64) -> Tally {
    let set = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect("a number"));
    let (own_first, own_cases) = (set("WINDLASS_PROPERTY_SEED"), set("WINDLASS_PROPERTY_CASES"));
    let (first, cases) = (own_first.unwrap_or(first), own_cases.unwrap_or(cases));
    let connection = target.connect().await;
    let seeds = regressions().into_iter().chain((0..cases).map(|n| first.wrapping_add(n)));
    let runs = stream::iter(seeds).map(|seed| {
        let sequence = Sequence { target, shape, seed, connection: connection.clone() };
        async move { (sequence.run(&sequence.all_steps()).await, sequence) }
    });
    let mut runs = runs.buffer_unordered(AT_A_TIME);
    let mut all = Tally::default();
    all.partial = own_first.is_some() || own_cases.is_some();
    while let Some((outcome, sequence)) = runs.next().await {
        match outcome {
            Ok(tally) => all.add(tally),
            Err(failure) => {
                drop(runs);
                let before = failure.steps.len();
                panic!("{}", sequence.report(&sequence.shorten(failure).await, before));
            }
        }
    }
    all
}

fn regressions() -> Vec<u64> {
    let lines = REGRESSIONS.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).map(|line| line.parse().expect("a seed a line")).collect()
}

struct Sequence<'a> {
    target: &'a Target<'a>,
    shape: &'a Shape,
    seed: u64,
    connection: MultiplexedConnection,
}

impl Sequence<'_> {
    fn all_steps(&self) -> Vec<usize> {
        let count = Draw::of_step(self.seed, usize::MAX - 1).between(self.shape.steps.clone());
        (0..count).collect()
    }

    /// Runs these steps of the sequence on a fresh queue.
    async fn run(&self, numbers: &[usize]) -> Result<Tally, Failure> {
        let mut twins = Twins::new(self.target, self.connection.clone());
        let mut steps = Vec::new();
        let outcome = AssertUnwindSafe(self.run_on(&mut twins, numbers, &mut steps)).catch_unwind().await;
        let outcome = outcome.unwrap_or_else(|panic| Err(Box::new(Difference::panic(message(&*panic)))));
        twins.clear().await;
        match outcome {
            Ok(()) => Ok(twins.tally.of_one_sequence(steps.len())),
            Err(difference) => Err(Failure { numbers: numbers[..steps.len()].to_vec(), steps, difference }),
        }
    }

    async fn run_on(&self, twins: &mut Twins, numbers: &[usize], steps: &mut Vec<Step>) -> Result<(), Box<Difference>> {
        for &number in numbers {
            let mut draw = Draw::of_step(self.seed, number);
            let (known, now_ms, bulk) = (&twins.known, twins.now_ms(), self.shape.bulk);
            steps.push(Step::draw(&mut draw, &Situation { known, number, now_ms, bulk }));
            twins.apply(steps.last().expect("it was just added")).await?;
            let ids = draw.some(twins.known.ids(), self.shape.looks);
            twins.compare(&ids, self.shape.looks).await?;
        }
        twins.compare_rest(7 * self.shape.bulk).await?;
        twins.sweep().await?;
        let all = twins.known.ids().to_vec();
        twins.compare(&all, usize::MAX).await
    }

    /// Leaves out steps, many at a time and then one by one, as long as what is left fails.
    async fn shorten(&self, mut failure: Failure) -> Failure {
        let (mut tries, mut size) = (0, failure.numbers.len().div_ceil(2));
        while size > 0 {
            let mut end = failure.numbers.len();
            while end > 0 && tries < MOST_TRIES {
                let start = end.saturating_sub(size);
                let without: Vec<_> = [&failure.numbers[..start], &failure.numbers[end..]].concat();
                tries += 1;
                if let Err(shorter) = self.run(&without).await {
                    failure = shorter;
                    end = start.min(failure.numbers.len());
                } else {
                    end = start;
                }
            }
            size /= 2;
        }
        failure
    }

    fn report(&self, failure: &Failure, before: usize) -> String {
        const LAST: usize = 40;
        let Failure { steps, difference, .. } = failure;
        let mut report = format!(
            "the sequence with seed {} shows a difference in {} after {before} steps; of these, {} are enough:\n",
            self.seed,
            difference.what,
            steps.len()
        );
        for step in &steps[steps.len().saturating_sub(LAST)..] {
            writeln!(report, "  {}", beginning(&step.to_string(), 600)).expect("writing to a string cannot fail");
        }
        format!("{report}{difference}add this seed to tests/property_regressions.txt")
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without words")
}
