//! Webhooks: notifications of the progress of runs, posted to addresses that the deployment configures and signed
//! according to Standard Webhooks.
//!
//! ```text
//! owner ── a run's status changed ──▶ the queue, a message for each notification and endpoint
//!                                        │
//!        accepted: it is removed      ◀──┴─▶ a deliverer for each endpoint and shard of ours ──▶ POST
//! ```
//!
//! Notifications follow from the fold: each stands for the log entry that changed a run's status. The owner queues
//! them, and its snapshot has those that are not queued yet. So a crash repeats notifications and loses none. Runs
//! never wait for them.

mod deliverer;
mod file;
mod notification;
mod pending;

use std::collections::HashMap;
use std::sync::Arc;

use run::{Entry, Run, RunStatus, Shard};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::deliverer::Deliverer;
pub(crate) use self::file::Endpoint;
pub use self::file::InvalidWebhooks;
pub(crate) use self::notification::message_id;
use crate::metrics;
use crate::nats::notifications::{Queue, QueuedNotification};
use crate::shards::{Owned, every};
use crate::tasks::finished;

/// The configured endpoints. Cheap to clone; may be empty.
#[derive(Debug, Clone, Default)]
pub struct Webhooks(Arc<Vec<Arc<Endpoint>>>);

impl Webhooks {
    pub(crate) fn is_on(&self) -> bool {
        !self.0.is_empty()
    }

    pub(crate) fn endpoints(&self) -> &[Arc<Endpoint>] {
        &self.0
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Endpoint> {
        self.0.iter().find(|endpoint| endpoint.name == name).map(|endpoint| &**endpoint)
    }

    /// The notifications that follow from an entry that changed the status of a run: one for each interested endpoint.
    pub(crate) fn letters(&self, run: &Run, status: RunStatus, entry: &Entry) -> Vec<QueuedNotification> {
        let Some(kind) = notification::Kind::of(status) else { return Vec::new() };
        let wanting: Vec<_> = self.0.iter().filter(|endpoint| endpoint.wants(kind, run.tenant())).collect();
        if wanting.is_empty() {
            return Vec::new();
        }
        let body = notification::body(kind, run, entry.at);
        wanting
            .iter()
            .map(|endpoint| QueuedNotification::new(&endpoint.name, run.id(), entry.sequence, body.clone()))
            .collect()
    }
}

/// Runs a deliverer for each endpoint and each shard that we own.
pub(crate) async fn keep(webhooks: Webhooks, queue: Queue, mut owned: watch::Receiver<Owned>, stop: CancellationToken) {
    webhooks.endpoints().iter().for_each(|endpoint| metrics::begin_webhook(&endpoint.name));
    let mut deliverers: HashMap<Shard, (u64, CancellationToken)> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        let now = *owned.borrow_and_update();
        for shard in every() {
            let claim = now.claim(shard).filter(|_| !now.leaving().contains(shard));
            let (before, recalled) = deliverers.get(&shard).map(|(claim, recalled)| (*claim, recalled.clone())).unzip();
            if claim == before {
                continue;
            }
            if let Some(recalled) = recalled {
                recalled.cancel();
                deliverers.remove(&shard);
            }
            let Some(claim) = claim else { continue };
            let recalled = CancellationToken::new();
            for endpoint in webhooks.endpoints() {
                let deliverer =
                    Deliverer { endpoint: Arc::clone(endpoint), shard, queue: queue.clone(), owned: owned.clone() };
                tasks.spawn(deliverer.carry(recalled.clone()));
            }
            deliverers.insert(shard, (claim, recalled));
        }
        tokio::select! {
            () = stop.cancelled() => return,
            Ok(()) = owned.changed() => {}
            Some(ended) = tasks.join_next() => finished(ended),
        }
    }
}
