//! A log of several partitions: they are added while everything runs, and each works without the others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::{self, Context};
use futures::StreamExt as _;
use harness::{Client, Fixture, Keys, PATIENCE, Run, Stream, Yard, call};
use local::Cluster;
use nats::Credentials;
use nats::access::Party;
use proto::names;
use proto::v1::pause_request::What;
use proto::v1::{self, CallState, FloorPolicy, RunEvent, resume_request, run_event::Event};
use run::{Partition, RunId, Shard};
use serde_json::{Value, json};
use tonic::Code;

use crate::cluster::Clustered;
use crate::history::{get, until};
use crate::{FIXTURE, check, count, counted, pauses};

const PARTITIONS: usize = 4;
/// The number of the second partition.
const SECOND: usize = 1;

pub(crate) async fn add_partitions(url: &str, count: usize) -> Vec<String> {
    let operator = coordinator::Operator::connect(url, &Credentials::default()).await.expect("it is let in");
    operator.partition(count).await.expect("there is room")
}

pub(crate) fn partition_of(run: &str) -> Partition {
    run.parse::<RunId>().expect("the id of a run").shard().partition()
}

/// The partitions of some new runs. All of them end as they should.
async fn run_some(client: &Client, runs: usize) -> BTreeMap<String, Partition> {
    let one = |number: usize| async move {
        let mut stream = client.execute(vec![call("c", "echo", json!({ "text": number.to_string() }))]).await;
        stream.until(|_| true).await;
        let (run, events) = (stream.run(client).id, stream.to_end().await);
        check::whole(&events, true);
        assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed, "{run}");
        let partition = partition_of(&run);
        (run, partition)
    };
    futures::stream::iter(0..runs).map(one).buffer_unordered(16).collect().await
}

