//! Fires one schedule: decides what is due, creates the runs, and moves the record on.

use std::sync::Arc;
use std::time::Duration;

use ::schedule::{Decision, Due, Plan};
use proto::convert::api::timestamp;
use proto::{Reason, v1};
use run::{Run, RunId, Timestamp};
use telemetry::trace::{self, Kind, Moment};

use super::record::{firing, refused};
use super::{DECISIONS_MAX, Record, Schedules, unstored};
use crate::admission::error::RequestError;
use crate::metrics::schedules as metrics;
use crate::requests::RequestKey;
use crate::runs::Runs;

/// The decided firings after which a schedule with many missed ones lets others go first.
const DECIDED_AT_ONCE: usize = 32;

/// Why a firing is tried again.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub(super) struct NotNow(#[from] RequestError);

/// Errors that pass. Any other one is the outcome of the firing.
fn passes(error: &RequestError) -> bool {
    matches!(error.reason(), Reason::BrokerUnavailable | Reason::Unconfirmed | Reason::Contended | Reason::ShuttingDown)
}

/// The key of the request of a firing.
fn key(id: &str, time: Timestamp) -> RequestKey {
    RequestKey::firing(id, &format!("at {}", time.0))
}

impl Schedules {
    /// Fires what is due of a schedule. The bucket is read first, so a schedule that was paused or deleted before does
    /// not fire, however late this coordinator notices it.
    pub(super) async fn fire_due(&self, runs: &Runs, id: &str) -> Result<(), NotNow> {
        for _ in 0..DECIDED_AT_ONCE {
            let Some(mut record) = self.newest(id).await? else { return Ok(()) };
            let now = ::nats::now();
            if record.schedule.status() == v1::ScheduleStatus::Ended && now >= record.kept_until() {
                self.forget(&record).await?;
                return Ok(());
            }
            if !record.is_active() {
                return Ok(());
            }
            let plan = record.plan()?;
            match plan.decide(record.progress(), now) {
                Decision::Wait(_) => return Ok(()),
                Decision::Over => {
                    record.end(now);
                    if self.put(&mut record).await.map_err(unstored)? {
                        tracing::info!(schedule.id = id, "a schedule ended");
                        return Ok(());
                    }
                }
                Decision::Due(due) => self.decide_due(runs, record, &plan, due).await?,
            }
        }
        Ok(())
    }

    /// Records the missed firings, or else fires the first that is due. Missed ones are recorded by themselves, so a
    /// firing whose coordinator died before it recorded it is always the first that the next one decides.
    async fn decide_due(&self, runs: &Runs, record: Record, plan: &Plan, due: Due) -> Result<(), NotNow> {
        let runs = runs.acting_for(record.caller().as_ref(), record.tenant().as_ref());
        if let Some((first, last)) = due.missed_between {
            let unrecorded = runs.fired(&key(record.id(), first)).await?;
            let missed = due.missed - u64::from(unrecorded.is_some());
            let moved = self.move_on(record, |record| {
                if let Some(run) = unrecorded {
                    record.note(first, ran(first, ::nats::now(), run));
                }
                record.miss(missed, last, ::nats::now());
            });
            moved.await?;
            metrics::missed(missed);
            return Ok(());
        }
        let Some(time) = due.fire.first().copied() else { return Ok(()) };
        let late = ::nats::now().since(plan.due_at(time));
        let last_run = record.last_run();
        let fired = self.fire_one(&runs, &record, last_run, time).await?;
        self.move_on(record, |record| record.note(time, fired.clone())).await?;
        metrics::fired(fired.outcome(), late);
        Ok(())
    }

    /// Stores what became of firings, on top of whatever was stored meanwhile.
    async fn move_on(&self, mut record: Record, note: impl Fn(&mut Record)) -> Result<(), NotNow> {
        let id = record.id().to_owned();
        for _ in 0..DECISIONS_MAX {
            note(&mut record);
            if self.put(&mut record).await.map_err(unstored)? {
                return Ok(());
            }
            let Some(newest) = self.newest(&id).await? else {
                tracing::info!(schedule.id = id, "a schedule was deleted while it fired");
                return Ok(());
            };
            record = newest;
        }
        Err(RequestError::Contended.into())
    }

