//! Keeps the coordinator's clock in step with the broker's.

use nats::clock::{Clock, ClockError, LOOK};
use tokio_util::sync::CancellationToken;

use super::Broker;

/// A clock that was compared with the broker's. Nothing is served and no deadline is checked before.
pub(crate) async fn begin(broker: &Broker) -> Result<Clock, ClockError> {
    let mut clock = Clock::of_log(broker.client.clone());
    clock.begin().await?;
    Ok(clock)
}

/// Corrects it until `stop`.
pub(crate) async fn keep(mut clock: Clock, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = stop.cancelled() => return,
        }
        if let Err(error) = clock.look().await {
            tracing::warn!(%error, "comparing the clock with the broker's failed");
        }
    }
}
