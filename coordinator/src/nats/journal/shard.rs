//! Reads a shard from one position on, run by run: for the history, which needs each run that has ended.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use bytes::Bytes;
use owner::Known;
use proto::convert::history::HistoryMessage;
use proto::subject::{self, Subject};
use run::{RunId, Shard, Timestamp};
use tokio::time::Instant;

use super::pages::Batch;
use super::{Decoded, EVERYTHING, Journal, LAG_PAUSE, Pace, READ_PATIENCE, ReadError, Stored};

/// Messages and bytes of a shard that are read in one go.
const MESSAGES_MAX: usize = 1024;
const BYTES_MAX: usize = 4 * 1024 * 1024;
/// The same of a partition, whose other shards are among them.
const TOGETHER_MESSAGES_MAX: usize = 8 * MESSAGES_MAX;
const TOGETHER_BYTES_MAX: usize = 8 * 1024 * 1024;
/// How long replicas may lag until a barrier is stored, to find out whether they do.
const LAGS_FOR: Duration = Duration::from_secs(2);
/// Memory for the runs of a shard that go on after a part. Beyond it the oldest are dropped, and are read again when
/// they have ended.
const UNFINISHED_BYTES_MAX: usize = 1024 * 1024;

/// The messages of a part of a shard, by run.
#[derive(Debug, Default)]
pub(crate) struct OfShard {
    runs: BTreeMap<RunId, Vec<Stored>>,
    /// Runs that began before the part and have no message in it.
    waiting: BTreeMap<RunId, Vec<Stored>>,
    /// Runs whose beginning is from an earlier part.
    joined: HashSet<RunId>,
    /// The part ends with this entry.
    pub(crate) through: u64,
}

/// Runs that go on after an entry, with all of their messages up to it.
#[derive(Debug, Default)]
pub(crate) struct Unfinished {
    runs: BTreeMap<RunId, Vec<Stored>>,
    through: u64,
}

/// What a part of a shard, and the parts before it, have of a run.
#[derive(Debug)]
pub(crate) enum OfRun {
    /// All of it, and it has ended.
    Ended(Whole),
    /// All of it up to the end of the part, where it has not ended.
    GoesOn,
    /// Not its opening, or something that cannot be decoded.
    Incomplete,
}

/// A run whose messages are all known, in the order of the log.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) known: Known,
    pub(crate) messages: Vec<HistoryMessage>,
    /// When its last message was stored.
    pub(crate) last_at: Timestamp,
}

impl Unfinished {
    /// The entry after which its runs go on.
    pub(crate) fn through(&self) -> u64 {
        self.through
    }
}

impl OfShard {
    pub(crate) fn ids(&self) -> Vec<RunId> {
        self.runs.keys().copied().collect()
    }

    /// The runs, each with its first entry after `after`, in the order of these entries.
    pub(crate) fn in_order(&self, after: u64) -> Vec<(u64, RunId)> {
        let first = |(id, messages): (&RunId, &Vec<Stored>)| {
            let mut sequences = messages.iter().map(|message| message.sequence);
            Some((sequences.find(|sequence| *sequence > after)?, *id))
        };
        let mut runs: Vec<_> = self.runs.iter().filter_map(first).collect();
        runs.sort_unstable();
        runs
    }

    /// Applies the messages of a run up to its entry `last`.
    pub(super) fn apply_to(&mut self, id: RunId, last: u64, known: &mut Known) {
        let messages = self.runs.remove(&id).unwrap_or_default();
        Batch { messages, last: false }.page(known.last).apply_through(last, known);
    }

    /// Puts what the parts before this one, which begins after `after`, had of its runs in front of it.
    pub(crate) fn follow(&mut self, unfinished: Unfinished, after: u64) {
        if unfinished.through != after {
            return;
        }
        for (id, mut messages) in unfinished.runs {
            match self.runs.get_mut(&id) {
                // It was erased, and opened again.
                Some(rest) if rest.iter().any(Stored::opens) => {}
                Some(rest) => {
                    messages.append(rest);
                    *rest = messages;
                    self.joined.insert(id);
                }
                None => drop(self.waiting.insert(id, messages)),
            }
        }
    }

