//! A broker that is lost with its disk, and another one that is restored from a backup: runs go on from there.

use async_nats::Client as Broker;
use bytes::Bytes;
use futures::StreamExt as _;
use harness::{Client, Yard, call, client_answer};
use proto::names::{OBJECTS, PAUSES_BUCKET, RECORDS_BUCKET, REQUESTS_BUCKET, SCHEDULES_BUCKET, STREAM, TOOLS_BUCKET};
use proto::v1::{self, CallState, FloorPolicy};
use serde_json::{Value, json};

use crate::check::outcomes;
use crate::{FIXTURE, question};

/// A stream in the broker's backup format, as `nats stream backup` writes it to a folder.
pub(crate) struct Backup {
    stream: String,
    config: Value,
    state: Value,
    pieces: Vec<Bytes>,
}

/// The request of the JetStream API, and its answer, which must not be an error.
async fn ask(broker: &Broker, subject: String, request: Bytes) -> Value {
    let answer = broker.request(subject, request).await.expect("the broker answers");
    let answer: Value = serde_json::from_slice(&answer.payload).expect("it answers JSON");
    assert!(answer["error"].is_null(), "{answer}");
    answer
}

pub(crate) async fn back_up(broker: &Broker, stream: &str) -> Backup {
    let inbox = broker.new_inbox();
    let mut arriving = broker.subscribe(inbox.clone()).await.expect("it is connected");
    let request = json!({ "deliver_subject": inbox }).to_string();
    let mut answer = ask(broker, format!("$JS.API.STREAM.SNAPSHOT.{stream}"), request.into()).await;
    let mut pieces = Vec::new();
    loop {
        let piece = arriving.next().await.expect("the broker lives");
        if piece.payload.is_empty() {
            break;
        }
        pieces.push(piece.payload);
        if let Some(reply) = piece.reply {
            broker.publish(reply, Bytes::new()).await.expect("it is connected");
        }
    }
    Backup { stream: stream.to_owned(), config: answer["config"].take(), state: answer["state"].take(), pieces }
}

pub(crate) async fn restore(broker: &Broker, backup: &Backup) {
    let request = json!({ "config": backup.config, "state": backup.state }).to_string();
    let answer = ask(broker, format!("$JS.API.STREAM.RESTORE.{}", backup.stream), request.into()).await;
    let to = answer["deliver_subject"].as_str().expect("it says where to").to_owned();
    for piece in &backup.pieces {
        broker.request(to.clone(), piece.clone()).await.expect("the broker takes it");
    }
    ask(broker, to, Bytes::new()).await;
}

async fn start() -> local::Broker {
    local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts")
}

fn echo(request_id: &str) -> v1::CreateRunRequest {
    let calls = vec![call("a", "echo", json!({ "text": "hello" }))];
    v1::CreateRunRequest { calls, request_id: request_id.to_owned(), ..v1::CreateRunRequest::default() }
}

async fn create(client: &Client, request: v1::CreateRunRequest) -> harness::Run {
    let run = client.runs.clone().create_run(request).await.expect("accepted").into_inner().run.expect("a run");
    harness::Run { client: client.clone(), id: run.run_id }
}

#[tokio::test]
async fn runs_go_on_at_a_broker_that_was_given_what_was_backed_up() {
    let mut yard = Yard::start(FIXTURE).await;
    let mut worker = yard.worker().await;
    let done = create(&yard.client, echo("done")).await;
    let said = done.watch(FloorPolicy::Arrival).await.to_end().await;
    let (_, object) = crate::objects::object(&yard.client, crate::objects::BYTES).await;
    let asked = yard.client.create(vec![question("ask")]).await;
    worker.kill().await;
    let queued = create(&yard.client, echo("queued")).await;

    let broker = async_nats::connect(yard.broker.url()).await.expect("the broker listens");
    // The log first: a request id that is newer than the log is taken up again, a run without its id would be made
    // twice.
    let mut backups = Vec::new();
    let buckets = [REQUESTS_BUCKET, TOOLS_BUCKET, PAUSES_BUCKET, RECORDS_BUCKET, SCHEDULES_BUCKET];
    let buckets = buckets.map(|it| format!("KV_{it}"));
    for stream in [STREAM.to_owned()].into_iter().chain(buckets).chain([OBJECTS.to_owned()]) {
        backups.push(back_up(&broker, &stream).await);
    }
    yard.coordinator.kill().await;
    drop(yard.broker);

    let other = start().await;
    let broker = async_nats::connect(other.url()).await.expect("the broker listens");
    for backup in &backups {
        restore(&broker, backup).await;
    }
    let coordinator = yard.fixture.coordinator(&other.url()).await;
    let client = Client::connect(coordinator.address()).await;
    let _worker = yard.fixture.worker(&other.url(), "main", 4).await;
    let [done, asked, queued] = [done, asked, queued].map(|run| run.through(&client));

    assert_eq!(
        done.watch(FloorPolicy::Arrival).await.to_end().await,
        said,
        "what was said is said again, word for word"
    );
    assert_eq!(create(&client, echo("done")).await.id, done.id, "a request that was answered makes no second run");
    let read = crate::objects::read(&client, &object.object_id, 0, None).await;
    assert_eq!(read.expect("it is there"), crate::objects::made(crate::objects::BYTES));
    asked.submit(vec![client_answer("ask", "that one")]).await.expect("it still waits");
    for (run, id) in [(asked, "ask"), (queued, "a")] {
        let ended = outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert_eq!(ended[id].state(), CallState::Completed);
    }
    let new = client.execute(vec![call("a", "echo", json!({ "text": "new" }))]).await.to_end().await;
    assert_eq!(outcomes(&new)["a"].state(), CallState::Completed);
}
