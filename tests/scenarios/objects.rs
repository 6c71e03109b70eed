//! Data that is too large for the log is stored as objects, for callers that may see its run, and for no others.

use async_nats::jetstream::{self, Context};
use base64::Engine as _;
use futures::StreamExt as _;
use harness::{Callers, Client, Fixture, Guarded, Keys, Run, Yard, call, reason};
use hyper::Method;
use proto::object;
use proto::v1::content::Body;
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy};
use ring::digest::{SHA256, digest};
use serde_json::json;
use tonic::{Code, Status};

use crate::beside::{Beside, on_both};
use crate::{FIXTURE, check};

/// Two chunks and a bit.
pub(crate) const BYTES: usize = (512 << 10) + 1000;

fn makes(bytes: usize) -> Vec<v1::NewCall> {
    vec![call("a", "makes", json!({ "bytes": bytes }))]
}

pub(crate) fn made(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|index| b'a' + u8::try_from(index / 7 % 26).expect("a letter")).collect()
}

/// Runs the call to its end; returns the objects of its result.
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

pub(crate) async fn broker(url: String) -> Context {
    jetstream::new(async_nats::connect(url).await.expect("the broker is there"))
}

pub(crate) async fn lies(broker: &Context) -> u64 {
    let stream = broker.get_stream(proto::names::OBJECTS).await.expect("the object store is there");
    stream.cached_info().state.messages
}

on_both!(a_result_that_is_too_large_for_the_log_is_read_from_beside_it);
async fn a_result_that_is_too_large_for_the_log_is_read_from_beside_it(beside: Beside) {
    let yard = beside.yard(Fixture::new(FIXTURE)).await;
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

on_both!(an_object_is_served_over_http_as_it_is_and_in_ranges);
async fn an_object_is_served_over_http_as_it_is_and_in_ranges(beside: Beside) {
    let yard = beside.yard(Fixture::new(FIXTURE)).await;
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
    // In a vendor's form, a model sees its beginning.
    let turn = json!({ "role": "assistant", "content": [
        { "type": "tool_use", "id": "toolu_1", "name": "makes", "input": { "bytes": BYTES } },
    ]});
    let answer = http.post("/v1/tool_calls:batch", &turn).await.json().to_string();
    assert!(answer.contains("aaaaaaabbbbbbb"), "{answer}");
    assert!(answer.contains("the whole of it is object run_") && answer.len() < 20_000, "{answer}");
}

on_both!(an_image_of_twenty_megabytes_is_a_reference_that_is_read_whole_and_in_ranges);
async fn an_image_of_twenty_megabytes_is_a_reference_that_is_read_whole_and_in_ranges(beside: Beside) {
    const IMAGE: usize = 20_000_000;
    let yard = beside.yard(Fixture::new(FIXTURE)).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![call("a", "draws", json!({ "bytes": IMAGE }))]).await;
    let outcome = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await)["a"].clone();
    let [v1::Content { body: Some(Body::Object(object)), .. }] = &outcome.result[..] else { panic!("{outcome:?}") };
    assert_eq!((object.media_type.as_str(), object.size_bytes), ("image/png", IMAGE as u64));
    let pixels = |range: std::ops::Range<usize>| range.map(|index| u8::try_from(index / 7 % 251).expect("it fits"));
    let image: Vec<u8> = pixels(0..IMAGE).collect();
    assert_eq!(object.sha256.as_ref(), digest(&SHA256, &image).as_ref());
    let (http, path) = (yard.http(), format!("/v1/objects/{}", object.object_id));
    let whole = http.get(&path).await;
    assert_eq!((whole.status, &whole.headers["content-type"]), (200, &"image/png".parse().expect("ASCII")));
    assert!(whole.body == image, "{} bytes", whole.body.len());
    let part = http.ask(Method::GET, &path, &[("range", "bytes=19999990-")], "").await;
    assert_eq!((part.status, part.body.to_vec()), (206, pixels(IMAGE - 10..IMAGE).collect::<Vec<u8>>()));
    // For a model it is not inline: the answer names it.
    let turn = json!({ "role": "assistant", "content": [
        { "type": "tool_use", "id": "toolu_1", "name": "draws", "input": { "bytes": IMAGE } },
    ]});
    let answer = http.post("/v1/tool_calls:batch?wait=60s", &turn).await.json().to_string();
    assert!(answer.contains("/0.main.") || answer.contains(".0.main."), "{answer}");
    assert!(answer.len() < 20_000, "{} bytes", answer.len());
}