    /// The runs that began before the part and have no message in it.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = RunId> {
        self.waiting.keys().copied()
    }

    /// The opening of a run whose beginning is from an earlier part. If the log does not have it any more, the run was
    /// erased or has left the log meanwhile, and messages may be missing: the log loses the opening first.
    pub(crate) fn joined_at(&self, id: RunId) -> Option<u64> {
        self.runs.get(&id).filter(|_| self.joined.contains(&id))?.first().map(|opening| opening.sequence)
    }

    /// Takes a run out of the part if it has ended there and all of its messages are known.
    pub(crate) fn take(&mut self, id: RunId) -> OfRun {
        let Some(stored) = self.runs.get(&id).filter(|stored| stored.first().is_some_and(Stored::opens)) else {
            return OfRun::Incomplete;
        };
        let mut known = Known::new(id);
        for message in stored {
            match message.decode() {
                Decoded::Entry(_, entry) => known.apply(&entry, &mut Vec::new()),
                // It is read again, as other readers do.
                Decoded::Unread(_) | Decoded::Stray => return OfRun::Incomplete,
            }
        }
        if !known.run.status().is_final() {
            return OfRun::GoesOn;
        }
        let stored = self.runs.remove(&id).unwrap_or_default();
        let last_at = stored.last().map_or(Timestamp(0), |last| last.at);
        OfRun::Ended(Whole { known, messages: stored.iter().map(|message| message.of_history(id)).collect(), last_at })
    }

    /// What is left of the part: the runs that go on after it. Those without a message in it go on if they are open, or
    /// if the part ends before `newest`, where they may have ended.
    pub(crate) fn into_unfinished(self, open: &HashSet<RunId>, newest: u64) -> Unfinished {
        let Self { runs, waiting, through, .. } = self;
        let mut unfinished = Unfinished { runs: waiting, through };
        unfinished.runs.retain(|id, _| open.contains(id) || through < newest);
        let begins = |(_, messages): &(RunId, Vec<Stored>)| messages.first().is_some_and(Stored::opens);
        unfinished.runs.extend(runs.into_iter().filter(begins));
        let mut bytes: usize = unfinished.runs.values().flatten().map(Stored::memory).sum();
        while bytes > UNFINISHED_BYTES_MAX
            && let Some((_, dropped)) = unfinished.runs.pop_first()
        {
            bytes -= dropped.iter().map(Stored::memory).sum::<usize>();
        }
        for message in unfinished.runs.values_mut().flatten() {
            // Otherwise it would keep what came from the broker with it.
            message.payload = Bytes::copy_from_slice(&message.payload);
        }
        unfinished
    }
}

impl Stored {
    /// Bytes of memory that it takes, about.
    fn memory(&self) -> usize {
        size_of::<Self>() + self.subject.len() + self.payload.len()
    }
}

/// What is wanted of a shard: the messages after `after` and up to `needed`, an entry of the shard that was in the log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) shard: Shard,
    pub(crate) after: u64,
    pub(crate) needed: u64,
}

impl Journal {
    /// The messages of a shard that are wanted, as many as are read in one go.
    ///
    /// # Errors
    /// The broker does not answer, or no replica has what is needed.
    pub(crate) async fn of_shard(&self, wanted: Wanted) -> Result<OfShard, ReadError> {
        let mut parts = self.of_shards(&[wanted]).await?;
        Ok(parts.pop().unwrap_or_default())
    }

