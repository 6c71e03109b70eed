//! Calls that their caller approves with the request that submits them.

use std::collections::HashSet;
use std::sync::Arc;

use run::{CallId, CallState, CommandError, Decision, Run, RunId};

use super::{DECISIONS_MAX, Runs};
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
    /// if there are any. Calls about which another request decides meanwhile, or which end, are left out.
    pub(crate) async fn approve(
        &self,
        id: RunId,
        waiting: impl Iterator<Item = CallId>,
        approved: &Approved,
    ) -> Result<Option<Arc<Run>>, RequestError> {
        let mut calls: Vec<CallId> = waiting.filter(|call| approved.holds(call)).collect();
        let mut newest = None;
        for _ in 0..DECISIONS_MAX {
            if calls.is_empty() {
                return Ok(newest);
            }
            let approve = |call: &CallId| (call.clone(), Decision::Approved { arguments: None });
            match Box::pin(self.decide(id, calls.iter().map(approve).collect())).await {
                Ok(run) => return Ok(Some(run)),
                Err(RequestError::Rejected(
                    CommandError::AlreadyDecided { .. } | CommandError::NotAwaitingApproval { .. },
                )) => {}
                Err(refusal) => return Err(refusal.of_stored(id)),
            }
            let run = Box::pin(self.replay(id)).await.map_err(|refusal| refusal.of_stored(id))?.run;
            calls = self::waiting(&run).filter(|call| calls.contains(call)).collect();
            newest = Some(run);
        }
        Err(RequestError::Contended.of_stored(id))
    }

    /// The same for a run that an earlier request with the same id opened, if that request did not get so far: for the
    /// run's first calls, which are those of the request. Others may have been added since.
    pub(super) async fn approve_stored(
        &self,
        id: RunId,
        (approved, calls): (&Approved, usize),
    ) -> Result<(), RequestError> {
        if *approved == Approved::None {
            return Ok(());
        }
        let run = Box::pin(self.known(id)).await.map_err(|refusal| refusal.of_stored(id))?.run;
        let own: HashSet<&CallId> = run.calls().iter().take(calls).map(|call| &call.spec().id).collect();
        self.approve(id, waiting(&run).filter(|call| own.contains(call)), approved).await.map(drop)
    }
}

/// The calls that await approval.
pub(crate) fn waiting(run: &Run) -> impl Iterator<Item = CallId> {
    let calls = run.calls().iter().filter(|call| *call.state() == CallState::AwaitingApproval);
    calls.map(|call| call.spec().id.clone())
}
