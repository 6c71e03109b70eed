//! The registry with a real broker: what it forgets, and its limits.

use nats::Credentials;
use proto::convert::manifest::manifest_in;
use proto::convert::worker::encode_advertisement;
use proto::v1;
use run::ToolSetId;

use super::*;
use crate::nats::setup::LogOptions;

struct Scene {
    _server: local::Broker,
    broker: Broker,
}

impl Scene {
    async fn new() -> Self {
        let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
        let log = LogOptions { bytes_max: 4 << 20, ..LogOptions::default() };
        let broker = Broker::connect(&server.url(), &Credentials::default(), &log).await.expect("it can be set up");
        Self { _server: server, broker }
    }

    /// A registry that has received heartbeats for long enough.
    async fn registry(&self, limits: Limits) -> RegistryTask {
        let (published, _) = watch::channel(Arc::default());
        let (_, rules) = watch::channel(Arc::default());
        let mut registry = RegistryTask::new(&self.broker, published, (rules, Callers::default()), limits);
        registry.load().await.expect("the broker is there");
        registry.started = Instant::now().checked_sub(names::WORKER_LOST).expect("the machine runs for longer");
        registry
    }

    async fn advertise(&self, pool: &str, set: &str, tool: &str) {
        let schema = r#"{"type":"object"}"#.to_owned();
        let tool = v1::Tool { name: tool.to_owned(), input_schema: schema, ..v1::Tool::default() };
        let manifest = manifest_in(tool).expect("a manifest").manifest;
        self.put(&format!("{pool}.{set}"), encode_advertisement([&manifest].into_iter()).1).await;
    }

    async fn put(&self, key: &str, value: Bytes) {
        self.broker.tools.put(key, value).await.expect("the broker is there");
    }

    async fn keys(&self) -> BTreeSet<String> {
        let keys = self.broker.tools.keys().await.expect("the broker is there");
        keys.map(|key| key.expect("the broker is there")).collect().await
    }

    async fn has_queue(&self, pool: &PoolId) -> bool {
        let queue = self.broker.context.get_stream(names::STREAM).await.expect("the log is there");
        queue.consumer_info(names::pool_consumer(pool)).await.is_ok()
    }
}

fn pool(name: &str) -> PoolId {
    name.parse().expect("a name")
}

/// Names of sets are hashes.
fn set(number: usize) -> String {
    let set = format!("{number:064x}");
    set.parse::<ToolSetId>().expect("the name of a set");
    set
}

fn lives(registry: &mut RegistryTask, pool_name: &str, worker: &str, set: &str) {
    let (tools, slots) = (set.parse().expect("the name of a set"), 1);
    let worker: WorkerId = worker.parse().expect("a name");
    registry.last_seen.insert((pool(pool_name), worker.clone()), Instant::now());
    let lives = Worker {
        tools,
        pulling: true,
        slots,
        draining: false,
        release: String::new(),
        sandbox: None,
        hooks: Vec::new(),
    };
    registry.registry.worker_lives(pool(pool_name), worker, lives);
    registry.publish();
}

#[tokio::test]
async fn a_pool_that_nobody_serves_any_more_is_forgotten_with_its_queue_also_by_coordinators_that_are_restarted() {
    let scene = Scene::new().await;
    let forgotten = Duration::from_secs(2);
    let limits = Limits { forgotten, noted_after: Duration::ZERO, ..Limits::default() };
    scene.advertise("gone", &set(1), "a").await;
    scene.advertise("lives", &set(2), "b").await;
    for _ in 0..2 {
        // Each worker lives for less than it takes to forget its set.
        let mut registry = scene.registry(limits.clone()).await;
        lives(&mut registry, "lives", "worker", &set(2));
        registry.check_all().await;
        assert!(scene.has_queue(&pool("gone")).await && scene.has_queue(&pool("lives")).await);
        assert_eq!(scene.keys().await.len(), 2);
        tokio::time::sleep(forgotten * 2 / 3).await;
    }
    let mut registry = scene.registry(limits).await;
    lives(&mut registry, "lives", "worker", &set(2));
    registry.check_all().await;
    assert!(!scene.has_queue(&pool("gone")).await && scene.has_queue(&pool("lives")).await);
    assert_eq!(scene.keys().await, BTreeSet::from([format!("lives.{}", set(2))]));
    registry.check_all().await;
    let notes = scene.broker.snapshots.keys().await.expect("the broker is there").count().await;
    assert_eq!(notes, 0, "nothing is left of it");
}

