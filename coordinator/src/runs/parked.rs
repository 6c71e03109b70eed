//! Commands on parked calls: redrive and drop.

use std::sync::Arc;

use run::{Call, CallId, Command, CommandError, Disposition, Fields, Priority, Rules, Run, RunId, Timestamp};

use super::approved::Approved;
use super::{NewRun, Runs};
use crate::admission::accept::{AskedApproval, RequestedCall, Unlisted};
use crate::admission::custom::CustomTools;
use crate::admission::error::RequestError;
use crate::auth::callers::Role;
use crate::requests::RequestKey;
use owner::Known;

impl Runs {
    /// Redrives a parked call as the only call of a new run. Repeating the command returns the same run.
    pub(crate) async fn redrive(&self, id: RunId, call_id: &CallId) -> Result<Arc<Run>, RequestError> {
        let work = Box::pin(self.redrive_call(id, call_id));
        self.judged(("RedriveCall", Role::Submit), (id, Some(call_id)), work).await
    }

    async fn redrive_call(&self, id: RunId, call_id: &CallId) -> Result<Arc<Run>, RequestError> {
        let find = |run: &Run| {
            let call = run.find(call_id).ok_or_else(|| CommandError::UnknownCall { call: call_id.clone() })?;
            if let Some(Disposition::Redriven { into }) = call.fate() {
                return Ok((call.clone(), Some(into)));
            }
            // Checks that the call is parked; which run it would become does not matter yet.
            run.decide(Command::Redrive { call: call_id.clone(), into: id }, ::nats::now())?;
            Ok((call.clone(), None))
        };
        let (Known { run, is_past, .. }, (call, redriven)) = self.found_in(self.replay(id).await?, find).await?;
        if let Some(into) = redriven {
            return self.known(into).await.map(|known| known.run);
        }
        // It could not be recorded, so the call would be redriven again and again.
        if is_past {
            return Err(RequestError::EventsExpired(id));
        }
        let new = redriven_run(&run, &call, self.caller.must(Role::Approve).is_ok());
        let redriven = self.create_under(Some(RequestKey::redrive(id, call_id)), new, None).await?;
        let into = redriven.id();
        let noted = self.command(id, |_| Command::Redrive { call: call_id.clone(), into }).await;
        if noted.as_ref().is_err_and(was_dropped) {
            self.cancel_run(into, "the call was dropped while it was redriven").await?;
        }
        // After any other error the new run goes on: repeating the command finds it and records it.
        noted.map(|_| redriven)
    }

    /// Drops a parked call.
    pub(crate) async fn drop_call(&self, id: RunId, call: &CallId) -> Result<Arc<Run>, RequestError> {
        let work = self.command(id, |_| Command::Drop { call: call.clone() });
        self.judged(("DropCall", Role::Submit), (id, Some(call)), work).await
    }
}

/// The run of a parked call that is executed again.
///
/// `may_waive`: its caller may waive an approval that the deployment demands.
fn redriven_run(run: &Run, call: &Call, may_waive: bool) -> NewRun {
    let spec = call.spec();
    let waives = may_waive && spec.approval.is_none();
    let since = |deadline: Timestamp| deadline.since(call.begins());
    let asked = RequestedCall {
        id: Some(spec.id.clone()),
        tool: spec.tool.clone(),
        arguments: spec.arguments.clone(),
        metadata: spec.metadata.clone(),
        not_before: None,
        timeout: None,
        queue_timeout: spec.queue_deadline.map(since),
        without_worker: spec.without_worker,
        concurrency: Some(spec.concurrency),
        approval: spec.approval.map(|approval| AskedApproval { timeout: None, default: approval.default }),
        context: spec.context.clone(),
        // The conversation is among the context or the files.
        files: spec.files.clone(),
        is_clients: false,
        must_stream: false,
        // The run into which it is redriven has none of its own.
        priority: Some(run.priority_of(call)).filter(|priority| *priority != Priority::default()),
        conversation: None,
        refusal: None,
        answer: None,
        // Its tool was listed, or a resolver named it, when it was accepted.
        unlisted: Some(Unlisted::Alias),
    };
    NewRun {
        calls: vec![asked],
        files: Vec::new(),
        keep_open: false,
        timeout: Some(since(spec.deadline)),
        fail_fast: false,
        client_only: false,
        custom: CustomTools::new(),
        tenant: run.tenant().cloned(),
        tools: run.tools().to_vec(),
        // A call that awaited approval awaits it again. One that did not does so only if its tool demands it now, or
        // if nobody waives what the deployment demands.
        rules: Rules { confirm: waives.then_some(false), ..Rules::default() },
        context: Fields::default(),
        store: run.erasure().is_none(),
        approved: Approved::None,
        request_id: None,
        parent: None,
        redrives: true,
    }
}

/// Whether a call was dropped, or redriven into another run, before it was recorded as redriven into this one.
fn was_dropped(refusal: &RequestError) -> bool {
    matches!(refusal, RequestError::Rejected(CommandError::NotParkedAnyMore { .. }))
}

#[cfg(test)]
mod tests {
    use run::{Approval, CallSpec, DefaultDecision, Effects, Entry, Opening, Policy, Route};

    use super::*;
    use crate::runs::digest::digest;

    #[test]
    fn a_redrive_waives_no_approval_that_its_caller_may_not_waive_and_is_one_request_for_every_caller() {
        let id: RunId = "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071".parse().expect("a run id");
        let deadline = id.created_at().after(std::time::Duration::from_secs(60));
        let (call, tool) = ("c".parse().expect("a call id"), "t".parse().expect("a name"));
        let route = Route::Pool {
            pool: "main".parse().expect("a pool"),
            version: None,
            policy: Policy::of(Effects::default()),
        };
        let plain = CallSpec::new(call, tool, "{}", route, deadline);
        let approval = Some(Approval { deadline, default: DefaultDecision::Reject });
        for (spec, waived) in [(plain.clone(), Some(false)), (CallSpec { approval, ..plain }, None)] {
            let opening = Opening { calls: vec![Arc::new(spec)], deadline, ..Opening::default() };
            let (mut run, at) = (Run::new(id), id.created_at());
            let events = Run::open(opening, at).expect("it is valid");
            run.apply(&Entry { sequence: 1, at, not_after: None, hooked: false, events }, &mut Vec::new());
            let redriven = |may_waive| redriven_run(&run, &run.calls()[0], may_waive);
            assert_eq!((redriven(true).rules.confirm, redriven(false).rules.confirm), (waived, None));
            assert_eq!(digest(&redriven(true)), digest(&redriven(false)));
        }
    }

    #[test]
    fn a_redriven_call_is_cancelled_only_if_it_was_dropped_and_not_for_an_error_that_passes() {
        let run: RunId = "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071".parse().expect("a run id");
        let call: CallId = "c".parse().expect("a call id");
        assert!(was_dropped(&CommandError::NotParkedAnyMore { call, fate: "dropped".to_owned() }.into()));
        let reason = || "no answer".to_owned();
        for passing in [
            RequestError::BrokerUnavailable(reason()),
            RequestError::Unconfirmed { run, reason: reason() },
            RequestError::LogFull(None),
            RequestError::Contended,
            RequestError::ShuttingDown,
        ] {
            assert!(!was_dropped(&passing), "{passing:?}");
        }
    }
}
