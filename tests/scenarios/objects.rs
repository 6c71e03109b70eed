//! What is too large for the log lies beside it: found by whoever may see its run, and by nobody else.

use async_nats::jetstream::{self, Context};
use harness::{Callers, Client, Fixture, Guarded, Keys, Run, Yard, call, reason};
use hyper::Method;
use proto::nats::objects::remove_run;
use proto::object;
use proto::v1::content::Body;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use ring::digest::{SHA256, digest};
use serde_json::json;
use tonic::{Code, Status};

use crate::{FIXTURE, check};

/// Two chunks and a bit.
pub(crate) const BYTES: usize = (512 << 10) + 1000;

fn makes(bytes: usize) -> Vec<v1::NewCall> {
    vec![call("a", "makes", json!({ "bytes": bytes }))]
}

pub(crate) fn made(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| b'a' + u8::try_from(index / 7 % 26).expect("a letter")).collect()
}

/// Runs the call to its end; what its result refers to.
pub(crate) async fn object(client: &Client, bytes: usize) -> (Run, v1::Object) {
    let run = client.create(makes(bytes)).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(outcomes["a"].state(), CallState::Completed, "{outcomes:?}");
    let [first, second] = &outcomes["a"].result[..] else { panic!("two parts: {outcomes:?}") };
    assert_eq!(second.body, Some(Body::Text("that is all".to_owned())), "what is small stays where it was");
    let Some(Body::Object(object)) = first.body.clone() else { panic!("a reference: {first:?}") };
    (run, object)
}

pub(crate) async fn read(
    client: &Client,
    object_id: &str,
    offset: u64,
    length: Option<u64>,
) -> Result<Vec<u8>, Status> {
    let request = v1::ReadObjectRequest { object_id: object_id.to_owned(), offset, length };
    let mut stream = client.objects.clone().read_object(request).await?.into_inner();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.message().await? {
        assert_eq!(piece.object.is_some(), bytes.is_empty() && piece.data.is_empty(), "it begins with what it is");
        bytes.extend(piece.data);
    }
    Ok(bytes)
}

async fn broker(url: String) -> Context {
    jetstream::new(async_nats::connect(url).await.expect("the broker is there"))
}

async fn lies(broker: &Context) -> u64 {
    let stream = broker.get_stream(proto::names::OBJECTS).await.expect("the object store is there");
    stream.cached_info().state.messages
}

#[tokio::test]
async fn a_result_that_is_too_large_for_the_log_is_read_from_beside_it() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let (run, object) = object(&yard.client, BYTES).await;
    let all = made(BYTES);
    assert!(object.object_id.starts_with(&run.id), "{object:?}");
    assert_eq!((object.size_bytes, object.media_type.as_str()), (BYTES as u64, "text/plain; charset=utf-8"));
    assert_eq!(object.sha256.as_ref(), digest(&SHA256, &all).as_ref());
    let (shown, note) = object.preview.split_once("\n\n").expect("a beginning and a note");
    assert_eq!(shown.as_bytes(), &all[..4096]);
    assert!(note.contains(&object.object_id) && note.contains(&BYTES.to_string()), "{note}");
    assert_eq!(
        run.get().await.calls[0].outcome.clone().expect("it ended").result[0].body,
        Some(Body::Object(object.clone()))
    );

    assert_eq!(read(&yard.client, &object.object_id, 0, None).await.expect("it is there"), all);
    let middle = read(&yard.client, &object.object_id, 262_000, Some(1000)).await.expect("it is there");
    assert_eq!(middle, all[262_000..263_000], "over the edge of a chunk");
    let behind = read(&yard.client, &object.object_id, BYTES as u64, None).await.expect_err("nothing is there");
    assert_eq!((behind.code(), reason(&behind).as_str()), (Code::InvalidArgument, "OUT_OF_OBJECT"));
}

#[tokio::test]
async fn an_object_is_served_over_http_as_it_is_and_in_ranges() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let (_, object) = object(&yard.client, BYTES).await;
    let (http, all) = (yard.http(), made(BYTES));
    let path = format!("/v1/objects/{}", object.object_id);
    let whole = http.get(&path).await;
    assert_eq!((whole.status, &whole.body[..]), (200, &all[..]));
    assert_eq!(whole.headers["content-type"], "text/plain; charset=utf-8");
    assert_eq!(whole.headers["content-disposition"], "attachment", "it is no page of ours");
    assert_eq!(whole.headers["content-length"], BYTES.to_string());
    let sha256: String = object.sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(whole.headers["etag"], format!("\"{sha256}\""));
    for (range, expected) in [
        ("bytes=0-9", &all[..10]),
        ("bytes=262100-262200", &all[262_100..=262_200]),
        ("bytes=524000-", &all[524_000..]),
        ("bytes=-5", &all[BYTES - 5..]),
    ] {
        let part = http.ask(Method::GET, &path, &[("range", range)], "").await;
        assert_eq!((part.status, &part.body[..]), (206, expected), "{range}");
    }
    let behind = http.ask(Method::GET, &path, &[("range", "bytes=9999999-")], "").await;
    assert_eq!(behind.problem(), (416, "OUT_OF_OBJECT".to_owned()));
    assert_eq!(http.get("/v1/objects/none").await.problem(), (400, "MALFORMED".to_owned()));
    let of_another_call = path.replace(".0.main.", ".1.main.");
    assert_eq!(http.get(&of_another_call).await.problem(), (404, "OBJECT_NOT_FOUND".to_owned()));
    // A model that is told of it in its vendor's words sees how it begins.
    let turn = json!({ "role": "assistant", "content": [
        { "type": "tool_use", "id": "toolu_1", "name": "makes", "input": { "bytes": BYTES } },
    ]});
    let answer = http.post("/v1/tool_calls:batch", &turn).await.json().to_string();
    assert!(answer.contains("aaaaaaabbbbbbb"), "{answer}");
    assert!(answer.contains("the whole of it is object run_") && answer.len() < 20_000, "{answer}");
}

