//! A coordinator. What it does for the shards that it owns, and which shards it owns, is decided by `core/owner`, the
//! product's own code. Here are its drivers, with one message for each action, and what `runs.rs` and `readers.rs` of
//! the product do: commands decided on its fold and appended if nobody was faster, readers that come back.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use owner::{Action, Append, JobLease, Known, OVERDUE, Owner, Takeover, overdue_ends};
use run::{
    CallIndex, CallState, Command, Effect, Entry, Event, FloorPolicy, Opening, PoolId, Route, Run, RunId, Sequencer,
    Shard, Timestamp, Verdict, WorkerId,
};

use crate::SHARDS;
use crate::fleet::Fleet;
use crate::member::Member;
use crate::net::{Flaw, Message, Net, Node, Question, Settle};
use crate::promises::pieces;
use crate::rim::{
    CHECK_WORKERS, CLOCKS_APART, DECISIONS_MAX, EFFECT_PATIENCE, ORDER_PATIENCE, QUEUES_PATIENCE, WORKER_LOST,
};

pub(crate) struct Coordinator {
    position: u64,
    owner: Owner,
    member: Member,
    born: Timestamp,
    alive: BTreeMap<WorkerId, (PoolId, Timestamp)>,
    /// Appends of effects that are not confirmed yet.
    effects: BTreeMap<u64, Performing>,
    /// Ends that were just appended in place of other owners.
    ended: Vec<(RunId, Effect, Timestamp)>,
    checked_workers: Timestamp,
    /// When the queues were asked, until they answer.
    asked_queues: Option<Timestamp>,
    questions: BTreeMap<u64, Asking>,
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

/// A client's wish on its way into the log.
struct Order {
    client: Node,
    token: u64,
    run: RunId,
    /// `None` for the opening of the run.
    command: Option<Command>,
    waiting: Vec<Event>,
    /// The run as it was decided on: an entry that came since refuses the append.
    decided_on: Option<Known>,
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
    pub(crate) fn new(net: &mut Net<'_>) -> Self {
        Self {
            position: 0,
            owner: Owner::new(SHARDS),
            member: Member::join(net),
            born: net.now,
            alive: BTreeMap::new(),
            effects: BTreeMap::new(),
            ended: Vec::new(),
            checked_workers: net.now,
            asked_queues: None,
            questions: BTreeMap::new(),
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
        self.follow_claims(net);
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
        self.owner.handle_timeout(net.now, &fleet);
        if net.now.since(self.checked_workers) >= CHECK_WORKERS {
            self.checked_workers = net.now;
            let runs = self.owner.shards().iter().flat_map(owner::ShardState::runs).map(|(id, _)| id);
            for id in runs.collect::<Vec<_>>() {
                self.owner.check_workers(id, net.now, &fleet);
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
            Message::Forwarded(who, question) => {
                if let Message::Ask(question) = *question {
                    self.asked(who, question, net);
                }
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
                let (waiting, append, since, decisions) = (Vec::new(), 0, net.now, 0);
                let order = Order {
                    client: from,
                    token,
                    run,
                    command: Some(command),
                    waiting,
                    decided_on: None,
                    append,
                    since,
                    decisions,
                };
                self.decide(order, false, net);
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
        Fleet { alive, are_known: now.since(self.born) >= WORKER_LOST, holds }
    }

    /// Takes over the shards that the membership has claimed, and drops those that it has not any more.
    fn follow_claims(&mut self, net: &Net<'_>) {
        for shard in (0..SHARDS).map(Shard) {
            let claim = self.member.claim(shard);
            let own = self.owner.shard(shard).and_then(|state| state.phase().claim());
            if own == claim {
                continue;
            }
            if own.is_some() {
                self.owner.handle_lost(shard);
            }
            if let Some(claim) = claim {
                self.take_over(shard, claim, net);
            }
        }
    }

    /// Reads the shard's open runs as far as the feed has come, and where its log ends now.
    fn take_over(&mut self, shard: Shard, claim: u64, net: &Net<'_>) {
        let (through, tip) = (self.position, net.log.len() as u64);
        let mut runs: BTreeMap<RunId, Known> = BTreeMap::new();
        let read = net.log.iter().take_while(|stored| stored.entry.sequence <= through);
        for stored in read.filter(|stored| stored.run.shard() == shard) {
            let known = runs.entry(stored.run).or_insert_with(|| Known::new(stored.run));
            known.apply(&stored.entry, &mut Vec::new());
        }
        let is_open = |known: &Known| known.run.opened_at().is_some() && !known.run.status().is_final();
        let open = runs.into_values().filter(is_open).collect();
        self.owner.handle_claimed(shard, claim);
        self.owner.handle_taken(shard, Takeover { claim, through, tip, open, unread: Vec::new() }, net.now);
        self.lead(shard, net.now);
    }

    fn lead(&mut self, shard: Shard, now: Timestamp) {
        if self.owner.begin_to_lead(shard) {
            let fleet = self.fleet(now);
            self.owner.check_shard(shard, now, &fleet);
        }
    }

    fn feed(&mut self, through: u64, net: &mut Net<'_>) {
        let through = usize::try_from(through).unwrap_or(usize::MAX).min(net.log.len());
        let (log, fleet) = (net.log, self.fleet(net.now));
        for stored in log.get(usize::try_from(self.position).unwrap_or(0)..through).unwrap_or_default() {
            self.position = stored.entry.sequence;
            self.owner.handle_entry(stored.run, &stored.entry, &mut Vec::new(), net.now, &fleet);
            if self.owner.run(stored.run).is_some_and(|known| known.run.status().is_final()) {
                self.owner.close(stored.run);
            }
            self.owner.check_run(stored.run, net.now, &fleet);
        }
        for shard in (0..SHARDS).map(Shard) {
            self.owner.handle_position(shard, self.position);
            self.lead(shard, net.now);
        }
        for reader in &mut self.readers {
            reader.read_on(self.position, net);
        }
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
            Action::Append(Append { run, effect, event, expected, hand_back }) => {
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
            Action::CountSlots { .. } => unreachable!("no calls are limited here"),
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
        self.owner.handle_queues(&given.iter().cloned().collect(), net.now, &fleet);
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
            for Append { run, effect, event, expected, .. } in overdue_ends(&replayed(id, net), &fleet, net.now) {
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
        let known = self.owner.run(run).and_then(|known| known.run.call(call));
        let pool = match known.map(|call| &call.spec().route) {
            Some(Route::Pool { pool, .. }) => pool.clone(),
            Some(Route::Client | Route::Refused(_)) | None => crate::POOLS[0].parse().expect("a pool"),
        };
        let is_eager = net.flaw == Flaw::EagerOwner;
        let sequence = if is_eager { 0 } else { sequence };
        let needed = if is_eager { 0 } else { last_output };
        // A verdict that bids another attempt go ahead would seem to say that the worker's own start counts.
        let is_own = known.is_some_and(
            |call| matches!(call.state(), CallState::Running(running) if Some(running.attempt) == attempt),
        );
        let attempt = attempt.filter(|_| net.flaw != Flaw::AmbiguousAnswer || is_own);
        let question = owner::Question { run, call, delivered, sequence, attempt, executed };
        let verdict = self.owner.verdict(&question, &pool, needed, net.now, &self.fleet(net.now));
        if let Some(verdict) = verdict {
            net.send(who, Message::Answer { token, verdict, last_output });
        }
    }

    fn create(&mut self, client: Node, token: u64, opening: Opening, net: &mut Net<'_>) {
        let Ok(events) = Run::open(opening, net.now) else { return };
        let held: Vec<u8> = (0..SHARDS).filter(|shard| self.holds(Shard(*shard), net.now)).collect();
        let shard = net.chance.of(&held).copied().unwrap_or(0);
        let run = crate::run_id(Shard(shard), net.now, net.chance.next());
        let append = net.append(run, events, (net.flaw != Flaw::UnfencedOpening).then_some(0));
        let (waiting, since) = (Vec::new(), net.now);
        let (command, decided_on) = (None, None);
        self.orders.push(Order { client, token, run, command, waiting, decided_on, append, since, decisions: 0 });
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
        let own = self.owner.run(order.run).filter(|_| !replay).cloned();
        let own = own.and_then(|known| Some((known.run.decide(command.clone(), net.now).ok()?, known)));
        let decided = own.map_or_else(
            || {
                let known = replayed(order.run, net);
                Ok((known.run.decide(command, net.now)?, known))
            },
            Ok,
        );
        match decided {
            Ok((events, known)) => {
                (order.waiting, order.decided_on) = (events, Some(known));
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
        let place = owner::SubjectKind::of(&events).expect("it has events");
        let expected = order.decided_on.as_ref().map_or(0, |known| known.revision(&place));
        (order.append, order.since) = (net.append(order.run, events, Some(expected)), net.now);
        self.orders.push(order);
    }

    fn take_order(&mut self, append: u64, now: Timestamp) -> Option<Order> {
        let in_time = |order: &Order| order.append == append && now.since(order.since) < ORDER_PATIENCE;
        let place = self.orders.iter().position(in_time)?;
        Some(self.orders.swap_remove(place))
    }

    fn appended(&mut self, append: u64, net: &mut Net<'_>) {
        if let Some(performing) = self.effect_done(append, net) {
            performing.hand_back.iter().for_each(|job| hand_back(job, net));
            return;
        }
        let Some(order) = self.take_order(append, net.now) else { return };
        match order.command {
            None => net.send(order.client, Message::Created { token: order.token, run: order.run }),
            Some(_) => self.append_next(order, net),
        }
    }

    fn conflicted(&mut self, append: u64, net: &mut Net<'_>) {
        if self.effect_done(append, net).is_some() {
            return;
        }
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

/// Hands a job back. Its lease is its sequence here.
fn hand_back(job: &JobLease, net: &mut Net<'_>) {
    let sequence = u64::from_be_bytes(job.lease.as_ref().try_into().unwrap_or_default());
    let (how, asked) = (Settle::Nak(Duration::ZERO), net.now);
    net.send(Node::Broker, Message::Settle { sequence, how, asked });
}

fn replayed(id: RunId, net: &Net<'_>) -> Known {
    let mut known = Known::new(id);
    for stored in net.log.iter().filter(|stored| stored.run == id) {
        known.apply(&stored.entry, &mut Vec::new());
    }
    known
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
