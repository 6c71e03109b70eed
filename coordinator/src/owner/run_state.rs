//! Runs for commands and other readers in this process: open runs, and runs that have just ended.

use std::borrow::Cow;

use owner::Known;
use run::{RunId, Shard};
use tokio::sync::oneshot;

use super::OwnerTask;

/// A request that waits until the feed has delivered what is in the log already.
#[derive(Debug)]
pub(super) struct Expecting {
    through: u64,
    run: RunId,
    reply: oneshot::Sender<Option<Known>>,
}

impl OwnerTask {
    /// Returns a run once everything up to `through` is applied; `None` if it is not known here.
    pub(super) fn run_state(&mut self, run: RunId, through: u64, reply: oneshot::Sender<Option<Known>>) {
        let may_act = self.may_act(run.shard());
        let Some(shard) = self.owner.shard(run.shard()).filter(|_| may_act) else {
            // The requester may have gone, here and below.
            drop(reply.send(None));
            return;
        };
        if shard.applied() >= through {
            drop(reply.send(shard.recent_run(run).map(Cow::into_owned)));
        } else if let Some(slice) = self.slice_mut(run.shard()) {
            slice.expecting.push(Expecting { through, run, reply });
        }
    }

    /// Answers the requests that waited for further entries of a shard.
    pub(super) fn answer_expecting(&mut self, shard: Shard) {
        if self.slice(shard).is_none_or(|slice| slice.expecting.is_empty()) {
            return;
        }
        let may_act = self.may_act(shard);
        let Some(state) = self.owner.shard(shard) else { return };
        let Some(slice) = self.slices.get_mut(usize::from(shard.0)) else { return };
        let due = slice.expecting.extract_if(.., |expecting| expecting.through <= state.applied());
        for Expecting { run, reply, .. } in due {
            drop(reply.send(state.recent_run(run).filter(|_| may_act).map(Cow::into_owned)));
        }
    }
}
