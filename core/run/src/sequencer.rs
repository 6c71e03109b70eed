//! The second fold: turns what a run's fold accepted into the run's one ordered, numbered output, and decides which
//! call has the floor.
//!
//! It stores positions of output, not the output, because a call may wait long for the floor while others fill the log.
//! What waits is read from the log again.

use std::collections::VecDeque;

use crate::chunks::Span;
use crate::event::{AttemptId, StopStage};
use crate::id::{AttemptNumber, CallIndex, Timestamp};
use crate::run::{Fact, RunStatus};

/// Chosen by the reader. The same policy gives every reader the same output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum FloorPolicy {
    /// The floor goes to the call whose waiting output is oldest in the log.
    #[default]
    Arrival,
    /// The floor goes to calls in the order in which they were submitted. Calls that wait for the client or for
    /// approval, or are delayed, are skipped meanwhile.
    Submission,
    /// No floor: output in the order in which it is stored; each piece names its call.
    Interleaved,
    /// The floor goes to the call that a function of the deployment chooses.
    Added(AddedPolicy),
}

/// A policy that a deployment adds.
#[derive(Debug, Clone, Copy)]
pub struct AddedPolicy {
    /// By which readers choose it.
    pub name: &'static str,
    pub choose: ChooseSpeaker,
}

/// Chooses the call that takes the free floor, from the voices of the calls in the order in which they were accepted.
/// `None` leaves the floor free until there is news; so does a call without waiting output. The same voices must give
/// the same choice: then all readers see the same order. A run that ends emits what is left in the order of arrival.
pub type ChooseSpeaker = fn(&[Voice]) -> Option<CallIndex>;

/// The name decides: two functions of one name are one policy.
impl PartialEq for AddedPolicy {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for AddedPolicy {}

impl std::hash::Hash for AddedPolicy {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl FloorPolicy {
    /// How it passes the floor; `None` if there is no floor.
    fn choose(self) -> Option<ChooseSpeaker> {
        match self {
            Self::Arrival => Some(by_arrival),
            Self::Submission => Some(by_submission),
            Self::Interleaved => None,
            Self::Added(added) => Some(added.choose),
        }
    }
}

fn by_arrival(voices: &[Voice]) -> Option<CallIndex> {
    let waiting = voices.iter().zip(0..).filter_map(|(voice, index)| Some((voice.waits_since()?, CallIndex(index))));
    waiting.min().map(|(_, call)| call)
}

/// The next call may have no output yet. Then the floor stays free, so that a client's answer to an earlier call need
/// not wait for it.
fn by_submission(voices: &[Voice]) -> Option<CallIndex> {
    let next = voices.iter().zip(0..).find(|(voice, _)| !voice.has_ended() && !voice.is_held());
    next.map(|(_, index)| CallIndex(index))
}

/// One numbered piece of a run's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputEvent {
    /// From 0, without gaps.
    pub number: u64,
    /// When the event was stored.
    pub at: Timestamp,
    pub what: OutputKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputKind {
    RunOpened,
    CallsAppended {
        first: CallIndex,
        count: u16,
    },
    RunClosed,
    ApprovalAsked {
        call: CallIndex,
    },
    Decided {
        call: CallIndex,
    },
    CallWaits {
        call: CallIndex,
    },
    AttemptStarted {
        attempt: AttemptId,
        continues: bool,
    },
    AttemptEnded {
        attempt: AttemptId,
    },
    CancelRequested {
        call: CallIndex,
    },
    AttemptStopping {
        attempt: AttemptId,
        stage: StopStage,
    },
    /// The call takes the floor (or, without a floor, has output for the first time).
    Speaks {
        call: CallIndex,
    },
    Output {
        attempt: AttemptId,
        span: Span,
    },
    /// The output of this attempt, and what it continued, is void; another attempt starts over.
    Withdrawn {
        call: CallIndex,
        number: AttemptNumber,
    },
    /// The call ends and gives up the floor, unless it is a question, which never has it.
    CallEnded {
        call: CallIndex,
    },
    StatusChanged(RunStatus),
    /// The last piece.
    RunEnded(RunStatus),
}

impl OutputKind {
    /// How many sequence numbers it takes: each chunk has its own.
    fn width(&self) -> u64 {
        match self {
            Self::Output { span, .. } => u64::from(span.count),
            Self::RunOpened
            | Self::CallsAppended { .. }
            | Self::RunClosed
            | Self::ApprovalAsked { .. }
            | Self::Decided { .. }
            | Self::CallWaits { .. }
            | Self::AttemptStarted { .. }
            | Self::AttemptEnded { .. }
            | Self::CancelRequested { .. }
            | Self::AttemptStopping { .. }
            | Self::Speaks { .. }
            | Self::Withdrawn { .. }
            | Self::CallEnded { .. }
            | Self::StatusChanged(_)
            | Self::RunEnded(_) => 1,
        }
    }
}

#[derive(Debug)]
pub struct Sequencer {
    policy: FloorPolicy,
    /// The number of the next piece.
    next: u64,
    floor: Option<CallIndex>,
    voices: Vec<Voice>,
    /// Counts arrivals, so that the call with the oldest waiting output is known.
    arrivals: u64,
}

/// The emitted and the waiting output of one call.
#[derive(Debug, Default)]
pub struct Voice {
    waiting: VecDeque<Waiting>,
    /// It was announced.
    speaks: bool,
    /// The attempt whose chunks were emitted.
    spoken: Option<AttemptNumber>,
    /// It waits for its client or for approval, or is delayed.
    waits: bool,
    /// It is a question of a running call: it never takes the floor, because its call may hold it until the answer
    /// comes.
    is_aside: bool,
    ended: bool,
}

impl Voice {
    /// The place of its oldest waiting output among the output of the run: lower is older. `None` if none waits.
    #[must_use]
    pub fn waits_since(&self) -> Option<u64> {
        self.waiting.front().map(|waiting| waiting.arrival)
    }

