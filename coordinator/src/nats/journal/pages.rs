//! Reads a run from its first entry on, subject by subject.
//!
//! A read with a wildcard costs the broker more the larger the log is: after the run's last entry it continues through
//! the messages of other runs (4.5 ms of processor time in a log of a million runs). A read of one subject is a lookup
//! (0.05 ms in any log). Listing the subjects of a run and their numbers of messages is a lookup, too.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use async_nats::datetime::parse_rfc3339;
use async_nats::jetstream::stream::RawMessageErrorKind;
use bytes::Bytes;
use futures::future::try_join_all;
use proto::subject::{self, Subject, SubjectKind};
use run::{Event, RunId, Timestamp};
use serde::Deserialize;
use tokio::time::Instant;

use super::carried::CarriedEntries;
use super::tail::oldest;
use super::{Decoded, Journal, LAG_PAUSE, PAGE_ENTRIES, Pace, Page, READ_PATIENCE, ReadError, decode};
use owner::Known;

/// Subjects that are read one by one. A run with more of them is read with a wildcard and an exact number of messages,
/// which then costs the broker less (0.9 ms in a log of a million runs).
const SUBJECTS_MAX: usize = 16;

/// A run all of whose entries are read within this time, as many as were counted, is read without asking whether its
/// beginning has left the log meanwhile.
const AT_ONCE: Duration = Duration::from_millis(100);

/// The progress of reading a run. Only for reading from the first entry on, because it counts what it has read.
#[derive(Debug)]
pub(crate) struct RunPages {
    journal: Journal,
    run: RunId,
    /// Bytes of one page, unless a single entry is larger; with several subjects up to twice as many are read for it.
    bytes: usize,
    read: HashMap<String, Read>,
    /// The first entry that was read.
    first: Option<u64>,
    /// The last entry that was read.
    through: u64,
    mode: Mode,
    /// Only servers that have this entry of the log are trusted.
    mark: u64,
    /// Whether pages have the messages of their entries too.
    with_messages: bool,
}

/// How the end of the run is known.
#[derive(Debug)]
enum Mode {
    /// The log's leader tells the numbers of messages.
    Counted,
    /// Counted entries are gone: the run was erased or ages out. The counts are useless then.
    Uncounted,
    /// The run begins with what is carried of it: `through` is the last entry of that, as far as it was read, and
    /// `rest` is still to be returned. The entries up to `settled` were carried long ago.
    Carried { through: u64, settled: u64, rest: VecDeque<Stored> },
}

/// The result of an attempt to read a page.
enum Attempt {
    Read(Batch),
    /// What follows of the run was carried.
    Carried(CarriedEntries),
    /// A replica of the broker lags behind the leader, or the run shrank meanwhile.
    Lags,
    /// Entries that were counted are gone.
    Shrank,
}

/// The progress of reading a subject.
#[derive(Debug, Clone, Copy, Default)]
struct Read {
    messages: u64,
    last: u64,
}

/// A subject with entries that are still to be read.
struct Rest {
    subject: String,
    after: u64,
    messages: usize,
}

impl RunPages {
    pub(crate) fn new(journal: Journal, run: RunId, bytes: usize) -> Self {
        let (read, first, mode) = (HashMap::new(), None, Mode::Counted);
        Self { journal, run, bytes, read, first, through: 0, mode, mark: 0, with_messages: false }
    }

    /// Pages with the messages of their entries.
    pub(crate) fn with_messages(self) -> Self {
        Self { with_messages: true, ..self }
    }

    /// Pages with everything that was stored before a barrier.
    pub(crate) fn behind(self, mark: u64) -> Self {
        Self { mark, ..self }
    }

    /// The last entry that was read.
    pub(crate) fn through(&self) -> u64 {
        self.through
    }

