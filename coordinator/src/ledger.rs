//! The state of every open run: one task that applies the feed in the order of the log, hands entries to whoever watches,
//! and, for the shards that this coordinator owns, does what is outstanding.
//!
//! It applies what the log brings and nothing else, above all not what was only hoped to be appended.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use proto::convert::worker::{Answer, Question};
use proto::subject::{Place, Subject};
use run::{
    AttemptId, CallState, ChunkIndex, Effect, Entry, Event, Heard, PoolId, Route, Run, RunId, Shard, Timestamp, Verdict,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::nats::feed::{Fed, Feed};
use crate::nats::journal::{AppendError, Expect, Journal};
use crate::nats::leases::Owned;
use crate::nats::signals::{Asked, Questions, Signals};
use crate::registry::Registry;
use crate::stranded;

/// Requests to the ledger that may wait.
const REQUESTS_MAX: usize = 4096;
/// Entries that may wait for one watcher. A slower one is dropped from the live feed and reads from the log instead.
const WATCHER_ENTRIES_MAX: usize = 256;
/// How long an effect has to show in the log before it is performed again.
const EFFECT_REPEAT: Duration = Duration::from_secs(1);
/// How often lost workers' jobs are looked for.
const SWEEP: Duration = Duration::from_secs(1);
/// Effects under way at once.
const EFFECTS_MAX: usize = 256;

/// A cheap handle to the ledger.
#[derive(Debug, Clone)]
pub(crate) struct Ledger(mpsc::Sender<Request>);

#[derive(Debug)]
enum Request {
    Watch { run: RunId, live: mpsc::Sender<Arc<Entry>> },
    State { run: RunId, reply: oneshot::Sender<Option<Run>> },
    Verdict { question: Question, pool: PoolId, needed: u64, reply: oneshot::Sender<Option<Verdict>> },
}

/// The ledger has stopped: the process is shutting down.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("the coordinator is shutting down")]
pub(crate) struct Stopped;

impl Ledger {
    /// From now on, every entry of the run that the feed brings. Ends early for a watcher that is too slow.
    pub(crate) async fn watch(&self, run: RunId) -> Result<mpsc::Receiver<Arc<Entry>>, Stopped> {
        let (live, entries) = mpsc::channel(WATCHER_ENTRIES_MAX);
        self.0.send(Request::Watch { run, live }).await.map_err(|_| Stopped)?;
        Ok(entries)
    }

    /// The run as it stands; `None` when it is not among the open ones.
    pub(crate) async fn state(&self, run: RunId) -> Result<Option<Run>, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::State { run, reply }).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }
}

/// What the ledger needs of the world.
pub(crate) struct Rim {
    pub(crate) feed: Feed,
    pub(crate) journal: Journal,
    pub(crate) signals: Signals,
    pub(crate) owned: watch::Receiver<Owned>,
    pub(crate) registry: watch::Receiver<Arc<Registry>>,
    /// Told how far the feed has come.
    pub(crate) position: watch::Sender<u64>,
}

pub(crate) struct Keeper {
    rim: Rim,
    requests: mpsc::Receiver<Request>,
    /// To ask ourselves, from a task that had to wait for the broker first.
    own: Ledger,
    runs: HashMap<RunId, Open>,
    /// The shards that were ours when ownership last changed.
    held: Vec<Shard>,
    watchers: HashMap<RunId, Vec<mpsc::Sender<Arc<Entry>>>>,
    /// When to look at which run again; each open run stands here once at most.
    timers: BTreeSet<(Timestamp, RunId)>,
    position: u64,
    effects: JoinSet<(RunId, Effect, Result<(), AppendError>)>,
    under_way: HashSet<(RunId, Effect)>,
    /// Runs with effects that found no room among those under way.
    crowded_out: BTreeSet<RunId>,
    questions: JoinSet<()>,
    /// Jobs of lost workers that were handed back already.
    handed_back: HashSet<(RunId, AttemptId)>,
    heard: Vec<Heard>,
}

struct Open {
    run: Run,
    timer: Option<Timestamp>,
}

pub(crate) fn new(rim: Rim) -> (Ledger, Keeper) {
    let (sender, requests) = mpsc::channel(REQUESTS_MAX);
    let ledger = Ledger(sender);
    let keeper = Keeper {
        rim,
        requests,
        own: ledger.clone(),
        runs: HashMap::new(),
        held: Vec::new(),
        watchers: HashMap::new(),
        timers: BTreeSet::new(),
        position: 0,
        effects: JoinSet::new(),
        under_way: HashSet::new(),
        crowded_out: BTreeSet::new(),
        questions: JoinSet::new(),
        handed_back: HashSet::new(),
        heard: Vec::new(),
    };
    (ledger, keeper)
}

