//! CPU-bound work of requests, run outside the threads that serve requests.

use std::sync::{LazyLock, Mutex, PoisonError};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Permits for CPU-bound work of requests: half of the cores, so the other half serves all other requests. Each piece
/// of work is bounded by its steps and budgets, about 100 ms at most; the others wait in order of arrival.
static PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Semaphore::new((cores / 2).max(1))
});

/// Niceness of such work: of a core that serving needs too it gets about a tenth.
const NICE: i32 = 10;

/// The right to do such work. Dropping it lets the next request in.
#[derive(Debug)]
pub(crate) struct Permit {
    _held: SemaphorePermit<'static>,
}

impl Permit {
    pub(crate) async fn acquire() -> Self {
        Self { _held: PERMITS.acquire().await.expect("the semaphore is never closed") }
    }

    /// Does the work on a thread of its own. Other tasks of this thread move to another thread meanwhile.
    pub(crate) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(|| run_nicely(work)),
            _ => work(),
        }
    }
}

/// A thread can lower its priority but not raise it again, so each is used once. If none can be created, this one does
/// the work.
fn run_nicely<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let span = tracing::Span::current();
    let work = Mutex::new(Some(work));
    let take = || work.lock().unwrap_or_else(PoisonError::into_inner).take();
    let done = std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().spawn_scoped(scope, || {
            if let Err(error) = rustix::process::nice(NICE) {
                tracing::debug!(%error, "lowering the priority of costly work failed");
            }
            take().map(|work| span.in_scope(work))
        });
        match worker {
            Ok(worker) => worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => {
                tracing::warn!(%error, "creating a thread for costly work failed");
                None
            }
        }
    });
    done.or_else(|| take().map(|work| work())).expect("one of the two takes it")
}

/// Does quick work here, and other work with a permit.
pub(crate) async fn run_unless<T: Send>(is_quick: bool, work: impl FnOnce() -> T + Send) -> T {
    if is_quick { work() } else { Permit::acquire().await.run(work) }
}
