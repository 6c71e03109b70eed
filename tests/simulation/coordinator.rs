//! A coordinator. What it does for the shards that it owns, and which shards it owns, is decided by `core/owner`, the
//! product's own code. Here are its drivers, with one message for each action, and what `runs.rs` and `readers.rs` of
//! the product do: commands decided on its fold and appended if nobody was faster, readers that come back.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use owner::{
    Action, Append, Applied, JobLease, Known, OVERDUE, OpenRun, Owner, Phase, Resting, Takeover, overdue_ends,
};
use run::{
    CallIndex, CallState, Effect, Entry, Event, FloorPolicy, Partition, PoolId, Route, Run, RunId, Sequencer, Shard,
    Timestamp, Verdict, WorkerId,
};

use crate::SHARDS;
use crate::fleet::{Fleet, Slots};
use crate::member::Member;
use crate::net::{Flaw, Message, Net, Node, Paused, Question, Settle, Stored};
use crate::promises::pieces;
use crate::questions::{Asked, Askings};
use crate::rim::{CHECK_WORKERS, EFFECT_PATIENCE, QUEUES_PATIENCE, WORKER_LOST, WRITE_SNAPSHOTS};
use crate::shard::ShardWork;

mod orders;

use orders::Order;

pub(crate) struct Coordinator {
    position: u64,
    owner: Owner,
    member: Member,
    born: Timestamp,
    alive: BTreeMap<WorkerId, (PoolId, Timestamp)>,
    /// What is paused, as far as it knows.
    paused: Paused,
    slots: Rc<RefCell<Slots>>,
    /// The work for each shard beside its open runs.
    shards: [ShardWork; SHARDS as usize],
    wrote_snapshots: Timestamp,
    /// Appends of effects that are not confirmed yet.
    effects: BTreeMap<u64, Performing>,
    /// Ends that were just appended in place of other owners.
    ended: Vec<(RunId, Effect, Timestamp)>,
    checked_workers: Timestamp,
    /// When the queues were asked, until they answer.
    asked_queues: Option<Timestamp>,
    questions: BTreeMap<u64, Asking>,
    /// Tools that ask their clients.
    askings: Askings,
    orders: Vec<Order>,
    readers: Vec<Reader>,
}

/// An append for an effect.
struct Performing {
    run: RunId,
    effect: Effect,
    since: Timestamp,
    hand_back: Option<Box<JobLease>>,
}

/// The purpose of a request for a call's last output.
enum Asking {
    Worker(Node, Question),
    /// A lost worker's call is to be ended.
    Lost(RunId, CallIndex, PoolId),
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
    pub(crate) fn new(net: &mut Net<'_>) -> Self {
        Self {
            position: 0,
            owner: Owner::new(usize::from(SHARDS)),
            member: Member::join(net),
            born: net.now,
            alive: BTreeMap::new(),
            paused: net.paused.clone(),
            slots: Rc::default(),
            shards: Default::default(),
            wrote_snapshots: net.now,
            effects: BTreeMap::new(),
            ended: Vec::new(),
            checked_workers: net.now,
            asked_queues: None,
            questions: BTreeMap::new(),
            askings: Askings::default(),
            orders: Vec::new(),
            readers: Vec::new(),
        }
    }

    fn holds(&self, shard: Shard, now: Timestamp) -> bool {
        self.member.holds(shard, now)
    }

    pub(crate) fn wake(&mut self, net: &mut Net<'_>) {
        self.member.check(net);
        self.member.wake(net);
        if net.flaw != Flaw::DeafToPauses {
            self.paused = net.paused.clone();
        }
        self.follow_claims(net);
        self.shard_work(net);
        self.alive.retain(|_, (_, heard)| net.now.since(*heard) < WORKER_LOST);
        self.give_up(net);
        let is_late = |performing: &Performing| net.now.since(performing.since) >= EFFECT_PATIENCE;
        let late = self.effects.iter().filter(|(_, performing)| is_late(performing)).map(|(token, _)| *token);
        for token in late.collect::<Vec<_>>() {
            self.effect_done(token, net);
        }
        if self.asked_queues.take_if(|asked| net.now.since(*asked) >= QUEUES_PATIENCE).is_some() {
            self.queues_answered(&[], net);
        }
        self.end_overdue(net);
        let fleet = self.fleet(net.now);
        self.askings.answer_late(&self.owner, &fleet, net);
        self.owner.handle_timeout(net.now, &fleet);
        if net.now.since(self.checked_workers) >= CHECK_WORKERS {
            self.checked_workers = net.now;
            let runs = self.owner.shards().iter().flat_map(owner::ShardState::awake).map(|(id, _)| id);
            for id in runs.collect::<Vec<_>>() {
                self.owner.check_workers(id, net.now, &fleet);
                if self.owner.let_rest(id, net.now) {
                    net.promises.note("a run packed");
                }
            }
            self.owner.handle_all_checked(Duration::ZERO);
        }
        self.perform_actions(net);
    }

