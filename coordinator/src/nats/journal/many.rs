//! Reads many runs of a shard in a few requests, at a takeover. A run that is read alone takes two requests or more,
//! and a shard may have a hundred thousand runs that wait for weeks. What is read here is complete or left out: the
//! caller reads the rest run by run.

use std::collections::HashMap;

use owner::{Known, Listed};
use proto::convert::carried::CarriedPart;
use run::{RunId, Shard};
use tokio::sync::SemaphorePermit;

use super::carried::{StoredPart, messages};
use super::pages::Batch;
use super::{Journal, ReadError, Wanted};

/// How many shards of a partition with many runs are read at a time. The others wait: read all at once, each of them
/// would be without an owner until the last one is read.
pub(super) const MANY_MAX: usize = 4;
/// Messages and bytes of the bucket of carried runs that are read in one request.
const MESSAGES_MAX: usize = 1024;
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// A part of so many bytes may be followed by another; smaller ones grow instead.
const SMALL_BYTES: usize = 64 * 1024;
/// A page of a shard is read for so many runs, and one more. Where other runs have more entries between them, they are
/// read alone.
const RUNS_PER_PAGE: usize = 16;

impl Journal {
    /// Waits for a turn to read many runs of a shard.
    pub(crate) async fn turn_to_read_many(&self) -> SemaphorePermit<'_> {
        self.parts.many.acquire().await.expect("nobody closes it")
    }

    /// Reads runs whose entries lie close together in the log, each up to the last entry that it is listed with. `runs`
    /// is in the order of their first entries.
    pub(crate) async fn together(&self, shard: Shard, runs: &[Listed]) -> Result<Vec<Known>, ReadError> {
        let (Some(first), Some(last)) = (runs.first(), runs.iter().map(|run| run.last).max()) else {
            return Ok(Vec::new());
        };
        let mut all: HashMap<RunId, (Listed, Known)> =
            runs.iter().map(|listed| (listed.run, (*listed, Known::new(listed.run)))).collect();
        let (mut through, mut pages_left) = (first.first.saturating_sub(1), 1 + runs.len() / RUNS_PER_PAGE);
        while through < last && pages_left > 0 {
            pages_left -= 1;
            let mut part = self.of_shard(Wanted { shard, after: through, needed: last }).await?;
            through = part.through;
            for id in part.ids() {
                if let Some((listed, known)) = all.get_mut(&id) {
                    part.apply_to(id, listed.last, known);
                }
            }
        }
        // The log loses its beginning: as long as it has the first entry, none of the others was missed.
        if !self.holds(first.first).await? {
            return Ok(Vec::new());
        }
        let is_whole = |(listed, known): &(Listed, Known)| {
            (known.first, known.last) == (listed.first, listed.last) && known.run.opened_at().is_some()
        };
        Ok(all.into_values().filter(is_whole).map(|(_, known)| known).collect())
    }

    /// Runs of a shard all of whose entries are carried beside the log, up to the last one that each is listed with.
    /// Hands each to `take`, and leaves it out of `wanted`.
    pub(crate) async fn carried_together(
        &self,
        shard: Shard,
        wanted: &mut HashMap<RunId, Listed>,
        mut take: impl FnMut(Known),
    ) -> Result<(), ReadError> {
        let carried = &self.broker.carried;
        let (prefix, mut begun, mut after) = (format!("{}{shard}.", carried.prefix), HashMap::new(), 0);
        let filter = format!("{prefix}>");
        loop {
            let bounds = (MESSAGES_MAX, BYTES_MAX);
            let batch = self.read_of((&carried.stream_name, &filter), after, bounds).await?;
            let is_empty = batch.messages.is_empty();
            for message in batch.messages {
                after = message.sequence;
                let run = message.subject.strip_prefix(&prefix).and_then(|place| place.split('.').next()?.parse().ok());
                let Some(listed) = run.and_then(|run: RunId| wanted.get(&run)).copied() else { continue };
                let known = begun.entry(listed.run).or_insert_with(|| Known::new(listed.run));
                let is_small = message.payload.len() < SMALL_BYTES;
                let stored_at = message.at;
                let stored = |part| StoredPart { number: 0, part, stored_at };
                if CarriedPart::decode(message.payload).is_ok_and(|part| apply(stored(part), listed, known)) {
                    begun.remove(&listed.run).into_iter().for_each(&mut take);
                    wanted.remove(&listed.run);
                } else if is_small {
                    // No part follows a small one: the log has the rest of the run.
                    begun.remove(&listed.run);
                }
            }
            if batch.last || is_empty {
                return Ok(());
            }
        }
    }
}

/// Applies a part to what is known of a run. Returns whether the run is complete. A part that does not follow is passed
/// over: the one before it was replaced while the bucket was read, and comes later.
fn apply(stored: StoredPart, listed: Listed, known: &mut Known) -> bool {
    let settled = stored.settled(::nats::now());
    let part = stored.part;
    if part.after > known.last {
        return false;
    }
    let (through, known_before) = (part.through(), known.last);
    let messages = messages(listed.run, part, known_before);
    if known_before == 0 && !messages.first().is_some_and(super::Stored::opens) {
        return false;
    }
    Batch { messages, last: false }.page(known_before).apply_through(listed.last, known);
    (known.carried, known.settled) = (known.carried.max(through), known.settled.max(settled));
    known.last == listed.last
}

#[cfg(test)]
mod tests {
    use proto::convert::history::HistoryMessage;
    use proto::convert::log::encode;
    use proto::subject::{Subject, SubjectKind};
    use run::{Event, RunOpened, Timestamp};

    use super::super::tests::fresh;
    use super::*;

    #[test]
    fn parts_of_a_run_are_applied_in_order_and_one_that_does_not_follow_waits() {
        let run = fresh();
        let message = |sequence, event: Event| {
            let events = [event];
            let subject = Subject { run, place: SubjectKind::of(&events).expect("it has events") }.to_string();
            let place = subject.rsplit_once(&format!("{run}.")).expect("its run").1.to_owned();
            HistoryMessage { place, sequence, at: Timestamp(sequence), payload: encode(&events, None) }
        };
        let opens = || message(5, Event::RunOpened(RunOpened { open: true, ..RunOpened::default() }));
        let closes = || message(8, Event::RunClosed);
        let listed = Listed { run, first: 0, last: 8 };
        let mut known = Known::new(run);
        let second = || CarriedPart { after: 5, entries: vec![closes()], ..CarriedPart::default() };
        let apply = |part, known: &mut Known| {
            let stored_at = ::nats::now();
            super::apply(StoredPart { number: 0, part, stored_at }, listed, known)
        };
        assert!(!apply(second(), &mut known) && known.last == 0, "the first part is missing");
        let headless = CarriedPart { after: 0, entries: vec![closes()], ..CarriedPart::default() };
        assert!(!apply(headless, &mut known) && known.last == 0, "its opening is missing");
        let first = CarriedPart { after: 0, entries: vec![opens()], ..CarriedPart::default() };
        assert!(!apply(first, &mut known));
        assert_eq!((known.first, known.last, known.carried), (5, 5, 5));
        // The first part had grown meanwhile.
        let grown = CarriedPart { after: 0, entries: vec![opens(), closes()], ..CarriedPart::default() };
        assert!(apply(grown, &mut known.clone()));
        assert!(apply(second(), &mut known));
        assert_eq!((known.first, known.last, known.carried), (5, 8, 8));
        assert!(!known.run.is_open());
    }
}
