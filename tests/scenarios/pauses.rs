//! Paused tools and pools stop, are shown as paused, and go on when they are resumed, across restarts.

use std::time::Duration;

use futures::StreamExt as _;
use harness::{Client, Fixture, Pools, Run, Yard, call, reason};
use proto::convert::worker::Stop;
use proto::v1::pause_request::What;
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, FloorPolicy, resume_request};
use serde_json::json;
use tempfile::TempDir;

use crate::check::{kinds, outcomes};
use crate::{FIXTURE, count};

pub(crate) async fn pause(client: &Client, what: What) {
    let request = v1::PauseRequest { what: Some(what), reason: "they asked us to".to_owned() };
    client.fleet.clone().pause(request).await.expect("it can be paused");
    let paused = async {
        while list(client).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, paused).await.expect("it is known");
}

pub(crate) async fn resume(client: &Client, what: resume_request::What) {
    let request = v1::ResumeRequest { what: Some(what) };
    client.fleet.clone().resume(request).await.expect("it can be resumed");
}

async fn list(client: &Client) -> Vec<v1::Pause> {
    client.fleet.clone().list_pauses(v1::ListPausesRequest {}).await.expect("it lists").into_inner().pauses
}

async fn tool(client: &Client, name: &str) -> v1::Tool {
    let request = v1::GetToolRequest { name: name.to_owned() };
    client.tools.clone().get_tool(request).await.expect("it is known").into_inner().tool.expect("a tool")
}

async fn why(run: &Run, call: &str) -> String {
    let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: call.to_owned() };
    run.client.runs.clone().explain_call(request).await.expect("it is there").into_inner().why
}

/// A call that keeps its slot until it may end.
struct Busy {
    run: Run,
    folder: TempDir,
}

impl Busy {
    async fn start(yard: &Yard) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let run = yard.client.create(vec![call("busy", "waits", json!({ "path": folder.path().join("end") }))]).await;
        run.watch(FloorPolicy::Interleaved).await.until(|event| matches!(event, Event::AttemptStarted(_))).await;
        Self { run, folder }
    }

    async fn end(self) {
        std::fs::write(self.folder.path().join("end"), "").expect("it can be written");
        let ended = outcomes(&self.run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert_eq!(ended["busy"].state(), CallState::Completed, "what runs goes on");
    }
}

/// The pauses that the workers of the pool main receive.
struct Told(async_nats::Subscriber);

impl Told {
    async fn listen(yard: &Yard) -> Self {
        let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
        let subject = proto::names::stop(&"main".parse().expect("a pool"));
        let told = nats.subscribe(subject).await.expect("it can be heard");
        nats.flush().await.expect("the broker is there");
        Self(told)
    }

    /// It is not confirmed; but whoever is told a second time has heard the first.
    async fn held(&mut self, tool: &str) {
        let mut left = 2;
        let told = async {
            while left > 0 {
                let word = self.0.next().await.expect("the broker is there");
                if let Ok(Stop::Held(tools)) = Stop::decode(word.payload) {
                    left -= usize::from(tools.iter().any(|held| held.as_str() == tool));
                }
            }
        };
        tokio::time::timeout(harness::PATIENCE, told).await.expect("they are told what is paused");
    }
}

#[tokio::test]
async fn calls_of_a_paused_tool_wait_while_others_run_and_outlive_their_coordinator() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    pause(&yard.client, What::Tool("echo".to_owned())).await;
    assert!(tool(&yard.client, "echo").await.paused);
    assert!(!tool(&yard.client, "count").await.paused);
    let echo = || call("held", "echo", json!({ "text": "at last" }));
    let alone = yard.client.create(vec![echo()]).await;
    let among = yard.client.create(vec![echo(), count("free", 2, 1)]).await;
    let mut stream = among.watch(FloorPolicy::Interleaved).await;
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "free")).await;
    for run in [&alone, &among] {
        let why = why(run, "held").await;
        assert!(why.contains("tool echo was paused") && why.contains("they asked us to"), "{why}");
    }

    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    assert_eq!(list(&client).await.len(), 1, "whoever starts knows it");
    yard.coordinator.kill().await;
    let (alone, among) = (alone.through(&client), among.through(&client));
    // Longer than the other takes to be taken for dead.
    let mut stream = alone.watch(FloorPolicy::Arrival).await;
    let early = tokio::time::timeout(Duration::from_secs(9), stream.until(|e| matches!(e, Event::AttemptStarted(_))));
    assert!(early.await.is_err(), "nothing is handed out");
    resume(&client, resume_request::What::Tool("echo".to_owned())).await;
    for run in [alone, among] {
        let ended = outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert_eq!(ended["held"].state(), CallState::Completed);
    }
    assert!(list(&client).await.is_empty());
}

