//! Requests to erase runs. Each is an event of its run, and the owner of the run's shard performs it.

use proto::subject::{Subject, SubjectKind};
use run::{Command, RunId, TenantId};

use super::{DECISIONS_MAX, Runs};
use crate::admission::error::RequestError;
use crate::nats::journal::AppendError;
use owner::Known;

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

/// The reason as it is stored.
fn stored_reason(reason: &str) -> String {
    if reason.is_empty() { REASON.to_owned() } else { format!("{REASON}: {reason}") }
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
        if !self.journals.finds(id.shard()).await? {
            return Ok(EraseOutcome::NoRun);
        }
        let journal = self.journals.of(id);
        for _ in 0..DECISIONS_MAX {
            let (known, bytes) = journal.known_with_bytes(id).await?;
            let is_of_tenant = tenant.is_none_or(|tenant| known.run.tenant() == Some(tenant));
            if known.run.opened_at().is_none() {
                if let Some(past) = Box::pin(journal.past(id)).await? {
                    return self.erase_known_past(&past, tenant, reason).await;
                }
                return match (tenant, reason) {
                    (None, Some(_)) => self.erase_rest(id, known.last).await,
                    (Some(_), _) | (_, None) => Ok(EraseOutcome::NoRun),
                };
            }
            if !is_of_tenant {
                return Ok(EraseOutcome::NoRun);
            }
            let Some(reason) = reason else { return Ok(EraseOutcome::Matched) };
            let events = known.run.decide(Command::EraseRun { reason: stored_reason(reason), bytes }, ::nats::now())?;
            if events.is_empty() {
                return Ok(EraseOutcome::Matched);
            }
            match journal.append(id, &events, None, known.expected(&SubjectKind::Run)).await {
                Ok(_) => return Ok(EraseOutcome::Requested),
                // Another command for the run was stored first; decide again.
                Err(AppendError::Conflict) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(RequestError::Contended)
    }

    /// As [`Self::erase_run`], for a run of a tenant that the history lists. A run that the log has as well is left
    /// out, because it is found there.
    pub(crate) async fn erase_past_run(
        &self,
        id: RunId,
        tenant: Option<&TenantId>,
        reason: Option<&str>,
    ) -> Result<EraseOutcome, RequestError> {
        let journal = self.journals.of(id);
        if journal.known(id).await?.run.opened_at().is_some() {
            return Ok(EraseOutcome::NoRun);
        }
        match Box::pin(journal.past(id)).await? {
            Some(past) => self.erase_known_past(&past, tenant, reason).await,
            None => Ok(EraseOutcome::NoRun),
        }
    }

    /// Stores the request to erase a run that only the history has. The owner of its shard finds it in the log, and the
    /// run is erased in the same way as others.
    async fn erase_known_past(
        &self,
        past: &Known,
        tenant: Option<&TenantId>,
        reason: Option<&str>,
    ) -> Result<EraseOutcome, RequestError> {
        let run = &past.run;
        if tenant.is_some_and(|tenant| run.tenant() != Some(tenant)) {
            return Ok(EraseOutcome::NoRun);
        }
        let Some(reason) = reason else { return Ok(EraseOutcome::Matched) };
        // It takes no bytes of the log any more.
        let events = run.decide(Command::EraseRun { reason: stored_reason(reason), bytes: 0 }, ::nats::now())?;
        if events.is_empty() {
            return Ok(EraseOutcome::Matched);
        }
        let journal = self.journals.of(run.id());
        for _ in 0..DECISIONS_MAX {
            let subject = Subject { run: run.id(), place: SubjectKind::Run };
            let revision = journal.last_of_subject(&subject).await?;
            match journal.append(run.id(), &events, None, revision).await {
                Ok(_) => return Ok(EraseOutcome::Requested),
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
            self.journals.of(id).erase(id, last).await?;
        }
        Ok(if had_objects || last > 0 { EraseOutcome::Requested } else { EraseOutcome::NoRun })
    }
}
