//! Extends the leases of running jobs often enough that the broker does not give them to other workers.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use async_nats::Client;
use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt as _};
use proto::names;
use telemetry::metrics::Counter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

const IN_PROGRESS: Bytes = Bytes::from_static(b"+WPI");

#[derive(Clone)]
pub(crate) struct Leases {
    client: Client,
    held: Rc<RefCell<HashMap<String, Held>>>,
    lost: Counter,
}

struct Held {
    /// When the broker last confirmed it.
    confirmed: Instant,
    lost: CancellationToken,
}

/// A lease that is extended while this lives.
pub(crate) struct Lease {
    leases: Leases,
    reply: String,
    /// The broker did not confirm it for its whole length: another worker may have the job.
    pub(crate) lost: CancellationToken,
}

impl Leases {
    /// `lost` counts the leases that could not be kept.
    pub(crate) fn new(client: Client, lost: Counter) -> Self {
        Self { client, held: Rc::default(), lost }
    }

    /// Begins to keep the lease of a job that was just delivered.
    pub(crate) fn hold(&self, reply: String) -> Lease {
        let lost = CancellationToken::new();
        let held = Held { confirmed: Instant::now(), lost: lost.clone() };
        self.held.borrow_mut().insert(reply.clone(), held);
        Lease { leases: self.clone(), reply, lost }
    }

    pub(super) async fn keep(self, stop: CancellationToken) {
        let mut tick = tokio::time::interval(names::JOB_LEASE_EXTENSION);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = stop.cancelled() => return,
            }
            self.extend_all().await;
            for (reply, held) in self.held.borrow().iter() {
                if held.confirmed.elapsed() >= names::JOB_LEASE && !held.lost.is_cancelled() {
                    tracing::warn!(%reply, "a lease could not be kept, giving up its attempt");
                    self.lost.add(1);
                    held.lost.cancel();
                }
            }
        }
    }

    async fn extend_all(&self) {
        let replies: Vec<String> = self.held.borrow().keys().cloned().collect();
        let mut extensions: FuturesUnordered<_> = replies
            .into_iter()
            .map(|reply| async move {
                let asked = Instant::now();
                let confirmed = tokio::time::timeout(
                    names::JOB_LEASE_EXTENSION / 2,
                    self.client.request(reply.clone(), IN_PROGRESS),
                );
                (reply, asked, matches!(confirmed.await, Ok(Ok(answer)) if answer.status.is_none()))
            })
            .collect();
        while let Some((reply, asked, confirmed)) = extensions.next().await {
            if let (true, Some(held)) = (confirmed, self.held.borrow_mut().get_mut(&reply))
                && asked.duration_since(held.confirmed) < names::JOB_LEASE
            {
                held.confirmed = asked;
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.leases.held.borrow_mut().remove(&self.reply);
    }
}
