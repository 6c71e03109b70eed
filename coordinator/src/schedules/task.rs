//! Watches the bucket of schedules, and fires those of the shards that this coordinator owns when they are due.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

use run::{Partition, Shard, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::firing::NotNow;
use super::record::seed;
use super::{Known, Schedules};
use crate::metrics::schedules as metrics;
use crate::nats::journal::ReadError;
use crate::nats::schedules::{Change, Changes};
use crate::runs::Runs;
use crate::shards::{Owned, ShardSet, every};
use crate::tasks::finished;

/// Schedules that fire at once.
const FIRING_MAX: usize = 64;
/// The pause before a firing is tried again, or the bucket is watched again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// The longest sleep: the broker's clock may have been corrected meanwhile.
const SLEEP_MAX: Duration = Duration::from_secs(5);

/// Fires schedules until it is stopped.
pub(crate) struct ScheduleTask {
    schedules: Schedules,
    runs: Runs,
    owned: watch::Receiver<Owned>,
    wakes: Wakes,
    firing: JoinSet<(String, Result<(), NotNow>)>,
    /// The schedules of `firing`.
    in_progress: HashSet<String>,
}

/// When something is to be done about which schedule.
#[derive(Debug, Default)]
struct Wakes {
    order: BTreeSet<(Timestamp, String)>,
    times: HashMap<String, Timestamp>,
}

impl Wakes {
    fn set(&mut self, id: &str, at: Option<Timestamp>) {
        if let Some((id, before)) = self.times.remove_entry(id) {
            self.order.remove(&(before, id));
        }
        if let Some(at) = at {
            self.times.insert(id.to_owned(), at);
            self.order.insert((at, id.to_owned()));
        }
    }

    fn first(&self) -> Option<Timestamp> {
        self.order.first().map(|(at, _)| *at)
    }

    fn pop_due(&mut self, now: Timestamp) -> Option<String> {
        let (_, id) = self.order.first().filter(|(at, _)| *at <= now)?.clone();
        self.set(&id, None);
        Some(id)
    }
}

/// The shard whose owner fires a schedule. It is one of the first partition, so that it stays the same.
fn shard_of(id: &str) -> Shard {
    Shard(u8::try_from(seed(id) % u64::from(Partition::SHARDS)).unwrap_or_default())
}

impl ScheduleTask {
    pub(crate) fn new(schedules: Schedules, runs: Runs, owned: watch::Receiver<Owned>) -> Self {
        let (wakes, firing, in_progress) = Default::default();
        Self { schedules, runs, owned, wakes, firing, in_progress }
    }

    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut changes: Option<Changes> = None;
        let mut shards = ShardSet::default();
        loop {
            if changes.is_none() {
                changes = self.watch().await;
            }
            let pause = self.pause(changes.is_some());
            tokio::select! {
                // Firings that are dropped here are repeated by the next owner, under the same key.
                () = stop.cancelled() => return,
                change = next(&mut changes) => match change {
                    Some(change) => self.learn(change),
                    None => changes = None,
                },
                Ok(()) = self.owned.changed() => {
                    let now = claimed(*self.owned.borrow_and_update());
                    if now != shards {
                        shards = now;
                        self.look_at_all();
                    }
                }
                Some(ended) = self.firing.join_next() => self.ended(finished(ended)),
                () = tokio::time::sleep(pause) => self.fire_due(),
            }
        }
    }

    /// Begins to watch the bucket; its present content comes first.
    async fn watch(&self) -> Option<Changes> {
        let watch = async {
            let changes = self.schedules.store.watch().await?;
            let ids: HashSet<String> = self.schedules.store.ids().await?.into_iter().collect();
            // Those that were deleted while nothing was watched. If one was created meanwhile, the watch brings it.
            self.schedules.known().retain(|id, _| ids.contains(id));
            Ok::<_, ReadError>(changes)
        };
        watch.await.inspect_err(|error| tracing::warn!(%error, "watching schedules failed, retrying")).ok()
    }

    fn pause(&self, is_watching: bool) -> Duration {
        if !is_watching {
            return RETRY_PAUSE;
        }
        // If as many fire as may, the end of one of them goes on.
        let next = self.wakes.first().filter(|_| self.firing.len() < FIRING_MAX);
        next.map_or(SLEEP_MAX, |next| next.since(::nats::now()).min(SLEEP_MAX))
    }

    fn learn(&mut self, change: Change) {
        let id = change.id.clone();
        self.schedules.learn(change);
        self.look_at(&id);
        metrics::count(self.schedules.known().len());
    }

    /// Computes again when something is to be done about a schedule.
    fn look_at(&mut self, id: &str) {
        let known = self.schedules.known().get(id).cloned();
        let is_ours = self.owned.borrow().claim(shard_of(id)).is_some() && !self.in_progress.contains(id);
        let wake = |known: &Known| known.record.wake(known.plan.as_ref()?, ::nats::now());
        self.wakes.set(id, known.filter(|_| is_ours).and_then(|known| wake(&known)));
    }

    fn look_at_all(&mut self) {
        let ids: Vec<String> = self.schedules.known().keys().cloned().collect();
        ids.iter().for_each(|id| self.look_at(id));
    }

    fn fire_due(&mut self) {
        let now = ::nats::now();
        while self.firing.len() < FIRING_MAX
            && let Some(id) = self.wakes.pop_due(now)
        {
            if !self.owned.borrow().holds(shard_of(&id)) {
                // The lease is about to be renewed, or lost.
                let may_be_renewed = self.owned.borrow().claim(shard_of(&id)).is_some();
                self.wakes.set(&id, may_be_renewed.then(|| now.after(RETRY_PAUSE)));
                continue;
            }
            self.in_progress.insert(id.clone());
            let (schedules, runs) = (self.schedules.clone(), self.runs.clone());
            self.firing.spawn(async move {
                let done = Box::pin(schedules.fire_due(&runs, &id)).await;
                (id, done)
            });
        }
    }

    fn ended(&mut self, (id, done): (String, Result<(), NotNow>)) {
        self.in_progress.remove(&id);
        self.look_at(&id);
        if let Err(error) = done {
            tracing::warn!(schedule.id = id, %error, "firing a schedule failed, retrying");
            self.wakes.set(&id, Some(::nats::now().after(RETRY_PAUSE)));
        }
    }
}

/// The shards that this coordinator has, also while their lease is being renewed.
fn claimed(owned: Owned) -> ShardSet {
    every().filter(|shard| owned.claim(*shard).is_some()).collect()
}

async fn next(changes: &mut Option<Changes>) -> Option<Change> {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}
