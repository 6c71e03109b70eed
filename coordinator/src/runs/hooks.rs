//! Runs hooks on calls before they are accepted, and logs every decision on a call.

use std::sync::Arc;

use ::hooks::{Admitted, CallStage, HookPoint, HookRequest};
use futures::StreamExt as _;
use futures::stream;
use run::{CallError, CallSpec, Decider, Decision, ErrorKind, Event, HookAnswer, Route, Run, RunId, TenantId, limit};

use super::{NewRun, Runs};
use crate::admission::accept::{self, RequestedCall, Scope};
use crate::admission::error::RequestError;
use crate::admission::limits;
use crate::auth::audit;
use crate::offload;
use owner::Known;

/// The most calls of one request for which hooks run at once.
const CALLS_ASKED_MAX: usize = 16;

impl Runs {
    /// Runs hooks on the calls of a new run.
    pub(crate) async fn ask_about(&self, new: &mut NewRun, run: RunId) {
        let mut calls = std::mem::take(&mut new.calls);
        let registry = Arc::clone(&self.registry.borrow());
        let scope = self.scope_of(new, &registry);
        self.resolve(&mut calls, scope.offer).await;
        self.ask(&mut calls, &scope, run).await;
        new.calls = calls;
    }

    /// Runs hooks on each call that would be executed or given to its client. If a hook changes the arguments, the call
    /// is validated again, and rejected if they are invalid.
    pub(crate) async fn ask(&self, calls: &mut [RequestedCall], scope: &Scope<'_>, run: RunId) {
        // A request with too many calls is rejected as a whole.
        if !self.hooks.has(HookPoint::PreToolUse) || calls.len() > limit::CALLS_PER_RUN_MAX {
            return;
        }
        let is_quick = calls.iter().all(|call| scope.offer.is_quick(call));
        let questions = offload::run_unless(is_quick, || questions(calls, scope, run)).await;
        let answers = stream::iter(questions).map(|question| async {
            match question {
                Some(question) => self.hooks.before(question).await,
                None => Ok(Admitted::default()),
            }
        });
        let answers: Vec<_> = answers.buffered(CALLS_ASKED_MAX).collect().await;
        for (call, answer) in calls.iter_mut().zip(answers) {
            let Admitted { arguments, left_to_client, answer } = match answer {
                Ok(admitted) => admitted,
                Err(error) => {
                    call.refusal = Some(error);
                    continue;
                }
            };
            call.is_clients |= left_to_client;
            if left_to_client || answer.is_some() {
                // Nothing of it is to be delayed.
                call.not_before = None;
            }
            call.answer = answer;
            match arguments {
                None => {}
                // The call keeps its own arguments, or the whole request would be too large to be stored.
                Some(arguments) if arguments.len() > limit::ARGUMENTS_BYTES_MAX => {
                    call.refusal = Some(too_large(arguments.len()));
                }
                Some(arguments) => {
                    call.arguments = arguments;
                    let is_quick = scope.offer.is_quick(call);
                    call.refusal = offload::run_unless(is_quick, || misfit(call, scope)).await;
                }
            }
        }
    }

    /// Runs hooks on arguments with which a caller wants to replace a call's own. Returns the arguments to use.
    pub(crate) async fn ask_about_change(
        &self,
        run: &Run,
        spec: &CallSpec,
        arguments: bytes::Bytes,
    ) -> Result<bytes::Bytes, RequestError> {
        let alias_of = self.registry.borrow().alias_of(&spec.tool, run.tenant());
        let question = HookRequest {
            run: run.id(),
            call: Some(spec.id.clone()),
            tool: spec.tool.clone(),
            alias_of,
            tenant: run.tenant().cloned(),
            attempt: None,
            metadata: spec.metadata.clone(),
            arguments: arguments.clone(),
            happened: CallStage::Asked,
        };
        let denied = |error| RequestError::Denied { call: spec.id.clone(), error };
        match self.hooks.before(question).await.map_err(denied)? {
            // It is to be executed with the arguments that were approved, or not at all.
            Admitted { left_to_client: true, .. } => {
                let why = "a hook leaves a call with these arguments to the client, and the call was accepted to be \
                    executed: reject it, or approve it with other arguments";
                Err(denied(CallError::new(ErrorKind::Denied, why)))
            }
            Admitted { answer: Some(HookAnswer { hook, .. }), .. } => {
                let why = format!(
                    "hook {hook} answers a call with these arguments itself, and the call was accepted to be executed: \
                     reject it, or approve it with other arguments"
                );
                Err(denied(CallError::new(ErrorKind::Denied, why)))
            }
            Admitted { arguments: changed, .. } => Ok(changed.unwrap_or(arguments)),
        }
    }

    /// Logs the decisions once they are stored, and notifies hooks of calls that are not executed.
    pub(crate) fn note(&self, id: RunId, known: Option<&Run>, events: &[Event]) {
        for event in events {
            match event {
                Event::RunOpened(opened) => {
                    opened.calls.iter().for_each(|spec| self.note_accepted(id, opened.tenant.as_ref(), spec));
                }
                Event::CallsAppended { calls } => {
                    let tenant = known.and_then(Run::tenant);
                    calls.iter().for_each(|spec| self.note_accepted(id, tenant, spec));
                }
                Event::CallDecided { call, decision, by } => {
                    let Some((run, call)) = known.and_then(|run| Some((run, run.call(*call)?))) else { continue };
                    self.note_decided(run, call.spec(), decision, *by);
                }
                _ => {}
            }
        }
    }

