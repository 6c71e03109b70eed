//! Requests the chunks of a call's files from the owner of its run.

use std::time::Duration;

use async_nats::Client;
use proto::convert::object::{ChunkReply, ChunkRequest};
use proto::names;
use run::PoolId;
use tokio::time::{Instant, sleep, timeout};

use toolyard_tool::runtime::Source;

/// How long a chunk is requested: if an owner is lost, another takes its runs over within about 8 s.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long an owner may take to answer, and the pause before the next request, which doubles.
const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_millis(500);

pub(super) fn source(client: Client, pool: PoolId) -> Source {
    Source::new(move |wanted| {
        let (client, pool) = (client.clone(), pool.clone());
        Box::pin(async move { ask(&client, &pool, wanted).await })
    })
}

async fn ask(client: &Client, pool: &PoolId, wanted: ChunkRequest) -> Result<bytes::Bytes, String> {
    let (subject, payload) = (names::file_question(pool, wanted.run.shard()), wanted.encode());
    let (give_up, mut pause) = (Instant::now() + PATIENCE, PAUSE);
    loop {
        match timeout(ANSWER_PATIENCE, client.request(subject.clone(), payload.clone())).await {
            Ok(Ok(answer)) => match ChunkReply::decode(answer.payload) {
                Ok(ChunkReply::Data(data)) => return Ok(data),
                Ok(ChunkReply::Refused(reason)) => return Err(reason),
                Ok(ChunkReply::AskAgain) => {}
                Err(error) => tracing::warn!(run.id = %wanted.run, %error, "passing over a chunk of a file"),
            },
            Ok(Err(error)) => tracing::debug!(run.id = %wanted.run, %error, "no owner gives out files yet"),
            Err(_) => tracing::debug!(run.id = %wanted.run, "the owner is slow to give out a file"),
        }
        if Instant::now() >= give_up {
            return Err("the owner of its run does not answer".to_owned());
        }
        sleep(pause).await;
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}
