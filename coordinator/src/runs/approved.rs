//! Calls that their caller approves with the request that submits them.

use std::sync::Arc;

use run::{CallId, CallState, Decision, Run, RunId};

use super::Runs;
use crate::admission::error::RequestError;
use crate::auth::callers::Role;

/// The calls of a request that its caller approves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Approved {
    #[default]
    None,
    All,
    These(Vec<CallId>),
}

impl Approved {
    fn holds(&self, call: &CallId) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::These(calls) => calls.contains(call),
        }
    }
}

impl Runs {
    /// Refuses approvals of a caller without the role, before anything is stored.
    pub(super) fn may_approve(&self, approved: &Approved) -> Result<(), RequestError> {
        if *approved == Approved::None { Ok(()) } else { Ok(self.caller.must(Role::Approve)?) }
    }

    /// Approves those of a run's calls that await approval and that the request approves. Returns the run after that,
    /// if there are any.
    pub(super) async fn approve(
        &self,
        id: RunId,
        waiting: impl Iterator<Item = CallId>,
        approved: &Approved,
    ) -> Result<Option<Arc<Run>>, RequestError> {
        let approve = |call| (call, Decision::Approved { arguments: None });
        let decisions: Vec<(CallId, Decision)> = waiting.filter(|call| approved.holds(call)).map(approve).collect();
        if decisions.is_empty() {
            return Ok(None);
        }
        Box::pin(self.decide(id, decisions)).await.map(Some).map_err(|refusal| refusal.of_stored(id))
    }

    /// The same for a run that an earlier request with the same id opened, if that request did not get so far.
    pub(super) async fn approve_stored(&self, id: RunId, approved: &Approved) -> Result<(), RequestError> {
        if *approved == Approved::None {
            return Ok(());
        }
        let run = Box::pin(self.known(id)).await.map_err(|refusal| refusal.of_stored(id))?.run;
        self.approve(id, waiting(&run), approved).await.map(drop)
    }
}

/// The calls that await approval.
pub(super) fn waiting(run: &Run) -> impl Iterator<Item = CallId> {
    let calls = run.calls().iter().filter(|call| *call.state() == CallState::AwaitingApproval);
    calls.map(|call| call.spec().id.clone())
}
