//! Questions to the broker whose answer any number of concurrent requests share.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared as Answer};
use tokio::time::{Instant, sleep_until, timeout};

use super::journal::ReadError;

/// The shortest time between two questions: clients may request any number of runs that do not exist.
const APART: Duration = Duration::from_millis(250);
/// How long an answer may take. All requests that wait for it share a failure, too.
const PATIENCE: Duration = Duration::from_secs(5);

/// A question that is asked again and again, one at a time.
#[derive(Debug)]
pub(crate) struct Shared<T>(Mutex<Option<Asked<T>>>);

/// A question that was asked.
#[derive(Debug, Clone)]
struct Asked<T> {
    sent_at: Instant,
    answer: Answer<BoxFuture<'static, Result<T, ReadError>>>,
}

impl<T> Default for Shared<T> {
    fn default() -> Self {
        Self(Mutex::new(None))
    }
}

impl<T: Clone + Send + Sync + 'static> Shared<T> {
    /// The answer to a question that was sent after this request came, by it or by another one. If its requester
    /// disconnects, it goes on for the others.
    ///
    /// # Errors
    /// As `question`, and `silence` if that takes too long.
    pub(crate) async fn ask<F>(&self, silence: &'static str, question: impl Fn() -> F) -> Result<T, ReadError>
    where
        F: Future<Output = Result<T, ReadError>> + Send + 'static,
    {
        let now = Instant::now();
        loop {
            let Asked { sent_at, answer } = self.last(silence, &question);
            let answer = answer.await;
            if sent_at >= now {
                return answer;
            }
            sleep_until(sent_at + APART).await;
        }
    }

    /// The question that is under way, or was sent a moment ago; otherwise a new one.
    fn last<F>(&self, silence: &'static str, question: impl Fn() -> F) -> Asked<T>
    where
        F: Future<Output = Result<T, ReadError>> + Send + 'static,
    {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(asked) = &*last
            && (asked.answer.peek().is_none() || asked.sent_at.elapsed() < APART)
        {
            return asked.clone();
        }
        let sent_at = Instant::now();
        let asking = timeout(PATIENCE, question());
        let answer = async move { asking.await.unwrap_or_else(|_| Err(ReadError::new(&silence))) };
        last.insert(Asked { sent_at, answer: answer.boxed().shared() }).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

    use futures::future::join_all;

    use super::*;

    /// Asks a question whose answer takes a second and is its number.
    async fn ask(shared: &Shared<u64>, asked: &Arc<AtomicU64>) -> Result<u64, ReadError> {
        let question = || {
            let number = asked.fetch_add(1, Relaxed);
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok(number)
            }
        };
        shared.ask("there is no answer", question).await
    }

    #[tokio::test(start_paused = true)]
    async fn requests_share_the_next_question_and_a_requester_that_leaves_does_not_end_it() {
        let (shared, asked) = (Shared::default(), Arc::default());
        let first = timeout(Duration::from_millis(500), ask(&shared, &asked)).await;
        assert!(first.is_err(), "it left before the answer");
        let began = Instant::now();
        let later = join_all((0..100).map(|_| ask(&shared, &asked))).await;
        let numbers: Vec<u64> = later.into_iter().map(|answer| answer.expect("it is answered")).collect();
        assert_eq!(numbers, vec![1; 100], "the one under way may not know what they want to know");
        assert_eq!(began.elapsed(), Duration::from_millis(1500), "it was not asked again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_without_an_answer_fails_for_all_and_is_asked_again_for_the_next() {
        let shared = Shared::<u64>::default();
        let silent = || std::future::pending::<Result<u64, ReadError>>();
        let failed = join_all((0..3).map(|_| shared.ask("there is no answer", silent))).await;
        let says_so = |error: &ReadError| error.to_string().contains("there is no answer");
        assert!(failed.iter().all(|answer| answer.as_ref().is_err_and(says_so)));
        assert_eq!(ask(&shared, &Arc::default()).await.expect("it is answered"), 0);
    }
}