    /// Notifies hooks of the calls of a repeated request, which are not executed once more: the first calls of its run.
    pub(super) async fn note_repeated(&self, calls: usize, id: RunId) {
        if !self.hook_notices.are_for_skipped() {
            return;
        }
        let Ok(Known { run, .. }) = self.known(id).await else { return };
        for call in run.calls().iter().take(calls) {
            self.hook_notices.repeated(id, run.tenant(), call.spec());
        }
    }

    /// The same, if the run was found when the calls were accepted already.
    pub(super) fn note_repeated_events(&self, events: &[Event], run: RunId) {
        for event in events {
            if let Event::RunOpened(opened) = event {
                opened.calls.iter().for_each(|spec| self.hook_notices.repeated(run, opened.tenant.as_ref(), spec));
            }
        }
    }

    fn note_accepted(&self, id: RunId, tenant: Option<&TenantId>, spec: &CallSpec) {
        let (decision, why) = match &spec.route {
            Route::Pool { .. } if spec.approval.is_some() => ("awaits_approval", None),
            Route::Pool { .. } => ("allowed", None),
            Route::Client => ("left_to_client", None),
            Route::Answered(_) => ("answered", None),
            Route::Refused(error) => ("refused", Some(error)),
        };
        audit::decided(id, tenant, spec, decision, why);
        if let Some(why) = why {
            self.hook_notices.skipped(id, tenant, spec, why);
        }
    }

    fn note_decided(&self, run: &Run, spec: &CallSpec, decision: &Decision, by: Decider) {
        let outcome = match (decision, by) {
            (_, Decider::Default) => return,
            (Decision::Approved { arguments: None }, Decider::Person) => "approved",
            (Decision::Approved { arguments: Some(_) }, Decider::Person) => "approved_with_changes",
            (Decision::Rejected { .. }, Decider::Person) => "rejected",
        };
        audit::decided(run.id(), run.tenant(), spec, outcome, None);
        if let Decision::Rejected { reason } = decision {
            let why = CallError::new(ErrorKind::Rejected, reason.clone());
            self.hook_notices.skipped(run.id(), run.tenant(), spec, &why);
        }
    }
}

/// The input of hooks for each call; `None` for a call that is rejected anyway.
fn questions(calls: &mut [RequestedCall], scope: &Scope<'_>, run: RunId) -> Vec<Option<HookRequest>> {
    let mut steps = accept::steps_for(calls);
    let placed = calls.iter().zip(scope.first..);
    let specs = placed.map(|(call, index)| {
        let fits = call.arguments.len() <= limit::ARGUMENTS_BYTES_MAX;
        fits.then(|| accept::accept_one(call.clone(), index, scope, &mut steps))
    });
    let mut specs: Vec<Option<CallSpec>> = specs.collect();
    limits::refuse_beyond(specs.iter_mut().flatten(), scope);
    calls.iter_mut().zip(specs).map(|(call, spec)| question(call, spec?, scope, run)).collect()
}

/// A call about which no hook is asked stays rejected, whatever changes before it is stored.
fn question(call: &mut RequestedCall, spec: CallSpec, scope: &Scope<'_>, run: RunId) -> Option<HookRequest> {
    if let Route::Refused(error) = spec.route {
        call.refusal = Some(error);
        return None;
    }
    let is_custom = call.unlisted.is_none() && scope.offer.custom.contains_key(&spec.tool);
    let entry = scope.offer.registry.catalog_of(scope.offer.tenant).find(&spec.tool).filter(|_| !is_custom);
    Some(HookRequest {
        run,
        call: call.id.clone(),
        alias_of: entry.and_then(|entry| entry.alias_of.clone()),
        tool: spec.tool,
        tenant: scope.offer.tenant.cloned(),
        attempt: None,
        metadata: spec.metadata,
        arguments: spec.arguments,
        happened: CallStage::Asked,
    })
}

fn too_large(size: usize) -> CallError {
    let max = limit::ARGUMENTS_BYTES_MAX;
    CallError::new(
        ErrorKind::HookFailed,
        format!("a hook changed the arguments to {size} bytes; the limit is {max} bytes"),
    )
}

/// Why a call is rejected whose arguments a hook changed.
fn misfit(call: &RequestedCall, scope: &Scope<'_>) -> Option<CallError> {
    let mut steps = accept::steps_for(std::slice::from_ref(call));
    match accept::accept_one(call.clone(), scope.first, scope, &mut steps).route {
        Route::Pool { .. } | Route::Client | Route::Answered(_) => None,
        Route::Refused(error) => {
            let message = format!("a hook changed the arguments: {}", error.message);
            Some(CallError { violations: error.violations, ..CallError::new(error.kind, message) })
        }
    }
}
