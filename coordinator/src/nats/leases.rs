//! Which shards this coordinator owns: one lease of its own, renewed by compare-and-set, and one key a shard, written only
//! when its owner changes.
//!
//! A member whose lease ran out is evicted before anybody takes its shards: its key is deleted at the revision last seen,
//! so its next renewal meets a conflict and it knows, however long it stood still. It stops acting a while before that by
//! its own clock, counted from when it asked for its last renewal.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use rand::seq::SliceRandom as _;
use run::Shard;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Broker;
use super::setup::{Patience, Refusal, SetupError};
use crate::members::{LEASE, Members};
use crate::shards::{Owned, ShardSet};
use crate::tasks::finished;

const RENEWAL: Duration = Duration::from_secs(2);
/// How much sooner a member stops acting than others may take over.
const MARGIN: Duration = Duration::from_secs(1);
/// How often it is looked for what nobody tells: leases that ran out, answers that did not come.
const LOOK: Duration = Duration::from_millis(500);
/// How long one request to the bucket may take. Not longer than a renewal: a slow one must not hold up the next.
const REQUEST_PATIENCE: Duration = RENEWAL;
/// How long a shard may take to be written down before it is given up as it is; the next owner then reads more.
const RELEASE_PATIENCE: Duration = Duration::from_secs(3);
/// How long all of them may take when we leave.
const LEAVE_PATIENCE: Duration = Duration::from_secs(4);
/// How long the key of a member that is gone keeps its tombstone.
const TOMBSTONE: Duration = Duration::from_secs(3600);

/// Requests under way at once beyond which what is not urgent waits for the next coordinator that comes.
const REQUESTS_MAX: usize = 64;

const MEMBER: &str = "member.";
const SHARD: &str = "shard.";

/// Our place among the coordinators.
pub(crate) struct Membership {
    store: kv::Store,
    /// Its address and release, for people who look at the bucket, and for doctor.
    who: String,
    id: String,
    /// The revision of our own key; `None` while we are no member.
    revision: Option<u64>,
    /// When the last renewal that was confirmed was asked for.
    renewed: Instant,
    members: Members,
    owned: Owned,
    published: watch::Sender<Owned>,
    requests: JoinSet<Done>,
    renewing: bool,
    evicting: HashSet<String>,
    claiming: ShardSet,
    freeing: ShardSet,
    /// Since when the shards that we leave wait to be written down.
    leaving: HashMap<Shard, Instant>,
    /// Until when nothing is asked again of a bucket that did not answer.
    pause: Instant,
}

/// An answer of the bucket; `id` is under which name it was asked.
#[derive(Debug)]
struct Done {
    id: String,
    asked: Instant,
    what: What,
    answer: Answer,
}

#[derive(Debug)]
enum What {
    Renew,
    Evict { member: String },
    Claim(Shard),
    Free(Shard),
    Bury,
}

#[derive(Debug)]
enum Answer {
    Stored(u64),
    /// Something else stands there.
    Conflict(Option<Found>),
    /// It may have been stored or not.
    Unknown(String),
}

/// What stands under a key, as the bucket's leader says: nothing that is stale.
#[derive(Debug)]
struct Found {
    value: Option<Bytes>,
    revision: u64,
}

impl Membership {
    /// Makes ourselves known to the others.
    pub(crate) async fn join(
        broker: &Broker,
        who: String,
        published: watch::Sender<Owned>,
    ) -> Result<Self, SetupError> {
        let (store, patience) = (broker.leases.clone(), Patience::new("our lease"));
        let (id, asked, revision) = loop {
            // A new name for each try: one that was stored without an answer is evicted like any member that is silent.
            let (id, asked) = (fresh_id(), Instant::now());
            let refusal = match write(&store, &format!("{MEMBER}{id}"), Some(value(&who)), 0).await {
                Answer::Stored(revision) => break (id, asked, revision),
                Answer::Conflict(_) => Refusal::not_yet("its key is taken"),
                Answer::Unknown(reason) => Refusal::not_yet(reason),
            };
            patience.after(refusal).await?;
        };
        let mut membership = Self {
            store,
            who,
            id,
            revision: None,
            renewed: asked,
            members: Members::new(),
            owned: Owned::nothing(),
            published,
            requests: JoinSet::new(),
            renewing: false,
            evicting: HashSet::new(),
            claiming: ShardSet::default(),
            freeing: ShardSet::default(),
            leaving: HashMap::new(),
            pause: asked,
        };
        membership.confirmed(revision, asked);
        Ok(membership)
    }