    pub(crate) fn hear(&mut self, from: Node, message: Message, net: &mut Net<'_>) {
        match message {
            Message::LogGrew { through } => self.feed(through, net),
            Message::Given(given) => {
                self.asked_queues = None;
                self.queues_answered(&given, net);
            }
            Message::LeasesChanged { through } => {
                self.member.changed(through, net);
                self.follow_claims(net);
            }
            Message::LeaseAnswer { token, answer } => {
                self.member.answered(token, answer, net);
                self.follow_claims(net);
            }
            Message::Alive { worker, leaving: true, .. } => {
                self.alive.remove(&worker);
            }
            Message::Alive { worker, pool, leaving: false } => {
                self.alive.insert(worker, (pool, net.now));
            }
            Message::Forwarded(who, question) => match *question {
                Message::Ask(question) => self.asked(who, question, net),
                Message::AskUser { token, pool, asks } => {
                    self.member.check(net);
                    let (fleet, asked) = (self.fleet(net.now), Asked { worker: who, token, pool, asks: *asks });
                    self.askings.ask(asked, &self.owner, &fleet, net);
                }
                other => unreachable!("nobody forwards {other:?}"),
            },
            Message::SnapshotAnswer { token, result } => self.snapshot_answered(token, result, net),
            Message::Purged { token } => self.shards.iter_mut().for_each(|shard| shard.purged(token, net)),
            Message::Notified { token, count, is_accepting } => {
                self.shards.iter_mut().for_each(|shard| shard.posted(token, count, is_accepting, net));
            }
            Message::LastOutputIs { token, sequence } => match self.questions.remove(&token) {
                Some(Asking::Worker(who, question)) => self.answer(who, &question, sequence, net),
                Some(Asking::Lost(run, call, pool)) => self.end_lost((run, call), pool, sequence, net),
                None => {}
            },
            Message::Appended { token } => self.appended(token, net),
            Message::Conflict { token } => self.conflicted(token, net),
            Message::Create { token, opening } => self.create(from, token, opening, net),
            Message::Do { token, run, command } => {
                self.decide(Order::of(from, token, run, command, net.now), false, net);
            }
            Message::Watch { watch, run, policy, after } => self.watch(from, watch, run, (policy, after), net),
            other => unreachable!("nobody sends a coordinator {other:?}"),
        }
        self.perform_actions(net);
    }

    /// Inputs of the owner's decisions beside the log.
    fn fleet(&self, now: Timestamp) -> Fleet {
        let alive = self.alive.iter().map(|(worker, (pool, _))| (worker.clone(), pool.clone())).collect();
        let holds = std::array::from_fn(|at| self.member.holds(Shard(u8::try_from(at).unwrap_or(0)), now));
        let (paused, slots) = (self.paused.clone(), Rc::clone(&self.slots));
        Fleet { alive, are_known: now.since(self.born) >= WORKER_LOST, holds, paused, slots }
    }

    /// Takes over the shards that the membership has claimed, and drops those that it has not any more.
    fn follow_claims(&mut self, net: &mut Net<'_>) {
        for (at, shard) in (0..SHARDS).map(Shard).enumerate() {
            let claim = self.member.claim(shard);
            let own = self.phase(shard).claim();
            if own.is_some() && own != claim {
                self.owner.handle_lost(shard);
                self.shards[at].lose();
                self.slots.borrow_mut().forget(shard);
            }
            match claim {
                Some(claim) if self.member.is_leaving(shard) => {
                    if own != Some(claim) {
                        self.owner.handle_claimed(shard, claim);
                    }
                    self.leave(shard, net);
                }
                Some(claim) if own != Some(claim) => self.take_over(shard, claim, net),
                Some(_) | None => {}
            }
        }
    }

    fn phase(&self, shard: Shard) -> Phase {
        self.owner.shard(shard).map(owner::ShardState::phase).unwrap_or_default()
    }