/// Makes runs until they are in so many partitions.
pub(crate) async fn until_spread(client: &Client, partitions: usize) -> BTreeMap<String, Partition> {
    let begun = tokio::time::Instant::now();
    let mut runs = BTreeMap::new();
    loop {
        runs.extend(run_some(client, 16).await);
        let spread: BTreeSet<Partition> = runs.values().copied().collect();
        if spread.len() >= partitions {
            return runs;
        }
        assert!(begun.elapsed() < PATIENCE, "all new runs are in {spread:?}");
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn partitions_are_added_while_runs_execute_and_new_runs_are_spread_over_all_of_them() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mut long = yard.client.execute(vec![count("a", 200, 100), count("b", 200, 100)]).await;
    long.until(|event| matches!(event, Event::CallOutput(output) if output.chunk == 10)).await;
    let before = long.run(&yard.client);
    assert_eq!(partition_of(&before.id), Partition::FIRST);
    assert_eq!(add_partitions(&yard.broker.url(), PARTITIONS).await, ["ty-log-1", "ty-log-2", "ty-log-3"]);
    assert_eq!(add_partitions(&yard.broker.url(), PARTITIONS).await, Vec::<String>::new(), "they are there");
    let runs = until_spread(&yard.client, PARTITIONS).await;
    // The run that was open before ends where it was, as if nothing had happened.
    let events = long.to_end().await;
    check::whole(&events, true);
    for call in ["a", "b"] {
        assert_eq!(check::said(&events)[call], counted(call, 200));
    }
    // A coordinator that starts now finds all of them, and so does a worker.
    yard.coordinator.kill().await;
    yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(yard.coordinator.address()).await;
    assert_eq!(events, before.through(&client).watch(FloorPolicy::Arrival).await.to_end().await);
    for run in runs.keys() {
        let run = harness::Run { client: client.clone(), id: run.clone() };
        check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
    }
    until_spread(&client, PARTITIONS).await;
    let found = coordinator::examine(&yard.broker.url(), &Credentials::default(), None).await;
    assert!(found.iter().all(|finding| finding.level == coordinator::Level::Ok), "{found:#?}");
    assert!(found.iter().any(|finding| finding.what == "partition 3 log"), "{found:#?}");
}

#[tokio::test]
async fn a_worker_with_one_slot_serves_the_queues_of_all_partitions() {
    let yard = Yard::start(FIXTURE).await;
    add_partitions(&yard.broker.url(), PARTITIONS).await;
    let _worker = yard.worker_with_slots(1).await;
    let runs = until_spread(&yard.client, PARTITIONS).await;
    assert!(runs.len() >= 16);
}

#[tokio::test]
async fn a_pool_that_was_paused_before_is_paused_in_a_new_partition_until_it_is_resumed() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    pauses::pause(&yard.client, What::Pool("main".to_owned())).await;
    add_partitions(&yard.broker.url(), 2).await;
    until_paused(&yard.broker.url(), "ty-log-1", true).await;
    let (begun, mut runs, mut seen) = (tokio::time::Instant::now(), Vec::new(), BTreeSet::new());
    while seen.len() < 2 {
        let run = yard.client.create(vec![call("c", "echo", json!({ "text": "later" }))]).await;
        seen.insert(partition_of(&run.id));
        runs.push(run);
        assert!(begun.elapsed() < PATIENCE, "all new runs are in {seen:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    for run in &runs {
        let state = run.get().await.calls[0].state();
        assert!([CallState::Accepted, CallState::Queued].contains(&state), "{}: {state:?}", run.id);
    }
    pauses::resume(&yard.client, resume_request::What::Pool("main".to_owned())).await;
    until_paused(&yard.broker.url(), "ty-log-1", false).await;
    for run in runs {
        check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
    }
}

/// Waits until the queue of the pool in a partition is paused, or is not.
async fn until_paused(url: &str, stream: &str, paused: bool) {
    let context = async_nats::jetstream::new(async_nats::connect(url).await.expect("the broker is there"));
    let begun = tokio::time::Instant::now();
    loop {
        let queue: Result<PullConsumer, _> = context.get_consumer_from_stream("pool-main", stream).await;
        if queue.is_ok_and(|queue| queue.cached_info().paused == paused) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "the queue does not follow");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn the_queues_follow_a_pause_of_which_only_the_record_was_stored() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let context = async_nats::jetstream::new(nats);
    // As a coordinator does that dies before it has told the queue.
    let records = context.get_key_value("ty-pauses").await.expect("the bucket is there");
    let record = json!({ "by": "", "reason": "it dies then", "at_ms": 1 }).to_string();
    records.put("pool.main", record.into()).await.expect("it is stored");
    until_paused(&yard.broker.url(), "ty-log", true).await;
    let run = yard.client.create(vec![call("c", "echo", json!({ "text": "later" }))]).await;
    assert_eq!(run.get().await.calls[0].attempts, 0);
    records.delete("pool.main").await.expect("it is removed");
    until_paused(&yard.broker.url(), "ty-log", false).await;
    check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
}

#[tokio::test]
async fn a_pause_is_recorded_although_the_queue_is_not_there_and_the_next_queue_is_paused() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let log = async_nats::jetstream::new(nats).get_stream("ty-log").await.expect("it is there");
    log.delete_consumer("pool-main").await.expect("it is there");
    pauses::pause(&yard.client, What::Pool("main".to_owned())).await;
    let listed = yard.client.fleet.clone().list_pauses(proto::v1::ListPausesRequest::default()).await;
    assert_eq!(listed.expect("they are listed").into_inner().pauses.len(), 1);
}

#[tokio::test]
async fn the_keys_of_all_parties_open_the_partitions_too() {
    let keys = Keys::new(&["main"]);
    let yard = Yard::guarded(FIXTURE, &keys).await;
    let by = |party| Credentials { nkey: Some(keys.of(&party)), ca: None };
    let _worker = keys.workers(&yard.fixture, "main").worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("echo").await;
    let operator = coordinator::Operator::connect(&yard.broker.url(), &by(Party::Operator)).await;
    operator.expect("it is let in").partition(2).await.expect("it may add one");
    until_spread(&yard.client, 2).await;
    let found = coordinator::examine(&yard.broker.url(), &by(Party::Observer), None).await;
    assert!(found.iter().all(|finding| finding.level == coordinator::Level::Ok), "{found:#?}");
    assert!(found.iter().any(|finding| finding.what == "partition 1 log"), "{found:#?}");
}