    /// Keeps our share of the shards until told to stop, then gives them back. `written` names shards that were written
    /// down after we began to leave them.
    pub(crate) async fn hold(mut self, mut written: mpsc::Receiver<Shard>, stop: CancellationToken) {
        let mut changes = Changes { store: self.store.clone(), watch: None, opening: None };
        let mut renewal = tokio::time::interval(RENEWAL);
        let mut look = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = renewal.tick() => self.renew(),
                Some(done) = self.requests.join_next() => self.done(finished(done)),
                Some(shard) = written.recv() => self.free(shard),
                _ = look.tick() => self.look(),
                change = changes.next() => match change {
                    Some(entry) => self.note(&entry),
                    // What stands in the bucket comes again.
                    None => self.members.missed(Instant::now()),
                },
            }
            self.act();
        }
        self.leave(written).await;
    }

    // ---- our own lease ----

    fn renew(&mut self) {
        if std::mem::replace(&mut self.renewing, true) {
            return;
        }
        let key = format!("{MEMBER}{}", self.id);
        self.ask(What::Renew, key, Some(value(&self.who)), self.revision.unwrap_or(0));
    }

    fn confirmed(&mut self, revision: u64, asked: Instant) {
        if asked.saturating_duration_since(self.renewed) > LEASE - MARGIN {
            // We were cut off, or stood still, and heard of the others as little as they of us.
            self.members.forgive(Instant::now());
        }
        (self.revision, self.renewed) = (Some(revision), asked);
        self.members.lives(&self.id, revision, asked);
        self.owned.until = asked + LEASE - MARGIN;
        self.publish();
    }

    /// Somebody took us for dead. Nothing is ours any more; we come back under another name.
    fn evicted(&mut self) {
        tracing::warn!(member = self.id, shards = ?self.owned.claimed(), "was taken for dead, joining again");
        self.members.left(&self.id);
        self.owned = Owned::nothing();
        (self.id, self.revision, self.renewing) = (fresh_id(), None, false);
        (self.claiming, self.freeing) = (ShardSet::default(), ShardSet::default());
        self.leaving.clear();
        self.publish();
        self.renew();
    }

    fn publish(&self) {
        self.published.send_replace(self.owned);
    }

    // ---- what is asked of the bucket ----

    fn ask(&mut self, what: What, key: String, value: Option<Bytes>, revision: u64) {
        let (store, id, asked) = (self.store.clone(), self.id.clone(), Instant::now());
        self.requests.spawn(async move {
            let answer = write(&store, &key, value, revision).await;
            Done { id, asked, what, answer }
        });
    }

    fn done(&mut self, done: Done) {
        let Done { id, asked, what, answer } = done;
        if matches!(answer, Answer::Unknown(_)) {
            self.pause = Instant::now() + LOOK;
        }
        if let What::Evict { member } = what {
            return self.eviction_done(&member, answer);
        }
        if id != self.id {
            return;
        }
        match what {
            What::Renew => self.renewal_done(answer, asked),
            What::Claim(shard) => self.claim_done(shard, answer),
            What::Free(shard) => self.free_done(shard, answer),
            What::Evict { .. } | What::Bury => {}
        }
    }

    fn renewal_done(&mut self, answer: Answer, asked: Instant) {
        self.renewing = false;
        match answer {
            Answer::Stored(revision) => self.confirmed(revision, asked),
            // Our own renewal, whose confirmation was lost: it counts, but from when is not known, so we ask again.
            Answer::Conflict(Some(Found { value: Some(found), revision })) if found == self.who.as_bytes() => {
                self.revision = Some(revision);
                self.renew();
            }
            Answer::Conflict(_) => self.evicted(),
            // The lease stays ours until it runs out by our own clock.
            Answer::Unknown(reason) => tracing::warn!(reason, "cannot renew our lease"),
        }
    }

    fn eviction_done(&mut self, member: &str, answer: Answer) {
        self.evicting.remove(member);
        match answer {
            Answer::Stored(_) => {
                tracing::warn!(member, "a coordinator was lost");
                self.members.left(member);
            }
            Answer::Conflict(Some(Found { value: Some(_), revision })) => {
                self.members.lives(member, revision, Instant::now());
            }
            Answer::Conflict(_) => self.members.left(member),
            Answer::Unknown(reason) => tracing::warn!(member, reason, "cannot evict a lost coordinator, trying again"),
        }
    }

    fn claim_done(&mut self, shard: Shard, answer: Answer) {
        self.claiming.remove(shard);
        match answer {
            Answer::Stored(revision) => self.shard_is(shard, Some(&self.id.clone()), revision),
            Answer::Conflict(found) => self.found(shard, found),
            // Should it be stored all the same, the bucket will tell.
            Answer::Unknown(reason) => tracing::warn!(%shard, reason, "cannot take a shard"),
        }
        // Shards that were asked for together are taken up together.
        if self.claiming.is_empty() {
            self.publish();
        }
    }

    fn free_done(&mut self, shard: Shard, answer: Answer) {
        self.freeing.remove(shard);
        match answer {
            Answer::Stored(revision) => self.shard_is(shard, None, revision),
            Answer::Conflict(found) => self.found(shard, found),
            Answer::Unknown(reason) => tracing::warn!(%shard, reason, "cannot give a shard back, trying again"),
        }
        self.publish();
    }

    fn found(&mut self, shard: Shard, found: Option<Found>) {
        let Some(Found { value, revision }) = found else {
            self.members.shard_is_unknown(shard);
            return self.owned.lose(shard);
        };
        let owner = value.as_deref().and_then(owner);
        self.shard_is(shard, owner, revision);
    }

    // ---- what the bucket says ----

    fn note(&mut self, entry: &kv::Entry) {
        let stands = (entry.operation == kv::Operation::Put).then_some(&*entry.value);
        if let Some(member) = entry.key.strip_prefix(MEMBER) {
            match stands {
                Some(_) => self.members.lives(member, entry.revision, Instant::now()),
                None if member == self.id && self.revision.is_some_and(|ours| entry.revision > ours) => self.evicted(),
                None => {
                    self.members.left(member);
                    self.bury(entry);
                }
            }
        } else if let Some(shard) = entry.key.strip_prefix(SHARD).and_then(|shard| shard.parse::<Shard>().ok()) {
            self.shard_is(shard, stands.and_then(owner), entry.revision);
            if self.claiming.is_empty() {
                self.publish_changes();
            }
        }
        if entry.seen_current {
            self.members.seen_all();
        }
    }

    /// Takes note of who owns a shard; what is told late is not heard.
    fn shard_is(&mut self, shard: Shard, owner: Option<&str>, revision: u64) {
        self.members.shard_is(shard, owner, revision);
        let (owner, revision) = self.members.owner(shard);
        let ours = owner == Some(self.id.as_str());
        match self.owned.claim(shard) {
            None if ours => {
                tracing::debug!(%shard, "took a shard");
                self.owned.take(shard, revision);
            }
            Some(claim) if !ours && revision > claim => {
                tracing::debug!(%shard, "left a shard");
                self.owned.lose(shard);
                self.leaving.remove(&shard);
            }
            Some(_) | None => {}
        }
    }

    fn publish_changes(&self) {
        let said = *self.published.borrow();
        if said.claimed() != self.owned.claimed() {
            self.publish();
        }
    }

    /// Removes what is left of a member that went long ago.
    fn bury(&mut self, entry: &kv::Entry) {
        let now = i128::from(proto::now().0) * 1_000_000;
        let age = now - entry.created.unix_timestamp_nanos();
        if age < i128::try_from(TOMBSTONE.as_nanos()).unwrap_or(i128::MAX) || self.requests.len() >= REQUESTS_MAX {
            return;
        }
        let (store, subject) = (self.store.clone(), format!("{}{}", self.store.prefix, entry.key));
        let (id, asked) = (self.id.clone(), Instant::now());
        self.requests.spawn(async move {
            let purged =
                tokio::time::timeout(REQUEST_PATIENCE, store.stream.purge().filter(subject).into_future()).await;
            let answer = match purged {
                Ok(Ok(_)) => Answer::Stored(0),
                Ok(Err(error)) => Answer::Unknown(error.to_string()),
                Err(_) => Answer::Unknown("the broker is slow".to_owned()),
            };
            Done { id, asked, what: What::Bury, answer }
        });
    }

    // ---- what follows ----

    /// Evicts the dead, gives up what is more than our share, takes what is missing.
    fn act(&mut self) {
        let now = Instant::now();
        if self.revision.is_none() || now >= self.owned.until || now < self.pause {
            return;
        }
        for (member, revision) in self.members.dead(&self.id, now) {
            if self.evicting.insert(member.clone()) {
                self.ask(What::Evict { member: member.clone() }, format!("{MEMBER}{member}"), None, revision);
            }
        }
        let held = self.owned.claimed().without(self.owned.leaving()).union(self.claiming);
        let mut plan = self.members.plan(&self.id, held);
        plan.claim.retain(|(shard, _)| self.owned.claim(*shard).is_none());
        // Others take from the same heap: not all of us from the same end.
        plan.claim.shuffle(&mut rand::rng());
        for (shard, revision) in plan.claim.into_iter().take(plan.wanted) {
            self.claiming.insert(shard);
            self.ask(What::Claim(shard), key(shard), Some(value(&self.id)), revision);
        }
        let mut released = plan.release.into_iter().filter(|shard| !self.claiming.contains(*shard)).peekable();
        if released.peek().is_some() {
            for shard in released {
                self.owned.leave(shard);
                self.leaving.insert(shard, now);
            }
            self.publish();
        }
    }

    fn look(&mut self) {
        // The broker may be back at any moment, and nobody is served until it confirms.
        if Instant::now() >= self.owned.until {
            self.renew();
        }
        let overdue = self.leaving.iter().filter(|(_, since)| since.elapsed() >= RELEASE_PATIENCE);
        for shard in overdue.map(|(shard, _)| *shard).collect::<Vec<_>>() {
            tracing::warn!(%shard, "gives a shard back without having written down how far it came");
            self.free(shard);
        }
    }

    fn free(&mut self, shard: Shard) {
        let Some(claim) = self.owned.claim(shard).filter(|_| self.owned.leaving().contains(shard)) else { return };
        if self.freeing.contains(shard) {
            return;
        }
        self.leaving.insert(shard, Instant::now());
        self.freeing.insert(shard);
        self.ask(What::Free(shard), key(shard), Some(Bytes::new()), claim);
    }

    /// Gives everything back, so that others take over at once; should that fail they do when our lease has run out.
    async fn leave(mut self, mut written: mpsc::Receiver<Shard>) {
        let deadline = Instant::now() + LEAVE_PATIENCE;
        for shard in self.owned.claimed().iter() {
            self.owned.leave(shard);
            self.leaving.entry(shard).or_insert_with(Instant::now);
        }
        self.publish();
        while !self.owned.claimed().is_empty() {
            tokio::select! {
                Some(shard) = written.recv() => self.free(shard),
                Some(done) = self.requests.join_next() => self.done(finished(done)),
                () = tokio::time::sleep_until(deadline) => break,
                else => break,
            }
        }
        self.owned = Owned::nothing();
        self.publish();
        if let Some(revision) = self.revision {
            self.delete_own_key(revision).await;
        }
    }

    async fn delete_own_key(&self, revision: u64) {
        let key = format!("{MEMBER}{}", self.id);
        let mut gone = write(&self.store, &key, None, revision).await;
        // A renewal of ours was still under way. There is none after it.
        if let Answer::Conflict(Some(Found { value: Some(_), revision })) = gone {
            gone = write(&self.store, &key, None, revision).await;
        }
        if !matches!(gone, Answer::Stored(_) | Answer::Conflict(_)) {
            tracing::warn!(?gone, "the others do not hear that we leave");
        }
    }
}

