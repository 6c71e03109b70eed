//! Requests to erase runs. Each is an event of its run, and the owner of the run's shard performs it.

use proto::subject::SubjectKind;
use run::{Command, RunId, TenantId};

use super::{DECISIONS_MAX, Runs};
use crate::admission::error::RequestError;
use crate::nats::journal::AppendError;

/// The beginning of the reason with which the calls of an erased run are cancelled.
const REASON: &str = "erased by an operator";

/// Outcome of a request to erase a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EraseOutcome {
    /// There is no such run of the tenant, or nothing of it is left.
    NoRun,
    /// The run is in the log, and was only counted or is being erased already.
    Matched,
    /// The request is stored.
    Requested,
}

impl Runs {
    /// Stores the request to erase a run. `tenant`: the tenant that the run must belong to, if any. `reason`: `None` to
    /// only look for the run.
    pub(crate) async fn erase_run(
        &self,
        id: RunId,
        tenant: Option<&TenantId>,
        reason: Option<&str>,
    ) -> Result<EraseOutcome, RequestError> {
        for _ in 0..DECISIONS_MAX {
            let (known, bytes) = self.journal.known_with_bytes(id).await?;
            let is_of_tenant = tenant.is_none_or(|tenant| known.run.tenant() == Some(tenant));
            if known.run.opened_at().is_none() {
                return match (tenant, reason) {
                    (None, Some(_)) => self.erase_rest(id, known.last).await,
                    (Some(_), _) | (_, None) => Ok(EraseOutcome::NoRun),
                };
            }
            if !is_of_tenant {
                return Ok(EraseOutcome::NoRun);
            }
            let Some(reason) = reason else { return Ok(EraseOutcome::Matched) };
            let reason = if reason.is_empty() { REASON.to_owned() } else { format!("{REASON}: {reason}") };
            let events = known.run.decide(Command::EraseRun { reason, bytes }, ::nats::now())?;
            if events.is_empty() {
                return Ok(EraseOutcome::Matched);
            }
            match self.journal.append(id, &events, None, known.expected(&SubjectKind::Run)).await {
                Ok(_) => return Ok(EraseOutcome::Requested),
                // Another command for the run was stored first; decide again.
                Err(AppendError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(RequestError::Contended)
    }

    /// Erases what is left of a run whose beginning has left the log: entries up to `last`, and objects, which are kept
    /// for longer. Its tenant is not known any more.
    async fn erase_rest(&self, id: RunId, last: u64) -> Result<EraseOutcome, RequestError> {
        let removed = self.objects.remove_run(id).await;
        let had_objects = removed.map_err(|error| RequestError::ObjectsUnavailable(error.to_string()))?;
        if last > 0 {
            self.journal.erase(id, last).await?;
        }
        Ok(if had_objects || last > 0 { EraseOutcome::Requested } else { EraseOutcome::NoRun })
    }
}