    /// It waits for its client or for approval, or is delayed.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.waits
    }

    /// Its end was emitted.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.ended
    }
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    arrival: u64,
    at: Timestamp,
    what: Said,
}

#[derive(Debug, Clone, Copy)]
enum Said {
    Output { attempt: AttemptId, span: Span },
    Withdrawn { number: AttemptNumber },
    End,
}

impl Sequencer {
    #[must_use]
    pub fn new(policy: FloorPolicy) -> Self {
        Self { policy, next: 0, floor: None, voices: Vec::new(), arrivals: 0 }
    }

    /// Observes what the run's fold accepted of one entry, stored at `at`, and emits the output that follows.
    pub fn observe(&mut self, at: Timestamp, heard: &[Fact], spoken: &mut Vec<OutputEvent>) {
        for fact in heard {
            match *fact {
                Fact::RunOpened => self.speak(OutputKind::RunOpened, at, spoken),
                Fact::CallsAppended { first, count } => {
                    self.speak(OutputKind::CallsAppended { first, count }, at, spoken);
                }
                Fact::RunClosed => self.speak(OutputKind::RunClosed, at, spoken),
                Fact::ApprovalAsked { call } => {
                    self.voice(call).waits = true;
                    self.speak(OutputKind::ApprovalAsked { call }, at, spoken);
                }
                Fact::Decided { call } => {
                    self.voice(call).waits = false;
                    self.speak(OutputKind::Decided { call }, at, spoken);
                }
                // Nothing is emitted: its opening names the time, and its first attempt follows the end of the delay.
                Fact::Delayed { call } => self.voice(call).waits = true,
                Fact::DelayEnded { call } => self.voice(call).waits = false,
                Fact::CallWaits { call } => {
                    self.voice(call).waits = true;
                    self.speak(OutputKind::CallWaits { call }, at, spoken);
                }
                Fact::QuestionAsked { call } => {
                    (self.voice(call).waits, self.voice(call).is_aside) = (true, true);
                    self.speak(OutputKind::CallWaits { call }, at, spoken);
                }
                Fact::AttemptStarted { attempt, continues } => {
                    self.speak(OutputKind::AttemptStarted { attempt, continues }, at, spoken);
                    if !continues {
                        self.withdraw_before(attempt, at, spoken);
                    }
                }
                Fact::AttemptStopping { attempt, stage } => {
                    self.speak(OutputKind::AttemptStopping { attempt, stage }, at, spoken);
                }
                Fact::AttemptEnded { attempt } => self.speak(OutputKind::AttemptEnded { attempt }, at, spoken),
                Fact::CancelRequested { call } => self.speak(OutputKind::CancelRequested { call }, at, spoken),
                Fact::Output { attempt, span } => {
                    self.say(attempt.call, Said::Output { attempt, span }, at, spoken);
                }
                Fact::CallEnded { call } if self.voice(call).is_aside => {
                    (self.voice(call).waits, self.voice(call).ended) = (false, true);
                    self.speak(OutputKind::CallEnded { call }, at, spoken);
                }
                Fact::CallEnded { call } => {
                    self.voice(call).waits = false;
                    self.say(call, Said::End, at, spoken);
                }
                Fact::StatusChanged(status) if status.is_final() => {
                    self.speak_rest(spoken);
                    self.speak(OutputKind::RunEnded(status), at, spoken);
                }
                Fact::StatusChanged(status) => self.speak(OutputKind::StatusChanged(status), at, spoken),
            }
        }
    }

