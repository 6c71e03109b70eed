//! Drives the owner of this coordinator's shards ([`owner::Owner`]): one task that applies the feed in the order of
//! the log, passes entries on to watchers, and performs the owner's actions.
//!
//! Only entries that the log has returned are applied, never an append that is not confirmed. The task does not act for
//! a shard before all entries are applied that were in the log when the shard was claimed.

mod act;
mod answer;
mod asking;
mod carry;
mod census;
mod erasure;
pub(crate) mod files;
mod log_bytes;
mod notifications;
mod overdue;
mod past;
mod recent;
pub(crate) mod records;
mod run_state;
#[cfg(test)]
pub(crate) mod scripted;
mod shard;
mod slots;
mod surroundings;
mod takeover;
mod tally;
mod turns;
mod unclaimed;
mod watcher;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ::history::History;
use ::objects::Objects;
use owner::{Applied, Known, Noted, OpenRun, Owner, Question, SHARDS_MAX};
use run::{CallIndex, Entry, Fact, PoolId, Run, RunId, Shard, TenantId, Verdict};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::act::EffectDone;
use self::asking::Askings;
use self::carry::Carrying;
use self::census::Census;
use self::erasure::InProgress;
use self::notifications::{Posted, add_notifications};
use self::shard::ShardTask;
use self::slots::Limited;
use self::surroundings::Surroundings;
use self::takeover::{Joined, Taken, Written};
use self::tally::Lag;
use self::turns::note_turns;
use self::unclaimed::Look;
use self::watcher::Watcher;
use crate::auth::callers::Callers;
use crate::fleet::paused::Paused;
use crate::fleet::registry::Registry;
use crate::hook_notices::HookNotices;
use crate::index::projector::Projector;
use crate::metrics::Ends;
use crate::nats::feed::{Batch, Fed, Feeds};
use crate::nats::journal::{Decoded, Journals, counted_bytes};
use crate::nats::notifications::Queue;
use crate::nats::queues::Queues;
use crate::nats::requests::Requests;
use crate::nats::scan::Log;
use crate::nats::signals::Signals;
use crate::nats::snapshots::Snapshots;
use crate::notifications::Webhooks;
use crate::overview::OverviewShare;
use crate::quotas::Quotas;
use crate::shards::{Owned, every};
use crate::tasks::finished;
use crate::trace;
use crate::turns::TurnOrder;

pub(crate) use self::past::OpenAmong;
pub(crate) use self::tally::job_bytes;
pub(crate) use self::watcher::{Before, Live, Standing};
pub(crate) use owner::OVERDUE;

/// The most requests that wait for the owner task.
const REQUESTS_MAX: usize = 4096;
/// How long to wait for the feed to deliver what is in the log before reading the log.
const STATE_PATIENCE: Duration = Duration::from_secs(2);
/// The interval of the work that neither entries nor requests trigger.
const SWEEP: Duration = Duration::from_secs(1);
/// The interval of snapshots. The next owner reads at most so much of the log.
const SNAPSHOT: Duration = Duration::from_secs(5);

/// A cheap handle to the owner task.
#[derive(Debug, Clone)]
pub(crate) struct OwnerHandle(mpsc::Sender<Request>);

#[derive(Debug)]
enum Request {
    Watch { run: RunId, watcher: Watcher, standing: oneshot::Sender<Standing> },
    State { run: RunId, through: u64, reply: oneshot::Sender<Option<Known>> },
    Overdue { run: RunId },
    OpenAmong { shard: Shard, runs: Vec<RunId>, reply: oneshot::Sender<Option<OpenAmong>> },
    Verdict { question: Question, pool: PoolId, needed: u64, reply: oneshot::Sender<Option<(Verdict, bool)>> },
}

/// The owner task has stopped because the process is shutting down.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the coordinator is shutting down")]
pub(crate) struct Stopped;

impl OwnerHandle {
    /// Every entry of the run that the feed delivers from its position on. Ends early for a watcher that is too slow.
    pub(crate) async fn watch(&self, run: RunId) -> Result<Live, Stopped> {
        let (watcher, standing, live) = watcher::pair();
        self.0.send(Request::Watch { run, watcher, standing }).await.map_err(|_| Stopped)?;
        Ok(live)
    }

