//! Schedules: created and changed by callers, stored in a bucket, fired by the owner of their shard.
//!
//! ```text
//! caller ── create, pause, delete ──▶ the bucket, by compare-and-set ──▶ every coordinator watches it
//!                                                                            │
//!  a run, under a key of schedule and time ◀── the owner of the schedule's shard decides what is due
//!                     │
//!                     └── accepted ──▶ the record moves on, by compare-and-set
//! ```
//!
//! The shard only avoids double work. A firing creates its run once because the key of its request follows from the
//! schedule and the time, and because the record moves on only after the run was accepted: a coordinator that dies in
//! between leaves a firing that the next owner repeats, under the same key.

mod firing;
mod record;
mod task;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ::schedule::Plan;
use proto::convert::api::timestamp;
use proto::{Reason, v1};
use run::{CallerName, Run, TenantId};
use telemetry::trace;

pub(crate) use self::record::Record;
use self::record::malformed;
pub(crate) use self::task::ScheduleTask;
use crate::admission::error::RequestError;
use crate::auth::audit;
use crate::auth::callers::{Caller, Denied, Role};
use crate::nats::Broker;
use crate::nats::requests::PutError;
use crate::nats::schedules::{Change, Found, ScheduleStore, encoded};
use crate::nats::setup::SetupError;
use crate::requests::RequestKey;
use crate::runs::{NewRun, Runs};

/// Schedules of one tenant, ended ones included.
pub(crate) const SCHEDULES_PER_TENANT: usize = 1000;
/// Bytes of one schedule: each firing writes all of them. Larger input belongs in a tool or a file.
pub(crate) const SCHEDULE_BYTES_MAX: usize = 32 * 1024;
/// New schedules are refused when the bucket is filled to this percentage: the rest is for the firings of those that
/// exist, without which they could not move on.
const FULL_PERCENT: usize = 75;
/// Bytes that are reserved for the firings of a schedule.
const FIRINGS_BYTES: usize = 4 * 1024;
/// How often a change is decided again because another writer was faster.
const DECISIONS_MAX: usize = 16;

/// Converts the stored request of a run.
pub(crate) type ReadRun = fn(v1::CreateRunRequest) -> Result<NewRun, RequestError>;

/// The schedules. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Schedules {
    store: ScheduleStore,
    known: Arc<Mutex<BTreeMap<String, Arc<Known>>>>,
    read: ReadRun,
}

/// A schedule as this coordinator knows it, which may be a moment behind the bucket.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) record: Record,
    /// `None` if the schedule cannot be read, because another release stored it.
    pub(crate) plan: Option<Plan>,
    bytes: usize,
}

impl Known {
    fn new(record: Record) -> Self {
        let plan = record.plan().inspect_err(|error| {
            tracing::error!(schedule.id = record.id(), %error, "a stored schedule cannot be read and does not fire");
        });
        let bytes = encoded(&record.stored()).len();
        Self { record, plan: plan.ok(), bytes }
    }

    pub(crate) fn shown(&self) -> v1::Schedule {
        self.record.shown(self.plan.as_ref())
    }
}

