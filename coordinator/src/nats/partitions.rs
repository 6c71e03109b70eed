//! Finds the partitions of the log, also those that are added while this coordinator runs, and starts what each needs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use owner::retention::Tail;
use run::Partition;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Broker;
use super::journal::Journals;
use super::leaders::Leaders;
use super::pauses::Pauses;
use super::retention::Retention;
use super::signals::Signals;
use super::snapshots::Snapshots;
use crate::fleet::registry::Registry;
use crate::shards::Owned;
use crate::tasks::finished;

/// How often the broker is asked, and how often workers are told.
const LOOK: Duration = Duration::from_secs(2);
/// How often queues are compared with the record of pauses. New runs go to a new partition after 15 s.
const RECONCILE: Duration = Duration::from_secs(10);

pub(crate) struct Partitions {
    pub(crate) broker: Broker,
    pub(crate) journals: Journals,
    pub(crate) signals: Signals,
    pub(crate) registry: watch::Receiver<Arc<Registry>>,
    pub(crate) owned: watch::Receiver<Owned>,
    pub(crate) pauses: Pauses,
    pub(crate) tail: Tail,
    /// Updated whenever a partition has a leader.
    pub(crate) led: watch::Sender<Instant>,
}

impl Partitions {
    pub(crate) async fn keep(self, stop: CancellationToken) {
        let (mut started, mut tasks, mut is_told) = (0, JoinSet::new(), false);
        let leaders =
            Leaders { broker: self.broker.clone(), journals: self.journals.clone(), owned: self.owned.clone() };
        tasks.spawn(leaders.keep(stop.clone()));
        let (mut reconciled, mut reconciling): (Option<Instant>, _) = (None, JoinSet::new());
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let count = self.journals.count();
            for partition in Partition::first(count).skip(started) {
                let journal = self.journals.of_partition(partition);
                let retention = Retention {
                    journal: journal.clone(),
                    snapshots: Snapshots::new(&self.broker),
                    owned: self.owned.clone(),
                    tail: self.tail,
                    has_history: self.journals.history().is_some(),
                };
                tasks.spawn(retention.keep(stop.clone()));
                tasks.spawn(journal.watch_room(self.journals.clone(), self.led.clone(), stop.clone()));
            }
            started = count;
            tokio::select! {
                _ = look.tick() => {}
                Some(ended) = tasks.join_next() => {
                    finished(ended);
                    continue;
                }
                () = stop.cancelled() => break,
            }
            match self.journals.look().await {
                Ok(count) => {
                    is_told = false;
                    if count > started {
                        tracing::info!(partitions = count, "the log has more partitions");
                    }
                }
                Err(error) if !is_told => {
                    is_told = true;
                    tracing::warn!(
                        %error,
                        "the broker does not say how many partitions the log has: new ones are not seen, and lists are \
                         not called complete. If its accounts.conf is of an older release, write it again with \
                         `toolyard nats-config`"
                    );
                }
                Err(error) => tracing::debug!(%error, "the broker does not say how many partitions the log has"),
            }
            let is_due = reconciled.is_none_or(|at| at.elapsed() >= RECONCILE) || self.journals.count() > started;
            while let Some(ended) = reconciling.try_join_next() {
                finished(ended);
            }
            if is_due && reconciling.is_empty() {
                reconciled = Some(Instant::now());
                let (pauses, pools) = (self.pauses.clone(), self.registry.borrow().pools());
                // A broker that does not answer must not delay the next look.
                reconciling.spawn(async move { pauses.reconcile(pools).await });
            }
            self.tell_workers().await;
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Workers cannot see the streams. The messages are unconfirmed, so they are repeated.
    async fn tell_workers(&self) {
        let count = self.journals.count();
        let pools = if count > 1 { self.registry.borrow().pools() } else { BTreeSet::new() };
        for pool in &pools {
            self.signals.partitions(pool, count).await;
        }
    }
}
