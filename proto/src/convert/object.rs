//! Messages about objects besides the log: descriptions of uploads, and workers' requests for files of their calls.

use bytes::Bytes;
use prost::Message as _;
use run::{CallIndex, CallerName, Object, ObjectId, RunId, TenantId};

use super::worker::index_in;
use super::{InvalidMessage, VERSION, check_version, object_in, object_out};
use crate::wire::v1 as wire;

/// The description of an upload. It is stored when all chunks are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub object: Object,
    /// The tenant, if one was given.
    pub tenant: Option<TenantId>,
    /// The caller that uploaded it, if callers are known.
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

    /// Decodes the description.
    ///
    /// # Errors
    /// The message is not a description of an upload.
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

/// A worker's request for a chunk of a file of a call that it executes.
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

    /// Decodes the request.
    ///
    /// # Errors
    /// The message is not a request for a chunk.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire = wire::ChunkRequest::decode(payload)?;
        check_version(wire.version)?;
        let (run, call, object) = (wire.run_id.parse()?, index_in(wire.call)?, wire.object_id.parse()?);
        Ok(Self { run, call, object, chunk: wire.chunk })
    }
}

/// The reply to a request for a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChunkReply {
    Data(Bytes),
    /// The request is rejected for this reason.
    Refused(String),
    /// The owner does not know yet; the worker repeats the request.
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

    /// Decodes the reply.
    ///
    /// # Errors
    /// The message is not a reply to a request for a chunk.
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
