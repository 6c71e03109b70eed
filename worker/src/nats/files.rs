//! Requests the chunks of a call's files from the owner of its run.

use async_nats::Client;
use proto::convert::object::{ChunkReply, ChunkRequest};
use proto::names;
use run::PoolId;
use toolyard_tool::runtime::Source;

use super::ask;

pub(super) fn source(client: Client, pool: PoolId) -> Source {
    Source::new(move |wanted| {
        let (client, pool) = (client.clone(), pool.clone());
        Box::pin(async move { request(&client, &pool, wanted).await })
    })
}

async fn request(client: &Client, pool: &PoolId, wanted: ChunkRequest) -> Result<bytes::Bytes, String> {
    let to = (wanted.run, names::file_question(pool, wanted.run.shard()));
    let read = |answer| {
        Ok(match ChunkReply::decode(answer)? {
            ChunkReply::Data(data) => Some(Ok(data)),
            ChunkReply::Refused(reason) => Some(Err(reason)),
            ChunkReply::AskAgain => None,
        })
    };
    ask::owner(client, to, wanted.encode(), read).await?
}
