//! A request that is sent twice makes one run, through any coordinator and across restarts.

use std::time::Duration;

use async_nats::jetstream::{self, kv, stream};
use futures::StreamExt as _;
use harness::{Client, Fixture, Yard, call, reason};
use hyper::Method;
use prost::Message as _;
use proto::v1::{self, FloorPolicy};
use proto::wire::v1 as wire;
use run::RunId;
use serde_json::json;
use tonic::Code;

use crate::{FIXTURE, check, count};

fn request(id: &str, pieces: u32) -> v1::CreateRunRequest {
    let request_id = id.to_owned();
    v1::CreateRunRequest { calls: vec![count("c", pieces, 0)], request_id, ..v1::CreateRunRequest::default() }
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> Result<String, tonic::Status> {
    let response = client.runs.clone().create_run(request).await?.into_inner();
    Ok(response.run.expect("the response has the run").run_id)
}

#[tokio::test]
async fn the_same_request_gives_the_same_run_on_any_coordinator_and_after_a_restart() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let other = Client::connect(second.address()).await;
    let first = create(&yard.client, request("order 7", 3)).await.expect("accepted");
    assert_eq!(create(&yard.client, request("order 7", 3)).await.expect("known"), first);
    assert_eq!(create(&other, request("order 7", 3)).await.expect("known"), first);
    assert_ne!(create(&other, request("order 8", 3)).await.expect("accepted"), first);
    yard.coordinator.kill().await;
    yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(yard.coordinator.address()).await;
    assert_eq!(create(&client, request("order 7", 3)).await.expect("known"), first);
    // Executing it again gives the output of the run that there is.
    let again = v1::CreateRunRequest {
        calls: vec![count("c", 3, 0)],
        request_id: "order 7".to_owned(),
        ..v1::CreateRunRequest::default()
    };
    let events = client.execute_request(again).await.expect("known").to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], "c-0 c-1 c-2 ");
}

#[tokio::test]
async fn another_request_under_the_same_id_is_refused_and_names_the_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let first = create(&yard.client, request("order 7", 3)).await.expect("accepted");
    let refused = create(&yard.client, request("order 7", 4)).await.expect_err("another body");
    assert_eq!((refused.code(), reason(&refused)), (tonic::Code::AlreadyExists, "REQUEST_ID_TAKEN".to_owned()));
    assert!(refused.message().contains(&first), "{}", refused.message());
    // Another tenant's id of the same name is another id.
    let theirs = v1::CreateRunRequest { tenant: "them".to_owned(), ..request("order 7", 4) };
    assert_ne!(create(&yard.client, theirs).await.expect("accepted"), first);
    // A refused request does not use its id.
    let empty = v1::CreateRunRequest { calls: Vec::new(), ..request("order 9", 1) };
    create(&yard.client, empty).await.expect_err("a run needs calls");
    create(&yard.client, request("order 9", 1)).await.expect("the id is free");
}

#[tokio::test]
async fn a_request_sent_many_times_at_once_to_two_coordinators_makes_one_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let clients = [yard.client.clone(), Client::connect(second.address()).await];
    let asked = (0..20).map(|index| {
        let client = clients[index % 2].clone();
        async move { create(&client, request("at once", 2)).await.expect("accepted") }
    });
    let mut runs = futures::future::join_all(asked).await;
    runs.dedup();
    assert_eq!(runs.len(), 1, "{runs:?}");
    let run = harness::Run { client: yard.client.clone(), id: runs.remove(0) };
    let events = run.watch(v1::FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], "c-0 c-1 ");
}

/// A client repeats a request within seconds; a user presses a button again after an hour.
#[tokio::test]
async fn a_batch_that_is_sent_ten_times_is_executed_once() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("effects");
    let block = |id: &str| {
        let input = json!({ "path": path, "line": id, "then_wait_ms": 0 });
        json!({ "type": "tool_use", "id": id, "name": "writes", "input": input })
    };
    let turn = json!({ "role": "assistant", "content": [block("a"), block("b")] }).to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", "order 7")];
    let mut answers = Vec::new();
    for _ in 0..10 {
        let answer =
            yard.http().ask(Method::POST, "/v1/tool_calls:batch?wait=30s", &headers, turn.clone()).await.json();
        assert_eq!(answer["complete"], true, "{answer}");
        answers.push(answer);
    }
    answers.dedup();
    assert_eq!(answers.len(), 1, "each request has the same answer: {answers:#?}");
    let mut lines: Vec<String> =
        std::fs::read_to_string(&path).expect("it was written").lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["a", "b"]);
    let keys = Broker::of(&yard).await.keys.status().await.expect("the broker answers");
    assert!(keys.max_age().is_zero() || keys.max_age() >= Duration::from_secs(3600), "{:?}", keys.max_age());
}

/// The broker as coordinators have it: the log, and the keys of request ids.
pub(crate) struct Broker {
    context: jetstream::Context,
    pub(crate) keys: kv::Store,
}

