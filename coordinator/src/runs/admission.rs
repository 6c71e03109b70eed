//! Who may have a request compiled and checked: role and quota are asked before anything of it costs more than reading it.

use run::{Event, RequestId, RunId, TenantId};

use super::{NewRun, Refusal, Runs};
use crate::accept::Offer;
use crate::callers::{Caller, Role};
use crate::requests::RequestKey;
use crate::{audit, offload};

impl Runs {
    /// Refuses a new run whose caller lacks the role, or whose tenant has as much as it may.
    pub(crate) async fn may_submit(
        &self,
        command: &'static str,
        (tenant, request): (Option<TenantId>, Option<&RequestId>),
        calls: usize,
    ) -> Result<(), Refusal> {
        let judged = async {
            self.caller.must(Role::Submit)?;
            let tenant = self.caller.makes_for(tenant)?;
            let Err(exceeded) = self.quotas.check(None, tenant.as_ref(), calls) else { return Ok(()) };
            // A request that was made before gets its run again, which takes nothing.
            let key = request.map(|id| RequestKey::of(tenant.as_ref(), id));
            match key {
                Some(key) if self.requests.find(&key).await?.taken.is_some() => Ok(()),
                Some(_) | None => Err(exceeded.into()),
            }
        };
        let judged = judged.await;
        if let Err(refusal) = &judged {
            audit::command(&self.caller, command, (None, None), None, Some(refusal));
        }
        judged
    }

    /// Refuses calls that are added to a run, as [`Self::may_submit`] does new runs.
    pub(crate) async fn may_append(&self, id: RunId, calls: usize) -> Result<(), Refusal> {
        let judged = async {
            self.caller.must(Role::Submit)?;
            if matches!(self.caller, Caller::Anyone) {
                return Ok(());
            }
            let run = self.known(id).await?.run;
            self.caller.may_add_to(&run)?;
            Ok(self.quotas.check(Some(id), run.tenant(), calls)?)
        };
        let judged = judged.await;
        if let Err(refusal) = &judged {
            audit::command(&self.caller, "AppendCalls", (Some(id), None), None, Some(refusal));
        }
        judged
    }

    /// As [`Self::decide_new`], offloaded if checking the arguments of its calls may take long.
    pub(super) async fn decide_new_unhurried(
        &self,
        new: NewRun,
        key: Option<RequestKey>,
    ) -> Result<Vec<Event>, Refusal> {
        let is_quick = {
            let registry = self.registry.borrow();
            let tenant = new.tenant.as_ref();
            let offer = Offer { custom: &new.custom, attached: &new.tools, registry: &registry, tenant };
            new.calls.iter().all(|call| offer.is_quick(call))
        };
        if is_quick {
            return self.decide_new(new, key);
        }
        Box::pin(offload::run_unless(false, || self.decide_new(new, key))).await
    }
}
