//! Reading a run that has left the log from the history: from its beginning, or from where the log ended.

use std::sync::Arc;

use run::Entry;

use super::{Source, WatchError, opens};
use crate::nats::journal::{Page, Past, ReadError};

impl Source {
    /// Reads the first entries of a run, from the log or from the history.
    pub(super) async fn begin(&mut self) -> Result<(), WatchError> {
        // An error of the history does not matter if the log has the run.
        if let Ok(Some(found)) = Past::find_first(&self.journal, self.run).await {
            self.read_in_history(found);
            return Ok(());
        }
        match self.begin_in_log().await {
            Err(error @ (WatchError::Unknown | WatchError::Gone(_))) => {
                // The log may still have the end of the run.
                self.page.clear();
                self.last = 0;
                self.go_on_in_history(error).await
            }
            begun => begun,
        }
    }

    async fn begin_in_log(&mut self) -> Result<(), WatchError> {
        while self.page.is_empty() && self.is_behind() {
            self.read_page().await?;
        }
        if self.page.is_empty() && !self.journal.is_absent(self.run).await? {
            return Err(ReadError::disagreeing().into());
        }
        if self.page.front().is_some_and(|entry| opens(entry)) { Ok(()) } else { Err(WatchError::Unknown) }
    }

    /// The next entry. If the run has left the log meanwhile, it is read on from the history. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Arc<Entry>, WatchError> {
        if self.past.is_none() {
            match self.next_in_log().await {
                Err(error @ (WatchError::Unknown | WatchError::Gone(_))) => self.go_on_in_history(error).await?,
                next => return next,
            }
        }
        loop {
            if let Some(entry) = self.page.pop_front() {
                return Ok(entry);
            }
            let page = match &mut self.past {
                Some(past) => Box::pin(past.next()).await?,
                None => None,
            };
            // The end of the run would have come before.
            let page = page.ok_or(WatchError::Gone(self.last))?;
            self.take_past(page);
        }
    }

    /// Reads the run from the history from now on. `error`: why it cannot be read from the log, if the history does not
    /// have it either.
    pub(super) async fn go_on_in_history(&mut self, error: WatchError) -> Result<(), WatchError> {
        let found = Box::pin(Past::find(&self.journal, self.run)).await?;
        self.read_in_history(found.ok_or(error)?);
        Ok(())
    }

    fn read_in_history(&mut self, (past, page): (Past, Page)) {
        self.past = Some(past);
        self.take_past(page);
    }

    /// Takes the entries of a page that were not read before.
    fn take_past(&mut self, page: Page) {
        self.page.extend(page.entries.into_iter().filter(|entry| entry.sequence > self.last));
        self.last = self.last.max(page.through);
    }

    /// The page of the history with this entry, for output that waited; `None` if the run is read from the log.
    pub(super) async fn page_again(&self, sequence: u64) -> Result<Option<Page>, WatchError> {
        if self.past.is_none() {
            return Ok(None);
        }
        let Some((mut past, mut page)) = Past::find(&self.journal, self.run).await? else {
            return Err(WatchError::Gone(sequence));
        };
        while page.through < sequence {
            let Some(next) = past.next().await? else { break };
            page = next;
        }
        page.entries.retain(|entry| entry.sequence >= sequence);
        Ok(Some(page))
    }
}
