//! A client: opens a run through any coordinator, sends commands, reads its output to the end, and resumes broken
//! streams.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use run::{
    AfterPartialOutput, Answer, Approval, Call, CallError, CallIndex, CallSpec, Command, Concurrency, Content,
    Decision, DefaultDecision, Erasure, ErrorKind, FloorPolicy, Opening, OutputKind, Policy, Route, RunId, Timestamp,
    WithoutWorker,
};

use crate::net::{Message, Net, Node, Piece};
use crate::promises::POLICIES;
use crate::questions::ANSWER_OF;
use crate::{COORDINATORS, POOLS, TOOLS};

const PATIENCE: Duration = Duration::from_secs(4);
const TRIES_MAX: u32 = 6;

pub(crate) struct Client {
    begins: Timestamp,
    policy: FloorPolicy,
    run: Option<RunId>,
    creating: Option<(u64, Timestamp, usize)>,
    tries: u32,
    watch: u64,
    /// The last number that was read.
    read: Option<u64>,
    last_word: Timestamp,
    over: bool,
    wishes: VecDeque<(Timestamp, Wish)>,
    asked: Option<Asked>,
}

#[derive(Clone, Copy)]
enum Wish {
    Append,
    Close,
    Answer,
    /// To a question of a running call, perhaps once more.
    AnswerQuestion(CallIndex, u8),
    Decide,
    Cancel,
    CancelRun,
}

struct Asked {
    command: Command,
    token: u64,
    sent: Timestamp,
    tries: u32,
}

impl Client {
    pub(crate) fn new(net: &mut Net<'_>) -> Self {
        let begins = net.now.after(Duration::from_millis(net.chance.between(0, 20_000)));
        let wishes = [
            Wish::Append,
            Wish::Append,
            Wish::Answer,
            Wish::Answer,
            Wish::Decide,
            Wish::Decide,
            Wish::Cancel,
            Wish::CancelRun,
            Wish::Close,
        ];
        let mut wanted: Vec<(Timestamp, Wish)> = Vec::new();
        for _ in 0..net.chance.between(0, 6) {
            let at = begins.after(Duration::from_millis(net.chance.between(0, 40_000)));
            wanted.extend(net.chance.of(&wishes).map(|wish| (at, *wish)));
        }
        wanted.sort_by_key(|(at, _)| *at);
        let policy = net.chance.of(&POLICIES).copied().unwrap_or_default();
        Self {
            begins,
            policy,
            run: None,
            creating: None,
            tries: 0,
            watch: 0,
            read: None,
            last_word: net.now,
            over: false,
            wishes: wanted.into(),
            asked: None,
        }
    }

    pub(crate) fn wake(&mut self, net: &mut Net<'_>) {
        let Some(run) = self.run else { return self.create(net) };
        if !self.over && net.now.since(self.last_word) >= PATIENCE {
            self.watch_again(run, net);
        }
        match &mut self.asked {
            Some(asked) if net.now.since(asked.sent) >= PATIENCE => {
                if asked.tries >= TRIES_MAX {
                    self.asked = None;
                } else {
                    (asked.sent, asked.tries) = (net.now, asked.tries + 1);
                    let (token, command) = (asked.token, asked.command.clone());
                    send_to_any(net, Message::Do { token, run, command });
                }
            }
            Some(_) => {}
            None => {
                if self.wishes.front().is_some_and(|(at, _)| *at <= net.now)
                    && let Some((_, wish)) = self.wishes.pop_front()
                    && let Some(command) = command(wish, run, net)
                {
                    let token = net.token();
                    send_to_any(net, Message::Do { token, run, command: command.clone() });
                    self.asked = Some(Asked { command, token, sent: net.now, tries: 0 });
                }
            }
        }
    }