    /// Creates the run of a time. A refusal is an outcome, too.
    async fn fire_one(
        &self,
        runs: &Runs,
        record: &Record,
        last_run: Option<RunId>,
        time: Timestamp,
    ) -> Result<v1::ScheduleFiring, NotNow> {
        let began = Moment::now(::nats::now().0);
        let span = trace::begin(None, Kind::Internal, began.since_epoch(), || "fire schedule".into());
        let context = span.as_ref().map(trace::Span::context);
        let work = self.open(runs, record, last_run, time);
        let opened = match context {
            Some(context) => Box::pin(trace::scope(context, work)).await,
            None => Box::pin(work).await,
        };
        if let Some(span) = span {
            let span = span.text("toolyard.schedule.id", record.id()).text("toolyard.fire_time", timestamp(time));
            let span = match trace::SpanContext::sampled(&record.traceparent) {
                Some(created) => span.linked(created),
                None => span,
            };
            let span = match &opened {
                Ok(Some(run)) => span.text("toolyard.run.id", run),
                Ok(None) => span,
                Err(error) => span.failed(error.reason().code()),
            };
            span.end(began.later());
        }
        let (id, now) = (record.id(), ::nats::now());
        match opened {
            Ok(Some(run)) => {
                tracing::info!(schedule.id = id, run.id = %run, fire_time = %timestamp(time), "a schedule fired");
                Ok(ran(time, now, run))
            }
            Ok(None) => {
                tracing::info!(schedule.id = id, fire_time = %timestamp(time), "a firing was skipped: the previous \
                    run has not ended");
                Ok(firing(time, now, v1::FiringOutcome::Skipped))
            }
            Err(error) if passes(&error) => Err(error.into()),
            Err(error) => {
                tracing::warn!(schedule.id = id, fire_time = %timestamp(time), %error, "a firing was refused");
                Ok(refused(time, now, &error))
            }
        }
    }

    /// Creates the run of a time; `None` if the previous run keeps it from that.
    async fn open(
        &self,
        runs: &Runs,
        record: &Record,
        last_run: Option<RunId>,
        time: Timestamp,
    ) -> Result<Option<RunId>, RequestError> {
        let key = key(record.id(), time);
        let previous = match record.overlap() {
            v1::OverlapPolicy::Unspecified | v1::OverlapPolicy::Allow => None,
            v1::OverlapPolicy::Skip | v1::OverlapPolicy::CancelPrevious => last_run,
        };
        if let Some(previous) = previous
            && !runs.has_ended(previous).await?
        {
            match record.overlap() {
                // A coordinator that died may have fired it when the previous run had ended.
                v1::OverlapPolicy::Skip => return runs.fired(&key).await,
                _ => {
                    let reason = format!("schedule {} fired again", record.id());
                    runs.cancel_run(previous, &reason).await?;
                }
            }
        }
        let run = runs.fire(key, (self.read)(record.run(Some(time)))?).await?;
        Ok(Some(run.id()))
    }

    /// Fires a schedule by request, and records it. The run exists even if that fails.
    pub(super) async fn fire_by_request(
        &self,
        runs: &Runs,
        record: Record,
        request: &str,
    ) -> Result<Arc<Run>, RequestError> {
        let acting = runs.acting_for(record.caller().as_ref(), record.tenant().as_ref());
        let key = RequestKey::firing(record.id(), &format!("request {request}"));
        let run = acting.fire(key, (self.read)(record.run(None))?).await?;
        let now = ::nats::now();
        metrics::fired(v1::FiringOutcome::Run, Duration::ZERO);
        let (id, fired) = (record.id().to_owned(), v1::ScheduleFiring { by_request: true, ..ran(now, now, run.id()) });
        if let Err(error) = self.move_on(record, |record| record.note_request(fired.clone())).await {
            tracing::warn!(schedule.id = id, run.id = %run.id(), %error, "recording a firing by request failed");
        }
        Ok(run)
    }
}

fn ran(time: Timestamp, now: Timestamp, run: RunId) -> v1::ScheduleFiring {
    v1::ScheduleFiring { run_id: run.to_string(), ..firing(time, now, v1::FiringOutcome::Run) }
}
