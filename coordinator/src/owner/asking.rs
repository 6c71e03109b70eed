//! Questions that running tools ask their clients. A worker asks the owner of its run, again and again until the
//! question has ended. The owner stores a question once, and keeps each request for a while, so that an answer reaches
//! its tool at once.

use std::collections::HashMap;
use std::time::Duration;

use owner::{Asking, UserAnswer, UserQuestion};
use run::{RunId, Timestamp};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::OwnerTask;
use crate::nats::journal::AppendError;
use crate::nats::signals::Asked;

/// How long a request is kept before it is answered with "still open". A worker waits 5 s for that.
const KEPT_FOR: Duration = Duration::from_secs(3);
/// The most requests that are kept. Further ones are answered at once, and their workers ask again later.
const KEPT_MAX: usize = 4096;
/// Questions that are being stored at once. Further ones are asked again.
const STORING_MAX: usize = 256;

/// A request that waits for the end of its question.
#[derive(Debug)]
struct Kept {
    asked: Asked<UserQuestion>,
    until: Instant,
}

/// The requests of workers whose tools ask their clients.
#[derive(Debug, Default)]
pub(super) struct Askings {
    kept: HashMap<RunId, Vec<Kept>>,
    count: usize,
    pub(super) storing: JoinSet<Stored>,
}

/// A question that was to be stored, and whether it was.
pub(super) type Stored = (Asked<UserQuestion>, Result<u64, AppendError>);

impl Askings {
    fn keep(&mut self, mut asked: Asked<UserQuestion>) {
        // It is in the log, or on its way there.
        asked.request.question.arguments = bytes::Bytes::new();
        self.put(Kept { asked, until: Instant::now() + KEPT_FOR });
    }

    fn put(&mut self, kept: Kept) {
        self.count += 1;
        self.kept.entry(kept.asked.request.run).or_default().push(kept);
    }

    /// Removes the requests that were kept for long enough.
    fn take_late(&mut self) -> Vec<Asked<UserQuestion>> {
        let (now, mut late) = (Instant::now(), Vec::new());
        self.kept.retain(|_, kept| {
            late.extend(kept.extract_if(.., |kept| kept.until <= now).map(|kept| kept.asked));
            !kept.is_empty()
        });
        self.count -= late.len();
        late
    }
}

impl OwnerTask {
    /// A tool asks its client.
    pub(super) fn ask_client(&mut self, asked: Asked<UserQuestion>) {
        match self.owner.asking(&asked.request, &asked.pool, ::nats::now(), &self.surroundings()) {
            None => {}
            Some(Asking::Later) => self.answer_asking(asked, None),
            Some(Asking::Reply(UserAnswer::Open)) if self.askings.count >= KEPT_MAX => {
                self.answer_asking(asked, Some(UserAnswer::Open));
            }
            Some(Asking::Reply(UserAnswer::Open)) => self.askings.keep(asked),
            Some(Asking::Reply(answer)) => self.answer_asking(asked, Some(answer)),
            Some(Asking::Append { .. }) if self.io.journals.of(asked.request.run).crowded().is_some() => {
                let why = "the log is full, so the question cannot be stored".to_owned();
                self.answer_asking(asked, Some(UserAnswer::Refused(why)));
            }
            Some(Asking::Append { .. }) if self.askings.storing.len() >= STORING_MAX => self.answer_asking(asked, None),
            Some(Asking::Append { event, expected }) => {
                let journal = self.io.journals.of(asked.request.run);
                let expected = self.expected(asked.request.run, expected);
                self.askings.storing.spawn(async move {
                    let stored = journal.append(asked.request.run, &[event], None, expected).await;
                    (asked, stored)
                });
            }
        }
    }

    pub(super) fn asking_stored(&mut self, (asked, stored): Stored) {
        let run = asked.request.run;
        match stored {
            Ok(_) if self.askings.count < KEPT_MAX => {
                self.askings.keep(asked);
                // The feed may have been faster, and the client too.
                self.answer_askings_of(run);
            }
            // Another entry on the run's subject came first.
            Ok(_) | Err(AppendError::Conflict) => self.answer_asking(asked, None),
            Err(error) => {
                tracing::warn!(run.id = %run, %error, "storing a question to the client failed, its worker asks again");
                self.answer_asking(asked, None);
            }
        }
    }

    /// Answers the requests of a run whose questions have ended.
    pub(super) fn answer_askings_of(&mut self, run: RunId) {
        if !self.askings.kept.contains_key(&run) {
            return;
        }
        let now = ::nats::now();
        let kept = self.askings.kept.remove(&run).unwrap_or_default();
        self.askings.count -= kept.len();
        for Kept { asked, until } in kept {
            match self.stands(&asked, now) {
                Stands::Open => self.askings.put(Kept { asked, until }),
                Stands::Ended(answer) => self.answer_asking(asked, Some(answer)),
                Stands::Unknown => self.answer_asking(asked, None),
            }
        }
    }

    /// Answers the requests that were kept for long enough: their workers ask again.
    pub(super) fn answer_late_askings(&mut self) {
        for asked in self.askings.take_late() {
            let answer = match self.stands(&asked, ::nats::now()) {
                Stands::Open => Some(UserAnswer::Open),
                Stands::Ended(answer) => Some(answer),
                Stands::Unknown => None,
            };
            self.answer_asking(asked, answer);
        }
    }

    fn stands(&self, asked: &Asked<UserQuestion>, now: Timestamp) -> Stands {
        match self.owner.asking(&asked.request, &asked.pool, now, &self.surroundings()) {
            // It is stored, and the feed has not delivered it.
            Some(Asking::Append { .. } | Asking::Reply(UserAnswer::Open)) => Stands::Open,
            Some(Asking::Reply(answer)) => Stands::Ended(answer),
            Some(Asking::Later) | None => Stands::Unknown,
        }
    }

    fn answer_asking(&mut self, asked: Asked<UserQuestion>, answer: Option<UserAnswer>) {
        let signals = self.io.signals.clone();
        // If there is no room for the message, the worker asks again.
        self.send(async move { signals.answer_for_user(&asked, answer.as_ref()).await });
    }
}

/// How a question stands whose request is kept.
enum Stands {
    Open,
    Ended(UserAnswer),
    /// The shard is not ours any more, or its log must be read further.
    Unknown,
}