    /// The next page. It is not empty as long as `needed`, an entry that is known to be in the log, was not read.
    /// Cancel safe.
    pub(crate) async fn next(&mut self, needed: u64) -> Result<Page, ReadError> {
        self.next_or_gone(needed, None).await
    }

    /// As [`Self::next`], but the page is also empty if `needed` has left the log. `mark` is an entry of the run's
    /// shard after `needed` that is still in the log; without it, `needed` is assumed to be there.
    pub(super) async fn next_or_gone(&mut self, needed: u64, mark: Option<u64>) -> Result<Page, ReadError> {
        let give_up = Instant::now() + READ_PATIENCE;
        loop {
            match self.patient_attempt().await? {
                _ if self.is_cut().await? => return Ok(self.cut()),
                Some(batch) if !batch.messages.is_empty() || self.through >= needed => return Ok(self.take(batch)),
                _ if self.has_left(needed, mark).await? => return Ok(Page::default()),
                _ if Instant::now() >= give_up => {
                    return Err(ReadError(format!("no replica has entry {needed}")));
                }
                _ => tokio::time::sleep(LAG_PAUSE).await,
            }
        }
    }

    /// The next page of the run from the log's leader, which may not be the newest. The last page is marked, and may be
    /// empty. Cancel safe.
    ///
    /// # Errors
    /// The broker does not answer, or no replica returns what the leader has.
    pub(crate) async fn next_known(&mut self) -> Result<Page, ReadError> {
        let give_up = Instant::now() + READ_PATIENCE;
        loop {
            if let Some(batch) = self.patient_attempt().await? {
                if matches!(self.mode, Mode::Counted) || batch.last {
                    return Ok(self.take(batch));
                }
                if self.is_cut().await? {
                    return Ok(self.cut());
                }
                // Without counts, only the leader knows where the run ends.
                let last = self.journal.last_of_run(self.run).await?;
                if !batch.messages.is_empty() || self.through >= last {
                    let page = self.take(batch);
                    return Ok(Page { last: self.through >= last, ..page });
                }
            }
            if Instant::now() >= give_up {
                return Err(ReadError("no replica has the last entry of the log's leader".to_owned()));
            }
            tokio::time::sleep(LAG_PAUSE).await;
        }
    }

    /// Whether entries may have left the log that follow the ones that were read. The log loses its beginning, so as
    /// long as it has the last one that was read, it has those after it; and so it is if that one is carried.
    async fn is_cut(&self) -> Result<bool, ReadError> {
        if !matches!(self.mode, Mode::Uncounted) || self.through == 0 {
            return Ok(false);
        }
        let is_gone = self.journal.is_gone(self.run.shard(), self.through).await?;
        Ok(is_gone && self.journal.carried_to(self.run).await? < self.through)
    }

    fn cut(&self) -> Page {
        Page { through: self.through, last: true, is_cut: true, ..Page::default() }
    }

    async fn has_left(&self, needed: u64, mark: Option<u64>) -> Result<bool, ReadError> {
        match mark {
            Some(mark) => self.journal.has_left(self.run.shard(), needed, mark).await,
            None => Ok(false),
        }
    }

    fn take(&mut self, batch: Batch) -> Page {
        let (carried, settled) = match &self.mode {
            Mode::Counted => {
                self.first = self.first.or(batch.messages.first().map(|message| message.sequence));
                for message in &batch.messages {
                    let read = self.read.entry(message.subject.clone()).or_default();
                    (read.messages, read.last) = (read.messages + 1, message.sequence);
                }
                (0, 0)
            }
            Mode::Uncounted => (0, 0),
            Mode::Carried { through, settled, .. } => (*through, *settled),
        };
        let messages = if self.with_messages { batch.of_history(self.run) } else { Vec::new() };
        let page = batch.page(self.through);
        self.through = page.through;
        Page { carried, settled, messages, ..page }
    }