    /// As [`Self::of_shard`] for several shards, whose parts are in the order in which they are wanted. Everything from
    /// the first position on is read, once. So the shard that is furthest behind goes on, and others may not.
    pub(crate) async fn of_shards(&self, wanted: &[Wanted]) -> Result<Vec<OfShard>, ReadError> {
        let after = wanted.iter().map(|wanted| wanted.after).min().unwrap_or(0);
        let Some(last) = wanted.iter().max_by_key(|wanted| wanted.needed) else { return Ok(Vec::new()) };
        let (needed, (filter, messages_max, bytes_max)) = (last.needed, request(wanted));
        let (began, mut is_marked, mut through) = (Instant::now(), false, after);
        let mut runs: BTreeMap<Shard, BTreeMap<RunId, Vec<Stored>>> = BTreeMap::new();
        let spans: BTreeMap<Shard, _> =
            wanted.iter().map(|wanted| (wanted.shard, wanted.after + 1..=wanted.needed)).collect();
        while through == after && after < needed {
            let count = usize::try_from(needed - after).unwrap_or(usize::MAX).min(messages_max);
            for message in self.read(&filter, after, (count, bytes_max)).await?.messages {
                if message.sequence > needed {
                    through = needed;
                    break;
                }
                through = message.sequence;
                let Ok(Subject { run, .. }) = message.subject.parse() else { continue };
                if spans.get(&run.shard()).is_some_and(|span| span.contains(&through)) {
                    runs.entry(run.shard()).or_default().entry(run).or_default().push(message);
                }
            }
            if through == after {
                if began.elapsed() >= READ_PATIENCE {
                    return Err(ReadError(format!("no replica has got as far as entry {needed}")));
                }
                // All that follows may have been erased. Something behind it shows that, in a shard that nobody uses.
                if !is_marked && began.elapsed() >= LAGS_FOR {
                    self.mark(last.shard, Pace::Later).await?;
                    is_marked = true;
                }
                tokio::time::sleep(LAG_PAUSE).await;
            }
        }
        let part = |wanted: &Wanted| OfShard {
            runs: runs.remove(&wanted.shard).unwrap_or_default(),
            waiting: BTreeMap::new(),
            joined: HashSet::new(),
            through: through.clamp(wanted.after, wanted.needed.max(wanted.after)),
        };
        Ok(wanted.iter().map(part).collect())
    }
}

/// The filter of a read, and how many messages and bytes are read. If several shards are wanted everything is read, and
/// the rest is passed over: a message costs the broker 3 us then, and with the filter of a shard 12 us in a log of
/// 300,000 messages and 20 us in one of a million.
fn request(wanted: &[Wanted]) -> (String, usize, usize) {
    match wanted {
        [one] => (subject::of_shard(one.shard), MESSAGES_MAX, BYTES_MAX),
        _ => (EVERYTHING.to_owned(), TOGETHER_MESSAGES_MAX, TOGETHER_BYTES_MAX),
    }
}

#[cfg(test)]
mod tests {
    use run::{Event, RunOpened};

    use super::super::NOTHING;
    use super::super::tests::{fresh, journal};
    use super::*;

    #[tokio::test]
    async fn a_shard_whose_last_entries_were_erased_is_read_to_its_end() {
        let (_server, journal) = journal().await;
        let first = journal.append(fresh(), &[Event::RunClosed], None, NOTHING).await.expect("stored");
        let last = journal.append(fresh(), &[Event::RunClosed], None, NOTHING).await.expect("stored");
        let stream = journal.broker.context.get_stream(journal.stream).await.expect("the log is there");
        stream.delete_message(last).await.expect("it is there");
        let wanted = |after| Wanted { shard: Shard(0), after, needed: last };
        let before = journal.of_shard(wanted(0)).await.expect("it can be read");
        assert_eq!((before.through, before.ids().len()), (first, 1));
        let rest = journal.of_shard(wanted(first)).await.expect("it can be read");
        assert_eq!((rest.through, rest.ids().len()), (last, 0));
    }

    /// The next part of the first shard, up to this entry.
    async fn next(journal: &Journal, unfinished: Unfinished, needed: u64) -> OfShard {
        let after = unfinished.through;
        let mut part = journal.of_shard(Wanted { shard: Shard(0), after, needed }).await.expect("it can be read");
        part.follow(unfinished, after);
        part
    }

