//! Coordinators tell each other their shares of the overview. A message that is lost is replaced by the next one.

use std::time::Duration;

use async_nats::{Client, Subscriber};
use bytes::Bytes;
use futures::StreamExt as _;
use proto::names;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Broker;
use crate::overview::{Overview, OverviewShare};

/// The most bytes of a share: half of what the broker takes in a message.
const SHARE_BYTES_MAX: usize = 512 * 1024;

/// The share of this coordinator, under a name that no other one has.
pub(crate) fn own_share() -> watch::Sender<OverviewShare> {
    let coordinator = uuid::Uuid::now_v7().simple().to_string();
    watch::Sender::new(OverviewShare { coordinator, ..OverviewShare::default() })
}

/// Sends this coordinator's share, and receives those of the others.
pub(crate) struct Shares {
    client: Client,
    overview: Overview,
    own: watch::Receiver<OverviewShare>,
}

impl Shares {
    pub(crate) fn new(broker: &Broker, overview: Overview, own: watch::Receiver<OverviewShare>) -> Self {
        Self { client: broker.client.clone(), overview, own }
    }

    /// Runs until `stop`. While the broker is away, the overview shows this coordinator's own calls.
    pub(crate) async fn keep(mut self, stop: CancellationToken) {
        let mut others: Option<Subscriber> = None;
        let mut tick = tokio::time::interval(names::OVERVIEW_SHARED);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                changed = self.own.changed() => match changed {
                    Ok(()) => self.overview.hear(self.own.borrow_and_update().clone(), Instant::now()),
                    Err(_) => break,
                },
                _ = tick.tick() => {
                    if others.is_none() {
                        others = self.subscribe().await;
                    }
                    let share = encoded(self.own.borrow().clone());
                    self.send(share).await;
                }
                message = next(&mut others) => match message {
                    Some(message) => self.hear(message),
                    None => others = None,
                },
            }
        }
        let last = OverviewShare { leaving: true, tools: Vec::new(), ..self.own.borrow().clone() };
        self.send(last.encode()).await;
    }

    fn hear(&self, message: Bytes) {
        match OverviewShare::decode(message) {
            // The broker sends our own messages back.
            Ok(share) if share.coordinator == self.own.borrow().coordinator => {}
            Ok(share) => self.overview.hear(share, Instant::now()),
            Err(error) => tracing::debug!(%error, "ignoring a share of the overview that cannot be decoded"),
        }
    }

    async fn subscribe(&self) -> Option<Subscriber> {
        // The client waits while it is not connected, and our own share must be heard meanwhile.
        let subscribing = self.client.subscribe(names::OVERVIEW);
        match tokio::time::timeout(Duration::from_secs(1), subscribing).await {
            Ok(Ok(messages)) => Some(messages),
            Ok(Err(_)) | Err(_) => None,
        }
    }

    async fn send(&self, share: Bytes) {
        let sending = self.client.publish(names::OVERVIEW, share);
        match tokio::time::timeout(Duration::from_secs(1), sending).await {
            Ok(Ok(())) | Err(_) => {}
            Ok(Err(error)) => tracing::warn!(%error, "sending a share of the overview failed"),
        }
    }
}

/// A share that the broker takes: without its last tools, if it is too large.
fn encoded(mut share: OverviewShare) -> Bytes {
    loop {
        let encoded = share.encode();
        if encoded.len() <= SHARE_BYTES_MAX {
            return encoded;
        }
        share.tools.truncate(share.tools.len() / 2);
    }
}

async fn next(others: &mut Option<Subscriber>) -> Option<Bytes> {
    match others {
        Some(others) => others.next().await.map(|message| message.payload),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use crate::overview::ToolShare;

    use super::*;

    #[test]
    fn a_share_fits_into_a_message() {
        let tool = ToolShare { tool: "t".repeat(2000), ended_each: vec![u32::MAX; 60], ..ToolShare::default() };
        let share = OverviewShare { tools: vec![tool; 1000], ..OverviewShare::default() };
        let sent = OverviewShare::decode(encoded(share)).expect("a share");
        assert!((100..1000).contains(&sent.tools.len()), "{}", sent.tools.len());
    }
}
