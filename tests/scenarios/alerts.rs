//! Each alert that the project ships fires while its cause lasts and is inactive afterwards: a real Prometheus scrapes
//! real processes while the cause is made. The panels of the dashboard have data in a fleet that rests.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_nats::jetstream::{self, stream};
use harness::{
    Admin, Authority, Client, Collector, Coordinator, Direction, Fixture, Keys, PATIENCE, Prometheus, Proxy, Run,
    Sample, Stream, Worker, Yard, alert_names, call, dashboard_panels, reason,
};
use local::Cluster;
use proto::v1::{self, CallState, FloorPolicy, run_event::Event};
use proto::{names, object};
use run::ObjectId;
use serde_json::json;
use tempfile::TempDir;
use tonic::Status;
use tonic::transport::Channel;

use crate::cluster::leader;
use crate::{FIXTURE, check, count};

/// The panels that show a quantile over the calls of the last minutes: without calls their series have no number.
const QUANTILES: [&str; 5] = [
    "Call, 95 of 100 within",
    "Attempt, 95 of 100 within",
    "Wait in the queue, 95 of 100 within",
    "First output, 95 of 100 within",
    "Wait for the floor, 95 of 100 within",
];
const DAY: Duration = Duration::from_secs(86_400);
const OBJECTS_BYTES: u64 = 2 << 20;
/// Three such results take 86 % of the room for objects.
const RESULT_BYTES: usize = 600_000;
const LOG_BYTES: u64 = 8 << 20;
const LOG_MESSAGES: u64 = 1400;
/// A coordinator estimates 128 MiB for a broker that holds nothing, and 1 KiB for each subject: 1 MiB more is 90 % of
/// this.
const BROKER_MEMORY: u64 = (129 << 20) * 10 / 9;
/// Echoed, so that it is stored twice.
const TEXT_BYTES: usize = 100 << 10;
/// More calls than the log has room for.
const CALLS_MAX: usize = 200;

fn echo(text: &str) -> v1::NewCall {
    call("echo", "echo", json!({ "text": text }))
}

async fn ends(run: &Run) {
    check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
}

#[test]
fn every_alert_is_caused_by_a_scenario() {
    let source = include_str!("alerts.rs");
    let awaited = |what: &str, alert: &str| source.contains(&format!("{what}(\"{alert}\")"));
    for alert in alert_names() {
        assert!(awaited("until_firing", alert) && awaited("until_inactive", alert), "{alert}");
    }
}

/// A coordinator behind TLS with Redis, webhooks, telemetry and little room for objects, and a worker that reaches the
/// broker through a proxy.
struct Fleet {
    prometheus: Prometheus,
    broker: local::Broker,
    authority: Authority,
    client: Client,
    /// The way to the telemetry collector.
    collector: Proxy,
    /// The way of the worker to the broker.
    link: Proxy,
    /// The admin port of the other worker.
    hosts: Admin,
    folder: TempDir,
    _processes: (Collector, Coordinator, Worker),
}

impl Fleet {
    async fn start(store: &local::Store) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let broker = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
        let authority = Authority::new();
        let certified = authority.server_for("door", DAY * 3);
        let taking = Collector::start().await;
        let address = taking.url().trim_start_matches("http://").parse().expect("an address");
        let collector = Proxy::to(address).await.expect("a port is free");
        let (door, cut_off, hosts) = (Admin::anywhere(), Admin::anywhere(), Admin::anywhere());
        let fixture = door
            .of(&Fixture::new(FIXTURE))
            .with_redis(&store.url())
            .with("TOOLYARD_WEBHOOKS", webhooks(&folder).display())
            .with("TOOLYARD_OBJECTS_MAX_BYTES", OBJECTS_BYTES)
            .with("TOOLYARD_TLS_CERT", certified.certificate.display())
            .with("TOOLYARD_TLS_KEY", certified.key.display())
            .with("OTEL_EXPORTER_OTLP_ENDPOINT", format!("http://{}", collector.address()))
            .with("OTEL_METRIC_EXPORT_INTERVAL", 200);
        let coordinator = fixture.coordinator(&broker.url()).await;
        let endpoint = Channel::from_shared(format!("https://{}", coordinator.address())).expect("a URL");
        let endpoint = endpoint.tls_config(authority.trusted(None)).expect("the authority is trusted");
        let client = Client::through(endpoint.connect().await.expect("the coordinator listens"));
        let link = Proxy::to_broker(&broker.url()).await.expect("a port is free");
        let worker = cut_off.of(&Fixture::new(FIXTURE)).worker(&link.nats_url(), "main", 4).await;
        client.wait_for_tool("waits").await;
        let prometheus = Prometheus::start(&[door, cut_off, hosts]).await;
        let _processes = (taking, coordinator, worker);
        Self { prometheus, broker, authority, client, collector, link, hosts, folder, _processes }
    }

    /// A worker with one slot that reaches the broker directly.
    async fn worker(&self) -> Worker {
        self.hosts.of(&Fixture::new(FIXTURE)).worker(&self.broker.url(), "main", 1).await
    }

    async fn until_all_are_inactive(&self) {
        for alert in [
            "ToolyardJobsHandedBack",
            "ToolyardLeasesLost",
            "ToolyardQueueOld",
            "ToolyardNoWorker",
            "ToolyardCallsParked",
            "ToolyardNoticesParked",
            "ToolyardObjectsFilling",
            "ToolyardObjectsFull",
            "ToolyardTelemetryDropped",
        ] {
            self.prometheus.until_inactive(alert).await;
        }
    }
}