impl Keeper {
    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut batch = Vec::new();
        let mut sweep = tokio::time::interval(SWEEP);
        let mut questions = None;
        loop {
            let due = self.timers.first().map(|(at, _)| at.since(proto::now()));
            let timer = async {
                match due {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(done) = self.effects.join_next() => self.effect_done(done),
                () = timer => self.look_at_due_runs(),
                Some(request) = self.requests.recv() => self.answer(request),
                () = self.rim.feed.next_batch(&mut batch) => {
                    // A watcher asked before it appended, so its request is here before its entry.
                    while let Ok(request) = self.requests.try_recv() {
                        self.answer(request);
                    }
                    for fed in batch.drain(..) {
                        self.take(fed);
                    }
                    self.rim.position.send_replace(self.position);
                }
                Some(_) = self.questions.join_next() => {}
                Ok(()) = self.rim.owned.changed() => self.look_at_new_shards(),
                _ = sweep.tick() => {
                    if questions.is_none() {
                        questions = self.rim.signals.questions().await;
                    }
                    self.sweep();
                }
                asked = next(&mut questions) => match asked {
                    Some(asked) => self.question(asked),
                    None => questions = None,
                },
            }
        }
    }

    fn answer(&mut self, request: Request) {
        match request {
            Request::Watch { run, live } => self.watchers.entry(run).or_default().push(live),
            Request::State { run, reply } => {
                // Whoever asked may have gone; then nobody misses the answer.
                drop(reply.send(self.runs.get(&run).map(|open| open.run.clone())));
            }
            Request::Verdict { question, pool, needed, reply } => {
                drop(reply.send(self.verdict(&question, &pool, needed)));
            }
        }
    }

    // ---- what the feed brings ----

    fn take(&mut self, fed: Fed) {
        self.position = fed.sequence;
        let Some((id, entry)) = fed.entry else { return };
        self.hand_to_watchers(id, &entry);
        let opens = entry.events.iter().any(|event| matches!(event, Event::RunOpened(_)));
        if opens {
            self.runs.entry(id).or_insert_with(|| Open { run: Run::new(id), timer: None });
        }
        // Entries of a run that is not open come too late to matter.
        let Some(open) = self.runs.get_mut(&id) else { return self.stop_late_starts(id, &entry) };
        self.heard.clear();
        open.run.apply(&entry, &mut self.heard);
        self.stop_late_starts(id, &entry);
        let Some(open) = self.runs.get(&id) else { return };
        let matters = self.heard.iter().any(|heard| !matches!(heard, Heard::Output { .. }));
        if open.run.status().is_final() {
            self.forget(id);
        } else if matters {
            self.look_at(id);
        }
    }

    /// A call may be cancelled just as a worker takes it up: nobody will hear that attempt, so it is told to stop.
    fn stop_late_starts(&mut self, id: RunId, entry: &Entry) {
        let starts = entry.events.iter().find_map(|event| match event {
            Event::AttemptStarted { attempt, pool, .. } => Some((*attempt, pool)),
            _ => None,
        });
        let Some((attempt, pool)) = starts else { return };
        let ends = entry.events.iter().any(|event| matches!(event, Event::AttemptEnded { .. }));
        let call = self.runs.get(&id).and_then(|open| open.run.call(attempt.call));
        let is_late = !ends && call.is_none_or(|call| call.outcome().is_some());
        if is_late && self.rim.owned.borrow().holds(id.shard()) {
            let (signals, pool) = (self.rim.signals.clone(), pool.clone());
            self.questions.spawn(async move { signals.stop(&pool, id, attempt).await });
        }
    }

    fn hand_to_watchers(&mut self, id: RunId, entry: &Arc<Entry>) {
        if let Some(watchers) = self.watchers.get_mut(&id) {
            watchers.retain(|watcher| watcher.try_send(Arc::clone(entry)).is_ok());
            if watchers.is_empty() {
                self.watchers.remove(&id);
            }
        }
    }

    fn forget(&mut self, id: RunId) {
        if let Some(timer) = self.runs.remove(&id).and_then(|open| open.timer) {
            self.timers.remove(&(timer, id));
        }
        self.watchers.remove(&id);
    }

