//! Which shards this coordinator owns: a lease a shard, taken and renewed by compare-and-set on a bucket.
//!
//! Nobody compares clocks. A lease has lapsed for somebody else when it has not seen it renewed for a whole lease of its
//! own time; its holder gives it up a while before that, counted from when it asked for the renewal.

use std::time::Duration;

use async_nats::jetstream::kv;
use bytes::Bytes;
use futures::StreamExt as _;
use proto::names;
use run::Shard;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Broker;

/// How long a lease lasts without renewal.
const LEASE: Duration = Duration::from_secs(6);
const RENEWAL: Duration = Duration::from_secs(2);
/// How much sooner a holder stops acting than others may take over.
const MARGIN: Duration = Duration::from_secs(1);
/// How long one request to the bucket may take before the others go on.
const REQUEST_PATIENCE: Duration = Duration::from_secs(2);

/// Until when each shard is ours; `None` where it is not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Owned([Option<Instant>; names::SHARDS as usize]);

impl Owned {
    pub(crate) fn holds(&self, shard: Shard) -> bool {
        let until = self.0.get(usize::from(shard.0)).copied().flatten();
        until.is_some_and(|until| Instant::now() < until)
    }

    /// The shards that are ours now.
    pub(crate) fn shards(&self) -> Vec<Shard> {
        (0..names::SHARDS).map(Shard).filter(|shard| self.holds(*shard)).collect()
    }
}

/// What is known of one shard's lease.
#[derive(Debug, Clone, Copy)]
struct Seen {
    revision: u64,
    /// Somebody holds it, as far as the bucket says.
    taken: bool,
    /// When it was last seen to change, by our own clock.
    changed: Instant,
}

/// Takes and renews leases until told to stop, then gives them back.
pub(crate) async fn hold(broker: Broker, owner: String, owned: watch::Sender<Owned>, stop: CancellationToken) {
    let store = broker.leases;
    let mut seen = [Seen { revision: 0, taken: false, changed: Instant::now() }; names::SHARDS as usize];
    let mut ours: [Option<u64>; names::SHARDS as usize] = [None; names::SHARDS as usize];
    let mut changes = None;
    let mut tick = tokio::time::interval(RENEWAL);
    loop {
        let next = async {
            match &mut changes {
                None => std::future::pending().await,
                Some(changes) => kv::Watch::next(changes).await,
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            _ = tick.tick() => {
                if changes.is_none() {
                    changes = store.watch_with_history("*").await.inspect_err(|error| {
                        tracing::warn!(%error, "cannot watch the shard leases, trying again");
                    }).ok();
                    look(&store, &mut seen).await;
                }
                renew(&store, &owner, &mut seen, &mut ours, &owned).await;
            }
            change = next => match change {
                Some(Ok(entry)) => {
                    let shard = entry.key.parse::<Shard>().ok().and_then(|shard| ours.get_mut(usize::from(shard.0)));
                    if let Some(Some(revision)) = shard
                        && entry.value == owner.as_bytes()
                    {
                        *revision = entry.revision.max(*revision);
                    }
                    note(&entry, &mut seen);
                }
                Some(Err(_)) | None => changes = None,
            }
        }
    }
    // Whoever is next sees an empty lease and need not wait for it to lapse; if this fails it does.
    let returns = (0u8..).zip(ours).filter_map(|(shard, revision)| {
        let (store, key, revision) = (&store, key(Shard(shard)), revision?);
        Some(async move { store.update(key, Bytes::new(), revision).await })
    });
    drop(tokio::time::timeout(REQUEST_PATIENCE, futures::future::join_all(returns)).await);
    owned.send_replace(Owned([None; names::SHARDS as usize]));
}

fn key(shard: Shard) -> String {
    shard.to_string()
}

/// The first look: without it a fresh coordinator would wait for lapses that it could see are none.
async fn look(store: &kv::Store, seen: &mut [Seen]) {
    for shard in 0..names::SHARDS {
        if let Ok(Some(entry)) = store.entry(key(Shard(shard))).await {
            note(&entry, seen);
        }
    }
}

fn note(entry: &kv::Entry, seen: &mut [Seen]) {
    let shard = entry.key.parse::<Shard>().ok().and_then(|shard| seen.get_mut(usize::from(shard.0)));
    if let Some(seen) = shard.filter(|seen| entry.revision > seen.revision) {
        let taken = entry.operation == kv::Operation::Put && !entry.value.is_empty();
        *seen = Seen { revision: entry.revision, taken, changed: Instant::now() };
    }
}

async fn renew(
    store: &kv::Store,
    owner: &str,
    seen: &mut [Seen],
    ours: &mut [Option<u64>],
    owned: &watch::Sender<Owned>,
) {
    for index in 0..names::SHARDS {
        let (at, shard) = (usize::from(index), Shard(index));
        let asked = Instant::now();
        let lapsed = !seen[at].taken || seen[at].changed.elapsed() >= LEASE;
        // Somebody else's entry after ours means that the lease was lost.
        let mine = ours[at].filter(|revision| *revision >= seen[at].revision);
        let revision = match (mine, lapsed) {
            (Some(revision), _) => revision,
            (None, true) => seen[at].revision,
            (None, false) => {
                lose(&mut ours[at], shard, owned);
                continue;
            }
        };
        let value = Bytes::copy_from_slice(owner.as_bytes());
        let update = tokio::time::timeout(REQUEST_PATIENCE, store.update(key(shard), value, revision)).await;
        match update {
            Ok(Ok(revision)) => {
                if ours[at].replace(revision).is_none() {
                    tracing::debug!(shard = %shard, "took a shard");
                }
                seen[at] = Seen { revision, taken: true, changed: asked };
                owned.send_modify(|owned| owned.0[at] = Some(asked + LEASE - MARGIN));
            }
            Ok(Err(error)) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => {
                match store.entry(key(shard)).await {
                    // Our own renewal, whose confirmation was lost: still ours, and not for longer than is known.
                    Ok(Some(entry)) if entry.value == owner.as_bytes() && ours[at].is_some() => {
                        ours[at] = Some(entry.revision);
                        note(&entry, seen);
                    }
                    Ok(Some(entry)) => {
                        lose(&mut ours[at], shard, owned);
                        note(&entry, seen);
                    }
                    Ok(None) | Err(_) => lose(&mut ours[at], shard, owned),
                }
            }
            // Not known: the lease stays ours until it runs out by our own clock.
            Ok(Err(error)) => tracing::warn!(shard = %shard, %error, "cannot renew a shard"),
            Err(_) => tracing::warn!(shard = %shard, "the broker is slow to renew a shard"),
        }
    }
}

fn lose(ours: &mut Option<u64>, shard: Shard, owned: &watch::Sender<Owned>) {
    if ours.take().is_some() {
        tracing::warn!(shard = %shard, "lost a shard");
        owned.send_modify(|owned| owned.0[usize::from(shard.0)] = None);
    }
}

/// Nothing is owned yet.
pub(crate) fn nothing() -> Owned {
    Owned([None; names::SHARDS as usize])
}
