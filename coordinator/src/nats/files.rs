//! Workers' requests for chunks of files, as messages of the broker.

use async_nats::{Client, Message, Subject, SubscribeError};
use futures::{Stream, StreamExt as _};
use nats::access::may_be_answered;
use proto::convert::object::{ChunkReply, ChunkRequest};
use proto::names;
use run::{PoolId, Shard};

use super::Broker;

#[derive(Debug)]
pub(crate) struct FileRequests(Client);

/// A request of a pool's worker for a chunk.
#[derive(Debug)]
pub(crate) struct FileRequest {
    pub(crate) pool: PoolId,
    pub(crate) shard: Shard,
    pub(crate) wanted: ChunkRequest,
    client: Client,
    reply: Subject,
}

impl FileRequests {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self(broker.client.clone())
    }

    /// Requests for files of all shards, each sent to every coordinator. Requests with a foreign reply subject, or that
    /// cannot be decoded, are logged and skipped.
    pub(crate) async fn subscribe(&self) -> Result<impl Stream<Item = FileRequest> + use<>, SubscribeError> {
        let client = self.0.clone();
        let messages = client.subscribe(names::FILE_QUESTIONS).await?;
        Ok(messages.filter_map(move |message| std::future::ready(FileRequest::decode(&client, message))))
    }
}

impl FileRequest {
    fn decode(client: &Client, message: Message) -> Option<Self> {
        let (pool, shard) = names::file_question_of(&message.subject)?;
        let Some(reply) = message.reply.filter(|reply| may_be_answered(&pool, reply)) else {
            tracing::warn!(%pool, "ignoring a request for a file: its reply subject is not one of the pool's");
            return None;
        };
        match ChunkRequest::decode(message.payload) {
            Ok(wanted) if wanted.run.shard() == shard => {
                Some(Self { pool, shard, wanted, client: client.clone(), reply })
            }
            Ok(_) => {
                tracing::warn!(%pool, "ignoring a request for a file: its run is of another shard");
                None
            }
            Err(error) => {
                tracing::warn!(%pool, %error, "ignoring a request for a file: it cannot be decoded");
                None
            }
        }
    }

    pub(crate) async fn answer(self, chunk: ChunkReply) {
        if let Err(error) = self.client.publish(self.reply, chunk.encode()).await {
            tracing::warn!(%error, "sending a chunk of a file failed");
        }
    }
}
