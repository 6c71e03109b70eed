//! Shows every quarter of a minute what nobody else looks at: the room that objects take, and whether the index is complete.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::index::Index;
use crate::metrics;
use crate::nats::journal::Journal;

const LOOK: Duration = Duration::from_secs(15);

/// Looks until told to stop.
pub(crate) async fn keep(journal: Journal, index: Index, stop: CancellationToken) {
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            _ = look.tick() => {}
            () = stop.cancelled() => return,
        }
        // Where objects lie in a bucket there is no such room.
        if let Some((bytes, bytes_max)) = journal.room_for_objects().await {
            metrics::objects(bytes, bytes_max);
        }
        // An index in memory has the runs of its own shards only, and is meant to.
        if index.redis().is_some() {
            metrics::index_is_complete(index.coverage().await.is_ok_and(|coverage| coverage.complete));
        }
    }
}
