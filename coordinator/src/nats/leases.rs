//! Drives this coordinator's membership with the lease bucket: performs its requests, watches the bucket, and
//! publishes which shards this coordinator owns. All decisions are in [`owner::membership`].

use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use owner::membership::{
    self, Action, Answer, CHECK, Change, Found, Key, Notice, Operation, REQUEST_PATIENCE, Request,
};
use run::{Partition, Shard};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Broker;
use super::setup::{BrokerError, Patience, SetupError};
use crate::shards::Owned;
use crate::tasks::finished;

/// This coordinator's membership, with the bucket.
pub(crate) struct Membership {
    store: kv::Store,
    machine: membership::Membership,
    published: watch::Sender<Owned>,
    /// How many partitions the log has.
    partitions: watch::Receiver<usize>,
    requests: JoinSet<(Request, Result<Answer, String>)>,
}

impl Membership {
    /// Stores this coordinator's key, so that the others give it a share of the shards.
    pub(crate) async fn join(
        broker: &Broker,
        who: String,
        (published, partitions): (watch::Sender<Owned>, watch::Receiver<usize>),
    ) -> Result<Self, SetupError> {
        let (store, patience) = (broker.leases.clone(), Patience::new("our lease"));
        let name = uuid::Uuid::now_v7().simple().to_string();
        let machine = membership::Membership::new(name, who, shards_of(*partitions.borrow()), now());
        let mut joining = Self { store, machine, published, partitions, requests: JoinSet::new() };
        loop {
            joining.perform();
            let refusal = match joining.requests.join_next().await {
                Some(done) => joining.answered(finished(done)),
                None => None,
            };
            if joining.machine.is_member() {
                joining.perform();
                return Ok(joining);
            }
            patience.after(BrokerError::not_yet(refusal.unwrap_or_default())).await?;
            joining.machine.handle_timeout(now());
        }
    }

    /// Keeps this coordinator's share of the shards until `stop`, then releases them. `written` names shards whose
    /// snapshots were stored after their release began.
    pub(crate) async fn hold(mut self, mut written: mpsc::Receiver<Shard>, stop: CancellationToken) {
        let mut changes = Changes { store: self.store.clone(), watch: None, opening: None };
        while !self.machine.is_over() {
            let wake = self.machine.poll_timeout().map(Instant::from_std);
            tokio::select! {
                biased;
                () = stop.cancelled(), if !self.machine.is_stopping() => self.machine.handle_stop(now()),
                () = sleep_until(wake) => self.machine.handle_timeout(now()),
                Some(done) = self.requests.join_next() => {
                    self.answered(finished(done));
                }
                Ok(()) = self.partitions.changed() => {
                    let shards = shards_of(*self.partitions.borrow_and_update());
                    self.machine.handle_shards(shards, now());
                }
                Some(shard) = written.recv() => self.machine.handle_snapshot_stored(shard, now()),
                change = changes.next() => match change {
                    Some(entry) => self.changed(&entry),
                    None => self.machine.handle_missed(now()),
                },
            }
            self.perform();
        }
    }

    fn perform(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Publish => {
                    let until = Instant::from_std(self.machine.until());
                    let of_all = (self.machine.shards(), self.machine.all_carry());
                    self.published.send_replace(Owned::new(until, *self.machine.claims(), of_all));
                }
                Action::Send(request) => {
                    let store = self.store.clone();
                    self.requests.spawn(async move {
                        let answer = tokio::time::timeout(REQUEST_PATIENCE, perform(&store, &request)).await;
                        (request, answer.unwrap_or_else(|_| Err("the broker is slow".to_owned())))
                    });
                }
                Action::Report(Notice::Evicted { member, shards }) => {
                    tracing::warn!(member, ?shards, "this coordinator was evicted, joining again");
                }
                Action::Report(Notice::MemberLost { member }) => tracing::warn!(member, "a coordinator was lost"),
                Action::Report(Notice::ReleasedWithoutSnapshot { shard }) => {
                    tracing::warn!(%shard, "releasing shard without a snapshot");
                }
            }
        }
    }

    /// Passes an answer on. Returns the error, if there was one.
    fn answered(&mut self, (request, answer): (Request, Result<Answer, String>)) -> Option<String> {
        let error = answer.as_ref().err().cloned();
        if let Some(error) = &error {
            tracing::warn!(key = %request.key, operation = ?request.operation, error, "lease request failed");
        }
        self.machine.handle_answer(request, answer.unwrap_or(Answer::Unknown), now());
        error
    }

    fn changed(&mut self, entry: &kv::Entry) {
        if let Some(key) = Key::parse(&entry.key) {
            let is_stored = entry.operation == kv::Operation::Put;
            let value = is_stored.then(|| text(&entry.value));
            let age = i128::from(::nats::now().0) - entry.created.unix_timestamp_nanos() / 1_000_000;
            let age = Duration::from_millis(u64::try_from(age).unwrap_or(0));
            self.machine.handle_change(Change { key, value, revision: entry.revision, age }, now());
        }
        if entry.seen_current {
            self.machine.handle_all_seen(now());
        }
    }
}

fn shards_of(partitions: usize) -> usize {
    partitions * usize::from(Partition::SHARDS)
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

async fn sleep_until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}

fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}

/// Performs a request. On a conflict, reads the present content of the key.
async fn perform(store: &kv::Store, request: &Request) -> Result<Answer, String> {
    let key = request.key.to_string();
    let stored = match &request.operation {
        Operation::Put(value) => store.update(&key, Bytes::copy_from_slice(value.as_bytes()), request.revision).await,
        Operation::Delete => store.delete_expect_revision(&key, Some(request.revision)).await.map(|()| 0),
        Operation::Purge => {
            let purge = store.stream.purge().filter(format!("{}{key}", store.prefix));
            return purge.await.map(|_| Answer::Stored(0)).map_err(|error| error.to_string());
        }
    };
    match stored {
        Ok(revision) => Ok(Answer::Stored(revision)),
        Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => {
            find(store, &key).await.map(Answer::Conflict)
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The content of a key, read from the bucket's leader: never stale.
async fn find(store: &kv::Store, key: &str) -> Result<Option<Found>, String> {
    match store.stream.get_last_raw_message_by_subject(&format!("{}{key}", store.prefix)).await {
        Ok(message) => {
            let deleted = message.headers.get("KV-Operation").is_some();
            let value = (!deleted).then(|| text(&message.payload));
            Ok(Some(Found { value, revision: message.sequence }))
        }
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// The content of the bucket, then every change.
struct Changes {
    store: kv::Store,
    watch: Option<kv::Watch>,
    /// Kept while the watch is being opened, because the caller may stop waiting for it.
    opening: Option<BoxFuture<'static, Option<kv::Watch>>>,
}

impl Changes {
    /// The next change; `None` when some may have been missed: then the whole content comes again. May be dropped
    /// while it waits.
    async fn next(&mut self) -> Option<kv::Entry> {
        loop {
            if let Some(watch) = &mut self.watch {
                if let Some(Ok(entry)) = watch.next().await {
                    return Some(entry);
                }
                self.watch = None;
                return None;
            }
            let store = &self.store;
            let opening = self.opening.get_or_insert_with(|| open(store.clone()).boxed());
            self.watch = opening.await;
            self.opening = None;
        }
    }
}

async fn open(store: kv::Store) -> Option<kv::Watch> {
    match store.watch_with_history(">").await {
        Ok(watch) => Some(watch),
        Err(error) => {
            tracing::warn!(%error, "watching the lease bucket failed, trying again");
            tokio::time::sleep(CHECK).await;
            None
        }
    }
}