    /// Reads the snapshot of the shard and the runs that are open in it, and replays the log from there as far as the
    /// feed has come.
    fn take_over(&mut self, shard: Shard, claim: u64, net: &mut Net<'_>) {
        let (revision, snapshot) = net.snapshots.get(&shard).cloned().unwrap_or_default();
        let (through, tip) = (snapshot.through, net.log.len() as u64);
        let (mut open, mut resting) = (Vec::new(), Resting::default());
        for (run, last) in &snapshot.open {
            let known = replayed(*run, *last, net);
            let is_there = known.run.opened_at().is_some();
            net.promises.check(is_there, || format!("{run} is open in a snapshot, and its entries are erased"));
            let is_open = is_there && !known.run.status().is_final();
            if is_open && !resting.take(&OpenRun::new(known.clone(), net.now), net.now) {
                open.push(known);
            }
        }
        self.owner.handle_claimed(shard, claim);
        self.owner.handle_taken(shard, Takeover { claim, through, tip, open, resting, ..Takeover::default() }, net.now);
        self.shards[usize::from(shard.0)].take_over(revision, &snapshot);
        let log = net.log;
        let range = usize::try_from(through).unwrap_or(0)..usize::try_from(self.position).unwrap_or(0);
        for stored in log.get(range).unwrap_or_default().iter().filter(|stored| stored.run.shard() == shard) {
            self.take_entry(stored, net);
        }
        self.owner.handle_position(shard, self.position);
        self.lead(shard, net);
    }

    fn lead(&mut self, shard: Shard, net: &mut Net<'_>) {
        if self.owner.begin_to_lead(shard) {
            let runs = self.owner.shard(shard).into_iter().flat_map(owner::ShardState::awake);
            runs.map(|(_, open)| &open.known.run).for_each(|run| _ = self.slots.borrow_mut().see(run));
            let fleet = self.fleet(net.now);
            self.owner.check_shard(shard, net.now, &fleet);
            self.write_snapshot(shard, net);
        }
    }

    /// Stops acting for a shard, and gives it back when its snapshot is written.
    fn leave(&mut self, shard: Shard, net: &mut Net<'_>) {
        let phase = self.phase(shard);
        let applied = self.owner.shard(shard).map_or(0, owner::ShardState::applied);
        let is_current = self.shards[usize::from(shard.0)].is_current(applied);
        self.owner.handle_leaving(shard);
        match phase {
            Phase::Leaving { .. } => {}
            Phase::Leading { .. } if !is_current => self.write_snapshot(shard, net),
            _ => self.member.let_go(shard, net),
        }
    }

    fn write_snapshot(&mut self, shard: Shard, net: &mut Net<'_>) {
        if let Some(state) = self.owner.shard(shard) {
            self.shards[usize::from(shard.0)].write(shard, state, net);
        }
    }

    fn snapshot_answered(&mut self, token: u64, result: Result<u64, u64>, net: &mut Net<'_>) {
        for (at, shard) in (0..SHARDS).map(Shard).enumerate() {
            let phase = self.phase(shard);
            let was_awaited = self.shards[at].written(token, result, phase.claim(), net);
            if was_awaited && matches!(phase, Phase::Leaving { .. }) {
                self.member.let_go(shard, net);
            }
        }
    }

    /// Snapshots, erasures and notifications.
    fn shard_work(&mut self, net: &mut Net<'_>) {
        let writes = net.now.since(self.wrote_snapshots) >= WRITE_SNAPSHOTS;
        if writes {
            self.wrote_snapshots = net.now;
        }
        for (at, shard) in (0..SHARDS).map(Shard).enumerate() {
            let phase = self.phase(shard);
            let may_act = phase.leads() && self.holds(shard, net.now);
            let is_given_up = self.shards[at].wake(may_act, net);
            if is_given_up && matches!(phase, Phase::Leaving { .. }) {
                self.member.let_go(shard, net);
            }
            let applied = self.owner.shard(shard).map_or(0, owner::ShardState::applied);
            if writes && may_act && self.shards[at].is_due(applied, net.now) {
                self.write_snapshot(shard, net);
            }
        }
    }

    fn feed(&mut self, through: u64, net: &mut Net<'_>) {
        let through = usize::try_from(through).unwrap_or(usize::MAX).min(net.log.len());
        let log = net.log;
        for stored in log.get(usize::try_from(self.position).unwrap_or(0)..through).unwrap_or_default() {
            self.position = stored.entry.sequence;
            self.take_entry(stored, net);
        }
        for shard in (0..SHARDS).map(Shard) {
            self.owner.handle_position(shard, self.position);
            self.lead(shard, net);
            if self.phase(shard).leads() {
                self.shards[usize::from(shard.0)].post(net);
            }
        }
        self.readers.retain_mut(|reader| reader.read_on(self.position, net));
    }

