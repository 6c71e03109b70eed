//! The floor: a no-op call with nothing but JetStream. The client stores a job; a worker pulls it, stores the end and
//! acknowledges; the client is delivered the end.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_nats::jetstream::{self, consumer, stream};
use futures::StreamExt as _;
use tokio::sync::oneshot;

const STREAM: &str = "floor";
/// As many as a worker of ours takes.
const JOBS_UNDER_WAY: usize = 512;
/// About what an event of ours weighs.
const PAYLOAD: [u8; 200] = [b'x'; 200];

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<()>>>>;

pub(crate) struct Floor {
    context: jetstream::Context,
    waiting: Waiting,
    next: std::sync::atomic::AtomicU64,
}

impl Floor {
    pub(crate) async fn start(url: &str) -> anyhow::Result<Self> {
        let context = jetstream::new(async_nats::connect(url).await?);
        let config = stream::Config {
            name: STREAM.to_owned(),
            subjects: vec!["floor.>".to_owned()],
            discard: stream::DiscardPolicy::New,
            max_age: Duration::from_secs(3600),
            storage: stream::StorageType::File,
            allow_direct: true,
            ..stream::Config::default()
        };
        context.create_stream(config).await?;
        let queue = consumer::pull::Config {
            durable_name: Some("jobs".to_owned()),
            filter_subject: "floor.job.*".to_owned(),
            max_ack_pending: 20_000,
            ..consumer::pull::Config::default()
        };
        // The worker has a connection of its own, as it would in a process of its own.
        let worker = jetstream::new(async_nats::connect(url).await?);
        let jobs = worker.create_consumer_on_stream(queue, STREAM).await?;
        tokio::spawn(work(worker, jobs));
        let ends = consumer::push::OrderedConfig {
            deliver_subject: context.client().new_inbox(),
            filter_subject: "floor.out.*".to_owned(),
            ..consumer::push::OrderedConfig::default()
        };
        let ends = context.create_consumer_on_stream(ends, STREAM).await?.messages().await?;
        let waiting = Waiting::default();
        tokio::spawn(deliver(ends, Arc::clone(&waiting)));
        Ok(Self { context, waiting, next: std::sync::atomic::AtomicU64::new(0) })
    }

    /// The size of the stream: messages and bytes.
    pub(crate) async fn log(&self) -> anyhow::Result<(u64, u64)> {
        let stream = self.context.get_stream(STREAM).await?;
        let state = &stream.cached_info().state;
        Ok((state.messages, state.bytes))
    }

    pub(crate) fn call(&self) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        let id = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let (context, waiting) = (self.context.clone(), Arc::clone(&self.waiting));
        async move {
            let (sender, delivered) = oneshot::channel();
            waiting.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.insert(id, sender);
            context.publish(format!("floor.job.{id}"), PAYLOAD.to_vec().into()).await?.await?;
            delivered.await?;
            Ok(())
        }
    }
}

async fn work(context: jetstream::Context, jobs: consumer::PullConsumer) -> anyhow::Result<()> {
    let mut messages = jobs.stream().max_messages_per_batch(JOBS_UNDER_WAY).messages().await?;
    while let Some(message) = messages.next().await {
        let (message, context) = (message?, context.clone());
        tokio::spawn(async move {
            let id = message.subject.rsplit('.').next().unwrap_or_default();
            context.publish(format!("floor.out.{id}"), PAYLOAD.to_vec().into()).await?.await?;
            message.ack().await.map_err(|error| anyhow::anyhow!("{error}"))
        });
    }
    Ok(())
}

async fn deliver(mut ends: consumer::push::Ordered, waiting: Waiting) {
    while let Some(Ok(message)) = ends.next().await {
        let id = message.subject.rsplit('.').next().and_then(|id| id.parse::<u64>().ok());
        let sender = id.and_then(|id| waiting.lock().ok()?.remove(&id));
        // A round that ended no longer waits.
        sender.map(|sender| sender.send(()).ok());
    }
}
