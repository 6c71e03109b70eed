//! Queues and buckets with a real broker.

use async_nats::jetstream::consumer::pull;
use async_nats::jetstream::{self, AckKind};
use futures::StreamExt as _;
use nats::Credentials;
use proto::subject::{Subject, SubjectKind};
use run::{CallIndex, PoolId, RunId, Shard};

use super::pools::pool_config;
use super::*;
use crate::nats::Broker;
use crate::nats::requests::Requests;
use crate::requests::{RequestKey, Taken};

/// More than a queue of an older release could have in delivery. `TOOLYARD_DELAYED_JOBS` measures with another number.
const DELAYED: usize = 20_001;
const FETCHED_MAX: usize = 1000;

/// Small, so that a machine has room for many.
fn small() -> LogOptions {
    LogOptions {
        bytes_max: 256 << 20,
        messages_max: Some(4_000_000),
        objects_bytes_max: 4 << 20,
        ..LogOptions::default()
    }
}

async fn broker() -> (local::Broker, Broker) {
    let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let broker = Broker::connect(&server.url(), &Credentials::default(), &small()).await.expect("it can be set up");
    (server, broker)
}

async fn add_jobs(broker: &Broker, pool: &PoolId, count: usize) {
    for _ in 0..count {
        let run = RunId::new(Shard(0), uuid::Uuid::now_v7());
        let subject = Subject { run, place: SubjectKind::Job { call: CallIndex(0), pool: pool.clone() } };
        broker.client.publish(subject.to_string(), "a job".into()).await.expect("the broker is there");
    }
    broker.client.flush().await.expect("the broker is there");
}

fn memory_mib(server: &local::Broker) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid().expect("it runs"))).expect("it runs");
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.expect("it has memory") / 1024
}

#[tokio::test]
async fn jobs_that_wait_for_a_delayed_retry_do_not_hold_up_the_others_of_their_pool() {
    let (server, broker) = broker().await;
    let pool: PoolId = "main".parse().expect("a name");
    let delayed = std::env::var("TOOLYARD_DELAYED_JOBS").map_or(DELAYED, |count| count.parse().expect("a number"));
    // As an older release created it.
    let old = pull::Config { max_ack_pending: 20_000, ..pool_config(&pool) };
    let made: Result<jetstream::consumer::PullConsumer, _> =
        broker.context.create_consumer_on_stream(old, names::STREAM).await;
    made.expect("it can be made");
    ensure_pool(&broker, &pool).await.expect("it can be changed");

    add_jobs(&broker, &pool, delayed).await;
    let queue: jetstream::consumer::PullConsumer =
        broker.context.get_consumer_from_stream(names::pool_consumer(&pool), names::STREAM).await.expect("it is there");
    let (mut seen, before, began) = (0, memory_mib(&server), Instant::now());
    while seen < delayed {
        let mut some = queue.fetch().max_messages(FETCHED_MAX).messages().await.expect("the broker is there");
        while let Some(job) = some.next().await {
            let delay = AckKind::Nak(Some(Duration::from_secs(3600)));
            job.expect("the broker is there").ack_with(delay).await.expect("the broker is there");
            seen += 1;
        }
    }
    let (out, took) = (began.elapsed(), Instant::now());
    add_jobs(&broker, &pool, 1).await;
    let next = queue.batch().max_messages(1).expires(Duration::from_secs(30));
    let mut next = next.messages().await.expect("the broker is there");
    let job = tokio::time::timeout(Duration::from_secs(30), next.next()).await.expect("a job is given out");
    job.expect("a job is given out").expect("the broker is there").ack().await.expect("the broker is there");
    let found = queue.get_info().await.expect("it is there").num_ack_pending;
    eprintln!(
        "{delayed} jobs delayed in {out:?}, the next one came after {:?}; the broker's memory: {before} MiB before, \
        {} MiB after",
        took.elapsed(),
        memory_mib(&server)
    );
    assert!(found >= delayed, "{found} are delayed");
    if delayed > DELAYED {
        measure(&server, &broker, &queue, &pool).await;
    }
}