#[tokio::test]
async fn a_coordinator_that_was_not_told_of_a_partition_does_not_say_that_its_runs_are_missing() {
    let keys = Keys::new(&["main"]);
    let mut yard = Yard::guarded(FIXTURE, &keys).await;
    let _worker = keys.workers(&yard.fixture, "main").worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("echo").await;
    let by_operator = Credentials { nkey: Some(keys.of(&Party::Operator)), ca: None };
    let operator = coordinator::Operator::connect(&yard.broker.url(), &by_operator).await;
    operator.expect("it is let in").partition(2).await.expect("it may add one");
    let runs = until_spread(&yard.client, 2).await;
    let (run, _) = runs.iter().find(|(_, partition)| **partition != Partition::FIRST).expect("they are spread");
    yard.coordinator.kill().await;
    // The broker does not answer when a coordinator starts and asks, as one without a leader.
    let accounts = std::fs::read_to_string(keys.accounts()).expect("it was written");
    let silent = accounts.replace("$JS.API.STREAM.NAMES", "$JS.API.STREAM.NOTHING");
    assert_ne!(silent, accounts);
    std::fs::write(keys.accounts(), silent).expect("written");
    yard.broker.kill().await;
    yard.broker.restart().await.expect("it comes back");
    yard.coordinator = keys.coordinators(&yard.fixture).coordinator(&yard.broker.url()).await;
    let client = Client::connect(yard.coordinator.address()).await;
    let unsure = get(&client, run).await.expect_err("it is in a partition that was not found");
    assert_eq!(unsure.code(), Code::Unavailable, "{unsure:?}");
    let by_id = v1::EraseRunsRequest { run_id: run.clone(), ..v1::EraseRunsRequest::default() };
    let unsure = client.runs.clone().erase_runs(by_id).await.expect_err("nor is it known to be gone");
    assert_eq!(unsure.code(), Code::Unavailable, "{unsure:?}");
    // How many runs are counted, and whether those are all.
    let counted = || async {
        let counted = client.index.clone().count_runs(v1::CountRunsRequest::default()).await.expect("it counts");
        let v1::CountRunsResponse { runs, coverage, .. } = counted.into_inner();
        (runs.iter().map(|runs| runs.count).sum::<u64>(), coverage.unwrap_or_default().complete)
    };
    let known = runs.values().filter(|partition| **partition == Partition::FIRST).count() as u64;
    until("the runs of the first partition are not counted", || async { counted().await.0 == known }).await;
    // Also when all of the first partition is in the index.
    for _ in 0..30 {
        assert_eq!(counted().await, (known, false), "the other partition is missing");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    std::fs::write(keys.accounts(), accounts).expect("written");
    yard.broker.kill().await;
    yard.broker.restart().await.expect("it comes back");
    until("the partition is not found", || async { get(&client, run).await.is_ok() }).await;
    until("not all runs are counted", || async { counted().await == (runs.len() as u64, true) }).await;
    let made_up = RunId::new(Shard(0xf0), uuid::Uuid::now_v7()).to_string();
    assert_eq!(get(&client, &made_up).await.expect_err("there is no such partition").code(), Code::NotFound);
}

#[tokio::test]
async fn a_worker_that_dies_is_replaced_in_each_partition() {
    let yard = Yard::start(FIXTURE).await;
    add_partitions(&yard.broker.url(), 2).await;
    let mut worker = yard.worker().await;
    until_spread(&yard.client, 2).await;
    let mut open = Vec::new();
    let mut partitions = BTreeSet::new();
    while partitions.len() < 2 {
        let mut stream = yard.client.execute(vec![count("c", 100, 50)]).await;
        stream.until(|event| matches!(event, Event::CallOutput(output) if output.chunk == 3)).await;
        partitions.insert(partition_of(&stream.run(&yard.client).id));
        open.push(stream);
        assert!(open.len() < 14, "all runs are in {partitions:?}");
    }
    worker.kill().await;
    let _other = yard.worker().await;
    for stream in open {
        let events = stream.to_end().await;
        check::whole(&events, true);
        assert_eq!(check::said(&events)["c"], counted("c", 100), "no output twice");
    }
}

#[tokio::test]
async fn a_partition_without_a_leader_stops_its_own_runs_and_new_ones_go_to_the_others() {
    Box::pin(only_its_own_runs_stop(SECOND)).await;
}

#[tokio::test]
async fn the_first_partition_without_a_leader_stops_its_own_runs_and_new_ones_go_to_the_others() {
    Box::pin(only_its_own_runs_stop(0)).await;
}

/// Kills the only server that has a copy of one of two partitions, and brings it back.
async fn only_its_own_runs_stop(lost: usize) {
    let mut yard = Clustered::start().await;
    let _worker = yard.worker().await;
    let Clustered { cluster, client, .. } = &mut yard;
    add_partitions(&cluster.url(), 2).await;
    until_spread(client, 2).await;
    // It has one copy only, and the rest three.
    let node = only_copy(cluster, lost).await;
    let (mut waits, mut goes_on) = (None, None);
    for (run, stream) in counting(client).await {
        let is_lost = partition_of(&run.id).as_usize() == lost;
        if is_lost { waits = Some(run) } else { goes_on = Some((run, stream)) }
    }
    let (waits, (goes_on, stream)) = (waits.expect("one of each"), goes_on.expect("one of each"));
    let remaining = BTreeSet::from([partition_of(&goes_on.id)]);
    cluster.nodes_mut()[node].kill().await;
    let begun = tokio::time::Instant::now();
    loop {
        // Those that were made before this was seen wait for their partition.
        let made = tokio::time::timeout(Duration::from_secs(5), run_in_turns(client)).await;
        if made.is_ok_and(|partitions| partitions == remaining) {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "new runs still wait for the partition that is lost");
    }
    counted_to_end(&goes_on, &stream.to_end().await);
    let (url, what) = (cluster.url(), if lost == 0 { "log".to_owned() } else { format!("partition {lost}") });
    // The server may have led the others too, which then elect another leader first.
    until("doctor does not name the partition that is lost", || async {
        let found = coordinator::examine(&url, &Credentials::default(), None).await;
        found.iter().any(|finding| finding.what == what && finding.level == coordinator::Level::Fail)
    })
    .await;
    cluster.nodes_mut()[node].restart().await.expect("it comes back");
    until_spread(client, 2).await;
    counted_to_end(&waits, &waits.watch(FloorPolicy::Arrival).await.to_end().await);
}

/// The number of pieces that runs of [`counting`] say, one every 100 ms.
const PIECES: u32 = 60;

/// Two runs in different partitions, whose output has begun.
async fn counting(client: &Client) -> Vec<(Run, Stream)> {
    let (begun, mut counting) = (tokio::time::Instant::now(), BTreeMap::new());
    while counting.len() < 2 {
        let run = client.create(vec![count("c", PIECES, 100)]).await;
        let mut stream = run.watch(FloorPolicy::Arrival).await;
        stream.until(|event| matches!(event, Event::CallOutput(_))).await;
        counting.insert(partition_of(&run.id), (run, stream));
        assert!(begun.elapsed() < PATIENCE, "all new runs are in one partition");
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    counting.into_values().collect()
}

/// The call of such a run has completed, and its output is there once.
fn counted_to_end(run: &Run, events: &[RunEvent]) {
    check::whole(events, true);
    assert_eq!(check::outcomes(events)["c"].state(), CallState::Completed, "{}", run.id);
    assert_eq!(check::said(events)["c"], counted("c", PIECES), "{}", run.id);
}

#[tokio::test]
async fn calls_with_a_limit_go_on_after_a_takeover_that_a_lost_partition_holds_up() {
    let mut cluster = Cluster::start(|_| {}).await.expect("a cluster starts");
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_DURABILITY", "standard");
    let mut first = fixture.coordinator(&cluster.url()).await;
    let client = Client::connect(first.address()).await;
    let _worker = fixture.worker(&cluster.url(), "main", 16).await;
    client.wait_for_tool("scarce").await;
    add_partitions(&cluster.url(), 2).await;
    until_spread(&client, 2).await;
    let second = only_copy(&cluster, SECOND).await;
    cluster.nodes_mut()[second].kill().await;
    first.kill().await;
    let other = fixture.coordinator(&cluster.url()).await;
    let client = Client::connect(other.address()).await;
    client.wait_for_tool("scarce").await;
    let folder = tempfile::tempdir().expect("a folder");
    let scarce = |id: &str| call(id, "scarce", json!({ "path": folder.path().join("log"), "name": id, "for_ms": 1 }));
    let run = client.create(["a", "b", "c"].map(scarce).to_vec()).await;
    assert_eq!(partition_of(&run.id), Partition::FIRST, "the other one has no leader");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert!(check::outcomes(&events).values().all(|outcome| outcome.state() == CallState::Completed));
}

/// The node that leads each of the partitions, once all have a leader.
async fn leaders(context: &Context, partitions: usize) -> Vec<String> {
    let begun = tokio::time::Instant::now();
    let mut leaders = Vec::new();
    while let Some(stream) = names::STREAMS.iter().take(partitions).nth(leaders.len()) {
        let info = context.get_stream(stream).await.ok().and_then(|stream| stream.cached_info().cluster.clone());
        match info.and_then(|cluster| cluster.leader) {
            Some(leader) => leaders.push(leader),
            None => tokio::time::sleep(Duration::from_millis(200)).await,
        }
        assert!(begun.elapsed() < PATIENCE, "{stream} has no leader");
    }
    leaders
}

/// Moves the leaders of three partitions to one server.
async fn gather(context: &Context, crowded: &str) {
    let begun = tokio::time::Instant::now();
    loop {
        let led = leaders(context, 3).await;
        let elsewhere = names::STREAMS.iter().zip(&led).filter(|(_, leader)| **leader != crowded);
        let elsewhere: Vec<&&str> = elsewhere.map(|(stream, _)| stream).collect();
        if elsewhere.is_empty() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "led by {led:?}");
        for stream in elsewhere {
            let preferred = json!({ "placement": { "preferred": crowded } });
            let request = format!("STREAM.LEADER.STEPDOWN.{stream}");
            // The answer may be that there is no leader just now, or may not come.
            let _answer = context.request::<_, _, Value>(request, &preferred).await;
        }
    }
}

#[tokio::test]
async fn leaders_that_gathered_at_one_server_are_spread_again_and_no_run_notices() {
    let yard = Clustered::start().await;
    let _worker = yard.worker().await;
    let Clustered { cluster, client, .. } = &yard;
    add_partitions(&cluster.url(), 3).await;
    let nats = async_nats::connect(cluster.url().split(',').collect::<Vec<_>>()).await.expect("a node is there");
    let context = jetstream::new(nats);
    let crowded = cluster.nodes()[0].name();
    gather(&context, &crowded).await;
    let begun = tokio::time::Instant::now();
    let spread = BTreeSet::from_iter(cluster.nodes().iter().map(|node| node.name()));
    let mut runs_in = BTreeSet::new();
    loop {
        let led = leaders(&context, 3).await;
        if BTreeSet::from_iter(led.clone()) == spread && runs_in.len() == 3 {
            break;
        }
        assert!(begun.elapsed() < 2 * PATIENCE, "led by {led:?}, runs in {runs_in:?}");
        // All of them end as they should, also those whose partition's leader is moved meanwhile.
        runs_in.extend(run_in_turns(client).await);
    }
}

/// Makes runs for longer than a partition has its turn, and returns the partitions they are in.
async fn run_in_turns(client: &Client) -> BTreeSet<Partition> {
    let mut partitions = BTreeSet::new();
    for _ in 0..4 {
        partitions.extend(run_some(client, 8).await.into_values());
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
    partitions
}

/// Leaves one copy of a partition, and returns the node that has it.
async fn only_copy(cluster: &Cluster, partition: usize) -> usize {
    let nats = async_nats::connect(cluster.url().split(',').collect::<Vec<_>>()).await.expect("a node is there");
    let context = async_nats::jetstream::new(nats);
    let begun = tokio::time::Instant::now();
    loop {
        let mut stream = context.get_stream(names::STREAMS[partition]).await.expect("it is there");
        let mut config = stream.cached_info().config.clone();
        if config.num_replicas > 1 {
            config.num_replicas = 1;
            context.update_stream(config).await.expect("it may be changed");
        }
        let info = stream.info().await.expect("it is there");
        let leader = info.cluster.as_ref().and_then(|cluster| cluster.leader.clone());
        let is_alone = info.cluster.as_ref().is_some_and(|cluster| cluster.replicas.is_empty());
        let node = leader.and_then(|leader| cluster.nodes().iter().position(|node| node.name() == leader));
        if let (Some(node), true) = (node, is_alone) {
            return node;
        }
        assert!(begun.elapsed() < PATIENCE, "the copies stay: {info:?}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
