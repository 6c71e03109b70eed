//! Whether clients are served. The test is that our lease was renewed a moment ago, so most of the broker's servers
//! store messages, and that the log has a leader. An answer of one server proves neither, because a server that lost
//! the others continues to answer reads.

use std::sync::Arc;

use proto::names;
use tokio::sync::watch;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use crate::fleet::registry::Registry;
use crate::metrics::COUNTS;
use crate::nats::signals::Signals;
use crate::shards::Owned;

/// How long after it was last confirmed the leader of the log is assumed to exist.
const LEADERLESS: Duration = Duration::from_secs(5);

/// Until when clients are served if no further confirmation comes.
fn served_until(led: Instant, owned: &Owned) -> Instant {
    owned.until.min(led + LEADERLESS)
}

/// Publishes whether clients are served, until `stop`. `led` is when the log was last seen to have a leader, `owned`
/// has the end of our lease. Losing it is no error while we are `leaving`.
pub(crate) async fn keep(
    mut led: watch::Receiver<Instant>,
    mut owned: watch::Receiver<Owned>,
    served: watch::Sender<bool>,
    (leaving, stop): (CancellationToken, CancellationToken),
) {
    loop {
        let until = served_until(*led.borrow_and_update(), &owned.borrow_and_update());
        let now = until > Instant::now();
        COUNTS.log_reached.set(f64::from(u8::from(now)));
        let has_changed = served.send_if_modified(|before| std::mem::replace(before, now) != now);
        if has_changed && !now && !leaving.is_cancelled() {
            tracing::error!(
                "nothing can be stored: the broker lost its leader or most of its servers, or our connection to it \
                failed"
            );
        }
        tokio::select! {
            changed = led.changed() => if changed.is_err() { return },
            changed = owned.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(until), if now => {}
            () = stop.cancelled() => return,
        }
    }
}

/// Informs all workers while messages are not stored. Workers cannot detect that, because the server to which they are
/// connected may continue to answer them. A coordinator that never served, or that is shutting down, sends nothing.
pub(crate) async fn tell_workers(
    (mut served, registry, signals): (watch::Receiver<bool>, watch::Receiver<Arc<Registry>>, Signals),
    (leaving, stop): (CancellationToken, CancellationToken),
) {
    let mut announced = true;
    let mut has_served = false;
    loop {
        let now = *served.borrow_and_update();
        has_served |= now;
        if has_served && (!now || !announced) && !leaving.is_cancelled() {
            let pools = registry.borrow().pools();
            for pool in &pools {
                signals.storing(pool, now).await;
            }
            announced = now;
        }
        tokio::select! {
            changed = served.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(names::UNSTORED_TOLD), if !now => {}
            () = stop.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn clients_are_served_while_the_lease_is_renewed_and_the_log_has_a_leader() {
        let (lead, led) = watch::channel(Instant::now());
        let (own, owned) = watch::channel(Owned::nothing());
        let (tell, mut served) = watch::channel(true);
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(keep(led, owned, tell, Default::default()));
        let renew = |seconds| own.send_modify(|owned| owned.until = Instant::now() + Duration::from_secs(seconds));

        assert!(!*served.wait_for(|served| !served).await.expect("told"), "no lease yet");
        renew(60);
        served.wait_for(|served| *served).await.expect("told");
        // The log has no leader any more, though the lease is still valid.
        let before = Instant::now();
        served.wait_for(|served| !served).await.expect("told");
        assert_eq!(before.elapsed().as_secs(), LEADERLESS.as_secs());
        lead.send_replace(Instant::now());
        served.wait_for(|served| *served).await.expect("told");
        // The log has a leader, and the lease is not renewed.
        renew(2);
        let before = Instant::now();
        served.wait_for(|served| !served).await.expect("told");
        assert_eq!(before.elapsed().as_secs(), 2);
    }
}
