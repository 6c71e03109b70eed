//! The threads on which the workers of a process work at the broker: as many as the machine has processors, and no more
//! than there are workers. No tool runs on them, so none can block them.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Builder;
use tokio::sync::mpsc;
use tokio::task::LocalSet;

/// Starts a worker on the thread that calls it.
type Start = Box<dyn FnOnce() + Send>;

/// Workers that wait for their thread to begin with them.
const STARTS_MAX: usize = 1024;

/// They last as long as the process.
static THREADS: Mutex<Vec<Thread>> = Mutex::new(Vec::new());

struct Thread {
    starts: mpsc::Sender<Start>,
    /// Counts its workers, with one that is ours.
    workers: Arc<()>,
}

/// The place of a worker on its thread.
pub(crate) struct Place(#[expect(dead_code, reason = "it counts while it exists")] Arc<()>);

/// Spawns the work that `start` returns on the thread with the fewest workers.
///
/// # Errors
/// A thread is needed and cannot be started.
pub(crate) fn spawn<W>(start: impl FnOnce(Place) -> W + Send + 'static) -> std::io::Result<()>
where
    W: Future<Output = ()> + 'static,
{
    let mut threads = THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    let most = std::thread::available_parallelism().map_or(1, usize::from);
    let is_taken = threads.iter().all(|thread| thread.workers() > 0);
    if is_taken && threads.len() < most {
        threads.push(Thread::start()?);
    }
    let Some(thread) = threads.iter().min_by_key(|thread| thread.workers()) else { return Ok(()) };
    let place = Place(Arc::clone(&thread.workers));
    let begin = Box::new(move || drop(tokio::task::spawn_local(start(place))));
    let ended = |_| std::io::Error::other("a thread of workers has ended, or too many workers start at once");
    thread.starts.try_send(begin).map_err(ended)
}

impl Thread {
    fn start() -> std::io::Result<Self> {
        let (starts, mut begins) = mpsc::channel::<Start>(STARTS_MAX);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("toolyard-worker".to_owned()).spawn(move || {
            LocalSet::new().block_on(&runtime, async {
                while let Some(begin) = begins.recv().await {
                    begin();
                }
            });
        })?;
        Ok(Self { starts, workers: Arc::new(()) })
    }

    fn workers(&self) -> usize {
        Arc::strong_count(&self.workers) - 1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[tokio::test]
    async fn workers_share_as_many_threads_as_there_are_processors() {
        let most = std::thread::available_parallelism().map_or(1, usize::from);
        let (ends, ended) = tokio::sync::watch::channel(());
        let (sender, mut receiver) = mpsc::channel(1024);
        for _ in 0..most * 3 {
            let (sender, mut ended) = (sender.clone(), ended.clone());
            let work = move |place: Place| async move {
                sender.send(std::thread::current().id()).await.expect("the test listens");
                ended.changed().await.expect_err("only its end is told");
                drop(place);
            };
            spawn(work).expect("a thread starts");
        }
        let mut used = Vec::new();
        while used.len() < most * 3 {
            used.push(receiver.recv().await.expect("each of them starts"));
        }
        drop(ends);
        assert_eq!(used.iter().collect::<HashSet<_>>().len(), most, "{used:?}");
        assert!(!used.contains(&std::thread::current().id()));
    }

    #[tokio::test]
    async fn a_worker_that_panics_ends_alone() {
        let (broken, breaks) = tokio::sync::oneshot::channel::<()>();
        spawn(move |_| async move {
            let _broken = broken;
            panic!("this is a test");
        })
        .expect("a thread starts");
        breaks.await.expect_err("it has ended without a word");
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            spawn(move |_| async move { sender.send(()).expect("the test listens") }).expect("a thread is there");
            receiver.await.expect("the next one works on the same threads");
        }
    }
}