#[tokio::test]
async fn the_tools_of_the_last_workers_of_a_pool_on_demand_are_kept_with_its_queue() {
    let scene = Scene::new().await;
    let forgotten = Duration::from_millis(500);
    let on_demand = HashSet::from([pool("asleep")]);
    let limits = Limits { forgotten, noted_after: Duration::ZERO, on_demand, ..Limits::default() };
    scene.advertise("asleep", &set(1), "old").await;
    scene.advertise("asleep", &set(2), "new").await;
    let mut registry = scene.registry(limits).await;
    lives(&mut registry, "asleep", "worker", &set(2));
    registry.check_all().await;
    assert!(registry.registry.worker_left(&pool("asleep"), &"worker".parse().expect("a name")));
    registry.last_seen.clear();
    registry.publish();
    tokio::time::sleep(forgotten / 5).await;
    registry.check_all().await;
    tokio::time::sleep(forgotten * 2).await;
    registry.check_all().await;
    assert_eq!(scene.keys().await, BTreeSet::from([format!("asleep.{}", set(2))]));
    assert!(scene.has_queue(&pool("asleep")).await);
    let catalog = &registry.registry.catalog;
    let new = catalog.find(&"new".parse().expect("a name")).expect("it is known");
    assert!(registry.registry.is_available(new) && catalog.find(&"old".parse().expect("a name")).is_none());
}

#[tokio::test]
async fn a_set_that_is_hosted_again_is_deserted_anew_and_a_queue_with_jobs_stays() {
    let scene = Scene::new().await;
    let forgotten = Duration::from_millis(500);
    let limits = Limits { forgotten, noted_after: Duration::ZERO, ..Limits::default() };
    scene.advertise("main", &set(1), "a").await;
    let mut registry = scene.registry(limits).await;
    registry.check_all().await;
    tokio::time::sleep(forgotten).await;
    lives(&mut registry, "main", "worker", &set(1));
    registry.check_all().await;
    assert!(registry.registry.worker_left(&pool("main"), &"worker".parse().expect("a name")));
    registry.last_seen.clear();
    registry.publish();
    registry.check_all().await;
    assert_eq!(scene.keys().await.len(), 1, "it counts from when it was deserted again");

    let run = run::RunId::new(run::Shard(0), uuid::Uuid::now_v7());
    let place = proto::subject::SubjectKind::Job { call: run::CallIndex(0), pool: pool("main") };
    let job = proto::subject::Subject { run, place }.to_string();
    let sent = scene.broker.context.publish(job, "a job".into()).await.expect("it is sent");
    sent.await.expect("it is stored");
    tokio::time::sleep(forgotten).await;
    registry.check_all().await;
    assert!(scene.has_queue(&pool("main")).await && scene.keys().await.len() == 1, "a worker may come for the job");
}

#[tokio::test]
async fn a_queue_that_was_lost_is_made_again() {
    let scene = Scene::new().await;
    scene.advertise("main", &set(1), "a").await;
    let mut registry = scene.registry(Limits { queues_checked: Duration::ZERO, ..Limits::default() }).await;
    registry.check_all().await;
    let queue = names::pool_consumer(&pool("main"));
    scene.broker.context.delete_consumer_from_stream(queue, names::STREAM).await.expect("it was there");
    registry.check_all().await;
    assert!(scene.has_queue(&pool("main")).await);
}

#[tokio::test]
async fn what_is_advertised_is_bounded_for_each_pool_and_what_makes_no_sense_stops_no_start() {
    let scene = Scene::new().await;
    let limits = Limits { sets_max: 3, ..Limits::default() };
    scene.put("main.a=b", Bytes::new()).await;
    scene.put(&format!("main.{}", set(0)), "no manifests".into()).await;
    for number in 1..=5 {
        scene.advertise("main", &set(number), &format!("tool-{number}")).await;
    }
    scene.advertise("other", &set(9), "other").await;
    let mut registry = scene.registry(limits).await;
    assert_eq!(registry.sets.len(), 7, "all but the one with an invalid key");
    lives(&mut registry, "main", "worker", &set(1));
    registry.check_all().await;
    // The hosted one, and the newest.
    let left = [("main", 1), ("main", 4), ("main", 5), ("other", 9)];
    assert_eq!(scene.keys().await, left.map(|(pool, number)| format!("{pool}.{}", set(number))).into());
    assert!(registry.registry.catalog.find(&"tool-1".parse().expect("a name")).is_some());
    let bytes = registry.bytes.values().copied().max().expect("there are some");
    registry.limits.set_bytes_max = bytes * 2;
    registry.check_all().await;
    assert_eq!(scene.keys().await.len(), 3);
}

#[tokio::test]
async fn heartbeats_of_ever_new_workers_make_a_pool_no_larger_than_it_may_be() {
    let scene = Scene::new().await;
    let mut registry = scene.registry(Limits { workers_max: 2, ..Limits::default() }).await;
    let mut count = |pool: &str, worker: &str| {
        if !registry.is_too_many(&pool.parse().expect("a name"), &worker.parse().expect("a name")) {
            lives(&mut registry, pool, worker, &set(1));
        }
        registry.last_seen.len()
    };
    assert_eq!(["a", "b", "c", "a", "d"].map(|worker| count("main", worker)), [1, 2, 2, 2, 2]);
    assert_eq!(count("other", "c"), 3);
}