    fn voice(&mut self, call: CallIndex) -> &mut Voice {
        if self.voices.len() <= call.as_usize() {
            self.voices.resize_with(call.as_usize() + 1, Voice::default);
        }
        &mut self.voices[call.as_usize()]
    }

    fn speak(&mut self, what: OutputKind, at: Timestamp, spoken: &mut Vec<OutputEvent>) {
        spoken.push(OutputEvent { number: self.next, at, what });
        self.next += what.width();
    }

    /// Waiting output of an older attempt is dropped; output that was emitted is withdrawn, once.
    fn withdraw_before(&mut self, attempt: AttemptId, at: Timestamp, spoken: &mut Vec<OutputEvent>) {
        let voice = self.voice(attempt.call);
        voice.waiting.clear();
        if let Some(number) = voice.spoken.take() {
            self.say(attempt.call, Said::Withdrawn { number }, at, spoken);
        }
    }

    fn say(&mut self, call: CallIndex, what: Said, at: Timestamp, spoken: &mut Vec<OutputEvent>) {
        let arrival = self.arrivals;
        self.arrivals += 1;
        self.voice(call).waiting.push_back(Waiting { arrival, at, what });
        match self.policy.choose() {
            None => self.speak_waiting(call, spoken),
            Some(choose) => self.pass_floor(choose, spoken),
        }
    }

    /// Emits output of the call that has the floor, and passes the floor on as long as its holder has ended.
    fn pass_floor(&mut self, choose: ChooseSpeaker, spoken: &mut Vec<OutputEvent>) {
        while let Some(call) = self.floor.or_else(|| self.next_speaker(choose)) {
            self.floor = Some(call);
            self.speak_waiting(call, spoken);
            if !self.voice(call).ended {
                return;
            }
            self.floor = None;
        }
    }

    fn next_speaker(&self, choose: ChooseSpeaker) -> Option<CallIndex> {
        let call = match self.policy {
            // A policy that panics chooses nobody: it must not make a run unreadable.
            FloorPolicy::Added(_) => std::panic::catch_unwind(|| choose(&self.voices)).ok().flatten()?,
            FloorPolicy::Arrival | FloorPolicy::Submission | FloorPolicy::Interleaved => choose(&self.voices)?,
        };
        self.voices.get(call.as_usize()).filter(|voice| !voice.waiting.is_empty()).map(|_| call)
    }

    /// All calls have ended, so nothing waits unless a policy passed a call over.
    fn speak_rest(&mut self, spoken: &mut Vec<OutputEvent>) {
        while let Some(call) = by_arrival(&self.voices) {
            self.speak_waiting(call, spoken);
        }
    }

    fn speak_waiting(&mut self, call: CallIndex, spoken: &mut Vec<OutputEvent>) {
        while let Some(Waiting { at, what, .. }) = self.voice(call).waiting.pop_front() {
            if !std::mem::replace(&mut self.voice(call).speaks, true) {
                self.speak(OutputKind::Speaks { call }, at, spoken);
            }
            let utterance = match what {
                Said::Output { attempt, span } => {
                    self.voice(call).spoken = Some(attempt.number);
                    OutputKind::Output { attempt, span }
                }
                Said::Withdrawn { number } => OutputKind::Withdrawn { call, number },
                Said::End => {
                    self.voice(call).ended = true;
                    OutputKind::CallEnded { call }
                }
            };
            self.speak(utterance, at, spoken);
        }
    }
}