    // ---- what is to be done ----

    /// Does what is outstanding for a run, and sets its timer.
    fn look_at(&mut self, id: RunId) {
        let Some(open) = self.runs.get_mut(&id) else { return };
        let now = proto::now();
        let effects = open.run.outstanding(now);
        let next = if effects.is_empty() { open.run.next_deadline() } else { Some(now.after(EFFECT_REPEAT)) };
        if open.timer != next {
            if let Some(old) = open.timer.take() {
                self.timers.remove(&(old, id));
            }
            open.timer = next;
            self.timers.extend(next.map(|at| (at, id)));
        }
        if effects.is_empty() || !self.rim.owned.borrow().holds(id.shard()) {
            return;
        }
        for effect in effects {
            if self.under_way.len() >= EFFECTS_MAX {
                self.crowded_out.insert(id);
                return;
            }
            self.perform(id, effect);
        }
    }

    /// What was put off while a shard was nobody's is due at once.
    fn look_at_new_shards(&mut self) {
        let held = self.rim.owned.borrow_and_update().shards();
        let new: Vec<Shard> = held.iter().filter(|shard| !self.held.contains(shard)).copied().collect();
        self.held = held;
        if new.is_empty() {
            return;
        }
        let ids: Vec<RunId> = self.runs.keys().filter(|id| new.contains(&id.shard())).copied().collect();
        for id in ids {
            self.look_at(id);
        }
    }

    fn look_at_due_runs(&mut self) {
        let now = proto::now();
        while let Some((at, id)) = self.timers.first().copied() {
            if at > now {
                return;
            }
            self.timers.pop_first();
            if let Some(open) = self.runs.get_mut(&id) {
                open.timer = None;
            }
            self.look_at(id);
        }
    }

    fn perform(&mut self, id: RunId, effect: Effect) {
        let Some(open) = self.runs.get(&id) else { return };
        let registry = self.rim.registry.borrow().clone();
        let Some(act) = act(&open.run, effect, &registry) else { return };
        if !self.under_way.insert((id, effect)) {
            return;
        }
        let (journal, signals) = (self.rim.journal.clone(), self.rim.signals.clone());
        self.effects.spawn(async move {
            let result = match act {
                Act::Stop { pool, attempt } => {
                    signals.stop(&pool, id, attempt).await;
                    Ok(())
                }
                Act::Append { event, job, expect } => {
                    let appended = journal.append(id, &[event], job.as_deref(), expect).await;
                    appended.map(|_| ())
                }
            };
            (id, effect, result)
        });
    }

    fn effect_done(&mut self, done: Result<(RunId, Effect, Result<(), AppendError>), tokio::task::JoinError>) {
        match done {
            Ok((id, effect, result)) => {
                self.under_way.remove(&(id, effect));
                match result {
                    // A conflict means that the log knows better; the feed will bring it.
                    Ok(()) | Err(AppendError::Conflict) => {}
                    Err(error) => tracing::warn!(run.id = %id, ?effect, %error, "an effect is put off"),
                }
            }
            Err(error) => tracing::error!(%error, "an effect's task panicked"),
        }
        while self.under_way.len() < EFFECTS_MAX
            && let Some(id) = self.crowded_out.pop_first()
        {
            self.look_at(id);
        }
    }

    /// Hands back the jobs of workers that are lost, and forgets watchers that have gone.
    fn sweep(&mut self) {
        self.watchers.retain(|_, watchers| {
            watchers.retain(|watcher| !watcher.is_closed());
            !watchers.is_empty()
        });
        let registry = Arc::clone(&self.rim.registry.borrow());
        self.handed_back.retain(|(id, _)| self.runs.contains_key(id));
        if !registry.settled {
            return;
        }
        let (now, owned) = (proto::now(), *self.rim.owned.borrow());
        let mut stranded = Vec::new();
        for (id, open) in self.runs.iter().filter(|(id, _)| owned.holds(id.shard())) {
            stranded.extend(stranded::stranded(&open.run, &registry, now).into_iter().map(|call| (*id, call)));
            for call in open.run.calls() {
                let CallState::Running(running) = call.state() else { continue };
                let Some((worker, lease)) = &running.worker else { continue };
                let is_lost = !registry.is_alive(worker) && now.since(running.since) >= proto::names::WORKER_LOST;
                if is_lost && self.handed_back.insert((*id, running.attempt)) {
                    tracing::warn!(run.id = %id, call.id = %call.spec().id, worker.id = %worker, "handing back a lost worker's call");
                    let (signals, lease) = (self.rim.signals.clone(), lease.clone());
                    self.questions.spawn(async move { signals.hand_back(&lease).await });
                }
            }
        }
        for (id, call) in stranded {
            self.perform(id, Effect::Refuse { call });
        }
    }

