//! The state of every open run of the shards that are ours: one task that applies the feed in the order of the log, hands
//! entries to whoever watches, and does what is outstanding.
//!
//! It applies what the log brings and nothing else, above all not what was only hoped to be appended. Nothing is done for a
//! shard before everything is applied that was in the log when it became ours.

mod act;
mod answer;
#[cfg(test)]
pub(crate) mod by_hand;
mod census;
mod erasure;
mod letters;
mod log_bytes;
mod overdue;
mod places;
mod recent;
mod slice;
mod standing;
mod takeover;
mod tally;
mod unclaimed;
mod unread;
mod watcher;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use proto::convert::worker::Question;
use run::{AttemptId, CallIndex, Effect, Entry, Event, Heard, PoolId, RunId, Shard, TenantId, Timestamp, Verdict};
use store::Objects;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::act::EffectDone;
use self::census::Census;
use self::erasure::Erasures;
use self::letters::{Posted, owe_letters};
use self::slice::{Open, Slice};
use self::takeover::{Joined, Taken, Written};
use self::tally::Lag;
use self::unclaimed::{Look, Unclaimed};
use self::watcher::Watcher;
use crate::callers::Callers;
use crate::index::projector::Projector;
use crate::known::Known;
use crate::metrics::Ends;
use crate::nats::feed::{Batch, Fed, Feeds};
use crate::nats::journal::{Decoded, Journal, counted_bytes};
use crate::nats::letters::Queue;
use crate::nats::queues::Queues;
use crate::nats::requests::Requests;
use crate::nats::scan::Log;
use crate::nats::signals::Signals;
use crate::nats::snapshots::Snapshots;
use crate::paused::Paused;
use crate::quotas::Quotas;
use crate::registry::Registry;
use crate::shards::{Owned, every};
use crate::tasks::finished;
use crate::trace;
use crate::webhooks::Webhooks;

pub(crate) use self::overdue::OVERDUE;
pub(crate) use self::watcher::{Before, Live, Standing};

/// Requests to the ledger that may wait.
const REQUESTS_MAX: usize = 4096;
/// How long the feed may take to bring what is in the log; then it is read.
const STATE_PATIENCE: Duration = Duration::from_secs(2);
/// How often all is done that is done for no entry and no request.
const SWEEP: Duration = Duration::from_secs(1);
/// How often it is written down how far we came. The next owner reads so much of the log.
const SNAPSHOT: Duration = Duration::from_secs(5);

/// A cheap handle to the ledger.
#[derive(Debug, Clone)]
pub(crate) struct Ledger(mpsc::Sender<Request>);

#[derive(Debug)]
enum Request {
    Watch { run: RunId, watcher: Watcher, standing: oneshot::Sender<Standing> },
    State { run: RunId, through: u64, reply: oneshot::Sender<Option<Known>> },
    Overdue { run: RunId },
    Verdict { question: Question, pool: PoolId, needed: u64, reply: oneshot::Sender<Option<Verdict>> },
}

/// The ledger has stopped: the process is shutting down.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the coordinator is shutting down")]
pub(crate) struct Stopped;

impl Ledger {
    /// Every entry of the run that the feed brings, from when it stands. Ends early for a watcher that is too slow.
    pub(crate) async fn watch(&self, run: RunId) -> Result<Live, Stopped> {
        let (watcher, standing, live) = watcher::pair();
        self.0.send(Request::Watch { run, watcher, standing }).await.map_err(|_| Stopped)?;
        Ok(live)
    }

    /// The run as it stands; `None` when it is not among those that are ours, and open or only just ended.
    pub(crate) async fn state(&self, run: RunId) -> Result<Option<Known>, Stopped> {
        self.state_through(run, 0).await
    }

    /// The same, once all is applied that stands in the log up to `through`; `None` also where that takes too long, or the
    /// shard is lost meanwhile.
    pub(crate) async fn state_through(&self, run: RunId, through: u64) -> Result<Option<Known>, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::State { run, through, reply }).await.map_err(|_| Stopped)?;
        let answer = tokio::time::timeout(STATE_PATIENCE, answer).await;
        Ok(answer.ok().and_then(Result::ok).flatten())
    }
}

/// What the ledger needs of the world.
pub(crate) struct Rim {
    pub(crate) feeds: Feeds,
    pub(crate) journal: Journal,
    pub(crate) requests: Requests,
    pub(crate) snapshots: Snapshots,
    pub(crate) signals: Signals,
    pub(crate) queues: Queues,
    pub(crate) owned: watch::Receiver<Owned>,
    /// Told which shards were written down after we began to leave them.
    pub(crate) written: mpsc::Sender<Shard>,
    pub(crate) registry: watch::Receiver<Arc<Registry>>,
    pub(crate) index: Projector,
    pub(crate) callers: Callers,
    pub(crate) quotas: Quotas,
    pub(crate) paused: watch::Receiver<Arc<Paused>>,
    pub(crate) webhooks: Webhooks,
    /// Where there are webhooks.
    pub(crate) letters: Option<Queue>,
    pub(crate) objects: Objects,
    pub(crate) log: Log,
}