    #[tokio::test]
    async fn a_run_that_goes_on_after_a_part_has_all_of_its_messages_in_the_part_in_which_it_ends() {
        let (_server, journal) = journal().await;
        let opens = || Event::RunOpened(RunOpened { open: true, ..RunOpened::default() });
        let append = async |run: RunId, event: Event, before: u64| {
            journal.append(run, &[event], None, before).await.expect("stored")
        };
        let [run, late, headless] = [fresh(), fresh(), fresh()];
        let first = append(run, opens(), NOTHING).await;
        let headless_first = append(headless, opens(), NOTHING).await;
        // Parts begin behind what was written, so the beginning of one run is not in any.
        let begun = Unfinished { through: headless_first, ..Unfinished::default() };
        let of_one = next(&journal, Unfinished::default(), first).await;
        assert!(matches!(next(&journal, Unfinished::default(), first).await.take(run), OfRun::GoesOn));
        let open = HashSet::from([run, late, headless]);
        let late_first = append(late, opens(), NOTHING).await;
        let of_two = next(&journal, of_one.into_unfinished(&open, first), late_first).await;
        assert_eq!(of_two.waiting().collect::<Vec<_>>(), [run]);
        let ended = append(run, Event::RunClosed, first).await;
        append(headless, Event::RunClosed, headless_first).await;
        let ends = append(late, Event::RunClosed, late_first).await;
        let mut of_three = next(&journal, of_two.into_unfinished(&open, late_first), ends).await;
        assert_eq!(
            [run, late, headless].map(|id| of_three.joined_at(id)),
            [Some(first), Some(late_first), Some(headless_first)]
        );
        let sequences = |of_run| match of_run {
            OfRun::Ended(whole) => whole.messages.iter().map(|message| message.sequence).collect(),
            OfRun::GoesOn | OfRun::Incomplete => Vec::new(),
        };
        let order = of_three.in_order(late_first);
        assert_eq!(order.iter().map(|(_, id)| *id).collect::<Vec<_>>(), [run, headless, late]);
        assert_eq!((order[0].0, order[2].0), (ended, ends), "their first entries in the part");
        assert_eq!(
            [sequences(of_three.take(run)), sequences(of_three.take(late))],
            [[first, ended], [late_first, ends]]
        );
        assert!(matches!(next(&journal, begun, ends).await.take(headless), OfRun::Incomplete));
    }

    #[tokio::test]
    async fn what_is_not_open_any_more_or_was_opened_again_or_does_not_follow_is_not_put_in_front_of_a_part() {
        let (_server, journal) = journal().await;
        let opens = || Event::RunOpened(RunOpened { open: true, ..RunOpened::default() });
        let run = fresh();
        let first = journal.append(run, &[opens()], None, NOTHING).await.expect("stored");
        let part = async || next(&journal, Unfinished::default(), first).await;
        let open = HashSet::from([run]);
        let other = journal.append(fresh(), &[opens()], None, NOTHING).await.expect("stored");
        let waits = next(&journal, part().await.into_unfinished(&open, first), other).await;
        let waits_on = waits.into_unfinished(&HashSet::new(), other + 1);
        assert_eq!(waits_on.runs.len(), 2, "its end may follow");
        let waits = next(&journal, part().await.into_unfinished(&open, first), other).await;
        assert_eq!(waits.into_unfinished(&HashSet::new(), other).runs.len(), 1, "the other one");
        let later = async || Unfinished { through: other, ..part().await.into_unfinished(&open, first) };
        let wanted = Wanted { shard: Shard(0), after: first, needed: other };
        let mut second = journal.of_shard(wanted).await.expect("it can be read");
        second.follow(later().await, first);
        assert_eq!(second.waiting().count(), 0, "an entry may be missing between them");

        let before = later().await;
        journal.erase(run, first).await.expect("erased");
        let again = journal.append(run, &[opens()], None, NOTHING).await.expect("stored");
        let closed = journal.append(run, &[Event::RunClosed], None, again).await.expect("stored");
        let OfRun::Ended(whole) = next(&journal, before, closed).await.take(run) else { panic!("it has ended") };
        assert_eq!(whole.messages.iter().map(|message| message.sequence).collect::<Vec<_>>(), [again, closed]);
    }