/// A file of webhooks whose only endpoint does not listen.
fn webhooks(folder: &TempDir) -> PathBuf {
    let file = folder.path().join("webhooks.toml");
    std::fs::write(folder.path().join("secret"), "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").expect("it is written");
    let text = "[[endpoint]]\nname = \"agents\"\nurl = \"http://127.0.0.1:1/hooks\"\nsecret_files = [\"secret\"]\n\
                give_up_after_s = 2\n";
    std::fs::write(&file, text).expect("it is written");
    file
}

/// Most causes take time and hinder no other, so they are made at the same time.
#[tokio::test]
async fn each_alert_of_a_fleet_fires_while_its_cause_lasts_and_no_longer() {
    let mut store = local::Store::start(|_| {}).await.expect("a store starts");
    let fleet = Fleet::start(&store).await;
    // The worker behind the proxy is alone, so the call runs there.
    let path = fleet.folder.path().join("there");
    let mut held = fleet.client.execute(vec![call("held", "waits", json!({ "path": path }))]).await;
    held.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    let worker = fleet.worker().await;
    fleet.prometheus.until_scraped().await;
    fleet.until_all_are_inactive().await;

    // Each loss is the first of its process: a parked call, a parked notification, a lost lease, a job handed back.
    let gives = fleet.client.create(vec![call("gives", "gives", json!({ "when_there": "/nowhere/at/all" }))]).await;
    ends(&gives).await;
    for _ in 0..3 {
        ends(&fleet.client.create(vec![call("makes", "makes", json!({ "bytes": RESULT_BYTES }))]).await).await;
    }
    fleet.link.hold(Direction::Both);
    tokio::join!(
        Box::pin(leases_are_lost(&fleet.prometheus)),
        Box::pin(one_worker_is_lost_and_the_other_one_is_busy_and_dies(&fleet, worker, held, path)),
        Box::pin(calls_and_notifications_are_parked(&fleet.prometheus)),
        Box::pin(redis_is_lost(&fleet.prometheus, &mut store)),
        Box::pin(objects_take_their_room(&fleet)),
        Box::pin(the_collector_does_not_listen(&fleet)),
        Box::pin(the_certificate_expires_soon(&fleet)),
    );
}

/// The worker that is cut off gives up its job when the broker has confirmed nothing for as long as a lease lasts.
async fn leases_are_lost(prometheus: &Prometheus) {
    prometheus.until_firing("ToolyardLeasesLost").await;
    prometheus.until_inactive("ToolyardLeasesLost").await;
}

