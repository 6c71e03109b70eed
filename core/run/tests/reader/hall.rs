//! A model of the floor: which calls wait for it, and whether the right one gets it.

use std::collections::BTreeSet;

use toolyard_run::{CallIndex, Fact, FloorPolicy, OutputKind, Run};

use super::log::pooled;

/// Who waits for the floor and who has it, kept without regard to who should get it.
#[derive(Default)]
pub(crate) struct Hall {
    /// Pending output, oldest first.
    waiting: Vec<(CallIndex, Waiting)>,
    speaker: Option<CallIndex>,
    done: BTreeSet<CallIndex>,
    /// Those that await approval or are delayed: nobody waits for them to speak.
    held: BTreeSet<CallIndex>,
    /// Questions of running calls, which never have it.
    questions: BTreeSet<CallIndex>,
}

#[derive(PartialEq, Clone, Copy)]
enum Waiting {
    Output,
    End,
}

impl Hall {
    pub(crate) fn hear(&mut self, fact: Fact) {
        match fact {
            Fact::AttemptStarted { attempt, continues: false } => {
                self.waiting.retain(|(call, what)| *call != attempt.call || *what == Waiting::End);
            }
            Fact::Output { attempt, .. } => self.waiting.push((attempt.call, Waiting::Output)),
            Fact::ApprovalAsked { call } | Fact::Delayed { call } => drop(self.held.insert(call)),
            Fact::Decided { call } | Fact::DelayEnded { call } => drop(self.held.remove(&call)),
            Fact::QuestionAsked { call } => drop(self.questions.insert(call)),
            Fact::CallEnded { call } if self.questions.contains(&call) => {}
            Fact::CallEnded { call } => self.waiting.push((call, Waiting::End)),
            _ => {}
        }
    }

    pub(crate) fn speak(&mut self, what: OutputKind, policy: FloorPolicy, run: &Run) {
        match what {
            OutputKind::Speaks { call } => {
                assert_eq!(self.speaker.replace(call), None);
                match policy {
                    FloorPolicy::Arrival => assert_eq!(self.waiting.first().map(|(oldest, _)| *oldest), Some(call)),
                    FloorPolicy::Submission => {
                        let before = (0..call.0).map(CallIndex).filter(|before| !self.done.contains(before));
                        let is_due = |before| is_pooled(run, before) && !self.held.contains(&before);
                        assert!(!{ before }.any(is_due), "{call} is not the next");
                    }
                    FloorPolicy::Interleaved | FloorPolicy::Added(_) => {}
                }
            }
            OutputKind::Output { attempt, .. } => self.said(attempt.call, Waiting::Output),
            OutputKind::CallEnded { call } if self.questions.contains(&call) => {}
            OutputKind::CallEnded { call } => {
                self.said(call, Waiting::End);
                self.done.insert(call);
                self.speaker = None;
            }
            _ => {}
        }
    }

    fn said(&mut self, call: CallIndex, what: Waiting) {
        assert_eq!(self.speaker, Some(call));
        let place = self.waiting.iter().position(|waiting| *waiting == (call, what)).expect("it had something to say");
        self.waiting.remove(place);
    }

    pub(crate) fn check_nobody_waits_in_vain(&self, policy: FloorPolicy, run: &Run) {
        for (call, _) in &self.waiting {
            assert_ne!(self.speaker, Some(*call), "it may speak");
            // By submission the floor may be with a call that has said nothing yet.
            let others = || (0..run.calls().len() as u16).map(CallIndex).filter(|other| other != call);
            let silent = || others().any(|other| is_pooled(run, other) && !self.done.contains(&other));
            assert!(self.speaker.is_some() || (policy == FloorPolicy::Submission && silent()), "nobody speaks");
        }
    }
}

fn is_pooled(run: &Run, call: CallIndex) -> bool {
    run.call(call).is_some_and(|call| pooled(call).is_some())
}