pub(crate) struct Keeper {
    rim: Rim,
    requests: mpsc::Receiver<Request>,
    /// To ask ourselves, from a task that had to wait for the broker first.
    own: Ledger,
    /// One a shard.
    slices: Vec<Slice>,
    /// When to look at which run again; each open run stands here once at most.
    timers: BTreeSet<(Timestamp, RunId)>,
    effects: JoinSet<EffectDone>,
    under_way: HashSet<(RunId, Effect)>,
    /// Runs with effects that found no room among those under way.
    crowded_out: BTreeSet<RunId>,
    questions: JoinSet<()>,
    /// Words to workers that are not repeated until the log shows them.
    words: JoinSet<()>,
    /// When jobs of lost workers were handed back.
    handed_back: HashMap<(RunId, AttemptId), Instant>,
    census: Option<Census>,
    /// When the next look at all calls begins.
    census_due: Instant,
    unclaimed: Unclaimed,
    looks: JoinSet<Look>,
    /// Runs of others in which what is overdue is being ended.
    seen_to: HashSet<RunId>,
    stand_ins: JoinSet<RunId>,
    takeovers: JoinSet<Taken>,
    /// Shards whose open runs were read and that are not followed yet.
    taken: Vec<Taken>,
    joins: JoinSet<Joined>,
    writes: JoinSet<Written>,
    erasures: Erasures,
    posts: JoinSet<Posted>,
    heard: Vec<Heard>,
    /// How much more tenants may write to the log, as of the last count.
    log_left: HashMap<TenantId, u64>,
    /// Calls that are being cancelled because their tenant is beyond its part of the log.
    stopping: HashSet<(RunId, CallIndex)>,
    /// Of some tenant or tool only so many calls may run at once, and what runs is counted.
    limited: bool,
    ends: Ends,
    lag: Lag,
}

pub(crate) fn new(rim: Rim) -> (Ledger, Keeper) {
    let (sender, requests) = mpsc::channel(REQUESTS_MAX);
    let ledger = Ledger(sender);
    let keeper = Keeper {
        rim,
        requests,
        own: ledger.clone(),
        slices: every().map(|_| Slice::default()).collect(),
        timers: BTreeSet::new(),
        effects: JoinSet::new(),
        under_way: HashSet::new(),
        crowded_out: BTreeSet::new(),
        questions: JoinSet::new(),
        words: JoinSet::new(),
        handed_back: HashMap::new(),
        census: None,
        census_due: Instant::now(),
        unclaimed: Unclaimed::default(),
        looks: JoinSet::new(),
        seen_to: HashSet::new(),
        stand_ins: JoinSet::new(),
        takeovers: JoinSet::new(),
        taken: Vec::new(),
        joins: JoinSet::new(),
        writes: JoinSet::new(),
        erasures: Erasures::default(),
        posts: JoinSet::new(),
        heard: Vec::new(),
        log_left: HashMap::new(),
        stopping: HashSet::new(),
        limited: false,
        ends: Ends::default(),
        lag: Lag::default(),
    };
    (ledger, keeper)
}

impl Keeper {
    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut batch = Batch::default();
        let mut sweep = tokio::time::interval(SWEEP);
        let mut snapshot = tokio::time::interval(SNAPSHOT);
        let mut questions = self.rim.signals.questions();
        loop {
            let due = self.timers.first().map(|(at, _)| at.since(proto::now()));
            let timer = async {
                match due {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            // Not a branch below: those before it may always be ready.
            self.step_census();
            let census = tokio::time::sleep_until(self.next_of_census());
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(()) = self.rim.owned.changed() => self.look_at_ownership(),
                Some(done) = self.effects.join_next() => self.effect_done(finished(done)),
                () = timer => self.look_at_due_runs(),
                Some(request) = self.requests.recv() => self.answer(request),
                () = self.rim.feeds.next_batch(&mut batch) => {
                    // A watcher asked before it appended, so its request is here before its entry.
                    while let Ok(request) = self.requests.try_recv() {
                        self.answer(request);
                    }
                    self.take_batch(&mut batch);
                }
                Some(taken) = self.takeovers.join_next() => self.taken(finished(taken)),
                Some(joined) = self.joins.join_next() => self.joined(finished(joined)),
                Some(written) = self.writes.join_next() => self.snapshot_written(finished(written)),
                Some(erased) = self.erasures.batches.join_next() => self.erased(finished(erased)),
                Some(look) = self.erasures.looks.join_next() => finished(look),
                Some(refilled) = self.erasures.refills.join_next() => self.refilled(finished(refilled)),
                Some(posted) = self.posts.join_next() => self.posted(finished(posted)),
                Some(answered) = self.questions.join_next() => finished(answered),
                Some(word) = self.words.join_next() => finished(word),
                Some(id) = self.stand_ins.join_next() => {
                    self.seen_to.remove(&finished(id));
                }
                Some(look) = self.looks.join_next() => self.looked_at_queues(&finished(look)),
                _ = snapshot.tick() => self.write_snapshots(),
                _ = sweep.tick() => {
                    self.follow_taken();
                    self.report_takeovers();
                    self.sweep_handed_back();
                    self.count_for_quotas();
                    self.count_log_bytes();
                    self.count_running();
                    self.look_at_guests();
                    self.erase_due();
                    self.post_letters_again();
                    self.rim.feeds.look_at_connection();
                    self.rim.feeds.merge();
                }
                asked = questions.next(|shard| leads(&self.slices, shard)) => self.question(asked),
                () = census => {}
            }
        }
    }

