//! Questions of running tools to their clients. The worker's side follows `worker/src/nats/questions.rs`, the owner's
//! `coordinator/src/owner/asking.rs`; what is stored and what a tool learns is decided by `core/owner`.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use owner::{Asking, Owner, Unanswered, UserAnswer, UserQuestion};
use run::{
    AskedBy, AttemptId, Call, CallState, Content, Entry, Event, Fact, NewQuestion, Outcome, PoolId, RunId, Timestamp,
};

use crate::fleet::Fleet;
use crate::net::{Flaw, Message, Net, Node};
use crate::promises::Promises;
use crate::rim::ORDER_PATIENCE;

/// How long a question is requested that no owner has stored yet.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long an owner may take to answer a request.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// How long an owner keeps a request whose question is open.
const KEPT_FOR: Duration = Duration::from_secs(3);
/// The pause before the next request, which doubles.
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);
/// The answer to a question begins with its id, so that an answer to another one is recognised.
pub(crate) const ANSWER_OF: &str = "answer to ";

/// A question that a tool waits for.
pub(crate) struct ToolQuestion {
    asks: UserQuestion,
    pool: PoolId,
    pub(crate) began: Timestamp,
    /// The request that is not answered yet, and when it was sent.
    request: Option<(u64, Timestamp)>,
    again: Timestamp,
    pause: Duration,
    is_stored: bool,
}

impl ToolQuestion {
    /// `job`: its sequence.
    pub(crate) fn ask(run: RunId, job: u64, pool: &PoolId, asked_by: AskedBy, net: &mut Net<'_>) -> Self {
        let timeout = net.chance.percent(30).then(|| Duration::from_millis(net.chance.between(500, 20_000)));
        let arguments = Bytes::from_static(b"{\"message\":\"Which one?\"}");
        let asks = UserQuestion { run, sequence: job, question: NewQuestion { asked_by, arguments, timeout } };
        let (pool, began) = (pool.clone(), net.now);
        net.promises.note("asked");
        let mut question = Self { asks, pool, began, request: None, again: began, pause: PAUSE, is_stored: false };
        question.wake(net);
        question
    }

    /// Sends a request if none is on its way. `false` if no owner took the question for too long.
    pub(crate) fn wake(&mut self, net: &mut Net<'_>) -> bool {
        if self.request.take_if(|(_, sent)| net.now.since(*sent) >= ANSWER_PATIENCE).is_some() {
            self.pause_a_while(net);
        }
        if !self.is_stored && net.now.since(self.began) >= PATIENCE {
            return false;
        }
        if self.request.is_none() && net.now >= self.again {
            let token = net.token();
            self.request = Some((token, net.now));
            let (pool, asks) = (self.pool.clone(), Box::new(self.asks.clone()));
            net.send(Node::Broker, Message::AskUser { token, pool, asks });
        }
        true
    }

    /// The owner's reply to a request; `None` if it is to be asked again. Returns how the question ended.
    pub(crate) fn replied(&mut self, token: u64, reply: Option<UserAnswer>, net: &mut Net<'_>) -> Option<UserAnswer> {
        self.request.take_if(|(own, _)| *own == token)?;
        match reply {
            None => self.pause_a_while(net),
            Some(UserAnswer::Open) => {
                (self.is_stored, self.pause) = (true, PAUSE);
                self.pause_a_while(net);
            }
            Some(ended) => {
                net.promises.answer_heard(self.asks.run, self.asks.question.asked_by, &ended);
                return Some(ended);
            }
        }
        None
    }

    fn pause_a_while(&mut self, net: &mut Net<'_>) {
        self.again = net.now.after(self.pause);
        net.wake_in.push(self.pause);
        self.pause = (self.pause * 2).min(PAUSE_LONGEST);
    }
}

/// A request of a worker.
pub(crate) struct Asked {
    pub(crate) worker: Node,
    pub(crate) token: u64,
    pub(crate) pool: PoolId,
    pub(crate) asks: UserQuestion,
}