    /// The next messages; `None` if they are not known yet.
    async fn patient_attempt(&mut self) -> Result<Option<Batch>, ReadError> {
        if let Some(batch) = self.of_rest() {
            return Ok(Some(batch));
        }
        match self.attempt().await? {
            Attempt::Read(batch) => Ok(Some(batch)),
            Attempt::Carried(CarriedEntries { settled, messages }) => {
                let through = messages.last().map_or(self.through, |message| message.sequence);
                self.mode = Mode::Carried { through, settled, rest: messages.into() };
                // There may be nothing left of it.
                Ok(self.of_rest())
            }
            Attempt::Lags => Ok(None),
            Attempt::Shrank => {
                self.mode = Mode::Uncounted;
                Ok(None)
            }
        }
    }

    /// The next messages of what is carried, if any are left.
    fn of_rest(&mut self) -> Option<Batch> {
        let Mode::Carried { rest, .. } = &mut self.mode else { return None };
        let (mut messages, mut bytes) = (Vec::new(), 0);
        while bytes < self.bytes && messages.len() < PAGE_ENTRIES {
            let Some(message) = rest.pop_front() else { break };
            bytes += message.payload.len();
            messages.push(message);
        }
        (!messages.is_empty()).then_some(Batch { messages, last: false })
    }

    async fn attempt(&self) -> Result<Attempt, ReadError> {
        match self.mode {
            Mode::Counted => self.attempt_counted().await,
            Mode::Uncounted => {
                match self.journal.carried_after(self.run, self.through).await? {
                    Some(later) => return Ok(Attempt::Carried(later)),
                    None if self.journal.carried_to(self.run).await? >= self.through.max(1) => {
                        return Ok(Attempt::Carried(CarriedEntries { settled: 0, messages: Vec::new() }));
                    }
                    None => {}
                }
                Ok(Attempt::Read(Batch { last: false, ..self.by_wildcard(self.through, PAGE_ENTRIES).await? }))
            }
            Mode::Carried { .. } => self.attempt_carried().await,
        }
    }

    async fn attempt_counted(&self) -> Result<Attempt, ReadError> {
        let began = Instant::now();
        let Counts { subjects, through } = self.journal.counts_through(self.run).await?;
        if through < self.mark {
            return Ok(Attempt::Lags);
        }
        let rests: Vec<Rest> = subjects.iter().filter_map(|(subject, count)| self.rest(subject, *count)).collect();
        let batch = match rests.len() {
            ..=SUBJECTS_MAX => self.by_subject(rests).await?,
            _ => self.by_number(rests.iter().map(|rest| rest.messages).sum()).await?,
        };
        // The broker deletes a run's oldest entries first: as long as the first one exists, the counts are complete,
        // and nothing was missed between the reads.
        let is_all_at_once = began.elapsed() < AT_ONCE && batch.as_ref().is_some_and(|batch| batch.last);
        let first_read = batch.as_ref().and_then(|batch| batch.messages.first()).map(|message| message.sequence);
        if let Some(first) = self.first.or(first_read.filter(|_| !is_all_at_once))
            && !self.journal.holds(first).await?
        {
            return Ok(Attempt::Shrank);
        }
        let Some(batch) = batch else { return Ok(Attempt::Lags) };
        if self.through == 0
            && !batch.messages.first().is_some_and(Stored::opens)
            && let Some(carried) = self.journal.carried_after(self.run, 0).await?
        {
            return Ok(Attempt::Carried(carried));
        }
        Ok(Attempt::Read(batch))
    }

    /// The entries after those that were carried.
    async fn attempt_carried(&self) -> Result<Attempt, ReadError> {
        let Counts { subjects, through } = self.journal.counts_through(self.run).await?;
        if through < self.mark {
            return Ok(Attempt::Lags);
        }
        let batch = if subjects.is_empty() {
            Batch { messages: Vec::new(), last: true }
        } else {
            Batch { last: false, ..self.by_wildcard(self.through, PAGE_ENTRIES).await? }
        };
        // Looked up afterwards: what has left the log by now was carried before.
        match self.journal.carried_after(self.run, self.through).await? {
            Some(later) => Ok(Attempt::Carried(later)),
            None => Ok(Attempt::Read(batch)),
        }
    }