    fn take_entry(&mut self, stored: &Stored, net: &mut Net<'_>) {
        if stored.is_erased {
            return;
        }
        let Stored { run: id, entry, .. } = stored;
        let (mut heard, fleet, shard) = (Vec::new(), self.fleet(net.now), usize::from(id.shard().0));
        let open = match self.owner.handle_entry(*id, entry, &mut heard, net.now, &fleet) {
            Applied::Ignored | Applied::Unread => return,
            Applied::Closed => return self.shards[shard].note_late(*id, entry),
            Applied::Open(open) => open,
        };
        let run = Arc::clone(&open.known.run);
        self.shards[shard].note(&run, entry, &heard);
        if run.status().is_final()
            && let Some(open) = self.owner.close(*id, net.now)
        {
            self.shards[shard].note_ended(&open.known);
            self.owner.keep_ended(open.known);
        }
        self.owner.check_run(*id, net.now, &fleet);
        self.askings.answer(*id, &self.owner, &fleet, net);
        let is_free = self.slots.borrow_mut().see(&run);
        if is_free {
            (0..SHARDS).map(Shard).for_each(|shard| self.owner.check_shard(shard, net.now, &fleet));
        }
    }

    /// Counts the calls that run, and checks the run that waits for this.
    fn count_slots(&mut self, run: RunId, net: &mut Net<'_>) {
        net.promises.note("slots counted");
        self.slots.borrow_mut().is_counted = true;
        for state in self.owner.shards() {
            state.awake().map(|(_, open)| &open.known.run).for_each(|run| _ = self.slots.borrow_mut().see(run));
        }
        let fleet = self.fleet(net.now);
        self.owner.check_run(run, net.now, &fleet);
    }

    fn perform_actions(&mut self, net: &mut Net<'_>) {
        while let Some(action) = self.owner.poll_action() {
            if net.flaw != Flaw::IdleOwner {
                self.perform(action, net);
            }
        }
    }

    fn perform(&mut self, action: Action, net: &mut Net<'_>) {
        match action {
            Action::Append(append) => {
                let Append { run, effect, event, expected, hand_back } = *append;
                if let Event::CallDispatched { call, .. } = event {
                    net.promises.dispatching(run, call, net.paused, net.now);
                }
                let is_unfenced = net.flaw == Flaw::UnfencedDispatch && matches!(effect, Effect::Dispatch { .. });
                let token = net.append(run, vec![event], (!is_unfenced).then_some(expected));
                self.effects.insert(token, Performing { run, effect, since: net.now, hand_back });
            }
            Action::Stop { run, attempt, .. } => {
                net.send(Node::Broker, Message::Stop { run, attempt });
                let fleet = self.fleet(net.now);
                self.owner.handle_effect_done(run, Effect::Stop { attempt }, net.now, &fleet);
            }
            Action::StopLate { run, attempt, .. } => net.send(Node::Broker, Message::Stop { run, attempt }),
            Action::HandBack { job, .. } => {
                net.promises.note("handed back");
                hand_back(&job, net);
            }
            Action::EndLost { run, call, pool } => {
                let token = net.token();
                self.questions.insert(token, Asking::Lost(run, call, pool));
                net.send(Node::Broker, Message::LastOutput { token, run, call });
            }
            Action::AskQueues(_) => {
                self.asked_queues = Some(net.now);
                net.send(Node::Broker, Message::LookAtQueues);
            }
            Action::TakeBack { job, .. } => {
                net.promises.note("taken back");
                let (how, asked) = (Settle::Nak(Duration::ZERO), net.now);
                net.send(Node::Broker, Message::Settle { sequence: job, how, asked });
            }
            Action::CountSlots { run } => self.count_slots(run, net),
        }
    }

    /// An append for an effect was confirmed, refused, or not answered in time. Returns whether the token is one's.
    fn effect_done(&mut self, token: u64, net: &Net<'_>) -> Option<Performing> {
        let performing = self.effects.remove(&token)?;
        let fleet = self.fleet(net.now);
        self.owner.handle_effect_done(performing.run, performing.effect, net.now, &fleet);
        Some(performing)
    }

    fn queues_answered(&mut self, given: &[(PoolId, u64)], net: &Net<'_>) {
        let fleet = self.fleet(net.now);
        let given = given.iter().map(|(pool, through)| ((pool.clone(), Partition::FIRST), *through));
        self.owner.handle_queues(&given.collect(), net.now, &fleet);
    }

    fn end_lost(&self, (run, call): (RunId, CallIndex), pool: PoolId, last_output: u64, net: &mut Net<'_>) {
        let question = owner::Question::after_a_loss(run, call);
        let verdict = self.owner.verdict(&question, &pool, last_output, net.now, &self.fleet(net.now));
        if let Some(Verdict::End { attempt, outcome }) = verdict {
            let ended = Event::AttemptEnded { attempt, pool, chunks: 0, outcome };
            net.append(run, vec![ended], Some(last_output));
        }
    }