impl Broker {
    pub(crate) async fn of(yard: &Yard) -> Self {
        let client = async_nats::connect(yard.broker.url()).await.expect("the broker listens");
        let context = jetstream::new(client);
        let keys = context.get_key_value("ty-requests").await.expect("the bucket is there");
        Self { context, keys }
    }

    async fn names(&self) -> Vec<String> {
        let names = self.keys.keys().await.expect("it lists its keys");
        names.map(|name| name.expect("a name")).collect().await
    }

    /// The only key, and its value.
    pub(crate) async fn only(&self) -> (String, wire::TakenRequest) {
        let name = self.names().await.pop().expect("a key");
        let value = self.keys.get(&name).await.expect("the broker answers").expect("a value");
        (name, wire::TakenRequest::decode(value).expect("a run and a digest"))
    }

    /// Has a request id taken for a run that was made so long ago, as by a coordinator that died before it opened the
    /// run.
    pub(crate) async fn is_taken(&self, name: &str, taken: &wire::TakenRequest, ms_ago: u64) -> String {
        let shard = taken.run_id.parse::<RunId>().expect("a run id").shard();
        let id = uuid::Builder::from_unix_timestamp_millis(::nats::now().0 - ms_ago, &[7; 10]).into_uuid();
        let run_id = RunId::new(shard, id).to_string();
        let value = wire::TakenRequest { run_id: run_id.clone(), ..taken.clone() }.encode_to_vec();
        self.keys.put(name, value.into()).await.expect("the broker stores anything");
        run_id
    }

    /// Stores the opening of a run when it no longer counts.
    async fn opens_late(&self, run: &str) {
        let opened = wire::RunOpened { deadline_ms: u64::MAX, open: true, ..wire::RunOpened::default() };
        let events = vec![wire::Event { kind: Some(wire::event::Kind::RunOpened(opened)) }];
        let late = wire::Entry { version: 1, events, not_after_ms: 1, ..wire::Entry::default() };
        let subject = format!("ty.run.{}.{run}._.run", &run[4..6]);
        let sent = self.context.publish(subject, late.encode_to_vec().into()).await.expect("it is sent");
        sent.await.expect("it is stored");
    }

    async fn edit_log(&self, change: impl FnOnce(&mut stream::Config)) {
        let log = self.context.get_stream("ty-log").await.expect("the log is there");
        let mut config = log.cached_info().config.clone();
        change(&mut config);
        self.context.update_stream(config).await.expect("the log is changed");
    }
}

async fn is_executed(client: &Client, id: &str) {
    let run = harness::Run { client: client.clone(), id: id.to_owned() };
    check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
}

const LONG_AGO_MS: u64 = 20 * 60 * 1000;

#[tokio::test]
async fn a_request_id_is_taken_anew_if_its_run_was_never_opened_or_opened_too_late() {
    for store in [true, false] {
        let yard = Yard::start(FIXTURE).await;
        let _worker = yard.worker().await;
        let (broker, client) = (Broker::of(&yard).await, &yard.client);
        let order = |pieces| v1::CreateRunRequest { store: Some(store), ..request("order 7", pieces) };
        let first = create(client, order(3)).await.expect("accepted");
        let (name, taken) = broker.only().await;
        assert_eq!(taken.run_id, first);

        // Nothing that opens that run counts any more. So the id is free, for another request as well.
        for pieces in [3, 4] {
            let never_opened = broker.is_taken(&name, &taken, LONG_AGO_MS).await;
            let anew = create(client, order(pieces)).await.expect("accepted");
            assert!(anew != never_opened && anew != first, "{anew}, store: {store}");
            assert_eq!(create(client, order(pieces)).await.expect("known"), anew, "store: {store}");
            is_executed(client, &anew).await;
        }
        // Whoever took the id just now may still open its run, so the same request opens the same one, and no other
        // request may.
        let just_taken = broker.is_taken(&name, &taken, 2000).await;
        let refused = create(client, order(4)).await.expect_err("another body");
        assert_eq!(reason(&refused), "REQUEST_ID_TAKEN", "store: {store}");
        assert_eq!(create(client, order(3)).await.expect("accepted"), just_taken, "store: {store}");
        is_executed(client, &just_taken).await;
        // The run expired as it began, and its caller got no confirmation.
        for pieces in [3, 4] {
            let void = broker.is_taken(&name, &taken, 1000 + u64::from(pieces)).await;
            broker.opens_late(&void).await;
            let anew = create(client, order(pieces)).await.expect("accepted");
            assert_ne!(anew, void, "store: {store}");
            is_executed(client, &anew).await;
        }
    }
}

