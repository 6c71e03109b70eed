//! A coordinator, as `coordinator/src/ledger.rs`, `runs.rs`, `watch.rs`, `stranded.rs` and `nats/leases.rs` have it: folds fed by
//! the log, leases by compare-and-set that lapse by its own clock, effects for the shards that it owns, answers for workers,
//! commands decided on its fold and appended if nobody was faster, readers that come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use run::{
    CallState, ChunkIndex, Command, Effect, Entry, Event, FloorPolicy, Opening, PoolId, Route, Run, RunId, Running,
    Sequencer, Shard, Timestamp, Verdict, WithoutWorker, WorkerId,
};

use crate::SHARDS;
use crate::net::{Flaw, Message, Net, Node, Place, Question, Settle, Stored};
use crate::promises::pieces;
use crate::rim::{
    CLOCKS_APART, DECISIONS_MAX, EFFECT_REPEAT, HAND_BACK_REPEAT, JOB_LEASE, ORDER_PATIENCE, OVERDUE, QUEUE_GAP_MAX,
    QUEUE_LOOK, QUEUE_PATIENCE, QUEUE_SILENT, SHARD_LEASE, SHARD_LEASE_MARGIN, SHARD_LEASE_RENEWAL, WORKER_LOST,
};

pub(crate) struct Coordinator {
    position: u64,
    runs: BTreeMap<RunId, Run>,
    seen: [Seen; SHARDS as usize],
    /// The revision of our lease, and until when it is ours.
    ours: [Option<(u64, Timestamp)>; SHARDS as usize],
    looked_at_leases: Timestamp,
    born: Timestamp,
    alive: BTreeMap<WorkerId, (PoolId, Timestamp)>,
    under_way: Vec<(RunId, Effect, Timestamp)>,
    handed_back: BTreeMap<(RunId, u16, u32), Timestamp>,
    /// When it was asked, and was last told, how far queues were given out; and since when jobs are out.
    asked_queues: Timestamp,
    looked_at_queues: Timestamp,
    out: BTreeMap<(RunId, u16), Timestamp>,
    questions: BTreeMap<u64, (Node, Question)>,
    orders: Vec<Order>,
    readers: Vec<Reader>,
}

#[derive(Clone, Copy)]
struct Seen {
    revision: u64,
    taken: bool,
    changed: Timestamp,
}

/// A client's wish on its way into the log.
struct Order {
    client: Node,
    token: u64,
    run: RunId,
    /// `None` for the opening of the run.
    command: Option<Command>,
    waiting: Vec<Event>,
    append: u64,
    /// When it was sent.
    since: Timestamp,
    decisions: u32,
}

struct Reader {
    client: Node,
    watch: u64,
    run: Run,
    sequencer: Sequencer,
    entries: BTreeMap<u64, Arc<Entry>>,
    after: Option<u64>,
    through: u64,
}