/// What fresh jobs cost while many wait.
async fn measure(server: &local::Broker, broker: &Broker, queue: &jetstream::consumer::PullConsumer, pool: &PoolId) {
    let ticks = || {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.pid().expect("it runs"))).expect("it runs");
        let fields: Vec<u64> = stat.split(' ').skip(13).take(2).map(|field| field.parse().expect("a number")).collect();
        fields.iter().sum::<u64>()
    };
    let (began, cpu) = (Instant::now(), ticks());
    tokio::time::sleep(Duration::from_secs(20)).await;
    eprintln!("idle: {} ticks of CPU in {:?}", ticks() - cpu, began.elapsed());
    const FRESH: usize = 20_000;
    add_jobs(broker, pool, FRESH).await;
    let (began, cpu, mut seen) = (Instant::now(), ticks(), 0);
    while seen < FRESH {
        let mut some = queue.fetch().max_messages(100).messages().await.expect("the broker is there");
        while let Some(job) = some.next().await {
            job.expect("the broker is there").ack().await.expect("the broker is there");
            seen += 1;
        }
    }
    eprintln!("{FRESH} fresh jobs in {:?}, {} ticks of CPU", began.elapsed(), ticks() - cpu);
}

#[tokio::test]
async fn every_bucket_and_stream_that_is_made_has_a_limit_of_bytes() {
    let (_server, broker) = broker().await;
    ensure_objects(&broker.context, &small()).await.expect("it can be made");
    let mut streams = broker.context.streams();
    let (mut count, mut bytes) = (0, notifications::BYTES_MAX);
    while let Some(stream) = streams.next().await {
        let config = stream.expect("the broker is there").config;
        assert!(config.max_bytes > 0, "{}", config.name);
        (count, bytes) = (count + 1, bytes + config.max_bytes);
    }
    assert_eq!((count, bytes), (10, store_bytes(&small())));
    assert!(
        store_bytes(&LogOptions::default()) < 3 << 30,
        "more than `toolyard nats-config` gives a broker by default"
    );
}

#[tokio::test]
async fn request_ids_of_clients_expire_earlier_once_the_operator_changed_a_bucket_of_an_older_release() {
    let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let (url, anybody) = (server.url(), Credentials::default());
    let context = jetstream::new(async_nats::connect(&url).await.expect("the broker is there"));
    let old = Config { allow_message_ttl: false, ..bucket_config(names::REQUESTS_BUCKET, RETENTION, &small()) };
    context.create_stream(old).await.expect("it can be made");
    Broker::connect(&url, &anybody, &small()).await.expect("without the option nothing changes");
    let early = LogOptions { request_ids_for: Some(Duration::from_secs(3)), ..small() };
    let refused = Broker::connect(&url, &anybody, &early).await.expect_err("all ids would be kept for 25 h");
    assert!(
        matches!(refused, crate::nats::BrokerError::Setup(SetupError::KeepsRequestIds { kept: RETENTION })),
        "{refused}"
    );
    let operator = crate::Operator::connect(&url, &anybody).await.expect("it is let in");
    assert!(operator.let_request_ids_expire().await.expect("it may be changed"));
    assert!(!operator.let_request_ids_expire().await.expect("it may be changed"), "they do already");

    let broker = Broker::connect(&url, &anybody, &early).await.expect("it can be set up");
    let requests = Requests::new(&broker, early.request_ids_for);
    let taken = Taken { run: RunId::new(Shard(0), uuid::Uuid::now_v7()), digest: [0; 32] };
    let [of_client, of_call] = [1, 2].map(|number| RequestKey([number; 32]));
    requests.put(&of_call, &taken, 0).await.expect("stored");
    requests.put_of_client(&of_client, &taken, 0).await.expect("stored").expect("nobody has taken it");
    assert_eq!(requests.newest(&of_client).await.expect("it is read").taken.as_ref(), Some(&taken));
    let give_up = Instant::now() + Duration::from_secs(30);
    while requests.newest(&of_client).await.expect("it is read").taken.is_some() {
        assert!(Instant::now() < give_up, "the id of a client is kept");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    requests.put_of_client(&of_client, &taken, 0).await.expect("stored").expect("it can be taken again");
    assert_eq!(requests.newest(&of_call).await.expect("it is read").taken, Some(taken));
}
