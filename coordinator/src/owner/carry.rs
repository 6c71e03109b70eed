//! Carries runs that stay open for long: what the log would have to keep for them is stored beside it.

use std::collections::HashSet;
use std::time::Duration;

use owner::retention::SETTLED_AFTER;
use run::RunId;
use tokio::task::JoinSet;

use super::{OwnerTask, claim};
use crate::metrics::COUNTS;
use crate::nats::journal::{Fence, Journal, Order, ReadError};
use crate::nats::setup::RETENTION;
use crate::shards::every;

/// The most runs that are carried at the same time: each takes some five requests.
const AT_ONCE: usize = 32;
/// How much longer than until its deadline what is carried of an open run is kept: the next owner may come late, and its
/// end can be read for a while.
const KEPT_AFTER_DEADLINE: Duration = Duration::from_secs(2 * RETENTION.as_secs());
/// The pause before the fence is written again.
const PAUSE: Duration = Duration::from_secs(1);

/// The runs that are being carried.
#[derive(Debug, Default)]
pub(super) struct Carrying {
    runs: HashSet<RunId>,
    pub(super) done: JoinSet<(RunId, Carried)>,
    /// The rest of the runs that are to be carried, in reverse order.
    waiting: Vec<RunId>,
}

/// The result of carrying a run.
#[derive(Debug)]
pub(super) enum Carried {
    /// It was open; the last entry that is carried.
    Open(u64),
    /// It has ended.
    Ended,
    /// Nothing of it is stored any more that was not confirmed, because the fence is another one.
    Failed(ReadError, Fence),
}

impl Carrying {
    /// Whether a part of the run may be stored at any moment.
    pub(super) fn holds(&self, run: RunId) -> bool {
        self.runs.contains(&run)
    }
}

impl OwnerTask {
    /// Begins to carry runs for which the log keeps entries that would leave it otherwise.
    pub(super) fn carry_due(&mut self) {
        let before = *self.io.leaves_before.borrow();
        if self.carrying.waiting.is_empty() {
            for shard in every().filter(|shard| self.may_act(*shard)).collect::<Vec<_>>() {
                let Some(state) = self.owner.shard(shard) else { continue };
                self.carrying.waiting.extend(state.half_carried());
                self.carrying.waiting.extend(state.to_carry(before));
            }
            self.carrying.waiting.reverse();
        }
        self.carry_next();
    }

    fn carry_next(&mut self) {
        while self.carrying.done.len() < AT_ONCE
            && let Some(run) = self.carrying.waiting.pop()
        {
            let shard = run.shard();
            // What is to be erased stays in the log until then.
            let Some(slice) = self.slice(shard).filter(|slice| !slice.owed.holds(run)) else { continue };
            let fence = slice.fence;
            let is_ours = self.may_act(shard) && claim(&self.owner, shard) == Some(fence.claim);
            if !is_ours || !self.carrying.runs.insert(run) {
                continue;
            }
            let now = ::nats::now();
            let deadline = self.owner.run(run).map(|known| known.run.deadline());
            let expires = deadline.map_or(now.after(RETENTION), |deadline| deadline.after(KEPT_AFTER_DEADLINE));
            let (journal, order) = (self.io.journal.clone(), Order { run, fence, expires });
            self.carrying.done.spawn(async move {
                let carried = match deadline {
                    Some(_) => journal.carry(order, now.before(SETTLED_AFTER)).await.map(Carried::Open),
                    None => journal.carry_ended(order).await.map(|()| Carried::Ended),
                };
                match carried {
                    Ok(carried) => (run, carried),
                    Err(error) => (run, Carried::Failed(error, fence_anew(&journal, order).await)),
                }
            });
        }
    }

    pub(super) fn carried(&mut self, (run, carried): (RunId, Carried)) {
        self.carrying.runs.remove(&run);
        match carried {
            Carried::Open(through) => {
                COUNTS.runs_carried.add(1);
                self.owner.handle_carried(run, through, ::nats::now());
            }
            Carried::Ended => self.owner.handle_carried_whole(run),
            Carried::Failed(error, fence) => {
                tracing::warn!(run.id = %run, %error, "carrying a run that is open for long failed, trying again");
                if let Some(slice) = self.slice_mut(run.shard()).filter(|slice| slice.fence.claim == fence.claim) {
                    slice.fence = fence;
                }
            }
        }
        self.carry_next();
    }
}

/// Takes care that no copy of a part is stored any more that was sent before.
async fn fence_anew(journal: &Journal, order: Order) -> Fence {
    loop {
        match journal.fence(order.run.shard(), order.fence.claim, true).await {
            Ok(fence) => return fence,
            Err(error) => tracing::debug!(run.id = %order.run, %error, "writing the fence of a shard failed"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
