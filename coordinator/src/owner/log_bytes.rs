//! Bytes that each tenant's runs take in one shard of the log. The count is derived: a snapshot holds it as of the
//! snapshot's position, and later entries are counted as they are applied. So a takeover reads nothing for it.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use proto::subject::SubjectKind;
use run::{Command, Entry, Event, RunId, TenantId, Timestamp};

use super::OwnerTask;
use crate::nats::setup::RETENTION;
use crate::quotas::Quotas;
use crate::shards::every;

/// Entries leave the log by their age, so bytes are counted by the span of time in which they were stored. Old spans
/// are merged into longer ones, which last at most as long as they are old, so that a snapshot is small: at most some
/// 40 a tenant. Each length of a span divides the next.
const SPANS: [Span; 5] = [
    Span { length: Duration::from_secs(10), until: Duration::from_secs(2 * 60) },
    Span { length: Duration::from_secs(60), until: Duration::from_secs(10 * 60) },
    Span { length: Duration::from_secs(5 * 60), until: Duration::from_secs(60 * 60) },
    Span { length: Duration::from_secs(30 * 60), until: Duration::from_secs(6 * 60 * 60) },
    Span { length: Duration::from_secs(3 * 60 * 60), until: Duration::MAX },
];
/// The most tenants whose bytes are in a snapshot, those with the most bytes: about 150 KiB beside the open runs. After
/// a takeover the others are counted from zero.
const TENANTS_MAX: usize = 512;

/// The bytes of each tenant, by the begin of the span of time.
#[derive(Debug, Default)]
pub(super) struct LogBytes(HashMap<TenantId, BTreeMap<Timestamp, u64>>);

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The begin of the span with a time.
fn begin(at: Timestamp, span: Duration) -> Timestamp {
    Timestamp(at.0 / millis(span) * millis(span))
}

/// How long a span is, and how old.
struct Span {
    length: Duration,
    until: Duration,
}

/// The latest end of a span that begins here: a long span begins where a short one may begin, too.
fn latest_end(begins: Timestamp) -> Timestamp {
    let longest = SPANS.iter().rev().find(|span| begin(begins, span.length) == begins);
    begins.after(longest.map_or(SPANS[0].length, |span| span.length))
}

/// The begin of the span into which one with this begin is merged by now.
fn merged(begins: Timestamp, now: Timestamp) -> Timestamp {
    let span = SPANS.iter().find(|span| now.since(begins) < span.until).unwrap_or(&SPANS[0]);
    begin(begins, span.length)
}

impl LogBytes {
    pub(super) fn of(listed: Vec<(TenantId, Vec<(Timestamp, u64)>)>) -> Self {
        Self(listed.into_iter().map(|(tenant, spans)| (tenant, spans.into_iter().collect())).collect())
    }

    /// The tenants with the most bytes, each with its bytes by span.
    pub(super) fn list(&self) -> Vec<(TenantId, Vec<(Timestamp, u64)>)> {
        let mut tenants: Vec<_> =
            self.0.iter().map(|(tenant, spans)| (spans.values().sum::<u64>(), tenant, spans)).collect();
        tenants.sort_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
        tenants.truncate(TENANTS_MAX);
        let spans_of = |spans: &BTreeMap<Timestamp, u64>| spans.iter().map(|(span, bytes)| (*span, *bytes)).collect();
        tenants.into_iter().map(|(_, tenant, spans)| (tenant.clone(), spans_of(spans))).collect()
    }

    pub(super) fn add(&mut self, tenant: &TenantId, at: Timestamp, bytes: u64) {
        let spans = match self.0.get_mut(tenant) {
            Some(spans) => spans,
            None => self.0.entry(tenant.clone()).or_default(),
        };
        *spans.entry(begin(at, SPANS[0].length)).or_default() += bytes;
    }

    /// Subtracts the bytes of an erased run that began at `since`.
    pub(super) fn release(&mut self, tenant: &TenantId, since: Timestamp, mut bytes: u64) {
        let spans = self
            .0
            .get_mut(tenant)
            .into_iter()
            .flat_map(|spans| spans.range_mut(begin(since, SPANS[SPANS.len() - 1].length)..));
        for (_, stored) in spans {
            let released = bytes.min(*stored);
            *stored -= released;
            bytes -= released;
        }
    }

    /// Removes spans that the log has dropped, whose oldest entry is of the time `oldest`, and merges old ones.
    pub(super) fn expire(&mut self, now: Timestamp, oldest: Timestamp) {
        let oldest = oldest.max(now.before(RETENTION));
        self.0.retain(|_, spans| {
            let mut next = None;
            let mut kept = BTreeMap::new();
            for (begins, bytes) in std::mem::take(spans).into_iter().rev() {
                let end =
                    next.replace(begins).map_or(latest_end(begins), |next: Timestamp| next.min(latest_end(begins)));
                if end > oldest && bytes > 0 {
                    *kept.entry(merged(begins, now)).or_default() += bytes;
                }
            }
            *spans = kept;
            !spans.is_empty()
        });
    }

    pub(super) fn totals(&self) -> impl Iterator<Item = (&TenantId, u64)> {
        self.0.iter().map(|(tenant, spans)| (tenant, spans.values().sum()))
    }
}

