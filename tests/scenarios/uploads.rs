//! Uploads can be deleted by callers that may create them, and tenants cannot exceed their limit.

use std::net::SocketAddr;
use std::time::Duration;

use async_nats::jetstream;
use futures::{Stream, StreamExt as _};
use harness::{Callers, Client, Fixture, Guarded, Http, Keys, PATIENCE, Run, Yard, call, reason};
use hyper::Method;
use proto::v1::{self, FloorPolicy};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::Code;

use crate::{FIXTURE, check};

const CALLERS: &str = r#"
    [quotas.acme]
    upload_bytes = 100_000

    [[callers]]
    name = "ada"
    tenant = "acme"
    roles = ["submit", "read"]
    tools = [{ names = ["*"] }]
    keys = ["{ada}"]

    [[callers]]
    name = "reader"
    tenant = "acme"
    roles = ["read"]
    keys = ["{reader}"]

    [[callers]]
    name = "eve"
    tenant = "other"
    roles = ["submit", "read"]
    keys = ["{eve}"]
"#;

struct As<'a>(Http, Option<&'a str>);

impl As<'_> {
    async fn ask(&self, method: Method, path: &str, body: &[u8]) -> harness::http::Answer {
        let bearer = self.1.map(|key| format!("Bearer {key}"));
        let headers: Vec<_> = bearer.iter().map(|bearer| ("authorization", bearer.as_str())).collect();
        self.0.ask(method, path, &headers, body.to_vec()).await
    }

    async fn upload(&self, bytes: usize) -> harness::http::Answer {
        self.ask(Method::POST, "/v1/objects", &vec![b'x'; bytes]).await
    }

    /// An upload that is taken; its id.
    async fn uploaded(&self, bytes: usize) -> String {
        let answer = self.upload(bytes).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        answer.json()["object"]["object_id"].as_str().expect("an id").to_owned()
    }

    async fn delete(&self, id: &str) -> harness::http::Answer {
        self.ask(Method::DELETE, &format!("/v1/objects/{id}"), &[]).await
    }

    async fn status(&self, id: &str) -> u16 {
        self.ask(Method::GET, &format!("/v1/objects/{id}"), &[]).await.status
    }
}

/// The content of the object store.
async fn lies(url: String) -> u64 {
    let context = jetstream::new(async_nats::connect(url).await.expect("the broker is there"));
    let stream = context.get_stream(proto::names::OBJECTS).await.expect("the object store is there");
    stream.cached_info().state.messages
}

async fn delete(client: &Client, id: &str) -> Result<(), tonic::Status> {
    let request = v1::DeleteObjectRequest { object_id: id.to_owned() };
    client.objects.clone().delete_object(request).await.map(drop)
}

/// Waits until the content of the object store is as wanted.
async fn lies_until(url: &str, wanted: impl Fn(u64) -> bool) {
    let mut lie = lies(url.to_owned()).await;
    let looks = async {
        while !wanted(lie) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            lie = lies(url.to_owned()).await;
        }
    };
    let looked = tokio::time::timeout(PATIENCE, looks).await;
    assert!(looked.is_ok(), "it comes to that, and not to {lie}");
}

/// An upload that brings some MiB and then nothing more.
fn stalling() -> impl Stream<Item = v1::CreateObjectRequest> + Send + 'static {
    let piece = || v1::CreateObjectRequest { data: vec![7; 1 << 20].into(), ..v1::CreateObjectRequest::default() };
    futures::stream::repeat_with(piece).take(3).chain(futures::stream::pending())
}

#[tokio::test]
async fn nothing_is_left_of_an_upload_whose_client_hangs_up() {
    let yard = Yard::start(FIXTURE).await;
    let url = yard.broker.url();
    let before = lies(url.clone()).await;

    // A stream that is reset.
    let mut client = yard.client.objects.clone();
    let mut uploading = JoinSet::new();
    uploading.spawn(async move { client.create_object(stalling()).await.map(drop) });
    lies_until(&url, |lie| lie > before).await;
    uploading.shutdown().await;
    lies_until(&url, |lie| lie == before).await;

    // One whose own deadline passes.
    let mut request = tonic::Request::new(stalling());
    request.set_timeout(Duration::from_secs(3));
    let mut client = yard.client.objects.clone();
    uploading.spawn(async move { client.create_object(request).await.map(drop) });
    lies_until(&url, |lie| lie > before).await;
    let overdue = uploading.join_next().await.expect("it is under way").expect("it does not panic");
    overdue.expect_err("it never ends");
    lies_until(&url, |lie| lie == before).await;

    // Connections that are closed, with the length said before and without.
    for framing in ["content-length: 9000000\r\n\r\n", "transfer-encoding: chunked\r\n\r\n895440\r\n"] {
        let mut stream = TcpStream::connect(yard.coordinator.address()).await.expect("the coordinator listens");
        let head = format!("POST /v1/objects HTTP/1.1\r\nhost: localhost\r\n{framing}");
        stream.write_all(head.as_bytes()).await.expect("it reads");
        stream.write_all(&vec![7; 2 << 20]).await.expect("it reads on");
        lies_until(&url, |lie| lie > before).await;
        drop(stream);
        lies_until(&url, |lie| lie == before).await;
    }
}

