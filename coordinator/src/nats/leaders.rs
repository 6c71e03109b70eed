//! Spreads the leaders of the log's partitions over the servers of the broker. The leader of a stream does most of its
//! work, and the broker elects one wherever it can: after some restarts the server that was restarted least leads
//! everything. One coordinator moves them back, one at a time: the owner of the first shard.

use std::collections::BTreeMap;
use std::time::Duration;

use async_nats::jetstream::response::Response;
use async_nats::jetstream::stream::{Info, PeerInfo};
use proto::names;
use run::Partition;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::Broker;
use super::journal::{Journals, has_everything};
use crate::shards::Owned;

/// How often the leaders are looked at. One is moved if two looks in a row find the same: servers restart one after the
/// other.
const LOOK: Duration = Duration::from_secs(10);
/// How many looks are left out after a leader was not moved, at first; twice as many each time until one is moved, at
/// most so many times. A server that is about to stop, or whose disk fails, takes no leadership and still follows; each
/// attempt to give it one costs the partition an election, 4 to 9 s without a leader.
const LEFT_OUT: u32 = 5;
const DOUBLED_MAX: u32 = 5;
/// A follower is no target if its leader has not heard of it for so long: the broker would choose another server.
const HEARD_WITHIN: Duration = Duration::from_secs(2);
/// How long an answer of the broker is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// The servers that have a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Servers {
    leader: String,
    /// Those that could lead it: they have all of its entries.
    followers: Vec<String>,
}

/// A leader that should be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) partition: Partition,
    pub(super) from: String,
    pub(super) to: String,
}

impl Servers {
    /// `None` while the partition has no leader, and for a single server, which has no cluster.
    pub(super) fn of(info: &Info) -> Option<Self> {
        let cluster = info.cluster.as_ref().filter(|cluster| cluster.name.is_some())?;
        let could_lead = |peer: &&PeerInfo| has_everything(peer) && peer.active < HEARD_WITHIN;
        let followers = cluster.replicas.iter().filter(could_lead).map(|peer| peer.name.clone()).collect();
        Some(Self { leader: cluster.leader.clone()?, followers })
    }

    /// Of a partition with a copy on each of these.
    #[cfg(test)]
    pub(super) fn among(leader: &str, servers: impl IntoIterator<Item = &'static str>) -> Self {
        let followers = servers.into_iter().filter(|server| *server != leader).map(str::to_owned).collect();
        Self { leader: leader.to_owned(), followers }
    }
}

/// How many partitions each server leads.
pub(super) fn counts<'a>(servers: impl IntoIterator<Item = &'a Servers>) -> BTreeMap<&'a str, usize> {
    let mut counts = BTreeMap::new();
    for servers in servers {
        *counts.entry(servers.leader.as_str()).or_default() += 1;
        for follower in &servers.followers {
            counts.entry(follower.as_str()).or_default();
        }
    }
    counts
}

/// How many looks are left out when a leader was not moved after so many others that were not.
fn left_out_after(failed: u32) -> u32 {
    LEFT_OUT << failed.min(DOUBLED_MAX)
}

/// The next leader to move: to the server that leads the fewest partitions, from one that leads at least two more.
pub(super) fn next(partitions: &[(Partition, Servers)]) -> Option<Move> {
    let counts = counts(partitions.iter().map(|(_, servers)| servers));
    let count = |server: &str| counts.get(server).copied().unwrap_or_default();
    let moves = partitions.iter().flat_map(|(partition, Servers { leader, followers })| {
        followers.iter().map(move |to| Move { partition: *partition, from: leader.clone(), to: to.clone() })
    });
    let gain = |of: &Move| count(&of.from).saturating_sub(count(&of.to));
    // Of equal ones the first, so that two looks find the same.
    moves.filter(|of| gain(of) >= 2).reduce(|best, of| if gain(&of) > gain(&best) { of } else { best })
}

pub(crate) struct Leaders {
    pub(crate) broker: Broker,
    pub(crate) journals: Journals,
    pub(crate) owned: watch::Receiver<Owned>,
}

/// What the last look found and did.
#[derive(Debug, Default)]
struct Past {
    seen: Option<Move>,
    moved: Option<Move>,
    /// How many leaders were not moved, one after the other.
    failed: u32,
}

/// A leader stayed where it was, or went elsewhere.
struct NotMoved;

#[derive(Debug, Deserialize)]
struct SteppedDown {
    success: bool,
}