async fn one_worker_is_lost_and_the_other_one_is_busy_and_dies(
    fleet: &Fleet,
    mut busy: Worker,
    mut held: Stream,
    path: PathBuf,
) {
    let Fleet { prometheus, client, .. } = fleet;
    prometheus.until_firing("ToolyardJobsHandedBack").await;
    held.until(|event| matches!(event, Event::AttemptStarted(started) if started.attempt == 2)).await;

    // The only slot of the worker that is left is taken.
    let queued = client.create(vec![echo("queued")]).await;
    prometheus.until_firing("ToolyardQueueOld").await;
    // The worker lives, so the call does not lack one.
    prometheus.until_inactive("ToolyardNoWorker").await;
    std::fs::write(path, "").expect("the file is written");
    check::whole(&held.to_end().await, true);
    ends(&queued).await;
    prometheus.until_inactive("ToolyardQueueOld").await;
    prometheus.until_inactive("ToolyardJobsHandedBack").await;

    busy.kill().await;
    let waits = client.create(vec![echo("waits for a worker")]).await;
    prometheus.until_firing("ToolyardNoWorker").await;
    let _next = fleet.worker().await;
    ends(&waits).await;
    prometheus.until_inactive("ToolyardNoWorker").await;
}

/// What is parked is reported once, and the alerts end when that was an hour ago.
async fn calls_and_notifications_are_parked(prometheus: &Prometheus) {
    tokio::join!(prometheus.until_firing("ToolyardCallsParked"), prometheus.until_firing("ToolyardNoticesParked"));
    prometheus.until_inactive("ToolyardCallsParked").await;
    prometheus.until_inactive("ToolyardNoticesParked").await;
}

async fn redis_is_lost(prometheus: &Prometheus, store: &mut local::Store) {
    prometheus.until("toolyard_index_complete", |index| index.len() == 1 && index[0].value == 1.0).await;
    prometheus.until_inactive("ToolyardIndexIncomplete").await;
    store.kill().await;
    prometheus.until_firing("ToolyardIndexIncomplete").await;
    store.restart().await.expect("it comes back");
    prometheus.until_inactive("ToolyardIndexIncomplete").await;
}

async fn objects_take_their_room(fleet: &Fleet) {
    fleet.prometheus.until_firing("ToolyardObjectsFilling").await;
    assert!(!fleet.prometheus.is_firing("ToolyardObjectsFull").await, "there is room for another object");
    let nats = async_nats::connect(fleet.broker.url()).await.expect("the broker is there");
    let nats = jetstream::new(nats);
    // Chunks of an upload, until the broker has no room.
    for index in 0.. {
        let chunk = object::chunk(&ObjectId::Upload(uuid::Uuid::now_v7()), index);
        let stored = nats.publish(chunk, vec![0; 60_000].into()).await.expect("the broker is there");
        if stored.await.is_err() {
            break;
        }
    }
    fleet.prometheus.until_firing("ToolyardObjectsFull").await;
    let objects = nats.get_stream(names::OBJECTS).await.expect("there are objects");
    objects.purge().await.expect("objects may be removed");
    fleet.prometheus.until_inactive("ToolyardObjectsFull").await;
    fleet.prometheus.until_inactive("ToolyardObjectsFilling").await;
}

async fn the_collector_does_not_listen(fleet: &Fleet) {
    fleet.collector.close();
    fleet.prometheus.until_firing("ToolyardTelemetryDropped").await;
    fleet.collector.heal();
    fleet.prometheus.until_inactive("ToolyardTelemetryDropped").await;
}

async fn the_certificate_expires_soon(fleet: &Fleet) {
    fleet.prometheus.until_firing("ToolyardCertificateExpires").await;
    let renewed = fleet.authority.server("door");
    assert!(renewed.certificate.exists(), "it replaces the one that expires");
    fleet.prometheus.until_inactive("ToolyardCertificateExpires").await;
}

/// A process that has just started is scraped for the first time after its first loss, so Prometheus never sees a zero.
#[tokio::test]
async fn a_loss_before_the_first_scrape_is_alerted_too() {
    let admin = Admin::anywhere();
    let yard = Yard::start_with(admin.of(&Fixture::new(FIXTURE))).await;
    let _worker = Fixture::new(FIXTURE).worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("gives").await;
    let gives = call("gives", "gives", json!({ "when_there": "/nowhere/at/all" }));
    ends(&yard.client.create(vec![gives]).await).await;
    let parked = "toolyard_calls_parked_total{pool=\"main\",tool=\"gives\"} 1";
    admin.until("/metrics", |_, text| text.contains(parked)).await;
    let prometheus = Prometheus::start(&[admin]).await;
    prometheus.until_firing("ToolyardCallsParked").await;
    prometheus.until_inactive("ToolyardCallsParked").await;
}

