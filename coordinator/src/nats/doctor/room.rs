//! Checks whether the log has room, and whether its bounds limit the memory of the broker.

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::Info;
use proto::names;

use super::super::journal::ROOM_PERCENT;
use super::super::memory as need;
use super::super::setup::messages_max;
use super::{Finding, ROOM_SOON_PERCENT};

pub(super) fn room(info: &Info) -> Finding {
    let (what, messages) = ("room", info.state.messages);
    let Some(bytes_max) = u64::try_from(info.config.max_bytes).ok().filter(|limit| *limit > 0) else {
        let advice = "give it one: `toolyard log resize`, as the operator";
        return Finding::warn(what, "the log has no limit of bytes", advice);
    };
    let percent = |of: u64, limit: u64| u128::from(of) * 100 / u128::from(limit);
    let by_bytes = percent(info.state.bytes, bytes_max);
    let found = format!("{by_bytes} % of {} MiB used", bytes_max >> 20);
    // A log without the bound of messages always has room by that measure.
    let (by_messages, found) = match u64::try_from(info.config.max_messages).ok().filter(|limit| *limit > 0) {
        Some(limit) => {
            let percent = percent(messages, limit);
            (percent, format!("{found}, {percent} % of {limit} messages ({messages})"))
        }
        None => (0, format!("{found}, {messages} messages")),
    };
    let advice = if by_messages > by_bytes {
        "allow it more messages, for which the broker needs memory: `toolyard log resize --messages`, as the operator"
    } else {
        "give it more room: `toolyard log resize`, as the operator"
    };
    let refused = format!("{found}: new work is refused from {ROOM_PERCENT} % on");
    match by_bytes.max(by_messages) {
        percent if percent >= u128::from(ROOM_PERCENT) => Finding::fail(what, refused, advice),
        percent if percent >= u128::from(ROOM_SOON_PERCENT) => Finding::warn(what, refused, advice),
        _ => Finding::ok(what, found),
    }
}

/// The memory that each server of the broker needs now, and when the log is full. How much it has is not known here.
pub(super) async fn memory(context: &Context, partitions: &[&Info]) -> Finding {
    let mut subjects: u64 = partitions.iter().map(|info| info.state.subjects_count).sum();
    let buckets = [names::REQUESTS_BUCKET, names::CARRIED_BUCKET].map(|bucket| format!("KV_{bucket}"));
    for stream in buckets.into_iter().chain([names::OBJECTS.to_owned()]) {
        // A missing stream is a finding of its own.
        if let Ok(found) = context.get_stream(&stream).await {
            subjects += found.cached_info().state.subjects_count;
        }
    }
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let found =
        format!("{subjects} subjects, for which each server needs some {} MiB", mib(need::of_subjects(subjects)));
    let configs: Vec<_> = partitions.iter().map(|info| &info.config).collect();
    let Some(full) = need::of_full(&configs) else {
        let found = format!("{found}; the log has no bound of messages, so the memory has no limit");
        let advice = format!(
            "an older coordinator made it: `toolyard log resize --messages {}`, as the operator",
            messages_max(partitions.first().map_or(0, |info| info.config.max_bytes))
        );
        return Finding::warn("memory", found, advice);
    };
    let limit = mib(need::limit(full));
    Finding::ok(
        "memory",
        format!(
            "{found}; {} MiB when the log is full (GOMEMLIMIT), which needs a memory limit of {limit} MiB",
            mib(full)
        ),
    )
}
