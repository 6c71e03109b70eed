//! Checks role and quota before a request is compiled and checked, so that a rejected request costs only reading it.

use run::{Event, RequestId, RunId, TenantId};

use super::{NewRun, Runs};
use crate::admission::accept::Offer;
use crate::admission::error::RequestError;
use crate::auth::audit;
use crate::auth::callers::{Caller, Role};
use crate::offload;
use crate::requests::RequestKey;

impl Runs {
    /// Refuses a new run if the caller lacks the role or the tenant has reached its quota.
    pub(crate) async fn may_submit(
        &self,
        command: &'static str,
        (tenant, request): (Option<TenantId>, Option<&RequestId>),
        calls: usize,
    ) -> Result<(), RequestError> {
        let judged = async {
            self.caller.must(Role::Submit)?;
            let tenant = self.caller.makes_for(tenant)?;
            let Err(exceeded) = self.quotas.check(None, tenant.as_ref(), calls) else { return Ok(()) };
            // A repeated request gets its earlier run, which takes nothing from the quota.
            let key = request.map(|id| RequestKey::of(tenant.as_ref(), id));
            match key {
                Some(key) if self.requests.find(&key).await?.taken.is_some() => Ok(()),
                Some(_) | None => Err(exceeded.into()),
            }
        };
        let judged: Result<(), RequestError> = judged.await;
        if let Err(refusal) = &judged {
            audit::command(&self.caller, audit::Command::new(command), Some(refusal.reason()));
        }
        judged
    }

    /// Refuses calls that are added to a run, as [`Self::may_submit`] does new runs.
    pub(crate) async fn may_append(&self, id: RunId, calls: usize) -> Result<(), RequestError> {
        let judged = async {
            self.caller.must(Role::Submit)?;
            if matches!(self.caller, Caller::Anyone) {
                return Ok(());
            }
            let run = self.known(id).await?.run;
            self.caller.may_add_to(&run)?;
            Ok(self.quotas.check(Some(id), run.tenant(), calls)?)
        };
        let judged: Result<(), RequestError> = judged.await;
        if let Err(refusal) = &judged {
            let command = audit::Command { run: Some(id), ..audit::Command::new("AppendCalls") };
            audit::command(&self.caller, command, Some(refusal.reason()));
        }
        judged
    }

    /// As [`Self::decide_new`], offloaded if checking the arguments of its calls may take long.
    pub(super) async fn decide_new_unhurried(
        &self,
        new: NewRun,
        key: Option<RequestKey>,
    ) -> Result<Vec<Event>, RequestError> {
        let is_quick = {
            let registry = self.registry.borrow();
            let tenant = new.tenant.as_ref();
            let (custom, attached, attached_only) = (&new.custom, &*new.tools, self.attached_only);
            let offer = Offer { custom, attached, attached_only, registry: &registry, tenant };
            new.calls.iter().all(|call| offer.is_quick(call))
        };
        if is_quick {
            return self.decide_new(new, key);
        }
        Box::pin(offload::run_unless(false, || self.decide_new(new, key))).await
    }
}
