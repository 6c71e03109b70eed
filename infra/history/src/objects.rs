//! Objects that results of ended runs refer to. They are files beside the databases, in a folder a day, because a
//! database would copy them again and again.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{Error, GetOptions, ObjectStoreExt as _};
use run::limit::RUN_LIFE_MAX;
use run::{RunId, Timestamp};
use tokio::time::timeout;

use super::{History, HistoryError, READ_PATIENCE, WRITE_PATIENCE};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long removing many objects may take.
const REMOVE_PATIENCE: Duration = Duration::from_secs(120);

impl History {
    /// Stores a piece of an object of a run.
    ///
    /// # Errors
    /// If the store does not confirm it in time.
    pub async fn put_object(&self, run: RunId, name: &str, piece: Bytes) -> Result<(), HistoryError> {
        let path = self.folder(run).join(name);
        let stored = timeout(WRITE_PATIENCE, self.0.store.put(&path, piece.into())).await;
        stored.map_err(|_| HistoryError::silent(WRITE_PATIENCE))??;
        Ok(())
    }

    /// A part of a piece of an object; `None` if there is no such piece.
    ///
    /// # Errors
    /// If the store does not respond.
    pub async fn object(&self, run: RunId, name: &str, span: Range<u64>) -> Result<Option<Bytes>, HistoryError> {
        let path = self.folder(run).join(name);
        let read = async {
            match self.0.store.get_opts(&path, GetOptions::new().with_range(Some(span))).await {
                Ok(found) => Ok(Some(found.bytes().await?)),
                Err(Error::NotFound { .. }) => Ok(None),
                Err(error) => Err(HistoryError::from(error)),
            }
        };
        timeout(READ_PATIENCE, read).await.map_err(|_| HistoryError::silent(READ_PATIENCE))?
    }

    /// Removes the objects of a run.
    pub(crate) async fn remove_objects(&self, run: RunId) -> Result<(), HistoryError> {
        self.remove_below(&self.folder(run)).await
    }

    /// Removes objects of runs that were created longer ago than they are kept.
    ///
    /// # Errors
    /// If the store does not respond.
    pub async fn remove_expired_objects(&self, now: Timestamp) -> Result<(), HistoryError> {
        // They lie under the day on which the run was created, and a run may be open for long before it ends.
        let oldest = day(now.before(self.0.retention + RUN_LIFE_MAX + DAY));
        let all = self.days();
        let days = self.0.store.list_with_delimiter(Some(&all));
        let days = timeout(READ_PATIENCE, days).await.map_err(|_| HistoryError::silent(READ_PATIENCE))??;
        for folder in days.common_prefixes {
            if folder.filename().is_some_and(|name| name < oldest.as_str()) {
                self.remove_below(&folder).await?;
            }
        }
        Ok(())
    }

    async fn remove_below(&self, folder: &Path) -> Result<(), HistoryError> {
        let store = &self.0.store;
        let found = store.list(Some(folder)).map_ok(|found| found.location).boxed();
        let removed = store.delete_stream(found).try_for_each(|_| std::future::ready(Ok(())));
        let removed = timeout(REMOVE_PATIENCE, removed).await;
        match removed.map_err(|_| HistoryError::silent(REMOVE_PATIENCE))? {
            // Another coordinator removed it meanwhile.
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn days(&self) -> Path {
        self.0.root.clone().join("objects")
    }

    fn folder(&self, run: RunId) -> Path {
        self.days().join(day(run.created_at())).join(run.to_string())
    }
}

/// The day of a time, as digits that sort.
fn day(at: Timestamp) -> String {
    format!("{:06}", at.0 / 1000 / DAY.as_secs())
}
