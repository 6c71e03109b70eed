//! Runs of schedules: opened in the name of the schedule's creator, with the rights that this caller has now.

use std::sync::Arc;

use run::{CallerName, Run, RunId, TenantId};

use super::asking::{self, Asking};
use super::{NewRun, Runs};
use crate::admission::error::RequestError;
use crate::nats::journal::Opened;
use crate::requests::RequestKey;

impl Runs {
    /// The commands in the name of a stored caller, with its present rights.
    pub(crate) fn acting_for(&self, name: Option<&CallerName>, tenant: Option<&TenantId>) -> Self {
        let caller = self.callers.acting(name, tenant);
        Self { parts: Arc::clone(&self.parts), caller, about_to_open: None, form: None }
    }

    /// Checks a run that will be opened later, as if it were opened now. Hooks and quotas are not asked.
    pub(crate) async fn check_new(&self, new: NewRun) -> Result<(), RequestError> {
        let new = self.owned_by_caller(new)?;
        self.may_approve(&new.approved)?;
        self.decide_new_unhurried(new, None).await.map(drop)
    }

    /// Opens the run of a firing. Repeating it returns the same run.
    pub(crate) async fn fire(&self, key: RequestKey, new: NewRun) -> Result<Arc<Run>, RequestError> {
        let mut asking = Asking::new(self, "FireSchedule", asking::tools(&self.caller, &new.calls));
        let done = async {
            let new = self.owned_by_caller(new)?;
            self.create_under(Some(key), new, Some(&mut asking)).await
        };
        let done = done.await;
        asking.done(done.as_ref().ok().map(|run| run.id()), done.as_ref().err());
        done
    }

    /// The run that was opened under a key.
    pub(crate) async fn fired(&self, key: &RequestKey) -> Result<Option<RunId>, RequestError> {
        let Some(taken) = self.requests.newest(key).await?.taken else { return Ok(None) };
        let journal = self.journal_of(taken.run).await?;
        let was_opened = match journal.opened(taken.run).await? {
            Opened::Yes => true,
            Opened::TooLate => false,
            Opened::No => journal.may_have_left(taken.run).await?,
        };
        Ok(was_opened.then_some(taken.run))
    }

    /// Whether a run has ended. A run that is not known any more has.
    pub(crate) async fn has_ended(&self, id: RunId) -> Result<bool, RequestError> {
        match self.known(id).await {
            Ok(known) => Ok(known.run.status().is_final()),
            Err(RequestError::RunNotFound(_) | RequestError::EventsExpired(_)) => Ok(true),
            Err(error) => Err(error),
        }
    }
}
