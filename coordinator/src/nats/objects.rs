//! The object store: chunks under their subjects, read one by one and never an object as a whole.

use async_nats::jetstream::Context;
use async_nats::jetstream::stream::{DirectGetErrorKind, LastRawMessageErrorKind, Stream};
use bytes::Bytes;
use proto::{names, object};
use run::ObjectId;

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