    fn rest(&self, subject: &str, count: u64) -> Option<Rest> {
        let Read { messages, last } = self.read.get(subject).copied().unwrap_or_default();
        let messages = usize::try_from(count.saturating_sub(messages)).unwrap_or(usize::MAX);
        (messages > 0).then(|| Rest { subject: subject.to_owned(), after: last, messages })
    }

    /// All of it is from one replica, so missing entries are at the end.
    async fn by_wildcard(&self, after: u64, messages: usize) -> Result<Batch, ReadError> {
        self.journal.read(&subject::of_run(self.run), after, (messages, self.bytes)).await
    }

    /// The next messages, of `messages` that are still to be read.
    async fn by_number(&self, messages: usize) -> Result<Option<Batch>, ReadError> {
        let mut all = Batch { messages: Vec::new(), last: false };
        if self.through == 0 {
            // The opening first, on a subject that the broker looks up. With a wildcard it would search the log from
            // its beginning.
            let opening = Subject { run: self.run, place: SubjectKind::Run }.to_string();
            all = self.journal.read(&opening, 0, (1, self.bytes)).await?;
            all.messages.retain(Stored::opens);
        }
        let after = all.messages.last().map_or(self.through, |opening| opening.sequence);
        let batch = self.by_wildcard(after, PAGE_ENTRIES.min(messages)).await?;
        all.messages.extend(batch.messages);
        all.last = all.messages.len() >= messages;
        // A replica that returns the end of the run but lacks entries lags behind.
        let lags = batch.last && !all.last && all.messages.is_empty();
        Ok((!lags).then_some(all))
    }

    /// Merges the entries of all subjects into the order of the log, up to the position where all subjects are known.
    async fn by_subject(&self, rests: Vec<Rest>) -> Result<Option<Batch>, ReadError> {
        let bytes = self.bytes / rests.len().max(1);
        let reads = rests.iter().map(|rest| {
            let messages = PAGE_ENTRIES.min(rest.messages);
            self.journal.read(&rest.subject, rest.after, (messages, bytes))
        });
        let mut all = Batch { messages: Vec::new(), last: true };
        let mut known_through = u64::MAX;
        for (rest, batch) in rests.iter().zip(try_join_all(reads).await?) {
            if batch.messages.len() < rest.messages {
                let is_cut = !batch.last || batch.messages.len() == PAGE_ENTRIES;
                let (true, Some(last)) = (is_cut, batch.messages.last()) else { return Ok(None) };
                known_through = known_through.min(last.sequence);
                all.last = false;
            }
            all.messages.extend(batch.messages);
        }
        all.messages.retain(|message| message.sequence <= known_through);
        all.messages.sort_unstable_by_key(|message: &Stored| message.sequence);
        Ok(Some(all))
    }
}

/// A run, folded from all of its pages, and the bytes of its entries in the log.
pub(super) async fn all_of(mut pages: RunPages) -> Result<(Known, u64), ReadError> {
    let (mut known, mut bytes) = (Known::new(pages.run), 0);
    loop {
        let page = pages.next_known().await?;
        if page.is_cut {
            // From what is left, which is no run.
            (known, bytes) = (Known::new(pages.run), 0);
            pages = RunPages::new(pages.journal, pages.run, pages.bytes);
            continue;
        }
        let is_last = page.last;
        bytes += page.bytes;
        page.apply_to(&mut known);
        if is_last {
            return Ok((known, bytes));
        }
    }
}

/// Messages of the log that were read together, in its order.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) messages: Vec<Stored>,
    /// Nothing more matches the filter.
    pub(super) last: bool,
}

