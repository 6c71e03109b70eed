//! Carries runs that stay open for long: what the log would have to keep for them is stored beside it.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use owner::CarriedTo;
use owner::retention::SETTLED_AFTER;
use run::{RunId, Shard};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::{OwnerTask, claim};
use crate::metrics::COUNTS;
use crate::nats::journal::{CarryError, Fence, Journal, Order, ReadError};
use crate::nats::setup::RETENTION;
use crate::shards::every;

/// How much longer than until its deadline what is carried of an open run is kept: the next owner may come late.
const KEPT_AFTER_DEADLINE: Duration = Duration::from_secs(2 * RETENTION.as_secs());
/// How long a carried run can be read after its end, if it has left the log. With a history, it may have to wait for
/// that.
const KEPT_AFTER_END: Duration = Duration::from_secs(3600);
const KEPT_FOR_HISTORY: Duration = RETENTION;
/// The pause before a fence is written again that the broker did not confirm.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a run is left alone that could not be carried.
const LEFT_ALONE: Duration = Duration::from_secs(30);
/// So many runs of a shard that have ended, or more, are looked up together: most were never carried, and while owners
/// or the broker fail, more of them end than could be looked up one after the other.
const LOOK_MIN: usize = 2;
/// Assumed, not measured: listing so many carried runs costs the broker as much as looking up one run.
const LISTED_FOR_ONE: usize = 32;

/// The runs that are being carried: one of each shard, because the broker takes one message at a time that expects the
/// shard's fence.
#[derive(Debug, Default)]
pub(super) struct Carrying {
    by_shard: HashMap<Shard, RunId>,
    pub(super) done: JoinSet<(RunId, Carried)>,
    waiting: HashMap<Shard, VecDeque<RunId>>,
    failed: HashMap<RunId, Instant>,
    /// Shards whose runs that have ended are being looked up.
    looking: HashSet<Shard>,
    pub(super) looks: JoinSet<Looked>,
    /// How many runs of a shard were carried when they were listed last.
    listed: HashMap<Shard, usize>,
}

/// Which of the runs that have ended in a shard are carried.
#[derive(Debug)]
pub(super) struct Looked {
    shard: Shard,
    ended: Vec<RunId>,
    carried: Result<HashSet<RunId>, ReadError>,
}

/// The result of carrying a run.
#[derive(Debug)]
pub(super) enum Carried {
    /// It was open.
    Open(CarriedTo),
    /// It has ended.
    Ended,
    /// It has ended, and is to be erased first.
    Later,
    /// Nothing of it is stored any more that was not confirmed.
    Failed(CarryError, Fence),
}

impl Carrying {
    /// Whether a part of the run may be stored at any moment.
    pub(super) fn holds(&self, run: RunId) -> bool {
        self.by_shard.get(&run.shard()) == Some(&run)
    }
}

impl OwnerTask {
    /// Begins to carry runs for which the log keeps entries that would leave it otherwise.
    pub(super) fn carry_due(&mut self) {
        // What is carried already goes on and is completed.
        let all_carry = self.io.owned.borrow().all_carry();
        let now = ::nats::now();
        self.carrying.failed.retain(|_, since| since.elapsed() < LEFT_ALONE);
        for shard in every().filter(|shard| self.may_act(*shard)).collect::<Vec<_>>() {
            let Some(state) = self.owner.shard(shard) else { continue };
            let before = self.io.journals.of_shard(shard).leaves_before();
            let Carrying { by_shard, waiting, failed, looking, looks, listed, .. } = &mut self.carrying;
            // A part of the run that is being carried may be stored after the answer.
            let is_carried_now = |run: &RunId| by_shard.get(&shard) == Some(run);
            let ended = state.half_carried().filter(|run| !failed.contains_key(run) && !is_carried_now(run));
            let ended: Vec<RunId> = ended.collect();
            let listed = listed.get(&shard).copied().unwrap_or(0);
            let is_looked_up = ended.len() >= LOOK_MIN.max(listed / LISTED_FOR_ONE);
            if is_looked_up && looking.insert(shard) {
                let (journal, ended) = (self.io.journals.of_shard(shard), ended.clone());
                looks.spawn(async move {
                    let carried = journal.carried_runs(shard).await.map(HashSet::from_iter);
                    Looked { shard, ended, carried }
                });
            }
            let waiting = waiting.entry(shard).or_default();
            if waiting.is_empty() {
                if !is_looked_up {
                    waiting.extend(ended);
                }
                if before > 0 && all_carry {
                    waiting.extend(state.to_carry(before, now));
                }
                waiting.retain(|run| !failed.contains_key(run));
            }
            self.carry_next(shard);
        }
    }

