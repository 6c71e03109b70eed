//! Checks the partitions of the log after the first one, and where their leaders are.

use std::collections::BTreeMap;

use async_nats::jetstream::context::{ConsumerInfoErrorKind, GetStreamError};
use async_nats::jetstream::stream::{Info, Stream};
use async_nats::jetstream::{self, Context};
use futures::TryStreamExt as _;
use proto::names;
use run::Partition;

use super::super::setup;
use super::{Finding, copies, room, settings};

pub(super) type Found = (Partition, Result<Stream, GetStreamError>);

/// The streams of the partitions after the first one.
pub(super) async fn further(context: &Context) -> Vec<Found> {
    // Without an answer only the first one is checked, as by earlier releases.
    let count = setup::partitions(context).await.unwrap_or(1);
    let mut found = Vec::new();
    for partition in Partition::first(count).skip(1) {
        found.push((partition, context.get_stream(names::stream(partition)).await));
    }
    found
}

pub(super) fn examine(first: &Info, further: &[Found]) -> Vec<Finding> {
    if further.is_empty() {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut leaders: BTreeMap<&str, usize> = BTreeMap::new();
    leaders.extend(leader(first).map(|leader| (leader, 1)));
    for (partition, found) in further {
        match found {
            Ok(stream) => {
                let info = stream.cached_info();
                for finding in [settings(&info.config), copies(info), room::room(info)] {
                    findings.push(Finding { what: format!("partition {partition} {}", finding.what), ..finding });
                }
                if let Some(leader) = leader(info) {
                    *leaders.entry(leader).or_default() += 1;
                }
            }
            Err(error) => {
                let advice = "its runs stand still, and those of other partitions do not: bring back its servers";
                findings.push(Finding::fail(format!("partition {partition}"), error, advice));
            }
        }
    }
    findings.extend(spread(&leaders));
    findings
}

/// The server that leads a stream; `None` for a single server, which has no cluster.
fn leader(info: &Info) -> Option<&str> {
    info.cluster.as_ref().filter(|cluster| cluster.name.is_some())?.leader.as_deref()
}

/// Whether the leaders of the partitions share the work: the leader of a stream does most of it.
fn spread(leaders: &BTreeMap<&str, usize>) -> Option<Finding> {
    let (what, all) = ("leaders", leaders.values().sum::<usize>());
    let most = leaders.iter().max_by_key(|(_, count)| **count);
    let (leader, most) = most.map(|(leader, count)| (*leader, *count))?;
    let counts: Vec<String> = leaders.iter().map(|(leader, count)| format!("{leader}: {count}")).collect();
    let found = format!("of {all} partitions: {}", counts.join(", "));
    Some(if most * 2 > all && most > 2 {
        let advice =
            format!("{leader} does most of the work: move some with `nats stream cluster step-down ty-log-1`, say");
        Finding::warn(what, found, advice)
    } else {
        Finding::ok(what, found)
    })
}

/// The queues of pools in a stream.
pub(super) async fn queues_of(log: &Stream) -> Result<Vec<jetstream::consumer::Info>, Box<Finding>> {
    // One by one: listing all would wait for a coordinator's feed on a server that is gone.
    let names: Vec<String> = log.consumer_names().try_collect().await.map_err(|error| {
        let advice = "the log does not list its queues: see the lines `servers` and `replicas`, and bring back what \
            is gone";
        Finding::fail("pools", error, advice)
    })?;
    let mut queues = Vec::new();
    for name in names.iter().filter(|name| name.starts_with("pool-")) {
        match log.consumer_info(name).await {
            Ok(queue) => queues.push(queue),
            Err(error) if error.kind() == ConsumerInfoErrorKind::NotFound => {}
            Err(error) => {
                let advice =
                    "the queue has no leader: see the lines `servers` and `replicas`, and bring back what is gone";
                return Err(Finding::fail("pools", format!("{name}: {error}"), advice).into());
            }
        }
    }
    Ok(queues)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_server_that_leads_most_partitions_is_named() {
        let level = |leaders: &[(&'static str, usize)]| {
            spread(&leaders.iter().copied().collect()).map(|finding| (finding.level, finding.found))
        };
        assert_eq!(level(&[]), None, "a single server");
        let (even, found) = level(&[("a", 2), ("b", 1), ("c", 1)]).expect("a cluster");
        assert_eq!((even, found.as_str()), (Level::Ok, "of 4 partitions: a: 2, b: 1, c: 1"));
        assert_eq!(level(&[("a", 3), ("b", 1)]).map(|(level, _)| level), Some(Level::Warn));
    }
}
