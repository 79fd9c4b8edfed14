//! Dead letters that the queue has and the event log has not.

use std::collections::HashMap;

use super::LETTERS;
use crate::broker::{DeadLetterView, Decision, DecisionAction, ListCursor, OutboxEntry, QueueCounts, Review, Voice};
use crate::event_log::{DeadLetterFilter, EventLog, EventLogError, Verdict};
use crate::maintenance::{ChoreError, Queue};
use crate::protocol::names::DeadLetterId;

/// What became of a page of the queue's dead letters.
pub(super) struct Brought {
    /// How many the log lacked.
    pub brought: usize,
    /// Where the next page begins.
    pub next: Option<ListCursor>,
    /// The last one that the log does not take.
    pub refused: Option<ChoreError>,
}

/// Whether the queue has more dead letters that wait for a decision than the log knows: a letter is in the log before
/// it is in the queue, and its decision is in the queue before it is in the log.
pub(super) async fn is_wanted(queue: &Queue, log: &EventLog, counts: &QueueCounts) -> Result<bool, ChoreError> {
    let open = DeadLetterFilter { decision: Some(Verdict::Open), ..DeadLetterFilter::default() };
    Ok(counts.dead_lettered > 0 && log.count_dead_letters(&queue.name, &open).await? < counts.dead_lettered)
}

/// Writes those of a page to the log that it lacks, with what was said about them.
pub(super) async fn page(queue: &Queue, log: &EventLog, from: ListCursor) -> Result<Brought, ChoreError> {
    let page = queue.broker.dead_letters(from, LETTERS).await?;
    let (mut brought, mut refused) = (0, None);
    for view in lacking(queue, log, page.items).await? {
        match bring(queue, log, &view).await {
            Ok(()) => brought += 1,
            Err(error @ ChoreError::NotTaken { .. }) => refused = Some(error),
            Err(error) => return Err(error),
        }
    }
    Ok(Brought { brought, next: page.next, refused })
}

async fn lacking(
    queue: &Queue,
    log: &EventLog,
    mut views: Vec<DeadLetterView>,
) -> Result<Vec<DeadLetterView>, ChoreError> {
    if views.is_empty() {
        return Ok(views);
    }
    let ids = views.iter().map(|view| view.letter.id.clone()).collect();
    let filter = DeadLetterFilter { ids, ..DeadLetterFilter::default() };
    let known = log.dead_letter_briefs(&queue.name, &filter, ListCursor::default(), LETTERS).await?.items;
    let known: HashMap<_, _> = known.into_iter().map(|brief| (brief.id, brief.created_at)).collect();
    // An older one of the same name is about an earlier task of that id.
    views.retain(|view| known.get(&view.letter.id).is_none_or(|created_at| *created_at < view.letter.created_at));
    Ok(views)
}

async fn bring(queue: &Queue, log: &EventLog, view: &DeadLetterView) -> Result<(), ChoreError> {
    let id = &view.letter.id;
    let refused = |error| match error {
        error @ (EventLogError::Unexpected { .. } | EventLogError::Invalid(_)) => {
            ChoreError::NotTaken { letter: id.clone(), error }
        }
        error => error.into(),
    };
    log.record_dead_letter(&queue.name, &view.letter).await.map_err(refused)?;
    // Asked for again: what is decided from here on comes with the outbox, and finds the row.
    let Some(now) = queue.broker.dead_letter(id).await? else { return Ok(()) };
    let decisions = said(id, now.review);
    if !decisions.is_empty() {
        log.record(&queue.name, &OutboxEntry { decisions, ..OutboxEntry::default() }).await?;
    }
    Ok(())
}

/// What was said about a dead letter, as the outbox tells it.
fn said(id: &DeadLetterId, review: Review) -> Vec<Decision> {
    let of = |action, voice: Voice, new_task| {
        let Voice { person, reason, at } = voice;
        Decision { dead_letter: id.clone(), action, person, reason, new_task, at }
    };
    match review {
        Review::Open => Vec::new(),
        Review::DiscardRequested(voice) => vec![of(DecisionAction::DiscardRequested, voice, None)],
        Review::Replayed { task, by } => vec![of(DecisionAction::Replayed, by, Some(task))],
        Review::Discarded { by, requested } => {
            let requested = requested.map(|voice| of(DecisionAction::DiscardRequested, voice, None));
            requested.into_iter().chain([of(DecisionAction::Discarded, by, None)]).collect()
        }
    }
}
