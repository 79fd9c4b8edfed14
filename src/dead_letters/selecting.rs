//! Which dead letters are meant.

use std::collections::HashSet;

use super::{DeadLetters, PATIENCE, Result};
use crate::broker::patience::patiently;
use crate::broker::{ListCursor, MAX_BATCH};
use crate::event_log::{Brief, DeadLetterFilter, EventLog, MAX_PAGE, Verdict};
use crate::protocol::names::DeadLetterId;

/// Which dead letters are meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Selection {
    /// These.
    Ids(Vec<DeadLetterId>),
    /// Those that the filter lets through; where it does not ask for a decision, those
    /// that nobody has decided on.
    Matching(DeadLetterFilter),
}

/// Whether anything is done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Run {
    /// It is.
    #[default]
    Real,
    /// Nothing is changed; the outcomes say what would be done.
    Dry,
}

/// A dead letter that is meant.
pub(super) enum Candidate {
    /// It is there.
    Known(Brief),
    /// It was named, and is not there (any more).
    Unknown(DeadLetterId),
}

impl Candidate {
    pub(super) fn id(&self) -> &DeadLetterId {
        match self {
            Self::Known(brief) => &brief.id,
            Self::Unknown(id) => id,
        }
    }
}

impl DeadLetters {
    /// What is meant, the oldest first (or as named), at most `limit`. What dies
    /// while the list is worked through is not on it, so a replay that dies at once is
    /// not replayed again by the same call.
    pub(super) async fn select(&self, selection: &Selection, limit: Option<usize>) -> Result<Vec<Candidate>> {
        let limit = limit.unwrap_or(usize::MAX);
        match selection {
            Selection::Ids(ids) => self.named(ids, limit).await,
            Selection::Matching(filter) => {
                let mut filter = filter.clone();
                filter.decision.get_or_insert(Verdict::Open);
                let mut found = match &self.log {
                    Some(log) => self.briefs(log, &filter).await?,
                    None => self.walk(&filter).await?,
                };
                // Both walks begin with the newest.
                found.reverse();
                found.truncate(limit);
                Ok(found.into_iter().map(Candidate::Known).collect())
            }
        }
    }

    async fn named(&self, ids: &[DeadLetterId], limit: usize) -> Result<Vec<Candidate>> {
        let (mut seen, mut found) = (HashSet::new(), Vec::new());
        for id in ids.iter().filter(|id| seen.insert(*id)).take(limit) {
            let there = patiently(PATIENCE, || self.broker.dead_letter(id)).await?;
            found.push(match there {
                Some(view) => Candidate::Known(Brief {
                    id: id.clone(),
                    replay_of: view.letter.replay_of(),
                    decision: Verdict::from(&view.review),
                    created_at: view.letter.created_at,
                }),
                None => Candidate::Unknown(id.clone()),
            });
        }
        Ok(found)
    }

    async fn briefs(&self, log: &EventLog, filter: &DeadLetterFilter) -> Result<Vec<Brief>> {
        let (mut found, mut cursor) = (Vec::new(), Some(ListCursor::default()));
        while let Some(from) = cursor {
            let page = log.dead_letter_briefs(&self.queue, filter, from, MAX_PAGE).await?;
            found.extend(page.items);
            cursor = page.next;
        }
        Ok(found)
    }

    async fn walk(&self, filter: &DeadLetterFilter) -> Result<Vec<Brief>> {
        let (mut found, mut cursor) = (Vec::new(), Some(ListCursor::default()));
        while let Some(from) = cursor {
            let page = patiently(PATIENCE, || self.broker.dead_letters(from.clone(), MAX_BATCH)).await?;
            for view in page.items {
                let decision = Verdict::from(&view.review);
                if filter.lets_through(&view.letter, decision) {
                    let replay_of = view.letter.replay_of();
                    found.push(Brief { id: view.letter.id, replay_of, decision, created_at: view.letter.created_at });
                }
            }
            cursor = page.next;
        }
        Ok(found)
    }
}