#[tokio::test]
async fn what_a_tenants_uploads_bring_at_the_same_time_counts_and_is_free_again_when_one_hangs_up() {
    let callers = CALLERS.replace("100_000", "5_000_000");
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(&callers)).await;
    let url = yard.broker.url();
    let before = lies(url.clone()).await;
    let key = yard.callers.key("ada");
    let ada = As(Http::new(yard.coordinator.address()), Some(&key));
    let mut uploading = JoinSet::new();
    let mut client = yard.client("ada").objects;
    uploading.spawn(async move { client.create_object(stalling()).await.map(drop) });
    // All of the three MiB but what waits for a whole chunk.
    lies_until(&url, |lie| lie >= before + 12).await;
    assert_eq!(ada.upload(3_000_000).await.problem(), (413, "UPLOADS_FULL".to_owned()));
    ada.uploaded(1_000_000).await;
    uploading.shutdown().await;
    lies_until(&url, |lie| lie == before + 5).await;
    // It counts no more a moment after it is gone.
    let free_again = async { while ada.upload(3_000_000).await.status != 201 {} };
    tokio::time::timeout(PATIENCE, free_again).await.expect("there is room again");
}

#[tokio::test]
async fn a_tenant_has_eight_uploads_under_way_and_others_have_theirs() {
    let callers = CALLERS.replace("100_000", "100_000_000");
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(&callers)).await;
    let url = yard.broker.url();
    let before = lies(url.clone()).await;
    let keys = ["ada", "eve"].map(|name| yard.callers.key(name));
    let http = Http::new(yard.coordinator.address());
    let [ada, eve] = keys.each_ref().map(|key| As(http, Some(key)));
    let mut uploading = JoinSet::new();
    for _ in 0..8 {
        let mut client = yard.client("ada").objects.clone();
        uploading.spawn(async move { client.create_object(stalling()).await.map(drop) });
    }
    lies_until(&url, |lie| lie >= before + 8 * 12).await;
    let refused = ada.upload(10).await;
    assert_eq!(refused.problem(), (429, "QUOTA_EXCEEDED".to_owned()));
    assert_eq!(refused.json()["metadata"]["what"], "uploads under way");
    eve.uploaded(10).await;
    // One that waits begins when another ends.
    let (taken, ()) = futures::join!(ada.upload(10), uploading.shutdown());
    assert_eq!(taken.status, 201, "{taken:?}");
}

/// Writes a whole request before it reads the first byte of the answer, as most clients do.
async fn written_and_read(address: SocketAddr, head: &str, body: usize) -> String {
    let mut stream = TcpStream::connect(address).await.expect("the coordinator listens");
    stream.write_all(head.as_bytes()).await.expect("it reads");
    stream.write_all(&vec![7; body]).await.expect("it reads to the end, though it refuses");
    let mut answer = vec![0; 4096];
    let read = tokio::time::timeout(PATIENCE, stream.read(&mut answer)).await.expect("it answers in time");
    String::from_utf8_lossy(&answer[..read.expect("it answers")]).into_owned()
}