fn key(shard: Shard) -> String {
    format!("{SHARD}{shard}")
}

fn value(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

fn fresh_id() -> String {
    uuid::Uuid::now_v7().simple().to_string()
}

/// The owner that a shard's key names; none when it is empty.
fn owner(value: &[u8]) -> Option<&str> {
    std::str::from_utf8(value).ok().filter(|owner| !owner.is_empty())
}

/// Writes a key, or deletes it for no value, if it still stands at this revision; says what stands there if not.
async fn write(store: &kv::Store, key: &str, value: Option<Bytes>, revision: u64) -> Answer {
    let written = async {
        let stored = match value {
            Some(value) => store.update(key, value, revision).await,
            None => store.delete_expect_revision(key, Some(revision)).await.map(|()| 0),
        };
        match stored {
            Ok(revision) => Answer::Stored(revision),
            Err(error) if error.kind() == kv::UpdateErrorKind::WrongLastRevision => match find(store, key).await {
                Ok(found) => Answer::Conflict(found),
                Err(error) => Answer::Unknown(error),
            },
            Err(error) => Answer::Unknown(error.to_string()),
        }
    };
    let written = tokio::time::timeout(REQUEST_PATIENCE, written).await;
    written.unwrap_or_else(|_| Answer::Unknown("the broker is slow".to_owned()))
}

async fn find(store: &kv::Store, key: &str) -> Result<Option<Found>, String> {
    match store.stream.get_last_raw_message_by_subject(&format!("{}{key}", store.prefix)).await {
        Ok(message) => {
            let deleted = message.headers.get("KV-Operation").is_some();
            Ok(Some(Found { value: (!deleted).then_some(message.payload), revision: message.sequence }))
        }
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(error.to_string()),
    }
}

/// Every change of the bucket, after what stands in it.
struct Changes {
    store: kv::Store,
    watch: Option<kv::Watch>,
    /// Kept here while it is opened, so that whoever waits may stop waiting.
    opening: Option<BoxFuture<'static, Option<kv::Watch>>>,
}

impl Changes {
    /// The next change; `None` when some may have been missed, which come again. May be dropped while it waits.
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
            tracing::warn!(%error, "cannot watch the leases, trying again");
            tokio::time::sleep(LOOK).await;
            None
        }
    }
}
