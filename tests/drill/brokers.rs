//! Rows about the broker.

use std::time::{Duration, Instant};

use coordinator::Operator;
use harness::{Admin, Client, Coordinator, Fixture, PATIENCE, Run, Worker, Yard, call, check, reason};
use local::Cluster;
use nats::Credentials;
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, FloorPolicy};
use serde_json::json;
use tonic::Status;

use crate::load::Load;
use crate::report::Seen;
use crate::rest::fixture;

/// A log that some dozens of calls fill, and how large they are.
const LOG_BYTES: u64 = 8 << 20;
const TEXT_BYTES: usize = 100 << 10;
/// How long doctor may look in vain before it is taken for silent about it.
const DOCTOR_PATIENCE: Duration = Duration::from_secs(20);

/// Three servers, a coordinator with an admin port, and a worker with one.
struct Three {
    cluster: Cluster,
    admins: [Admin; 2],
    client: Client,
    _coordinator: Coordinator,
    _worker: Worker,
}

impl Three {
    async fn start() -> Self {
        let cluster = Cluster::start(|_| {}).await.expect("a cluster starts");
        let admins = [Admin::anywhere(), Admin::anywhere()];
        let fixture: Fixture = fixture().with("TOOLYARD_DURABILITY", "standard");
        let coordinator = admins[0].of(&fixture).coordinator(&cluster.url()).await;
        let worker = admins[1].of(&fixture).worker(&cluster.url(), "main", 16).await;
        let client = Client::connect(coordinator.address()).await;
        client.wait_for_tool("echo").await;
        Self { cluster, admins, client, _coordinator: coordinator, _worker: worker }
    }

    /// The server that leads the log.
    async fn leader(&self) -> usize {
        let nats = async_nats::connect(self.cluster.url().split(',').collect::<Vec<_>>()).await.expect("it is there");
        let stream = async_nats::jetstream::new(nats).get_stream(proto::names::STREAM).await.expect("the log is there");
        let leader = stream.cached_info().cluster.as_ref().and_then(|cluster| cluster.leader.clone());
        let leader = leader.expect("the log has a leader");
        self.cluster.nodes().iter().position(|node| node.name() == leader).expect("it is one of ours")
    }

    /// Kills two servers and returns which; the one that is left led the log.
    async fn lose_two(&mut self) -> Vec<usize> {
        let survivor = self.leader().await;
        let lost: Vec<usize> = (0..3).filter(|node| *node != survivor).collect();
        for node in &lost {
            self.cluster.nodes_mut()[*node].kill().await;
        }
        lost
    }

    async fn until_ready(&self, status: u16) {
        for admin in self.admins {
            admin.until("/readyz", |answer, _| answer == status).await;
        }
    }
}

pub(crate) async fn the_leader_dies() -> Seen {
    let mut three = Three::start().await;
    let mut load = Load::begin(std::slice::from_ref(&three.client));
    load.goes_on(20).await;
    let leader = three.leader().await;
    three.cluster.nodes_mut()[leader].kill().await;
    load.goes_on(40).await;
    let (runs, longest) = load.end().await;
    Seen::new(longest, format!("{runs} runs of 3 calls, all completed"))
}

pub(crate) async fn doctor_names_the_lost_one() -> Seen {
    let mut three = Three::start().await;
    let lost = (three.leader().await + 1) % 3;
    let name = three.cluster.nodes()[lost].url().trim_start_matches("nats://").to_owned();
    three.cluster.nodes_mut()[lost].kill().await;
    let began = Instant::now();
    let found = loop {
        let findings = coordinator::examine(&three.cluster.url(), &Credentials::default(), None).await;
        let servers = findings.into_iter().find(|finding| finding.what == "servers" && finding.found.contains(&name));
        if let Some(servers) = servers {
            break servers.found;
        }
        assert!(began.elapsed() < DOCTOR_PATIENCE, "doctor does not name {name}");
    };
    Seen::new(began.elapsed(), format!("`servers`: {}", found.replace(&name, "ADDRESS")))
}

pub(crate) async fn most_die() -> Seen {
    let mut three = Three::start().await;
    three.until_ready(200).await;
    three.lose_two().await;
    let began = Instant::now();
    let until = async |admin: Admin| {
        admin.until("/readyz", |answer, _| answer == 503).await;
        began.elapsed()
    };
    let (coordinator, worker) = tokio::join!(until(three.admins[0]), until(three.admins[1]));
    let took = coordinator.max(worker);
    // What says no goes on to say no: the server that is left answers all the while.
    tokio::time::sleep(Duration::from_secs(3)).await;
    for admin in three.admins {
        assert_eq!(admin.get("/readyz").await.0, 503);
    }
    let (coordinator, worker) = (coordinator.as_secs_f64(), worker.as_secs_f64());
    let after = format!("after {coordinator:.1} s at the coordinator and {worker:.1} s at the worker");
    Seen::new(took, format!("`/readyz` answers 503 {after}, though the server that is left led the log"))
}

