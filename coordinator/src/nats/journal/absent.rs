//! Proves that the log has no entry of a run.
//!
//! A server that was replaced as the log's leader, or has just become it, may lack the newest entries and answer all
//! the same. So one server's answer is not enough to report that a run is missing. Instead a barrier is stored by a
//! majority of the servers. A server that has the barrier has everything that was stored before it.

use run::RunId;
use tokio::time::Instant;

use super::pages::Counts;
use super::{Journal, LAG_PAUSE, Pace, READ_PATIENCE, ReadError};
use crate::nats::setup::RETENTION;

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

    /// A barrier after everything that is in the log now. Barriers stay in the log as long as entries, so concurrent
    /// requests share one, or its failure.
    pub(super) async fn mark_behind(&self, id: RunId) -> Result<u64, ReadError> {
        let mark = || {
            let journal = self.clone();
            async move { journal.mark(id.shard(), Pace::Later).await }
        };
        self.last_mark.ask("storing a barrier in the log failed", mark).await
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