#[tokio::test]
async fn a_coordinator_does_not_grow_with_a_result() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    object(&yard.client, BYTES).await;
    let before = yard.coordinator.memory_peak();
    let bytes = 64 << 20;
    let (_, object) = object(&yard.client, bytes).await;
    assert_eq!(object.size_bytes, bytes as u64);
    let after_run = yard.coordinator.memory_peak();
    let answer = yard.http().get(&format!("/v1/objects/{}", object.object_id)).await;
    assert_eq!(digest(&SHA256, &answer.body).as_ref(), object.sha256.as_ref());
    let after_read = yard.coordinator.memory_peak();
    let grown = |peak: u64| (peak - before) >> 20;
    assert!(grown(after_run) < 8 && grown(after_read) < 24, "by {} and {} MiB", grown(after_run), grown(after_read));
}

#[tokio::test]
async fn with_no_more_rights_than_they_need_workers_store_and_coordinators_read() {
    let keys = Keys::new(&["main"]);
    let yard = Yard::guarded(FIXTURE, &keys).await;
    let _worker = keys.workers(&yard.fixture, "main").worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("makes").await;
    let (_, object) = object(&yard.client, BYTES).await;
    assert_eq!(read(&yard.client, &object.object_id, 0, None).await.expect("it is there"), made(BYTES));
}

#[tokio::test]
async fn what_is_stored_is_not_written_over_and_what_nothing_refers_to_is_nobodys() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let (run, object) = object(&yard.client, BYTES).await;
    let broker = broker(yard.broker.url()).await;
    let id = object.object_id.parse().expect("an id");
    let over = broker.publish(object::chunk(&id, 0), "forged".into()).await.expect("it is sent").await;
    over.expect_err("what lies there stays");
    assert_eq!(read(&yard.client, &object.object_id, 0, None).await.expect("it is there"), made(BYTES));

    // As an attempt leaves it that was not heard.
    let orphan = format!("{}.0.main.00000000000000ff", run.id);
    let subject = object::chunk(&orphan.parse().expect("an id"), 0);
    broker.publish(subject, "late".into()).await.expect("it is sent").await.expect("it is stored");
    let nobodys = read(&yard.client, &orphan, 0, None).await.expect_err("nothing refers to it");
    assert_eq!((nobodys.code(), reason(&nobodys).as_str()), (Code::NotFound, "OBJECT_NOT_FOUND"));

    let (other, kept) = self::object(&yard.client, BYTES).await;
    assert_ne!(other.id, run.id);
    assert_eq!(lies(&broker).await, 3 + 1 + 3);
    remove_run(&broker, run.id.parse().expect("an id")).await.expect("the broker removes it");
    assert_eq!(lies(&broker).await, 3, "the orphan too, and nothing of another run");
    let gone = read(&yard.client, &object.object_id, 0, None).await.expect_err("it is gone");
    assert_eq!(reason(&gone), "OBJECT_NOT_FOUND");
    assert_eq!(read(&yard.client, &kept.object_id, 0, None).await.expect("it is there"), made(BYTES));
}

#[tokio::test]
async fn a_call_whose_result_finds_no_room_fails_and_says_so() {
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_OBJECTS_MAX_BYTES", 1 << 20)).await;
    let _worker = yard.worker().await;
    object(&yard.client, BYTES).await;
    let run = yard.client.create(makes(BYTES)).await;
    let outcome = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await)["a"].clone();
    let error = outcome.error.expect("it failed");
    assert_eq!(error.kind(), CallErrorKind::ResultTooLarge);
    assert!(error.message.contains("the object store is full"), "{}", error.message);
    let small = yard.client.create(vec![call("a", "echo", json!({ "text": "small" }))]).await;
    let outcomes = check::outcomes(&small.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(check::text(&outcomes["a"]), "small", "the log is another matter");
}

const CALLERS: &str = r#"
    [[callers]]
    name = "ada"
    tenant = "acme"
    roles = ["submit", "read"]
    tools = [{ names = ["*"] }]
    keys = ["{ada}"]

    [[callers]]
    name = "submitter"
    tenant = "acme"
    roles = ["submit"]
    keys = ["{submitter}"]

    [[callers]]
    name = "eve"
    tenant = "other"
    roles = ["submit", "read"]
    keys = ["{eve}"]
"#;

#[tokio::test]
async fn an_object_is_read_by_whoever_may_see_its_run() {
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(CALLERS)).await;
    let ada = yard.client("ada");
    ada.wait_for_tool("makes").await;
    let (_, object) = object(&ada, BYTES).await;
    let eve = read(&yard.client("eve"), &object.object_id, 0, None).await.expect_err("it is not hers");
    assert_eq!((eve.code(), reason(&eve).as_str()), (Code::NotFound, "OBJECT_NOT_FOUND"), "as if it were not there");
    let submitter = read(&yard.client("submitter"), &object.object_id, 0, None).await.expect_err("it may not read");
    assert_eq!(reason(&submitter), "ROLE_MISSING");
    let stranger = read(&yard.stranger, &object.object_id, 0, None).await.expect_err("nobody knows who it is");
    assert_eq!(stranger.code(), Code::Unauthenticated);
}