    /// Ends overdue calls of runs without an owner, for their watchers.
    fn end_overdue(&mut self, net: &mut Net<'_>) {
        self.ended.retain(|(_, _, since)| net.now.since(*since) < EFFECT_PATIENCE);
        let late = Timestamp(net.now.0.saturating_sub(millis(OVERDUE)));
        let overdue = |reader: &&Reader| reader.run.next_deadline().is_some_and(|deadline| deadline <= late);
        let watched: BTreeSet<RunId> = self.readers.iter().filter(overdue).map(|reader| reader.run.id()).collect();
        let fleet = self.fleet(net.now);
        for id in watched {
            if self.holds(id.shard(), net.now) || net.flaw == Flaw::IdleOwner {
                continue;
            }
            for Append { run, effect, event, expected, .. } in
                overdue_ends(&replayed(id, u64::MAX, net), &fleet, net.now)
            {
                if !self.ended.iter().any(|(id, other, _)| (*id, *other) == (run, effect)) {
                    self.ended.push((run, effect, net.now));
                    net.promises.note("ended in the owner's place");
                    net.append(run, vec![event], Some(expected));
                }
            }
        }
    }

    fn asked(&mut self, who: Node, question: Question, net: &mut Net<'_>) {
        if !self.holds(question.run.shard(), net.now) {
            return;
        }
        self.member.check(net);
        if question.delivered > 1 || question.attempt.is_some() || question.executed {
            let (token, run, call) = (net.token(), question.run, question.call);
            self.questions.insert(token, Asking::Worker(who, question));
            net.send(Node::Broker, Message::LastOutput { token, run, call });
        } else {
            self.answer(who, &question, 0, net);
        }
    }

    fn answer(&self, who: Node, question: &Question, last_output: u64, net: &mut Net<'_>) {
        let Question { token, run, call, delivered, sequence, attempt, executed } = *question;
        let known = self.owner.run(run);
        let found = known.as_ref().and_then(|known| known.run.call(call));
        let pool = match found.map(|call| &call.spec().route) {
            Some(Route::Pool { pool, .. }) => pool.clone(),
            Some(Route::Client | Route::Refused(_) | Route::Answered(_)) | None => {
                crate::POOLS[0].parse().expect("a pool")
            }
        };
        let is_eager = net.flaw == Flaw::EagerOwner;
        let sequence = if is_eager { 0 } else { sequence };
        let needed = if is_eager { 0 } else { last_output };
        // A verdict that bids another attempt go ahead would seem to say that the worker's own start counts.
        let is_own = found.is_some_and(
            |call| matches!(call.state(), CallState::Running(running) if Some(running.attempt) == attempt),
        );
        let attempt = attempt.filter(|_| net.flaw != Flaw::AmbiguousAnswer || is_own);
        let question = owner::Question { run, call, delivered, sequence, attempt, executed };
        let verdict = self.owner.verdict(&question, &pool, needed, net.now, &self.fleet(net.now));
        if let Some(verdict) = verdict {
            net.send(who, Message::Answer { token, verdict, last_output });
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
        if reader.read_on(self.position, net) {
            self.readers.push(reader);
        }
    }
}

impl Reader {
    /// Returns whether there may be more to read.
    fn read_on(&mut self, position: u64, net: &mut Net<'_>) -> bool {
        let mut sent = Vec::new();
        let (log, id) = (net.log, self.run.id());
        let range = usize::try_from(self.through).unwrap_or(0)..usize::try_from(position).unwrap_or(0);
        for stored in log.get(range).unwrap_or_default().iter().filter(|stored| stored.run == id) {
            if stored.is_erased {
                net.send(self.client, Message::Gone { watch: self.watch });
                return false;
            }
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
        true
    }
}

/// Hands a job back. Its lease is its sequence here.
fn hand_back(job: &JobLease, net: &mut Net<'_>) {
    let sequence = u64::from_be_bytes(job.lease.as_ref().try_into().unwrap_or_default());
    let (how, asked) = (Settle::Nak(Duration::ZERO), net.now);
    net.send(Node::Broker, Message::Settle { sequence, how, asked });
}

fn replayed(id: RunId, through: u64, net: &Net<'_>) -> Known {
    let mut known = Known::new(id);
    let read = net.log.iter().take_while(|stored| stored.entry.sequence <= through);
    for stored in read.filter(|stored| stored.run == id && !stored.is_erased) {
        known.apply(&stored.entry, &mut Vec::new());
    }
    known
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
