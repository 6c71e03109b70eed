//! Since when a set of tools has had no hosts. Recorded at the broker, because coordinators restart more often than a
//! set is forgotten.

use std::collections::HashMap;
use std::time::Duration;

use async_nats::jetstream::kv;
use futures::StreamExt as _;
use proto::names;
use run::Timestamp;
use tokio::time::Instant;

use crate::fleet::registry::Hosts;

/// Prefix of the keys, which are beside the snapshots of shards.
const DESERTED: &str = "deserted.";
/// Records that are written or removed in one check; the next check continues.
const NOTES_MAX: usize = 16;

pub(super) struct Deserted {
    store: kv::Store,
    /// How long a set has no hosts before that is recorded: longer than replacing workers takes.
    noted_after: Duration,
    since: HashMap<Hosts, Since>,
}

#[derive(Debug)]
struct Since {
    seen: Instant,
    noted: Option<Timestamp>,
}

impl Deserted {
    pub(super) fn new(store: kv::Store, noted_after: Duration) -> Self {
        Self { store, noted_after, since: HashMap::new() }
    }

    /// Reads the records.
    pub(super) async fn load(&mut self) -> Result<(), String> {
        let mut keys = self.store.keys().await.map_err(|error| error.to_string())?;
        while let Some(key) = keys.next().await {
            let key = key.map_err(|error| error.to_string())?;
            let Some(hosts) = key.strip_prefix(DESERTED).and_then(names::advertisement_of) else { continue };
            if let Some(noted) = self.find(&key).await? {
                self.since.insert(hosts, Since { seen: Instant::now(), noted: Some(noted) });
            }
        }
        Ok(())
    }

    async fn find(&self, key: &str) -> Result<Option<Timestamp>, String> {
        let found = self.store.get(key).await.map_err(|error| error.to_string())?;
        Ok(found.and_then(|at| std::str::from_utf8(&at).ok()?.parse().ok()).map(Timestamp))
    }

    /// Records which of the known sets have no hosts.
    pub(super) async fn look<'a>(&mut self, sets: impl Iterator<Item = (&'a Hosts, bool)>) {
        let mut before = std::mem::take(&mut self.since);
        for (hosts, _) in sets.filter(|(_, is_hosted)| !is_hosted) {
            let since = before.remove(hosts).unwrap_or_else(|| Since { seen: Instant::now(), noted: None });
            self.since.insert(hosts.clone(), since);
        }
        let mut room = NOTES_MAX;
        for (hosts, since) in before {
            // It has hosts again, or was forgotten.
            if since.noted.is_some() && (room == 0 || !self.remove(&hosts).await) {
                self.since.insert(hosts, since);
            }
            room = room.saturating_sub(1);
        }
        let unnoted = self.since.iter().filter(|(_, since)| since.noted.is_none());
        let unnoted = unnoted.filter(|(_, since)| since.seen.elapsed() >= self.noted_after);
        for hosts in unnoted.map(|(hosts, _)| hosts.clone()).take(room).collect::<Vec<_>>() {
            let noted = self.note(&hosts).await;
            if let Some(since) = self.since.get_mut(&hosts) {
                since.noted = noted;
            }
        }
    }

    /// For how long a set has had no hosts, according to the records.
    pub(super) fn age(&self, hosts: &Hosts, now: Timestamp) -> Option<Duration> {
        Some(now.since(self.since.get(hosts)?.noted?))
    }

    /// Records that a set has no hosts from now on, unless another coordinator did before.
    async fn note(&self, hosts: &Hosts) -> Option<Timestamp> {
        let (key, now) = (key(hosts), ::nats::now());
        if self.store.create(&key, now.0.to_string().into()).await.is_ok() {
            return Some(now);
        }
        self.find(&key).await.ok().flatten()
    }

    async fn remove(&self, hosts: &Hosts) -> bool {
        let subject = format!("{}{}", self.store.prefix, key(hosts));
        let removed = self.store.stream.purge().filter(subject).await;
        removed
            .inspect_err(|error| {
                tracing::warn!(pool = %hosts.0, %error, "removing the record of a set without \
            hosts failed, retrying")
            })
            .is_ok()
    }
}

fn key((pool, tools): &Hosts) -> String {
    format!("{DESERTED}{}", names::advertisement(pool, tools))
}
