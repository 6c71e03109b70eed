//! `toolyard.v1.FleetService`: operations on workers, pools and tools.

use std::sync::Arc;
use std::time::Duration;

use proto::convert::api::timestamp;
use proto::convert::worker::WorkerSandbox;
use proto::names::{WORKER_HEARTBEAT, WORKER_LOST};
use proto::v1;
use proto::v1::pause::What as Paused;
use proto::v1::pause_request::What as ToPause;
use proto::v1::resume_request::What as ToResume;
use run::{PoolId, Timestamp, WorkerId};
use tokio::time::Instant;

use super::{Api, ApiError, reason};
use crate::admission::error::RequestError;
use crate::auth::audit;
use crate::auth::callers::Role;
use crate::fleet::paused::{Pausable, Word};
use crate::fleet::registry::Worker;

const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;
/// How long a worker may take to confirm the drain. It confirms immediately, and the request is repeated in case it was
/// lost.
const DRAIN_PATIENCE: Duration = Duration::from_secs(3);
/// How long after its start a coordinator does not know yet which workers are alive.
const SURE: Duration = Duration::from_secs(WORKER_LOST.as_secs() + WORKER_HEARTBEAT.as_secs());
/// How often the request is repeated.
const DRAIN_REPEAT: Duration = Duration::from_secs(1);

impl Api {
    pub(crate) async fn pause(&self, request: v1::PauseRequest) -> Result<v1::PauseResponse, ApiError> {
        self.runs.caller.must(Role::Admin).map_err(RequestError::from)?;
        let what = match request.what {
            Some(ToPause::Tool(tool)) => self.tool_to_pause(&tool)?,
            Some(ToPause::Pool(pool)) => self.pool_to_pause(&pool)?,
            None => return Err(neither().into()),
        };
        let by = self.runs.caller.name().map(ToString::to_string).unwrap_or_default();
        let word = Word { by, reason: reason(&request.reason)?.to_owned(), at_ms: ::nats::now().0 };
        let done = self.runs.pauses.pause(&what, &word).await.map_err(RequestError::from);
        audit::paused(&self.runs.caller, "Pause", &what, done.as_ref().err().map(RequestError::reason));
        done?;
        Ok(v1::PauseResponse {})
    }

    pub(crate) async fn resume(&self, request: v1::ResumeRequest) -> Result<v1::ResumeResponse, ApiError> {
        self.runs.caller.must(Role::Admin).map_err(RequestError::from)?;
        let what = match request.what {
            Some(ToResume::Tool(tool)) => self.tool_to_resume(&tool)?,
            Some(ToResume::Pool(pool)) => self.pool_to_resume(&pool)?,
            None => return Err(neither().into()),
        };
        let done = self.runs.pauses.resume(&what).await.map_err(RequestError::from);
        audit::paused(&self.runs.caller, "Resume", &what, done.as_ref().err().map(RequestError::reason));
        done?;
        Ok(v1::ResumeResponse {})
    }

    pub(crate) fn list_pauses(&self, _: v1::ListPausesRequest) -> Result<v1::ListPausesResponse, ApiError> {
        self.runs.caller.must(Role::Admin).map_err(RequestError::from)?;
        let paused = Arc::clone(&self.runs.pauses.current.borrow());
        let tools = paused.tools().map(|(tool, record)| paused_out(Paused::Tool(tool.to_string()), record));
        let pools = paused.pools().map(|(pool, record)| paused_out(Paused::Pool(pool.to_string()), record));
        Ok(v1::ListPausesResponse { pauses: tools.chain(pools).collect() })
    }

    pub(crate) fn list_workers(&self, request: &v1::ListWorkersRequest) -> Result<v1::ListWorkersResponse, ApiError> {
        self.runs.caller.must(Role::Admin).map_err(RequestError::from)?;
        let size = page_size(request.page_size)?;
        // The token is the last worker of the page before: its id and its pool, which have no dots.
        let after: Option<(WorkerId, PoolId)> = match request.page_token.as_str() {
            "" => None,
            token => {
                let last = token.split_once('.').and_then(|(id, pool)| Some((id.parse().ok()?, pool.parse().ok()?)));
                Some(last.ok_or_else(|| malformed("page_token", "was not returned by an earlier request"))?)
            }
        };
        let pool: Option<PoolId> = match request.pool.as_str() {
            "" => None,
            pool => Some(named("pool", pool)?),
        };
        let registry = Arc::clone(&self.runs.registry.borrow());
        let workers = registry.workers();
        let of_pool = workers.iter().filter(|((_, of), _)| pool.as_ref().is_none_or(|pool| *of == pool));
        let mut rest = of_pool.filter(|(known, _)| after.as_ref().is_none_or(|(id, pool)| **known > (id, pool)));
        let page: Vec<_> = rest.by_ref().take(size).map(|(known, worker)| worker_out(*known, worker)).collect();
        let last = page.last().map(|worker| format!("{}.{}", worker.worker_id, worker.pool)).unwrap_or_default();
        let next_page_token = if rest.next().is_some() { last } else { String::new() };
        Ok(v1::ListWorkersResponse { workers: page, next_page_token })
    }

    pub(crate) async fn drain_worker(
        &self,
        request: v1::DrainWorkerRequest,
    ) -> Result<v1::DrainWorkerResponse, ApiError> {
        self.runs.caller.must(Role::Admin).map_err(RequestError::from)?;
        let worker = named("worker_id", &request.worker_id)?;
        let done = self.drain(&worker).await;
        audit::drained(&self.runs.caller, &worker, done.as_ref().err().map(RequestError::reason));
        done?;
        Ok(v1::DrainWorkerResponse {})
    }

