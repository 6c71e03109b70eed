//! Owners and followers of shards as stored at the broker; coordinators do not report them elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, consumer};
use futures::{StreamExt as _, TryStreamExt as _};
use proto::convert::snapshot::Snapshot;
use proto::names;

use crate::PATIENCE;

#[derive(Debug, Clone)]
pub struct Shards {
    context: jetstream::Context,
}

/// The shards of each member, by its address and id.
type Shares = BTreeMap<(String, String), BTreeSet<u8>>;

impl Shards {
    pub async fn at(nats_url: &str) -> Self {
        let client = async_nats::connect(nats_url).await.expect("the broker is there");
        Self::through(client)
    }

    /// As a client sees them that the broker lets look.
    #[must_use]
    pub fn through(client: async_nats::Client) -> Self {
        Self { context: jetstream::new(client) }
    }

    pub async fn shares(&self) -> Shares {
        let store = self.context.get_key_value(names::LEASES_BUCKET).await.expect("the bucket is there");
        let keys: Vec<String> = store.keys().await.expect("keys").try_collect().await.expect("keys");
        let mut values = BTreeMap::new();
        for key in keys {
            if let Some(value) = store.get(key.clone()).await.expect("the broker answers") {
                values.insert(key, String::from_utf8(value.to_vec()).expect("a text"));
            }
        }
        // Behind its address stands its release.
        let address = |told: &str| told.split_once(' ').map_or(told, |(address, _)| address).to_owned();
        let members = values.iter().filter_map(|(key, told)| Some((key.strip_prefix("member.")?, address(told))));
        let shards: Vec<(u8, &String)> = values
            .iter()
            .filter_map(|(key, owner)| Some((u8::from_str_radix(key.strip_prefix("shard.")?, 16).ok()?, owner)))
            .collect();
        let share = |id: &str| shards.iter().filter(|(_, owner)| *owner == id).map(|(shard, _)| *shard).collect();
        members.map(|(id, address)| ((address, id.to_owned()), share(id))).collect()
    }

    /// How many shards each member has, the fewest first.
    pub async fn counts(&self) -> Vec<usize> {
        let mut counts: Vec<usize> = self.shares().await.values().map(BTreeSet::len).collect();
        counts.sort_unstable();
        counts
    }

    /// Waits until the members have these numbers of shards, the smallest first; returns how long that took.
    pub async fn until(&self, wanted: &[usize]) -> Duration {
        let began = Instant::now();
        let mut counts = Vec::new();
        while began.elapsed() < PATIENCE {
            counts = self.counts().await;
            if counts == wanted {
                return began.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the shares are {counts:?} and not {wanted:?}");
    }

    /// The shards of the coordinator at an address.
    pub async fn of(&self, address: SocketAddr) -> BTreeSet<u8> {
        let shares = self.shares().await;
        let of = shares.into_iter().filter(|((at, _), _)| *at == address.to_string());
        of.flat_map(|(_, shards)| shards).collect()
    }

    /// The feeds with a listener: each with the shards that it follows and the number of delivered entries.
    pub async fn feeds(&self) -> Vec<(usize, u64)> {
        let log = self.context.get_stream(names::STREAM).await.expect("the log is there");
        let consumers: Vec<consumer::Info> = log.consumers().try_collect().await.expect("consumers");
        let feeds = consumers.into_iter().filter(|info| info.name.starts_with("feed-") && info.push_bound);
        let feeds = feeds.map(|info| {
            let all = info.config.filter_subject.is_empty();
            (if all { usize::from(run::Partition::SHARDS) } else { 1 }, info.delivered.consumer_sequence)
        });
        feeds.collect()
    }

    /// The snapshot of a shard.
    pub async fn snapshot(&self, shard: u8) -> Option<Snapshot> {
        let store = self.context.get_key_value(names::SNAPSHOTS_BUCKET).await.expect("the bucket is there");
        let value = store.get(format!("{shard:02x}")).await.expect("the broker answers")?;
        Some(Snapshot::decode(value, run::Shard(shard)).expect("it is a snapshot"))
    }

    /// The sequence of the log's last entry.
    pub async fn log_last(&self) -> u64 {
        let log = self.context.get_stream(names::STREAM).await.expect("the log is there");
        log.cached_info().state.last_sequence
    }

    /// How many notices wait to be taken, parked ones too.
    pub async fn queued(&self) -> u64 {
        let queue = self.context.get_stream(names::WEBHOOKS_STREAM).await.expect("the queue is there");
        queue.cached_info().state.messages
    }

    /// How many entries the log has that are about runs.
    pub async fn written(&self) -> usize {
        self.entries(names::STREAM_SUBJECTS).await - self.entries(&format!("{}.run.*._.mark", names::NAMESPACE)).await
    }

    /// How many entries a filter of the log matches.
    pub async fn entries(&self, filter: &str) -> usize {
        let log = self.context.get_stream(names::STREAM).await.expect("the log is there");
        let mut subjects = log.info_with_subjects(filter).await.expect("the log is there");
        let mut count = 0;
        while let Some(subject) = subjects.next().await {
            count += subject.expect("the broker answers").1;
        }
        count
    }
}
