//! A client that reads a run's output, checks the promises, and keeps the valid output.

pub(crate) mod hall;
pub(crate) mod log;

use std::collections::{BTreeMap, BTreeSet};

use toolyard_run::{
    AttemptId, AttemptNumber, CallIndex, Chunk, Content, Entry, Event, FloorPolicy, OutputEvent, OutputKind, Span,
};

use self::log::{continuing, questions};
use crate::story::{needs_floor, speak};

/// One numbered item of the output.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Piece {
    Fact(OutputKind),
    Chunk { attempt: AttemptId, index: u32, body: String },
}

/// The whole output of a log, a piece to each number.
pub(crate) fn pieces(log: &[Entry], policy: FloorPolicy) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for spoken in speak(log, policy) {
        assert_eq!(spoken.number, pieces.len() as u64, "numbers have no gaps and start at 0");
        pieces.extend(unfold(log, &spoken));
    }
    pieces
}

/// The output that follows number `after`, as a reader gets it who comes back: what lies before is cut off.
pub(crate) fn resumed(spoken: &[OutputEvent], after: u64) -> impl Iterator<Item = OutputEvent> {
    let known = move |spoken: &OutputEvent| after.saturating_add(1).saturating_sub(spoken.number);
    spoken.iter().filter_map(move |&spoken| match spoken.what {
        OutputKind::Output { attempt, mut span } => {
            let cut = u32::try_from(known(&spoken)).ok().filter(|cut| *cut < span.count)?;
            (span.skip, span.count, span.first.0) = (span.skip + cut, span.count - cut, span.first.0 + cut);
            let number = spoken.number + u64::from(cut);
            Some(OutputEvent { number, what: OutputKind::Output { attempt, span }, ..spoken })
        }
        _ => (spoken.number > after).then_some(spoken),
    })
}

pub(crate) fn unfold(log: &[Entry], spoken: &OutputEvent) -> Vec<Piece> {
    match spoken.what {
        OutputKind::Output { attempt, span } => (0..span.count)
            .map(|nth| Piece::Chunk { attempt, index: span.first.0 + nth, body: body(log, &span, nth) })
            .collect(),
        fact => vec![Piece::Fact(fact)],
    }
}

/// Reads a chunk from where the span says that it lies.
fn body(log: &[Entry], span: &Span, nth: u32) -> String {
    let entry = log.iter().find(|entry| entry.sequence == span.position.sequence).expect("the entry is in the log");
    let Some(Event::Output { chunks, .. }) = entry.events.get(span.position.event as usize) else {
        panic!("{span:?} is not at an output")
    };
    match &chunks[(span.skip + nth) as usize] {
        Chunk::Content { content: Content::Text(text), .. } => text.clone(),
        other => panic!("{other:?} was never sent"),
    }
}

#[derive(Debug, Default)]
pub(crate) struct Transcript {
    pub(crate) calls: BTreeMap<CallIndex, Voice>,
    pub(crate) run_ended: bool,
    continuing: BTreeSet<(CallIndex, AttemptNumber)>,
    /// Questions of running calls, which need no floor.
    questions: BTreeSet<CallIndex>,
}

/// The valid output of a call.
#[derive(Debug, Default)]
pub(crate) struct Voice {
    pub(crate) said: Vec<AttemptId>,
    pub(crate) spoke: bool,
    pub(crate) ended: bool,
    pub(crate) withdrawals: usize,
    newest: Option<AttemptId>,
    /// The attempts whose output stands: the newest, and those that it went on from.
    standing: BTreeSet<AttemptNumber>,
}

