//! Decisions on calls that await approval. A caller who replaces a call's arguments needs the right to call its tool,
//! and the new arguments must fit the tool's schema.

use std::sync::Arc;

use ::hooks::HookPoint;
use bytes::Bytes;
use run::{CallId, CallSpec, Command, CommandError, Decision, Route, Run, RunId, TenantId};

use super::Runs;
use crate::admission::accept;
use crate::admission::error::RequestError;
use crate::auth::callers::Denied;
use crate::fleet::registry::{Entry, Registry};
use crate::offload;
use owner::Known;

fn changes(decision: &Decision) -> bool {
    matches!(decision, Decision::Approved { arguments: Some(_) })
}

impl Runs {
    pub(super) async fn decide_checked(
        &self,
        id: RunId,
        mut decisions: Vec<(CallId, Decision)>,
    ) -> Result<Arc<Run>, RequestError> {
        if decisions.iter().any(|(_, decision)| changes(decision)) {
            // New arguments of an unknown call could not be checked.
            let find = |run: &Run| {
                let unknown = decisions.iter().find(|(call, decision)| changes(decision) && run.find(call).is_none());
                unknown.map_or(Ok(()), |(call, _)| Err(CommandError::UnknownCall { call: call.clone() }.into()))
            };
            let (Known { run, .. }, ()) = self.found_in(self.known(id).await?, find).await?;
            let registry = Arc::clone(&self.registry.borrow());
            for (call, decision) in &mut decisions {
                let (Some(call), Decision::Approved { arguments: Some(arguments) }) = (run.find(call), decision) else {
                    continue;
                };
                self.may_change(call.spec(), (&registry, run.tenant()))?;
                *arguments = check_changed(call.spec(), arguments, (&registry, run.tenant())).await?;
                if self.hooks.has(HookPoint::PreToolUse) {
                    *arguments = Box::pin(self.ask_about_change(&run, call.spec(), arguments.clone())).await?;
                    *arguments = check_changed(call.spec(), arguments, (&registry, run.tenant())).await?;
                }
            }
        }
        self.command(id, |_| Command::Decide { decisions: decisions.clone() }).await
    }

    /// A caller who replaces a call's arguments decides what is executed, so they need the right to call its tool.
    fn may_change(
        &self,
        spec: &CallSpec,
        (registry, tenant): (&Registry, Option<&TenantId>),
    ) -> Result<(), RequestError> {
        let entry = registry.catalog_of(tenant).find(&spec.tool).map(|entry| match &spec.route {
            Route::Pool { pool, .. } => entry.of(pool),
            Route::Client | Route::Refused(_) | Route::Answered(_) => entry,
        });
        match entry {
            Some(entry) if !self.caller.may_call(entry) => Err(Denied::tool(&spec.tool).into()),
            Some(_) | None => Ok(()),
        }
    }
}

async fn check_changed(
    spec: &CallSpec,
    arguments: &Bytes,
    (registry, tenant): (&Registry, Option<&TenantId>),
) -> Result<Bytes, RequestError> {
    let mut versions = registry.catalog_of(tenant).find(&spec.tool).into_iter().flat_map(Entry::versions);
    let is_quick = versions.all(|entry| entry.hosted.is_quick(arguments));
    offload::run_unless(is_quick, || accept::check_changed(spec, arguments, (registry, tenant))).await
}