    #[tokio::test]
    async fn a_run_that_was_erased_after_its_beginning_was_read_and_got_a_late_entry_is_known_by_its_opening() {
        let (_server, journal) = journal().await;
        let (run, opens) = (fresh(), Event::RunOpened(RunOpened { open: true, ..RunOpened::default() }));
        let first = journal.append(run, &[opens], None, NOTHING).await.expect("stored");
        let unfinished =
            next(&journal, Unfinished::default(), first).await.into_unfinished(&HashSet::from([run]), first);
        assert!(journal.holds(first).await.expect("the broker is there"));
        journal.erase(run, first).await.expect("erased");
        let late = journal.append(run, &[Event::RunClosed], None, NOTHING).await.expect("stored");
        let mut part = next(&journal, unfinished, late).await;
        let opening = part.joined_at(run).expect("its beginning was kept");
        assert!(matches!(part.take(run), OfRun::Ended(_)), "it looks whole");
        assert!(!journal.holds(opening).await.expect("the broker is there"));
    }

    #[test]
    fn runs_that_go_on_take_a_bounded_memory_and_the_oldest_are_dropped() {
        let event = Event::RunOpened(RunOpened { open: true, ..RunOpened::default() });
        let payload = proto::convert::log::encode(&[event], None);
        let of = |run: RunId, sequence| {
            let subject = Subject { run, place: proto::subject::SubjectKind::Run }.to_string();
            Stored { sequence, subject, bytes: 1, at: Timestamp(1), payload: payload.clone() }
        };
        let runs: Vec<RunId> = (0..20_000).map(|_| fresh()).collect();
        let all = (1..).zip(&runs).map(|(sequence, run)| (*run, vec![of(*run, sequence)])).collect();
        let part = OfShard { runs: all, through: 20_000, ..OfShard::default() };
        let unfinished = part.into_unfinished(&HashSet::new(), 20_000);
        let bytes: usize = unfinished.runs.values().flatten().map(Stored::memory).sum();
        assert!(bytes <= UNFINISHED_BYTES_MAX && !unfinished.runs.is_empty(), "{bytes}");
        assert!(unfinished.runs.contains_key(&runs[19_999]) && !unfinished.runs.contains_key(&runs[0]));
    }

    #[tokio::test]
    async fn several_shards_are_read_together_each_from_its_position_to_what_its_reader_needs() {
        let (_server, journal) = journal().await;
        let mut stored = Vec::new();
        for shard in [0, 1, 2, 0, 1, 2] {
            let run = RunId::new(Shard(shard), uuid::Uuid::now_v7());
            stored.push((run, journal.append(run, &[Event::RunClosed], None, NOTHING).await.expect("stored")));
        }
        let at = |index: usize| stored[index].1;
        let wanted = [
            Wanted { shard: Shard(0), after: 0, needed: at(3) },
            // What comes later is not known to end runs, and what came before is written.
            Wanted { shard: Shard(1), after: at(1), needed: at(1) },
            Wanted { shard: Shard(2), after: at(2), needed: at(5) },
            // Nothing of it follows.
            Wanted { shard: Shard(3), after: at(2), needed: at(2) },
        ];
        let parts = journal.of_shards(&wanted).await.expect("they can be read");
        let read: Vec<(u64, Vec<RunId>)> = parts.iter().map(|part| (part.through, part.ids())).collect();
        let run = |index: usize| stored[index].0;
        let mut first = vec![run(0), run(3)];
        first.sort();
        assert_eq!(read, [(at(3), first), (at(1), vec![]), (at(5), vec![run(5)]), (at(2), vec![])]);
    }
}
