//! Calls one after another while something breaks, as a patient caller makes them.

use std::time::{Duration, Instant};

use harness::{Client, PATIENCE, call, check};
use proto::v1::run_event::Event;
use proto::v1::{self, CallState};
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Callers that call at once, each as fast as it is answered, and no faster than this.
const CALLERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Load {
    stop: watch::Sender<bool>,
    done: watch::Receiver<usize>,
    callers: Vec<JoinHandle<Vec<Duration>>>,
}

impl Load {
    /// Begins to call through these clients, and goes on at another one where one does not answer.
    pub(crate) fn begin(clients: &[Client]) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (count, done) = watch::channel(0);
        let callers = (0..CALLERS).map(|caller| {
            let (clients, stopped, count) = (clients.to_vec(), stopped.clone(), count.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                while !*stopped.borrow() {
                    let id = format!("drill-{caller}-{}", took.len());
                    took.push(carried_through(&clients, &id).await);
                    count.send_modify(|count| *count += 1);
                    tokio::time::sleep(PAUSE).await;
                }
                took
            })
        });
        Self { stop, done, callers: callers.collect() }
    }

    /// Waits until so many more calls ended.
    pub(crate) async fn goes_on(&mut self, more: usize) {
        let before = *self.done.borrow();
        let more = self.done.wait_for(|count| *count >= before + more);
        tokio::time::timeout(PATIENCE, more).await.expect("calls end in time").expect("callers go on");
    }

    /// Ends, and says how many calls there were and how long the longest took. All of them completed.
    pub(crate) async fn end(self) -> (usize, Duration) {
        self.stop.send_replace(true);
        let mut took = Vec::new();
        for caller in self.callers {
            took.extend(caller.await.expect("every call completes"));
        }
        (took.len(), took.into_iter().max().unwrap_or_default())
    }
}

/// Makes a call and reads it to its end. The request has an id, so asking again gives the same run.
async fn carried_through(clients: &[Client], id: &str) -> Duration {
    let began = Instant::now();
    let mut turn = id.len();
    let tries = async {
        loop {
            let calls = vec![call("c", "echo", json!({ "text": id }))];
            let request_id = id.to_owned();
            let request = v1::ExecuteRunRequest { calls, request_id, ..v1::ExecuteRunRequest::default() };
            if let Ok(mut stream) = clients[turn % clients.len()].execute_request(request).await {
                while stream.next().await.unwrap_or(false) {}
                if matches!(check::kinds(&stream.seen).last(), Some(Event::RunEnded(_))) {
                    return stream.seen;
                }
            }
            turn += 1;
            tokio::time::sleep(PAUSE).await;
        }
    };
    let events = tokio::time::timeout(PATIENCE, tries).await.unwrap_or_else(|_| panic!("{id} does not end"));
    check::whole(&events, true);
    let outcome = &check::outcomes(&events)["c"];
    assert_eq!((outcome.state(), check::text(outcome).as_str()), (CallState::Completed, id), "{outcome:?}");
    began.elapsed()
}
