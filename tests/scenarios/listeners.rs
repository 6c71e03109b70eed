//! Unauthenticated clients that hold connections, streams and memory do not affect others.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use harness::{Client, Fixture, Yard, call};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use proto::v1;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;

use crate::{FIXTURE, question};

/// A connection from another address of this machine than clients have.
async fn from_elsewhere(to: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 2], 0))).expect("all of 127/8 is ours");
    socket.connect(to).await.expect("the coordinator listens")
}

/// The received bytes until the other side closes.
async fn to_end(mut connection: TcpStream) -> String {
    let mut answer = Vec::new();
    let read = tokio::time::timeout(harness::PATIENCE, connection.read_to_end(&mut answer)).await;
    // It may be closed by a reset, behind the answer.
    drop(read.expect("it is closed in time"));
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn silent_connections_have_a_limit_and_an_end_and_leave_places_to_others() {
    let yard = Yard::start_with(Fixture::new(FIXTURE).with("TOOLYARD_CONNECTIONS_MAX", 8)).await;
    let mut silent = Vec::new();
    for sent in [&b""[..], b"PRI * HTTP/2.0\r\n", b"G", b""] {
        let mut connection = from_elsewhere(yard.coordinator.address()).await;
        connection.write_all(sent).await.expect("it is taken");
        silent.push(connection);
    }
    let refused = to_end(from_elsewhere(yard.coordinator.address()).await).await;
    assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("TOO_MANY_CONNECTIONS"), "{refused}");
    let run = yard.client.create(vec![question("ask")]).await;
    assert_eq!(
        Client::connect(yard.coordinator.address()).await.create(vec![question("ask")]).await.id.len(),
        run.id.len()
    );
    for connection in silent {
        to_end(connection).await;
    }
    let mut again = from_elsewhere(yard.coordinator.address()).await;
    again
        .write_all(b"GET /v1/counts HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .expect("it is taken");
    let answer = to_end(again).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

type Unfinished = http_body_util::combinators::BoxBody<Bytes, Infallible>;

/// A body of which nothing comes behind these bytes.
fn unfinished(bytes: Vec<u8>) -> Unfinished {
    let first = stream::iter([Ok(Frame::data(Bytes::from(bytes)))]);
    BodyExt::boxed(StreamBody::new(first.chain(stream::pending())))
}

/// An HTTP/2 connection from elsewhere.
async fn connect(to: SocketAddr, driving: &mut JoinSet<()>) -> http2::SendRequest<Unfinished> {
    let io = TokioIo::new(from_elsewhere(to).await);
    let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await.expect("it speaks HTTP/2");
    driving.spawn(async move { drop(connection.await) });
    sender
}

fn request(to: SocketAddr, path: &str, kind: &str, body: Unfinished) -> Request<Unfinished> {
    let request = Request::post(format!("http://{to}{path}")).header("content-type", kind).header("te", "trailers");
    request.body(body).expect("a request")
}

fn grpc_status(response: &Response<Incoming>) -> Option<&str> {
    response.headers().get("grpc-status").and_then(|status| status.to_str().ok())
}

#[tokio::test]
async fn requests_that_are_never_finished_take_bounded_memory_and_leave_room_to_others() {
    let yard = Yard::start(FIXTURE).await;
    let to = yard.coordinator.address();
    let mut driving = JoinSet::new();
    let mut answers = JoinSet::new();
    // 200 MiB of a part of 64.
    let message = [&[0, 0, 48, 0, 0][..], &[0; 2 << 20]].concat();
    for _ in 0..2 {
        let mut sender = connect(to, &mut driving).await;
        for _ in 0..50 {
            let path = "/toolyard.v1.RunService/CreateRun";
            answers.spawn(sender.send_request(request(to, path, "application/grpc", unfinished(message.clone()))));
        }
    }
    let first = tokio::time::timeout(harness::PATIENCE, answers.join_next()).await.expect("some are refused in time");
    let first = first.expect("there are some").expect("it does not panic").expect("it is answered");
    assert_eq!(grpc_status(&first), Some("8"), "{first:?}");
    assert!(first.headers()["grpc-message"].to_str().is_ok_and(|text| text.contains("unfinished")), "{first:?}");
    yard.client.create(vec![call("fine", "echo", json!({ "text": "x".repeat(100_000) }))]).await;
    drop(answers);
    let mut answers = JoinSet::new();
    for _ in 0..2 {
        let mut sender = connect(to, &mut driving).await;
        for _ in 0..50 {
            let body = unfinished(vec![b' '; 2 << 20]);
            answers.spawn(sender.send_request(request(to, "/v1/runs", "application/json", body)));
        }
    }
    let first = tokio::time::timeout(harness::PATIENCE, answers.join_next()).await.expect("some are refused in time");
    let first = first.expect("there are some").expect("it does not panic").expect("it is answered");
    assert_eq!(first.status(), 503, "{first:?}");
    let said = first.into_body().collect().await.expect("a body").to_bytes();
    assert!(String::from_utf8_lossy(&said).contains("REQUESTS_FULL"), "{said:?}");
    yard.client.create(vec![call("fine", "echo", json!({ "text": "x".repeat(100_000) }))]).await;
    drop((answers, driving));
}

#[tokio::test]
async fn an_unfinished_body_counts_in_the_memory_whatever_its_content_type_says() {
    let yard = Yard::start(FIXTURE).await;
    let to = yard.coordinator.address();
    let (mut driving, mut answers) = (JoinSet::new(), JoinSet::new());
    for _ in 0..2 {
        let mut sender = connect(to, &mut driving).await;
        for _ in 0..50 {
            // As messages of gRPC, each of these would be empty and complete.
            let body = unfinished(vec![0; 2 << 20]);
            answers.spawn(sender.send_request(request(to, "/mcp", "application/grpc", body)));
        }
    }
    let first = tokio::time::timeout(harness::PATIENCE, answers.join_next()).await.expect("some are refused in time");
    let first = first.expect("there are some").expect("it does not panic").expect("it is answered");
    assert_eq!(first.status(), 503, "{first:?}");
    drop((answers, driving));
}

#[tokio::test]
async fn a_question_about_health_is_small_and_a_link_is_read_without_a_body() {
    let yard = Yard::start(FIXTURE).await;
    let to = yard.coordinator.address();
    let mut driving = JoinSet::new();
    let mut sender = connect(to, &mut driving).await;
    let health = request(to, "/grpc.health.v1.Health/Check", "application/grpc", unfinished(vec![0, 0, 63, 0, 0]));
    let answer = tokio::time::timeout(harness::PATIENCE, sender.send_request(health)).await;
    let answer = answer.expect("it is refused before it is whole").expect("it is answered");
    assert_eq!(grpc_status(&answer), Some("8"), "{answer:?}");
    let mut link = request(to, "/v1/links/x", "application/json", unfinished(vec![b'{'; 1000]));
    *link.method_mut() = hyper::Method::GET;
    let answer = tokio::time::timeout(harness::PATIENCE, sender.send_request(link)).await;
    assert_eq!(answer.expect("nobody waits for its body").expect("it is answered").status(), 404);
}

#[tokio::test]
async fn messages_that_are_too_large_or_cannot_be_decoded_are_refused_with_a_reason() {
    let yard = Yard::start(FIXTURE).await;
    let large = vec![call("a", "echo", json!({ "text": "x".repeat(5 << 20) }))];
    let large = v1::CreateRunRequest { calls: large, ..v1::CreateRunRequest::default() };
    let refused = yard.client.runs.clone().create_run(large).await.expect_err("it is too large");
    assert_eq!((refused.code(), &*harness::reason(&refused)), (tonic::Code::ResourceExhausted, "PAYLOAD_TOO_LARGE"));
    let mut channel = tonic::client::Grpc::new(yard.client.channel());
    channel.ready().await.expect("it is connected");
    let path = "/toolyard.v1.RunService/CreateRun".parse().expect("a path");
    // A field of which the length goes beyond the message: a string where a list of calls is.
    let wrong = v1::GetRunRequest { run_id: "no call".to_owned() };
    let codec = proto::codec::MessageCodec::<v1::GetRunRequest, v1::CreateRunResponse>::default();
    let refused = channel.unary(tonic::Request::new(wrong), path, codec).await.expect_err("it cannot be decoded");
    assert_eq!((refused.code(), &*harness::reason(&refused)), (tonic::Code::InvalidArgument, "MALFORMED"), "{refused}");
}

#[tokio::test]
async fn a_thousand_readers_that_come_back_at_once_are_all_served() {
    const READERS: usize = 1000;
    let yard = Yard::start(FIXTURE).await;
    let mut ids = Vec::new();
    for _ in 0..50 {
        ids.push(yard.client.create(vec![question("ask")]).await.id);
    }
    let mut readers = JoinSet::new();
    for connection in 0..READERS / 200 {
        let client = Client::connect(yard.coordinator.address()).await;
        for reader in 0..200 {
            let (mut runs, run_id) = (client.runs.clone(), ids[(connection + reader) % ids.len()].clone());
            readers.spawn(async move {
                let request = v1::WatchRunRequest { run_id, ..v1::WatchRunRequest::default() };
                let mut stream = runs.watch_run(request).await?.into_inner();
                let first = stream.message().await?;
                // It stays.
                Ok::<_, tonic::Status>((first.map_or(0, |first| first.events.len()), stream))
            });
        }
    }
    let others = async {
        for _ in 0..20 {
            yard.client.create(vec![question("ask")]).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let served = async {
        let mut served = Vec::new();
        while let Some(reader) = readers.join_next().await {
            served.push(reader.expect("it does not panic").expect("it is served"));
        }
        served
    };
    let (served, ()) = tokio::time::timeout(harness::PATIENCE, futures::future::join(served, others))
        .await
        .expect("all are served in time");
    assert!(served.len() == READERS && served.iter().all(|(events, _)| *events > 0));
}

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_refused() {
    let yard = Yard::start(FIXTURE).await;
    let http = yard.http();
    let mut twice = TcpStream::connect(yard.coordinator.address()).await.expect("it listens");
    let request = b"GET /v1/counts HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\nconnection: close\r\n\r\n";
    twice.write_all(request).await.expect("it is taken");
    let answer = to_end(twice).await;
    assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    let run = r#"{"tenant":"a","keep_open":true,"tenant":"b"}"#;
    let json = [("content-type", "application/json")];
    let refused = http.ask(hyper::Method::POST, "/v1/runs", &json, run).await;
    assert_eq!(refused.problem(), (400, "MALFORMED".to_owned()));
    let utf16 = [("content-type", "application/json; charset=utf-16")];
    let refused = http.ask(hyper::Method::POST, "/v1/runs", &utf16, r#"{"keep_open":true}"#).await;
    assert_eq!(refused.problem(), (415, "UNSUPPORTED_MEDIA_TYPE".to_owned()));
    let utf8 = [("content-type", "application/json; charset=\"UTF-8\"")];
    assert_eq!(http.ask(hyper::Method::POST, "/v1/runs", &utf8, r#"{"keep_open":true}"#).await.status, 201);
    let refused = http.ask(hyper::Method::POST, "/v1/objects?tenant=%3F", &[], "x").await;
    assert_eq!(refused.json()["errors"][0]["parameter"], "tenant", "{refused:?}");
}
