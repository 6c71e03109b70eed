//! Looks at a history from outside, for an operator. Nothing of it is changed.

use std::time::Duration;

use bytes::Bytes;
use object_store::{Error, ObjectStore as _, ObjectStoreExt as _, PutMode};
use proto::convert::history::HistoryPosition;
use run::{RunId, Shard};
use tokio::time::timeout;

use super::{History, HistoryError, READ_PATIENCE, keys};

/// What a shard's database says of itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShardSeen {
    /// How far it goes; `None` if it was never written.
    pub position: Option<HistoryPosition>,
    /// The first run that was created, also if it is not shown any more.
    pub oldest: Option<RunId>,
}

impl History {
    /// Writes a small file, reads it and removes it. Returns whether the store keeps a file that is there: it must, or
    /// two coordinators may write the same shard.
    ///
    /// # Errors
    /// If the store does not respond, or refuses.
    pub async fn try_out(&self) -> Result<bool, HistoryError> {
        let (store, path) = (&self.0.store, self.0.root.clone().join("tried").join(uuid::Uuid::now_v7().to_string()));
        let data = Bytes::from_static(b"toolyard");
        let tried = async {
            store.put_opts(&path, data.clone().into(), PutMode::Create.into()).await?;
            let keeps = match store.put_opts(&path, data.clone().into(), PutMode::Create.into()).await {
                Err(Error::AlreadyExists { .. }) => true,
                Ok(_) => false,
                Err(error) => return Err(error.into()),
            };
            let found = store.get(&path).await?.bytes().await?;
            store.delete(&path).await?;
            if found == data {
                Ok(keeps)
            } else {
                Err(HistoryError::Damaged("a file that was just written".to_owned()))
            }
        };
        timeout(READ_PATIENCE, tried).await.map_err(|_| HistoryError::silent(READ_PATIENCE))?
    }

    /// How far a shard goes, and where it begins.
    ///
    /// # Errors
    /// If the store does not respond, or what it has is damaged.
    pub async fn look_at(&self, shard: Shard) -> Result<ShardSeen, HistoryError> {
        let store = self.shard(shard)?;
        let position = store.get(keys::POSITION).await?.map(HistoryPosition::decode).transpose();
        let position = position.map_err(|error| HistoryError::Damaged(format!("its position: {error}")))?;
        let first = store.keys_after(keys::RUNS.to_vec(), None, 1).await?;
        let oldest = first.first().and_then(|key| keys::id(shard, key.get(..16)?));
        Ok(ShardSeen { position, oldest })
    }

    /// Reads the runs of a shard for at most `patience`, to find what is damaged.
    ///
    /// # Errors
    /// What was found.
    pub async fn read_through(&self, shard: Shard, patience: Duration) -> Result<(), HistoryError> {
        self.shard(shard)?.read_through(keys::RUNS, patience).await
    }
}
