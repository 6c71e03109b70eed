//! Runs of three calls, one after another, while something breaks, as a patient caller makes them.

use std::time::{Duration, Instant};

use harness::{Client, PATIENCE, carried_through, check};
use proto::v1::CallState;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Callers at once, each of which makes a run after the other, with this pause.
const CALLERS: usize = 4;
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) struct Load {
    stop: watch::Sender<bool>,
    done: watch::Receiver<usize>,
    callers: Vec<JoinHandle<Vec<Duration>>>,
}

impl Load {
    /// Begins to create runs through these clients, and uses another one if one does not answer.
    pub(crate) fn begin(clients: &[Client]) -> Self {
        let (stop, stopped) = watch::channel(false);
        let (count, done) = watch::channel(0);
        let callers = (0..CALLERS).map(|caller| {
            let (clients, stopped, count) = (clients.to_vec(), stopped.clone(), count.clone());
            tokio::spawn(async move {
                let mut took = Vec::new();
                while !*stopped.borrow() {
                    let id = format!("drill-{caller}-{}", took.len());
                    took.push(completed(&clients, id).await);
                    count.send_modify(|count| *count += 1);
                    tokio::time::sleep(PAUSE).await;
                }
                took
            })
        });
        Self { stop, done, callers: callers.collect() }
    }

    /// Waits until so many more runs ended.
    pub(crate) async fn goes_on(&mut self, more: usize) {
        let before = *self.done.borrow();
        let more = self.done.wait_for(|count| *count >= before + more);
        tokio::time::timeout(PATIENCE, more).await.expect("runs end in time").expect("callers go on");
    }

    /// Ends, and returns the number of runs and the longest duration. All runs completed.
    pub(crate) async fn end(self) -> (usize, Duration) {
        self.stop.send_replace(true);
        let mut took = Vec::new();
        for caller in self.callers {
            took.extend(caller.await.expect("every run completes"));
        }
        (took.len(), took.into_iter().max().unwrap_or_default())
    }
}

/// Creates a run, which must complete with all its output, and returns its duration.
async fn completed(clients: &[Client], id: String) -> Duration {
    let began = Instant::now();
    let events = carried_through(clients, id).await;
    let took = began.elapsed();
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{outcomes:?}");
    assert_eq!(check::said(&events)["a"], "a-0 a-1 a-2 ", "nothing is doubled and nothing is missing");
    took
}
