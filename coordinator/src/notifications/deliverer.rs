//! Delivers the notifications of a shard to one endpoint: each until it is accepted or too old, those of a run in their
//! order. Only a few are in memory, however many are queued.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::{StatusCode, header};
use run::{Shard, Timestamp};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::pending::PendingNotifications;
use super::{Endpoint, message_id};
use crate::metrics;
use crate::nats::journal::ReadError;
use crate::nats::notifications::{Arrived, Queue};
use crate::shards::Owned;
use crate::tasks::finished;

/// Notifications in memory; at this limit no more are read from the queue.
const CARRIED_MAX: usize = 64;
/// Requests in progress.
const POSTS_MAX: usize = 4;
/// How long a receiver may take to answer, as the specification suggests.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);
/// The pause after an attempt: half the notification's age. So it grows without stored state, also if another
/// coordinator takes over.
const PAUSE: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);
/// The pause before the queue is opened again.
const OPEN_PAUSE: Duration = Duration::from_secs(1);
/// How often removing a delivered notification is tried. If it fails, the next owner delivers it again.
const REMOVALS_MAX: usize = 5;

pub(super) struct Deliverer {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) shard: Shard,
    pub(super) queue: Queue,
    pub(super) owned: watch::Receiver<Owned>,
}

/// The result of an attempt.
struct Attempt {
    notification: Arrived,
    outcome: Result<Done, Untaken>,
}

enum Done {
    Taken,
    /// It is not in the queue any more: its run was erased, or it was queued again.
    Gone,
}

struct Untaken {
    reason: String,
    retry_after: Option<Duration>,
}

type Incoming = BoxStream<'static, Result<Arrived, ReadError>>;

impl Deliverer {
    pub(super) async fn carry(self, recalled: CancellationToken) {
        let mut pending = PendingNotifications::default();
        let (mut posts, mut removals) = (JoinSet::new(), JoinSet::new());
        let (mut incoming, mut after): (Option<Incoming>, u64) = (None, 0);
        let mut is_failing = false;
        loop {
            if incoming.is_none() {
                incoming = tokio::select! {
                    () = recalled.cancelled() => return,
                    opened = self.open(after) => opened,
                };
            }
            let now = Instant::now();
            let may_act = self.owned.borrow().holds(self.shard);
            while may_act
                && posts.len() < POSTS_MAX
                && let Some(notification) = pending.take_due(now)
            {
                if self.gives_up(&notification) {
                    self.park(&mut pending, &notification);
                    continue;
                }
                posts.spawn(post(Arc::clone(&self.endpoint), self.queue.clone(), notification));
            }
            let due = pending.next_due().filter(|_| posts.len() < POSTS_MAX);
            let due = due.map(|due| if may_act { due } else { now + OPEN_PAUSE });
            let wait = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = recalled.cancelled() => return,
                Some(attempt) = posts.join_next() => {
                    if let Some(taken) = self.settle(&mut pending, finished(attempt), &mut is_failing) {
                        removals.spawn(remove(self.queue.clone(), taken.sequence));
                    }
                }
                Some(_) = removals.join_next() => {}
                arrived = next(&mut incoming), if pending.count() < CARRIED_MAX => match arrived {
                    Some(Ok(notification)) => {
                        after = notification.sequence;
                        if !self.gives_up(&notification) {
                            pending.put(notification, Instant::now());
                        }
                    }
                    Some(Err(error)) => {
                        tracing::debug!(%error, "reading the queue of notifications failed, resubscribing");
                        incoming = None;
                    }
                    None => incoming = None,
                },
                () = wait => {}
            }
        }
    }

    /// The queue's content, and what is added to it. Parked ones are at its front.
    async fn open(&self, after: u64) -> Option<Incoming> {
        let age_ms = u64::try_from(self.endpoint.give_up_after.as_millis()).unwrap_or(u64::MAX);
        let since = Timestamp(::nats::now().0.saturating_sub(age_ms));
        match self.queue.incoming(self.shard, &self.endpoint.name, after, since).await {
            Ok(incoming) => Some(incoming),
            Err(error) => {
                tracing::warn!(%error, "opening the queue of notifications failed, retrying");
                sleep(OPEN_PAUSE).await;
                None
            }
        }
    }

    fn gives_up(&self, notification: &Arrived) -> bool {
        ::nats::now().since(notification.at) >= self.endpoint.give_up_after
    }

    /// Leaves the first notification of a run in the queue, from which it can be redriven.
    fn park(&self, pending: &mut PendingNotifications, notification: &Arrived) {
        let (endpoint, id) = (self.endpoint.name.as_str(), message_id(notification.run, notification.noted));
        metrics::webhook(endpoint, "parked");
        tracing::warn!(endpoint, id, "notification not delivered in time; parked");
        pending.finish(notification.run, Instant::now());
    }

    /// Returns the notification if it was accepted, or schedules a retry. `is_failing`: the last attempt failed.
    fn settle(&self, pending: &mut PendingNotifications, attempt: Attempt, is_failing: &mut bool) -> Option<Arrived> {
        let Attempt { notification: Arrived { run, noted, sequence, .. }, outcome } = attempt;
        let (now, endpoint) = (Instant::now(), self.endpoint.name.as_str());
        let notification = pending.first(run)?;
        let Untaken { reason, retry_after } = match outcome {
            Ok(Done::Taken) => {
                metrics::webhook(endpoint, "delivered");
                *is_failing = false;
                return pending.finish(run, now);
            }
            Ok(Done::Gone) if notification.sequence == sequence => {
                pending.finish(run, now);
                return None;
            }
            Ok(Done::Gone) => {
                pending.put_off(run, now);
                return None;
            }
            Err(untaken) => untaken,
        };
        metrics::webhook(endpoint, "refused");
        let id = message_id(run, noted);
        // The pause ends at the latest when the notification is too old, so that it is parked on time.
        let age = ::nats::now().since(notification.at);
        let left = self.endpoint.give_up_after.saturating_sub(age);
        let pause = pause(age).max(retry_after.unwrap_or_default()).min(left);
        // An endpoint that is away fails for each notification, and each of them many times.
        if std::mem::replace(is_failing, true) {
            tracing::info!(endpoint, id, reason, ?pause, "delivering a notification failed again, retrying");
        } else {
            tracing::warn!(endpoint, id, reason, ?pause, "delivering a notification failed, retrying");
        }
        pending.put_off(run, now + pause);
        None
    }
}

