//! A schedule as it is stored, and how its firings change it.

use std::time::Duration;

use ::schedule::{Decision, JITTER_MAX, MissedPolicy, Plan, Progress, Timing, TimingError};
use proto::convert::api::{self, timestamp};
use proto::convert::time_in;
use proto::v1::schedule_spec::Timing as Wire;
use proto::wire::v1::StoredSchedule;
use proto::{names, v1};
use run::{CallerName, RunId, TenantId, Timestamp};

use crate::admission::error::RequestError;
use crate::index::wire::moment;
use crate::nats::schedules::Found;

/// The latest firings that are kept with a schedule.
const FIRINGS_KEPT: usize = 10;
/// The next times that are shown.
const UPCOMING: usize = 5;
/// The longest name of a schedule.
const NAME_BYTES_MAX: usize = 128;
/// The longest message of a refusal that is kept.
const MESSAGE_CHARS_MAX: usize = 256;
/// How long a schedule is kept after its end: as long as the log keeps its last run.
pub(super) const ENDED_KEPT: Duration = crate::nats::setup::RETENTION;

/// A stored schedule, with its revision in the bucket.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    pub(super) schedule: v1::Schedule,
    pub(super) decided_until: Timestamp,
    pub(super) fired: u64,
    pub(super) traceparent: String,
    pub(super) revision: u64,
}

pub(super) fn malformed(field: &str, reason: impl ToString) -> RequestError {
    RequestError::Malformed { field: field.to_owned(), reason: reason.to_string() }
}

impl Record {
    pub(super) fn of(found: Found) -> Option<Self> {
        let StoredSchedule { schedule, decided_until, traceparent, fired, version: _ } = found.stored?;
        let decided_until = decided_until.map(moment).unwrap_or_default();
        Some(Self { schedule: schedule?, decided_until, fired, traceparent, revision: found.revision })
    }

    pub(super) fn stored(&self) -> StoredSchedule {
        StoredSchedule {
            version: 0,
            schedule: Some(self.schedule.clone()),
            decided_until: Some(timestamp(self.decided_until)),
            traceparent: self.traceparent.clone(),
            fired: self.fired,
        }
    }

    pub(super) fn id(&self) -> &str {
        &self.schedule.schedule_id
    }

    pub(super) fn tenant(&self) -> Option<TenantId> {
        self.schedule.tenant.parse().ok()
    }

    pub(super) fn caller(&self) -> Option<CallerName> {
        self.schedule.caller.parse().ok()
    }

    pub(super) fn last_run(&self) -> Option<RunId> {
        self.schedule.last_run_id.parse().ok()
    }

    /// Its position in lists.
    pub(crate) fn position(&self) -> (u64, &str) {
        (self.created_at().0, self.id())
    }

    pub(crate) fn status(&self) -> v1::ScheduleStatus {
        self.schedule.status()
    }

    fn spec(&self) -> v1::ScheduleSpec {
        self.schedule.spec.clone().unwrap_or_default()
    }

    pub(super) fn overlap(&self) -> v1::OverlapPolicy {
        self.spec().overlap_policy()
    }

    fn created_at(&self) -> Timestamp {
        self.schedule.create_time.map(moment).unwrap_or_default()
    }

    /// The request of the run that a firing creates. `time`: the time that fires; `None` for a firing by request.
    pub(super) fn run(&self, time: Option<Timestamp>) -> v1::CreateRunRequest {
        let mut run = self.spec().run.unwrap_or_default();
        run.tenant.clone_from(&self.schedule.tenant);
        for call in &mut run.calls {
            call.metadata.insert(names::SCHEDULE_ID.to_owned(), self.id().to_owned());
            if let Some(time) = time {
                call.metadata.insert(names::FIRE_TIME.to_owned(), timestamp(time).to_string());
            }
        }
        run
    }

    pub(super) fn plan(&self) -> Result<Plan, RequestError> {
        plan(&self.spec(), self.created_at(), seed(self.id()))
    }

    pub(super) fn progress(&self) -> Progress {
        Progress { decided_until: self.decided_until, fired: self.fired }
    }

