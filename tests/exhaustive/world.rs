//! A small world and its state: one run with one call, a log with compare-and-set by subject, a queue, two coordinators
//! (one owns the shard), two workers, and the messages that are on their way.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher as _};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use owner::SubjectKind;
use owner::job::Settle;
use owner::{UserAnswer, UserQuestion};
use run::{
    Answer, AttemptId, Call, CallIndex, CallSpec, Command, Content, Entry, Event, FloorPolicy, Opening, Policy, PoolId,
    Route, Run, RunId, Sequencer, Timestamp, Verdict,
};

use crate::coordinator::Coordinator;
use crate::promises::Promises;
use crate::worker::Worker;

pub(crate) const COORDINATORS: usize = 2;
pub(crate) const WORKERS: usize = 2;
pub(crate) const CALL: CallIndex = CallIndex(0);
/// Chunks that the tool emits before it completes.
pub(crate) const CHUNKS: u32 = 2;
/// When the world begins, in milliseconds since the Unix epoch.
const START: u64 = 1_700_000_000_000;
/// How long the call may take. Nothing but a drain takes that long.
const LIFE: Duration = Duration::from_secs(600);
/// The time of a short step. It is longer than the time after which a worker counts as lost, and than all pauses
/// between two tries, but shorter than a job's lease.
pub(crate) const SHORT: Duration = Duration::from_secs(7);
/// The time of a long step: leases of silent workers end, and entries on their way come too late to count.
pub(crate) const LONG: Duration = Duration::from_secs(31);

/// A rule of the protocol that is broken on purpose, to see that the search finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Flaw {
    None,
    /// A worker executes whatever the owner answers.
    DeafWorker,
    /// The start of a call that is not safe to repeat is stored behind any output.
    UnfencedStart,
    /// The tool is called as soon as its start is stored, without the owner's confirmation.
    UnconfirmedStart,
    /// An owner that is asked whether a start counts answers as if a job had been delivered.
    AmbiguousAnswer,
    /// An owner answers before it has read what was stored.
    EagerOwner,
    /// A worker acknowledges its job before the end of the attempt is stored.
    EarlyAck,
    /// A job is dispatched although there is one.
    UnfencedDispatch,
    /// An owner performs no actions.
    IdleOwner,
    /// A worker never stores that an attempt ended before its tool was called.
    SilentReturn,
    /// A new owner does not read the runs that are open.
    ForgetfulOwner,
    /// A worker whose start does not count acknowledges the job.
    AckSuperseded,
    /// A worker acknowledges its job after an attempt without asking whether another worker has it.
    HastyAck,
    /// A new owner dispatches a delayed call at once.
    ImpatientOwner,
    /// A question is stored whatever was stored since the owner decided on it.
    UnfencedQuestion,
    /// A request of an attempt is answered as if an earlier attempt of the call had asked.
    StrayAnswer,
    /// A worker requests the question of its tool once.
    AskedOnce,
}

/// What may still go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Budget {
    pub(crate) short_steps: u8,
    pub(crate) long_steps: u8,
    pub(crate) cancels: u8,
    /// Answers of the client to questions of the tool.
    pub(crate) answers: u8,
    /// Crashes, silences, losses and copies together.
    pub(crate) faults: u8,
    pub(crate) crashes: u8,
    pub(crate) silences: u8,
    pub(crate) losses: u8,
    pub(crate) copies: u8,
}

impl Budget {
    /// So many faults of any kinds, and neither time nor cancellations.
    pub(crate) fn with_faults(faults: u8) -> Self {
        let [crashes, silences, losses, copies] = [faults; 4];
        Self { short_steps: 0, long_steps: 0, cancels: 0, answers: 0, faults, crashes, silences, losses, copies }
    }
}

/// What differs from world to world.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) repeatable: bool,
    /// The job is an entry of its own, appended by the owner.
    pub(crate) apart: bool,
    /// The call may not begin before a short step of time has passed.
    pub(crate) delayed: bool,
    /// The tool asks its client a question between its chunks.
    pub(crate) asks: bool,
    pub(crate) flaw: Flaw,
    pub(crate) budget: Budget,
}

/// Who waits for the answer to an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sender {
    Client,
    Coordinator {
        index: usize,
        claim: u64,
    },
    Worker {
        index: usize,
        life: u8,
    },
    /// The owner, in the name of a lost worker.
    Nobody,
}

