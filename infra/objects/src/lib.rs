//! Object stores: the broker, or a bucket of an S3 service. Workers store pieces of results; coordinators store pieces
//! of uploads, read chunk by chunk, and delete. The interface is the same for both.

mod nats;
mod s3;

use bytes::Bytes;
use proto::convert::object::Upload;
use proto::object::{self, CHUNK_BYTES};
use run::{ObjectId, RunId};

pub use s3::{Bucket, BucketError, BucketLocation, InvalidBucket};

/// Cheap to clone.
#[derive(Debug, Clone)]
pub enum Objects {
    /// Each chunk is a message of the stream `ty-objects`.
    Broker(nats::Stored),
    /// Several chunks are one object of the bucket.
    Bucket(Bucket),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    #[error("the object store is full: nothing more is kept until something has aged out")]
    Full,
    #[error("the object store does not keep it: {0}")]
    Unavailable(String),
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("the object store does not give it: {0}")]
pub struct ReadError(String);

impl Objects {
    /// Bytes of each stored piece except the last.
    #[must_use]
    pub fn piece_bytes(&self) -> usize {
        let bytes = match self {
            Self::Broker(_) => CHUNK_BYTES,
            Self::Bucket(_) => s3::PIECE_BYTES,
        };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Pieces of an upload in flight, because each takes memory.
    #[must_use]
    pub fn ahead(&self) -> usize {
        match self {
            Self::Broker(_) => 4,
            Self::Bucket(_) => 2,
        }
    }

    /// Stores a piece of an object. An existing piece is not overwritten, so a second copy does no harm.
    ///
    /// # Errors
    /// If there is no room, the store refuses it, or does not confirm it in time.
    pub async fn put(&self, id: &ObjectId, index: u64, piece: Bytes) -> Result<(), StoreError> {
        self.put_at(object::chunk(id, index), piece).await
    }

    /// A chunk of an object; `None` when there is none.
    ///
    /// # Errors
    /// If the store refuses it, or does not respond.
    pub async fn chunk(&self, id: &ObjectId, index: u64) -> Result<Option<Bytes>, ReadError> {
        match self {
            Self::Broker(broker) => broker.last_on(&object::chunk(id, index)).await,
            Self::Bucket(bucket) => {
                let (piece, begin) = (index * CHUNK_BYTES / s3::PIECE_BYTES, index * CHUNK_BYTES % s3::PIECE_BYTES);
                bucket.get(&object::chunk(id, piece), Some(begin..begin + CHUNK_BYTES)).await
            }
        }
    }

    /// Deletes an object.
    ///
    /// # Errors
    /// If the store does not confirm it; then parts of it may be deleted.
    pub async fn remove(&self, id: &ObjectId) -> Result<(), ReadError> {
        self.remove_all(&object::of_object(id)).await.map(drop)
    }

    /// Deletes every object of a run: results of its calls, and unreferenced objects of its attempts. An attempt that
    /// has not ended may still store one, which is deleted by age. Returns whether there were any.
    ///
    /// # Errors
    /// As [`Self::remove`].
    pub async fn remove_run(&self, run: RunId) -> Result<bool, ReadError> {
        self.remove_all(&object::of_run(run)).await
    }

    /// The description of an upload; `None` if there is none, or it is incomplete.
    ///
    /// # Errors
    /// As [`Self::chunk`].
    pub async fn about(&self, id: &ObjectId) -> Result<Option<Upload>, ReadError> {
        let about = object::about(id);
        let about = match self {
            Self::Broker(broker) => broker.last_on(&about).await,
            Self::Bucket(bucket) => bucket.get(&about, None).await,
        };
        about?.map(|about| Upload::decode(about).map_err(|error| ReadError(error.to_string()))).transpose()
    }

    /// Stores the description of an upload, which completes it.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn put_about(&self, upload: &Upload) -> Result<(), StoreError> {
        self.put_at(object::about(&upload.object.id), upload.encode()).await
    }

    async fn put_at(&self, subject: String, data: Bytes) -> Result<(), StoreError> {
        match self {
            Self::Broker(broker) => broker.put(subject, data).await,
            Self::Bucket(bucket) => bucket.put(&subject, data).await,
        }
    }

    async fn remove_all(&self, subjects: &str) -> Result<bool, ReadError> {
        match self {
            Self::Broker(broker) => broker.remove_all(subjects).await,
            Self::Bucket(bucket) => bucket.remove_all(subjects).await,
        }
    }
}
