//! What there is: causes, lists, single dead letters.

use std::collections::{BTreeMap, HashMap};

use super::{Cause, DeadLetterFilter, DeadLetters, Entry, PATIENCE, Result};
use crate::broker::patience::patiently;
use crate::broker::{DeadLetterView, Decision, ListCursor, MAX_BATCH, Page};
use crate::event_log::{EventLog, RecordedReview, Verdict};
use crate::protocol::fingerprint::Fingerprint;
use crate::protocol::names::{DeadLetterId, TenantId};

impl DeadLetters {
    /// Dead letters by cause, the commonest first.
    pub async fn causes(&self, filter: &DeadLetterFilter, cursor: ListCursor, limit: usize) -> Result<Page<Cause>> {
        match &self.log {
            Some(log) => Ok(log.causes(&self.queue, filter, cursor, limit).await?),
            None => self.causes_by_walking(filter, &cursor, limit).await,
        }
    }

    /// Dead letters, the newest first. A page may be short though more follow.
    pub async fn list(&self, filter: &DeadLetterFilter, cursor: ListCursor, limit: usize) -> Result<Page<Entry>> {
        match &self.log {
            Some(log) => self.list_recorded(log, filter, cursor, limit).await,
            None => self.list_by_walking(filter, cursor, limit).await,
        }
    }

    /// One dead letter: as the queue has it, or as the event log remembers it.
    pub async fn show(&self, id: &DeadLetterId) -> Result<Option<Entry>> {
        if let Some(view) = patiently(PATIENCE, || self.broker.dead_letter(id)).await? {
            return Ok(Some(view.into()));
        }
        let Some(log) = &self.log else { return Ok(None) };
        let Some(found) = log.dead_letter(&self.queue, id).await? else { return Ok(None) };
        let said = log.reviews(&self.queue, id).await?;
        Ok(Some(Entry::recorded(found, &said.iter().map(|said| &said.decision).collect::<Vec<_>>())))
    }

    async fn list_recorded(
        &self,
        log: &EventLog,
        filter: &DeadLetterFilter,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<Page<Entry>> {
        let page = log.dead_letters(&self.queue, filter, cursor, limit).await?;
        let ids: Vec<_> = page.items.iter().map(|found| found.letter.id.clone()).collect();
        let reviews = log.reviews_of(&self.queue, &ids).await?;
        let mut said: HashMap<&DeadLetterId, Vec<&Decision>> = HashMap::new();
        for RecordedReview { decision, .. } in &reviews {
            said.entry(&decision.dead_letter).or_default().push(decision);
        }
        let entry = |found| {
            let about: &crate::event_log::RecordedDeadLetter = &found;
            let said = said.get(&about.letter.id).map_or(&[][..], Vec::as_slice);
            Entry::recorded(found, said)
        };
        Ok(Page { items: page.items.into_iter().map(entry).collect(), next: page.next })
    }

    async fn list_by_walking(
        &self,
        filter: &DeadLetterFilter,
        cursor: ListCursor,
        limit: usize,
    ) -> Result<Page<Entry>> {
        let (mut items, mut cursor) = (Vec::new(), Some(cursor));
        // What the filter holds back makes no empty page.
        while let Some(from) = cursor.take_if(|_| items.is_empty()) {
            let page = self.page(from, limit).await?;
            let matching = |view: &DeadLetterView| filter.lets_through(&view.letter, Verdict::from(&view.review));
            items.extend(page.items.into_iter().filter(matching).map(Entry::from));
            cursor = page.next;
        }
        Ok(Page { items, next: cursor })
    }

    async fn page(&self, from: ListCursor, limit: usize) -> Result<Page<DeadLetterView>> {
        let limit = limit.clamp(1, MAX_BATCH);
        Ok(patiently(PATIENCE, || self.broker.dead_letters(from.clone(), limit)).await?)
    }

    async fn causes_by_walking(
        &self,
        filter: &DeadLetterFilter,
        cursor: &ListCursor,
        limit: usize,
    ) -> Result<Page<Cause>> {
        let mut groups: HashMap<Fingerprint, Group> = HashMap::new();
        let mut from = Some(ListCursor::default());
        while let Some(place) = from {
            let page = self.page(place, MAX_BATCH).await?;
            for view in page.items {
                if filter.lets_through(&view.letter, Verdict::from(&view.review)) {
                    add(&mut groups, view);
                }
            }
            from = page.next;
        }
        let mut causes: Vec<Cause> = groups.into_values().map(Group::cause).collect();
        causes.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.fingerprint.cmp(&b.fingerprint)));
        let place = |cause: &Cause| format!("{}/{}", cause.count, cause.fingerprint);
        let begin = causes.iter().position(|cause| place(cause) == cursor.0).map_or(0, |at| at + 1);
        let mut items = causes.split_off(begin);
        let more = items.len() > limit.max(1);
        items.truncate(limit.max(1));
        let next = items.last().filter(|_| more).map(|last| ListCursor(place(last)));
        Ok(Page { items, next })
    }
}

/// A cause as it adds up.
struct Group {
    cause: Cause,
    tenants: BTreeMap<TenantId, u64>,
}

/// Adds a letter that is older than those before it.
fn add(groups: &mut HashMap<Fingerprint, Group>, view: DeadLetterView) {
    let open = u64::from(Verdict::from(&view.review) == Verdict::Open);
    let (fingerprint, letter) = (view.letter.fingerprint(), view.letter);
    let group = groups.entry(fingerprint.clone()).or_insert_with(|| Group {
        cause: Cause {
            fingerprint,
            count: 0,
            open: 0,
            task_type: letter.task_type,
            error_code: letter.error_code,
            sample_error: letter.error,
            sample_id: letter.id,
            tenants: Vec::new(),
            tenant_count: 0,
            first_failed_at: letter.failed_at,
            last_failed_at: letter.failed_at,
        },
        tenants: BTreeMap::new(),
    });
    group.cause.count += 1;
    group.cause.open += open;
    group.cause.first_failed_at = group.cause.first_failed_at.min(letter.failed_at);
    group.cause.last_failed_at = group.cause.last_failed_at.max(letter.failed_at);
    if let Some(tenant) = letter.tenant_id {
        *group.tenants.entry(tenant).or_default() += 1;
    }
}

impl Group {
    fn cause(self) -> Cause {
        let tenant_count = self.tenants.len() as u64;
        let mut tenants: Vec<_> = self.tenants.into_iter().collect();
        tenants.sort_by(|(a, m), (b, n)| n.cmp(m).then_with(|| a.cmp(b)));
        let tenants = tenants.into_iter().map(|(tenant, _)| tenant).take(Cause::MAX_TENANTS).collect();
        Cause { tenants, tenant_count, ..self.cause }
    }
}