    /// When something is to be done about the schedule next.
    pub(super) fn wake(&self, plan: &Plan, now: Timestamp) -> Option<Timestamp> {
        match self.schedule.status() {
            v1::ScheduleStatus::Active => match plan.decide(self.progress(), now) {
                Decision::Wait(until) => Some(until),
                Decision::Due(_) | Decision::Over => Some(now),
            },
            v1::ScheduleStatus::Ended => Some(self.kept_until()),
            v1::ScheduleStatus::Paused | v1::ScheduleStatus::Unspecified => None,
        }
    }

    /// When an ended schedule is deleted.
    pub(super) fn kept_until(&self) -> Timestamp {
        self.schedule.end_time.map(moment).unwrap_or_default().after(ENDED_KEPT)
    }

    pub(super) fn is_active(&self) -> bool {
        self.schedule.status() == v1::ScheduleStatus::Active
    }

    /// Counts missed firings that are not made up for.
    pub(super) fn miss(&mut self, count: u64, last: Timestamp, now: Timestamp) {
        if last <= self.decided_until || count == 0 {
            return;
        }
        self.decided_until = last;
        self.counts().missed += count;
        self.keep(firing(last, now, v1::FiringOutcome::Missed));
    }

    /// Records a decided firing. If it is recorded already, because another coordinator decided it too, only a run that
    /// the record lacks is added: the run exists, whatever the other one recorded.
    pub(super) fn note(&mut self, time: Timestamp, firing: v1::ScheduleFiring) {
        let is_run = firing.outcome() == v1::FiringOutcome::Run;
        if time > self.decided_until {
            self.decided_until = time;
            self.fired += u64::from(firing.outcome() != v1::FiringOutcome::Skipped);
            self.count(firing.outcome(), 1);
            self.keep(firing);
            return;
        }
        let is_same = |known: &&mut v1::ScheduleFiring| !known.by_request && known.fire_time == firing.fire_time;
        let Some(known) = self.schedule.firings.iter_mut().find(is_same).filter(|known| known.run_id.is_empty()) else {
            return;
        };
        if is_run {
            let before = known.outcome();
            known.clone_from(&firing);
            self.uncount(before);
            self.count(v1::FiringOutcome::Run, 1);
            self.schedule.last_run_id = firing.run_id;
        }
    }

    /// Records a firing by request.
    pub(super) fn note_request(&mut self, firing: v1::ScheduleFiring) {
        let is_known = self.schedule.firings.iter().any(|known| known.run_id == firing.run_id);
        if !is_known {
            self.counts().runs += 1;
            self.keep(firing);
        }
    }

    fn keep(&mut self, firing: v1::ScheduleFiring) {
        if !firing.run_id.is_empty() {
            self.schedule.last_run_id.clone_from(&firing.run_id);
        }
        self.schedule.firings.push(firing);
        let surplus = self.schedule.firings.len().saturating_sub(FIRINGS_KEPT);
        self.schedule.firings.drain(..surplus);
    }

    fn counts(&mut self) -> &mut v1::ScheduleCounts {
        self.schedule.counts.get_or_insert_default()
    }

    fn counter(&mut self, outcome: v1::FiringOutcome) -> Option<&mut u64> {
        let counts = self.counts();
        match outcome {
            v1::FiringOutcome::Run => Some(&mut counts.runs),
            v1::FiringOutcome::Refused => Some(&mut counts.refused),
            v1::FiringOutcome::Skipped => Some(&mut counts.skipped),
            v1::FiringOutcome::Missed => Some(&mut counts.missed),
            v1::FiringOutcome::Unspecified => None,
        }
    }

    fn count(&mut self, outcome: v1::FiringOutcome, more: u64) {
        if let Some(counter) = self.counter(outcome) {
            *counter += more;
        }
    }

    fn uncount(&mut self, outcome: v1::FiringOutcome) {
        if let Some(counter) = self.counter(outcome) {
            *counter = counter.saturating_sub(1);
        }
    }

    pub(super) fn end(&mut self, now: Timestamp) {
        self.schedule.set_status(v1::ScheduleStatus::Ended);
        self.schedule.end_time = Some(timestamp(now));
        self.schedule.pause = None;
    }

