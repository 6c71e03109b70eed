//! What a coordinator keeps in memory for readers that are far slower than the tools.

use std::net::SocketAddr;

use harness::http::Answering;
use harness::{Client, Direction, Http, PATIENCE, Proxy, Run, Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, FloorPolicy, RunStatus};
use serde_json::json;
use tonic::transport::Channel;

use crate::{FIXTURE, check};

const PIECE_BYTES: usize = 4096;
/// 60 MiB of output, nearly as much as a call may have.
const PIECES: u32 = 15 << 10;
/// What two runs cost at most, a shorter one with quick readers and one with slow ones besides: less than the output
/// that the slow ones have not read. It was 18 to 36 MiB. How it is divided between the runs depends on how late the
/// coordinator reads the log: the broker sends up to 32 MiB before it waits for that.
const BYTES_MAX: u64 = 50 << 20;
const SLOW_BYTES_PER_S: usize = 1024;
/// What the slow gRPC client allows to be sent ahead. A ping of the server waits behind it, and the server disconnects
/// a client that does not answer within 20 s.
const SLOW_WINDOW_BYTES: u32 = 8 * 1024;

fn pours(pieces: u32) -> Vec<v1::NewCall> {
    vec![call("a", "pours", json!({ "pieces": pieces, "piece_bytes": PIECE_BYTES }))]
}

/// Reads a run to its end through both APIs at the same time.
async fn read(http: Http, run: &Run) -> (Vec<u8>, Vec<v1::RunEvent>) {
    let over_http = async {
        let mut stream = http.events(&run.id, None).await;
        rest(&mut stream).await;
        without_heartbeats(&stream.bytes)
    };
    let over_grpc = async { run.watch(FloorPolicy::Arrival).await.to_end().await };
    tokio::join!(over_http, over_grpc)
}

async fn slow_client(address: SocketAddr) -> Client {
    let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address makes a URL");
    let endpoint = endpoint.initial_stream_window_size(SLOW_WINDOW_BYTES);
    Client::through(endpoint.connect().await.expect("the coordinator listens"))
}

async fn rest(stream: &mut Answering) {
    let read = tokio::time::timeout(PATIENCE, stream.to_end()).await.expect("it ends in time");
    read.expect("the stream does not break");
}

/// Events as they were sent. Comments depend on the time.
fn without_heartbeats(bytes: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(bytes).replace(": heartbeat\n\n", "").into_bytes()
}

#[tokio::test]
async fn readers_of_a_kilobyte_a_second_cost_no_memory_slow_no_tool_and_have_the_right_beginning() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let link = Proxy::to(yard.coordinator.address()).await.expect("a port is free");
    let (slow_http, slow_grpc) = (Http::new(link.address()), slow_client(link.address()).await);
    let idle = yard.coordinator.memory_peak();
    let alone = yard.client.create(pours(PIECES / 3)).await;
    read(yard.http(), &alone).await;
    let grown = || yard.coordinator.memory_peak() - idle;
    let with_quick_readers = grown();

    link.throttle(Direction::ToClient, SLOW_BYTES_PER_S);
    let run = yard.client.create(pours(PIECES)).await;
    let mut slow = slow_http.events(&run.id, None).await;
    let mut slow_too = run.through(&slow_grpc).watch(FloorPolicy::Arrival).await;
    let (sent, events) = read(yard.http(), &run).await;
    // The tool has ended, and the others have read all of it, while the slow ones have read some kilobytes.
    assert_eq!(run.get().await.status(), RunStatus::Completed);
    slow.until(|bytes| bytes.len() > 6 * SLOW_BYTES_PER_S).await;
    slow_too.until(|event| matches!(event, Event::RunOpened(_))).await;
    let beginning = without_heartbeats(&slow.bytes);
    assert!(slow.bytes.len() < 64 * SLOW_BYTES_PER_S && slow_too.seen.len() < events.len() / 10, "they are slow");
    assert!(sent.starts_with(&beginning), "{}", String::from_utf8_lossy(&beginning));
    assert!(events.starts_with(&slow_too.seen), "{:?}", slow_too.seen);
    let with_slow_readers = grown();

    // What they had not read stayed in the log.
    link.heal();
    let (all, ()) = tokio::join!(slow_too.to_end(), rest(&mut slow));
    assert!(all == events && without_heartbeats(&slow.bytes) == sent, "the slow readers saw something else");
    check::whole(&all, true);
    assert_eq!(check::said(&all)["a"].len(), PIECE_BYTES * usize::try_from(PIECES).expect("it fits"));
    let peaks = [with_quick_readers, with_slow_readers, grown()].map(|bytes| bytes >> 10);
    eprintln!("KiB with quick readers, with slow ones besides, and when they had read on: {peaks:?}");
    assert!(grown() < BYTES_MAX, "{peaks:?}");
}
