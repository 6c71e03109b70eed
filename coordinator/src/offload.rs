//! CPU-bound work of requests, kept from the threads that serve everybody.

use std::sync::LazyLock;

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Requests whose CPU-bound work runs at once: half of the cores, so the other half serves all others. Each is bounded by its
/// steps and budgets, some 100 ms at most; the others wait in the order in which they came.
static PERMITS: LazyLock<Semaphore> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Semaphore::new((cores / 2).max(1))
});

/// The right to do such work. Dropping it lets the next request in.
#[derive(Debug)]
pub(crate) struct Permit {
    _held: SemaphorePermit<'static>,
}

impl Permit {
    pub(crate) async fn acquire() -> Self {
        Self { _held: PERMITS.acquire().await.expect("nobody closes it") }
    }

    /// Does the work. What else this thread has to do goes to another thread meanwhile.
    pub(crate) fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        match Handle::try_current().map(|handle| handle.runtime_flavor()) {
            Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
            _ => work(),
        }
    }
}

/// Does work that is quick here, and other work with a permit.
pub(crate) async fn run_unless<T>(is_quick: bool, work: impl FnOnce() -> T) -> T {
    if is_quick { work() } else { Permit::acquire().await.run(work) }
}