on_both!(a_coordinator_does_not_grow_with_a_result);
async fn a_coordinator_does_not_grow_with_a_result(beside: Beside) {
    let yard = beside.yard(Fixture::new(FIXTURE)).await;
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
    let objects = objects::Objects::new(&broker, None);
    objects.remove_run(run.id.parse().expect("an id")).await.expect("the broker removes it");
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

async fn upload(http: harness::Http, headers: &[(&str, &str)], bytes: &[u8]) -> v1::Object {
    let answer = http.ask(Method::POST, "/v1/objects", headers, bytes.to_vec()).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let object = &answer.json()["object"];
    let text = |name: &str| object[name].as_str().expect("a text").to_owned();
    let sha256 = base64::engine::general_purpose::STANDARD.decode(text("sha256")).expect("base64");
    v1::Object {
        object_id: text("object_id"),
        media_type: text("media_type"),
        size_bytes: object["size_bytes"].as_u64().expect("a number"),
        sha256: sha256.into(),
        preview: String::new(),
    }
}

fn file(tool: &str, name: &str, object: &v1::Object) -> v1::RunFile {
    v1::RunFile { tool: tool.to_owned(), name: name.to_owned(), object_id: object.object_id.clone() }
}

async fn outcome_of(client: &Client, calls: Vec<v1::NewCall>, files: Vec<v1::RunFile>) -> v1::CallOutcome {
    let request = v1::CreateRunRequest { calls, files, ..v1::CreateRunRequest::default() };
    let events = client.execute_request(request).await.expect("it is accepted").to_end().await;
    check::outcomes(&events)["a"].clone()
}

on_both!(a_call_opens_the_files_of_its_tool_and_those_of_all_and_no_others);
async fn a_call_opens_the_files_of_its_tool_and_those_of_all_and_no_others(beside: Beside) {
    let yard = beside.yard(Fixture::new(FIXTURE)).await;
    let _worker = yard.worker().await;
    let png = [("content-type", "image/png")];
    let mine = upload(yard.http(), &png, &made(BYTES)).await;
    assert_eq!((mine.size_bytes, mine.media_type.as_str()), (BYTES as u64, "image/png"));
    assert_eq!(mine.sha256.as_ref(), digest(&SHA256, &made(BYTES)).as_ref());
    let (all, others) = (upload(yard.http(), &[], b"for all").await, upload(yard.http(), &[], b"").await);
    let files = vec![file("opens", "mine.png", &mine), file("_all", "all", &all), file("copies", "theirs", &others)];

    let outcome = outcome_of(&yard.client, vec![call("a", "opens", json!({}))], files.clone()).await;
    assert_eq!(check::text(&outcome), format!("mine.png {BYTES} image/png\nall 7 application/octet-stream"));
    let outcome = outcome_of(&yard.client, vec![call("a", "copies", json!({ "file": "all" }))], files.clone()).await;
    assert_eq!(
        outcome.result[0].body.as_ref().map(|body| matches!(body, Body::Data(data) if data.data == "for all")),
        Some(true)
    );
    let outcome =
        outcome_of(&yard.client, vec![call("a", "copies", json!({ "file": "mine.png" }))], files.clone()).await;
    let error = outcome.error.expect("it has no such file");
    assert_eq!(error.message, "there is no file \"mine.png\"; there are: all, theirs");
    for object in [&mine, &others] {
        let peek = vec![call("a", "peeks", json!({ "object_id": object.object_id }))];
        let outcome = outcome_of(&yard.client, peek, files.clone()).await;
        assert!(check::text(&outcome).contains("the call has no such file"), "{outcome:?}");
    }

    // Calls that are added bring files of their own.
    let request = v1::CreateRunRequest { keep_open: true, ..v1::CreateRunRequest::default() };
    let run = yard.client.runs.clone().create_run(request).await.expect("accepted").into_inner().run.expect("a run");
    let calls = vec![call("a", "opens", json!({}))];
    let request =
        v1::AppendCallsRequest { run_id: run.run_id.clone(), calls, files, ..v1::AppendCallsRequest::default() };
    yard.client.runs.clone().append_calls(request).await.expect("accepted");
    let close = v1::CloseRunRequest { run_id: run.run_id.clone() };
    yard.client.runs.clone().close_run(close).await.expect("it closes");
    let run = Run { client: yard.client.clone(), id: run.run_id };
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert!(check::text(&outcomes["a"]).starts_with("mine.png"), "{outcomes:?}");
}

#[tokio::test]
async fn a_result_that_was_too_large_is_a_file_of_the_next_run() {
    let keys = Keys::new(&["main"]);
    let yard = Yard::guarded(FIXTURE, &keys).await;
    let _worker = keys.workers(&yard.fixture, "main").worker(&yard.broker.url(), "main", 4).await;
    yard.client.wait_for_tool("makes").await;
    let (_, object) = object(&yard.client, BYTES).await;
    let calls = vec![call("a", "copies", json!({ "file": "it" }))];
    let outcome = outcome_of(&yard.client, calls, vec![file("copies", "it", &object)]).await;
    let Some(Body::Object(copy)) = outcome.result[0].body.clone() else { panic!("a reference: {outcome:?}") };
    assert_eq!((copy.sha256, copy.size_bytes), (object.sha256, object.size_bytes));
}

#[tokio::test]
async fn what_is_wrong_with_files_is_refused_before_anything_is_stored() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let mine = upload(yard.http(), &[], b"x").await;
    let none = v1::Object { object_id: format!("upl_{}", "0".repeat(32)), ..v1::Object::default() };
    let garbage = v1::Object { object_id: "x".to_owned(), ..v1::Object::default() };
    let many = (0..33).map(|index| file("opens", &index.to_string(), &mine)).collect();
    for (files, expected) in [
        (vec![file("opens", "a", &none)], "OBJECT_NOT_FOUND"),
        (vec![file("opens", "a", &garbage)], "MALFORMED"),
        (vec![file("no tool", "a", &mine)], "MALFORMED"),
        (vec![file("opens", "", &mine)], "MALFORMED"),
        (vec![file("opens", "a", &mine), file("_all", "a", &mine)], "MALFORMED"),
        (many, "MALFORMED"),
    ] {
        let calls = vec![call("a", "opens", json!({}))];
        let request = v1::CreateRunRequest { calls, files: files.clone(), ..v1::CreateRunRequest::default() };
        let refused = yard.client.execute_request(request).await.expect_err("it is refused");
        assert_eq!(reason(&refused), expected, "{files:?}");
    }
    let answer = yard.http().ask(Method::POST, "/v1/objects?whose=mine", &[], "x").await;
    assert_eq!(answer.problem(), (400, "MALFORMED".to_owned()));
}