/// A message on its way. Any of them may arrive next.
#[derive(Debug, Clone)]
pub(crate) enum Message {
    Append {
        from: Sender,
        token: u32,
        events: Vec<Event>,
        expected: Option<u64>,
        not_after: Option<Timestamp>,
    },
    Appended {
        to: Sender,
        token: u32,
        is_stored: bool,
    },
    Question {
        worker: usize,
        life: u8,
        token: u32,
        question: owner::Question,
    },
    Answer {
        worker: usize,
        life: u8,
        token: u32,
        verdict: Verdict,
        last_output: u64,
    },
    /// The tool of an attempt asks its client.
    AskUser {
        worker: usize,
        life: u8,
        token: u32,
        asks: UserQuestion,
    },
    /// How its question stands; `None` if it is to be asked again.
    UserReply {
        worker: usize,
        life: u8,
        token: u32,
        answer: Option<UserAnswer>,
    },
    Settle {
        job: u64,
        settle: Settle,
    },
    Stop {
        attempt: AttemptId,
    },
}

/// A job in the queue.
#[derive(Debug, Clone)]
pub(crate) struct QueuedJob {
    pub(crate) sequence: u64,
    pub(crate) published: Timestamp,
    pub(crate) is_late: bool,
    pub(crate) delivered: u32,
    pub(crate) state: JobState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JobState {
    Waiting { not_before: Timestamp },
    Out { until: Timestamp },
    Done,
}

/// When a life of a worker was last heard of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Beat {
    pub(crate) worker: usize,
    pub(crate) life: u8,
    pub(crate) at: Timestamp,
}

#[derive(Debug, Clone)]
pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) now: Timestamp,
    pub(crate) log: Vec<(SubjectKind, Arc<Entry>)>,
    /// The fold of the whole log, as any reader has it.
    pub(crate) run: Run,
    pub(crate) jobs: Vec<QueuedJob>,
    /// The messages on their way, each with its hash, by which they are sorted: their order does not matter.
    pub(crate) wires: Vec<(u64, Message)>,
    pub(crate) coordinators: [Coordinator; COORDINATORS],
    pub(crate) workers: [Worker; WORKERS],
    pub(crate) beats: Vec<Beat>,
    /// How often the shard was claimed.
    pub(crate) claims: u64,
    pub(crate) was_cancelled: bool,
    pub(crate) promises: Promises,
}

impl World {
    pub(crate) fn new(plan: Plan) -> Self {
        let now = Timestamp(START);
        let mut world = Self {
            plan,
            now,
            log: Vec::new(),
            run: Run::new(run_id()),
            jobs: Vec::new(),
            wires: Vec::new(),
            coordinators: std::array::from_fn(|_| Coordinator::default()),
            workers: std::array::from_fn(|_| Worker::new()),
            beats: (0..WORKERS).map(|worker| Beat { worker, life: 0, at: now }).collect(),
            claims: 0,
            was_cancelled: false,
            promises: Promises::default(),
        };
        let not_before = plan.delayed.then(|| now.after(SHORT));
        let calls = vec![Arc::new(CallSpec { not_before, ..spec(plan.repeatable, now) })];
        let opening = Opening { calls, deadline: now.after(LIFE), apart: plan.apart, ..Opening::default() };
        let events = Run::open(opening, now).expect("the opening is valid");
        world.store(events, None, None);
        world.claim(0);
        world
    }

    /// Tells two states apart. Debug output of the core has no addresses and no unordered collections.
    pub(crate) fn fingerprint(&self) -> u128 {
        let mut both = [DefaultHasher::new(), DefaultHasher::new()].map(HashText);
        both[1].0.write_u8(1);
        for text in &mut both {
            write!(text, "{self:?}").expect("hashing never fails");
        }
        both.iter().fold(0, |hash, text| hash << 64 | u128::from(text.0.finish()))
    }

    pub(crate) fn send(&mut self, message: Message) {
        let mut text = HashText(DefaultHasher::new());
        write!(text, "{message:?}").expect("hashing never fails");
        let hash = text.0.finish();
        let place = self.wires.partition_point(|(other, _)| *other <= hash);
        self.wires.insert(place, (hash, message));
    }