#[tokio::test]
async fn lost_servers_of_the_broker_and_lost_coordinators_are_alerted_until_they_are_replaced() {
    let mut cluster = Cluster::start(|_| {}).await.expect("a cluster starts");
    let admins = [Admin::anywhere(), Admin::anywhere()];
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_DURABILITY", "standard");
    let mut first = admins[0].of(&fixture).coordinator(&cluster.url()).await;
    let mut second = admins[1].of(&fixture).coordinator(&cluster.url()).await;
    let prometheus = Prometheus::start(&admins).await;
    prometheus.until_scraped().await;
    let shared = |shards: &[Sample]| shards.len() == 2 && shards.iter().all(|shards| shards.value == 8.0);
    prometheus.until("toolyard_shards_owned", shared).await;
    prometheus.until_quiet().await;

    // The server that leads the log is the one that is left: it goes on to answer.
    let leader = leader(&cluster).await;
    let lost = [(leader + 1) % 3, (leader + 2) % 3];
    cluster.nodes_mut()[lost[0]].kill().await;
    prometheus.until_firing("ToolyardBrokerServerLost").await;
    // Two of three servers are enough.
    prometheus.until_inactive("ToolyardLogUnreachable").await;
    prometheus.until_inactive("ToolyardPartitionLost").await;
    cluster.nodes_mut()[lost[1]].kill().await;
    prometheus.until_firing("ToolyardPartitionLost").await;
    prometheus.until_firing("ToolyardLogUnreachable").await;
    for node in lost {
        cluster.nodes_mut()[node].restart().await.expect("it comes back");
    }
    cluster.healthy().await.expect("the cluster heals");
    prometheus.until_inactive("ToolyardLogUnreachable").await;
    prometheus.until_inactive("ToolyardPartitionLost").await;
    prometheus.until_inactive("ToolyardBrokerServerLost").await;
    prometheus.until_inactive("ToolyardShardsUnowned").await;

    // Its shards have no owner until its lease runs out.
    second.kill().await;
    prometheus.until_firing("ToolyardShardsUnowned").await;
    prometheus.until_inactive("ToolyardShardsUnowned").await;
    // Nothing can be scraped any more.
    first.kill().await;
    prometheus.until_firing("ToolyardLogUnreachable").await;
    let _first = admins[0].of(&fixture).coordinator(&cluster.url()).await;
    prometheus.until_inactive("ToolyardLogUnreachable").await;
}

#[tokio::test]
async fn a_history_that_is_away_is_alerted_until_it_is_back_and_so_is_what_it_will_not_have() {
    let outer = tempfile::tempdir().expect("a folder");
    let (here, aside) = (outer.path().join("here"), outer.path().join("aside"));
    let fixture = Fixture::new(FIXTURE)
        .with("TOOLYARD_HISTORY", format!("file://{}", here.display()))
        .with("TOOLYARD_LOG_MAX_MESSAGES", LOG_MESSAGES);
    let (yard, _worker, prometheus) = scraped(&fixture).await;
    ends(&yard.client.create(vec![echo("kept")]).await).await;
    prometheus.until_quiet().await;
    std::fs::rename(&here, &aside).expect("moved");
    std::fs::write(&here, b"").expect("a file in its place");
    ends(&yard.client.create(vec![echo("waits")]).await).await;
    prometheus.until_firing("ToolyardHistoryBehind").await;
    prometheus.until_inactive("ToolyardHistoryLost").await;
    // Runs wait in the log until it is almost full. Then the oldest leave it, and are nowhere.
    for _ in 0..LOG_MESSAGES / 2 {
        let Ok(run) = create(&yard.client, echo("small")).await else { break };
        ends(&run).await;
    }
    prometheus.until_firing("ToolyardHistoryLost").await;
    std::fs::remove_file(&here).expect("removed");
    std::fs::rename(&aside, &here).expect("moved back");
    prometheus.until_inactive("ToolyardHistoryBehind").await;
    prometheus.until_inactive("ToolyardHistoryLost").await;
}

