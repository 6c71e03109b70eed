//! Warns of functions that block the event loop of JavaScript. Leases are kept meanwhile, by threads of their own, but
//! all other calls of the process wait.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use napi::Status;
use napi::threadsafe_function::ThreadsafeFunction;
use tokio::time::{Instant, sleep, timeout};

/// A function of JavaScript that does nothing. It does not keep the process alive.
pub(crate) type Beat = ThreadsafeFunction<(), (), (), Status, false, true>;

/// How often the event loop is asked, and how long it may take to answer before it counts as blocked.
const BEAT: Duration = Duration::from_secs(1);

/// How many calls of a tool run.
#[derive(Debug, Clone)]
pub(crate) struct Running {
    tool: String,
    calls: Arc<AtomicU32>,
}

impl Running {
    pub(crate) fn new(tool: &str) -> Self {
        Self { tool: tool.to_owned(), calls: Arc::default() }
    }

    /// A call runs until the answer is dropped.
    pub(crate) fn begin(&self) -> Call {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Call(Arc::clone(&self.calls))
    }
}

pub(crate) struct Call(Arc<AtomicU32>);

impl Drop for Call {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Asks the event loop again and again.
pub(crate) async fn watch(beat: Beat, tools: Vec<Running>) -> Infallible {
    loop {
        sleep(BEAT).await;
        let began = Instant::now();
        let mut answer = pin!(beat.call_async(()));
        let answered = match timeout(BEAT, &mut answer).await {
            Ok(answered) => answered,
            Err(_) => {
                let running = tools.iter().filter(|running| running.calls.load(Ordering::Relaxed) > 0);
                let tools = running.map(|running| running.tool.as_str()).collect::<Vec<_>>().join(", ");
                tracing::warn!(tools, "the event loop is blocked: move long computations to worker threads");
                let answered = answer.await;
                tracing::warn!(seconds = began.elapsed().as_secs_f64(), "the event loop goes on");
                answered
            }
        };
        if answered.is_err() {
            // The process ends.
            return pending().await;
        }
    }
}