    pub(crate) fn hear(&mut self, message: Message, net: &mut Net<'_>) {
        match message {
            Message::Created { token, run } => {
                if let Some((own, _, calls)) = self.creating
                    && own == token
                    && self.run.is_none()
                {
                    net.promises.accepted(run, calls);
                    self.run = Some(run);
                    self.watch_again(run, net);
                }
            }
            Message::Unconfirmed { token } => {
                self.creating.take_if(|(own, ..)| *own == token);
                self.asked.take_if(|asked| asked.token == token);
            }
            Message::Done { token, result } => {
                let Some(asked) = self.asked.take_if(|asked| asked.token == token) else { return };
                if result.is_err() && is_answer_to_question(&asked.command) {
                    net.promises.note("answer refused");
                }
                if let (Ok(()), Some(run)) = (result, self.run) {
                    check_done(run, &asked.command, net);
                }
            }
            Message::Pieces { watch, pieces } if watch == self.watch => self.read(pieces, net),
            Message::Pieces { .. } => {}
            Message::Gone { watch } if watch == self.watch => {
                let is_erased = self.run.is_some_and(|run| net.promises.is_erased(run));
                net.promises.check(is_erased, || format!("a client hears that its run {:?} is gone", self.run));
                self.over = true;
            }
            Message::Gone { .. } => {}
            other => unreachable!("nobody sends a client {other:?}"),
        }
    }

    fn create(&mut self, net: &mut Net<'_>) {
        let waits = self.creating.is_some_and(|(_, sent, _)| net.now.since(sent) < PATIENCE);
        if net.now < self.begins || waits || self.tries >= TRIES_MAX {
            return;
        }
        self.tries += 1;
        let token = net.token();
        let life = net.now.after(seconds(net, 15, 90));
        let count = net.chance.between(1, 5);
        let calls: Vec<_> = (0..count).map(|index| Arc::new(spec(&format!("call-{index}"), life, net))).collect();
        self.creating = Some((token, net.now, calls.len()));
        let (open, fail_fast) = (net.chance.percent(30), net.chance.percent(15));
        let after = seconds(net, 1, 20);
        let erasure = net.chance.percent(50).then_some(Erasure { after, request: None });
        let opening = Opening { calls, deadline: life, open, fail_fast, erasure, ..Opening::default() };
        send_to_any(net, Message::Create { token, opening });
    }

    fn watch_again(&mut self, run: RunId, net: &mut Net<'_>) {
        (self.watch, self.last_word) = (net.token(), net.now);
        let (watch, policy, after) = (self.watch, self.policy, self.read);
        send_to_any(net, Message::Watch { watch, run, policy, after });
    }

    fn read(&mut self, pieces: Vec<(u64, Piece)>, net: &mut Net<'_>) {
        let Some(run) = self.run else { return };
        self.last_word = net.now;
        for (number, piece) in pieces {
            let due = self.read.map_or(0, |read| read + 1);
            if number > due && net.link_was_cut {
                // A stream does not lose what is in its middle: the link was cut, and this one is over.
                self.watch = 0;
                return;
            }
            net.promises.check(number == due, || format!("{run}: a reader got number {number} after {due}"));
            net.promises.was_read(run, self.policy, number, &piece);
            self.read = Some(number);
            self.over |= matches!(piece, Piece::Fact(OutputKind::RunEnded(_)));
            if let Piece::Fact(OutputKind::CallWaits { call }) = piece {
                self.is_asked(run, call, net);
            }
        }
    }

    /// A call waits for its answer. A question of a running tool is answered soon, twice or not at all.
    fn is_asked(&mut self, run: RunId, call: CallIndex, net: &mut Net<'_>) {
        let is_question = net.promises.run(run).and_then(|run| run.call(call)).is_some_and(Call::is_question);
        if !is_question || self.tries >= TRIES_MAX {
            return;
        }
        for nth in 0..u8::try_from(net.chance.between(0, 3)).unwrap_or(0) {
            let wish = (net.now.after(seconds(net, 0, 6 + 6 * u64::from(nth))), Wish::AnswerQuestion(call, nth));
            let place = self.wishes.partition_point(|(at, _)| *at <= wish.0);
            self.wishes.insert(place, wish);
        }
    }

