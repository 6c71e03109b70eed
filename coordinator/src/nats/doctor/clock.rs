//! Compares the clocks of the broker's servers with this machine's.

use std::time::Duration;

use async_nats::jetstream::Context;
use proto::names;

use super::super::journal::millis;
use super::Finding;

/// Workers compare the broker's time with their own clocks: the first difference is harmless, the second makes
/// deadlines wrong.
const CLOCK_FINE: Duration = Duration::from_secs(1);
const CLOCK_BROKEN: Duration = Duration::from_secs(5);

/// The clock of the server that leads a partition, and ours at that moment, with an uncertainty of half the round trip.
/// In milliseconds.
pub(super) struct Clocks {
    pub(super) broker: u64,
    ours: u64,
    unsure: u64,
}

impl Clocks {
    fn difference(&self) -> Duration {
        Duration::from_millis(self.ours.abs_diff(self.broker).saturating_sub(self.unsure))
    }
}

pub(super) async fn clocks(context: &Context, stream: &str) -> Option<Clocks> {
    let wanted = ::nats::now().0;
    let answer: serde_json::Value = context.request(format!("STREAM.INFO.{stream}"), &()).await.ok()?;
    let unsure = ::nats::now().0.saturating_sub(wanted).div_ceil(2);
    let time: prost_types::Timestamp = answer["ts"].as_str()?.parse().ok()?;
    let broker = i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos);
    Some(Clocks { broker: millis(broker).0, ours: wanted + unsure, unsure })
}

/// Entries count by the clock of the server that leads their partition.
pub(super) async fn clock(context: &Context, partitions: usize) -> Finding {
    let what = "clock";
    let asked = names::STREAMS.iter().take(partitions).map(|stream| clocks(context, stream));
    let answers = futures::future::join_all(asked).await;
    let Some(worst) = answers.into_iter().flatten().max_by_key(Clocks::difference) else {
        return Finding::warn(what, "the broker does not report its time", "compare it with this machine's by hand");
    };
    let Clocks { broker, ours, unsure } = worst;
    let side = if ours < broker { "behind" } else { "ahead of" };
    let found = format!("this machine is {} ms {side} the broker, give or take {unsure}", ours.abs_diff(broker));
    let advice = "let NTP set the clocks of all machines: deadlines are as exact as they agree, and a server of the \
        broker that is more than 16 s from another one makes the runs of its partitions expire";
    match worst.difference() {
        difference if difference > CLOCK_BROKEN => Finding::fail(what, found, advice),
        difference if difference > CLOCK_FINE => Finding::warn(what, found, advice),
        _ => Finding::ok(what, found),
    }
}
