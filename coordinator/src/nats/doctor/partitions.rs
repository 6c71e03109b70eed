//! Checks the partitions of the log after the first one, and where their leaders are.

use async_nats::jetstream::context::{ConsumerInfoErrorKind, GetStreamError};
use async_nats::jetstream::stream::{Info, Stream};
use async_nats::jetstream::{self, Context};
use futures::TryStreamExt as _;
use proto::names;
use run::Partition;

use super::super::leaders::{self, Servers};
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
    let mut led: Vec<(Partition, Servers)> = Vec::new();
    led.extend(Servers::of(first).map(|servers| (Partition::FIRST, servers)));
    for (partition, found) in further {
        match found {
            Ok(stream) => {
                let info = stream.cached_info();
                for finding in [settings(&info.config), copies(info), room::room(info)] {
                    findings.push(Finding { what: format!("partition {partition} {}", finding.what), ..finding });
                }
                led.extend(Servers::of(info).map(|servers| (*partition, servers)));
            }
            Err(error) => {
                let advice = "its runs stand still, and those of other partitions do not: bring back its servers";
                findings.push(Finding::fail(format!("partition {partition}"), error, advice));
            }
        }
    }
    findings.extend(spread(&led));
    findings
}

/// Whether the leaders of the partitions are spread, as far as they can be; `None` for a single server.
fn spread(led: &[(Partition, Servers)]) -> Option<Finding> {
    let counts = leaders::counts(led.iter().map(|(_, servers)| servers));
    if counts.is_empty() {
        return None;
    }
    let counts: Vec<String> = counts.iter().map(|(server, count)| format!("{server}: {count}")).collect();
    let (what, found) = ("leaders", format!("of {} partitions: {}", led.len(), counts.join(", ")));
    Some(match leaders::next(led) {
        Some(next) => {
            let advice = format!(
                "{} does more than its part. A coordinator moves a leader every 20 s; if it does not, its log says why",
                next.from
            );
            Finding::warn(what, found, advice)
        }
        None => Finding::ok(what, found),
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
    fn a_server_whose_leaders_could_be_moved_is_named() {
        let level = |leaders: &[&str]| {
            let servers = leaders.iter().map(|leader| Servers::among(leader, ["a", "b", "c"]));
            let led: Vec<_> = Partition::first(Partition::MAX).zip(servers).collect();
            spread(&led).map(|finding| (finding.level, finding.found))
        };
        assert_eq!(level(&[]), None, "a single server");
        let (even, found) = level(&["a", "b", "c", "a"]).expect("a cluster");
        assert_eq!((even, found.as_str()), (Level::Ok, "of 4 partitions: a: 2, b: 1, c: 1"));
        let (uneven, found) = level(&["a", "a"]).expect("a cluster");
        assert_eq!((uneven, found.as_str()), (Level::Warn, "of 2 partitions: a: 2, b: 0, c: 0"));
    }
}
