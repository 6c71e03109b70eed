//! Runs that have left the log, read from the history: the same messages, decoded in the same way.

use history::{History, HistoryError};
use proto::convert::history::{HistoryMessage, HistoryRun};
use proto::subject;
use run::RunId;

use super::{Batch, Journal, Page, Stored, counted_bytes};
use owner::Known;

impl Stored {
    /// The message for the history.
    pub(super) fn of_history(&self, run: RunId) -> HistoryMessage {
        let Self { sequence, subject, at, payload, .. } = self;
        let place = subject.strip_prefix(&before_place(run)).unwrap_or(subject).to_owned();
        HistoryMessage { place, sequence: *sequence, at: *at, payload: payload.clone() }
    }
}

impl Batch {
    /// The messages for the history, which are all of one run.
    pub(super) fn of_history(&self, run: RunId) -> Vec<HistoryMessage> {
        self.messages.iter().map(|message| message.of_history(run)).collect()
    }

    /// Messages that were stored elsewhere.
    pub(super) fn of_past(run: RunId, messages: Vec<HistoryMessage>) -> Self {
        let before = before_place(run);
        let messages = messages.into_iter().map(|HistoryMessage { place, sequence, at, payload }| {
            let (subject, bytes) = (format!("{before}{place}"), u32::try_from(payload.len()).unwrap_or(u32::MAX));
            Stored { sequence, subject, bytes: counted_bytes(bytes), at, payload }
        });
        Self { messages: messages.collect(), last: false }
    }
}

/// What the subjects of a run begin with.
fn before_place(run: RunId) -> String {
    subject::of_run(run).trim_end_matches('>').to_owned()
}

/// The progress of reading a run from the history.
#[derive(Debug)]
pub(crate) struct Past {
    history: History,
    run: RunId,
    parts: u32,
    /// The part that is read next.
    next: u32,
}

impl Past {
    /// The first page of a run that the history has; `None` if there is no history, or it does not have the run.
    pub(crate) async fn find(journal: &Journal, run: RunId) -> Result<Option<(Self, Page)>, HistoryError> {
        let Some(history) = journal.history() else { return Ok(None) };
        let found = history.run(run, ::nats::now()).await?;
        Self::begin(history, run, found).await
    }

    /// As [`Self::find`], before the log is read: of a run that is so old that the log has most likely lost it, if it
    /// has ended. `None` also if it was written to the history within the last minute.
    pub(crate) async fn find_first(journal: &Journal, run: RunId) -> Result<Option<(Self, Page)>, HistoryError> {
        let is_past = journal.oldest() > run.created_at();
        let Some(history) = journal.history().filter(|_| is_past) else { return Ok(None) };
        let found = history.run_cached(run, ::nats::now()).await?;
        Self::begin(history, run, found).await
    }

    async fn begin(
        history: &History,
        run: RunId,
        found: Option<HistoryRun>,
    ) -> Result<Option<(Self, Page)>, HistoryError> {
        let Some(found) = found else { return Ok(None) };
        let mut past = Self { history: history.clone(), run, parts: found.parts, next: 1 };
        let page = match found.messages {
            messages if messages.is_empty() => past.next().await?.unwrap_or_default(),
            messages => Batch::of_past(run, messages).page(0),
        };
        Ok(Some((past, page)))
    }

    /// The next page; `None` after the last one. Cancel safe.
    pub(crate) async fn next(&mut self) -> Result<Option<Page>, HistoryError> {
        if self.next > self.parts {
            return Ok(None);
        }
        let messages = self.history.part(self.run, self.next).await?;
        self.next += 1;
        Ok(Some(Batch::of_past(self.run, messages).page(0)))
    }
}

impl Journal {
    /// Reads runs that are not in the log any more from there.
    pub(crate) fn with_history(self, history: Option<History>) -> Self {
        Self { history, ..self }
    }

    pub(crate) fn history(&self) -> Option<&History> {
        self.history.as_ref()
    }

    /// A run as the history has it.
    pub(crate) async fn past(&self, id: RunId) -> Result<Option<Known>, HistoryError> {
        past_of(id, Past::find(self, id).await?).await
    }

    /// As [`Self::past`], before the log is read: see [`Past::find_first`].
    pub(crate) async fn past_first(&self, id: RunId) -> Result<Option<Known>, HistoryError> {
        past_of(id, Past::find_first(self, id).await?).await
    }
}

/// A run, folded from all of its pages.
async fn past_of(id: RunId, found: Option<(Past, Page)>) -> Result<Option<Known>, HistoryError> {
    let Some((mut past, page)) = found else { return Ok(None) };
    let mut known = Known::new(id);
    known.is_past = true;
    page.apply_to(&mut known);
    while let Some(page) = past.next().await? {
        page.apply_to(&mut known);
    }
    Ok(Some(known))
}