/// Reads the output of a log to its end. Panics where it breaks a promise.
pub(crate) fn listen(log: &[Entry], policy: FloorPolicy) -> Transcript {
    let pieces = pieces(log, policy);
    let questions = questions(log);
    let mut transcript = Transcript { continuing: continuing(log), questions, ..Transcript::default() };
    let mut floor = None;
    for (number, piece) in pieces.iter().enumerate() {
        assert!(!transcript.run_ended, "{piece:?} after the end");
        assert_eq!(number == 0, *piece == Piece::Fact(OutputKind::RunOpened), "the run is opened first, and once");
        let is_question = |call: &CallIndex| transcript.questions.contains(call);
        if let Some(call) = on_the_floor(piece).filter(|call| !is_question(call))
            && policy != FloorPolicy::Interleaved
        {
            assert_eq!(*floor.get_or_insert(call), call, "{piece:?} while another has the floor");
        }
        match piece {
            Piece::Chunk { attempt, index, body } => transcript.chunk(*attempt, *index, body),
            Piece::Fact(fact) => transcript.fact(*fact),
        }
        if let Piece::Fact(OutputKind::CallEnded { call }) = piece
            && !transcript.questions.contains(call)
        {
            floor = None;
        }
    }
    transcript
}

fn on_the_floor(piece: &Piece) -> Option<CallIndex> {
    match piece {
        Piece::Chunk { attempt, .. } => Some(attempt.call),
        Piece::Fact(what) if needs_floor(what) => match *what {
            OutputKind::Speaks { call } | OutputKind::Withdrawn { call, .. } | OutputKind::CallEnded { call } => {
                Some(call)
            }
            _ => None,
        },
        Piece::Fact(_) => None,
    }
}

impl Transcript {
    fn voice(&mut self, call: CallIndex) -> &mut Voice {
        self.calls.entry(call).or_default()
    }

    fn chunk(&mut self, attempt: AttemptId, index: u32, body: &str) {
        let voice = self.voice(attempt.call);
        assert!(voice.spoke && !voice.ended, "{attempt:?} speaks out of turn");
        // By turns, what an attempt said before another went on from it may still wait.
        assert!(voice.standing.contains(&attempt.number), "only the newest attempt is heard");
        let stands = |earlier: &AttemptId| voice.standing.contains(&earlier.number);
        assert!(voice.said.iter().all(stands), "an older attempt was not withdrawn");
        assert_eq!(voice.said.len(), index as usize, "each chunk once, in order");
        let AttemptId { call, number, nonce } = attempt;
        assert_eq!(body, format!("{call}/{}/{}/{index}", number.0, nonce.0), "the span points to the chunk");
        voice.said.push(attempt);
    }

    fn fact(&mut self, fact: OutputKind) {
        match fact {
            OutputKind::AttemptStarted { attempt, .. } => {
                let continues = self.continuing.contains(&(attempt.call, attempt.number));
                let voice = self.voice(attempt.call);
                if !continues {
                    voice.standing.clear();
                }
                voice.standing.insert(attempt.number);
                assert!(voice.newest.is_none_or(|newest| newest.number < attempt.number), "attempts rise");
                voice.newest = Some(attempt);
            }
            OutputKind::AttemptEnded { attempt } => assert_eq!(self.voice(attempt.call).newest, Some(attempt)),
            OutputKind::Speaks { call } => {
                assert!(!std::mem::replace(&mut self.voice(call).spoke, true), "{call} is announced once");
            }
            OutputKind::Withdrawn { call, number } => {
                let voice = self.voice(call);
                assert!(!voice.said.is_empty(), "nothing to withdraw");
                assert_eq!(voice.said.last().map(|said| said.number), Some(number));
                assert!(voice.newest.is_some_and(|newest| newest.number > number), "withdrawn for nothing");
                voice.said.clear();
                voice.withdrawals += 1;
            }
            OutputKind::CallEnded { call } => {
                let is_question = self.questions.contains(&call);
                let voice = self.voice(call);
                assert!(voice.spoke != is_question, "{call} was not announced");
                assert!(!std::mem::replace(&mut voice.ended, true), "{call} ends once");
            }
            OutputKind::RunEnded(status) => {
                assert!(status.is_final());
                self.run_ended = true;
            }
            OutputKind::StatusChanged(status) => assert!(!status.is_final()),
            OutputKind::RunOpened
            | OutputKind::CallsAppended { .. }
            | OutputKind::RunClosed
            | OutputKind::ApprovalAsked { .. }
            | OutputKind::Decided { .. }
            | OutputKind::CallWaits { .. }
            | OutputKind::CancelRequested { .. }
            | OutputKind::AttemptStopping { .. }
            | OutputKind::Output { .. } => {}
        }
    }
}
