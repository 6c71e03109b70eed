//! Proves that the log has no entry of a run.
//!
//! A server that was replaced as the log's leader, or has just become it, may lack the newest entries and answer all
//! the same. So one server's answer is not enough to report that a run is missing. Instead a barrier is stored by a
//! majority of the servers. A server that has the barrier has everything that was stored before it.

use run::RunId;
use tokio::time::{Duration, Instant};

use super::pages::Counts;
use super::{Journal, LAG_PAUSE, Pace, READ_PATIENCE, ReadError};
use crate::nats::setup::RETENTION;

/// The shortest time between two barriers. Barriers stay in the log as long as entries, and clients may request any
/// number of unknown runs.
const APART: Duration = Duration::from_millis(250);

/// The last barrier.
#[derive(Debug, Default)]
pub(super) struct LastMark {
    /// When its request was sent. It is set even if the requester disconnected before the answer.
    sent_at: Option<Instant>,
    /// The result.
    answer: Option<Result<u64, ReadError>>,
}

/// How long storing a barrier may take. All requests that wait for it share a failure, too.
const MARK_PATIENCE: Duration = Duration::from_secs(5);

impl Journal {
    /// Proves whether the log has no entry of a run. Used after a server answered that it has none.
    ///
    /// # Errors
    /// If no barrier can be stored, or no server that has it answers.
    pub(crate) async fn is_absent(&self, id: RunId) -> Result<bool, ReadError> {
        // Any entries of the run have left the log.
        let opened_by = id.created_at().after(run::NEVER_OPENED_AFTER);
        if ::nats::now().since(id.created_at()) > RETENTION || self.oldest() > opened_by {
            return Ok(self.carried_to(id).await? == 0);
        }
        let mark = self.mark_behind(id).await?;
        let give_up = Instant::now() + READ_PATIENCE;
        loop {
            let Counts { subjects, through } = self.counts_through(id).await?;
            if !subjects.is_empty() || self.carried_to(id).await? > 0 {
                return Ok(false);
            }
            if through >= mark {
                return Ok(true);
            }
            if Instant::now() >= give_up {
                return Err(ReadError(format!("no server that has entry {mark} answers")));
            }
            tokio::time::sleep(LAG_PAUSE).await;
        }
    }

    /// A barrier after everything that is in the log now. Concurrent requests share one, or its failure.
    pub(super) async fn mark_behind(&self, id: RunId) -> Result<u64, ReadError> {
        let now = Instant::now();
        let mut last = self.last_mark.lock().await;
        if let Some(sent_at) = last.sent_at {
            if sent_at >= now
                && let Some(answer) = &last.answer
            {
                return answer.clone();
            }
            tokio::time::sleep_until(sent_at + APART).await;
        }
        // Set before it is sent, because the requester may disconnect and the barrier is stored all the same.
        *last = LastMark { sent_at: Some(Instant::now()), answer: None };
        let stored = tokio::time::timeout(MARK_PATIENCE, self.mark(id.shard(), Pace::Later)).await;
        let stored = stored.unwrap_or_else(|_| Err(ReadError("storing a barrier in the log failed".to_owned())));
        last.answer = Some(stored.clone());
        stored
    }
}

#[cfg(test)]
mod tests {
    use futures::future::try_join_all;
    use run::{Event, Shard};

    use super::super::tests::{count, fresh, journal};
    use super::*;

    #[tokio::test]
    async fn that_there_is_no_run_is_known_behind_a_mark_which_those_who_ask_at_once_share() {
        let (_server, journal) = journal().await;
        let sent_at = try_join_all((0..100).map(|_| journal.is_absent(fresh()))).await.expect("it is known");
        assert!(sent_at.into_iter().all(|absent| absent));
        // The first one's, and another after everything that the others may have missed meanwhile.
        assert!(count(&journal).await <= 2, "{}", count(&journal).await);
        let there = fresh();
        journal.append(there, &[Event::RunClosed], None, 0).await.expect("stored");
        assert!(!journal.is_absent(there).await.expect("it is known"));
    }

    #[tokio::test]
    async fn a_run_that_is_older_than_the_log_costs_no_mark() {
        let (_server, journal) = journal().await;
        let old = uuid::Timestamp::from_unix_time(1_000_000_000, 0, 0, 0);
        let old = RunId::new(Shard(0), uuid::Uuid::new_v7(old));
        assert!(journal.is_absent(old).await.expect("it is known"));
        assert_eq!(count(&journal).await, 0);
    }
}
