//! Pulls jobs: never more than there are free slots, so that no job waits here while another worker is idle.

use std::collections::VecDeque;
use std::time::Duration;

use async_nats::{Client, Message, Subscriber};
use futures::StreamExt as _;
use proto::names;
use run::PoolId;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Core;

/// How long the broker holds a pull request open.
const EXPIRES: Duration = Duration::from_secs(30);
/// How often it says that it still does.
const IDLE_HEARTBEAT: Duration = Duration::from_secs(5);
/// A request of which nothing was heard for this long is lost, with the connection or the broker that held it.
const LOST: Duration = Duration::from_secs(11);
/// How often to look whether the connection was made anew: open requests are gone with the old one.
const LOOK: Duration = Duration::from_secs(1);
/// How long to wait after a refusal.
const PAUSE: Duration = Duration::from_millis(250);
/// Requests are made when this part of the slots is free, or when none is open.
const REFILL: u32 = 4;

const STATUS_IDLE_HEARTBEAT: u16 = 100;
const STATUS_EXPIRED: u16 = 408;

pub(super) struct Puller {
    client: Client,
    subject: String,
    inbox: String,
    messages: Subscriber,
    slots: u32,
    running: u32,
    /// Open requests, oldest first: their number and the jobs that they may still bring.
    requests: VecDeque<(u64, u32)>,
    last_request: u64,
    heard: Instant,
    not_before: Instant,
    /// Connections made so far.
    connects: u64,
}

impl Puller {
    /// Waits for the pool's queue, which a coordinator makes. `None` when told to stop first.
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
        let inbox = core.client.new_inbox();
        let messages = loop {
            match core.client.subscribe(format!("{inbox}.*")).await {
                Ok(messages) => break messages,
                Err(error) => tracing::warn!(%error, "cannot subscribe to the inbox, trying again"),
            }
            tokio::time::sleep(PAUSE).await;
        };
        Some(Self {
            connects: connects(&core.client),
            client: core.client.clone(),
            subject: format!("$JS.API.CONSUMER.MSG.NEXT.{}.{consumer}", names::STREAM),
            inbox,
            messages,
            slots,
            running: 0,
            requests: VecDeque::new(),
            last_request: 0,
            heard: Instant::now(),
            not_before: Instant::now(),
        })
    }

    /// Tells how many slots are taken.
    pub(super) fn running(&mut self, running: usize) {
        self.running = u32::try_from(running).unwrap_or(u32::MAX);
    }

    /// The next job. May be dropped while it waits: nothing is lost.
    pub(super) async fn next(&mut self) -> Message {
        loop {
            let wait = match self.refill().await {
                true => self.heard + LOST,
                false => self.not_before,
            };
            let message = tokio::select! {
                biased;
                message = self.messages.next() => message,
                () = tokio::time::sleep_until(wait.min(Instant::now() + LOOK)) => {
                    let connects = connects(&self.client);
                    if std::mem::replace(&mut self.connects, connects) != connects {
                        self.requests.clear();
                    } else if !self.requests.is_empty() && self.heard.elapsed() >= LOST {
                        tracing::warn!("the broker forgot our requests for jobs, asking again");
                        self.requests.clear();
                    }
                    continue;
                }
            };
            let Some(message) = message else {
                // The subscription ends only with the client.
                std::future::pending::<()>().await;
                continue;
            };
            self.heard = Instant::now();
            match message.status.map(|status| status.as_u16()) {
                None => {
                    self.took_one();
                    return message;
                }
                Some(STATUS_IDLE_HEARTBEAT) => {}
                Some(status) => self.request_ended(&message, status),
            }
        }
    }

    /// Asks for as many jobs as there are free slots that no open request covers. `false` when it should but must wait.
    async fn refill(&mut self) -> bool {
        let asked: u32 = self.requests.iter().map(|(_, left)| left).sum();
        let free = self.slots.saturating_sub(self.running).saturating_sub(asked);
        if free == 0 || (asked > 0 && free < (self.slots / REFILL).max(1)) {
            return true;
        }
        if Instant::now() < self.not_before {
            return false;
        }
        let request = serde_json::json!({
            "batch": free,
            "expires": u64::try_from(EXPIRES.as_nanos()).unwrap_or(u64::MAX),
            "idle_heartbeat": u64::try_from(IDLE_HEARTBEAT.as_nanos()).unwrap_or(u64::MAX),
        });
        let number = self.last_request + 1;
        let reply = format!("{}.{number}", self.inbox);
        // Counted before it is sent: should this be dropped in between, it counts as lost and is made again.
        self.last_request = number;
        self.requests.push_back((number, free));
        self.heard = Instant::now();
        if let Err(error) =
            self.client.publish_with_reply(self.subject.clone(), reply, request.to_string().into()).await
        {
            tracing::warn!(%error, "cannot ask for jobs, trying again");
            self.requests.pop_back();
            self.not_before = Instant::now() + PAUSE;
            return false;
        }
        true
    }

    /// The broker serves requests in the order in which they came.
    fn took_one(&mut self) {
        if let Some((_, left)) = self.requests.front_mut() {
            *left -= 1;
            if *left == 0 {
                self.requests.pop_front();
            }
        }
    }

    fn request_ended(&mut self, message: &Message, status: u16) {
        let number = message.subject.rsplit('.').next().and_then(|number| number.parse::<u64>().ok());
        self.requests.retain(|(open, _)| Some(*open) != number);
        if status != STATUS_EXPIRED {
            let description = message.description.as_deref().unwrap_or_default();
            tracing::debug!(status, description, "a request for jobs was refused");
            self.not_before = Instant::now() + PAUSE;
        }
    }

    /// Stops pulling; jobs that were on their way go back to the queue.
    pub(super) async fn close(mut self) {
        if let Err(error) = self.messages.unsubscribe().await {
            tracing::debug!(%error, "the inbox was closed already");
        }
        while let Some(message) = self.messages.next().await {
            if let (None, Some(reply)) = (message.status, message.reply)
                && let Err(error) = self.client.publish(reply, "-NAK".into()).await
            {
                tracing::warn!(%error, "a job was not given back; it comes again when its lease runs out");
            }
        }
    }
}

fn connects(client: &Client) -> u64 {
    client.statistics().connects.load(std::sync::atomic::Ordering::Relaxed)
}