    // ---- what workers ask ----

    fn question(&mut self, asked: Asked) {
        if !self.rim.owned.borrow().holds(asked.question.run.shard()) {
            return;
        }
        let (journal, signals, ledger) = (self.rim.journal.clone(), self.rim.signals.clone(), self.own.clone());
        self.questions.spawn(async move {
            let answer = consider(&journal, &ledger, &asked).await;
            signals.answer(&asked, answer.as_ref()).await;
        });
    }

    /// `None` while the feed has not come as far as `needed`.
    fn verdict(&self, question: &Question, pool: &PoolId, needed: u64) -> Option<Verdict> {
        if self.position < needed.max(question.sequence) {
            return None;
        }
        let call = self.runs.get(&question.run).and_then(|open| open.run.call(question.call));
        let call = call.filter(|call| matches!(&call.spec().route, Route::Pool { pool: own, .. } if own == pool));
        let Some(call) = call else { return Some(Verdict::Drop) };
        if let (CallState::Running(running), Some(own)) = (call.state(), question.attempt)
            && running.attempt == own
        {
            // The one that is heard is the one that asks.
            let used = call.attempts_used().saturating_sub(1);
            return Some(Verdict::Go { number: own.number, used, from: ChunkIndex(0) });
        }
        Some(call.verdict(question.delivered, proto::now()))
    }
}

/// A job that comes again was perhaps begun: then its start is in the log, and the answer must know of it.
async fn consider(journal: &Journal, ledger: &Ledger, asked: &Asked) -> Option<Answer> {
    let (question, pool) = (asked.question, asked.pool.clone());
    let last_output = if question.delivered > 1 || question.attempt.is_some() {
        let place = Place::Output { call: question.call, pool: pool.clone() };
        let last = journal.last_output(&Subject { run: question.run, place }).await;
        last.inspect_err(|error| tracing::warn!(%error, "cannot answer a worker")).ok()?
    } else {
        0
    };
    let (reply, verdict) = oneshot::channel();
    ledger.0.send(Request::Verdict { question, pool, needed: last_output, reply }).await.ok()?;
    let verdict = verdict.await.ok().flatten()?;
    Some(Answer { verdict, last_output })
}

enum Act {
    Stop { pool: PoolId, attempt: AttemptId },
    Append { event: Event, job: Option<Arc<run::CallSpec>>, expect: Expect },
}

/// An effect as something to do.
fn act(run: &Run, effect: Effect, registry: &Registry) -> Option<Act> {
    let append = |event, expect| Some(Act::Append { event, job: None, expect });
    if let Some(refusal) = stranded::refusal(run, effect, registry)
        && let Event::CallFailed { call, .. } = &refusal
    {
        let revision = run.call(*call)?.revision();
        return append(refusal, Expect::Last(revision));
    }
    match effect {
        Effect::Dispatch { call } => {
            let spec = run.call(call)?.spec();
            let Route::Pool { pool, .. } = &spec.route else { return None };
            let event = Event::CallDispatched { call, pool: pool.clone() };
            Some(Act::Append { event, job: Some(Arc::clone(spec)), expect: Expect::Last(0) })
        }
        Effect::Stop { attempt } => {
            let Route::Pool { pool, .. } = &run.call(attempt.call)?.spec().route else { return None };
            Some(Act::Stop { pool: pool.clone(), attempt })
        }
        Effect::Cancel { call } => append(Event::CallCancelled { call }, Expect::Last(run.call(call)?.revision())),
        Effect::Expire { call, deadline } => {
            append(Event::CallExpired { call, deadline }, Expect::Last(run.call(call)?.revision()))
        }
        Effect::Refuse { .. } => None,
        Effect::Close => append(Event::RunClosed, Expect::Last(run.revision())),
        Effect::ExpireRun => append(Event::RunExpired, Expect::Last(run.revision())),
    }
}

async fn next(questions: &mut Option<Questions>) -> Option<Asked> {
    match questions {
        Some(questions) => questions.next().await,
        None => std::future::pending().await,
    }
}
