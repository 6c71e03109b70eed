//! Every entry of the log, in order, once: what the coordinator's fold lives on.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::{Ordered, OrderedConfig};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use proto::names;
use run::{Entry, RunId};

use super::Broker;
use super::journal::{decode, millis};

/// Entries handed on together: enough to save wake-ups, few enough to stay responsive.
const BATCH_MAX: usize = 256;
const RETRY_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Feed {
    client: Client,
    context: Context,
    messages: Option<Ordered>,
    /// Kept here while it is opened, so that whoever waits may stop waiting.
    opening: Option<BoxFuture<'static, Result<Ordered, OpenError>>>,
    /// The last sequence that was handed on.
    position: u64,
}

/// A message of the log: `entry` is `None` when it could not be understood.
#[derive(Debug)]
pub(crate) struct Fed {
    pub(crate) sequence: u64,
    pub(crate) entry: Option<(RunId, Arc<Entry>)>,
}

impl Feed {
    pub(crate) fn new(broker: &Broker) -> Self {
        let (client, context) = (broker.client.clone(), broker.context.clone());
        Self { client, context, messages: None, opening: None, position: 0 }
    }

    /// Waits for entries and adds them to `batch`. May be dropped while it waits: nothing is lost.
    pub(crate) async fn next_batch(&mut self, batch: &mut Vec<Fed>) {
        loop {
            let Some(messages) = &mut self.messages else {
                let opening = self
                    .opening
                    .get_or_insert_with(|| open(self.client.clone(), self.context.clone(), self.position).boxed());
                let opened = opening.await;
                self.opening = None;
                match opened {
                    Ok(messages) => self.messages = Some(messages),
                    Err(error) => {
                        tracing::warn!(%error, "cannot follow the log, trying again");
                        tokio::time::sleep(RETRY_PAUSE).await;
                    }
                }
                continue;
            };
            let mut next = messages.next().await;
            loop {
                match next {
                    Some(Ok(message)) => {
                        let Ok(info) = message.info() else { break };
                        let (sequence, at) = (info.stream_sequence, millis(info.published.unix_timestamp_nanos()));
                        if sequence > self.position {
                            self.position = sequence;
                            let (message, _) = message.split();
                            let entry = decode(&message.subject, message.payload, sequence, at);
                            let entry = entry.map(|(run, entry)| (run, Arc::new(entry)));
                            batch.push(Fed { sequence, entry });
                        }
                    }
                    Some(Err(error)) => tracing::warn!(%error, "the feed stumbled"),
                    None => {
                        tracing::warn!("the feed ended, opening it again");
                        self.messages = None;
                        break;
                    }
                }
                if batch.len() >= BATCH_MAX {
                    break;
                }
                match messages.next().now_or_never() {
                    Some(ready) => next = ready,
                    None => break,
                }
            }
            if !batch.is_empty() {
                return;
            }
        }
    }
}

type OpenError = Box<dyn std::error::Error + Send + Sync>;

async fn open(client: Client, context: Context, position: u64) -> Result<Ordered, OpenError> {
    let deliver_policy = match position {
        0 => DeliverPolicy::All,
        position => DeliverPolicy::ByStartSequence { start_sequence: position + 1 },
    };
    let config = OrderedConfig {
        deliver_subject: client.new_inbox(),
        name: Some(format!("feed-{}", uuid::Uuid::now_v7().simple())),
        filter_subject: names::STREAM_SUBJECTS.to_owned(),
        deliver_policy,
        ..OrderedConfig::default()
    };
    let consumer = context.create_consumer_on_stream(config, names::STREAM).await?;
    Ok(consumer.messages().await?)
}
