//! Updates what needs a request, every quarter of a minute: bytes of objects and of carried runs, memory that the
//! broker needs, and whether the index is complete.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::index::Index;
use crate::index::filter::Coverage;
use crate::metrics;
use crate::nats::journal::Journals;
use crate::nats::{Broker, memory};

const LOOK: Duration = Duration::from_secs(15);

/// Updates them until `stop`. `memory_max`: bytes of memory that a server of the broker may use.
pub(crate) async fn keep(
    (broker, memory_max): (Broker, Option<u64>),
    journals: Journals,
    index: Index,
    stop: CancellationToken,
) {
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = stop.cancelled() => return,
        }
        if let Some(held) = broker.held().await {
            metrics::broker_memory(memory::of_subjects(held.subjects), memory_max);
            let (bytes, bytes_max) = held.carried;
            journals.note_carried(bytes, bytes_max);
            // `None` if objects are in a bucket.
            if let Some((bytes, bytes_max)) = held.objects {
                metrics::objects(bytes, bytes_max);
            }
        }
        // An index in memory has only the runs of its own shards, by design.
        if index.redis().is_some() {
            let coverage = index.coverage().await;
            metrics::redis_is_reached(coverage.is_ok());
            metrics::index_is_complete(coverage.is_ok_and(Coverage::is_complete));
        }
    }
}