async fn next(incoming: &mut Option<Incoming>) -> Option<Result<Arrived, ReadError>> {
    incoming.as_mut()?.next().await
}

async fn post(endpoint: Arc<Endpoint>, queue: Queue, notification: Arrived) -> Attempt {
    // A notification that was tried before may have been removed from the queue meanwhile.
    if ::nats::now().since(notification.at) >= *PAUSE.start() && !queue.holds(notification.sequence).await {
        return Attempt { notification, outcome: Ok(Done::Gone) };
    }
    let untaken = |reason: String| Untaken { reason, retry_after: None };
    let outcome = match timeout(
        ANSWER_PATIENCE,
        endpoint.post(&message_id(notification.run, notification.noted), &notification.body),
    )
    .await
    {
        Ok(Ok(answer)) if answer.status.is_success() => Ok(Done::Taken),
        Ok(Ok(answer)) => {
            let seconds = answer.headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
            let is_told = matches!(answer.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
            let retry_after = seconds.filter(|_| is_told).map(|s| Duration::from_secs(s).min(*PAUSE.end()));
            Err(Untaken { retry_after, ..untaken(format!("it answered {}", answer.status)) })
        }
        Ok(Err(reason)) => Err(untaken(reason)),
        Err(_) => Err(untaken(format!("it did not answer within {} s", ANSWER_PATIENCE.as_secs()))),
    };
    Attempt { notification, outcome }
}

async fn remove(queue: Queue, sequence: u64) {
    for _ in 0..REMOVALS_MAX {
        match queue.remove(sequence).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "removing a delivered notification from the queue failed"),
        }
        sleep(OPEN_PAUSE).await;
    }
}

fn pause(age: Duration) -> Duration {
    let pause = (age / 2).clamp(*PAUSE.start(), *PAUSE.end());
    // Spreads the retries after an endpoint was away.
    pause.mul_f64(rand::random_range(0.8..1.2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_come_less_and_less_often_and_an_hour_apart_at_most() {
        let of = |age_s| pause(Duration::from_secs(age_s)).as_secs_f64();
        for (age_s, pause_s) in [(0, 1.0), (2, 1.0), (60, 30.0), (7200, 3600.0), (80_000, 3600.0)] {
            assert!((pause_s * 0.8..=pause_s * 1.2).contains(&of(age_s)), "after {age_s} s");
        }
    }
}