impl Coordinator {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self {
            position: 0,
            runs: BTreeMap::new(),
            seen: [Seen { revision: 0, taken: false, changed: now }; SHARDS as usize],
            ours: [None; SHARDS as usize],
            looked_at_leases: Timestamp(0),
            born: now,
            alive: BTreeMap::new(),
            under_way: Vec::new(),
            handed_back: BTreeMap::new(),
            asked_queues: Timestamp(0),
            looked_at_queues: Timestamp(0),
            out: BTreeMap::new(),
            questions: BTreeMap::new(),
            orders: Vec::new(),
            readers: Vec::new(),
        }
    }

    fn holds(&self, shard: Shard, now: Timestamp) -> bool {
        self.ours.get(usize::from(shard.0)).copied().flatten().is_some_and(|(_, until)| now < until)
    }

    pub(crate) fn wake(&mut self, net: &mut Net<'_>) {
        if net.now.since(self.looked_at_leases) >= SHARD_LEASE_RENEWAL {
            self.looked_at_leases = net.now;
            net.send(Node::Broker, Message::LookAtLeases);
        }
        self.under_way.retain(|(_, _, since)| net.now.since(*since) < EFFECT_REPEAT);
        self.alive.retain(|_, (_, heard)| net.now.since(*heard) < WORKER_LOST);
        self.give_up(net);
        self.sweep(net);
        self.end_overdue(net);
        if net.now.since(self.asked_queues) >= QUEUE_LOOK && !self.waiting(net.now).is_empty() {
            self.asked_queues = net.now;
            net.send(Node::Broker, Message::LookAtQueues);
        }
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        for run in runs {
            self.look_at(run, net);
        }
    }

    pub(crate) fn hear(&mut self, from: Node, message: Message, net: &mut Net<'_>) {
        match message {
            Message::LogGrew { through } => self.feed(through, net),
            Message::Given(given) => self.take_back(&given, net),
            Message::Leases(leases) => self.renew(&leases, net),
            Message::LeaseTaken { shard, revision, asked } => {
                let at = usize::from(shard.0);
                self.seen[at] = Seen { revision, taken: true, changed: asked };
                self.ours[at] = Some((revision, Timestamp(asked.after(SHARD_LEASE).0 - millis(SHARD_LEASE_MARGIN))));
                let runs: Vec<RunId> = self.runs.keys().filter(|run| run.shard() == shard).copied().collect();
                for run in runs {
                    self.look_at(run, net);
                }
            }
            Message::LeaseRefused { shard } => self.ours[usize::from(shard.0)] = None,
            Message::Alive { worker, leaving: true, .. } => {
                self.alive.remove(&worker);
            }
            Message::Alive { worker, pool, leaving: false } => {
                self.alive.insert(worker, (pool, net.now));
            }
            Message::Forwarded(who, question) => {
                if let Message::Ask(question) = *question {
                    self.asked(who, question, net);
                }
            }
            Message::LastOutputIs { token, sequence } => {
                if let Some((who, question)) = self.questions.remove(&token) {
                    self.answer(who, &question, sequence, net);
                }
            }
            Message::Appended { token, sequence } => self.appended(token, sequence, net),
            Message::Conflict { token } => self.conflicted(token, net),
            Message::Create { token, opening } => self.create(from, token, opening, net),
            Message::Do { token, run, command } => {
                let (waiting, append, since, decisions) = (Vec::new(), 0, net.now, 0);
                let order =
                    Order { client: from, token, run, command: Some(command), waiting, append, since, decisions };
                self.decide(order, false, net);
            }
            Message::Watch { watch, run, policy, after } => self.watch(from, watch, run, (policy, after), net),
            other => unreachable!("nobody sends a coordinator {other:?}"),
        }
    }

    // ---- leases ----

    fn renew(&mut self, leases: &[(u64, Option<usize>)], net: &mut Net<'_>) {
        for (at, (revision, owner)) in leases.iter().enumerate() {
            let seen = &mut self.seen[at];
            if *revision > seen.revision {
                *seen = Seen { revision: *revision, taken: owner.is_some(), changed: net.now };
            }
            let mine = self.ours[at].filter(|(own, _)| *own >= seen.revision).map(|(own, _)| own);
            let lapsed = !seen.taken || net.now.since(seen.changed) >= SHARD_LEASE;
            let revision = match (mine, lapsed) {
                (Some(own), _) => own,
                (None, true) => seen.revision,
                (None, false) => {
                    self.ours[at] = None;
                    continue;
                }
            };
            let shard = Shard(u8::try_from(at).unwrap_or(0));
            net.send(Node::Broker, Message::TakeLease { shard, revision, asked: net.now });
        }
    }

    // ---- the feed ----

    fn feed(&mut self, through: u64, net: &mut Net<'_>) {
        let through = usize::try_from(through).unwrap_or(usize::MAX).min(net.log.len());
        let log = net.log;
        for stored in log.get(usize::try_from(self.position).unwrap_or(0)..through).unwrap_or_default() {
            self.position = stored.entry.sequence;
            let opens = stored.entry.events.iter().any(|event| matches!(event, Event::RunOpened(_)));
            if opens {
                self.runs.entry(stored.run).or_insert_with(|| Run::new(stored.run));
            }
            if let Some(run) = self.runs.get_mut(&stored.run) {
                run.apply(&stored.entry, &mut Vec::new());
            }
            self.stop_late_start(stored.run, &stored.entry, net);
            if self.runs.get(&stored.run).is_some_and(|run| run.status().is_final()) {
                self.runs.remove(&stored.run);
            }
            self.look_at(stored.run, net);
        }
        for reader in &mut self.readers {
            reader.read_on(self.position, net);
        }
    }

    fn stop_late_start(&self, id: RunId, entry: &Entry, net: &mut Net<'_>) {
        let started = entry.events.iter().find_map(|event| match event {
            Event::AttemptStarted { attempt, .. } => Some(*attempt),
            _ => None,
        });
        let Some(attempt) = started else { return };
        let call = self.runs.get(&id).and_then(|run| run.call(attempt.call));
        if call.is_none_or(|call| call.outcome().is_some()) && self.holds(id.shard(), net.now) {
            net.send(Node::Broker, Message::Stop { run: id, attempt });
        }
    }

    // ---- effects ----

    fn look_at(&mut self, id: RunId, net: &mut Net<'_>) {
        if net.flaw == Flaw::IdleOwner || !self.holds(id.shard(), net.now) {
            return;
        }
        let Some(run) = self.runs.get(&id) else { return };
        let mut effects = run.outstanding(net.now);
        effects.extend(self.stranded(run, net.now));
        for effect in effects {
            let is_under_way = self.under_way.iter().any(|(run, other, _)| (*run, *other) == (id, effect));
            if is_under_way {
                continue;
            }
            self.under_way.push((id, effect, net.now));
            let Some(run) = self.runs.get(&id) else { return };
            perform(run, effect, net);
        }
    }

    fn stranded(&self, run: &Run, now: Timestamp) -> Vec<Effect> {
        let is_settled = now.since(self.born) >= WORKER_LOST;
        let gives_up = |call: &&run::Call| {
            let queued = matches!(call.state(), CallState::Accepted | CallState::Queued { .. });
            let Route::Pool { pool, .. } = &call.spec().route else { return false };
            let nobody = !self.alive.values().any(|(of, _)| of == pool);
            let sure = now.since(call.accepted_at()) >= WORKER_LOST;
            is_settled && queued && nobody && sure && call.spec().without_worker == WithoutWorker::Fail
        };
        run.calls().iter().filter(gives_up).map(|call| Effect::Refuse { call: call.index() }).collect()
    }

    fn sweep(&mut self, net: &mut Net<'_>) {
        if net.now.since(self.born) < WORKER_LOST || net.flaw == Flaw::IdleOwner {
            return;
        }
        let mut lost = Vec::new();
        for (id, run) in self.runs.iter().filter(|(id, _)| self.holds(id.shard(), net.now)) {
            for call in run.calls() {
                let CallState::Running(running) = call.state() else { continue };
                let Some((worker, lease)) = &running.worker else { continue };
                if !self.alive.contains_key(worker) && net.now.since(running.since) >= WORKER_LOST {
                    let sequence = u64::from_be_bytes(lease.as_ref().try_into().unwrap_or_default());
                    lost.push(((*id, call.index().0, running.attempt.number.0), sequence));
                }
            }
        }
        for (key, sequence) in lost {
            let is_due = |at: &Timestamp| net.now.since(*at) >= HAND_BACK_REPEAT;
            if self.handed_back.get(&key).is_none_or(is_due) {
                self.handed_back.insert(key, net.now);
                net.promises.note("handed back");
                let (how, asked) = (Settle::Nak(Duration::ZERO), net.now);
                net.send(Node::Broker, Message::Settle { sequence, how, asked });
            }
        }
    }

    /// Calls that wait for a worker, and where their jobs stand.
    fn waiting(&self, now: Timestamp) -> Vec<((RunId, u16), PoolId, u64)> {
        let mut waiting = Vec::new();
        for (id, run) in self.runs.iter().filter(|(id, _)| self.holds(id.shard(), now)) {
            for call in run.calls() {
                let Some((job, since)) = call.unclaimed() else { continue };
                let Route::Pool { pool, .. } = &call.spec().route else { continue };
                if now.since(since) >= QUEUE_PATIENCE && self.alive.values().any(|(of, _)| of == pool) {
                    waiting.push(((*id, call.index().0), pool.clone(), job));
                }
            }
        }
        waiting
    }

    /// As `coordinator/src/ledger/unclaimed.rs`.
    fn take_back(&mut self, given: &[(PoolId, u64)], net: &mut Net<'_>) {
        let mut before = std::mem::take(&mut self.out);
        if net.now.since(std::mem::replace(&mut self.looked_at_queues, net.now)) > QUEUE_GAP_MAX {
            before.clear();
        }
        for (key, pool, job) in self.waiting(net.now) {
            if !given.iter().any(|(of, through)| *of == pool && job <= *through) {
                continue;
            }
            let since = before.get(&key).copied().unwrap_or(net.now);
            if net.now.since(since) < QUEUE_SILENT || net.flaw == Flaw::IdleOwner {
                self.out.insert(key, since);
                continue;
            }
            net.promises.note("taken back");
            let (how, asked) = (Settle::Nak(Duration::ZERO), net.now);
            net.send(Node::Broker, Message::Settle { sequence: job, how, asked });
        }
    }

    /// As `coordinator/src/ledger/overdue.rs`, for those who watch.
    fn end_overdue(&mut self, net: &mut Net<'_>) {
        let late = Timestamp(net.now.0.saturating_sub(millis(OVERDUE)));
        let overdue = |reader: &&Reader| reader.run.next_deadline().is_some_and(|deadline| deadline <= late);
        let watched: BTreeSet<RunId> = self.readers.iter().filter(overdue).map(|reader| reader.run.id()).collect();
        for id in watched {
            if self.holds(id.shard(), net.now) || net.flaw == Flaw::IdleOwner {
                continue;
            }
            let run = replayed(id, net);
            for effect in run.outstanding(late).into_iter().filter(is_end) {
                if !self.under_way.iter().any(|(run, other, _)| (*run, *other) == (id, effect)) {
                    self.under_way.push((id, effect, net.now));
                    net.promises.note("ended in the owner's place");
                    perform(&run, effect, net);
                }
            }
        }
    }

    // ---- what workers ask ----

    fn asked(&mut self, who: Node, question: Question, net: &mut Net<'_>) {
        if !self.holds(question.run.shard(), net.now) {
            return;
        }
        if question.delivered > 1 || question.attempt.is_some() || question.executed {
            let (token, run, call) = (net.token(), question.run, question.call);
            self.questions.insert(token, (who, question));
            net.send(Node::Broker, Message::LastOutput { token, run, call });
        } else {
            self.answer(who, &question, 0, net);
        }
    }

    fn answer(&self, who: Node, question: &Question, last_output: u64, net: &mut Net<'_>) {
        let behind = self.position < last_output.max(question.sequence);
        if behind && net.flaw != Flaw::EagerOwner {
            return;
        }
        let verdict = match self.runs.get(&question.run).and_then(|run| run.call(question.call)) {
            None if behind => return,
            None => Verdict::Drop,
            Some(call) if question.executed => match call.state() {
                CallState::Running(_) => Verdict::Leave,
                _ => call.verdict(1, net.now),
            },
            Some(call) => match (call.state(), question.attempt) {
                (CallState::Running(running), Some(own)) if running.attempt == own => {
                    let used = call.attempts_used().saturating_sub(1);
                    Verdict::Go { number: own.number, used, from: ChunkIndex(0) }
                }
                // It asks whether its own start counts, which a verdict that bids it go ahead would seem to say.
                (_, Some(_)) if net.flaw != Flaw::AmbiguousAnswer => Verdict::Drop,
                (CallState::Running(running), None) if self.is_passed_over(question, running, net) => {
                    net.promises.note("passed over");
                    Verdict::Leave
                }
                _ => call.verdict(question.delivered, net.now),
            },
        };
        net.send(who, Message::Answer { token: question.token, verdict, last_output });
    }

    /// As `coordinator/src/ledger/answer.rs`.
    fn is_passed_over(&self, question: &Question, running: &Running, net: &Net<'_>) -> bool {
        let age = net.now.since(running.since);
        let lives = age < WORKER_LOST
            || net.now.since(self.born) < WORKER_LOST
            || running.worker.as_ref().is_some_and(|(worker, _)| self.alive.contains_key(worker));
        lives && (question.delivered < running.attempt.number.0 || age < JOB_LEASE)
    }

    // ---- what clients ask ----

    fn create(&mut self, client: Node, token: u64, opening: Opening, net: &mut Net<'_>) {
        let Ok(events) = Run::open(opening, net.now) else { return };
        let held: Vec<u8> = (0..SHARDS).filter(|shard| self.holds(Shard(*shard), net.now)).collect();
        let shard = net.chance.of(&held).copied().unwrap_or(0);
        let run = crate::run_id(Shard(shard), net.now, net.chance.next());
        let append = net.append(run, events, (net.flaw != Flaw::UnfencedOpening).then_some(0));
        let (waiting, since) = (Vec::new(), net.now);
        self.orders.push(Order { client, token, run, command: None, waiting, append, since, decisions: 0 });
    }

    /// As `coordinator/src/nats/journal/append.rs`: answers when no copy counts any more.
    fn give_up(&mut self, net: &mut Net<'_>) {
        let is_over = |order: &mut Order| net.now.since(order.since) > run::STORED_WITHIN + CLOCKS_APART;
        for order in self.orders.extract_if(.., is_over).collect::<Vec<_>>() {
            if order.command.is_none() {
                net.promises.unconfirmed(order.run);
            }
            net.send(order.client, Message::Unconfirmed { token: order.token });
        }
    }

    /// Decides on the fold, or, where that refuses or was overtaken, on the log itself.
    fn decide(&mut self, mut order: Order, replay: bool, net: &mut Net<'_>) {
        let Some(command) = order.command.clone() else { return };
        let known =
            self.runs.get(&order.run).filter(|_| !replay).and_then(|run| run.decide(command.clone(), net.now).ok());
        let decided = match known {
            Some(events) => Ok(events),
            None => replayed(order.run, net).decide(command, net.now),
        };
        match decided {
            Ok(events) => {
                order.waiting = events;
                order.decisions += 1;
                self.append_next(order, net);
            }
            Err(rejection) => {
                net.send(order.client, Message::Done { token: order.token, result: Err(rejection) });
            }
        }
    }

    fn append_next(&mut self, mut order: Order, net: &mut Net<'_>) {
        if order.waiting.is_empty() {
            return net.send(order.client, Message::Done { token: order.token, result: Ok(()) });
        }
        let events = vec![order.waiting.remove(0)];
        let replayed = replayed(order.run, net);
        let run = if order.decisions > 1 { &replayed } else { self.runs.get(&order.run).unwrap_or(&replayed) };
        let expected = match Place::of(&events) {
            Place::Control(call) => run.call(call).map_or(0, run::Call::revision),
            Place::Run | Place::Job(_) | Place::Output(_) => run.revision(),
        };
        (order.append, order.since) = (net.append(order.run, events, Some(expected)), net.now);
        self.orders.push(order);
    }

    fn take_order(&mut self, append: u64, now: Timestamp) -> Option<Order> {
        let in_time = |order: &Order| order.append == append && now.since(order.since) < ORDER_PATIENCE;
        let place = self.orders.iter().position(in_time)?;
        Some(self.orders.swap_remove(place))
    }

    fn appended(&mut self, append: u64, _: u64, net: &mut Net<'_>) {
        let Some(order) = self.take_order(append, net.now) else { return };
        match order.command {
            None => net.send(order.client, Message::Created { token: order.token, run: order.run }),
            Some(_) => self.append_next(order, net),
        }
    }

    fn conflicted(&mut self, append: u64, net: &mut Net<'_>) {
        let Some(order) = self.take_order(append, net.now) else { return };
        if order.command.is_some() && order.decisions < DECISIONS_MAX {
            self.decide(order, true, net);
        }
    }

    fn watch(
        &mut self,
        client: Node,
        watch: u64,
        run: RunId,
        (policy, after): (FloorPolicy, Option<u64>),
        net: &mut Net<'_>,
    ) {
        let after = if net.flaw == Flaw::ForgetfulDoor { after.map(|after| after + 1) } else { after };
        let (entries, sequencer) = (BTreeMap::new(), Sequencer::new(policy));
        self.readers.retain(|reader| reader.client != client);
        let mut reader = Reader { client, watch, run: Run::new(run), sequencer, entries, after, through: 0 };
        reader.read_on(self.position, net);
        self.readers.push(reader);
    }
}