/// Subtracts an entry from what a tenant may still write. Returns whether nothing is left.
pub(super) fn spend(left: &mut HashMap<TenantId, u64>, tenant: &TenantId, bytes: u64, quotas: &Quotas) -> bool {
    let left = match left.get_mut(tenant) {
        Some(left) => left,
        None => left.entry(tenant.clone()).or_insert_with(|| quotas.log_left(tenant)),
    };
    *left = left.saturating_sub(bytes);
    *left == 0
}

impl OwnerTask {
    /// Reports to the quotas what tenants have in the log of our shards, and receives how much more they may write.
    pub(super) fn count_log_bytes(&mut self) {
        if !self.io.quotas.counts_log() {
            return;
        }
        let now = ::nats::now();
        let mut totals: HashMap<TenantId, u64> = HashMap::new();
        let slices = self.slices.iter_mut().zip(self.owner.shards()).zip(every());
        for ((slice, _), shard) in slices.filter(|((_, state), _)| state.phase().leads()) {
            slice.log_bytes.expire(now, self.io.journals.of_shard(shard).oldest());
            for (tenant, bytes) in slice.log_bytes.totals() {
                match totals.get_mut(tenant) {
                    Some(total) => *total += bytes,
                    None => drop(totals.insert(tenant.clone(), bytes)),
                }
            }
        }
        self.log_left = self.io.quotas.see_log(totals);
        self.stopping.clear();
    }

    /// If output was stored beyond its tenant's part of the log, cancels the call that wrote it. Calls without output
    /// continue, and their ends fit in the reserve.
    pub(super) fn stop_output(&mut self, id: RunId, entry: &Entry) {
        let ends = |event: &Event| matches!(event, Event::AttemptEnded { .. });
        let output = entry.events.iter().find_map(|event| match event {
            Event::Output { attempt, .. } => Some(attempt.call),
            _ => None,
        });
        let Some(index) = output.filter(|_| !entry.events.iter().any(ends) && self.may_act(id.shard())) else { return };
        if !self.stopping.insert((id, index)) {
            return;
        }
        let Some(known) = self.owner.run(id) else { return };
        let (Some(call), Some(tenant)) = (known.run.call(index), known.run.tenant()) else { return };
        let reason = self.io.quotas.log_full_for(tenant);
        let command = Command::CancelCall { call: call.spec().id.clone(), reason };
        let Ok(events) = known.run.decide(command, ::nats::now()) else { return };
        let Some(place) = SubjectKind::of(&events) else { return };
        tracing::warn!(
            run.id = %id,
            call = index.0,
            %tenant,
            "log quota of the tenant exceeded, cancelling a call that writes output"
        );
        let (journal, expected) = (self.io.journals.of(id), known.expected(&place));
        self.send(async move {
            // If another command came first, the call's next output triggers another attempt.
            if let Err(error) = journal.append(id, &events, None, expected).await {
                tracing::debug!(run.id = %id, %error, "cancelling a call beyond its tenant's quota failed");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 60 * 60 * 1000;

    fn total(bytes: &LogBytes, tenant: &TenantId) -> u64 {
        bytes.totals().find(|(name, _)| *name == tenant).map_or(0, |(_, total)| total)
    }

    #[test]
    fn bytes_are_counted_until_the_log_drops_them_or_their_run_is_erased() {
        let tenant: TenantId = "acme".parse().unwrap();
        let mut bytes = LogBytes::default();
        let begin = Timestamp(600_000 * HOUR);
        let at = |hours: u64| Timestamp(begin.0 + hours * HOUR);
        (0..30).for_each(|hour| bytes.add(&tenant, at(hour), 1000));
        bytes.expire(at(29), begin);
        let counted = total(&bytes, &tenant);
        assert!((26_000..=29_000).contains(&counted), "25 hours are kept, in spans of three: {counted}");
        bytes.release(&tenant, at(27), 2500);
        assert_eq!(total(&bytes, &tenant), counted - 2500);
        let again = LogBytes::of(bytes.list());
        assert_eq!(total(&again, &tenant), counted - 2500, "the next owner counts the same");
        bytes.expire(at(90), begin);
        assert_eq!((total(&bytes, &tenant), bytes.list().len()), (0, 0));
    }

    #[test]
    fn however_much_the_log_keeps_at_most_twice_as_much_is_counted_in_few_spans() {
        let tenant: TenantId = "acme".parse().unwrap();
        let begin = 600_000 * HOUR + HOUR / 7;
        for minutes in [1, 3, 8, 20, 40, 100, 300, 900] {
            let mut bytes = LogBytes::default();
            for half_minute in 0..4 * minutes + 20 {
                let now = Timestamp(begin + half_minute * 30_000);
                bytes.add(&tenant, now, 1);
                bytes.expire(now, now.before(Duration::from_secs(60 * minutes)));
                let (counted, kept) = (total(&bytes, &tenant), (half_minute + 1).min(2 * minutes));
                assert!((kept..=2 * kept + 1).contains(&counted), "{minutes} minutes: {counted} instead of {kept}");
            }
            assert!(bytes.list()[0].1.len() <= 45, "{}", bytes.list()[0].1.len());
        }
    }

    #[test]
    fn a_snapshot_has_the_tenants_with_the_most_bytes() {
        let mut bytes = LogBytes::default();
        for number in 0..u64::try_from(2 * TENANTS_MAX).unwrap() {
            bytes.add(&format!("t{number}").parse().unwrap(), Timestamp(0), number);
        }
        let listed = bytes.list();
        assert_eq!((listed.len(), listed[0].0.as_str()), (TENANTS_MAX, "t1023"));
    }
}