#[tokio::test]
async fn a_client_that_is_refused_in_the_middle_of_what_it_sends_hears_why() {
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(CALLERS)).await;
    let (key, address) = (yard.callers.key("ada"), yard.coordinator.address());
    // More than the buffers between the two hold.
    let size = 24 << 20;
    let head = |headers: &str| {
        format!("POST /v1/objects HTTP/1.1\r\nhost: localhost\r\ncontent-length: {size}\r\n{headers}\r\n")
    };
    let known = format!("authorization: Bearer {key}\r\n");
    for (headers, refused) in [(known.as_str(), "UPLOADS_FULL"), ("", "CREDENTIAL_MISSING")] {
        let answer = written_and_read(address, &head(headers), size).await;
        assert!(answer.contains(refused), "{answer}");
    }
    let batch = head(&format!("content-type: application/json\r\n{known}")).replace("objects", "runs");
    let answer = written_and_read(address, &batch, size).await;
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("PAYLOAD_TOO_LARGE"), "{answer}");

    // A client that asks with `Expect: 100-continue` is refused at once.
    let asks = "expect: 100-continue\r\n";
    let answer = written_and_read(address, &head(asks), 0).await;
    assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
    let answer = written_and_read(address, &batch.replace("host:", &format!("{asks}host:")), 0).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "{answer}");
}

#[tokio::test]
async fn an_upload_that_is_lost_counts_no_more_once_it_is_deleted() {
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(CALLERS)).await;
    let keys = ["ada", "eve"].map(|name| yard.callers.key(name));
    let http = Http::new(yard.coordinator.address());
    let [ada, eve] = keys.each_ref().map(|key| As(http, Some(key)));
    let id = ada.uploaded(90_000).await;
    let context = jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    let stream = context.get_stream(proto::names::OBJECTS).await.expect("the object store is there");
    stream.purge().await.expect("it is emptied");
    assert_eq!(eve.delete(&id).await.status, 200, "as of any that she does not see");
    assert_eq!(ada.upload(90_000).await.problem().0, 413, "it counts");
    assert_eq!(ada.delete(&id).await.status, 200);
    ada.uploaded(90_000).await;
}

#[tokio::test]
async fn a_tenant_has_no_more_uploads_than_it_may() {
    let yard = Yard::start(FIXTURE).await;
    let all = As(yard.http(), None);
    let upload = || all.ask(Method::POST, "/v1/objects?tenant=acme", b"x");
    let context = jetstream::new(async_nats::connect(yard.broker.url()).await.expect("the broker is there"));
    let bucket = context.get_key_value(proto::names::REQUESTS_BUCKET).await.expect("uploads are counted there");
    let counted = (0..4095).map(|index| bucket.put(format!("up.acme.upl_{index:032x}.4096"), "".into()));
    let mut counted = futures::stream::iter(counted).buffer_unordered(64);
    while let Some(counted) = counted.next().await {
        counted.expect("it is counted");
    }
    assert_eq!(upload().await.status, 201);
    let refused = upload().await;
    assert_eq!(refused.problem(), (413, "TOO_MANY_UPLOADS".to_owned()));
    assert_eq!(refused.json()["metadata"]["limit"], "4096");
}

#[tokio::test]
async fn an_upload_that_is_deleted_is_gone_at_once_and_deleting_it_again_does_no_harm() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let all = As(yard.http(), None);
    let before = lies(yard.broker.url()).await;
    let (id, other) = (all.uploaded(600_000).await, all.uploaded(10).await);
    let file = |id: &str| v1::RunFile { tool: "_all".into(), name: "it".into(), object_id: id.to_owned() };
    let held =
        v1::NewCall { approval: Some(<v1::ApprovalRequest as Default>::default()), ..call("a", "opens", json!({})) };
    let request = v1::CreateRunRequest { calls: vec![held], files: vec![file(&id)], ..v1::CreateRunRequest::default() };
    let run = yard.client.runs.clone().create_run(request).await.expect("accepted").into_inner().run.expect("a run");

    for _ in 0..2 {
        let deleted = all.delete(&id).await;
        assert_eq!((deleted.status, deleted.json()), (200, json!({})));
        delete(&yard.client, &id).await.expect("once more, through the other door");
    }
    assert_eq!((all.status(&id).await, all.status(&other).await), (404, 200));
    let calls = vec![call("a", "opens", json!({}))];
    let request = v1::CreateRunRequest { calls, files: vec![file(&id)], ..v1::CreateRunRequest::default() };
    let refused = yard.client.execute_request(request).await.expect_err("it is not there");
    assert_eq!(reason(&refused), "OBJECT_NOT_FOUND");

    // The run that had it goes on, and its tool gets an error.
    let approve = v1::call_decision::Decision::Approve(v1::CallApproval { arguments: None });
    let decisions = vec![v1::CallDecision { call_id: "a".into(), decision: Some(approve) }];
    let decide = v1::DecideCallsRequest { run_id: run.run_id.clone(), decisions };
    yard.client.runs.clone().decide_calls(decide).await.expect("it is approved");
    let run = Run { client: yard.client.clone(), id: run.run_id };
    let ended = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    let error = ended["a"].error.clone().expect("it cannot be opened");
    assert!(error.message.contains("no longer stored"), "{error:?}");

    all.delete(&other).await;
    assert_eq!(lies(yard.broker.url()).await, before, "nothing is left");
    let result = all.delete(&format!("{}.0.main.00000000000000ff", run.id)).await;
    assert_eq!(result.problem(), (400, "MALFORMED".to_owned()));
    assert_eq!(result.json()["errors"][0]["parameter"], "object_id");
    assert_eq!(all.delete("nonsense").await.problem(), (400, "MALFORMED".to_owned()));
}