    pub(crate) fn has_read_all(&self) -> bool {
        self.run.is_none() || self.over
    }

    /// From here on it helps nobody.
    pub(crate) fn only_read(&mut self) {
        self.wishes.clear();
        (self.asked, self.tries) = (None, TRIES_MAX);
    }
}

fn send_to_any(net: &mut Net<'_>, message: Message) {
    let coordinator = usize::try_from(net.chance.next()).unwrap_or(0) % COORDINATORS;
    net.send(Node::Coordinator(coordinator), message);
}

fn seconds(net: &mut Net<'_>, from: u64, to: u64) -> Duration {
    Duration::from_millis(net.chance.between(from * 1000, to * 1000))
}

fn spec(name: &str, life: Timestamp, net: &mut Net<'_>) -> CallSpec {
    let route = match net.chance.between(0, 12) {
        0..2 => Route::Client,
        2 => Route::Refused(CallError::new(ErrorKind::UnknownTool, "no such tool")),
        _ => pooled(net),
    };
    let queue = net.chance.percent(20).then(|| net.now.after(seconds(net, 1, 15)));
    let own = net.now.after(seconds(net, 5, 80));
    let gives_up = net.chance.percent(20);
    let alone = net.chance.percent(25);
    let approval = net.chance.percent(20).then(|| Approval {
        deadline: net.now.after(seconds(net, 1, 30)).min(own.min(life)),
        default: if net.chance.percent(50) { DefaultDecision::Approve } else { DefaultDecision::Reject },
    });
    // Some are delayed, without another draw of chance.
    let is_delayed = matches!(route, Route::Pool { .. }) && own.0.is_multiple_of(6);
    let until = net.now.after(Duration::from_millis(own.0 % 15_000));
    let not_before = Some(until).filter(|until| is_delayed && *until < own.min(life));
    CallSpec {
        id: name.parse().expect("a call id"),
        tool: net.chance.of(&TOOLS).copied().unwrap_or_default().parse().expect("a tool name"),
        arguments: Bytes::from_static(b"{}"),
        metadata: BTreeMap::new(),
        route,
        not_before,
        deadline: own.min(life),
        queue_deadline: queue,
        without_worker: if gives_up { WithoutWorker::Fail } else { WithoutWorker::Wait },
        concurrency: if alone { Concurrency::Exclusive } else { Concurrency::Parallel },
        approval,
        result_use: run::ResultUse::default(),
        context: run::Fields::default(),
        files: Vec::new(),
        asked_by: None,
        required_hooks: Vec::new(),
        priority: None,
    }
}

fn pooled(net: &mut Net<'_>) -> Route {
    let repeatable = net.chance.percent(60);
    // Most can go wrong where an attempt goes on with what another one said.
    let continued = AfterPartialOutput::Continue;
    let modes = [AfterPartialOutput::Restart, continued, continued, continued, AfterPartialOutput::Buffer];
    let idle = net.chance.percent(30).then(|| seconds(net, 2, 10));
    let pool = POOLS[usize::try_from(net.chance.next()).unwrap_or(0) % POOLS.len()].parse().expect("a pool name");
    let policy = Policy {
        repeatable,
        attempts_max: u32::try_from(net.chance.between(1, 5)).unwrap_or(1),
        attempt_timeout: seconds(net, 3, 40),
        idle_timeout: idle,
        after_partial_output: net.chance.of(&modes).copied().unwrap_or_default(),
        ..Policy::of(run::Effects { idempotent: repeatable, ..run::Effects::default() })
    };
    Route::Pool { pool, policy, version: None }
}