#[tokio::test]
async fn a_request_id_that_is_taken_anew_by_many_at_once_makes_one_run() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let clients = [yard.client.clone(), Client::connect(second.address()).await];
    let broker = Broker::of(&yard).await;
    create(&yard.client, request("at once", 2)).await.expect("accepted");
    let (name, taken) = broker.only().await;
    for ms_ago in [LONG_AGO_MS, 2000, 0] {
        let before = broker.is_taken(&name, &taken, ms_ago).await;
        let is_void = ms_ago == 0;
        if is_void {
            broker.opens_late(&before).await;
        }
        let asked = (0..20).map(|index| {
            let client = clients[index % 2].clone();
            async move {
                if index % 3 > 0 {
                    return create(&client, request("at once", 2)).await.expect("accepted");
                }
                let (calls, request_id) = (vec![count("c", 2, 0)], "at once".to_owned());
                let request = v1::CreateRunRequest { calls, request_id, ..v1::CreateRunRequest::default() };
                let mut stream = client.execute_request(request).await.expect("accepted");
                stream.until(|event| matches!(event, v1::run_event::Event::RunOpened(_))).await;
                stream.run(&client).id
            }
        });
        let mut runs = futures::future::join_all(asked).await;
        runs.dedup();
        assert_eq!(runs.len(), 1, "{runs:?}");
        assert_eq!(runs[0] == before, ms_ago == 2000, "taken {ms_ago} ms ago");
        is_executed(&yard.client, &runs[0]).await;
    }
}

#[tokio::test]
async fn a_request_that_the_log_refuses_gives_its_request_id_back() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let broker = Broker::of(&yard).await;
    broker.edit_log(|log| log.max_message_size = 2048).await;
    let large = || vec![call("c", "echo", json!({ "text": "x".repeat(8192) }))];
    for store in [None, Some(false)] {
        let refused =
            create(&yard.client, v1::CreateRunRequest { calls: large(), store, ..request("order 7", 1) }).await;
        assert_eq!(reason(&refused.expect_err("it does not fit")), "PAYLOAD_TOO_LARGE");
        let request_id = "order 7".to_owned();
        let execute = v1::CreateRunRequest { calls: large(), store, request_id, ..v1::CreateRunRequest::default() };
        let refused = yard.client.execute_request(execute).await;
        assert_eq!(reason(&refused.expect_err("it does not fit")), "PAYLOAD_TOO_LARGE");
        assert!(broker.names().await.is_empty(), "a refused request stores nothing");
    }
    let run = create(&yard.client, request("order 7", 1)).await.expect("the id is free");
    is_executed(&yard.client, &run).await;
}

#[tokio::test]
async fn a_request_id_for_which_there_is_no_room_is_refused_and_says_what_to_do() {
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_LOG_MAX_BYTES", 8 << 20)).await;
    let _worker = yard.worker().await;
    let broker = Broker::of(&yard).await;
    let mut filling = Vec::new();
    // Each smaller than the last that still fits.
    for bytes in [512 << 10, 32 << 10, 2048, 128, 1] {
        while filling.len() < 1000 {
            let name = format!("fill-{}", filling.len());
            if broker.keys.put(&name, vec![b'x'; bytes].into()).await.is_err() {
                break;
            }
            filling.push(name);
        }
    }
    let refused = create(&yard.client, request("order 7", 1)).await.expect_err("there is no room");
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::ResourceExhausted, "LOG_FULL"), "{refused:?}");
    assert!(refused.message().contains("ty-requests"), "{}", refused.message());
    create(&yard.client, request("", 1)).await.expect("a request without an id takes no room there");
    let stream = broker.context.get_stream("KV_ty-requests").await.expect("the bucket is there");
    stream.purge().await.expect("it is emptied");
    create(&yard.client, request("order 7", 1)).await.expect("there is room");
}

#[tokio::test]
async fn a_request_that_is_repeated_after_its_id_has_expired_makes_another_run_unless_a_call_sent_it() {
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_REQUEST_IDS_SECONDS", 15);
    let yard = Yard::start_with(fixture).await;
    let _worker = yard.worker().await;
    let above = create(&yard.client, request("above", 1)).await.expect("accepted");
    let parent = Some(v1::ParentCall { run_id: above.clone(), call_id: "c".to_owned() });
    let child = v1::CreateRunRequest { parent, ..request("of a call", 1) };
    // A call may also make a run that outlives it.
    let mut outlives = request("of a call that ends", 1);
    outlives.calls[0].metadata.insert("toolyard.parent_run".to_owned(), above);
    let mut made = Vec::new();
    for request in [child, outlives] {
        let run = create(&yard.client, request.clone()).await.expect("accepted");
        made.push((request, run));
    }
    let first = create(&yard.client, request("order 7", 1)).await.expect("accepted");
    assert_eq!(create(&yard.client, request("order 7", 1)).await.expect("known"), first);
    let is_free = async || create(&yard.client, request("order 7", 1)).await.expect("accepted") != first;
    crate::history::until("the id is kept", is_free).await;
    for (request, run) in made {
        assert_eq!(create(&yard.client, request).await.expect("known"), run);
    }
}