#[tokio::test]
async fn a_paused_pool_hands_out_nothing_also_what_was_in_its_queue() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let busy = Busy::start(&yard).await;
    let queued = yard.client.create(vec![call("queued", "echo", json!({ "text": "later" }))]).await;
    pause(&yard.client, What::Pool("main".to_owned())).await;
    let new = yard.client.create(vec![call("new", "echo", json!({ "text": "later" }))]).await;
    // A coordinator that starts makes sure of the queue, and leaves it as it is.
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(second.address()).await;
    client.wait_for_tool("echo").await;
    busy.end().await;
    let mut stream = new.watch(FloorPolicy::Arrival).await;
    // Longer than a job that nobody takes up is left where it is, and than requests for jobs are waited for.
    let early = tokio::time::timeout(Duration::from_secs(10), stream.until(|e| matches!(e, Event::AttemptStarted(_))));
    assert!(early.await.is_err(), "nothing is handed out");
    for (run, id) in [(&queued, "queued"), (&new, "new")] {
        let why = why(run, id).await;
        assert!(why.contains("pool main was paused"), "{why}");
    }
    let pools = tool(&client, "echo").await.pools;
    assert!(pools.iter().all(|pool| pool.paused && pool.pulling_workers == 1), "its worker is well: {pools:?}");
    resume(&client, resume_request::What::Pool("main".to_owned())).await;
    for (run, id) in [(queued, "queued"), (new, "new")] {
        let ended = outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert_eq!(ended[id].state(), CallState::Completed);
    }
}

/// The slot is free, and what was asked for behind a call of a paused tool is executed.
async fn only_what_is_paused_waits(yard: &Yard, busy: Busy, held: &Run) {
    busy.end().await;
    let free = yard.client.execute(vec![count("free", 2, 1)]).await.to_end().await;
    assert_eq!(outcomes(&free)["free"].state(), CallState::Completed, "it was asked for after what is held");
    let why = why(held, "held").await;
    assert!(why.contains("tool echo was paused"), "{why}");
}

#[tokio::test]
async fn a_job_of_a_paused_tool_that_is_in_the_queue_goes_back_there_and_holds_nobody_up() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker_with_slots(1).await;
    let busy = Busy::start(&yard).await;
    let mut told = Told::listen(&yard).await;
    let folder = tempfile::tempdir().expect("a folder");
    let echo = |id: &str| call(id, "echo", json!({ "text": "at last" }));
    let held = yard.client.create(vec![echo("held")]).await;
    let cancelled = yard.client.create(vec![echo("cancelled")]).await;
    pause(&yard.client, What::Tool("echo".to_owned())).await;
    told.held("echo").await;
    only_what_is_paused_waits(&yard, busy, &held).await;
    cancelled.cancel("it is not wanted any more").await;
    let ended = outcomes(&cancelled.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(ended["cancelled"].state(), CallState::Cancelled);

    // The next coordinator publishes it to the workers, too.
    let log = folder.path().join("log");
    let next = yard.fixture.with("TOOLYARD_LOG", "warn").logging_to(&log).coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    yard.coordinator.kill().await;
    let held = held.through(&client);
    let mut stream = held.watch(FloorPolicy::Arrival).await;
    // Longer than a job that nobody takes up is left where it is, and than the other takes to be taken for dead; and
    // until its worker has given it back for 16 s.
    let early = tokio::time::timeout(Duration::from_secs(15), stream.until(|e| matches!(e, Event::AttemptStarted(_))));
    assert!(early.await.is_err(), "nothing of it is executed");
    resume(&client, resume_request::What::Tool("echo".to_owned())).await;
    let events = held.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(outcomes(&events)["held"].state(), CallState::Completed);
    let starts = kinds(&events).into_iter().filter(|event| matches!(event, Event::AttemptStarted(_))).count();
    assert_eq!(starts, 1, "what was held used up no attempt");
    // It comes again later than other jobs are waited for, and that is nobody's fault.
    let log = std::fs::read_to_string(&log).expect("it was written");
    assert!(!log.contains("taking back a job"), "{log}");
}

