//! A reader of a run's ordered output: a fold of its own over the run's entries, read from the log as far as they are
//! in the past and from the owner's feed after that. Its buffers are bounded; output that waits for the floor is read
//! from the log again.

mod behind;
mod past;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use history::HistoryError;
use proto::convert::api;
use proto::subject::{self, Subject, SubjectKind};
use proto::v1;
use run::{
    Entry, Fact, FloorPolicy, OutputEvent, OutputKind, Route, Run, RunId, RunOpened, Section, Sequencer, Span, TenantId,
};
use tokio::time::Instant;

use self::behind::{ASK_AGAIN, Behind, DOUBT, Then, presumably};
use crate::auth::callers::Reading;
use crate::metrics;
use crate::nats::journal::{Journal, PAGE_ENTRIES, Page, Past, ReadError, RunPages, WATCHED_PAGE_BYTES};
use crate::owner::{Before, Live, OVERDUE, OwnerHandle, Standing, Stopped};

/// Events returned together.
const BATCH_EVENTS_MAX: usize = 512;
/// Bytes of output returned together, unless a single piece is larger.
const BATCH_BYTES_MAX: usize = 64 * 1024;
/// Bytes of output that a reader buffers while it waits for the floor.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// How long a replica of the broker may be behind: one that hung is replaced by others, or catches up.
const REPLICA_PATIENCE: Duration = Duration::from_secs(30);
const REPLICA_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(crate) struct Reader {
    source: Source,
    run: Run,
    sequencer: Sequencer,
    /// The calls that are shown, if others share the run.
    section: Option<Section>,
    /// The client has everything up to here already.
    after: Option<u64>,
    spoken: VecDeque<OutputEvent>,
    /// Entries with output that is still to be emitted, oldest first.
    kept: VecDeque<Arc<Entry>>,
    kept_bytes: usize,
    /// The newest entry that was applied.
    current: Option<Arc<Entry>>,
    heard: Vec<Fact>,
    /// Whether it answers the request that opened the run.
    pub(crate) answers_opening: bool,
    /// The reader's place among those of its caller.
    place: Option<Reading>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum WatchError {
    #[error(transparent)]
    Stopped(#[from] Stopped),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the log has no such run")]
    Unknown,
    #[error("entry {0} is missing in the log")]
    Gone(u64),
    #[error(transparent)]
    History(#[from] HistoryError),
}

impl Reader {
    /// A reader of a run that is about to be opened.
    pub(crate) async fn of_new_run(
        journal: Journal,
        ledger: OwnerHandle,
        run: RunId,
        policy: FloorPolicy,
    ) -> Result<Box<Self>, Stopped> {
        let source = Source::new(journal, ledger, run, Behind::Unopened).await?;
        Ok(Self::new(source, policy, None))
    }

    /// A reader of a run that is in the log.
    pub(crate) async fn of_run(
        journal: Journal,
        ledger: OwnerHandle,
        run: RunId,
        policy: FloorPolicy,
        after: Option<u64>,
    ) -> Result<Box<Self>, WatchError> {
        let mut source = Source::new(journal, ledger, run, Behind::Unknown).await?;
        source.begin().await?;
        Ok(Self::new(source, policy, after))
    }

    /// Boxed, because it is moved many times.
    fn new(source: Source, policy: FloorPolicy, after: Option<u64>) -> Box<Self> {
        Box::new(Self {
            run: Run::new(source.run),
            source,
            sequencer: Sequencer::new(policy),
            section: None,
            after,
            spoken: VecDeque::new(),
            kept: VecDeque::new(),
            kept_bytes: 0,
            current: None,
            heard: Vec::new(),
            answers_opening: false,
            place: None,
        })
    }

    /// The run's tenant, until the first entry is applied.
    pub(crate) fn tenant(&self) -> Option<&TenantId> {
        self.source.page.front().and_then(|entry| opening(entry)).and_then(|opened| opened.tenant.as_ref())
    }

    /// Shows only the calls at these places, in an order and with a status of their own. To be called before anything
    /// is read.
    pub(crate) fn narrow(&mut self, calls: Range<u16>) {
        self.section = Some(Section::new(calls));
    }

    /// Counts as one of its caller's streams as long as it exists.
    pub(crate) fn hold(&mut self, place: Option<Reading>) {
        self.place = place;
    }

    /// Waits until the feed delivers the opening of a new run, and returns its log position. Never returns if the feed
    /// does not deliver it. Cancel safe.
    pub(crate) async fn opening(&mut self) -> u64 {
        match self.source.opening().await {
            Some(sequence) => sequence,
            None => std::future::pending().await,
        }
    }

    /// Waits for the next events; `None` when the run has ended and everything was emitted. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<v1::RunEvent>>, WatchError> {
        self.next_through(u64::MAX).await
    }

    /// As [`Self::next`], and `None` also when everything was emitted that follows from the log up to the entry
    /// `through`.
    pub(crate) async fn next_through(&mut self, through: u64) -> Result<Option<Vec<v1::RunEvent>>, WatchError> {
        let mut events = Vec::new();
        let mut bytes = 0;
        loop {
            while let Some(spoken) = self.spoken.front().copied() {
                if events.len() >= BATCH_EVENTS_MAX || bytes >= BATCH_BYTES_MAX {
                    return Ok(Some(events));
                }
                let entry = match self.entry_for(&spoken) {
                    Some(entry) => entry,
                    None if events.is_empty() => Box::pin(self.read_again(&spoken)).await?,
                    // Available events are returned before anything is waited for.
                    None => return Ok(Some(events)),
                };
                self.spoken.pop_front();
                let before = events.len();
                api::run_events(&self.run, &entry, &spoken, &mut events);
                if let Some(after) = self.after.filter(|after| spoken.number <= *after) {
                    events.retain(|event| event.sequence > after);
                }
                bytes += events.iter().skip(before).map(size).sum::<usize>();
            }
            let is_through = self.source.page.is_empty() && self.source.last >= through;
            if is_through || self.run.status().is_final() {
                return Ok((!events.is_empty()).then_some(events));
            }
            let entry = match (self.source.ready(), events.is_empty()) {
                (Some(entry), _) => entry,
                (None, true) => self.wait().await?,
                (None, false) => return Ok(Some(events)),
            };
            self.take(entry);
        }
    }

    /// Waits for the next entry, and reports if the run's owner does not end overdue calls.
    async fn wait(&mut self) -> Result<Arc<Entry>, WatchError> {
        let mut look = match self.run.next_deadline() {
            Some(deadline) => Instant::now() + deadline.after(OVERDUE).since(::nats::now()),
            None => return self.source.next().await,
        };
        let (ledger, run) = (self.source.ledger.clone(), self.source.run);
        let mut next = std::pin::pin!(self.source.next());
        loop {
            tokio::select! {
                biased;
                entry = &mut next => return entry,
                () = tokio::time::sleep_until(look) => {
                    ledger.overdue(run);
                    look = Instant::now() + OVERDUE;
                }
            }
        }
    }

    /// Whether the reader answers a request that opened its run, or found it opened.
    pub(crate) fn answers_opening(&self) -> bool {
        self.answers_opening
    }

    /// The run as far as its entries were applied, which may be further than its emitted output.
    pub(crate) fn run(&self) -> &Run {
        &self.run
    }

    fn take(&mut self, entry: Arc<Entry>) {
        self.heard.clear();
        self.run.apply(&entry, &mut self.heard);
        if let Some(section) = &mut self.section {
            section.narrow(&self.run, &mut self.heard);
        }
        let mut spoken = Vec::new();
        self.sequencer.observe(entry.at, &self.heard, &mut spoken);
        for speaks in &spoken {
            if let OutputKind::Speaks { call } = speaks.what {
                metrics::floor_wait(self.run.call(call), entry.at.since(speaks.at));
            }
        }
        let of_this = |span: &Span| span.position.sequence == entry.sequence;
        let heard =
            self.heard.iter().filter(|heard| matches!(heard, Fact::Output { span, .. } if of_this(span))).count();
        let said =
            spoken.iter().filter(|spoken| matches!(&spoken.what, OutputKind::Output { span, .. } if of_this(span)));
        if heard > said.count() {
            self.keep(&entry);
        }
        self.spoken.extend(spoken);
        self.current = Some(entry);
    }

    fn keep(&mut self, entry: &Arc<Entry>) {
        self.kept_bytes += output_bytes(entry);
        self.kept.push_back(Arc::clone(entry));
        while self.kept_bytes > KEPT_BYTES_MAX
            && let Some(dropped) = self.kept.pop_front()
        {
            self.kept_bytes -= output_bytes(&dropped);
        }
    }

    /// The entry with the emitted output, if it is in memory.
    fn entry_for(&self, spoken: &OutputEvent) -> Option<Arc<Entry>> {
        let current = self.current.as_ref()?;
        let OutputKind::Output { span, .. } = &spoken.what else { return Some(Arc::clone(current)) };
        let sequence = span.position.sequence;
        if self.after.is_some_and(|after| spoken.number + u64::from(span.count) - 1 <= after) {
            // The client has this output already: any entry will do, because nothing of it is emitted.
            return Some(Arc::clone(current));
        }
        if current.sequence == sequence {
            return Some(Arc::clone(current));
        }
        let found = self.kept.binary_search_by_key(&sequence, |entry| entry.sequence).ok()?;
        self.kept.get(found).cloned()
    }

    /// Reads a page of the speaking call's entries, beginning with this one. A replica of the broker may be behind, so
    /// if the entry is missing, this replica or another one is queried again.
    async fn read_again(&mut self, spoken: &OutputEvent) -> Result<Arc<Entry>, WatchError> {
        let OutputKind::Output { attempt, span } = &spoken.what else { return Err(WatchError::Unknown) };
        let sequence = span.position.sequence;
        // A single subject, which the broker looks up. With a wildcard it would search the log after the call's last
        // entry.
        let filter = match self.run.call(attempt.call).map(|call| &call.spec().route) {
            Some(Route::Pool { pool, .. }) => {
                let place = SubjectKind::Output { call: attempt.call, pool: pool.clone() };
                Subject { run: self.source.run, place }.to_string()
            }
            Some(Route::Client | Route::Refused(_) | Route::Answered(_)) | None => {
                subject::of_call(self.source.run, attempt.call)
            }
        };
        if let Some(page) = self.source.page_again(sequence).await? {
            return self.keep_page(page, sequence).ok_or(WatchError::Gone(sequence));
        }
        let give_up = Instant::now() + REPLICA_PATIENCE;
        let (page, first) = loop {
            let page = if self.source.journal.first() > sequence {
                // The run is carried.
                self.source.journal.carried_page(self.source.run, sequence - 1).await?
            } else {
                self.source.journal.page(&filter, sequence - 1, PAGE_ENTRIES).await?
            };
            let first = page.entries.front().filter(|entry| entry.sequence == sequence).cloned();
            if first.is_some() || Instant::now() >= give_up {
                break (page, first);
            }
            tokio::time::sleep(REPLICA_PAUSE).await;
        };
        if let Some(first) = first {
            self.keep_page(page, sequence);
            return Ok(first);
        }
        let error = self.source.unless_erased(WatchError::Gone(sequence)).await;
        self.source.go_on_in_history(error).await?;
        let page = self.source.page_again(sequence).await?.unwrap_or_default();
        self.keep_page(page, sequence).ok_or(WatchError::Gone(sequence))
    }

    /// Keeps a page in memory, and returns its entry at this position.
    fn keep_page(&mut self, page: Page, sequence: u64) -> Option<Arc<Entry>> {
        self.kept_bytes = page.entries.iter().map(|entry| output_bytes(entry)).sum();
        self.kept = page.entries;
        self.kept.iter().find(|entry| entry.sequence == sequence).cloned()
    }
}

fn opens(entry: &Entry) -> bool {
    opening(entry).is_some()
}

fn opening(entry: &Entry) -> Option<&RunOpened> {
    entry.events.iter().find_map(|event| match event {
        run::Event::RunOpened(opened) => Some(opened),
        _ => None,
    })
}

fn output_bytes(entry: &Entry) -> usize {
    let chunks = entry.events.iter().flat_map(|event| match event {
        run::Event::Output { chunks, .. } => chunks.as_slice(),
        _ => &[],
    });
    chunks
        .map(|chunk| {
            size_of::<run::Chunk>()
                + match chunk {
                    run::Chunk::Content { content, .. } => content.size(),
                    run::Chunk::Progress(progress) => progress.message.len(),
                }
        })
        .sum()
}

fn size(event: &v1::RunEvent) -> usize {
    prost::Message::encoded_len(event)
}

/// A run's entries in order, each once.
#[derive(Debug)]
struct Source {
    journal: Journal,
    ledger: OwnerHandle,
    run: RunId,
    page: VecDeque<Arc<Entry>>,
    /// Position in the log, used until the first entry from the feed.
    pages: RunPages,
    behind: Behind,
    /// The sequence of the last entry that was returned or is in the page.
    last: u64,
    live: Live,
    /// When a feed that continues after the last entry is doubted; `None` if an entry came since it was waited for.
    doubt: Option<Instant>,
    /// Set once the run is read from the history.
    past: Option<Past>,
}

impl Source {
    async fn new(journal: Journal, ledger: OwnerHandle, run: RunId, behind: Behind) -> Result<Self, Stopped> {
        let (live, journal) = (ledger.watch(run).await?, journal.in_turns());
        let pages = RunPages::new(journal.clone(), run, WATCHED_PAGE_BYTES);
        Ok(Self { journal, ledger, run, page: VecDeque::new(), pages, behind, last: 0, live, doubt: None, past: None })
    }

    /// Whether more must be read from the log before the feed is used.
    fn is_behind(&self) -> bool {
        !matches!(self.behind, Behind::Nothing | Behind::Presumably { .. })
    }

    /// The next entry, if one is available.
    fn ready(&mut self) -> Option<Arc<Entry>> {
        if let Some(entry) = self.page.pop_front() {
            return Some(entry);
        }
        if self.past.is_some() || !matches!(self.behind, Behind::Nothing) {
            return None;
        }
        loop {
            let entry = self.live.try_recv()?;
            self.doubt = None;
            if entry.sequence > self.last {
                self.last = entry.sequence;
                return Some(entry);
            }
        }
    }

    /// The position of the entry that opens the run, once the feed delivers it. It is returned next: nothing precedes
    /// it, even if the feed missed something. `None` if the feed ended or began with another entry; then the log is
    /// read.
    async fn opening(&mut self) -> Option<u64> {
        let entry = self.live.recv().await?;
        let sequence = entry.sequence;
        if opens(&entry) {
            (self.last, self.behind) = (sequence, Behind::Nothing);
            self.page.push_back(entry);
            Some(sequence)
        } else {
            self.behind = Behind::Entries { through: sequence, then: Then::Nothing };
            None
        }
    }

    async fn next_in_log(&mut self) -> Result<Arc<Entry>, WatchError> {
        loop {
            if let Some(entry) = self.ready() {
                return Ok(entry);
            }
            let (asked, again) = match self.behind {
                Behind::Nothing => (ASK_AGAIN.len(), *self.doubt.get_or_insert_with(|| Instant::now() + DOUBT)),
                Behind::Presumably { asked, again } => (asked, again),
                Behind::Unopened | Behind::Unknown => {
                    self.join_feed().await?;
                    continue;
                }
                Behind::Unasked { .. } | Behind::Entries { .. } => {
                    // Boxed, because most runs are followed from their opening and never read.
                    Box::pin(self.read_page()).await?;
                    continue;
                }
            };
            let entry = tokio::select! {
                entry = self.live.recv() => entry,
                () = tokio::time::sleep_until(again) => {
                    self.behind = Behind::Unasked { asked };
                    continue;
                }
            };
            self.doubt = None;
            match entry {
                Some(entry) if entry.sequence > self.last => {
                    if matches!(self.behind, Behind::Nothing) || opens(&entry) {
                        (self.last, self.behind) = (entry.sequence, Behind::Nothing);
                        return Ok(entry);
                    }
                    // A replica that has this entry has all before it.
                    self.behind = Behind::Entries { through: entry.sequence, then: Then::Nothing };
                }
                Some(_) => {}
                None if self.live.run_is_gone() => return Err(WatchError::Gone(self.last)),
                // The reader was too slow for the feed: it joins again, then reads from the log what it missed.
                None => {
                    self.live = self.ledger.watch(self.run).await?;
                    self.behind = Behind::Unknown;
                }
            }
        }
    }

    /// The entries that follow the last one that was read, if that one has left the log and the run is carried; they
    /// may be none. An error if it is not carried: then those after it may have left the log unread.
    async fn carried_if_cut(&self) -> Result<Option<Page>, WatchError> {
        let is_gone = self.journal.first() > self.last;
        if self.last == 0 || !is_gone && !self.journal.is_gone(self.run.shard(), self.last).await? {
            return Ok(None);
        }
        let page = self.journal.carried_page(self.run, self.last).await?;
        if page.carried < self.last { Err(WatchError::Gone(self.last)) } else { Ok(Some(page)) }
    }

    /// The reason why a run cannot be read further: it may have been erased meanwhile.
    async fn unless_erased(&self, error: WatchError) -> WatchError {
        match self.journal.last_of_run(self.run).await {
            Ok(0) => WatchError::Unknown,
            Ok(_) | Err(_) => error,
        }
    }

    /// Waits until the feed is established, and determines the entries before it.
    async fn join_feed(&mut self) -> Result<(), WatchError> {
        // The feed reports its position once, and this future may be dropped while it waits for the leader.
        self.behind = match (self.live.standing().await?, self.behind) {
            (Standing::Following(_), Behind::Unopened) => Behind::Nothing,
            (Standing::Following(Before::Entries(entries)), _) => {
                let last = entries.last().map_or(0, |entry| entry.sequence);
                self.page.extend(entries.into_iter().filter(|entry| entry.sequence > self.last));
                self.last = self.last.max(last);
                Behind::Nothing
            }
            (Standing::Following(Before::Through(through)), _) => Behind::Entries { through, then: Then::Nothing },
            (Standing::Following(Before::Nothing) | Standing::Joined, _) => Behind::Unasked { asked: 0 },
        };
        Ok(())
    }

    /// Reads the next page from the log, if needed. A feed that is only doubted goes on while the leader cannot be
    /// queried.
    async fn read_page(&mut self) -> Result<(), WatchError> {
        let Behind::Unasked { asked } = self.behind else { return self.read_page_once().await };
        match self.read_page_once().await {
            Err(WatchError::Read(error))
                if asked >= ASK_AGAIN.len() && matches!(self.behind, Behind::Unasked { .. }) =>
            {
                tracing::debug!(run.id = %self.run, %error, "querying the log about a silent feed failed");
                self.behind = presumably(asked);
                Ok(())
            }
            read => read,
        }
    }

    /// The feed is established first, and then the end of the run is looked up, so that no entry is missed in between,
    /// whichever replica serves the pages.
    async fn read_page_once(&mut self) -> Result<(), WatchError> {
        let (through, then) = match self.behind {
            Behind::Nothing | Behind::Presumably { .. } => return Ok(()),
            Behind::Entries { through, then } => (through, then),
            Behind::Unopened | Behind::Unknown => return self.join_feed().await,
            Behind::Unasked { asked } if self.pages.through() == self.last => {
                let read = self.pages.next_known().await;
                if self.take_page(read).await? {
                    self.behind = presumably(asked);
                }
                return Ok(());
            }
            Behind::Unasked { asked } => {
                let through = self.journal.last_of_run(self.run).await?;
                if through < self.last
                    && let Some(page) = self.carried_if_cut().await?.filter(is_left)
                {
                    // What follows it is asked for afterwards.
                    self.take_page(Ok(page)).await?;
                    return Ok(());
                }
                let then = Then::Presumably { asked };
                self.behind = Behind::Entries { through, then };
                (through, then)
            }
        };
        if self.last < through {
            let read = if self.pages.through() == self.last {
                self.pages.next(through).await
            } else {
                Box::pin(self.read_towards(through)).await?
            };
            self.take_page(read).await?;
        }
        if self.last >= through {
            self.behind = match then {
                Then::Nothing => Behind::Nothing,
                Then::Presumably { asked } => presumably(asked),
            };
        }
        Ok(())
    }

    /// The next page towards an entry that is known to be there.
    async fn read_towards(&self, through: u64) -> Result<Result<Page, ReadError>, WatchError> {
        if self.journal.first() > self.last
            && let Some(page) = self.carried_if_cut().await?.filter(is_left)
        {
            return Ok(Ok(page));
        }
        let read = self.journal.page_towards(&subject::of_run(self.run), self.last, through, PAGE_ENTRIES).await;
        // It may have been cut while it was read.
        Ok(self.carried_if_cut().await?.filter(is_left).map_or(read, Ok))
    }

    /// Returns whether the log has no more entries after it.
    async fn take_page(&mut self, read: Result<Page, ReadError>) -> Result<bool, WatchError> {
        let page = match read {
            Ok(page) if page.is_cut => return Err(WatchError::Gone(self.last)),
            Ok(page) => page,
            Err(error) => return Err(self.unless_erased(error.into()).await),
        };
        self.last = self.last.max(page.through);
        self.page = page.entries;
        Ok(page.last)
    }
}

fn is_left(page: &Page) -> bool {
    !page.entries.is_empty()
}

#[cfg(test)]
mod tests;