pub(crate) async fn most_come_back() -> Seen {
    let mut three = Three::start().await;
    let lost = three.lose_two().await;
    three.until_ready(503).await;
    three.cluster.nodes_mut()[lost[0]].restart().await.expect("it comes back");
    let began = Instant::now();
    three.until_ready(200).await;
    let took = began.elapsed();
    let events = three.client.execute(vec![call("c", "echo", json!({ "text": "x" }))]).await.to_end().await;
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed);
    Seen::new(took, "both `/readyz` answer 200, and a call completed")
}

pub(crate) async fn the_only_one_restarts() -> Seen {
    let mut yard = Yard::start_with(fixture()).await;
    let _worker = yard.worker().await;
    let slow = call("c", "count", json!({ "label": "c", "pieces": 100, "every_ms": 50 }));
    let mut stream = yard.client.execute(vec![slow]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let run = stream.run(&yard.client);
    yard.broker.kill().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    yard.broker.restart().await.expect("it comes back");
    let began = Instant::now();
    let request = || v1::CreateRunRequest {
        calls: vec![call("e", "echo", json!({ "text": "x" }))],
        request_id: "after".to_owned(),
        ..v1::CreateRunRequest::default()
    };
    while yard.client.runs.clone().create_run(request()).await.is_err() {
        assert!(began.elapsed() < PATIENCE, "no run is accepted");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let took = began.elapsed();
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    let said: String = (0..100).map(|piece| format!("c-{piece} ")).collect();
    assert_eq!(check::said(&events)["c"], said, "nothing is doubled and nothing is missing");
    Seen::new(took, "a new run was accepted; the one that was open completed, its output is whole")
}

pub(crate) async fn its_disk_is_lost() -> Seen {
    let mut yard = Yard::start_with(fixture()).await;
    let _worker = yard.worker().await;
    let old = yard.client.create(vec![call("c", "ask_user", json!({ "question": "Which one?" }))]).await;
    yard.coordinator.kill().await;
    yard.broker.kill().await;
    std::fs::remove_dir_all(yard.broker.data_dir().join("jetstream")).expect("its folder is there");
    yard.broker.restart().await.expect("it starts");
    let began = Instant::now();
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    let run = client.create(vec![call("e", "ask_user", json!({ "question": "Which one?" }))]).await;
    let took = began.elapsed();
    assert_eq!(run.get().await.run_id, run.id);
    let request = v1::GetRunRequest { run_id: old.id.clone() };
    let gone = client.runs.clone().get_run(request).await.expect_err("it is gone");
    assert_eq!(reason(&gone), "RUN_NOT_FOUND");
    Seen::new(took, "a new run was accepted; the old one is `RUN_NOT_FOUND`")
}

async fn create(yard: &Yard, text: &str) -> Result<Run, Status> {
    let calls = vec![call("c", "echo", json!({ "text": text }))];
    let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(request).await?.into_inner();
    Ok(Run { client: yard.client.clone(), id: created.run.expect("the response has the run").run_id })
}

pub(crate) async fn the_log_is_full() -> Seen {
    let yard = Yard::start_with(fixture().with("TOOLYARD_LOG_MAX_BYTES", LOG_BYTES)).await;
    let _worker = yard.worker().await;
    let (text, mut accepted) = ("x".repeat(TEXT_BYTES), Vec::new());
    let refusal = loop {
        assert!(accepted.len() < 400, "a log of {LOG_BYTES} bytes takes this much");
        match create(&yard, &text).await {
            Ok(run) => accepted.push(run),
            Err(refusal) => break refusal,
        }
    };
    assert_eq!(reason(&refusal), "LOG_FULL", "{refusal:?}");
    for run in &accepted {
        let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
        assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed, "{}", run.id);
    }
    let operator = Operator::connect(&yard.broker.url(), &Credentials::default()).await.expect("it is let in");
    let began = Instant::now();
    operator.resize(4 * LOG_BYTES).await.expect("it gets more room");
    while let Err(refusal) = create(&yard, "small").await {
        assert_eq!(reason(&refusal), "LOG_FULL", "{refusal:?}");
        assert!(began.elapsed() < PATIENCE, "no run is accepted");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let taken = accepted.len();
    Seen::new(
        began.elapsed(),
        format!("{taken} runs were accepted and completed, the next was refused; accepted again after the resize"),
    )
}