    /// Pauses it. Returns whether that changed anything.
    pub(super) fn pause(&mut self, by: &str, reason: &str, now: Timestamp) -> bool {
        if !self.is_active() {
            return false;
        }
        self.schedule.set_status(v1::ScheduleStatus::Paused);
        let (by, reason) = (by.to_owned(), reason.to_owned());
        self.schedule.pause = Some(v1::SchedulePause { by, reason, time: Some(timestamp(now)) });
        true
    }

    /// Resumes it without the firings of the pause. Returns whether that changed anything.
    pub(super) fn resume(&mut self, now: Timestamp) -> bool {
        if self.schedule.status() != v1::ScheduleStatus::Paused {
            return false;
        }
        self.schedule.set_status(v1::ScheduleStatus::Active);
        self.schedule.pause = None;
        self.decided_until = self.decided_until.max(now);
        true
    }

    /// As clients see it: with its next times, and without context, which no response contains.
    pub(crate) fn shown(&self, plan: Option<&Plan>) -> v1::Schedule {
        let mut shown = self.schedule.clone();
        if let Some(run) = shown.spec.as_mut().and_then(|spec| spec.run.as_mut()) {
            run.context.clear();
            run.calls.iter_mut().for_each(|call| call.context.clear());
        }
        if let Some(plan) = plan.filter(|_| self.is_active()) {
            shown.next_fire_times = plan.upcoming(self.progress(), UPCOMING).into_iter().map(timestamp).collect();
        }
        shown
    }
}

/// A firing of a time, decided now.
pub(super) fn firing(time: Timestamp, now: Timestamp, outcome: v1::FiringOutcome) -> v1::ScheduleFiring {
    let (fire_time, time) = (Some(timestamp(time)), Some(timestamp(now)));
    v1::ScheduleFiring { fire_time, time, outcome: outcome.into(), ..v1::ScheduleFiring::default() }
}

/// A firing whose run was refused.
pub(super) fn refused(time: Timestamp, now: Timestamp, refusal: &RequestError) -> v1::ScheduleFiring {
    let message = refusal.to_string().chars().take(MESSAGE_CHARS_MAX).collect();
    let reason = refusal.reason().code().to_owned();
    v1::ScheduleFiring { reason, message, ..firing(time, now, v1::FiringOutcome::Refused) }
}

