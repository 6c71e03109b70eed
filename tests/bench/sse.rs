//! The HTTP door: the first chunk by server-sent events beside gRPC's, in turn, so that both meet the same machine; and
//! 5,000 readers of a run in which nothing happens.

use std::time::Instant;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use proto::v1;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::Effort;
use crate::execute::{self, Fleet, Yard};
use crate::measure::Latencies;
use crate::process::Usages;
use crate::results::Results;

/// Calls until their first chunk, in each round.
const FIRST_CHUNKS: u32 = 200;
const IDLE_READERS: u32 = 5_000;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let yard = Yard::start(Fleet::default()).await?;
    let address = yard.coordinators[0].ready.clone();
    let (mut over_grpc, mut over_sse, mut as_response) = (Latencies::new(), Latencies::new(), Latencies::new());
    let mut connection = Connection::open(&address).await?;
    for round in 0..=effort.rounds {
        eprintln!("sse: round {round} of {}", effort.rounds);
        for _ in 0..effort.count(FIRST_CHUNKS) {
            let began = Instant::now();
            yard.first_chunk().await?;
            let (grpc, began) = (began.elapsed(), Instant::now());
            let rest = connection.first_chunk().await?;
            let sse = began.elapsed();
            rest.collect().await?;
            let began = Instant::now();
            let rest = connection.first_chunk_of_response().await?;
            let response = began.elapsed();
            rest.collect().await?;
            // The first round is for warming up.
            if round > 0 {
                over_grpc.record(grpc);
                over_sse.record(sse);
                as_response.record(response);
            }
        }
    }
    results.set("sse.first_chunk_over_grpc", over_grpc.to_json());
    results.set("sse.first_chunk", over_sse.to_json());
    results.set("sse.first_chunk_of_response", as_response.to_json());

    let readers = effort.count(IDLE_READERS);
    eprintln!("sse: {readers} readers");
    let request = v1::CreateRunRequest {
        calls: vec![execute::new_call("ask", "{}".to_owned())],
        ..v1::CreateRunRequest::default()
    };
    let run = yard.client().create_run(request).await?.into_inner().run.context("the run")?;
    results.set("sse.memory_mib.before", Usages::of(&yard)?.memory_mib());
    let mut reading = Vec::new();
    for _ in 0..readers {
        let mut connection = Connection::open(&address).await?;
        let path = format!("/v1/runs/{}/events", run.run_id);
        let body = connection.ask(Request::get(path), Bytes::new()).await?;
        let body = until(body, b"call_waiting").await?;
        reading.push((connection, body));
    }
    results.set(&format!("sse.memory_mib.with_{readers}_idle_readers"), Usages::of(&yard)?.memory_mib());
    Ok(())
}

struct Connection {
    sender: SendRequest<Full<Bytes>>,
    host: String,
    /// Drives the connection, and closes it when dropped.
    _driving: JoinSet<()>,
}

impl Connection {
    async fn open(address: &str) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let mut driving = JoinSet::new();
        driving.spawn(async move { drop(connection.await) });
        Ok(Self { sender, host: address.to_owned(), _driving: driving })
    }

    async fn ask(&mut self, request: hyper::http::request::Builder, body: Bytes) -> anyhow::Result<Incoming> {
        let request = request.header("host", &self.host).header("content-type", "application/json");
        let request = request.header("accept", "text/event-stream").body(Full::new(body))?;
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        ensure!(response.status() == 200, "{}", response.status());
        Ok(response.into_body())
    }

    /// A call until its first chunk is here, and what follows.
    async fn first_chunk(&mut self) -> anyhow::Result<Incoming> {
        let call = execute::chunks(1, 64, 0);
        let body = json!({ "calls": [{ "tool": call.tool, "arguments": call.arguments }] }).to_string();
        until(self.ask(Request::post("/v1/runs"), body.into()).await?, b"\"call_output\"").await
    }

    /// The same call by the Responses API.
    async fn first_chunk_of_response(&mut self) -> anyhow::Result<Incoming> {
        let call = execute::chunks(1, 64, 0);
        let call = json!({ "type": "function_call", "call_id": "a", "name": call.tool, "arguments": call.arguments });
        let body = json!({ "input": [call], "stream": true }).to_string();
        let request = Request::post("/v1/responses?events=all");
        until(self.ask(request, body.into()).await?, b"toolyard:tool_output.delta").await
    }
}

/// Reads until something is said.
async fn until(mut body: Incoming, what: &[u8]) -> anyhow::Result<Incoming> {
    let mut said = Vec::new();
    while !said.windows(what.len()).any(|window| window == what) {
        let frame = body.frame().await.context("the stream ended")??;
        said.extend_from_slice(frame.data_ref().map_or(&[], |data| &**data));
    }
    Ok(body)
}