/// The requests of workers whose tools ask, at a coordinator.
#[derive(Default)]
pub(crate) struct Askings {
    /// Each with the time until which it is kept.
    kept: Vec<(Asked, Timestamp)>,
    /// Questions that are being stored, by the token of the append.
    storing: BTreeMap<u64, (Asked, Timestamp)>,
}

impl Askings {
    /// A tool asks its client.
    pub(crate) fn ask(&mut self, asked: Asked, owner: &Owner, fleet: &Fleet, net: &mut Net<'_>) {
        match owner.asking(&asked.asks, &asked.pool, net.now, fleet) {
            None => {}
            Some(Asking::Later) => reply(&asked, None, net),
            Some(Asking::Reply(UserAnswer::Open)) => self.kept.push((asked, net.now.after(KEPT_FOR))),
            Some(Asking::Reply(answer)) => reply(&asked, Some(answer), net),
            Some(Asking::Append { event, expected }) => {
                let expected = (net.flaw != Flaw::UnfencedQuestion).then_some(expected);
                let token = net.append(asked.asks.run, vec![event], expected);
                self.storing.insert(token, (asked, net.now));
            }
        }
    }

    /// An append was confirmed or refused. Returns whether it was a question's.
    pub(crate) fn stored(&mut self, token: u64, well: bool, owner: &Owner, fleet: &Fleet, net: &mut Net<'_>) -> bool {
        let Some((asked, _)) = self.storing.remove(&token) else { return false };
        if well {
            let run = asked.asks.run;
            self.kept.push((asked, net.now.after(KEPT_FOR)));
            self.answer(run, owner, fleet, net);
        } else {
            reply(&asked, None, net);
        }
        true
    }

    /// Answers the requests of a run whose questions have ended.
    pub(crate) fn answer(&mut self, run: RunId, owner: &Owner, fleet: &Fleet, net: &mut Net<'_>) {
        for (asked, until) in self.kept.extract_if(.., |(asked, _)| asked.asks.run == run).collect::<Vec<_>>() {
            match stands(&asked, owner, fleet, net) {
                Stands::Open => self.kept.push((asked, until)),
                Stands::Ended(answer) => reply(&asked, Some(answer), net),
                Stands::Unknown => reply(&asked, None, net),
            }
        }
    }

    /// Answers the requests that were kept for long enough.
    pub(crate) fn answer_late(&mut self, owner: &Owner, fleet: &Fleet, net: &mut Net<'_>) {
        let now = net.now;
        let unconfirmed = self.storing.iter().filter(|(_, (_, since))| now.since(*since) >= ORDER_PATIENCE);
        for token in unconfirmed.map(|(token, _)| *token).collect::<Vec<_>>() {
            self.storing.remove(&token).into_iter().for_each(|(asked, _)| reply(&asked, None, net));
        }
        for (asked, _) in self.kept.extract_if(.., |(_, until)| *until <= now).collect::<Vec<_>>() {
            let answer = match stands(&asked, owner, fleet, net) {
                Stands::Ended(answer) => Some(answer),
                Stands::Open => Some(UserAnswer::Open),
                Stands::Unknown => None,
            };
            reply(&asked, answer, net);
        }
    }
}

/// How a question stands whose request is kept.
enum Stands {
    Open,
    Ended(UserAnswer),
    Unknown,
}

fn stands(asked: &Asked, owner: &Owner, fleet: &Fleet, net: &Net<'_>) -> Stands {
    let mut asks = asked.asks.clone();
    let known = owner.run(asks.run);
    if net.flaw == Flaw::StrayAnswer
        && let Some(first) = known.and_then(|known| {
            let mut questions = known.run.calls().iter().filter_map(|call| call.spec().asked_by);
            questions.find(|by| by.attempt.call == asks.question.asked_by.attempt.call)
        })
    {
        asks.question.asked_by = first;
    }
    match owner.asking(&asks, &asked.pool, net.now, fleet) {
        Some(Asking::Append { .. } | Asking::Reply(UserAnswer::Open)) => Stands::Open,
        Some(Asking::Reply(answer)) => Stands::Ended(answer),
        Some(Asking::Later) | None => Stands::Unknown,
    }
}

