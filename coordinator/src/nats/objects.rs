//! The object store: chunks under their subjects, read one by one and never an object as a whole.

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{DirectGetErrorKind, LastRawMessageErrorKind, Stream};
use bytes::Bytes;
use proto::convert::object::Upload;
use proto::nats::objects::{NotKept, put, remove_run};
use proto::{names, object};
use run::{ObjectId, RunId};

use super::Broker;
use super::journal::ReadError;

#[derive(Debug, Clone)]
pub(crate) struct Objects(Context);

impl Objects {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self(broker.context.clone())
    }

    /// A chunk of an object; `None` when there is none.
    pub(crate) async fn chunk(&self, id: &ObjectId, index: u64) -> Result<Option<Bytes>, ReadError> {
        self.last_on(&object::chunk(id, index)).await
    }

    pub(crate) async fn put(&self, id: &ObjectId, index: u64, chunk: Bytes) -> Result<(), NotKept> {
        put(&self.0, object::chunk(id, index), chunk, tokio::time::sleep).await
    }

    /// Removes what lies under an id.
    pub(crate) async fn remove(&self, id: &ObjectId) -> Result<(), ReadError> {
        let purged = self.stream().await?.purge().filter(object::of_object(id)).await;
        purged.map(|_| ()).map_err(|error| ReadError::new(&error))
    }

    /// Removes all that workers stored of a run.
    pub(crate) async fn remove_run(&self, run: RunId) -> Result<(), ReadError> {
        remove_run(&self.0, run).await.map_err(|error| ReadError::new(&error))
    }

    /// What an upload is; `None` where there is none, or not all of it.
    pub(crate) async fn about(&self, id: &ObjectId) -> Result<Option<Upload>, ReadError> {
        let about = self.last_on(&object::about(id)).await?;
        about.map(|about| Upload::decode(about).map_err(|error| ReadError::new(&error))).transpose()
    }

    /// Says what an upload is. From here on it is one.
    pub(crate) async fn put_about(&self, upload: &Upload) -> Result<(), NotKept> {
        put(&self.0, object::about(&upload.object.id), upload.encode(), tokio::time::sleep).await
    }

    async fn last_on(&self, subject: &str) -> Result<Option<Bytes>, ReadError> {
        let stream = self.stream().await?;
        match stream.direct_get_last_for_subject(subject).await {
            Ok(message) => return Ok(Some(message.payload)),
            // A replica may be behind; the leader is not.
            Err(error) if error.kind() == DirectGetErrorKind::NotFound => {}
            Err(error) => return Err(ReadError::new(&error)),
        }
        match stream.get_last_raw_message_by_subject(subject).await {
            Ok(message) => Ok(Some(message.payload)),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(ReadError::new(&error)),
        }
    }

    async fn stream(&self) -> Result<Stream<()>, ReadError> {
        self.0.get_stream_no_info(names::OBJECTS).await.map_err(|error| ReadError::new(&error))
    }
}