#[tokio::test]
async fn a_paused_tool_is_held_in_the_queue_of_its_older_version_too() {
    let pools = Pools::new("[pools.main]\ntools = [\"*\"]\n");
    let yard = Yard::start_with(pools.of(&Fixture::new(FIXTURE))).await;
    let _older = yard.worker_with_slots(1).await;
    let busy = Busy::start(&yard).await;
    let held = yard.client.create(vec![call("held", "echo", json!({ "text": "at last" }))]).await;
    let newer = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "newer_echo");
    let _newer = newer.worker(&yard.broker.url(), "next", 1).await;
    pools.write("[pools.main]\ntools = [\"[!e]*\"]\n[pools.next]\ntools = [\"echo\"]\n");
    let gives_way = async {
        while tool(&yard.client, "echo").await.version != "2" {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, gives_way).await.expect("the newer one counts");
    let mut told = Told::listen(&yard).await;
    pause(&yard.client, What::Tool("echo".to_owned())).await;
    told.held("echo").await;
    only_what_is_paused_waits(&yard, busy, &held).await;
    resume(&yard.client, resume_request::What::Tool("echo".to_owned())).await;
    let ended = outcomes(&held.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(ended["held"].state(), CallState::Completed);
}

#[tokio::test]
async fn a_call_that_is_held_expires_by_its_deadline() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    pause(&yard.client, What::Tool("echo".to_owned())).await;
    let held = v1::NewCall {
        timeout: Some(prost_types::Duration { seconds: 2, nanos: 0 }),
        ..call("held", "echo", json!({ "text": "too late" }))
    };
    let events = yard.client.execute(vec![held]).await.to_end().await;
    assert_eq!(outcomes(&events)["held"].state(), CallState::Expired);
    assert!(!kinds(&events).into_iter().any(|event| matches!(event, Event::AttemptStarted(_))));
}

#[tokio::test]
async fn unknown_names_are_neither_paused_nor_resumed_and_resuming_what_is_not_paused_does_no_harm() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    for (what, expected) in [
        (Some(What::Tool("ehco".to_owned())), "TOOL_NOT_FOUND"),
        (Some(What::Pool("mian".to_owned())), "POOL_NOT_FOUND"),
        (Some(What::Pool("no name".to_owned())), "MALFORMED"),
        (None, "MALFORMED"),
    ] {
        let request = v1::PauseRequest { what: what.clone(), reason: String::new() };
        let refused = yard.client.fleet.clone().pause(request).await.expect_err("it is refused");
        assert_eq!(reason(&refused), expected, "{what:?}: {refused}");
    }
    let long = v1::PauseRequest { what: Some(What::Tool("echo".to_owned())), reason: "x".repeat(1025) };
    let refused = yard.client.fleet.clone().pause(long).await.expect_err("it is refused");
    assert_eq!(reason(&refused), "MALFORMED");
    assert!(list(&yard.client).await.is_empty());
    resume(&yard.client, resume_request::What::Tool("echo".to_owned())).await;
    resume(&yard.client, resume_request::What::Pool("main".to_owned())).await;
    for (what, expected) in [
        (resume_request::What::Tool("ehco".to_owned()), "TOOL_NOT_FOUND"),
        (resume_request::What::Pool("mian".to_owned()), "POOL_NOT_FOUND"),
    ] {
        let request = v1::ResumeRequest { what: Some(what) };
        let refused = yard.client.fleet.clone().resume(request).await.expect_err("it is refused");
        assert_eq!(reason(&refused), expected, "{refused}");
    }
}

#[tokio::test]
async fn a_pause_that_was_written_over_with_something_unreadable_holds_and_can_be_resumed() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    pause(&yard.client, What::Tool("echo".to_owned())).await;
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let bucket = async_nats::jetstream::new(nats).get_key_value("ty-pauses").await.expect("the bucket is there");
    let key = bucket.keys().await.expect("it lists").next().await.expect("a key").expect("a key");
    bucket.put(key, "{".into()).await.expect("it is stored");
    yard.coordinator.terminate().await;
    yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(yard.coordinator.address()).await;
    let pauses = list(&client).await;
    assert!(pauses.len() == 1 && pauses[0].reason.contains("cannot be read"), "{pauses:?}");
    resume(&client, resume_request::What::Tool("echo".to_owned())).await;
    let resumed = async {
        while !list(&client).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, resumed).await.expect("it is resumed");
}

#[tokio::test]
async fn a_tenant_is_told_why_its_call_is_held_and_not_who_holds_it() {
    let yard = crate::callers::guarded().await;
    let (ops, shop) = (yard.client("ops"), yard.client("shop"));
    pause(&ops, What::Tool("echo".to_owned())).await;
    let run = shop.create(vec![call("held", "echo", json!({ "text": "hello" }))]).await;
    let told = why(&run, "held").await;
    assert!(told.contains("they asked us to") && !told.contains("ops"), "{told}");
    let told = why(&Run { client: ops.clone(), id: run.id.clone() }, "held").await;
    assert!(told.contains("by ops"), "{told}");
    resume(&ops, resume_request::What::Tool("echo".to_owned())).await;
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(outcomes(&events)["held"].state(), CallState::Completed);
}
