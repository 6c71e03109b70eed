//! Gives workers the chunks of the files of calls that they execute: the owner of the run does, piece by piece.

use std::time::Duration;

use async_nats::{Client, Message};
use futures::StreamExt as _;
use proto::access::may_be_answered;
use proto::convert::object::{GivenChunk, WantedChunk};
use proto::names;
use run::PoolId;
use store::Objects;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Broker;
use crate::files::{Judged, judge};
use crate::ledger::Ledger;
use crate::shards::Owned;

/// Chunks that are given out at once: what they take of memory. Whoever waits longer asks again.
const AT_ONCE: usize = 16;
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Files {
    client: Client,
    objects: Objects,
    ledger: Ledger,
    owned: watch::Receiver<Owned>,
}

impl Files {
    pub(crate) fn new(broker: &Broker, objects: Objects, ledger: Ledger, owned: watch::Receiver<Owned>) -> Self {
        Self { client: broker.client.clone(), objects, ledger, owned }
    }

    /// Gives out chunks until told to stop.
    pub(crate) async fn give(self, stop: CancellationToken) {
        while !stop.is_cancelled() {
            match self.client.subscribe(names::FILE_QUESTIONS).await {
                Ok(questions) => {
                    let heard = questions.take_until(stop.cancelled());
                    heard.for_each_concurrent(AT_ONCE, |message| self.answer(message)).await;
                }
                Err(error) => tracing::warn!(%error, "cannot hear which files workers want, trying again"),
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(AGAIN) => {}
            }
        }
    }

    async fn answer(&self, message: Message) {
        let Some((pool, shard)) = names::file_question_of(&message.subject) else { return };
        if !self.owned.borrow().holds(shard) {
            return;
        }
        let Some(reply) = message.reply.filter(|reply| may_be_answered(&pool, reply)) else {
            return tracing::warn!(%pool, "passing over a wish for a file whose answer would go where the pool may not speak");
        };
        let wanted = match WantedChunk::decode(message.payload) {
            Ok(wanted) if wanted.run.shard() == shard => wanted,
            Ok(_) => return tracing::warn!(%pool, "passing over a wish for a file of another shard"),
            Err(error) => return tracing::warn!(%pool, %error, "passing over a wish for a file"),
        };
        let given = self.given(&pool, &wanted).await;
        if let Err(error) = self.client.publish(reply, given.encode()).await {
            tracing::warn!(%error, "a chunk of a file was not sent");
        }
    }

    async fn given(&self, pool: &PoolId, wanted: &WantedChunk) -> GivenChunk {
        let Ok(Some(known)) = self.ledger.state(wanted.run).await else { return GivenChunk::AskAgain };
        match judge(&known.run, pool, wanted) {
            Judged::Later => return GivenChunk::AskAgain,
            Judged::Refuse(reason) => return GivenChunk::Refused(reason.to_owned()),
            Judged::Give => {}
        }
        match self.objects.chunk(&wanted.object, wanted.chunk).await {
            Ok(Some(data)) => GivenChunk::Data(data),
            Ok(None) => GivenChunk::Refused("it is not kept any more".to_owned()),
            Err(error) => {
                tracing::warn!(%error, "cannot read a chunk of a file");
                GivenChunk::AskAgain
            }
        }
    }
}
