//! Pulls jobs: never more than there are free slots, so that no job waits here while another worker is idle.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use async_nats::{Client, Message, StatusCode, Subscriber};
use futures::{FutureExt as _, StreamExt as _};
use proto::names;
use run::PoolId;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Core;

/// How long the broker holds a pull request open: a little less than the time after which a worker counts as lost. Jobs
/// that are handed back then must not go to a request of the lost worker.
const EXPIRES: Duration = Duration::from_secs(names::WORKER_LOST.as_secs() - names::WORKER_HEARTBEAT.as_secs());
/// How often the broker confirms an open request.
const IDLE_HEARTBEAT: Duration = Duration::from_secs(2);
/// The same for the first request, so that an idle worker soon knows that jobs reach it.
const FIRST_IDLE_HEARTBEAT: Duration = Duration::from_millis(100);
/// A request without a message for this long is lost, with the connection or the broker that held it.
pub(super) const LOST: Duration = Duration::from_secs(6);
/// How often to look whether the connection was made again: open requests are gone with the old one.
const LOOK: Duration = Duration::from_secs(1);
/// How long to wait after a refusal.
const PAUSE: Duration = Duration::from_millis(250);
/// Requests are made when none is open, or when so many times as many slots are free as open ones may bring jobs. The
/// broker looks at all open requests of a pool for nearly every job, so a worker has one or two, whatever its slots.
const REFILL: u32 = 3;

const STATUS_IDLE_HEARTBEAT: u16 = 100;
const STATUS_EXPIRED: u16 = 408;

pub(super) struct Puller {
    client: Client,
    subject: String,
    inbox: String,
    messages: Subscriber,
    slots: u32,
    running: u32,
    /// Jobs that open requests may still bring. One sum: the broker serves open requests in turn, not in order.
    asked: u32,
    /// Jobs that an inbox still held when it was given up.
    left: VecDeque<Message>,
    heard: Instant,
    /// Reports whether jobs reach this worker.
    answered: Rc<Cell<Option<Instant>>>,
    reached: Rc<Notify>,
    not_before: Instant,
    /// Connections made so far.
    connects: u64,
}

impl Puller {
    /// Waits for the pool's queue, which a coordinator creates. `None` if the worker was stopped first.
    pub(super) async fn open(core: &Core, pool: &PoolId, slots: u32, stop: &CancellationToken) -> Option<Self> {
        let consumer = names::pool_consumer(pool);
        let mut told = false;
        loop {
            let found: Result<async_nats::jetstream::consumer::PullConsumer, _> =
                core.context.get_consumer_from_stream(&consumer, names::STREAM).await;
            let Err(error) = found else { break };
            if !std::mem::replace(&mut told, true) {
                tracing::info!(%pool, %error, "waiting for a coordinator to make the pool's queue");
            }
            tokio::select! {
                () = tokio::time::sleep(PAUSE) => {}
                () = stop.cancelled() => return None,
            }
        }
        let (inbox, messages) = open_inbox(&core.client).await;
        Some(Self {
            connects: connects(&core.client),
            client: core.client.clone(),
            subject: format!("$JS.API.CONSUMER.MSG.NEXT.{}.{consumer}", names::STREAM),
            inbox,
            messages,
            slots,
            running: 0,
            asked: 0,
            left: VecDeque::new(),
            heard: Instant::now(),
            answered: Rc::clone(&core.answered),
            reached: Rc::clone(&core.reached),
            not_before: Instant::now(),
        })
    }

    /// Publishes how many slots are taken.
    pub(super) fn running(&mut self, running: usize) {
        self.running = u32::try_from(running).unwrap_or(u32::MAX);
    }

    /// The next job. May be dropped while it waits: nothing is lost.
    pub(super) async fn next(&mut self) -> Message {
        loop {
            if let Some(message) = self.left.pop_front() {
                return message;
            }
            let may_ask = self.refill().await;
            let look = Instant::now() + LOOK;
            let wait = match (may_ask, self.asked) {
                (false, _) => self.not_before,
                (true, 0) => look,
                (true, _) => look.min(self.heard + LOST),
            };
            let message = tokio::select! {
                biased;
                message = self.messages.next() => message,
                () = tokio::time::sleep_until(wait) => {
                    self.look_at_connection().await;
                    continue;
                }
            };
            let Some(message) = message else {
                // The subscription ends only with the client.
                std::future::pending::<()>().await;
                continue;
            };
            self.heard = Instant::now();
            // Any server that is left reports that no responder serves the queue.
            if message.status != Some(StatusCode::NO_RESPONDERS) {
                let before = self.answered.replace(Some(self.heard));
                if before.is_none_or(|before| before.elapsed() >= LOST) {
                    self.reached.notify_one();
                }
            }
            match message.status.map(|status| status.as_u16()) {
                None => {
                    self.asked = self.asked.saturating_sub(1);
                    return message;
                }
                Some(STATUS_IDLE_HEARTBEAT) => {}
                Some(status) => self.request_ended(&message, status).await,
            }
        }
    }

