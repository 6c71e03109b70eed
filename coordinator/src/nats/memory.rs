//! How much memory a server of the broker needs: it keeps all subjects of its streams in memory. The server reports
//! its memory only to its system account, so this is an estimate (docs/evidence/performance.md has the measurements).

use async_nats::jetstream::stream::{Config, Info};
use proto::names;

use super::Broker;
use super::setup::{CARRIED_RUN_BYTES, REQUEST_ID_BYTES, bucket_bytes};

/// Memory of a server that holds nothing: the program, connections, consumers, copies of blocks.
const IDLE_BYTES: u64 = 128 << 20;
/// Memory of a subject, with what the server's garbage collection needs beside it.
const SUBJECT_BYTES: u64 = 1 << 10;
/// The percentage of a memory limit that the server may use before it collects garbage harder (`GOMEMLIMIT`).
const LIMIT_PERCENT: u64 = 85;

/// Memory that a server needs for so many subjects.
pub(crate) fn of_subjects(subjects: u64) -> u64 {
    IDLE_BYTES.saturating_add(subjects.saturating_mul(SUBJECT_BYTES))
}

/// Memory that a server needs if all partitions of the log, and the buckets of request ids and of carried runs, are
/// full. `None`: a partition has no bound of messages, so the memory has no limit.
pub(crate) fn of_full(partitions: &[&Config]) -> Option<u64> {
    let of = |log: &&Config| u64::try_from(log.max_messages).ok().filter(|messages| *messages > 0);
    let messages: Vec<u64> = partitions.iter().map(of).collect::<Option<_>>()?;
    let bytes = partitions.iter().fold(0, |bytes: i64, log| bytes.saturating_add(log.max_bytes));
    let beside = bucket_bytes(names::REQUESTS_BUCKET, bytes) / REQUEST_ID_BYTES
        + bucket_bytes(names::CARRIED_BUCKET, bytes) / CARRIED_RUN_BYTES;
    let messages = messages.into_iter().fold(0, u64::saturating_add);
    Some(of_subjects(messages.saturating_add(u64::try_from(beside).unwrap_or(0))))
}

/// The memory limit within which a server may use so much.
pub(crate) fn limit(bytes: u64) -> u64 {
    bytes / LIMIT_PERCENT * 100
}

/// Warns of a log that, once it is full, needs more memory than a server of the broker may use.
pub(super) fn warn_of(partitions: &[&Config], memory_max: Option<u64>) {
    let Some(memory_max) = memory_max else { return };
    match of_full(partitions) {
        Some(needed) if needed > memory_max => tracing::warn!(
            needed,
            memory_max,
            "the broker needs more memory for a full log than --broker-memory: give it more, or lower the log's \
            bounds with `toolyard log resize`"
        ),
        Some(_) | None => {}
    }
}

/// The content of streams that costs the broker memory or may be full.
#[derive(Debug)]
pub(crate) struct Held {
    /// Of the log, request ids, carried runs and objects. A partition that does not answer is left out.
    pub(crate) subjects: u64,
    /// Used and maximum bytes of carried runs.
    pub(crate) carried: (u64, u64),
    /// Used and maximum bytes of objects at the broker. `None`: they are in a bucket.
    pub(crate) objects: Option<(u64, u64)>,
}

impl Broker {
    /// `None`: the broker does not answer.
    pub(crate) async fn held(&self) -> Option<Held> {
        let mut log = 0;
        for stream in self.streams() {
            let found = self.context.get_stream(stream).await;
            log += found.map_or(0, |found| found.cached_info().state.subjects_count);
        }
        let requests = self.requests.stream.get_info().await.ok()?.state.subjects_count;
        let carried = self.carried.stream.get_info().await.ok()?;
        let objects = self.context.get_stream(names::OBJECTS).await.ok();
        let objects = objects.as_ref().map(|objects| objects.cached_info());
        let beside = requests + carried.state.subjects_count;
        let subjects = log + beside + objects.map_or(0, |info| info.state.subjects_count);
        let bytes_max = |info: &Info| u64::try_from(info.config.max_bytes).ok().filter(|bytes| *bytes > 0);
        let used = |info: &Info| (info.state.bytes, bytes_max(info).unwrap_or(u64::MAX));
        Some(Held { subjects, carried: used(&carried), objects: objects.map(used) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nats::setup::{LogOptions, log_config};

    #[test]
    fn a_full_log_of_the_default_size_fits_the_memory_that_the_chart_gives_the_broker() {
        let chart = (4_u64 << 30) / 100 * LIMIT_PERCENT;
        let needed = of_full(&[&log_config(&LogOptions::default())]).expect("it has a bound of messages");
        assert!(needed <= chart, "{needed} of {chart}");
        let large = LogOptions { bytes_max: 2 << 30, ..LogOptions::default() };
        assert!(
            of_full(&[&log_config(&large)]).expect("it has a bound of messages") > chart,
            "the memory is planned by the size"
        );
        let unbounded = Config { max_messages: -1, ..log_config(&LogOptions::default()) };
        assert_eq!(of_full(&[&unbounded]), None);
    }

    #[test]
    fn a_log_with_more_partitions_needs_the_memory_of_each() {
        let log = log_config(&LogOptions::default());
        let of = |partitions: &[&Config]| of_full(partitions).expect("each has a bound of messages");
        let [one, three] = [of(&[&log]), of(&[&log, &log, &log])].map(|bytes| bytes - IDLE_BYTES);
        assert!(
            three.abs_diff(3 * one) <= 4 * SUBJECT_BYTES,
            "its request ids and carried runs included: {one} {three}"
        );
        let unbounded = Config { max_messages: -1, ..log.clone() };
        assert_eq!(of_full(&[&log, &unbounded]), None);
    }
}
