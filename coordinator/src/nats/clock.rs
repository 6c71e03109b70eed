//! Keeps the coordinator's time the broker's.

use proto::nats::clock::{Clock, ClockError, LOOK};
use tokio_util::sync::CancellationToken;

use super::Broker;

/// A clock that is right. Nobody is served and no deadline looked at before.
pub(crate) async fn begin(broker: &Broker) -> Result<Clock, ClockError> {
    let mut clock = Clock::of_log(broker.client.clone());
    clock.begin().await?;
    Ok(clock)
}

/// Keeps it right until told to stop.
pub(crate) async fn keep(mut clock: Clock, stop: CancellationToken) {
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