    /// Open requests are lost with the connection on which they were made, or with a broker that is silent.
    async fn look_at_connection(&mut self) {
        let connects = connects(&self.client);
        let anew = std::mem::replace(&mut self.connects, connects) != connects;
        let silent = self.asked > 0 && self.heard.elapsed() >= LOST;
        if silent {
            tracing::warn!("the broker forgot our requests for jobs, asking again");
        }
        if anew || silent {
            self.begin_again().await;
        }
    }

    /// Takes a new inbox, so that requests that the broker may still hold bring nothing beyond the free slots.
    async fn begin_again(&mut self) {
        let (inbox, messages) = open_inbox(&self.client).await;
        let mut old = std::mem::replace(&mut self.messages, messages);
        (self.inbox, self.asked) = (inbox, 0);
        while let Some(Some(message)) = old.next().now_or_never() {
            if message.status.is_none() {
                self.left.push_back(message);
            }
        }
        if let Err(error) = old.unsubscribe().await {
            tracing::debug!(%error, "the inbox was closed already");
        }
    }

    /// Requests as many jobs as there are free slots without an open request. `false` if it should but must wait.
    async fn refill(&mut self) -> bool {
        let free = self.slots.saturating_sub(self.running).saturating_sub(self.asked);
        if !is_worth_asking(free, self.asked) {
            return true;
        }
        if Instant::now() < self.not_before {
            return false;
        }
        let idle_heartbeat = if self.answered.get().is_some() { IDLE_HEARTBEAT } else { FIRST_IDLE_HEARTBEAT };
        let request = serde_json::json!({
            "batch": free,
            "expires": u64::try_from(EXPIRES.as_nanos()).unwrap_or(u64::MAX),
            "idle_heartbeat": u64::try_from(idle_heartbeat.as_nanos()).unwrap_or(u64::MAX),
        });
        let reply = format!("{}.pull", self.inbox);
        let sent = self.client.publish_with_reply(self.subject.clone(), reply, request.to_string().into()).await;
        if let Err(error) = sent {
            tracing::warn!(%error, "cannot ask for jobs, trying again");
            self.not_before = Instant::now() + PAUSE;
            return false;
        }
        self.asked += free;
        self.heard = Instant::now();
        true
    }

    /// A request ended before it had brought all its jobs; the broker reports how many are missing.
    async fn request_ended(&mut self, message: &Message, status: u16) {
        let missing = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        match missing.and_then(|missing| missing.as_str().parse::<u32>().ok()) {
            Some(missing) => self.asked = self.asked.saturating_sub(missing),
            None => self.begin_again().await,
        }
        if status != STATUS_EXPIRED {
            let description = message.description.as_deref().unwrap_or_default();
            tracing::debug!(status, description, "a request for jobs was refused");
            self.not_before = Instant::now() + PAUSE;
        }
    }

    /// Stops pulling, and gives the jobs that are here already. One that is still on its way comes again when its lease
    /// runs out.
    pub(super) async fn close(mut self) -> impl Iterator<Item = Message> {
        if let Err(error) = self.messages.unsubscribe().await {
            tracing::debug!(%error, "the inbox was closed already");
        }
        let mut left = std::mem::take(&mut self.left);
        while let Some(message) = self.messages.next().await {
            left.push_back(message);
        }
        left.into_iter().filter(|message| message.status.is_none())
    }
}

/// Whether to request jobs for so many `free` slots, while open requests may bring so many others.
fn is_worth_asking(free: u32, asked: u32) -> bool {
    free > 0 && free >= asked.saturating_mul(REFILL)
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(std::sync::atomic::Ordering::Relaxed)
}

async fn open_inbox(client: &Client) -> (String, Subscriber) {
    let inbox = client.new_inbox();
    loop {
        match client.subscribe(format!("{inbox}.*")).await {
            Ok(messages) => return (inbox, messages),
            Err(error) => tracing::warn!(%error, "cannot subscribe to the inbox, trying again"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// The most open requests and all requests of a worker that takes short jobs, one or two of them at a time. The
    /// broker serves open requests in turn.
    fn requests(slots: u32, jobs: u32) -> (usize, u32) {
        let (mut open, mut most, mut made) = (VecDeque::<u32>::new(), 0, 0);
        for job in 0..jobs {
            let (asked, running) = (open.iter().sum::<u32>(), job % 2);
            let free = slots.saturating_sub(running).saturating_sub(asked);
            if is_worth_asking(free, asked) {
                open.push_back(free);
                (most, made) = (most.max(open.len()), made + 1);
            }
            let left = open.pop_front().expect("a job comes by an open request") - 1;
            if left > 0 {
                open.push_back(left);
            }
        }
        (most, made)
    }

    #[test]
    fn a_worker_has_at_most_two_open_requests_whatever_its_slots() {
        for slots in 2..=600 {
            let (most, made) = requests(slots, 10_000);
            assert!(most <= 2, "{slots} slots: {most} open requests");
            assert!(made <= 10_000 / (slots * 5 / 8).max(1) + 1, "{slots} slots: {made} requests for 10,000 jobs");
        }
    }

    #[test]
    fn a_worker_without_open_requests_asks_for_each_free_slot() {
        assert!(is_worth_asking(1, 0));
        assert!(!is_worth_asking(0, 0), "it is full");
        assert!(!is_worth_asking(2, 1) && is_worth_asking(3, 1));
    }
}
