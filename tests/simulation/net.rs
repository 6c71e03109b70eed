//! Messages between the processes of the world, and a process's view of the world during a step.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use owner::membership::{Answer, Key, Operation};
use owner::{UserAnswer, UserQuestion};
use run::{
    AttemptId, CallIndex, CallSpec, ChunkIndex, Command, CommandError, Entry, Event, FloorPolicy, Opening, OutputKind,
    PoolId, RunId, Shard, Timestamp, Verdict, WorkerId,
};

use crate::chance::Chance;
use crate::promises::Promises;
use crate::shard::{Notification, Snapshot};
use crate::world::{SKEW_MS, START};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Node {
    Broker,
    Coordinator(usize),
    Worker(usize),
    Client(usize),
}

/// The subject of an entry within its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Place {
    Run,
    Job(CallIndex),
    Output(CallIndex),
    Control(CallIndex),
}

impl Place {
    /// Where events belong that are stored together.
    pub(crate) fn of(events: &[Event]) -> Self {
        match events.last() {
            Some(Event::CallDispatched { call, .. }) => Self::Job(*call),
            Some(
                Event::AttemptStarted { attempt, .. }
                | Event::AttemptStopping { attempt, .. }
                | Event::Output { attempt, .. }
                | Event::AttemptEnded { attempt, .. },
            ) => Self::Output(attempt.call),
            Some(
                Event::CallCancelRequested { call, .. }
                | Event::CallCancelled { call }
                | Event::CallExpired { call, .. }
                | Event::CallFailed { call, .. }
                | Event::CallRedriven { call, .. }
                | Event::CallDropped { call }
                | Event::CallDelayEnded { call }
                | Event::CallDecided { call, .. }
                | Event::ClientAnswered { call, .. },
            ) => Self::Control(*call),
            Some(
                Event::RunOpened(_)
                | Event::CallsAppended { .. }
                | Event::RunClosed
                | Event::RunCancelRequested { .. }
                | Event::RunEraseRequested(_)
                | Event::RunExpired { .. },
            )
            | None => Self::Run,
        }
    }
}

/// An entry of the log, with its subject.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) run: RunId,
    pub(crate) place: Place,
    pub(crate) entry: Arc<Entry>,
    /// The log does not have it any more.
    pub(crate) is_erased: bool,
}

/// A change of a key of the lease bucket.
#[derive(Debug, Clone)]
pub(crate) struct LeaseChange {
    pub(crate) key: Key,
    /// `None` for a deleted key.
    pub(crate) value: Option<String>,
    pub(crate) revision: u64,
    pub(crate) at: Timestamp,
}

/// The monotonic clock of a process. Only differences count, so a trace does not depend on the time of the test.
pub(crate) fn instant(now: Timestamp) -> Instant {
    static BEGAN: LazyLock<Instant> = LazyLock::new(Instant::now);
    *BEGAN + now.since(Timestamp(START - SKEW_MS))
}

/// A job as the broker delivers it. Its sequence is also its lease: acknowledgements do not tell deliveries apart.
#[derive(Debug, Clone)]
pub(crate) struct Delivery {
    pub(crate) sequence: u64,
    pub(crate) run: RunId,
    pub(crate) call: CallIndex,
    pub(crate) spec: Arc<CallSpec>,
    pub(crate) delivered: u32,
    pub(crate) published: Timestamp,
    /// It was stored too late to count.
    pub(crate) is_late: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settle {
    Ack,
    Nak(Duration),
    InProgress,
}

#[derive(Debug, Clone)]
pub(crate) struct Question {
    pub(crate) token: u64,
    pub(crate) run: RunId,
    pub(crate) call: CallIndex,
    pub(crate) delivered: u32,
    pub(crate) sequence: u64,
    pub(crate) attempt: Option<AttemptId>,
    pub(crate) executed: bool,
}

#[derive(Debug, Clone)]
pub(crate) enum Message {
    // To the broker, and its answers.
    Append {
        token: u64,
        run: RunId,
        events: Vec<Event>,
        expected: Option<u64>,
        not_after: Option<Timestamp>,
    },
    Appended {
        token: u64,
    },
    Conflict {
        token: u64,
    },
    LastOutput {
        token: u64,
        run: RunId,
        call: CallIndex,
    },
    LastOutputIs {
        token: u64,
        sequence: u64,
    },
    Pull {
        pool: PoolId,
    },
    Job(Delivery),
    Settle {
        sequence: u64,
        how: Settle,
        asked: Timestamp,
    },
    StillYours {
        sequence: u64,
        asked: Timestamp,
    },
    LookAtQueues,
    /// The last job of each pool that was given to a worker.
    Given(Vec<(PoolId, u64)>),
    LeaseRequest {
        token: u64,
        key: Key,
        operation: Operation,
        revision: u64,
    },
    LeaseAnswer {
        token: u64,
        answer: Answer,
    },
    LeasesChanged {
        through: usize,
    },
    WriteSnapshot {
        token: u64,
        shard: Shard,
        snapshot: Arc<Snapshot>,
        /// The revision that it replaces.
        revision: Option<u64>,
    },
    /// The new revision, or the one that the bucket has.
    SnapshotAnswer {
        token: u64,
        result: Result<u64, u64>,
    },
    /// Remove a run's entries up to this one.
    Purge {
        token: u64,
        run: RunId,
        through: u64,
    },
    Purged {
        token: u64,
    },
    Notify {
        token: u64,
        notifications: Vec<Notification>,
    },
    /// So many are in the queue.
    Notified {
        token: u64,
        count: usize,
        is_accepting: bool,
    },
    LogGrew {
        through: u64,
    },
    // Through the broker, not stored.
    Alive {
        worker: WorkerId,
        pool: PoolId,
        leaving: bool,
    },
    Stop {
        run: RunId,
        attempt: AttemptId,
    },
    Ask(Question),
    /// A question, and its sender.
    Forwarded(Node, Box<Self>),
    Answer {
        token: u64,
        verdict: Verdict,
        last_output: u64,
    },
    /// A tool asks its client.
    AskUser {
        token: u64,
        pool: PoolId,
        asks: Box<UserQuestion>,
    },
    /// How its question stands; `None` if it is to be asked again.
    UserReply {
        token: u64,
        answer: Option<Box<UserAnswer>>,
    },
    // Between clients and coordinators.
    Create {
        token: u64,
        opening: Opening,
    },
    Created {
        token: u64,
        run: RunId,
    },
    /// Its append was not confirmed.
    Unconfirmed {
        token: u64,
    },
    Do {
        token: u64,
        run: RunId,
        command: Command,
    },
    Done {
        token: u64,
        result: Result<(), CommandError>,
    },
    Watch {
        watch: u64,
        run: RunId,
        policy: FloorPolicy,
        after: Option<u64>,
    },
    Pieces {
        watch: u64,
        pieces: Vec<(u64, Piece)>,
    },
    /// The run is not in the log any more.
    Gone {
        watch: u64,
    },
}

/// One numbered item of a run's output.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Fact(OutputKind),
    Chunk { attempt: AttemptId, index: ChunkIndex, body: String },
}