impl Schedules {
    /// Reads the present schedules, so that a starting coordinator lists all of them.
    pub(crate) async fn load(broker: &Broker, read: ReadRun) -> Result<Self, SetupError> {
        let (store, present) = ScheduleStore::load(broker).await?;
        let loaded = Self { store, known: Arc::default(), read };
        present.into_iter().for_each(|change| loaded.learn(change));
        Ok(loaded)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Known>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a change of the bucket. Older ones than the known one are ignored.
    fn learn(&self, change: Change) {
        let Change { id, found } = change;
        let mut known = self.known();
        if known.get(&id).is_some_and(|known| known.record.revision >= found.revision) {
            return;
        }
        match Record::of(found) {
            Some(record) => drop(known.insert(id, Arc::new(Known::new(record)))),
            None => drop(known.remove(&id)),
        }
    }

    /// Stores a record, if the bucket still has its revision.
    async fn put(&self, record: &mut Record) -> Result<bool, PutError> {
        let stored = record.stored();
        let Some(revision) = self.store.put(record.id(), &stored, record.revision).await? else { return Ok(false) };
        record.revision = revision;
        let found = Found { stored: Some(stored), revision };
        self.learn(Change { id: record.id().to_owned(), found });
        Ok(true)
    }

    async fn newest(&self, id: &str) -> Result<Option<Record>, RequestError> {
        Ok(Record::of(self.store.newest(id).await?))
    }

    /// Creates a schedule in the name of the caller.
    pub(crate) async fn create(
        &self,
        runs: &Runs,
        request: v1::CreateScheduleRequest,
    ) -> Result<v1::Schedule, RequestError> {
        let created = self.create_as_caller(runs, request).await;
        let id = created.as_ref().map(|known| known.record.id().to_owned());
        audit::schedule(&runs.caller, "CreateSchedule", id.as_deref().ok(), id.as_ref().err().map(|e| e.reason()));
        created.map(|known| known.shown())
    }

    async fn create_as_caller(&self, runs: &Runs, request: v1::CreateScheduleRequest) -> Result<Known, RequestError> {
        runs.caller.must(Role::Submit)?;
        let (mut record, is_named) = self.new_record(runs, request)?;
        // A repeated request may be too late for its own times.
        if is_named && let Some(known) = self.existing(&mut record).await? {
            return Ok(known);
        }
        record.plan()?;
        let size = encoded(&record.stored()).len();
        if size > SCHEDULE_BYTES_MAX {
            return Err(malformed("spec", format!("is {size} bytes; the limit is {SCHEDULE_BYTES_MAX} bytes")));
        }
        let run = (self.read)(record.run(Some(record.decided_until))).map_err(in_run)?;
        Box::pin(runs.check_new(run)).await.map_err(in_run)?;
        for _ in 0..DECISIONS_MAX {
            self.check_room(record.tenant().as_ref(), size)?;
            if self.put(&mut record).await.map_err(unstored)? {
                return Ok(Known::new(record));
            }
            if let Some(known) = self.existing(&mut record).await? {
                return Ok(known);
            }
        }
        Err(RequestError::Contended)
    }

    /// The schedule that an earlier request with the same id created. If there is none, the record gets the revision
    /// that it may replace: the marker of a deleted schedule has one, too.
    async fn existing(&self, record: &mut Record) -> Result<Option<Known>, RequestError> {
        let found = self.store.newest(record.id()).await?;
        record.revision = found.revision;
        let Some(known) = Record::of(found) else { return Ok(None) };
        let is_same = known.schedule.spec == record.schedule.spec && known.tenant() == record.tenant();
        if is_same { Ok(Some(Known::new(known))) } else { Err(RequestError::ScheduleExists(record.id().to_owned())) }
    }

    /// The record of a new schedule, and whether its id follows from a request id.
    fn new_record(&self, runs: &Runs, request: v1::CreateScheduleRequest) -> Result<(Record, bool), RequestError> {
        let v1::CreateScheduleRequest { spec, request_id } = request;
        let mut spec = spec.ok_or_else(|| malformed("spec", "is missing"))?;
        let run = spec.run.as_mut().ok_or_else(|| malformed("spec.run", "is missing"))?;
        check_run(run)?;
        let tenant = match run.tenant.as_str() {
            "" => None,
            tenant => Some(tenant.parse().map_err(|error| malformed("spec.run.tenant", error))?),
        };
        let tenant: Option<TenantId> = runs.caller.makes_for(tenant)?;
        let tenant = tenant.as_ref().map(TenantId::as_str).unwrap_or_default().to_owned();
        run.tenant.clone_from(&tenant);
        let is_named = !request_id.is_empty();
        let schedule_id = if is_named {
            let id: run::RequestId = request_id.parse().map_err(|error| malformed("request_id", error))?;
            let key = RequestKey::schedule(&tenant, &id).name();
            format!("{ID_PREFIX}{}", key.get(..32).unwrap_or_default())
        } else {
            format!("{ID_PREFIX}{}", uuid::Uuid::now_v7().simple())
        };
        let now = ::nats::now();
        let caller = runs.caller.name().map(CallerName::as_str).unwrap_or_default().to_owned();
        let mut schedule = v1::Schedule {
            schedule_id,
            spec: Some(spec),
            tenant,
            caller,
            create_time: Some(timestamp(now)),
            ..v1::Schedule::default()
        };
        schedule.set_status(v1::ScheduleStatus::Active);
        let traceparent = trace::current().map(trace::SpanContext::traceparent).unwrap_or_default();
        Ok((Record { schedule, decided_until: now, fired: 0, traceparent, revision: 0 }, is_named))
    }

    /// Refuses a schedule that would exceed a limit. Coordinators that create at the same moment may exceed it by a
    /// few, for which the rest of the bucket has room.
    fn check_room(&self, tenant: Option<&TenantId>, size: usize) -> Result<(), RequestError> {
        let known = self.known();
        let of_tenant = || known.values().filter(|known| known.record.tenant().as_ref() == tenant);
        let count = of_tenant().count();
        if count >= SCHEDULES_PER_TENANT {
            let full = format!("the tenant has {count} schedules; the limit is {SCHEDULES_PER_TENANT}");
            return Err(RequestError::SchedulesFull(full));
        }
        let bytes = |known: &Arc<Known>| known.bytes + FIRINGS_BYTES;
        let (room, more) = (self.store.bytes_max() / 100 * FULL_PERCENT, size + FIRINGS_BYTES);
        let of_tenant: usize = of_tenant().map(bytes).sum();
        if tenant.is_some() && of_tenant + more > room / 2 {
            let full = format!(
                "the tenant's schedules would take {} bytes; the limit is {}: delete some, or make their runs smaller",
                of_tenant + more,
                room / 2
            );
            return Err(RequestError::SchedulesFull(full));
        }
        if known.values().map(bytes).sum::<usize>() + more > room {
            return Err(no_room());
        }
        Ok(())
    }

    /// A schedule that the caller may see. One of another tenant is reported as missing.
    pub(crate) async fn get(&self, caller: &Caller, id: &str) -> Result<Known, RequestError> {
        caller.must(Role::Read)?;
        self.seen(caller, id).await.map(Known::new)
    }

    async fn seen(&self, caller: &Caller, id: &str) -> Result<Record, RequestError> {
        check_id(id)?;
        let record = self.newest(id).await?;
        let seen = record.filter(|record| caller.sees(record.tenant().as_ref()));
        seen.ok_or_else(|| RequestError::ScheduleNotFound(id.to_owned()))
    }

    /// The schedules that the caller may see, the newest first.
    pub(crate) fn list(&self, caller: &Caller, tenant: Option<TenantId>) -> Result<Vec<Arc<Known>>, RequestError> {
        caller.must(Role::Read)?;
        let tenant = caller.lists(tenant)?;
        let is_listed = |known: &&Arc<Known>| tenant.is_none() || known.record.tenant() == tenant;
        let mut listed: Vec<_> = self.known().values().filter(is_listed).cloned().collect();
        listed.sort_by(|one, other| other.record.position().cmp(&one.record.position()));
        Ok(listed)
    }

    /// Changes a schedule. `change` returns whether anything is to be stored.
    async fn change(
        &self,
        (caller, command, id): (&Caller, &'static str, &str),
        change: impl Fn(&mut Record) -> bool,
    ) -> Result<v1::Schedule, RequestError> {
        let work = async {
            caller.must(Role::Submit)?;
            for _ in 0..DECISIONS_MAX {
                let mut record = self.seen(caller, id).await?;
                if !change(&mut record) || self.put(&mut record).await.map_err(unstored)? {
                    return Ok(Known::new(record).shown());
                }
            }
            Err(RequestError::Contended)
        };
        let done = work.await;
        audit::schedule(caller, command, Some(id), done.as_ref().err().map(RequestError::reason));
        done
    }

    pub(crate) async fn pause(&self, caller: &Caller, id: &str, reason: &str) -> Result<v1::Schedule, RequestError> {
        let by = caller.name().map(CallerName::as_str).unwrap_or_default();
        self.change((caller, "PauseSchedule", id), |record| record.pause(by, reason, ::nats::now())).await
    }

    pub(crate) async fn resume(&self, caller: &Caller, id: &str) -> Result<v1::Schedule, RequestError> {
        self.change((caller, "ResumeSchedule", id), |record| record.resume(::nats::now())).await
    }

    pub(crate) async fn delete(&self, caller: &Caller, id: &str) -> Result<(), RequestError> {
        let work = async {
            caller.must(Role::Submit)?;
            for _ in 0..DECISIONS_MAX {
                let record = self.seen(caller, id).await?;
                if self.forget(&record).await? {
                    return Ok(());
                }
            }
            Err(RequestError::Contended)
        };
        let done = work.await;
        audit::schedule(caller, "DeleteSchedule", Some(id), done.as_ref().err().map(RequestError::reason));
        done
    }

    async fn forget(&self, record: &Record) -> Result<bool, RequestError> {
        let deleted = self.store.delete(record.id(), record.revision).await.map_err(unstored)?;
        let Some(revision) = deleted else { return Ok(false) };
        self.learn(Change { id: record.id().to_owned(), found: Found { stored: None, revision } });
        Ok(true)
    }

    /// Fires a schedule by request, with the rights of its creator.
    pub(crate) async fn run_now(&self, runs: &Runs, id: &str, request_id: &str) -> Result<Arc<Run>, RequestError> {
        let work = async {
            runs.caller.must(Role::Submit)?;
            let record = self.seen(&runs.caller, id).await?;
            may_fire(&runs.caller, &record)?;
            let request = match request_id {
                "" => uuid::Uuid::now_v7().simple().to_string(),
                id => id.parse::<run::RequestId>().map_err(|error| malformed("request_id", error))?.to_string(),
            };
            self.fire_by_request(runs, record, &request).await
        };
        let done = work.await;
        audit::schedule(&runs.caller, "RunScheduleNow", Some(id), done.as_ref().err().map(RequestError::reason));
        done
    }
}

/// Prefix of the id of a schedule.
const ID_PREFIX: &str = "sch_";

fn check_id(id: &str) -> Result<(), RequestError> {
    let digits = id.strip_prefix(ID_PREFIX).filter(|digits| digits.len() == 32);
    let is_id = digits.is_some_and(|digits| digits.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')));
    let expected = "is not the id of a schedule: `sch_` and 32 hexadecimal digits";
    if is_id { Ok(()) } else { Err(malformed("schedule_id", expected)) }
}

/// Refuses parts of a run that mean nothing, or would not last, in a schedule.
fn check_run(run: &v1::CreateRunRequest) -> Result<(), RequestError> {
    let wrong = [
        ("request_id", !run.request_id.is_empty(), "cannot be set: each firing has an id of its own"),
        ("keep_open", run.keep_open, "cannot be set: nobody would close the runs"),
        ("files", !run.files.is_empty(), "cannot be set: files are kept for 25 hours only"),
        (
            "calls",
            run.calls.iter().any(|call| call.not_before.is_some()),
            "cannot have `not_before`: the times of the schedule say when its calls run",
        ),
        ("request_tools", !run.request_tools.is_empty(), "cannot be set: use tools of workers"),
        ("parent", run.parent.is_some(), "cannot be set: a schedule lasts longer than a call"),
        ("store", run.store == Some(false), "cannot be false: a run that is erased could be fired again"),
    ];
    match wrong.into_iter().find(|(_, is_wrong, _)| *is_wrong) {
        Some((field, _, reason)) => Err(malformed(&format!("spec.run.{field}"), reason)),
        None => Ok(()),
    }
}

/// The fields of the run are below those of the schedule.
fn in_run(error: RequestError) -> RequestError {
    match error {
        RequestError::Malformed { field, reason } => malformed(&format!("spec.run.{field}"), reason),
        error => error,
    }
}

fn unstored(error: PutError) -> RequestError {
    match error {
        PutError::Full => no_room(),
        PutError::Unavailable(error) => error.into(),
    }
}

fn no_room() -> RequestError {
    let full = "the bucket of schedules has no room for more: delete some, or have the log made larger (`toolyard log \
        resize`), because the bucket grows with it";
    RequestError::SchedulesFull(full.to_owned())
}

/// A firing has the rights of the creator, so other callers may not cause it.
fn may_fire(caller: &Caller, record: &Record) -> Result<(), Denied> {
    if caller.must(Role::Admin).is_ok() || caller.name() == record.caller().as_ref() {
        return Ok(());
    }
    let message = "another caller created the schedule: only that caller and admins may fire it".to_owned();
    Err(Denied { reason: Reason::ScheduleOfAnotherCaller, message })
}

#[cfg(test)]
mod tests {
    use super::record::{plan, seed};
    use super::*;

    #[test]
    fn ids_are_those_that_are_made_here() {
        assert!(check_id("sch_0193a7b4c2d07e3f8a1b2c3d4e5f6071").is_ok());
        for wrong in
            ["", "sch_", "sch_*", "run_0193a7b4c2d07e3f8a1b2c3d4e5f6071", "sch_0193A7B4C2D07E3F8A1B2C3D4E5F6071"]
        {
            assert!(check_id(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn schedules_are_spread_over_seeds() {
        let seeds: std::collections::HashSet<u64> = (0..100).map(|n| seed(&format!("sch_{n}")) % 16).collect();
        assert_eq!(seeds.len(), 16);
    }

    #[test]
    fn times_are_required() {
        let refused = plan(&v1::ScheduleSpec::default(), ::nats::now(), 0).expect_err("no times");
        assert_eq!(refused.reason(), Reason::Malformed);
    }
}
