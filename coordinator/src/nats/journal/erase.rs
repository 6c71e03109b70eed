//! Takes runs out of the log of which nothing is to be kept.

use proto::names;
use proto::subject;
use run::{Event, RunId};

use super::{Journal, ReadError};
use crate::known::may_open;

impl Journal {
    /// Erases the entries of a run up to `through`, and nothing that came later: the same request may have made the run anew.
    /// The broker forgets them at once; their bytes leave its files when it next packs these.
    pub(crate) async fn erase(&self, run: RunId, through: u64) -> Result<(), ReadError> {
        let stream =
            self.broker.context.get_stream_no_info(names::STREAM).await.map_err(|error| ReadError::new(&error))?;
        let purge = stream.purge().filter(subject::of_run(run)).sequence(through + 1).await;
        purge.map(|_| ()).map_err(|error| ReadError::new(&error))
    }

    /// Whether nothing opens the run of an entry that stands at `sequence`: then the run was erased, or is older than the log,
    /// and nobody will ever read the entry. Whichever replica has the entry has all before it.
    pub(crate) async fn is_orphan(&self, run: RunId, sequence: u64) -> Result<bool, ReadError> {
        let page = self.page_towards(&subject::of_run(run), 0, sequence, 1).await?;
        let opens = |event: &Event| matches!(event, Event::RunOpened(_));
        let is_opened = page.entries.iter().any(|entry| entry.events.iter().any(opens))
            // What a newer release wrote may open it.
            || page.unread.iter().any(|(place, _)| may_open(place));
        Ok(!is_opened)
    }
}
