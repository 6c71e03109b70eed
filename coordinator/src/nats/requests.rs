//! The bucket of request ids: which run a request made. The first to take a key keeps it, for as long as the log is kept.

use std::time::Duration;

use async_nats::jetstream::kv;
use async_nats::jetstream::stream::LastRawMessageErrorKind;
use bytes::Bytes;
use prost::Message as _;
use proto::wire::v1 as wire;
use run::RunId;

use super::Broker;
use super::journal::ReadError;
use crate::requests::{RequestKey, Taken};

const VERSION: u32 = 1;
/// How long a key that is taken may take to be seen: a replica of the broker may be behind.
const LOOKS_MAX: u32 = 40;
const LOOK_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, Clone)]
pub(crate) struct Requests(pub(super) kv::Store);

impl Requests {
    pub(crate) fn new(broker: &Broker) -> Self {
        Self(broker.requests.clone())
    }

    /// Who took the key. May not see yet what was taken this very moment; [`Self::take`] does.
    pub(crate) async fn find(&self, key: &RequestKey) -> Result<Option<Taken>, ReadError> {
        let value = self.0.get(key.name()).await.map_err(|error| ReadError::new(&error))?;
        value.map(taken_in).transpose()
    }

    /// Takes the key, and says who has it: us, or whoever was faster.
    pub(crate) async fn take(&self, key: &RequestKey, taken: Taken) -> Result<Taken, ReadError> {
        let mut last = None;
        for _ in 0..LOOKS_MAX {
            match self.0.create(key.name(), taken_out(&taken)).await {
                Ok(_) => return Ok(taken),
                Err(error) => last = Some(error),
            }
            if let Some(earlier) = self.find(key).await? {
                return Ok(earlier);
            }
            tokio::time::sleep(LOOK_PAUSE).await;
        }
        Err(last.map_or_else(|| ReadError::new(&"the request id cannot be taken"), |error| ReadError::new(&error)))
    }

    /// Frees a key of a run that is erased. What somebody else took since under the same key stays. The leader is asked: a
    /// replica that is behind might not have it yet.
    pub(crate) async fn erase(&self, key: &RequestKey, run: RunId) -> Result<(), ReadError> {
        let subject = format!("{}{}", self.0.prefix, key.name());
        let message = match self.0.stream.get_last_raw_message_by_subject(&subject).await {
            Ok(message) => message,
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => return Ok(()),
            Err(error) => return Err(ReadError::new(&error)),
        };
        if taken_in(message.payload)?.run != run {
            return Ok(());
        }
        let purge = self.0.stream.purge().filter(subject).sequence(message.sequence + 1).await;
        purge.map(|_| ()).map_err(|error| ReadError::new(&error))
    }
}

fn taken_out(taken: &Taken) -> Bytes {
    let digest = Bytes::copy_from_slice(&taken.digest);
    wire::TakenRequest { version: VERSION, run_id: taken.run.to_string(), digest }.encode_to_vec().into()
}

fn taken_in(value: Bytes) -> Result<Taken, ReadError> {
    let wire = wire::TakenRequest::decode(value).map_err(|error| ReadError::new(&error))?;
    let run = wire.run_id.parse().map_err(|error| ReadError::new(&error))?;
    let digest = wire.digest.as_ref().try_into().map_err(|_| ReadError::new(&"a digest of a wrong length"))?;
    Ok(Taken { run, digest })
}