    /// Appends at the broker. Returns whether the entry was stored.
    pub(crate) fn store(&mut self, events: Vec<Event>, expected: Option<u64>, not_after: Option<Timestamp>) -> bool {
        let kind = SubjectKind::of(&events).expect("an entry has events");
        if expected.is_some_and(|expected| expected != self.last_on(&kind)) {
            return false;
        }
        let sequence = self.log.len() as u64 + 1;
        let entry = Arc::new(Entry { sequence, at: self.now, not_after, hooked: false, events });
        if matches!(kind, SubjectKind::Job { .. }) {
            let (published, state) = (self.now, JobState::Waiting { not_before: self.now });
            self.jobs.push(QueuedJob { sequence, published, is_late: entry.is_late(), delivered: 0, state });
        }
        let mut facts = Vec::new();
        self.run.apply(&entry, &mut facts);
        self.promises.stored(&entry, &facts, &self.run);
        self.log.push((kind, entry));
        true
    }

    fn last_on(&self, kind: &SubjectKind) -> u64 {
        self.log.iter().rfind(|(other, _)| other == kind).map_or(0, |(_, entry)| entry.sequence)
    }

    /// The sequence of the call's last output.
    pub(crate) fn last_output(&self) -> u64 {
        self.last_on(&SubjectKind::Output { call: CALL, pool: pool() })
    }

    /// The coordinator that owns the shard.
    pub(crate) fn owner(&self) -> Option<usize> {
        self.coordinators.iter().position(|coordinator| coordinator.is_owner())
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.run.status().is_final()
    }

    /// The client cancels the call.
    pub(crate) fn cancel(&mut self) {
        let id = self.run.calls()[0].spec().id.clone();
        let command = Command::CancelCall { call: id, reason: "enough".to_owned() };
        let Ok(events) = self.run.decide(command, self.now) else { return };
        self.was_cancelled = true;
        for event in events {
            let expected = self.run.call(CALL).map(run::Call::revision);
            let not_after = Some(run::counts_until(run_id(), std::slice::from_ref(&event), self.now));
            self.send(Message::Append { from: Sender::Client, token: 0, events: vec![event], expected, not_after });
        }
    }

    /// The client answers the open question, each time otherwise.
    pub(crate) fn answer(&mut self, nth: u8) {
        let Some(question) = self.open_question() else { return };
        let (call, id, expected) = (question.index(), question.spec().id.clone(), question.revision());
        let output = Ok(vec![Content::Text(format!("answer {nth} to {id}"))]);
        let command = Command::SubmitOutputs { answers: vec![Answer { call: id, output }], all_required: false };
        let Ok(events) = self.run.decide(command, self.now) else { return };
        for event in events {
            let not_after = Some(run::counts_until(run_id(), std::slice::from_ref(&event), self.now));
            let expected = Some(expected);
            let token = call.0.into();
            self.send(Message::Append { from: Sender::Client, token, events: vec![event], expected, not_after });
        }
    }

    /// A question that waits for the client.
    pub(crate) fn open_question(&self) -> Option<&Call> {
        self.run.open_questions(CALL).next()
    }

    /// The text that a reader of the call receives, folded from the whole log.
    pub(crate) fn reader(&self) -> (Run, Vec<run::OutputEvent>) {
        let (mut run, mut sequencer) = (Run::new(run_id()), Sequencer::new(FloorPolicy::Arrival));
        let mut output = Vec::new();
        for (_, entry) in &self.log {
            let mut facts = Vec::new();
            run.apply(entry, &mut facts);
            sequencer.observe(entry.at, &facts, &mut output);
        }
        (run, output)
    }
}

/// Hashes what is written to it.
struct HashText(DefaultHasher);

impl std::fmt::Write for HashText {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

pub(crate) fn run_id() -> RunId {
    static ID: LazyLock<RunId> =
        LazyLock::new(|| format!("run_00_{START:012x}7000{}", "8000000000000000").parse().expect("a run id"));
    *ID
}

pub(crate) fn pool() -> PoolId {
    static POOL: LazyLock<PoolId> = LazyLock::new(|| "main".parse().expect("a pool"));
    POOL.clone()
}

pub(crate) fn policy(repeatable: bool) -> Policy {
    let effects = run::Effects { idempotent: repeatable, ..run::Effects::default() };
    Policy { repeatable, attempts_max: 3, attempt_timeout: LIFE, ..Policy::of(effects) }
}

fn spec(repeatable: bool, now: Timestamp) -> CallSpec {
    let (id, tool) = ("call".parse().expect("an id"), "tool".parse().expect("a name"));
    let route = Route::Pool { pool: pool(), policy: policy(repeatable), version: None };
    CallSpec::new(id, tool, Bytes::from_static(b"{}"), route, now.after(LIFE))
}

/// The monotonic clock of every process.
pub(crate) fn instant(now: Timestamp) -> Instant {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    *BEGAN + now.since(Timestamp(START))
}
