//! Performs the owner's actions at the broker, and reports the results back.

use std::sync::Arc;

use owner::{Action, Append, CarriedTo, Expected, JobLease};
use proto::convert::log::Dispatch;
use proto::history;
use run::{AttemptId, CallState, Effect, Event, Run, RunId};

use super::OwnerTask;
use super::surroundings::Surroundings;
use crate::auth::audit;
use crate::metrics;
use crate::nats::journal::{AppendError, Journal, ReadError};

/// Messages to workers that are being sent; they wait only while the connection is stuck.
const MESSAGES_MAX: usize = 1024;

impl OwnerTask {
    /// Performs the actions that the owner has decided.
    pub(super) fn perform_actions(&mut self) {
        while let Some(action) = self.owner.poll_action() {
            match action {
                Action::Append(append) => self.append(*append),
                Action::Stop { run, attempt, pool } => {
                    let signals = self.io.signals.clone();
                    self.effects.spawn(async move {
                        signals.stop(&pool, run, attempt).await;
                        (run, Effect::Stop { attempt }, Ok(()))
                    });
                }
                Action::StopLate { run, attempt, pool } => {
                    let signals = self.io.signals.clone();
                    self.send(async move { signals.stop(&pool, run, attempt).await });
                }
                Action::HandBack { run, attempt, job } => self.hand_back(run, attempt, job),
                Action::EndLost { run, call, pool } => self.end_lost(run, call, pool),
                Action::AskQueues(queues) => self.ask_queues(queues),
                Action::TakeBack { run, call, pool, job, was_paused } => {
                    if !was_paused {
                        tracing::warn!(run.id = %run, call = call.0, %pool, "taking back a job that no worker started");
                    }
                    self.take_back((pool, run.shard().partition()), job);
                }
                Action::CountSlots { run } => {
                    self.count_running();
                    self.check_run(run);
                }
            }
        }
    }

    /// Performs the outstanding effects of a run.
    pub(super) fn check_run(&mut self, id: RunId) {
        let world = Surroundings::new(&self.io, self.limited);
        self.owner.check_run(id, ::nats::now(), &world);
    }

    pub(super) fn check_due_runs(&mut self) {
        let world = Surroundings::new(&self.io, self.limited);
        self.owner.handle_timeout(::nats::now(), &world);
    }

    /// What an append expects that follows from the present state of a run, in which `entry` is last on its subject.
    pub(super) fn expected(&self, id: RunId, entry: u64) -> Expected {
        let carried = self.owner.run(id).map_or(0, |known| known.carried);
        Expected { entry, carried, known_at: Some(::nats::now()) }
    }

    fn append(&mut self, append: Append) {
        let Append { run: id, effect, event, expected, hand_back } = append;
        // An entry that was applied after the effect was decided may have ended the run. A job of it would be empty.
        let Some(run) = self.owner.run(id).map(|known| Arc::clone(&known.run)) else {
            let world = Surroundings::new(&self.io, self.limited);
            return self.owner.handle_effect_done(id, effect, ::nats::now(), &world);
        };
        let job = job(&run, effect, &event);
        let decided = match effect {
            Effect::Decide { call } => Some((run, call)),
            _ => None,
        };
        let expected = self.expected(id, expected);
        let (journal, signals) = (self.io.journals.of(id), self.io.signals.clone());
        self.effects.spawn(async move {
            let appended = append_effect(&journal, id, event, job.as_ref(), expected).await;
            if let (Ok(_), Some(job)) = (&appended, hand_back) {
                signals.hand_back(&job.pool, &job.lease).await;
            }
            if let (Ok(_), Some((run, call))) = (&appended, decided) {
                audit::note_default(&run, call);
            }
            (id, effect, appended.map(|_| ()))
        });
    }

    pub(super) fn effect_done(&mut self, (id, effect, result): EffectDone) {
        match result {
            // The log has a later entry than the one expected; the feed will bring it.
            Ok(()) | Err(EffectError::Append(AppendError::Conflict)) => {}
            Err(EffectError::Append(error)) => {
                tracing::warn!(run.id = %id, ?effect, %error, "performing an effect failed, trying again");
            }
            Err(EffectError::Carried(through)) => {
                self.owner.handle_carried(id, CarriedTo { through, settled: 0 }, ::nats::now());
            }
            Err(EffectError::Gone) => self.forget_gone(id),
        }
        let world = Surroundings::new(&self.io, self.limited);
        self.owner.handle_effect_done(id, effect, ::nats::now(), &world);
    }

    fn hand_back(&mut self, id: RunId, attempt: AttemptId, job: JobLease) {
        let known = self.owner.run(id);
        if let Some(call) = known.as_ref().and_then(|known| known.run.call(attempt.call))
            && let CallState::Running(running) = call.state()
            && let Some((worker, _)) = &running.worker
        {
            let call = &call.spec().id;
            tracing::warn!(run.id = %id, call.id = %call, worker.id = %worker, "handing back a lost worker's call");
        }
        let (signals, pool) = (self.io.signals.clone(), job.pool.clone());
        if self.send(async move { signals.hand_back(&job.pool, &job.lease).await }) {
            metrics::handed_back(&pool);
        } else {
            self.owner.handle_not_handed_back(id, attempt);
        }
    }

    /// Sends a message to workers, unless too many are being sent. Returns whether it is sent.
    pub(super) fn send(&mut self, message: impl Future<Output = ()> + Send + 'static) -> bool {
        let room = self.messages.len() < MESSAGES_MAX;
        if room {
            self.messages.spawn(message);
        }
        room
    }
}

/// The job that a dispatch stores. Notes in the audit log if the call is refused instead.
fn job(run: &Run, effect: Effect, event: &Event) -> Option<Dispatch> {
    let Effect::Dispatch { call } = effect else { return None };
    let call = run.call(call)?;
    if matches!(event, Event::CallDispatched { .. }) {
        return Some(history::job(run, call));
    }
    audit::call_refused(run, call.spec());
    None
}

/// The result of performing an effect.
pub(super) type EffectDone = (RunId, Effect, Result<(), EffectError>);

/// Why an effect was not performed.
#[derive(Debug)]
pub(super) enum EffectError {
    Append(AppendError),
    /// The entry that it must follow has left the log, because the run is carried through this entry.
    Carried(u64),
    /// The entry that it must follow has left the log, so it can never be appended.
    Gone,
}

/// Appends an event of an effect. A conflict is examined, because it is rare, and would never end if the expected entry
/// is gone.
async fn append_effect(
    journal: &Journal,
    id: RunId,
    event: Event,
    job: Option<&Dispatch>,
    expected: Expected,
) -> Result<u64, EffectError> {
    match journal.append(id, &[event], job, expected).await {
        Ok(sequence) => Ok(sequence),
        Err(AppendError::Conflict) if expected.entry > expected.carried => {
            Err(why_conflict(journal, id, expected.entry)
                .await
                .unwrap_or_else(|error| EffectError::Append(AppendError::Unavailable(error.to_string()))))
        }
        Err(error) => Err(EffectError::Append(error)),
    }
}

async fn why_conflict(journal: &Journal, id: RunId, expected: u64) -> Result<EffectError, ReadError> {
    if !journal.is_gone(id.shard(), expected).await? {
        return Ok(EffectError::Append(AppendError::Conflict));
    }
    // An earlier owner may have carried it.
    let carried = journal.carried_to(id).await?;
    Ok(if carried >= expected { EffectError::Carried(carried) } else { EffectError::Gone })
}
