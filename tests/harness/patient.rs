//! A caller that uses any available one of several coordinators.

use std::time::Duration;

use proto::v1::run_event::Event;
use proto::v1::{self, FloorPolicy, RunEvent};
use serde_json::json;

use crate::{Client, PATIENCE, Run, call};

/// Makes a run of three calls and reads it to its end. A coordinator that does not answer, or breaks the stream off, is
/// left for the next one. The call `b` echoes the id, `a` and `c` count to 3 and 2.
///
/// # Panics
/// When the run does not end, or a request is refused for another reason.
pub async fn carried_through(clients: &[Client], id: String) -> Vec<RunEvent> {
    let ended = |events: &[RunEvent]| matches!(events.last(), Some(RunEvent { event: Some(Event::RunEnded(_)), .. }));
    let (mut events, mut run): (Vec<RunEvent>, Option<String>) = (Vec::new(), None);
    let mut turn = id.len();
    let tries = async {
        while !ended(&events) {
            turn += 1;
            let client = &clients[turn % clients.len()];
            let Some(run_id) = run.clone() else {
                match client.runs.clone().create_run(request(&id)).await {
                    Ok(created) => run = created.into_inner().run.map(|run| run.run_id),
                    Err(refused) => pass_over(&refused).await,
                }
                continue;
            };
            let after = events.last().map(|event| event.sequence);
            let run = Run { client: client.clone(), id: run_id };
            match run.watch_after(FloorPolicy::Arrival, after).await {
                Ok(mut stream) => {
                    while stream.next().await.unwrap_or(false) {}
                    events.extend(stream.seen);
                }
                Err(refused) => pass_over(&refused).await,
            }
        }
    };
    tokio::time::timeout(PATIENCE, tries).await.unwrap_or_else(|_| panic!("{id} does not end"));
    events
}

fn request(id: &str) -> v1::CreateRunRequest {
    let count = |label: &str, pieces: u32, every_ms: u64| {
        call(label, "count", json!({ "label": label, "pieces": pieces, "every_ms": every_ms }))
    };
    let calls = vec![count("a", 3, 20), call("b", "echo", json!({ "text": id })), count("c", 2, 10)];
    v1::CreateRunRequest { calls, request_id: id.to_owned(), ..v1::CreateRunRequest::default() }
}

/// Waits a moment after an error that only means that the coordinator is unavailable.
async fn pass_over(refused: &tonic::Status) {
    let is_passing = matches!(refused.code(), tonic::Code::Unavailable | tonic::Code::Cancelled | tonic::Code::Unknown);
    assert!(is_passing, "{refused:?}");
    tokio::time::sleep(Duration::from_millis(50)).await;
}