impl Reader {
    fn read_on(&mut self, position: u64, net: &mut Net<'_>) {
        let mut sent = Vec::new();
        let (log, id) = (net.log, self.run.id());
        let range = usize::try_from(self.through).unwrap_or(0)..usize::try_from(position).unwrap_or(0);
        for stored in log.get(range).unwrap_or_default().iter().filter(|stored| stored.run == id) {
            self.entries.insert(stored.entry.sequence, Arc::clone(&stored.entry));
            let (mut heard, mut spoken) = (Vec::new(), Vec::new());
            self.run.apply(&stored.entry, &mut heard);
            self.sequencer.observe(stored.entry.at, &heard, &mut spoken);
            for spoken in spoken {
                let numbered = (spoken.number..).zip(pieces(&self.entries, spoken.what));
                sent.extend(numbered.filter(|(number, _)| self.after.is_none_or(|after| *number > after)));
            }
        }
        self.through = self.through.max(position);
        if !sent.is_empty() {
            net.send(self.client, Message::Pieces { watch: self.watch, pieces: sent });
        }
    }
}

fn is_end(effect: &Effect) -> bool {
    use run::DeadlineKind::{Call, Client, Queue, Run};
    matches!(effect, Effect::ExpireRun | Effect::Expire { deadline: Call | Queue | Client | Run, .. })
}

