//! Tells the history which runs are open.

use std::collections::HashSet;

use run::{RunId, Shard};
use tokio::sync::oneshot;

use super::{OwnerHandle, OwnerTask, Request, Stopped};

/// A shard as its owner has it.
#[derive(Debug)]
pub(crate) struct OpenAmong {
    /// The last entry of the shard that was applied.
    pub(crate) newest: u64,
    /// When the log was created, in nanoseconds since 1970.
    pub(crate) log: u64,
    /// The runs that are open, or that this release cannot read.
    pub(crate) open: HashSet<RunId>,
}

impl OwnerHandle {
    /// Which of these runs of a shard are open. `None` unless the shard is ours.
    pub(crate) async fn open_among(&self, shard: Shard, runs: Vec<RunId>) -> Result<Option<OpenAmong>, Stopped> {
        let (reply, answer) = oneshot::channel();
        self.0.send(Request::OpenAmong { shard, runs, reply }).await.map_err(|_| Stopped)?;
        answer.await.map_err(|_| Stopped)
    }
}

impl OwnerTask {
    pub(super) fn open_among(&self, shard: Shard, runs: &[RunId]) -> Option<OpenAmong> {
        let (state, slice) = (self.owner.shard(shard).filter(|_| self.may_act(shard))?, self.slice(shard)?);
        let is_open = |id: &RunId| state.is_open(*id) || state.is_unread(*id);
        let open = runs.iter().copied().filter(is_open).collect();
        Some(OpenAmong { newest: slice.newest, log: slice.snapshot.log, open })
    }
}