fn reply(asked: &Asked, answer: Option<UserAnswer>, net: &mut Net<'_>) {
    net.send(asked.worker, Message::UserReply { token: asked.token, answer: answer.map(Box::new) });
}

impl Promises {
    /// An entry is in the log. A question is stored once, and answered only while its attempt may hear the answer.
    pub(crate) fn check_questions(&mut self, id: RunId, entry: &Entry, heard: &[Fact]) {
        let Some(run) = self.run(id).filter(|run| run.calls().len() > run.requested_calls().count()).cloned() else {
            return;
        };
        let counts = |attempt: AttemptId| {
            run.call(attempt.call).is_some_and(|call| {
                !call.cancel_requested()
                    && matches!(call.state(), CallState::Running(running) if running.attempt == attempt)
            })
        };
        for event in &entry.events {
            let Event::CallsAppended { calls } = event else { continue };
            for by in calls.iter().filter_map(|spec| spec.asked_by) {
                let same = run.calls().iter().filter(|call| call.spec().asked_by == Some(by)).count();
                self.check(same < 2, || format!("{id}: {by:?} is asked {same} times"));
                self.note(if by.attempt.number.0 > 1 { "asked again" } else { "question stored" });
                if heard.is_empty() || !counts(by.attempt) {
                    self.note("question void");
                }
            }
        }
        for question in heard.iter().filter_map(|fact| match fact {
            Fact::CallEnded { call } => run.call(*call).filter(|call| call.is_question()),
            _ => None,
        }) {
            let (name, by) = (format!("{ANSWER_OF}{} ", question.spec().id), question.spec().asked_by);
            let text = match question.outcome() {
                Some(Outcome::Completed(result)) => match result.first() {
                    Some(Content::Text(text)) => text.clone(),
                    _ => String::new(),
                },
                Some(Outcome::Failed(error)) => error.message.clone(),
                Some(Outcome::Cancelled { .. } | Outcome::Expired(_)) | None => continue,
            };
            self.check(text.starts_with(&name), || format!("{id}: {by:?} has the answer {text:?}"));
            let may_hear = by.is_some_and(|by| counts(by.attempt));
            self.check(may_hear, || format!("{id}: {by:?} is answered, and its attempt does not count"));
        }
        let answers = entry.events.iter().filter_map(|event| match event {
            Event::ClientAnswered { call, .. } => run.call(*call).filter(|call| call.is_question()),
            _ => None,
        });
        if answers.count() > 0 && heard.is_empty() {
            self.note("answered late");
        }
    }

    /// A tool learns how its question ended: once, and as the log has it.
    pub(crate) fn answer_heard(&mut self, id: RunId, asked_by: AskedBy, answer: &UserAnswer) {
        let question = self.run(id).and_then(|run| run.question(asked_by));
        let agrees = match (answer, question.and_then(Call::outcome)) {
            (UserAnswer::Answered(Ok(result)), Some(Outcome::Completed(stored))) => result == stored,
            (UserAnswer::Answered(Err(error)), Some(Outcome::Failed(stored))) => error == stored,
            (UserAnswer::Unanswered(Unanswered::Expired), Some(Outcome::Expired(_)))
            | (UserAnswer::Unanswered(Unanswered::Cancelled { .. }), Some(Outcome::Cancelled { .. }))
            | (UserAnswer::Refused(_), _) => true,
            _ => false,
        };
        let stands = question.map(|call| call.state().clone());
        self.check(agrees, || format!("{id}: {asked_by:?} hears {answer:?}, and the log has {stands:?}"));
        self.note(match answer {
            UserAnswer::Answered(_) => "answer heard",
            UserAnswer::Unanswered(_) => "question ended",
            UserAnswer::Refused(_) | UserAnswer::Open => "question refused",
        });
        let is_first = self.told.insert((id, asked_by));
        self.check(is_first, || format!("{id}: {asked_by:?} hears two answers"));
    }
}