/// FNV-1a of the id: the same in every process of every version.
pub(super) fn seed(id: &str) -> u64 {
    id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Checks when a schedule fires. Errors name the field of a request to create it.
pub(super) fn plan(spec: &v1::ScheduleSpec, created: Timestamp, seed: u64) -> Result<Plan, RequestError> {
    if spec.name.len() > NAME_BYTES_MAX {
        let size = spec.name.len();
        return Err(malformed("spec.name", format!("is {size} bytes; the limit is {NAME_BYTES_MAX} bytes")));
    }
    let missed = match spec.missed_policy() {
        v1::MissedPolicy::Unspecified if spec.missed_policy != 0 => return Err(unknown("spec.missed_policy")),
        v1::MissedPolicy::Unspecified | v1::MissedPolicy::Latest => MissedPolicy::Latest,
        v1::MissedPolicy::Skip => MissedPolicy::Skip,
        v1::MissedPolicy::All => MissedPolicy::All,
    };
    if spec.overlap_policy() == v1::OverlapPolicy::Unspecified && spec.overlap_policy != 0 {
        return Err(unknown("spec.overlap_policy"));
    }
    let jitter = match spec.jitter.map(time_in) {
        None => Duration::ZERO,
        Some(Some(jitter)) if jitter <= JITTER_MAX => jitter,
        Some(_) => {
            let reason = format!("is not a time from 0 to {} seconds", JITTER_MAX.as_secs());
            return Err(malformed("spec.jitter", reason));
        }
    };
    let timing = match &spec.timing {
        None => return Err(malformed("spec", "has no times: set one of `cron`, `once_at` and `every`")),
        Some(Wire::Cron(v1::CronTiming { expression, time_zone })) => Timing::cron(expression, time_zone, created)
            .map_err(|error| match error {
                TimingError::NeverFires(_) => RequestError::NeverFires(error.to_string()),
                TimingError::NoZone(_) => malformed("spec.cron.time_zone", error),
                error => malformed("spec.cron.expression", error),
            })?,
        Some(Wire::OnceAt(at)) => {
            let at = time_of("spec.once_at", *at)?;
            Timing::once(at, created).map_err(|error| malformed("spec.once_at", error))?
        }
        Some(Wire::Every(every)) => {
            let every = time_in(*every).unwrap_or_default();
            Timing::every(every, created).map_err(|error| malformed("spec.every", error))?
        }
    };
    let firings_max = (spec.firings_max > 0).then(|| u64::from(spec.firings_max));
    let end = spec.end_time.map(|end| time_of("spec.end_time", end)).transpose()?;
    let plan = Plan { timing, seed, jitter, end, firings_max, missed };
    if plan.upcoming(Progress { decided_until: created, fired: 0 }, 1).is_empty() {
        return Err(malformed("spec.end_time", "is before the first time at which the schedule would fire"));
    }
    Ok(plan)
}

fn time_of(field: &str, wire: prost_types::Timestamp) -> Result<Timestamp, RequestError> {
    api::time_in(wire).ok_or_else(|| malformed(field, "is not a time between the years 1970 and 9999"))
}

fn unknown(field: &str) -> RequestError {
    malformed(field, "is not a value that is known here")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREATED: Timestamp = Timestamp(1_767_225_600_000);

    fn record() -> Record {
        let every = Some(Wire::Every(prost_types::Duration { seconds: 60, nanos: 0 }));
        let mut schedule = v1::Schedule {
            schedule_id: "sch_00".to_owned(),
            spec: Some(v1::ScheduleSpec { timing: every, ..v1::ScheduleSpec::default() }),
            create_time: Some(timestamp(CREATED)),
            ..v1::Schedule::default()
        };
        schedule.set_status(v1::ScheduleStatus::Active);
        Record { schedule, decided_until: CREATED, fired: 0, traceparent: String::new(), revision: 1 }
    }

    fn minute(number: u64) -> Timestamp {
        CREATED.after(Duration::from_secs(60 * number))
    }

    fn ran(time: Timestamp, run: &str) -> v1::ScheduleFiring {
        v1::ScheduleFiring { run_id: run.to_owned(), ..firing(time, time, v1::FiringOutcome::Run) }
    }

    #[test]
    fn a_firing_that_two_coordinators_decide_is_recorded_once_and_a_run_wins_over_a_refusal() {
        let mut record = record();
        let refusal = refused(minute(1), minute(1), &RequestError::LogFull(None));
        record.note(minute(1), refusal.clone());
        record.note(minute(1), ran(minute(1), "run_a"));
        record.note(minute(1), ran(minute(1), "run_a"));
        record.note(minute(1), refusal);
        let counts = record.schedule.counts.unwrap_or_default();
        assert_eq!((counts.runs, counts.refused, record.fired, record.schedule.firings.len()), (1, 0, 1, 1));
        assert_eq!((record.schedule.last_run_id.as_str(), record.decided_until), ("run_a", minute(1)));
    }

    #[test]
    fn the_latest_firings_are_kept_and_all_are_counted() {
        let mut record = record();
        for number in 1..=15 {
            record.note(minute(number), ran(minute(number), &format!("run_{number}")));
        }
        record.miss(3, minute(18), minute(19));
        record.miss(3, minute(18), minute(19));
        let counts = record.schedule.counts.unwrap_or_default();
        assert_eq!((counts.runs, counts.missed, record.schedule.firings.len()), (15, 3, FIRINGS_KEPT));
        assert_eq!(record.schedule.last_run_id, "run_15");
    }

    #[test]
    fn times_in_a_pause_do_not_fire_after_it() {
        let mut record = record();
        let plan = record.plan().expect("a plan");
        assert_eq!(record.wake(&plan, CREATED), Some(minute(1)));
        assert!(record.pause("ada", "maintenance", minute(0)) && !record.pause("eve", "", minute(1)));
        assert_eq!(record.wake(&plan, minute(9)), None);
        assert!(record.resume(minute(9)) && !record.resume(minute(10)));
        assert_eq!(record.wake(&plan, minute(9)), Some(minute(10)));
    }
}
