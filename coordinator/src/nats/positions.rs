//! The positions of waiting calls. Only the owner of a shard has the order of its calls in memory, so the other
//! coordinators ask it. The subject lies in the inbox of coordinators, to which no one else may send.

use std::pin::pin;
use std::time::Duration;

use ::nats::access::Party;
use async_nats::{Client, Message, Request};
use futures::StreamExt as _;
use proto::convert::position::{PositionRequest, Waits, decode_position, encode_position};
use run::Shard;
use tokio_util::sync::CancellationToken;

use super::Broker;

/// How long the owner may take to answer: it has the answer in memory.
const PATIENCE: Duration = Duration::from_secs(1);
/// The pause before subscribing again after an error of the broker.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) struct Positions(Client);

impl Positions {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self(broker.client.clone())
    }

    /// The position of a call, from the owner of its shard. `None`: it does not wait, or no owner answers.
    pub(crate) async fn ask(&self, request: PositionRequest) -> Option<Waits> {
        // With an inbox of its own: the library keeps something of each request to the common one until it is answered.
        let message = Request::new().payload(request.encode()).inbox(self.0.new_inbox()).timeout(Some(PATIENCE));
        let response = self.0.send_request(subject(request.run.shard()), message).await.ok()?;
        decode_position(response.payload).ok()?
    }

    /// Answers other coordinators until `stop`, about the shards that are ours.
    pub(crate) async fn serve(
        self,
        find: impl Fn(PositionRequest) -> Option<Waits>,
        is_ours: impl Fn(Shard) -> bool,
        stop: CancellationToken,
    ) {
        while !stop.is_cancelled() {
            match self.0.subscribe(format!("{}.*", prefix())).await {
                Ok(messages) => {
                    let mut messages = pin!(messages.take_until(stop.cancelled()));
                    while let Some(message) = messages.next().await {
                        self.answer(message, &find, &is_ours).await;
                    }
                }
                Err(error) => tracing::warn!(%error, "subscribing to requests for positions failed, trying again"),
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(RETRY) => {}
            }
        }
    }

    async fn answer(
        &self,
        message: Message,
        find: &impl Fn(PositionRequest) -> Option<Waits>,
        is_ours: &impl Fn(Shard) -> bool,
    ) {
        let shard = message.subject.rsplit('.').next().and_then(|shard| shard.parse().ok());
        if !shard.is_some_and(is_ours) {
            return;
        }
        let inbox = format!("{}.", Party::Coordinator.inbox());
        let Some(reply) = message.reply.filter(|reply| reply.starts_with(&inbox)) else { return };
        let request = match PositionRequest::decode(message.payload) {
            Ok(request) => request,
            Err(error) => {
                tracing::debug!(%error, "ignoring a request for a position that cannot be decoded");
                return;
            }
        };
        if let Err(error) = self.0.publish(reply, encode_position(find(request))).await {
            tracing::warn!(%error, "sending the position of a call failed");
        }
    }
}

fn prefix() -> String {
    format!("{}.position", Party::Coordinator.inbox())
}

fn subject(shard: Shard) -> String {
    format!("{}.{shard}", prefix())
}
