//! Three brokers: losing any one of them loses nothing, whoever led the log.

use std::time::Duration;

use coordinator::Level;
use harness::{Admin, Client, Coordinator, Fixture, Worker};
use local::Cluster;
use nats::Credentials;
use proto::v1::{CallState, FloorPolicy, run_event::Event};

use crate::{FIXTURE, check, count, counted};

/// A coordinator with a broker of three servers.
pub struct Clustered {
    pub cluster: Cluster,
    fixture: Fixture,
    _coordinator: Coordinator,
    pub client: Client,
}

impl Clustered {
    pub async fn start() -> Self {
        let cluster = Cluster::start(|_| {}).await.expect("a cluster starts");
        let fixture = Fixture::new(FIXTURE).with("TOOLYARD_DURABILITY", "standard");
        let coordinator = fixture.coordinator(&cluster.url()).await;
        let client = Client::connect(coordinator.address()).await;
        Self { cluster, fixture, _coordinator: coordinator, client }
    }

    pub async fn worker(&self) -> Worker {
        let worker = self.fixture.worker(&self.cluster.url(), "main", 16).await;
        self.client.wait_for_tool("echo").await;
        worker
    }
}

/// The node that leads the log, according to a running node.
pub async fn leader(cluster: &Cluster) -> usize {
    let nats = async_nats::connect(cluster.url().split(',').collect::<Vec<_>>()).await.expect("a node is there");
    let stream = async_nats::jetstream::new(nats).get_stream("ty-log").await.expect("the log is there");
    let leader = stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone());
    let leader = leader.expect("the log has a leader");
    cluster.nodes().iter().position(|node| node.name() == leader).expect("it is one of ours")
}

#[tokio::test]
async fn killing_the_leader_of_the_log_in_mid_stream_loses_nothing() {
    let mut yard = Clustered::start().await;
    let _workers = [yard.worker().await, yard.worker().await];
    let calls = vec![count("a", 100, 50), count("b", 100, 50), count("c", 100, 50)];
    let mut stream = yard.client.execute(calls).await;
    stream.until(|event| matches!(event, Event::CallOutput(output) if output.chunk == 10)).await;
    let run = stream.run(&yard.client);
    let leader = leader(&yard.cluster).await;
    yard.cluster.nodes_mut()[leader].kill().await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    for call in ["a", "b", "c"] {
        assert_eq!(check::outcomes(&events)[call].state(), CallState::Completed, "{call}");
        assert_eq!(check::said(&events)[call], counted(call, 100));
    }
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await, "a late reader sees the same");
    // Two of three are enough for new work, and the third comes back.
    check::whole(&yard.client.execute(vec![count("after", 3, 0)]).await.to_end().await, true);
    yard.cluster.nodes_mut()[leader].restart().await.expect("it comes back");
    yard.cluster.healthy().await.expect("it catches up");
    check::whole(&yard.client.execute(vec![count("healed", 3, 0)]).await.to_end().await, true);
}

#[tokio::test]
async fn a_node_that_stands_still_for_a_while_loses_nothing() {
    let yard = Clustered::start().await;
    let _worker = yard.worker().await;
    let mut stream = yard.client.execute(vec![count("a", 300, 50), count("b", 300, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(output) if output.chunk == 10)).await;
    let run = stream.run(&yard.client);
    let leader = leader(&yard.cluster).await;
    yard.cluster.nodes()[leader].pause();
    tokio::time::sleep(Duration::from_secs(15)).await;
    yard.cluster.nodes()[leader].resume();
    let events = stream.to_end().await;
    check::whole(&events, true);
    for call in ["a", "b"] {
        assert_eq!(check::outcomes(&events)[call].state(), CallState::Completed, "{call}");
        assert_eq!(check::said(&events)[call], counted(call, 300));
    }
    yard.cluster.healthy().await.expect("it catches up");
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await, "a late reader sees the same");
}

#[tokio::test]
async fn without_most_of_the_brokers_servers_nobody_says_that_it_serves_whichever_server_is_left() {
    let mut cluster = Cluster::start(|_| {}).await.expect("a cluster starts");
    let (coordinator, worker) = (Admin::anywhere(), Admin::anywhere());
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_DURABILITY", "standard");
    let door = coordinator.of(&fixture).coordinator(&cluster.url()).await;
    let _worker = worker.of(&fixture).worker(&cluster.url(), "main", 4).await;
    let client = Client::connect(door.address()).await;
    client.wait_for_tool("echo").await;
    for leader_survives in [true, false] {
        for admin in [coordinator, worker] {
            admin.until("/readyz", |status, _| status == 200).await;
        }
        let leader = leader(&cluster).await;
        let survivor = if leader_survives { leader } else { (leader + 1) % 3 };
        let lost: Vec<usize> = (0..3).filter(|node| *node != survivor).collect();
        for node in &lost {
            cluster.nodes_mut()[*node].kill().await;
        }
        for admin in [coordinator, worker] {
            admin.until("/readyz", |status, _| status == 503).await;
        }
        // What says no goes on to say no: the server that is left answers all the while.
        tokio::time::sleep(Duration::from_secs(3)).await;
        for admin in [coordinator, worker] {
            assert_eq!(admin.get("/readyz").await.0, 503);
        }
        let found = coordinator::examine(&cluster.url(), &Credentials::default(), None).await;
        let finding =
            |what: &str| found.iter().find(|it| it.what == what).unwrap_or_else(|| panic!("{what}: {found:#?}"));
        assert!(finding("servers").found.starts_with("1 of 3 answer; gone: "), "{found:?}");
        assert_eq!(finding("servers").level, Level::Fail, "{found:?}");
        let url = cluster.url();
        let come_back = async {
            for node in lost {
                cluster.nodes_mut()[node].restart().await.expect("it comes back");
            }
            cluster.healthy().await.expect("it catches up");
        };
        // One that starts meanwhile waits for a leader.
        let (newcomer, ()) = tokio::join!(fixture.coordinator(&url), come_back);
        Client::connect(newcomer.address()).await.wait_for_tool("echo").await;
    }
    coordinator.until("/readyz", |status, _| status == 200).await;
    check::whole(&client.execute(vec![count("after", 3, 0)]).await.to_end().await, true);
}
