//! Questions of the tool to its client: the owner's side, as `coordinator/src/owner/asking.rs` has it, and what must be
//! true of them.

use std::collections::BTreeMap;

use owner::{Asking, Owner, Unanswered, UserAnswer, UserQuestion};
use run::{AskedBy, Call, CallState, Event, Fact, Outcome, Run, Timestamp};

use crate::coordinator::Fleet;
use crate::promises::Promises;
use crate::world::{CALL, Flaw, pool, run_id};

/// A request of a worker whose tool asks.
#[derive(Debug, Clone)]
pub(crate) struct Asked {
    pub(crate) worker: usize,
    pub(crate) life: u8,
    pub(crate) token: u32,
    pub(crate) asks: UserQuestion,
}

/// What becomes of a request.
pub(crate) enum Settled {
    /// The worker learns how its question stands; `None` if it must ask again.
    Reply(Asked, Option<UserAnswer>),
    /// The question is stored behind this entry on the run's subject.
    Append(Asked, Event, u64),
}

/// What the owner knows when it decides on a request.
pub(crate) struct View<'a> {
    pub(crate) owner: &'a Owner,
    pub(crate) now: Timestamp,
    pub(crate) fleet: &'a Fleet,
    pub(crate) flaw: Flaw,
}

impl View<'_> {
    fn asking(&self, asks: &UserQuestion) -> Option<Asking> {
        self.owner.asking(asks, &pool(), self.now, self.fleet)
    }
}

/// The requests that wait at an owner.
#[derive(Debug, Clone, Default)]
pub(crate) struct Askings {
    kept: Vec<Asked>,
    /// By the token of the append.
    storing: BTreeMap<u32, Asked>,
}

impl Askings {
    pub(crate) fn is_storing(&self, token: u32) -> bool {
        self.storing.contains_key(&token)
    }

    pub(crate) fn storing(&mut self, token: u32, asked: Asked) {
        self.storing.insert(token, asked);
    }

    /// A request has arrived.
    pub(crate) fn ask(&mut self, asked: Asked, view: &View<'_>) -> Vec<Settled> {
        match view.asking(&asked.asks) {
            None => Vec::new(),
            Some(Asking::Later) => vec![Settled::Reply(asked, None)],
            Some(Asking::Append { event, expected }) => vec![Settled::Append(asked, event, expected)],
            Some(Asking::Reply(UserAnswer::Open)) => {
                self.kept.push(asked);
                Vec::new()
            }
            Some(Asking::Reply(answer)) => vec![Settled::Reply(asked, Some(answer))],
        }
    }

    /// The broker answered the append of a question.
    pub(crate) fn stored(&mut self, token: u32, is_stored: bool, view: &View<'_>) -> Vec<Settled> {
        let Some(asked) = self.storing.remove(&token) else { return Vec::new() };
        if !is_stored {
            return vec![Settled::Reply(asked, None)];
        }
        self.kept.push(asked);
        self.settle(view)
    }

    /// Answers the kept requests whose questions have ended.
    pub(crate) fn settle(&mut self, view: &View<'_>) -> Vec<Settled> {
        let mut settled = Vec::new();
        for asked in std::mem::take(&mut self.kept) {
            let mut asks = asked.asks.clone();
            if view.flaw == Flaw::StrayAnswer
                && let Some(first) =
                    view.owner.run(run_id()).and_then(|known| known.run.calls().get(1)?.spec().asked_by)
            {
                asks.question.asked_by = first;
            }
            match view.asking(&asks) {
                // It is stored, and the feed has not brought it.
                Some(Asking::Append { .. } | Asking::Reply(UserAnswer::Open)) => self.kept.push(asked),
                Some(Asking::Reply(answer)) => settled.push(Settled::Reply(asked, Some(answer))),
                Some(Asking::Later) | None => settled.push(Settled::Reply(asked, None)),
            }
        }
        settled
    }

    /// Time has passed: all kept requests are answered, and appends that are not confirmed are given up.
    pub(crate) fn wake(&mut self, view: &View<'_>) -> Vec<Settled> {
        self.storing.clear();
        let mut settled = self.settle(view);
        settled.extend(self.kept.drain(..).map(|asked| Settled::Reply(asked, Some(UserAnswer::Open))));
        settled
    }
}

impl Promises {
    /// A question is stored once, and answered only while its attempt may hear the answer.
    pub(crate) fn check_questions(&mut self, facts: &[Fact], run: &Run) {
        if run.calls().len() < 2 {
            return;
        }
        let asked: Vec<AskedBy> = run.calls().iter().filter_map(|call| call.spec().asked_by).collect();
        let twice = asked.iter().find(|by| asked.iter().filter(|other| other == by).count() > 1);
        self.check(twice.is_none(), || format!("a question is asked twice: {twice:?}"));
        for fact in facts {
            let Fact::CallEnded { call } = *fact else { continue };
            let Some((question, by)) = run.call(call).and_then(|call| Some((call, call.spec().asked_by?))) else {
                continue;
            };
            let is_heard = run.call(CALL).is_some_and(|call| {
                matches!(call.state(), CallState::Running(running) if running.attempt == by.attempt)
                    && !call.cancel_requested()
            });
            let is_answer = matches!(question.outcome(), Some(Outcome::Completed(_) | Outcome::Failed(_)));
            self.check(!is_answer || is_heard, || format!("{by:?} is answered, and its attempt does not count"));
        }
    }

    /// The tool learns how its question ended: once, and as the log has it.
    pub(crate) fn answer_heard(&mut self, run: &Run, asked_by: AskedBy, answer: &UserAnswer) {
        let agrees = match (answer, run.question(asked_by).and_then(Call::outcome)) {
            (UserAnswer::Answered(Ok(result)), Some(Outcome::Completed(stored))) => result == stored,
            (UserAnswer::Unanswered(Unanswered::Expired), Some(Outcome::Expired(_)))
            | (UserAnswer::Unanswered(Unanswered::Cancelled { .. }), Some(Outcome::Cancelled { .. }))
            | (UserAnswer::Refused(_), _) => true,
            _ => false,
        };
        self.check(agrees, || format!("{asked_by:?} hears {answer:?}, which is not its answer"));
        let is_first = self.told.insert(asked_by);
        self.check(is_first, || format!("{asked_by:?} hears two answers"));
    }
}
