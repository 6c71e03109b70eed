//! Sends the requests of calls for records to the owner of their run.

use async_nats::Client;
use proto::convert::record::{RecordReply, RecordRequest};
use proto::names;
use run::PoolId;
use toolyard_tool::runtime::RecordStore;

use super::ask;

pub(super) fn store(client: Client, pool: PoolId) -> RecordStore {
    RecordStore::new(move |wanted| {
        let (client, pool) = (client.clone(), pool.clone());
        Box::pin(async move { request(&client, &pool, wanted).await })
    })
}

/// Repeating a write is safe, because it names the revision that it replaces.
async fn request(client: &Client, pool: &PoolId, wanted: RecordRequest) -> Result<RecordReply, String> {
    let to = (wanted.run, names::record_question(pool, wanted.run.shard()));
    let read = |answer| Ok(Some(RecordReply::decode(answer)?).filter(|reply| *reply != RecordReply::AskAgain));
    ask::owner(client, to, wanted.encode(), read).await
}