    /// The current state of the run; `None` unless the shard is ours and the run is open or has just ended.
    pub(crate) async fn state(&self, run: RunId) -> Result<Option<Known>, Stopped> {
        self.state_through(run, 0).await
    }

    /// The same, after all entries of the log up to `through` are applied. Also `None` if that takes too long, or if
    /// the shard is lost meanwhile.
    pub(crate) async fn state_through(&self, run: RunId, through: u64) -> Result<Option<Known>, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::State { run, through, reply }).await.map_err(|_| Stopped)?;
        let answer = tokio::time::timeout(STATE_PATIENCE, answer).await;
        Ok(answer.ok().and_then(Result::ok).flatten())
    }
}

/// The IO of the owner task.
pub(crate) struct Io {
    pub(crate) feeds: Feeds,
    pub(crate) journals: Journals,
    pub(crate) requests: Requests,
    pub(crate) snapshots: Snapshots,
    pub(crate) signals: Signals,
    pub(crate) queues: Queues,
    pub(crate) owned: watch::Receiver<Owned>,
    /// Receives the shards whose snapshots were stored after their release began.
    pub(crate) written: mpsc::Sender<Shard>,
    pub(crate) registry: watch::Receiver<Arc<Registry>>,
    pub(crate) index: Projector,
    pub(crate) callers: Callers,
    pub(crate) quotas: Quotas,
    pub(crate) turns: TurnOrder,
    /// Receives the figures of our shards' calls, once a second.
    pub(crate) overview: watch::Sender<OverviewShare>,
    pub(crate) paused: watch::Receiver<Arc<Paused>>,
    pub(crate) webhooks: Webhooks,
    /// The queue of webhooks, if there are webhooks.
    pub(crate) letters: Option<Queue>,
    pub(crate) hook_notices: HookNotices,
    pub(crate) objects: Objects,
    /// Where runs that have ended are written, if there is a history.
    pub(crate) history: Option<History>,
    pub(crate) log: Log,
}

pub(crate) struct OwnerTask {
    io: Io,
    requests: mpsc::Receiver<Request>,
    /// For tasks that first waited for the broker and then send a request to the owner task.
    own: OwnerHandle,
    /// Decides the actions for the shards that are ours.
    owner: Owner,
    /// The further state of each shard.
    slices: Vec<ShardTask>,
    effects: JoinSet<EffectDone>,
    questions: JoinSet<()>,
    askings: Askings,
    /// Messages to workers that are not repeated until the log shows them.
    messages: JoinSet<()>,
    census: Option<Census>,
    /// When the next round of checks of all calls begins.
    census_due: Instant,
    looks: JoinSet<Look>,
    /// The last answers about the queues.
    given: Look,
    /// Runs of other owners in which overdue steps are being performed.
    overdue_runs: HashSet<RunId>,
    overdue_ends: JoinSet<RunId>,
    takeovers: JoinSet<Taken>,
    /// Shards whose open runs were read but that are not followed yet.
    taken: Vec<Taken>,
    joins: JoinSet<Joined>,
    writes: JoinSet<Written>,
    erasures: InProgress,
    carrying: Carrying,
    posts: JoinSet<Posted>,
    heard: Vec<Fact>,
    /// How much more tenants may write to the log, as of the last count.
    log_left: HashMap<TenantId, u64>,
    /// Calls that are being cancelled because their tenant is beyond its part of the log.
    stopping: HashSet<(RunId, CallIndex)>,
    limited: Limited,
    ends: Ends,
    lag: Lag,
}

pub(crate) fn new(io: Io) -> (OwnerHandle, OwnerTask) {
    let (sender, requests) = mpsc::channel(REQUESTS_MAX);
    let ledger = OwnerHandle(sender);
    let keeper = OwnerTask {
        io,
        requests,
        own: ledger.clone(),
        owner: Owner::new(SHARDS_MAX),
        slices: every().map(|_| ShardTask::default()).collect(),
        effects: JoinSet::new(),
        questions: JoinSet::new(),
        askings: Askings::default(),
        messages: JoinSet::new(),
        census: None,
        census_due: Instant::now(),
        looks: JoinSet::new(),
        given: Look::new(),
        overdue_runs: HashSet::new(),
        overdue_ends: JoinSet::new(),
        takeovers: JoinSet::new(),
        taken: Vec::new(),
        joins: JoinSet::new(),
        writes: JoinSet::new(),
        erasures: InProgress::default(),
        carrying: Carrying::default(),
        posts: JoinSet::new(),
        heard: Vec::new(),
        log_left: HashMap::new(),
        stopping: HashSet::new(),
        limited: Limited::default(),
        ends: Ends::default(),
        lag: Lag::default(),
    };
    (ledger, keeper)
}

