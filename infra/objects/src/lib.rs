//! Where objects lie: at the broker, or in a bucket of a store that speaks S3. Workers put pieces of results there, coordinators
//! put pieces of uploads, read chunk by chunk, and remove. Whoever uses it need not know which of the two it is.

mod nats;
mod s3;

use bytes::Bytes;
use proto::convert::object::Upload;
use proto::object::{self, CHUNK_BYTES};
use run::{ObjectId, RunId};

pub use s3::{Bucket, InvalidBucket, Place, Unfit};

/// Cheap to clone.
#[derive(Debug, Clone)]
pub enum Objects {
    /// Each chunk is a message of the stream `ty-objects`.
    Broker(nats::Stored),
    /// Several chunks are one object of the bucket.
    Bucket(Bucket),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotKept {
    #[error("the object store is full: nothing more is kept until something has aged out")]
    Full,
    #[error("the object store does not keep it: {0}")]
    Unavailable(String),
}

#[derive(Debug, Clone, thiserror::Error)]
#[error("the object store does not give it: {0}")]
pub struct Unread(String);

impl Objects {
    /// Bytes of each piece that is put but the last.
    #[must_use]
    pub fn piece_bytes(&self) -> usize {
        let bytes = match self {
            Self::Broker(_) => CHUNK_BYTES,
            Self::Bucket(_) => s3::PIECE_BYTES,
        };
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Pieces that whoever brings an object may have under way: what they take of memory.
    #[must_use]
    pub fn ahead(&self) -> usize {
        match self {
            Self::Broker(_) => 4,
            Self::Bucket(_) => 2,
        }
    }

    /// Stores a piece of an object. What lies there stays as it is, so a second copy does no harm.
    ///
    /// # Errors
    /// When there is no room, the store refuses it, or does not confirm it in time.
    pub async fn put(&self, id: &ObjectId, index: u64, piece: Bytes) -> Result<(), NotKept> {
        self.put_at(object::chunk(id, index), piece).await
    }

    /// A chunk of an object; `None` when there is none.
    ///
    /// # Errors
    /// When the store refuses it, or does not answer.
    pub async fn chunk(&self, id: &ObjectId, index: u64) -> Result<Option<Bytes>, Unread> {
        match self {
            Self::Broker(broker) => broker.last_on(&object::chunk(id, index)).await,
            Self::Bucket(bucket) => {
                let (piece, begin) = (index * CHUNK_BYTES / s3::PIECE_BYTES, index * CHUNK_BYTES % s3::PIECE_BYTES);
                bucket.get(&object::chunk(id, piece), Some(begin..begin + CHUNK_BYTES)).await
            }
        }
    }

    /// Removes what lies under an id.
    ///
    /// # Errors
    /// When the store does not say that it did; then some of it may be gone.
    pub async fn remove(&self, id: &ObjectId) -> Result<(), Unread> {
        self.remove_all(&object::of_object(id)).await
    }

    /// Removes every object of a run: results of its calls, and what attempts stored to which nothing refers. An attempt that has
    /// not ended may still store one; that goes with its age.
    ///
    /// # Errors
    /// As [`Self::remove`].
    pub async fn remove_run(&self, run: RunId) -> Result<(), Unread> {
        self.remove_all(&object::of_run(run)).await
    }

    /// What an upload is; `None` where there is none, or not all of it.
    ///
    /// # Errors
    /// As [`Self::chunk`].
    pub async fn about(&self, id: &ObjectId) -> Result<Option<Upload>, Unread> {
        let about = object::about(id);
        let about = match self {
            Self::Broker(broker) => broker.last_on(&about).await,
            Self::Bucket(bucket) => bucket.get(&about, None).await,
        };
        about?.map(|about| Upload::decode(about).map_err(|error| Unread(error.to_string()))).transpose()
    }

    /// Says what an upload is. From here on it is one.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn put_about(&self, upload: &Upload) -> Result<(), NotKept> {
        self.put_at(object::about(&upload.object.id), upload.encode()).await
    }

    async fn put_at(&self, subject: String, data: Bytes) -> Result<(), NotKept> {
        match self {
            Self::Broker(broker) => broker.put(subject, data).await,
            Self::Bucket(bucket) => bucket.put(&subject, data).await,
        }
    }

    async fn remove_all(&self, subjects: &str) -> Result<(), Unread> {
        match self {
            Self::Broker(broker) => broker.remove_all(subjects).await,
            Self::Bucket(bucket) => bucket.remove_all(subjects).await,
        }
    }
}