/// A wish as a command, where the run has anything that it could be about.
fn command(wish: Wish, id: RunId, net: &mut Net<'_>) -> Option<Command> {
    let calls: Vec<_> = net.promises.run(id)?.calls().iter().map(|call| Arc::clone(call.spec())).collect();
    Some(match wish {
        Wish::Append => {
            let name = format!("more-{}", net.token());
            let life = net.promises.run(id)?.deadline();
            Command::AppendCalls { calls: vec![Arc::new(spec(&name, life, net))] }
        }
        Wish::Close => Command::Close,
        Wish::Answer => {
            let waits = |spec: &&Arc<CallSpec>| spec.route == Route::Client && spec.asked_by.is_none();
            let well = net.chance.percent(80);
            let output = || match well {
                true => Ok(vec![Content::Text("yes".into())]),
                false => Err(CallError::new(ErrorKind::ClientFailed, "no")),
            };
            let answer = |spec: &Arc<CallSpec>| Answer { call: spec.id.clone(), output: output() };
            Command::SubmitOutputs { answers: calls.iter().filter(waits).map(answer).collect(), all_required: false }
        }
        Wish::AnswerQuestion(call, nth) => {
            let id = calls.get(call.as_usize())?.id.clone();
            let output = match net.chance.percent(90) {
                true => Ok(vec![Content::Text(format!("{ANSWER_OF}{id} {nth}"))]),
                false => Err(CallError::new(ErrorKind::ClientFailed, format!("{ANSWER_OF}{id} {nth}"))),
            };
            Command::SubmitOutputs { answers: vec![Answer { call: id, output }], all_required: false }
        }
        Wish::Decide => {
            let decision = match net.chance.between(0, 4) {
                0 => Decision::Rejected { reason: "no".into() },
                1 => Decision::Approved { arguments: Some(Bytes::from_static(b"{\"changed\":1}")) },
                _ => Decision::Approved { arguments: None },
            };
            let asks = |spec: &&Arc<CallSpec>| spec.approval.is_some();
            let decisions = calls.iter().filter(asks).map(|spec| (spec.id.clone(), decision.clone())).collect();
            Command::Decide { decisions }
        }
        Wish::Cancel => {
            let call = net.chance.of(&calls)?.id.clone();
            Command::CancelCall { call, reason: "not needed".into() }
        }
        // Every other run is erased, without another draw of chance.
        Wish::CancelRun if net.now.0.is_multiple_of(2) => Command::EraseRun { reason: "erased".into(), bytes: 1 },
        Wish::CancelRun => Command::CancelRun { reason: "not needed".into() },
    })
}

fn is_answer_to_question(command: &Command) -> bool {
    let is_question = |answer: &Answer| answer.call.as_str().starts_with("ask_");
    matches!(command, Command::SubmitOutputs { answers, .. } if answers.iter().all(is_question))
}

/// Commands that were confirmed to a client have their effect in the log.
fn check_done(id: RunId, command: &Command, net: &mut Net<'_>) {
    let Some(run) = net.promises.run(id) else { return };
    let done = match command {
        Command::AppendCalls { calls } => calls.iter().all(|spec| run.find(&spec.id).is_some()),
        Command::Close => !run.is_open(),
        Command::SubmitOutputs { answers, .. } => {
            answers.iter().all(|answer| run.find(&answer.call).is_some_and(|call| call.outcome().is_some()))
        }
        Command::Decide { decisions } => {
            decisions.iter().all(|(call, decision)| run.find(call).is_some_and(|call| is_decided(call, decision)))
        }
        Command::CancelRun { .. } | Command::EraseRun { .. } => {
            run.calls().iter().all(|call| call.outcome().is_some() || call.cancel_requested())
        }
        Command::CancelCall { call, .. } => {
            run.find(call).is_some_and(|call| call.outcome().is_some() || call.cancel_requested())
        }
        Command::Redrive { .. } | Command::Drop { .. } => true,
    };
    net.promises.note("done");
    net.promises.check(done, || format!("{id}: a client is told that it is done: {command:?}"));
}

fn is_decided(call: &Call, decision: &Decision) -> bool {
    call.decided().map_or(call.outcome().is_some(), |decided| decided.decision == *decision)
}
