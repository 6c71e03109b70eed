//! Adding calls to an open run.

use std::sync::Arc;

use run::{CallId, Command, Run, RunId};

use super::Runs;
use super::approved::{self, Approved};
use crate::admission::accept::{self, RequestedCall};
use crate::admission::custom::CustomTools;
use crate::admission::error::RequestError;
use crate::auth::callers::{Caller, Role};
use crate::offload::Permit;

/// Bytes of the arguments of a call that is added to a run and checked on the serving thread.
const QUICK_ARGUMENTS_MAX: usize = 4 * 1024;

impl Runs {
    pub(crate) async fn append_calls(
        &self,
        id: RunId,
        calls: &[RequestedCall],
        custom: &CustomTools,
        approved: &Approved,
    ) -> Result<Arc<Run>, RequestError> {
        let work = async {
            self.may_approve(approved)?;
            self.check_room_of(id.shard())?;
            let mut calls = calls.to_vec();
            let (asks, converses) = (self.asks(), calls.iter().any(|call| call.conversation.is_some()));
            let (mut stored, mut admitted) = (None, None);
            if asks || converses || !matches!(self.caller, Caller::Anyone) {
                let run = self.known(id).await?.run;
                self.caller.may_add_to(&run)?;
                // A run that takes no calls refuses these below.
                if run.is_open() {
                    self.quotas.admit(id, run.tenant(), calls.iter().map(|call| &*call.arguments))?;
                    admitted = run.tenant().cloned();
                }
                if asks || converses {
                    let registry = Arc::clone(&self.registry.borrow());
                    let scope = self.scope_in(&run, custom, &registry);
                    scope.offer.rename(&mut calls, self.form);
                    if asks {
                        Box::pin(self.resolve(&mut calls, scope.offer)).await;
                        Box::pin(self.ask(&mut calls, &scope, id)).await;
                    }
                    if run.is_open() {
                        stored = Box::pin(self.converse_in(id, &mut calls, &scope)).await?;
                    }
                }
            }
            let is_quick = calls.iter().all(|call| match custom.get(&call.tool) {
                Some(tool) => tool.is_quick(&call.arguments),
                // The run's tenant, and so the tool, need not be known yet.
                None => call.arguments.len() <= QUICK_ARGUMENTS_MAX,
            });
            let permit = if is_quick { None } else { Some(Permit::acquire().await) };
            let append = |run: &Run| {
                let registry = Arc::clone(&self.registry.borrow());
                let scope = self.scope_in(run, custom, &registry);
                let mut calls = calls.clone();
                scope.offer.rename(&mut calls, self.form);
                let accept = || accept::accept(calls, &scope);
                Command::AppendCalls {
                    calls: match &permit {
                        Some(permit) => permit.run(accept),
                        None => accept(),
                    },
                }
            };
            let run = match self.command(id, append).await {
                Ok(run) => run,
                Err(error) => {
                    if matches!(error, RequestError::Rejected(_)) {
                        self.quotas.refused(id, admitted.as_ref(), calls.len());
                        Box::pin(self.remove_conversation(stored)).await;
                    }
                    return Err(error);
                }
            };
            let is_ours = |id: &CallId| calls.iter().any(|call| call.id.as_ref() == Some(id));
            let approved = self.approve(id, approved::waiting(&run).filter(is_ours), approved).await?;
            Ok(approved.unwrap_or(run))
        };
        self.judged(("AppendCalls", Role::Submit), (id, None), work).await
    }
}