#[tokio::test]
async fn an_upload_is_deleted_by_its_tenant_and_nobody_else() {
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(CALLERS)).await;
    let keys = ["ada", "reader", "eve"].map(|name| yard.callers.key(name));
    let http = Http::new(yard.coordinator.address());
    let [ada, reader, eve] = keys.each_ref().map(|key| As(http, Some(key)));
    let id = ada.uploaded(10).await;
    assert_eq!(reader.delete(&id).await.problem(), (403, "ROLE_MISSING".to_owned()));
    let answer = eve.delete(&id).await;
    let unknown = eve.delete(&format!("upl_{}", "0".repeat(32))).await;
    assert_eq!((answer.status, answer.json()), (unknown.status, unknown.json()), "she learns nothing of it");
    assert_eq!(ada.status(&id).await, 200, "it is there");
    assert_eq!(As(http, None).delete(&id).await.problem().0, 401);
    assert_eq!(ada.delete(&id).await.status, 200);
    assert_eq!(ada.status(&id).await, 404);
}

#[tokio::test]
async fn uploads_are_counted_and_deleted_with_no_more_rights_than_the_configuration_gives() {
    let keys = Keys::new(&["main"]);
    let yard = Yard::guarded(FIXTURE, &keys).await;
    let all = As(yard.http(), None);
    let answer = all.ask(Method::POST, "/v1/objects?tenant=acme", b"for acme").await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let id = answer.json()["object"]["object_id"].as_str().expect("an id").to_owned();
    assert_eq!(all.delete(&id).await.status, 200);
    assert_eq!(all.status(&id).await, 404);
}

#[tokio::test]
async fn the_uploads_of_a_tenant_hold_no_more_than_they_may() {
    let yard = Guarded::start(Fixture::new(FIXTURE), Callers::new(CALLERS)).await;
    let keys = ["ada", "eve"].map(|name| yard.callers.key(name));
    let http = Http::new(yard.coordinator.address());
    let [ada, eve] = keys.each_ref().map(|key| As(http, Some(key)));
    let (first, _second) = (ada.uploaded(60_000).await, ada.uploaded(30_000).await);
    let lie = lies(yard.broker.url()).await;
    let refused = ada.upload(10_001).await;
    assert_eq!(refused.problem(), (413, "UPLOADS_FULL".to_owned()));
    assert_eq!(refused.json()["metadata"]["limit"], "100000");
    assert!(refused.json()["remedy"].as_str().is_some_and(|remedy| remedy.contains("delete")), "{refused:?}");
    let pieces = [v1::CreateObjectRequest { data: vec![0; 20_000].into(), ..v1::CreateObjectRequest::default() }];
    let status = yard.client("ada").objects.clone().create_object(futures::stream::iter(pieces)).await;
    let status = status.expect_err("it is too much");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "UPLOADS_FULL"));
    assert_eq!(lies(yard.broker.url()).await, lie, "nothing of what was refused is left");
    eve.uploaded(200_000).await;

    // Of many at once no more are taken than fit.
    let many = futures::future::join_all((0..8).map(|_| ada.upload(6_000))).await;
    let taken = many.iter().filter(|answer| answer.status == 201).count();
    assert!(taken <= 1, "{many:?}");
    assert_eq!(ada.delete(&first).await.status, 200);
    let mut more = Vec::new();
    for _ in 0..9 {
        more.push(ada.uploaded(6_000).await);
    }
    // The smallest take room too, and an empty one is one.
    for id in &more {
        ada.delete(id).await;
    }
    let mut small = 0;
    while ada.upload(0).await.status == 201 {
        small += 1;
        assert!(small < 40, "it comes to an end");
    }
    assert!((15..=17).contains(&small), "{small}");
}