#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) sequence: u64,
    pub(super) subject: String,
    pub(super) bytes: u64,
    /// When the broker stored it.
    pub(super) at: Timestamp,
    pub(super) payload: Bytes,
}

impl Stored {
    /// What it says, if it is of the log.
    pub(super) fn decode(&self) -> Decoded {
        decode(&self.subject, self.payload.clone(), self.sequence, self.at)
    }

    /// Whether it begins with the run's first entry. The rest of a run that ages out does not.
    pub(super) fn opens(&self) -> bool {
        matches!(self.decode(), Decoded::Entry(_, entry) if matches!(entry.events.first(), Some(Event::RunOpened(_))))
    }
}

impl Batch {
    /// As a page of the entries after `after`.
    pub(super) fn page(self, after: u64) -> Page {
        let mut page = Page { through: after, last: self.last, ..Page::default() };
        for message in self.messages {
            let sequence = message.sequence;
            page.through = sequence;
            page.bytes += message.bytes;
            match message.decode() {
                Decoded::Entry(_, entry) => page.entries.push_back(entry),
                Decoded::Unread(subject) => page.unread.push((subject.place, sequence)),
                Decoded::Stray => {}
            }
        }
        page
    }
}

/// What the log has of a run.
pub(super) struct Counts {
    /// The numbers of messages by subject.
    pub(super) subjects: HashMap<String, u64>,
    /// The last entry of the log that the answering server has.
    pub(super) through: u64,
}

#[derive(Deserialize)]
struct Info {
    state: Option<State>,
    error: Option<Failed>,
}

#[derive(Deserialize)]
struct State {
    last_seq: u64,
    first_seq: u64,
    /// When that entry was stored.
    first_ts: String,
    #[serde(default)]
    subjects: HashMap<String, u64>,
}

#[derive(Deserialize)]
struct Failed {
    description: String,
}

impl Journal {
    /// Whether the log has this entry, according to its leader.
    pub(crate) async fn holds(&self, sequence: u64) -> Result<bool, ReadError> {
        self.patiently("retrying to ask the log's leader for an entry", Pace::Soon, || self.holds_once(sequence)).await
    }

    async fn holds_once(&self, sequence: u64) -> Result<bool, ReadError> {
        let stream = self.broker.patient.get_stream_no_info(self.stream).await;
        match stream.map_err(|error| ReadError::new(&error))?.get_raw_message(sequence).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => Ok(false),
            Err(error) => Err(ReadError::new(&error)),
        }
    }

    /// The subjects of a run and their numbers of messages, as the log's leader has them.
    pub(super) async fn counts(&self, run: RunId) -> Result<HashMap<String, u64>, ReadError> {
        self.counts_through(run).await.map(|counts| counts.subjects)
    }

    /// As [`Self::counts`], with the last entry of the log that the answering server has.
    pub(super) async fn counts_through(&self, run: RunId) -> Result<Counts, ReadError> {
        self.patiently("retrying to count the entries of a run", Pace::Soon, || self.counts_once(run)).await
    }

    async fn counts_once(&self, run: RunId) -> Result<Counts, ReadError> {
        let filter = serde_json::json!({ "subjects_filter": subject::of_run(run) });
        let reply = self.broker.patient.request(format!("STREAM.INFO.{}", self.stream), &filter).await;
        let info: Info = reply.map_err(|error| ReadError::new(&error))?;
        match info {
            Info { state: Some(state), error: None } => {
                if let Ok(first) = parse_rfc3339(&state.first_ts) {
                    self.note_oldest(oldest(state.first_seq, first.unix_timestamp_nanos()));
                }
                self.note_first(state.first_seq);
                Ok(Counts { subjects: state.subjects, through: state.last_seq })
            }
            Info { error: Some(error), .. } => Err(ReadError(error.description)),
            Info { state: None, error: None } => Err(ReadError("the broker returned no state of the log".to_owned())),
        }
    }
}