on_both!(a_coordinator_does_not_grow_with_an_upload_and_takes_none_that_is_too_large);
async fn a_coordinator_does_not_grow_with_an_upload_and_takes_none_that_is_too_large(beside: Beside) {
    let yard = beside.yard(Fixture::new(FIXTURE)).await;
    let _worker = yard.worker().await;
    let before = yard.coordinator.memory_peak();
    let object = upload(yard.http(), &[], &made(128 << 20)).await;
    let outcome =
        outcome_of(&yard.client, vec![call("a", "opens", json!({}))], vec![file("_all", "big", &object)]).await;
    assert_eq!(check::text(&outcome), format!("big {} application/octet-stream", 128 << 20));
    let grown = (yard.coordinator.memory_peak() - before) >> 20;
    // Of a bucket's pieces several are under way, and what one thread gives back another does not have.
    assert!(grown < 48, "by {grown} MiB");
    let lie = beside.pieces(&yard).await;
    let pieces =
        futures::stream::iter((0..68).map(|_| v1::CreateObjectRequest {
            data: vec![0; 4_000_000].into(),
            ..v1::CreateObjectRequest::default()
        }));
    let refused = yard.client.objects.clone().create_object(pieces.chain(futures::stream::pending())).await;
    let refused = refused.expect_err("272 million bytes are too many");
    assert_eq!(reason(&refused), "PAYLOAD_TOO_LARGE", "{refused:?}");
    assert_eq!(beside.pieces(&yard).await, lie, "nothing of it is left");
}

