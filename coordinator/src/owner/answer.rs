//! Questions of workers about their jobs. The owner answers them after the call's output is read to its end.

use owner::{Question, World as _};
use proto::convert::worker::Answer;
use proto::subject::{Subject, SubjectKind};
use run::{CallIndex, Event, PoolId, RunId, Verdict};
use tokio::sync::oneshot;

use super::{OwnerHandle, OwnerTask, Request};
use crate::nats::journal::{AppendError, Journal};
use crate::nats::signals::{Asked, Sorted};

/// The most questions processed concurrently. A worker without an answer repeats its question.
const QUESTIONS_MAX: usize = 1024;

impl OwnerTask {
    pub(super) fn question(&mut self, asked: Asked) {
        if !self.may_act(asked.run().shard()) {
            return;
        }
        let asked = match asked.sort() {
            Sorted::AboutJob(asked) => asked,
            Sorted::ToClient(asked) => return self.ask_client(asked),
        };
        if self.questions.len() >= QUESTIONS_MAX {
            return;
        }
        let (journal, signals, ledger) =
            (self.io.journals.of(asked.request.run), self.io.signals.clone(), self.own.clone());
        self.questions.spawn(async move {
            let answer = consider(&journal, &ledger, asked.request, asked.pool.clone()).await;
            signals.answer(&asked, answer.as_ref()).await;
        });
    }

    /// The verdict, and whether a live worker takes a call that is to be executed. `None` while the feed has not
    /// delivered entries up to `needed`, or if the shard is not ours.
    pub(super) fn verdict(&self, question: &Question, pool: &PoolId, needed: u64) -> Option<(Verdict, bool)> {
        let world = self.surroundings();
        let verdict = self.owner.verdict(question, pool, needed, ::nats::now(), &world)?;
        if !matches!(verdict, Verdict::Go { .. }) {
            return Some((verdict, false));
        }
        let known = self.owner.run(question.run);
        let run = known.as_ref().map(|known| &known.run);
        let call = run.and_then(|run| Some((run.call(question.call)?.spec(), run.tenant())));
        let has_taker = call.is_some_and(|(spec, tenant)| world.workers().takers(spec, tenant) > 0);
        Some((verdict, has_taker))
    }

    /// Ends an attempt that is not retried and whose worker is lost. A worker that receives the job would do the same,
    /// but there may be none. If this fails, it is retried when the job is next handed back.
    pub(super) fn end_lost(&mut self, run: RunId, call: CallIndex, pool: PoolId) {
        if self.questions.len() >= QUESTIONS_MAX {
            return;
        }
        let (journal, ledger) = (self.io.journals.of(run), self.own.clone());
        self.questions.spawn(async move {
            let question = Question::after_a_loss(run, call);
            let Some(answer) = consider(&journal, &ledger, question, pool.clone()).await else { return };
            let Verdict::End { attempt, outcome } = answer.verdict else { return };
            let ended = Event::AttemptEnded { attempt, pool, chunks: 0, outcome };
            // Output that the attempt stores meanwhile comes first: then the append conflicts, and the attempt is not
            // lost.
            match journal.append(run, &[ended], None, answer.last_output).await {
                Ok(_) | Err(AppendError::Conflict) => {}
                Err(error) => tracing::warn!(run.id = %run, %error, "ending a lost worker's call failed"),
            }
        });
    }
}

async fn consider(journal: &Journal, ledger: &OwnerHandle, question: Question, pool: PoolId) -> Option<Answer> {
    let last_output = if question.needs_last_output() {
        let place = SubjectKind::Output { call: question.call, pool: pool.clone() };
        let last = journal.last_of_subject(&Subject { run: question.run, place }).await;
        last.inspect_err(|error| tracing::warn!(%error, "answering a worker failed")).ok()?
    } else {
        0
    };
    let (reply, verdict) = oneshot::channel();
    ledger.0.send(Request::Verdict { question, pool, needed: last_output, reply }).await.ok()?;
    let (verdict, has_taker) = verdict.await.ok().flatten()?;
    Some(Answer { verdict, last_output, has_taker })
}