    fn slice(&self, shard: Shard) -> Option<&Slice> {
        self.slices.get(usize::from(shard.0))
    }

    fn slice_mut(&mut self, shard: Shard) -> Option<&mut Slice> {
        self.slices.get_mut(usize::from(shard.0))
    }

    fn open(&self, id: RunId) -> Option<&Open> {
        self.slice(id.shard()).and_then(|slice| slice.runs.get(&id))
    }

    /// We lead the shard, and our lease has not run out.
    fn may_act(&self, shard: Shard) -> bool {
        self.slice(shard).is_some_and(|slice| slice.phase.leads()) && self.rim.owned.borrow().holds(shard)
    }

    fn answer(&mut self, request: Request) {
        // Whoever asked may have gone; then nobody misses the answer.
        match request {
            Request::Watch { run, watcher, standing } => self.watch(run, watcher, standing),
            Request::Overdue { run } => self.overdue(run),
            Request::State { run, through, reply } => self.tell_standing(run, through, reply),
            Request::Verdict { question, pool, needed, reply } => {
                drop(reply.send(self.verdict(&question, &pool, needed)));
            }
        }
    }

    // ---- what the feed brings ----

    fn take_batch(&mut self, batch: &mut Batch) {
        if let Some(Fed { what: Decoded::Entry(_, newest), .. }) = batch.entries.last() {
            self.lag.note(proto::now().since(newest.at), Instant::now());
        }
        for fed in batch.entries.drain(..) {
            self.take(fed);
        }
        for shard in batch.shards.iter() {
            let Some(slice) = self.slice_mut(shard) else { continue };
            slice.come_to(batch.position);
            if slice.has_caught_up() {
                self.lead(shard);
            }
            self.tell_expecting(shard);
        }
        self.post_letters();
    }

    fn take(&mut self, fed: Fed) {
        let Fed { sequence, bytes, what } = fed;
        let (id, read) = match what {
            Decoded::Entry(id, entry) => (id, Ok(entry)),
            Decoded::Unread(subject) => (subject.run, Err(subject.place)),
            Decoded::Stray => return,
        };
        let Some(slice) = self.slices.get_mut(usize::from(id.shard().0)) else { return };
        if let Ok(entry) = &read
            && sequence > slice.seen
        {
            slice.recent.note(id, entry, bytes);
            slice.hand_to_watchers(id, entry, bytes);
        }
        slice.seen = slice.seen.max(sequence);
        if !slice.phase.folds() || sequence <= slice.applied {
            return;
        }
        slice.applied = sequence;
        let entry = match read {
            Ok(entry) => entry,
            Err(place) => {
                if let Some(open) = slice.runs.get_mut(&id) {
                    open.known.pass_over(place, sequence);
                } else if slice.has_ended(id) || !slice.unread.take(id, &place, sequence) {
                    self.note_stray(id, sequence);
                }
                return;
            }
        };
        let leads = slice.phase.leads();
        let opens = entry.events.iter().any(|event| matches!(event, Event::RunOpened(_)));
        if opens {
            slice.runs.entry(id).or_insert_with(|| Open { known: Known::new(id), timer: None, bytes: 0 });
            slice.unread.remove(id);
        }
        // Entries of a run that is not open come too late to matter.
        let Some(open) = slice.runs.get_mut(&id) else {
            if slice.unread.goes_on(id, sequence) || slice.take_erase_request(id, &entry) {
                return;
            }
            slice.ended.forget(id);
            self.rim.index.note_late(id, &entry);
            self.note_stray(id, sequence);
            return self.stop_late_starts(id, &entry);
        };
        self.heard.clear();
        let traces = leads && telemetry::trace::is_on();
        let before = if traces { trace::before(&open.known.run, &entry.events) } else { None };
        open.known.apply(&entry, &mut self.heard);
        let mut is_beyond = false;
        if self.rim.quotas.counts_log()
            && let Some(tenant) = open.known.run.tenant()
        {
            let stored = counted_bytes(bytes);
            slice.log_bytes.add(tenant, entry.at, stored);
            if leads {
                is_beyond = log_bytes::spend(&mut self.log_left, tenant, stored, &self.rim.quotas);
            }
            open.count_entry(&entry, stored);
        }
        if let Some(before) = before {
            trace::after(&before, &open.known.run, &self.rim.registry.borrow(), entry.at);
        }
        self.rim.index.note(&open.known.run, &entry, &self.heard);
        if self.rim.webhooks.is_on() && sequence > slice.lettered {
            owe_letters(&mut slice.letters, &self.rim.webhooks, &open.known.run, &entry, &self.heard);
        }
        if leads {
            for heard in &self.heard {
                self.ends.accepted(&open.known.run, heard);
                if let Heard::CallEnded { call } = heard
                    && let Some(call) = open.known.run.call(*call)
                {
                    self.ends.count(&open.known.run, call, entry.at, &self.rim.registry.borrow());
                    tracing::debug!(run.id = %id, call.id = %call.spec().id, state = call.state_name(), "a call ended");
                    if traces {
                        trace::call_ended(&open.known.run, call, entry.at);
                    }
                }
            }
        }
        let is_final = open.known.run.status().is_final();
        let matters = self.heard.iter().any(|heard| !matches!(heard, Heard::Output { .. }));
        let freed = self.limited && leads && matters && self.see_running(id);
        self.stop_late_starts(id, &entry);
        if is_beyond {
            self.stop_output(id, &entry);
        }
        if is_final {
            self.forget(id);
        } else if matters && leads {
            self.look_at(id);
        }
        if freed {
            self.look_at_next();
        }
    }

