//! Keeps the worker's time the broker's.

use std::time::Duration;

use nats::clock::{Clock, LOOK};
use tokio_util::sync::CancellationToken;

/// The pause before the broker's time is requested again for the first time.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Sets the clock by the broker's. Retries until it is done, because no job is taken before. `false` if the worker was
/// stopped first.
pub(super) async fn begin(clock: &mut Clock, stop: &CancellationToken) -> bool {
    loop {
        let begun = tokio::select! {
            begun = clock.begin() => begun,
            () = stop.cancelled() => return false,
        };
        let Err(error) = begun else { return true };
        tracing::warn!(%error, "waiting for the broker's time");
        tokio::select! {
            () = tokio::time::sleep(RETRY_PAUSE) => {}
            () = stop.cancelled() => return false,
        }
    }
}

/// Corrects the clock until shutdown.
pub(super) async fn keep(mut clock: Clock, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stop.cancelled() => return,
        }
        if let Err(error) = clock.look().await {
            tracing::warn!(%error, "keeping the time without the broker");
        }
    }
}
