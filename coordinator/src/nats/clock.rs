//! Keeps the coordinator's clock in step with the broker's.

use std::time::Duration;

use nats::append::PAUSE;
use nats::clock::{Clock, ClockError, LOOK};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Broker;

/// How long the broker is asked for its time at the start: it may be electing a leader, which takes up to 9 s.
const BEGIN_PATIENCE: Duration = Duration::from_secs(20);

/// A clock that was compared with the broker's. Nothing is served and no deadline is checked before.
pub(crate) async fn begin(broker: &Broker) -> Result<Clock, ClockError> {
    let (mut clock, began) = (Clock::of_log(broker.client.clone()), Instant::now());
    loop {
        match clock.begin().await {
            Ok(()) => return Ok(clock),
            Err(error) if began.elapsed() < BEGIN_PATIENCE => {
                tracing::warn!(%error, "waiting for the broker's time");
                tokio::time::sleep(PAUSE).await;
            }
            Err(error) => return Err(error),
        }
    }
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