    /// What was never carried is done, and the rest is carried whole.
    pub(super) fn looked(&mut self, looked: Looked) {
        let Looked { shard, ended, carried } = looked;
        self.carrying.looking.remove(&shard);
        let carried = match carried {
            Ok(carried) => carried,
            Err(error) => return tracing::debug!(%shard, %error, "looking up what is carried failed, trying again"),
        };
        self.carrying.listed.insert(shard, carried.len());
        // The oldest comes first: the log keeps everything since it began.
        for run in ended.into_iter().rev() {
            if !carried.contains(&run) {
                self.owner.handle_carried_whole(run);
                continue;
            }
            let waiting = self.carrying.waiting.entry(shard).or_default();
            if !waiting.contains(&run) {
                waiting.push_front(run);
            }
        }
        self.carry_next(shard);
    }

    fn carry_next(&mut self, shard: Shard) {
        let Some(fence) = self.slice(shard).map(|slice| slice.fence) else { return };
        if !self.may_act(shard) || claim(&self.owner, shard) != Some(fence.claim) {
            self.carrying.waiting.remove(&shard);
            return;
        }
        if self.carrying.by_shard.contains_key(&shard) {
            return;
        }
        let Some(run) = self.carrying.waiting.get_mut(&shard).and_then(VecDeque::pop_front) else { return };
        let (Some(slice), Some(state)) = (self.slice(shard), self.owner.shard(shard)) else { return };
        let now = ::nats::now();
        let known = state.run(run);
        let (deadline, carried) = known.map_or((None, 0), |known| (Some(known.run.deadline()), known.carried));
        let (last, is_owed) = (state.half_carried_last(run).unwrap_or(0), slice.owed.holds(run));
        let after_end = if self.io.history.is_some() { KEPT_FOR_HISTORY } else { KEPT_AFTER_END };
        let expires = deadline.map_or(now.after(after_end), |deadline| deadline.after(KEPT_AFTER_DEADLINE));
        let (journal, order) = (self.io.journals.of_shard(shard), Order { run, carried, fence, expires });
        self.carrying.by_shard.insert(shard, run);
        self.carrying.done.spawn(async move {
            let carried = match deadline {
                Some(_) => journal.carry(order, now.before(SETTLED_AFTER)).await.map(Carried::Open),
                // What is carried of it is erased with it.
                None if is_owed => journal
                    .carried_to(run)
                    .await
                    .map_err(CarryError::from)
                    .map(|through| if through == 0 { Carried::Ended } else { Carried::Later }),
                None => journal.carry_ended(order, last).await.map(|()| Carried::Ended),
            };
            let carried = match carried {
                Ok(carried) => carried,
                Err(error) => {
                    let fence = fence_after(&journal, order, &error).await;
                    Carried::Failed(error, fence)
                }
            };
            (run, carried)
        });
    }

    pub(super) fn carried(&mut self, (run, carried): (RunId, Carried)) {
        let shard = run.shard();
        self.carrying.by_shard.remove(&shard);
        match carried {
            Carried::Open(to) => {
                COUNTS.runs_carried.add(1);
                self.owner.handle_carried(run, to, ::nats::now());
            }
            Carried::Ended => self.owner.handle_carried_whole(run),
            Carried::Later => drop(self.carrying.failed.insert(run, Instant::now())),
            Carried::Failed(error, fence) => {
                tracing::warn!(run.id = %run, %error, "carrying a run that is open for long failed, trying again");
                self.carrying.failed.insert(run, Instant::now());
                if let Some(slice) = self.slice_mut(shard).filter(|slice| slice.fence.claim == fence.claim) {
                    slice.fence = fence;
                }
            }
        }
        self.carry_next(shard);
    }
}

/// The fence after a failure: another one if a part was sent that may be stored later.
async fn fence_after(journal: &Journal, order: Order, error: &CarryError) -> Fence {
    let is_again = match error {
        CarryError::Unconfirmed(_) => true,
        // It may not have been written when the shard was taken over.
        CarryError::NotStored(_) if order.fence == Fence::unwritten(order.fence.claim) => false,
        CarryError::Full | CarryError::NotStored(_) => return order.fence,
    };
    loop {
        let (shard, claim) = (order.run.shard(), order.fence.claim);
        let fence = if is_again { journal.fence_again(shard, claim).await } else { journal.fence(shard, claim).await };
        match fence {
            Ok(fence) => return fence,
            Err(error) => tracing::debug!(run.id = %order.run, %error, "writing the fence of a shard failed"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}
