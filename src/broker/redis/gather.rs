//! Enqueues that come while another one is under way go together in the next.
//!
//! A call costs Redis more than a task in it. So at most one enqueue of a
//! client is under way at a time; what other callers want meanwhile is sent in
//! one call as soon as it is answered. A caller that is alone never waits.
//!
//! One of the callers sends for all that wait, and then passes the turn on. A
//! caller may be dropped at any moment: the turn is a value that passes itself
//! on when it is dropped, and those whose sender has gone send for themselves,
//! which is safe, because an enqueue can be repeated.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::broker::{BrokerError, Enqueued, MAX_BATCH, Result};
use crate::protocol::task::NewTask;

/// Above this many tasks a call gains nothing by company.
const LARGE_CALL: usize = MAX_BATCH / 2;
/// The most payload bytes that go together.
const MAX_BYTES: usize = 256 << 10;

/// The enqueues of one client.
#[derive(Default)]
pub(super) struct Gather {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_sending: bool,
    waiting: VecDeque<Waiting>,
}

/// A caller that waits, and what it wants.
struct Waiting {
    tasks: Vec<NewTask>,
    bytes: usize,
    told: oneshot::Sender<Told>,
}

/// What a caller that waits is told.
enum Told {
    /// Its tasks were sent; this is the answer.
    Answer(Result<Vec<Enqueued>>),
    /// Somebody's task was refused, and nothing was changed: send yours alone.
    SendAlone,
    /// It is your turn to send.
    YourTurn(Turn),
}

/// The right to send. Dropped, it goes to the next that waits.
struct Turn(Arc<Gather>);

impl Drop for Turn {
    fn drop(&mut self) {
        let next = {
            let mut state = self.0.lock();
            loop {
                match state.waiting.pop_front() {
                    Some(waiting) if waiting.told.is_closed() => {}
                    Some(waiting) => break waiting,
                    None => {
                        state.is_sending = false;
                        return;
                    }
                }
            }
        };
        // One that has just gone drops the turn, which then passes on from there.
        drop(next.told.send(Told::YourTurn(Turn(self.0.clone()))));
    }
}

/// What a caller does next.
enum Step {
    Send(Turn),
    Wait(oneshot::Receiver<Told>),
}

fn payload_bytes(tasks: &[NewTask]) -> usize {
    tasks.iter().map(|task| task.payload.as_str().len()).sum()
}

impl Gather {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("invariant: no panic while held")
    }

    fn step(self: &Arc<Self>, tasks: &[NewTask]) -> Step {
        let mut state = self.lock();
        if !state.is_sending {
            state.is_sending = true;
            return Step::Send(Turn(self.clone()));
        }
        let (told, receiver) = oneshot::channel();
        state.waiting.push_back(Waiting { tasks: tasks.to_vec(), bytes: payload_bytes(tasks), told });
        Step::Wait(receiver)
    }

    /// Takes those that wait, in their order, as long as they fit beside `tasks`.
    fn company(&self, tasks: &[NewTask]) -> Vec<Waiting> {
        let (mut number, mut bytes) = (tasks.len(), payload_bytes(tasks));
        let mut state = self.lock();
        let mut company = Vec::new();
        while let Some(next) = state.waiting.front() {
            if number + next.tasks.len() > MAX_BATCH || bytes + next.bytes > MAX_BYTES {
                break;
            }
            number += next.tasks.len();
            bytes += next.bytes;
            company.extend(state.waiting.pop_front().filter(|waiting| !waiting.told.is_closed()));
        }
        company
    }
}

impl super::RedisBroker {
    /// Enqueues, in company where others want to.
    pub(super) async fn enqueue_together(&self, tasks: &[NewTask]) -> Result<Vec<Enqueued>> {
        if tasks.len() > LARGE_CALL {
            return self.enqueue_alone(tasks).await;
        }
        let turn = match self.gather.step(tasks) {
            Step::Send(turn) => turn,
            Step::Wait(told) => match told.await {
                Ok(Told::Answer(answer)) => return answer,
                Ok(Told::YourTurn(turn)) => turn,
                // Nothing was changed, or nobody knows: its sender was dropped on the way.
                Ok(Told::SendAlone) | Err(_) => return self.enqueue_alone(tasks).await,
            },
        };
        // Others that are about to ask come along: those that were answered just now often are.
        tokio::task::yield_now().await;
        let company = self.gather.company(tasks);
        let answer =
            if company.is_empty() { self.enqueue_alone(tasks).await } else { self.enqueue_for(tasks, company).await };
        drop(turn);
        answer
    }

    /// Sends one call for all, and tells each its part of the answer.
    async fn enqueue_for(&self, tasks: &[NewTask], mut company: Vec<Waiting>) -> Result<Vec<Enqueued>> {
        let mut all = tasks.to_vec();
        let numbers: Vec<usize> = company.iter().map(|waiting| waiting.tasks.len()).collect();
        all.extend(company.iter_mut().flat_map(|waiting| waiting.tasks.drain(..)));
        match self.enqueue_alone(&all).await {
            Ok(answers) => {
                let mut answers = answers.into_iter();
                let mine = answers.by_ref().take(tasks.len()).collect();
                for (waiting, number) in company.into_iter().zip(numbers) {
                    let part = answers.by_ref().take(number).collect();
                    drop(waiting.told.send(Told::Answer(Ok(part))));
                }
                Ok(mine)
            }
            Err(BrokerError::Invalid(_)) => {
                for waiting in company {
                    drop(waiting.told.send(Told::SendAlone));
                }
                self.enqueue_alone(tasks).await
            }
            Err(error) => {
                for waiting in company {
                    drop(waiting.told.send(Told::Answer(Err(error.clone()))));
                }
                Err(error)
            }
        }
    }
}