fn perform(run: &Run, effect: Effect, net: &mut Net<'_>) {
    let revision = |call| run.call(call).map(run::Call::revision);
    let (event, expected) = match effect {
        Effect::Dispatch { call } => {
            let Some(Route::Pool { pool, .. }) = run.call(call).map(|call| &call.spec().route) else { return };
            let fence = (net.flaw != Flaw::UnfencedDispatch).then(|| last_void_job(run.id(), call, net));
            (Event::CallDispatched { call, pool: pool.clone() }, fence)
        }
        Effect::Stop { attempt } => return net.send(Node::Broker, Message::Stop { run: run.id(), attempt }),
        Effect::Decide { call } => {
            let Some(event) = run.decide_by_default(call) else { return };
            (event, revision(call))
        }
        Effect::Cancel { call } => (Event::CallCancelled { call }, revision(call)),
        Effect::Expire { call, deadline } => (Event::CallExpired { call, deadline }, revision(call)),
        Effect::Refuse { call } => {
            let Some(Route::Pool { pool, .. }) = run.call(call).map(|call| &call.spec().route) else { return };
            let Some(tool) = run.call(call).map(|call| call.spec().tool.clone()) else { return };
            (Event::CallFailed { call, error: run::no_worker(&tool, pool) }, revision(call))
        }
        Effect::Close => (Event::RunClosed, Some(run.revision())),
        Effect::ExpireRun => (Event::RunExpired { without_worker: Vec::new() }, Some(run.revision())),
    };
    net.append(run.id(), vec![event], expected);
}

/// As `coordinator/src/known.rs`: a job that came too late stands where the next one goes.
fn last_void_job(id: RunId, call: run::CallIndex, net: &Net<'_>) -> u64 {
    let is_void = |stored: &&Stored| stored.run == id && stored.place == Place::Job(call) && stored.entry.is_late();
    net.log.iter().rfind(is_void).map_or(0, |stored| stored.entry.sequence)
}

fn replayed(id: RunId, net: &Net<'_>) -> Run {
    let mut run = Run::new(id);
    for stored in net.log.iter().filter(|stored| stored.run == id) {
        run.apply(&stored.entry, &mut Vec::new());
    }
    run
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