#[tokio::test]
async fn an_upload_is_its_tenants() {
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(CALLERS)).await;
    let ada = yard.client("ada");
    ada.wait_for_tool("opens").await;
    let key = format!("Bearer {}", yard.callers.key("ada"));
    let http = harness::Http::new(yard.coordinator.address());
    let object = upload(http, &[("authorization", &key)], b"secret").await;
    assert_eq!(read(&ada, &object.object_id, 0, None).await.expect("it is hers"), b"secret");
    let eve = yard.client("eve");
    let refused = read(&eve, &object.object_id, 0, None).await.expect_err("it is not hers");
    assert_eq!(reason(&refused), "OBJECT_NOT_FOUND");
    let calls = vec![call("a", "opens", json!({}))];
    let files = vec![file("_all", "stolen", &object)];
    let request =
        v1::CreateRunRequest { calls: calls.clone(), files: files.clone(), ..v1::CreateRunRequest::default() };
    let refused = eve.execute_request(request).await.expect_err("it is not hers");
    assert_eq!(reason(&refused), "OBJECT_NOT_FOUND");
    assert_eq!(check::text(&outcome_of(&ada, calls, files).await), "stolen 6 application/octet-stream");
    assert_eq!(http.ask(Method::POST, "/v1/objects", &[], "x").await.problem().0, 401);
}

async fn link(client: &Client, object: &v1::Object, seconds: i64) -> Result<String, Status> {
    let lifetime = Some(prost_types::Duration { seconds, nanos: 0 });
    let request = v1::CreateObjectLinkRequest { object_id: object.object_id.clone(), lifetime };
    Ok(client.objects.clone().create_object_link(request).await?.into_inner().path)
}

#[tokio::test]
async fn a_link_is_read_by_whoever_has_it_until_its_time_and_while_its_maker_may() {
    let with_key = format!("answer_token_key_file = \"key\"\n{CALLERS}");
    let callers = Callers::new(&with_key);
    callers.beside("key", &[7; 40]);
    let yard = Guarded::start(Fixture::new(FIXTURE), callers).await;
    let ada = yard.client("ada");
    ada.wait_for_tool("makes").await;
    let (_, object) = object(&ada, BYTES).await;
    let eve = link(&yard.client("eve"), &object, 60).await.expect_err("it is not hers");
    assert_eq!(reason(&eve), "OBJECT_NOT_FOUND");
    let http = harness::Http::new(yard.coordinator.address());
    let path = link(&ada, &object, 600).await.expect("she may");
    let read = http.get(&path).await;
    assert_eq!((read.status, &read.body[..]), (200, &made(BYTES)[..]));
    let part = http.ask(Method::GET, &path, &[("range", "bytes=0-6")], "").await;
    assert_eq!((part.status, &part.body[..]), (206, &b"aaaaaaa"[..]));
    let unknown = (404, "LINK_UNKNOWN".to_owned());
    let brief = link(&ada, &object, 1).await.expect("she may");
    let over = async {
        while http.get(&brief).await.status == 200 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, over).await.expect("its time comes");
    assert_eq!(http.get(&brief).await.problem(), unknown);
    for forged in
        [path.replace("tyl_", "tya_"), format!("{path}x"), "/v1/links/".to_owned(), "/v1/links/tyl_x.x".to_owned()]
    {
        assert_eq!(http.get(&forged).await.status / 100, 4, "{forged}");
    }
    // The token opens nothing else.
    let token = path.rsplit('/').next().expect("a token").to_owned();
    let elsewhere = format!("/v1/objects/{}", object.object_id);
    let refused = http.ask(Method::GET, &elsewhere, &[("authorization", &format!("Bearer {token}"))], "").await;
    assert_eq!(refused.status, 401);
    // Who made it is of another tenant now: what it made is of the old one.
    let moved = with_key.replacen("tenant = \"acme\"", "tenant = \"other\"", 1);
    assert_ne!(moved, with_key);
    yard.callers.write(&moved);
    let gone = async {
        while http.get(&path).await.status == 200 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, gone).await.expect("the file is read again");
    assert_eq!(http.get(&path).await.problem(), unknown);
    yard.callers.write(&with_key);
    let back = async {
        while http.get(&path).await.status != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, back).await.expect("the file is read again");
    yard.callers.write(&with_key.replacen("\"read\"", "\"answer\"", 1));
    let taken = async {
        while http.get(&path).await.status == 200 {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, taken).await.expect("the file is read again");
    assert_eq!(http.get(&path).await.problem(), unknown, "who made it may not read any more");
}

#[tokio::test]
async fn without_a_key_there_are_no_links() {
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(CALLERS)).await;
    let ada = yard.client("ada");
    ada.wait_for_tool("makes").await;
    let (_, object) = object(&ada, BYTES).await;
    let refused = link(&ada, &object, 60).await.expect_err("there is no key");
    assert_eq!((refused.code(), reason(&refused).as_str()), (Code::PermissionDenied, "LINKS_OFF"));
}