impl Leaders {
    pub(crate) async fn keep(self, stop: CancellationToken) {
        let (mut past, mut left_out) = (Past::default(), 0);
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = look.tick() => {}
                () = stop.cancelled() => return,
            }
            if left_out > 0 {
                left_out -= 1;
            } else if let Err(NotMoved) = self.look(&mut past).await {
                left_out = left_out_after(past.failed);
                past = Past { failed: past.failed + 1, ..Past::default() };
            }
        }
    }

    async fn look(&self, past: &mut Past) -> Result<(), NotMoved> {
        let is_ours = Partition::FIRST.shards().next().is_some_and(|first| self.owned.borrow().holds(first));
        if !is_ours || self.journals.count() < 2 {
            *past = Past::default();
            return Ok(());
        }
        let Some(partitions) = self.partitions().await else {
            past.seen = None;
            return Ok(());
        };
        if let Some(Move { partition, from, to }) = past.moved.take() {
            let leader = partitions.iter().find(|(found, _)| *found == partition).map(|(_, found)| &found.leader);
            if leader.is_none_or(|leader| *leader != to) {
                tracing::warn!(%partition, from, to, ?leader, "the leader of a partition of the log was not moved");
                return Err(NotMoved);
            }
            past.failed = 0;
            tracing::info!(%partition, from, to, "moved the leader of a partition of the log");
        }
        let next = next(&partitions);
        if let Some(next) = next.as_ref().filter(|next| past.seen.as_ref() == Some(*next)) {
            self.step_down(next).await?;
            past.moved = Some(next.clone());
        }
        past.seen = next;
        Ok(())
    }

    /// The servers of all partitions; `None` while one of them has no leader, because it may get any.
    async fn partitions(&self) -> Option<Vec<(Partition, Servers)>> {
        let mut found = Vec::new();
        for partition in self.journals.partitions() {
            let stream = self.broker.context.get_stream(names::stream(partition));
            let stream = tokio::time::timeout(PATIENCE, stream).await.ok()?.ok()?;
            found.push((partition, Servers::of(stream.cached_info())?));
        }
        Some(found)
    }

    /// Asks the leader to give its place to another server. The broker answers when it has begun to.
    async fn step_down(&self, Move { partition, from, to }: &Move) -> Result<(), NotMoved> {
        let subject = format!("STREAM.LEADER.STEPDOWN.{}", names::stream(*partition));
        let request = json!({ "placement": { "preferred": to } });
        let answer = self.broker.context.request(subject, &request);
        let error = match tokio::time::timeout(PATIENCE, answer).await {
            Ok(Ok(Response::Ok(SteppedDown { success: true }))) => return Ok(()),
            Ok(Ok(Response::Ok(SteppedDown { success: false }))) => "it refuses, and does not say why".to_owned(),
            Ok(Ok(Response::Err { error })) => error.to_string(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "it does not answer".to_owned(),
        };
        tracing::warn!(
            %partition, from, to, error,
            "the broker does not move the leader of a partition of the log. If its accounts.conf is of an older \
             release, write it again with `toolyard nats-config`"
        );
        Err(NotMoved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Partitions whose leaders and followers are named by a letter each: `abc` is led by `a`.
    fn partitions(named: &[&str]) -> Vec<(Partition, Servers)> {
        let servers = |named: &&str| {
            let mut letters = named.chars().map(String::from);
            Servers { leader: letters.next().expect("a leader"), followers: letters.collect() }
        };
        Partition::first(Partition::MAX).zip(named.iter().map(servers)).collect()
    }

    fn moved(named: &[&str]) -> Option<String> {
        next(&partitions(named)).map(|Move { partition, from, to }| format!("{partition}: {from} to {to}"))
    }

    #[test]
    fn leaders_that_are_spread_stay() {
        for spread in [&[][..], &["abc"], &["abc", "bac"], &["abc", "bac", "cab"], &["abc", "abc", "bac", "cab"]] {
            assert_eq!(moved(spread), None, "{spread:?}");
        }
    }

    #[test]
    fn a_leader_moves_from_the_server_with_most_to_the_one_with_fewest() {
        assert_eq!(moved(&["abc", "bac", "bac"]).as_deref(), Some("1: b to c"));
        assert_eq!(moved(&["abc", "abc", "abc", "bac"]).as_deref(), Some("0: a to c"));
    }

    #[test]
    fn a_leader_moves_only_to_a_server_that_has_the_partition_and_all_its_entries() {
        assert_eq!(moved(&["ab", "ab"]).as_deref(), Some("0: a to b"));
        assert_eq!(moved(&["a", "a"]), None, "each has one copy");
        assert_eq!(moved(&["a", "ab", "abc"]).as_deref(), Some("1: a to b"), "the first one's followers lag behind");
    }

    #[test]
    fn a_leader_that_cannot_be_moved_is_tried_after_twice_as_long_each_time_up_to_half_an_hour() {
        let pauses: Vec<u64> = (0..8).map(|failed| u64::from(left_out_after(failed)) * LOOK.as_secs()).collect();
        assert_eq!(pauses, [50, 100, 200, 400, 800, 1_600, 1_600, 1_600]);
    }

    #[test]
    fn moves_end_with_leaders_that_differ_by_one_at_most() {
        let mut all = partitions(&["abc"; 16]);
        for _ in 0..10 {
            let Move { partition, from, to } = next(&all).expect("more than one difference");
            let (_, servers) = &mut all[partition.as_usize()];
            servers.followers.retain(|follower| *follower != to);
            servers.followers.push(from);
            servers.leader = to;
        }
        assert_eq!(next(&all), None);
        let counts: Vec<usize> = counts(all.iter().map(|(_, servers)| servers)).into_values().collect();
        assert_eq!(counts, [6, 5, 5]);
    }
}