/// A rule of the protocol that is broken on purpose, to see that a check finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// A worker executes whatever the owner answers.
    DeafWorker,
    /// The start of a call that is not safe to repeat is stored behind any output.
    UnfencedStart,
    /// An attempt goes on from a chunk whatever was stored since the owner answered.
    UnfencedContinuation,
    /// An opening that was sent twice is stored twice.
    UnfencedOpening,
    /// Entries of a coordinator count however late they are stored.
    EndlessEntries,
    /// A worker executes a job that was stored too late.
    LateJobs,
    /// A job is appended even if there is one.
    UnfencedDispatch,
    /// An owner answers before it has read what was stored.
    EagerOwner,
    /// A worker acknowledges its job before the end is stored.
    EarlyAck,
    /// A coordinator skips a piece for a reader that resumes.
    ForgetfulDoor,
    /// An owner that is asked whether a start counts answers as if a job had been delivered.
    AmbiguousAnswer,
    /// The tool is called as soon as its start is stored, though the call may have ended before.
    UnconfirmedStart,
    /// A worker acknowledges its job though another worker may have it by now.
    HastyAck,
    /// The owner performs no outstanding effects.
    IdleOwner,
    /// A coordinator acts for its shards however long ago its lease was confirmed.
    EndlessLease,
    /// A coordinator claims the shards of a silent one without evicting it before.
    UnfencedEviction,
    /// A run is erased though no stored snapshot says that it has ended.
    HastyErasure,
    /// A snapshot is stored whatever was stored since its writer read the last one.
    UnfencedSnapshot,
    /// A snapshot does not say which runs are still to be erased.
    ForgottenErasures,
    /// A snapshot does not have the notifications that are not in the queue yet.
    ForgottenNotifications,
    /// Calls are dispatched though their tool is paused.
    DeafToPauses,
    /// A question is stored whatever was stored since the owner decided on it.
    UnfencedQuestion,
    /// A request of an attempt is answered as if an earlier attempt of its call had asked.
    StrayAnswer,
}

/// The tools and pools that are paused.
#[derive(Debug, Clone, Default)]
pub(crate) struct Paused {
    /// Since when.
    pub(crate) tools: BTreeMap<&'static str, Timestamp>,
    pub(crate) pools: BTreeMap<&'static str, Timestamp>,
}

/// A process's view and actions in one step.
pub(crate) struct Net<'a> {
    /// By the process's own clock.
    pub(crate) now: Timestamp,
    pub(crate) flaw: Flaw,
    pub(crate) chance: &'a mut Chance,
    /// As the broker has it: reads are served by its leader.
    pub(crate) log: &'a [Stored],
    /// The changes of the lease bucket, likewise.
    pub(crate) leases: &'a [LeaseChange],
    /// The snapshots in the bucket, with their revisions, likewise.
    pub(crate) snapshots: &'a BTreeMap<Shard, (u64, Arc<Snapshot>)>,
    /// What an operator has paused.
    pub(crate) paused: &'a Paused,
    pub(crate) promises: &'a mut Promises,
    pub(crate) tokens: &'a mut u64,
    pub(crate) outbox: Vec<(Node, Message)>,
    pub(crate) wake_in: Vec<Duration>,
    pub(crate) gone: bool,
    /// Things go wrong.
    pub(crate) rough: bool,
    /// Some link was cut: of what went through it, messages may be missing between others.
    pub(crate) link_was_cut: bool,
}

impl Net<'_> {
    pub(crate) fn send(&mut self, to: Node, message: Message) {
        self.outbox.push((to, message));
    }

    pub(crate) fn token(&mut self) -> u64 {
        *self.tokens += 1;
        *self.tokens
    }

    pub(crate) fn append(&mut self, run: RunId, events: Vec<Event>, expected: Option<u64>) -> u64 {
        let token = self.token();
        let is_workers = matches!(Place::of(&events), Place::Output(_));
        let counts_until = || run::counts_until(run, &events, self.now);
        let not_after = (!is_workers && self.flaw != Flaw::EndlessEntries).then(counts_until);
        self.send(Node::Broker, Message::Append { token, run, events, expected, not_after });
        token
    }
}
