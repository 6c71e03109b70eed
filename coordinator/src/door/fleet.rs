//! `toolyard.v1.FleetService`: what an operator does with the fleet.

use std::sync::Arc;

use proto::convert::api::timestamp;
use proto::v1;
use proto::v1::pause::What as Paused;
use proto::v1::pause_request::What as ToPause;
use proto::v1::resume_request::What as ToResume;
use run::Timestamp;

use super::{Door, Fault, reason};
use crate::audit;
use crate::callers::Role;
use crate::paused::{Pausable, Word};
use crate::runs::Refusal;

impl Door {
    pub(crate) async fn pause(&self, request: v1::PauseRequest) -> Result<v1::PauseResponse, Fault> {
        self.runs.caller.must(Role::Admin).map_err(Refusal::from)?;
        let what = match request.what {
            Some(ToPause::Tool(tool)) => self.tool_to_pause(&tool)?,
            Some(ToPause::Pool(pool)) => self.pool_to_pause(&pool)?,
            None => return Err(neither().into()),
        };
        let by = self.runs.caller.name().map(ToString::to_string).unwrap_or_default();
        let word = Word { by, reason: reason(&request.reason)?.to_owned(), at_ms: proto::now().0 };
        let done = self.runs.pauses.pause(&what, &word).await.map_err(Refusal::from);
        audit::paused(&self.runs.caller, "Pause", &what, done.as_ref().err());
        done?;
        Ok(v1::PauseResponse {})
    }

    pub(crate) async fn resume(&self, request: v1::ResumeRequest) -> Result<v1::ResumeResponse, Fault> {
        self.runs.caller.must(Role::Admin).map_err(Refusal::from)?;
        let what = match request.what {
            Some(ToResume::Tool(tool)) => self.tool_to_resume(&tool)?,
            Some(ToResume::Pool(pool)) => Pausable::Pool(named("pool", &pool)?),
            None => return Err(neither().into()),
        };
        let done = self.runs.pauses.resume(&what).await.map_err(Refusal::from);
        audit::paused(&self.runs.caller, "Resume", &what, done.as_ref().err());
        done?;
        Ok(v1::ResumeResponse {})
    }

    pub(crate) fn list_pauses(&self, _: v1::ListPausesRequest) -> Result<v1::ListPausesResponse, Fault> {
        self.runs.caller.must(Role::Admin).map_err(Refusal::from)?;
        let paused = Arc::clone(&self.runs.pauses.current.borrow());
        let tools = paused.tools().map(|(tool, word)| paused_out(Paused::Tool(tool.to_string()), word));
        let pools = paused.pools().map(|(pool, word)| paused_out(Paused::Pool(pool.to_string()), word));
        Ok(v1::ListPausesResponse { pauses: tools.chain(pools).collect() })
    }

    /// A name that nobody advertises would pause nothing, and nobody would notice.
    fn tool_to_pause(&self, name: &str) -> Result<Pausable, Refusal> {
        let tool = named("tool", name)?;
        let registry = self.runs.registry.borrow();
        let real = registry.catalog.find(&tool).map(|entry| entry.hosted.manifest.name.clone());
        real.map(Pausable::Tool).ok_or(Refusal::ToolNotFound(tool))
    }

    fn pool_to_pause(&self, name: &str) -> Result<Pausable, Refusal> {
        let pool = named("pool", name)?;
        let is_known = self.runs.registry.borrow().pools().contains(&pool);
        if is_known { Ok(Pausable::Pool(pool)) } else { Err(Refusal::PoolNotFound(pool)) }
    }

    /// What is paused under this name, though its workers may have gone since.
    fn tool_to_resume(&self, name: &str) -> Result<Pausable, Refusal> {
        let tool = named("tool", name)?;
        if self.runs.pauses.current.borrow().holds(&tool) {
            return Ok(Pausable::Tool(tool));
        }
        Ok(Pausable::Tool(self.runs.registry.borrow().real_name(&tool).clone()))
    }
}

fn malformed(field: &str, reason: &str) -> Refusal {
    Refusal::Malformed { field: field.to_owned(), reason: reason.to_owned() }
}

fn neither() -> Refusal {
    malformed("tool", "name a tool, or a pool")
}

fn named<T: std::str::FromStr<Err = run::InvalidId>>(field: &str, name: &str) -> Result<T, Refusal> {
    name.parse().map_err(|error: run::InvalidId| malformed(field, &error.to_string()))
}

fn paused_out(what: Paused, word: &Word) -> v1::Pause {
    let time = Some(timestamp(Timestamp(word.at_ms)));
    v1::Pause { what: Some(what), reason: word.reason.clone(), by: word.by.clone(), time }
}
