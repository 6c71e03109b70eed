//! What is said of objects besides the log: what an upload is, and what workers ask for of their calls' files.

use bytes::Bytes;
use prost::Message as _;
use run::{CallIndex, CallerName, Object, ObjectId, RunId, TenantId};

use super::worker::index_in;
use super::{InvalidMessage, VERSION, check_version, object_in, object_out};
use crate::wire::v1 as wire;

/// What an upload is. Stored when all of it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub object: Object,
    /// For whom it is, where that was said.
    pub tenant: Option<TenantId>,
    /// Who brought it, where callers are known.
    pub caller: Option<CallerName>,
}

impl Upload {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        wire::Upload {
            version: VERSION,
            object: Some(object_out(&self.object)),
            tenant: self.tenant.as_ref().map(ToString::to_string).unwrap_or_default(),
            caller: self.caller.as_ref().map(ToString::to_string).unwrap_or_default(),
        }
        .encode_to_vec()
        .into()
    }

    /// # Errors
    /// When the message is none.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire = wire::Upload::decode(payload)?;
        check_version(wire.version)?;
        let named = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        Ok(Self {
            object: object_in(wire.object.ok_or(InvalidMessage::Missing("the object"))?)?,
            tenant: named(&wire.tenant).map(|tenant| tenant.parse()).transpose()?,
            caller: named(&wire.caller).map(|caller| caller.parse()).transpose()?,
        })
    }
}

/// A worker wants a chunk of a file of a call that it executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkRequest {
    pub run: RunId,
    pub call: CallIndex,
    pub object: ObjectId,
    pub chunk: u64,
}

impl ChunkRequest {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        wire::ChunkRequest {
            version: VERSION,
            run_id: self.run.to_string(),
            call: u32::from(self.call.0),
            object_id: self.object.to_string(),
            chunk: self.chunk,
        }
        .encode_to_vec()
        .into()
    }

    /// # Errors
    /// When the message is none.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire = wire::ChunkRequest::decode(payload)?;
        check_version(wire.version)?;
        let (run, call, object) = (wire.run_id.parse()?, index_in(wire.call)?, wire.object_id.parse()?);
        Ok(Self { run, call, object, chunk: wire.chunk })
    }
}

/// What a worker gets that wants a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkReply {
    Data(Bytes),
    /// It does not get it, and why.
    Refused(String),
    /// The owner does not know yet.
    AskAgain,
}

impl ChunkReply {
    #[must_use]
    pub fn encode(self) -> Bytes {
        use wire::chunk_reply::Given;
        let given = match self {
            Self::Data(data) => Given::Data(data),
            Self::Refused(reason) => Given::Refused(reason),
            Self::AskAgain => Given::AskAgain(wire::AskAgain {}),
        };
        wire::ChunkReply { version: VERSION, given: Some(given) }.encode_to_vec().into()
    }

    /// # Errors
    /// When the message is none.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        use wire::chunk_reply::Given;
        let wire = wire::ChunkReply::decode(payload)?;
        check_version(wire.version)?;
        Ok(match wire.given.ok_or(InvalidMessage::Missing("the chunk"))? {
            Given::Data(data) => Self::Data(data),
            Given::Refused(reason) => Self::Refused(reason),
            Given::AskAgain(_) => Self::AskAgain,
        })
    }
}
