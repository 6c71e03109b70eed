//! Reads long parts of the log fast, for rebuilding the index and comparing it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use async_nats::jetstream::consumer::push::OrderedConfig;
use futures::{FutureExt as _, StreamExt as _};
use proto::names;
use run::{Entry, Partition, RunId, Shard};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::journal::{Decoded, Journals, ReadError, decode, millis};
use super::repeated::Pace;
use super::{Broker, EVERYTHING};

/// Entries passed on together.
const BATCH_MAX: usize = 1024;
/// Batches that are queued for the consumer.
const BATCHES_AHEAD: usize = 2;
/// The longest pause while entries are still to come: an election of the broker's leader takes 4-9 s.
const SILENCE_MAX: Duration = Duration::from_secs(15);

/// The log, for readers of much of it.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    broker: Broker,
    pub(crate) journals: Journals,
}

/// Entries in the order of the log, complete up to a position.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) entries: Vec<(RunId, Arc<Entry>)>,
    pub(crate) through: u64,
}

impl Log {
    pub(crate) fn new(broker: &Broker, journals: Journals) -> Self {
        Self { broker: broker.clone(), journals }
    }

    /// A name that distinguishes this log from an earlier one or another broker's: that of its first partition.
    pub(crate) async fn name(&self) -> Result<String, ReadError> {
        let stream = self.broker.context.get_stream(names::STREAM).await.map_err(|error| ReadError::new(&error))?;
        Ok(stream.cached_info().created.unix_timestamp_nanos().to_string())
    }

    /// A log position after every entry of these shards of a partition that was stored before this request; 0 for no
    /// shards.
    pub(crate) async fn tip(&self, shards: &[Shard]) -> Result<u64, ReadError> {
        match shards.first() {
            Some(shard) => self.journals.of_shard(*shard).mark(*shard, Pace::Later).await,
            None => Ok(0),
        }
    }

    /// Passes the entries of these shards of a partition after `after` and up to `through`, which is [`Self::tip`]'s,
    /// to `take`, until `take` breaks or the time is over. Returns the log position up to which entries were passed.
    pub(crate) async fn take_until(
        &self,
        (shards, after, through): (&[Shard], u64, u64),
        time_max: Duration,
        mut take: impl FnMut(RunId, &Arc<Entry>) -> ControlFlow<()>,
    ) -> Result<u64, ReadError> {
        let (sender, mut batches) = mpsc::channel(BATCHES_AHEAD);
        let reading = async move { self.read(shards, after, through, &sender).await };
        let taking = async move {
            let (begun, mut taken) = (Instant::now(), after);
            while let Some(batch) = batches.recv().await {
                for (run, entry) in &batch.entries {
                    if take(*run, entry).is_break() {
                        return entry.sequence;
                    }
                }
                taken = batch.through;
                if begun.elapsed() >= time_max {
                    break;
                }
            }
            taken
        };
        let (read, taken) = futures::future::join(reading, taking).await;
        // Entries that were read before an error are a valid part of the result; without any, the error is returned.
        match read {
            Err(error) if taken == after => Err(error),
            Ok(()) | Err(_) => Ok(taken),
        }
    }

    /// Reads the entries of these shards of a partition after `after` and up to `through`, which is [`Self::tip`]'s.
    pub(crate) async fn read(
        &self,
        shards: &[Shard],
        after: u64,
        through: u64,
        batches: &mpsc::Sender<Batch>,
    ) -> Result<(), ReadError> {
        if through <= after {
            return Ok(());
        }
        // As the feeds: for several shards everything is read, and other shards' entries are skipped.
        let filter_subject = match shards {
            [shard] => proto::subject::of_shard(*shard),
            _ => EVERYTHING.to_owned(),
        };
        let config = OrderedConfig {
            deliver_subject: self.broker.client.new_inbox(),
            name: Some(format!("index-{}", uuid::Uuid::now_v7().simple())),
            filter_subject,
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: after + 1 },
            ..OrderedConfig::default()
        };
        let stream = names::stream(shards.first().map_or(Partition::FIRST, |shard| shard.partition()));
        let consumer = self.broker.context.create_consumer_on_stream(config, stream).await;
        let mut messages = consumer
            .map_err(|error| ReadError::new(&error))?
            .messages()
            .await
            .map_err(|error| ReadError::new(&error))?;
        let mut batch = Batch { entries: Vec::with_capacity(BATCH_MAX), through: after };
        while batch.through < through {
            let next = tokio::time::timeout(SILENCE_MAX, messages.next()).await;
            let first = next.map_err(|_| ReadError::new(&"the broker sends nothing"))?;
            let mut next = Some(first.ok_or_else(|| ReadError::new(&"the consumer ended"))?);
            while let Some(message) = next {
                let message = message.map_err(|error| ReadError::new(&error))?;
                let info = message.info().map_err(|error| ReadError::new(&error))?;
                let (sequence, at) = (info.stream_sequence, millis(info.published.unix_timestamp_nanos()));
                if sequence <= through {
                    let (message, _) = message.split();
                    if let Decoded::Entry(run, entry) = decode(&message.subject, message.payload, sequence, at)
                        && shards.contains(&run.shard())
                    {
                        batch.entries.push((run, entry));
                    }
                }
                batch.through = sequence.min(through);
                if batch.through >= through || batch.entries.len() >= BATCH_MAX {
                    break;
                }
                next = messages.next().now_or_never().flatten();
            }
            let through = batch.through;
            let full = std::mem::replace(&mut batch, Batch { entries: Vec::with_capacity(BATCH_MAX), through });
            if batches.send(full).await.is_err() {
                // The receiver is gone.
                return Ok(());
            }
        }
        Ok(())
    }
}