/// Takes these publish permissions out of the broker's configuration.
fn without(accounts: &str, missing: &[String]) -> String {
    let is_missing = |line: &str| missing.iter().any(|subject| line.trim() == format!("\"{subject}\""));
    let kept = accounts.lines().filter(|line| !is_missing(line));
    let kept: Vec<&str> = kept.collect();
    assert_eq!(kept.len() + missing.len(), accounts.lines().count(), "each permission has one line");
    kept.join("\n")
}

#[tokio::test]
async fn missing_permissions_are_alerted_by_what_they_prevent_until_the_broker_has_them() {
    let keys = Keys::new(&["main"]);
    let accounts = std::fs::read_to_string(keys.accounts()).expect("it was written");
    let pool = names::pool_consumer(&"main".parse().expect("a pool"));
    let log = names::STREAM;
    let missing = [
        format!("$JS.API.CONSUMER.MSG.NEXT.*.{pool}"),
        // A run is erased by one of these, whichever is cheaper.
        format!("$JS.API.STREAM.MSG.DELETE.{log}"),
        format!("$JS.API.STREAM.PURGE.{log}"),
    ];
    std::fs::write(keys.accounts(), without(&accounts, &missing)).expect("written");
    let options = local::BrokerOptions { config: Some(keys.accounts()), ..local::BrokerOptions::default() };
    let broker = local::Broker::start(options, |_| {}).await.expect("a broker starts");
    let admins = [Admin::anywhere(), Admin::anywhere()];
    let fixture = keys.coordinators(&admins[0].of(&Fixture::new(FIXTURE))).with("TOOLYARD_ERASE_AFTER", 1);
    let coordinator = fixture.coordinator(&broker.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let prometheus = Prometheus::start(&admins).await;
    // The run ends at once, because no worker hosts its tool. It is to be erased some 18 s later.
    let calls = vec![call("a", "hosted-by-no-worker", json!({}))];
    let request = v1::CreateRunRequest { calls, store: Some(false), ..v1::CreateRunRequest::default() };
    client.runs.clone().create_run(request).await.expect("the run is accepted");
    let fixture = keys.workers(&admins[1].of(&Fixture::new(FIXTURE)), "main");
    let _worker = fixture.worker(&broker.url(), "main", 4).await;
    prometheus.until_scraped().await;
    prometheus.until_firing("ToolyardWorkersNotPulling").await;
    prometheus.until_inactive("ToolyardErasureFailing").await;
    prometheus.until_firing("ToolyardErasureFailing").await;

    // The broker of a test has its name from a flag, and none in its file: it would not take that for the same.
    std::fs::write(keys.accounts(), accounts + "server_name: toolyard-local\n").expect("written");
    let server = broker.pid().and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
    rustix::process::kill_process(server.expect("it runs"), rustix::process::Signal::HUP).expect("it reloads");
    prometheus.until_inactive("ToolyardWorkersNotPulling").await;
    prometheus.until_inactive("ToolyardErasureFailing").await;
}

/// A fleet with a small log whose processes Prometheus scrapes.
async fn scraped_yard() -> (Yard, Worker, Prometheus) {
    scraped(&Fixture::new(FIXTURE).with("TOOLYARD_LOG_MAX_BYTES", LOG_BYTES)).await
}

async fn scraped(coordinator: &Fixture) -> (Yard, Worker, Prometheus) {
    let admins = [Admin::anywhere(), Admin::anywhere()];
    let yard = Yard::start_with(admins[0].of(coordinator)).await;
    let worker = admins[1].of(&Fixture::new(FIXTURE)).worker(&yard.broker.url(), "main", 16).await;
    yard.client.wait_for_tool("echo").await;
    let prometheus = Prometheus::start(&admins).await;
    prometheus.until_scraped().await;
    prometheus.until_quiet().await;
    (yard, worker, prometheus)
}

async fn log(yard: &Yard) -> stream::Stream {
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    jetstream::new(nats).get_stream(names::STREAM).await.expect("the log is there")
}

/// Runs calls until the log is full to more than so many percent. Gives their runs.
async fn fill(yard: &Yard, log: &stream::Stream, percent: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    let give_up = Instant::now() + PATIENCE;
    let text = "x".repeat(TEXT_BYTES);
    while log.get_info().await.expect("the log is there").state.bytes <= LOG_BYTES / 100 * percent {
        assert!(runs.len() < CALLS_MAX && Instant::now() < give_up, "a log of {LOG_BYTES} bytes takes this much");
        match create(&yard.client, echo(&text)).await {
            Ok(run) => {
                ends(&run).await;
                runs.push(run);
            }
            // The coordinator counts more than the log has until it reads how much that is.
            Err(refusal) => {
                assert_eq!(reason(&refusal), "LOG_FULL", "{refusal}");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    runs
}

async fn create(client: &Client, call: v1::NewCall) -> Result<Run, Status> {
    let request = v1::CreateRunRequest { calls: vec![call], ..v1::CreateRunRequest::default() };
    let created = client.runs.clone().create_run(request).await?.into_inner();
    Ok(Run { client: client.clone(), id: created.run.expect("the response has the run").run_id })
}

#[tokio::test]
async fn a_log_that_fills_is_alerted_before_it_is_full_and_when_it_is_until_it_has_room_again() {
    let (yard, _worker, prometheus) = scraped_yard().await;
    let log = log(&yard).await;
    let mut runs = fill(&yard, &log, 72).await;
    prometheus.until_firing("ToolyardLogFilling").await;
    assert!(!prometheus.is_firing("ToolyardLogFull").await, "there is room for new runs");
    runs.extend(fill(&yard, &log, 85).await);
    prometheus.until_firing("ToolyardLogFull").await;
    // They leave the log, as they do 25 h later.
    for run in runs {
        log.purge().filter(format!("ty.run.*.{}.>", run.id)).await.expect("it may be purged");
    }
    prometheus.until_inactive("ToolyardLogFull").await;
    prometheus.until_inactive("ToolyardLogFilling").await;
}

/// A run that may last for longer than the log keeps entries has to be carried.
#[tokio::test]
async fn a_bucket_of_carried_runs_that_fills_is_alerted_and_long_runs_are_refused_until_it_has_room_again() {
    let (yard, _worker, prometheus) = scraped_yard().await;
    let nats = jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    let bucket = nats.get_stream(format!("KV_{}", names::CARRIED_BUCKET)).await.expect("the bucket is there");
    let mut config = bucket.cached_info().config.clone();
    let (room, filled) = (config.max_bytes, 1 << 20);
    config.max_bytes = filled;
    nats.update_stream(&config).await.expect("it may be changed");
    let piece = vec![0; usize::try_from(filled).expect("it is small") / 10];
    for number in 0..9 {
        let subject = format!("$KV.{}.0.none.{number}", names::CARRIED_BUCKET);
        nats.publish(subject, piece.clone().into()).await.expect("sent").await.expect("stored");
    }
    prometheus.until_firing("ToolyardCarriedFilling").await;
    let lasting = async |hours: i64| {
        let timeout = Some(prost_types::Duration { seconds: hours * 3600, nanos: 0 });
        let request = v1::CreateRunRequest { calls: vec![echo("x")], timeout, ..v1::CreateRunRequest::default() };
        yard.client.runs.clone().create_run(request).await
    };
    let refused = lasting(25).await.expect_err("it might have to be carried");
    assert_eq!(reason(&refused), "LOG_FULL", "{refused}");
    lasting(24).await.expect("it is over before the log loses it");
    config.max_bytes = room;
    nats.update_stream(&config).await.expect("it may be changed");
    prometheus.until_inactive("ToolyardCarriedFilling").await;
    lasting(25).await.expect("there is room");
}

/// Small calls: the messages of the log are full long before its bytes, and the broker needs memory for them.
#[tokio::test]
async fn a_log_full_of_small_calls_and_the_memory_that_it_takes_are_alerted_until_it_has_room_again() {
    let fixture = Fixture::new(FIXTURE)
        .with("TOOLYARD_LOG_MAX_BYTES", LOG_BYTES)
        .with("TOOLYARD_LOG_MAX_MESSAGES", LOG_MESSAGES)
        .with("TOOLYARD_BROKER_MEMORY", BROKER_MEMORY);
    let (yard, _worker, prometheus) = scraped(&fixture).await;
    let mut runs = Vec::new();
    loop {
        match create(&yard.client, echo("small")).await {
            Ok(run) => runs.push(run),
            Err(refusal) => {
                assert_eq!(reason(&refusal), "LOG_FULL", "{refusal}");
                break;
            }
        }
    }
    prometheus.until_firing("ToolyardLogFull").await;
    prometheus.until_firing("ToolyardBrokerMemory").await;
    let log = log(&yard).await;
    for run in runs {
        ends(&run).await;
        log.purge().filter(format!("ty.run.*.{}.>", run.id)).await.expect("it may be purged");
    }
    prometheus.until_inactive("ToolyardLogFull").await;
    prometheus.until_inactive("ToolyardLogFilling").await;
    prometheus.until_inactive("ToolyardBrokerMemory").await;
}

/// The coordinator stands still again and again, as if it had too little CPU. Entries that are written meanwhile reach
/// it late.
#[tokio::test]
async fn a_coordinator_that_reads_the_log_late_is_alerted_until_it_keeps_up() {
    let (yard, _worker, prometheus) = scraped_yard().await;
    let stands_still = async {
        loop {
            // A coordinator that stood still for so long gets its shards back before it accepts runs again.
            let Ok(run) = create(&yard.client, count("count", 30, 30)).await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let mut stream = run.watch(FloorPolicy::Arrival).await;
            stream.until(|event| matches!(event, Event::CallOutput(_))).await;
            yard.coordinator.pause();
            // Its output ends within a second, and is then more than 5 s old.
            tokio::time::sleep(Duration::from_secs(7)).await;
            yard.coordinator.resume();
            let outcome = stream.to_end().await;
            assert_eq!(check::outcomes(&outcome)["count"].state(), CallState::Completed);
            // What it read late is shown when it has counted its calls, which it does every second.
            tokio::time::sleep(Duration::from_secs(2)).await;
        }
    };
    tokio::select! {
        () = prometheus.until_firing("ToolyardLogLag") => {}
        () = stands_still => {}
    }
    yard.coordinator.resume();
    prometheus.until_inactive("ToolyardLogLag").await;
}

#[tokio::test]
async fn a_worker_that_drains_is_none_that_gets_no_jobs() {
    let (yard, worker, prometheus) = scraped_yard().await;
    let mut busy = yard.client.execute(vec![count("count", 80, 100)]).await;
    busy.until(|event| matches!(event, Event::CallOutput(_))).await;
    let request = v1::DrainWorkerRequest { worker_id: worker.id().to_owned() };
    yard.client.fleet.clone().drain_worker(request).await.expect("it drains");
    let draining = |pools: &[Sample]| pools.len() == 1 && pools[0].value == 1.0;
    prometheus.until("toolyard_pool_workers_draining", draining).await;
    while busy.next().await.expect("the stream does not break") {
        assert!(!prometheus.is_firing("ToolyardWorkersNotPulling").await, "it drains");
    }
}

#[tokio::test]
async fn the_dashboard_of_a_fleet_that_rests_has_data_and_no_alert_fires() {
    let (yard, _worker, prometheus) = scraped_yard().await;
    // A process shows a histogram once something is in it. What comes later is an increase.
    ends(&yard.client.create(vec![count("count", 1, 1)]).await).await;
    for histogram in ["call", "attempt", "queue_wait", "first_chunk", "floor_wait"] {
        prometheus.until(&format!("toolyard_{histogram}_seconds_count"), |calls| !calls.is_empty()).await;
    }
    ends(&yard.client.create(vec![count("count", 1, 1)]).await).await;
    // The call is over for longer than the time over which rates are taken.
    let idle = |rate: &[Sample]| rate.len() == 1 && rate[0].value == 0.0;
    prometheus.until("sum(rate(toolyard_calls_ended_total[2s]))", idle).await;
    let panels = dashboard_panels();
    assert!(QUANTILES.iter().all(|title| panels.iter().any(|(panel, _)| panel == title)), "{QUANTILES:?}");
    for (title, expressions) in panels {
        for expression in expressions {
            // On a busy machine a scrape may be late, and the range have one of the two values that a rate needs.
            let data = prometheus.until(&expression, |data| !data.is_empty()).await;
            let is_quantile = QUANTILES.contains(&title.as_str());
            assert!(is_quantile || data.iter().all(|series| !series.value.is_nan()), "{title}: {data:?}");
            // Over a time with a call in it, a quantile is a number.
            let is_number = |data: &[Sample]| data.iter().any(|series| series.value.is_finite());
            prometheus.until(&expression.replace("[2s]", "[1m]"), is_number).await;
        }
    }
    prometheus.until_quiet().await;
}