impl OwnerTask {
    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut batch = Batch::default();
        let mut sweep = tokio::time::interval(SWEEP);
        let mut snapshot = tokio::time::interval(SNAPSHOT);
        let mut questions = self.io.signals.questions();
        loop {
            // Not a branch of the `select!`, because the branches before it may always be ready.
            self.step_census();
            self.hand_out();
            self.perform_actions();
            let due = self.owner.poll_timeout().map(|at| at.since(::nats::now()));
            let timer = async {
                match due {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            let census = tokio::time::sleep_until(self.next_of_census());
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Ok(()) = self.io.owned.changed() => self.look_at_ownership(),
                Some(done) = self.effects.join_next() => self.effect_done(finished(done)),
                () = timer => self.check_due_runs(),
                Some(request) = self.requests.recv() => self.answer(request),
                () = self.io.feeds.next_batch(&mut batch) => {
                    // A watcher sends its request before it appends, so the request arrives before its entry.
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
                Some(carried) = self.carrying.done.join_next() => self.carried(finished(carried)),
                Some(looked) = self.carrying.looks.join_next() => self.looked(finished(looked)),
                Some(posted) = self.posts.join_next() => self.posted(finished(posted)),
                Some(answered) = self.questions.join_next() => finished(answered),
                Some(stored) = self.askings.storing.join_next() => self.asking_stored(finished(stored)),
                Some(sent) = self.messages.join_next() => finished(sent),
                Some(id) = self.overdue_ends.join_next() => {
                    self.overdue_runs.remove(&finished(id));
                }
                Some(look) = self.looks.join_next() => self.queues_answered(finished(look)),
                _ = snapshot.tick() => self.write_snapshots(),
                _ = sweep.tick() => {
                    self.follow_taken();
                    self.report_takeovers();
                    self.count_for_quotas();
                    self.count_log_bytes();
                    self.count_running();
                    self.io.turns.count_slots(&self.io.registry.borrow());
                    self.leave_unwatched();
                    self.erase_due();
                    self.carry_due();
                    self.post_letters_again();
                    self.answer_late_askings();
                    self.io.feeds.look_at_connection();
                    self.io.feeds.look_at_silent();
                    self.io.feeds.merge();
                }
                asked = questions.next(|shard| leads(&self.owner, shard)) => self.question(asked),
                () = census => {}
            }
        }
    }

    fn slice(&self, shard: Shard) -> Option<&ShardTask> {
        self.slices.get(usize::from(shard.0))
    }

    fn slice_mut(&mut self, shard: Shard) -> Option<&mut ShardTask> {
        self.slices.get_mut(usize::from(shard.0))
    }

    /// Whether the shard is ours, its runs are known, and our lease has not expired.
    fn may_act(&self, shard: Shard) -> bool {
        leads(&self.owner, shard) && self.io.owned.borrow().holds(shard)
    }

    fn answer(&mut self, request: Request) {
        // The requester may have gone, so errors are ignored.
        match request {
            Request::Watch { run, watcher, standing } => self.watch(run, watcher, standing),
            Request::Overdue { run } => self.overdue(run),
            Request::State { run, through, reply } => self.run_state(run, through, reply),
            Request::OpenAmong { shard, runs, reply } => drop(reply.send(self.open_among(shard, &runs))),
            Request::Verdict { question, pool, needed, reply } => {
                drop(reply.send(self.verdict(&question, &pool, needed)));
            }
        }
    }

    fn take_batch(&mut self, batch: &mut Batch) {
        if let Some(Fed { what: Decoded::Entry(_, newest), .. }) = batch.entries.last() {
            self.lag.note(::nats::now().since(newest.at), Instant::now());
        }
        for fed in batch.entries.drain(..) {
            self.take(fed);
        }
        for (shards, position) in batch.complete.drain(..) {
            for shard in shards.iter() {
                let Some(slice) = self.slice_mut(shard) else { continue };
                slice.seen = slice.seen.max(position);
                self.owner.handle_position(shard, position);
                self.lead(shard);
                self.answer_expecting(shard);
            }
        }
        self.post_letters();
    }

    fn take(&mut self, fed: Fed) {
        let Fed { sequence, bytes, what } = fed;
        match what {
            Decoded::Entry(id, entry) => self.take_entry(id, &entry, bytes),
            Decoded::Unread(subject) => {
                let run = subject.run;
                let Some(slice) = self.slice_mut(run.shard()) else { return };
                slice.seen = slice.seen.max(sequence);
                slice.newest = slice.newest.max(sequence);
                let Some(slice) = self.slices.get(usize::from(run.shard().0)) else { return };
                let has_ended = || slice.owed.holds(run);
                let place = (run, subject.place);
                match self.owner.handle_unreadable(place, sequence, ::nats::now(), has_ended) {
                    Noted::Ignored | Noted::Kept => {}
                    Noted::Stray => self.note_stray(run, sequence),
                    Noted::NoRoom => {
                        tracing::error!(
                            run.id = %run,
                            "there is no room for more runs that a newer release opened: upgrade this coordinator now, \
                             or stop the newer ones"
                        );
                        self.note_stray(run, sequence);
                    }
                }
            }
            Decoded::Stray => {}
        }
    }

    fn take_entry(&mut self, id: RunId, entry: &Arc<Entry>, bytes: u32) {
        let Some(slice) = self.slices.get_mut(usize::from(id.shard().0)) else { return };
        if entry.sequence > slice.seen {
            slice.recent.note(id, entry, bytes);
            slice.hand_to_watchers(id, entry, bytes);
        }
        slice.seen = slice.seen.max(entry.sequence);
        slice.newest = slice.newest.max(entry.sequence);
        let leads = leads(&self.owner, id.shard());
        let traces = leads && telemetry::trace::is_on();
        let before =
            if traces { self.owner.run(id).and_then(|known| trace::before(&known.run, &entry.events)) } else { None };
        self.heard.clear();
        let world = Surroundings::new(&self.io, self.limited);
        let open = match self.owner.handle_entry(id, entry, &mut self.heard, ::nats::now(), &world) {
            Applied::Ignored | Applied::Unread => return,
            Applied::Closed => {
                if !slice.owed.take_request(id, entry) {
                    self.io.index.note_late(id, entry);
                    self.note_stray(id, entry.sequence);
                }
                return;
            }
            Applied::Open(open) => open,
        };
        see_woken(&self.io.quotas, open, leads);
        let mut is_beyond = false;
        if self.io.quotas.counts_log()
            && let Some(tenant) = open.known.run.tenant()
        {
            let stored = counted_bytes(bytes);
            slice.log_bytes.add(tenant, entry.at, stored);
            if leads {
                is_beyond = log_bytes::spend(&mut self.log_left, tenant, stored, &self.io.quotas);
            }
            erasure::count_entry(open, entry, stored);
        }
        let run = &open.known.run;
        if let Some(before) = before {
            trace::after(&before, run, &self.io.registry.borrow(), entry.at);
        }
        self.io.index.note(run, entry, &self.heard);
        if self.io.webhooks.is_on() {
            add_notifications(&mut slice.outbox, &self.io.webhooks, run, entry, &self.heard);
        }
        if leads {
            note_turns(&self.io, run, entry, &self.heard);
            count_ends(&mut self.ends, run, entry, &self.heard, &self.io.registry);
            notify_hooks(&self.io.hook_notices, run, entry, &self.heard);
        }
        let is_final = run.status().is_final();
        let matters = self.heard.iter().any(|heard| !matches!(heard, Fact::Output { .. }));
        let freed = self.limited.is_on && leads && matters && self.see_running(id);
        if is_beyond {
            self.stop_output(id, entry);
        }
        if is_final {
            self.forget(id);
        } else if matters && leads {
            self.check_run(id);
        }
        if matters && leads {
            self.answer_askings_of(id);
        }
        if freed {
            self.check_next();
        }
    }

    /// Counts what each tenant has in progress in our shards, if quotas need it.
    fn count_for_quotas(&self) {
        if !self.io.quotas.counts() {
            return;
        }
        let leading = || self.owner.shards().iter().filter(|shard| shard.phase().leads());
        let awake = leading().flat_map(|shard| shard.awake()).filter_map(|(id, open)| {
            let run = &open.known.run;
            Some((id, run.tenant()?.clone(), owner::open_calls(run)))
        });
        let resting = leading().flat_map(|shard| shard.resting().tenants());
        let is_at_rest = |id: RunId| self.owner.shard(id.shard()).is_some_and(|shard| shard.resting().contains(id));
        self.io.quotas.look(awake, resting, is_at_rest);
    }

    fn forget(&mut self, id: RunId) {
        let closed = self.close(id);
        let Some(slice) = self.slices.get_mut(usize::from(id.shard().0)) else { return };
        if let Some(OpenRun { known, stored_bytes, .. }) = closed {
            slice.owed.take(&known, stored_bytes);
            self.owner.keep_ended(known);
        }
        slice.watchers.remove(&id);
    }

    /// An open run cannot be ended any more, because its entries have left the log.
    fn forget_gone(&mut self, id: RunId) {
        let Some(OpenRun { known, .. }) = self.close(id) else { return };
        tracing::warn!(run.id = %id, "forgetting an open run whose entries have left the log");
        self.io.index.erase(id, known.last);
        let Some(slice) = self.slice_mut(id.shard()) else { return };
        slice.snapshot.schedule.outdate();
        slice.recent.forget(id);
        slice.watchers.remove(&id).into_iter().flatten().for_each(Watcher::end);
    }

    /// Closes a run that is not open any more.
    fn close(&mut self, id: RunId) -> Option<OpenRun> {
        let mut open = self.owner.close(id, ::nats::now())?;
        self.io.turns.forget_run(&open.known.run);
        self.io.quotas.forget_waiting(&open.known.run);
        see_woken(&self.io.quotas, &mut open, true);
        self.io.quotas.ended(id, open.known.run.tenant());
        Some(open)
    }
}

fn leads(owner: &Owner, shard: Shard) -> bool {
    owner.shard(shard).is_some_and(|shard| shard.phase().leads())
}

/// The claim by which the shard is ours.
fn claim(owner: &Owner, shard: Shard) -> Option<u64> {
    owner.shard(shard).and_then(|shard| shard.phase().claim())
}

/// Tells the quotas once that a run is not at rest any more. They count runs of shards for which the owner acts.
fn see_woken(quotas: &Quotas, open: &mut OpenRun, is_counted: bool) {
    if let Some(calls) = open.woken.take().filter(|_| is_counted) {
        quotas.woken(open.known.run.id(), open.known.run.tenant(), calls);
    }
}

/// Counts the calls that an entry accepted or ended, for the metrics.
fn count_ends(ends: &mut Ends, run: &Run, entry: &Entry, heard: &[Fact], registry: &watch::Receiver<Arc<Registry>>) {
    for heard in heard {
        ends.accepted(run, heard);
        if let Fact::AttemptStarted { attempt, .. } = heard
            && let Some(call) = run.call(attempt.call)
        {
            ends.started(call, attempt.number, entry.at, &registry.borrow());
        }
        if let Fact::CallEnded { call } = heard
            && let Some(call) = run.call(*call)
        {
            ends.count(run, call, entry.at, &registry.borrow());
            tracing::debug!(run.id = %run.id(), call.id = %call.spec().id, state = call.state_name(), "a call ended");
            if telemetry::trace::is_on() {
                trace::call_ended(run, call, entry.at);
            }
        }
    }
}

/// Notifies hooks of calls that ended with an entry.
fn notify_hooks(notices: &HookNotices, run: &Run, entry: &Entry, heard: &[Fact]) {
    for heard in heard {
        if let Fact::CallEnded { call } = heard
            && let Some(call) = run.call(*call)
        {
            notices.ended(run, call, entry);
        }
    }
}