    /// What each tenant has under way in our shards, where anybody wants to know.
    fn count_for_quotas(&self) {
        if !self.rim.quotas.counts() {
            return;
        }
        let open = self.slices.iter().filter(|slice| slice.phase.leads()).flat_map(|slice| &slice.runs);
        self.rim.quotas.look(open.filter_map(|(id, open)| {
            let run = &open.known.run;
            let calls = run.calls().iter().filter(|call| call.outcome().is_none()).count();
            Some((*id, run.tenant()?.clone(), u32::try_from(calls).unwrap_or(u32::MAX)))
        }));
    }

    fn forget(&mut self, id: RunId) {
        let closed = self.close(id);
        let Some(slice) = self.slice_mut(id.shard()) else { return };
        if let Some(Open { known, bytes, .. }) = closed {
            slice.owed.take(&known, bytes);
            slice.ended.keep(known);
        }
        slice.watchers.remove(&id);
    }

    /// An open run cannot be ended any more, because its entries have left the log.
    fn forget_gone(&mut self, id: RunId) {
        let Some(Open { known, .. }) = self.close(id) else { return };
        tracing::warn!(run.id = %id, "forgetting an open run whose entries have left the log");
        self.rim.index.erase(id, known.last);
        let Some(slice) = self.slice_mut(id.shard()) else { return };
        slice.snapshot.outdated = true;
        slice.recent.forget(id);
        slice.watchers.remove(&id).into_iter().flatten().for_each(Watcher::end);
    }

    /// The run is open no more.
    fn close(&mut self, id: RunId) -> Option<Open> {
        let open = self.slice_mut(id.shard())?.runs.remove(&id)?;
        self.rim.quotas.ended(id, open.known.run.tenant());
        if let Some(timer) = open.timer {
            self.timers.remove(&(timer, id));
        }
        Some(open)
    }

    /// A call may be cancelled just as a worker takes it up: nobody will hear that attempt, so it is told to stop.
    fn stop_late_starts(&mut self, id: RunId, entry: &Entry) {
        let starts = entry.events.iter().find_map(|event| match event {
            Event::AttemptStarted { attempt, pool, .. } => Some((*attempt, pool)),
            _ => None,
        });
        let Some((attempt, pool)) = starts else { return };
        let ends = entry.events.iter().any(|event| matches!(event, Event::AttemptEnded { .. }));
        let call = self.open(id).and_then(|open| open.known.run.call(attempt.call));
        let is_late = !ends && call.is_none_or(|call| call.outcome().is_some());
        if is_late && self.may_act(id.shard()) {
            let (signals, pool) = (self.rim.signals.clone(), pool.clone());
            self.say(async move { signals.stop(&pool, id, attempt).await });
        }
    }
}

fn leads(slices: &[Slice], shard: Shard) -> bool {
    slices.get(usize::from(shard.0)).is_some_and(|slice| slice.phase.leads())
}
