//! Runs that calls made, by agents and by tools that call tools. Such a run is of no use once its call has ended, and
//! the worker that would cancel it may be gone. It is in the same shard as the run of its call, so their owner is the
//! same, and sees the end.

use run::Run;

use crate::shard::ShardState;

/// The reason of the cancellation.
pub(crate) const PARENT_ENDED: &str = "the call that made this run has ended";

/// Whether an open run was made by a call that has ended. Runs of other tenants count as ended, so that nobody learns
/// more of them. A call that is not in its run may have been added by an entry that this release cannot read.
pub(crate) fn is_orphan(shard: &ShardState, run: &Run) -> bool {
    let Some(parent) = run.parent().filter(|parent| parent.run.shard() == run.id().shard()) else { return false };
    // All open runs of the shard are known, unless a newer release opened them.
    if run.is_cancel_requested() || shard.is_unread(parent.run) {
        return false;
    }
    let above = shard.run(parent.run).filter(|above| above.run.tenant() == run.tenant());
    above.is_none_or(|above| above.run.find(&parent.call).is_some_and(|call| call.outcome().is_some()))
}