    /// Requests the drain until the worker's heartbeat confirms it. The drain is not stored, so a worker cannot stay
    /// drained by a forgotten record. If workers of several pools have this id, all of them drain.
    async fn drain(&self, id: &WorkerId) -> Result<(), RequestError> {
        let mut registry = self.runs.registry.clone();
        let asked = Instant::now();
        let (mut first, mut last): (Option<Instant>, Option<Instant>) = (None, None);
        loop {
            let (is_known, takes_calls, settled) = {
                let registry = registry.borrow_and_update();
                let takes_calls = registry.named(id).filter(|(_, worker)| !worker.draining);
                let pools: Vec<PoolId> = takes_calls.map(|(pool, _)| pool.clone()).collect();
                (registry.named(id).next().is_some(), pools, registry.settled)
            };
            match (takes_calls.is_empty(), is_known) {
                (true, true) => return Ok(()),
                (true, false) if first.is_some() => return Ok(()),
                (true, false) if settled || asked.elapsed() >= SURE => {
                    return Err(RequestError::WorkerNotFound(id.clone()));
                }
                (true, false) => {}
                (false, _) if first.is_some_and(|first| first.elapsed() >= DRAIN_PATIENCE) => {
                    return Err(RequestError::WorkerSilent(id.clone()));
                }
                (false, _) if last.is_none_or(|last| last.elapsed() >= DRAIN_REPEAT) => {
                    for pool in &takes_calls {
                        self.runs.signals.drain(pool, id.clone()).await;
                    }
                    last = Some(Instant::now());
                    first = first.or(last);
                }
                (false, _) => {}
            }
            let patience = first.map(|first| DRAIN_PATIENCE.saturating_sub(first.elapsed()));
            let pause = patience.map_or(DRAIN_REPEAT, |patience| patience.min(DRAIN_REPEAT));
            match tokio::time::timeout(pause, registry.changed()).await {
                Ok(Ok(())) | Err(_) => {}
                Ok(Err(_)) => return Err(RequestError::ShuttingDown),
            }
        }
    }

    /// A name that no worker advertises is rejected, because pausing it would silently do nothing.
    fn tool_to_pause(&self, name: &str) -> Result<Pausable, RequestError> {
        let tool = named("tool", name)?;
        let registry = self.runs.registry.borrow();
        let real = registry.catalog.find(&tool).map(|entry| entry.hosted.manifest.name.clone());
        real.map(Pausable::Tool).ok_or(RequestError::ToolNotFound(tool))
    }

    fn pool_to_pause(&self, name: &str) -> Result<Pausable, RequestError> {
        let pool = named("pool", name)?;
        let is_known = self.runs.registry.borrow().pools().contains(&pool);
        if is_known { Ok(Pausable::Pool(pool)) } else { Err(RequestError::PoolNotFound(pool)) }
    }

    /// A pause of this name, even if its workers are gone; otherwise a known tool. So resuming twice succeeds, and a
    /// misspelled name is rejected.
    fn tool_to_resume(&self, name: &str) -> Result<Pausable, RequestError> {
        let tool = named("tool", name)?;
        if self.runs.pauses.current.borrow().holds(&tool) {
            return Ok(Pausable::Tool(tool));
        }
        self.tool_to_pause(name)
    }

    fn pool_to_resume(&self, name: &str) -> Result<Pausable, RequestError> {
        let pool: PoolId = named("pool", name)?;
        if self.runs.pauses.current.borrow().pools().any(|(paused, _)| *paused == pool) {
            return Ok(Pausable::Pool(pool));
        }
        self.pool_to_pause(name)
    }
}

fn page_size(asked: i32) -> Result<usize, RequestError> {
    match usize::try_from(asked) {
        Ok(0) => Ok(PAGE_DEFAULT),
        Ok(size) => Ok(size.min(PAGE_MAX)),
        Err(_) => Err(malformed("page_size", "must not be negative")),
    }
}

fn malformed(field: &str, reason: &str) -> RequestError {
    RequestError::Malformed { field: field.to_owned(), reason: reason.to_owned() }
}

fn neither() -> RequestError {
    malformed("tool", "name a tool, or a pool")
}

fn named<T: std::str::FromStr<Err = run::InvalidId>>(field: &str, name: &str) -> Result<T, RequestError> {
    name.parse().map_err(|error: run::InvalidId| malformed(field, &error.to_string()))
}

pub(super) fn paused_out(what: Paused, record: &Word) -> v1::Pause {
    let time = Some(timestamp(Timestamp(record.at_ms)));
    v1::Pause { what: Some(what), reason: record.reason.clone(), by: record.by.clone(), time }
}

fn worker_out((id, pool): (&WorkerId, &PoolId), worker: &Worker) -> v1::Worker {
    let Worker { slots, pulling, draining, release, sandbox, .. } = worker;
    v1::Worker {
        worker_id: id.to_string(),
        pool: pool.to_string(),
        slots: *slots,
        pulling: *pulling,
        draining: *draining,
        release: release.clone(),
        sandbox: sandbox.clone().map(|WorkerSandbox { level, workspace, network }| v1::WorkerSandbox {
            level,
            workspace,
            network,
        }),
    }
}
