//! Pulls jobs from the pool's queue in each partition of the log: never more than there are free slots, so that no job
//! waits here while another worker is idle.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use async_nats::{Client, Message, StatusCode, Subscriber};
use futures::{FutureExt as _, StreamExt as _};
use proto::names;
use run::{Partition, PoolId};
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use self::asked::Asked;
use super::Core;

mod asked;

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

const STATUS_IDLE_HEARTBEAT: u16 = 100;
const STATUS_EXPIRED: u16 = 408;

pub(super) struct Puller {
    client: Client,
    consumer: String,
    inbox: String,
    messages: Subscriber,
    running: u32,
    asked: Asked,
    /// How many partitions there are, as coordinators say.
    partitions: Rc<Cell<usize>>,
    /// Jobs that an inbox still held when it was given up.
    left: VecDeque<Message>,
    /// Reports whether jobs reach this worker.
    answered: Rc<Cell<Option<Instant>>>,
    reached: Rc<Notify>,
    /// Connections made so far.
    connects: u64,
}

impl Puller {
    /// Waits for the pool's queue, which a coordinator creates. `None` if the worker was stopped first.
    pub(super) async fn open(core: &Core, pool: &PoolId, slots: u32, stop: &CancellationToken) -> Option<Self> {
        let consumer = names::pool_consumer(pool);
        let (mut told, begun) = (false, Instant::now());
        // Without an answer of the first partition for so long, the others are asked for jobs.
        while core.partitions.get() == 1 || begun.elapsed() < LOST {
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
            consumer,
            inbox,
            messages,
            running: 0,
            asked: Asked::new(slots, Instant::now()),
            partitions: Rc::clone(&core.partitions),
            left: VecDeque::new(),
            answered: Rc::clone(&core.answered),
            reached: Rc::clone(&core.reached),
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
                if self.asked.has_slot(self.running) {
                    return message;
                }
                self.give_back(&message).await;
                continue;
            }
            self.asked.grow(self.partitions.get(), Instant::now());
            self.refill().await;
            let wait = self.asked.wake(self.running, Instant::now()).min(Instant::now() + LOOK);
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
            let (now, status) = (Instant::now(), message.status);
            // Any server that is left reports that no responder serves the queue.
            if status != Some(StatusCode::NO_RESPONDERS) {
                let before = self.answered.replace(Some(now));
                if before.is_none_or(|before| now.saturating_duration_since(before) >= LOST) {
                    self.reached.notify_one();
                }
            }
            let queue = queue_of(&message);
            self.asked.note_message(queue, now);
            match status.map(|status| status.as_u16()) {
                None if self.asked.note_job(queue, self.running, now) => return message,
                None => self.give_back(&message).await,
                Some(STATUS_IDLE_HEARTBEAT) => {}
                Some(status) => self.request_ended(&message, (queue, status)).await,
            }
        }
    }

    /// A job for which there is no slot: the queues of several partitions gave jobs at once.
    async fn give_back(&self, message: &Message) {
        let Some(reply) = message.reply.clone() else { return };
        if let Err(error) = self.client.publish(reply, "-NAK".into()).await {
            tracing::debug!(%error, "a job without a slot was not given back; it comes again when its lease runs out");
        }
    }

    /// Open requests are lost with the connection on which they were made, or with a broker that is silent.
    async fn look_at_connection(&mut self) {
        let connects = connects(&self.client);
        let is_new = std::mem::replace(&mut self.connects, connects) != connects;
        if is_new {
            self.begin_again().await;
            return;
        }
        match self.asked.forget_lost(Instant::now()) {
            0 => {}
            // The requests of one queue cannot be told apart from new ones, so all are made again.
            _ => {
                tracing::warn!("the broker forgot our requests for jobs, asking again");
                self.begin_again().await;
            }
        }
    }

    /// Takes a new inbox, so that requests that the broker may still hold bring nothing beyond the free slots.
    async fn begin_again(&mut self) {
        let (inbox, messages) = open_inbox(&self.client).await;
        let mut old = std::mem::replace(&mut self.messages, messages);
        self.inbox = inbox;
        self.asked.begin_again(Instant::now());
        while let Some(Some(message)) = old.next().now_or_never() {
            if message.status.is_none() {
                self.left.push_back(message);
            }
        }
        if let Err(error) = old.unsubscribe().await {
            tracing::debug!(%error, "the inbox was closed already");
        }
    }

    /// Requests as many jobs as there are free slots without an open request.
    async fn refill(&mut self) {
        while let Some((queue, batch)) = self.asked.next_request(self.running, Instant::now()) {
            let idle_heartbeat = if self.answered.get().is_some() { IDLE_HEARTBEAT } else { FIRST_IDLE_HEARTBEAT };
            let request = serde_json::json!({
                "batch": batch,
                "expires": u64::try_from(EXPIRES.as_nanos()).unwrap_or(u64::MAX),
                "idle_heartbeat": u64::try_from(idle_heartbeat.as_nanos()).unwrap_or(u64::MAX),
            });
            let (reply, stream) = (format!("{}.{queue}", self.inbox), names::STREAMS[queue]);
            let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{stream}.{}", self.consumer);
            let sent = self.client.publish_with_reply(subject, reply, request.to_string().into()).await;
            match sent {
                Ok(()) => self.asked.note_request(queue, batch, Instant::now()),
                Err(error) => {
                    tracing::warn!(%error, "cannot ask for jobs, trying again");
                    self.asked.pause(queue, Instant::now() + PAUSE);
                }
            }
        }
    }

    /// A request ended before it had brought all its jobs; the broker reports how many are missing.
    async fn request_ended(&mut self, message: &Message, (queue, status): (usize, u16)) {
        let missing = message.headers.as_ref().and_then(|headers| headers.get("Nats-Pending-Messages"));
        match missing.and_then(|missing| missing.as_str().parse::<u32>().ok()) {
            Some(missing) => self.asked.note_missing(queue, missing),
            // No server serves this queue, and another partition's may be served.
            None if self.asked.has_several() => self.asked.note_missing(queue, u32::MAX),
            None => self.begin_again().await,
        }
        if status != STATUS_EXPIRED {
            let description = message.description.as_deref().unwrap_or_default();
            tracing::debug!(status, description, "a request for jobs was refused");
            self.asked.pause(queue, Instant::now() + PAUSE);
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
            if message.status.is_none() {
                left.push_back(message);
            }
        }
        let mut kept = Vec::new();
        for message in left {
            let before = u32::try_from(kept.len()).unwrap_or(u32::MAX);
            if self.asked.has_slot(self.running.saturating_add(before)) {
                kept.push(message);
            } else {
                self.give_back(&message).await;
            }
        }
        kept.into_iter()
    }
}

/// The partition whose queue a message comes from. A job has the subject of its log entry, everything else that of the
/// request.
fn queue_of(message: &Message) -> usize {
    let subject = message.subject.as_str();
    if message.status.is_some() {
        return subject.rsplit('.').next().and_then(|queue| queue.parse().ok()).unwrap_or(0);
    }
    let shard = subject.split('.').nth(2).and_then(|shard| shard.parse::<run::Shard>().ok());
    shard.map_or(0, |shard| shard.partition().as_usize()).min(Partition::MAX - 1)
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
