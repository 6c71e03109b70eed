//! Objects: payloads that are too large for the log and stored beside it, and the reference to them in the log.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::id::{CallIndex, InvalidId, Nonce, PoolId, RunId};

/// The id of an object. Objects of a run begin with the run's id: they are found by it, and erased with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ObjectId {
    /// A part of a call's result; by a worker of the pool.
    Result { run: RunId, call: CallIndex, pool: PoolId, nonce: Nonce },
    /// By a caller.
    Upload(Uuid),
}

impl ObjectId {
    const KIND: &'static str = "object id";
    const EXPECTED: &'static str =
        "a run's id, a call's index, a pool and sixteen hexadecimal digits with dots between them, or upl_ and a uuid";
    const UPLOAD: &'static str = "upl_";
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Result { run, call, pool, nonce: Nonce(nonce) } => write!(f, "{run}.{call}.{pool}.{nonce:016x}"),
            Self::Upload(uuid) => write!(f, "{}{}", Self::UPLOAD, uuid.simple()),
        }
    }
}

impl FromStr for ObjectId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId::new(Self::KIND, text, Self::EXPECTED);
        let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if let Some(uuid) = text.strip_prefix(Self::UPLOAD) {
            let canonical = uuid.len() == 32 && is_hex(uuid);
            return canonical.then(|| Uuid::try_parse(uuid).ok()).flatten().map(Self::Upload).ok_or_else(invalid);
        }
        let mut tokens = text.split('.');
        let [Some(run), Some(call), Some(pool), Some(nonce), None] = [(); 5].map(|()| tokens.next()) else {
            return Err(invalid());
        };
        let nonce = Some(nonce).filter(|nonce| nonce.len() == 16 && is_hex(nonce));
        Ok(Self::Result {
            run: run.parse().map_err(|_| invalid())?,
            call: call.parse().map_err(|_| invalid())?,
            pool: pool.parse().map_err(|_| invalid())?,
            nonce: Nonce(nonce.and_then(|nonce| u64::from_str_radix(nonce, 16).ok()).ok_or_else(invalid)?),
        })
    }
}

/// The reference to an object in the log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    pub id: ObjectId,
    pub media_type: String,
    /// Bytes of the object.
    pub size: u64,
    pub sha256: [u8; 32],
    /// What a model sees instead of it: the beginning of a text, and a note about the rest.
    pub preview: String,
}

/// A file that a call may open.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct File {
    /// The name by which its tool opens it.
    pub name: String,
    /// Without a preview.
    pub object: Object,
}

impl File {
    /// Approximate bytes of its reference in the log: names, ids and numbers.
    #[must_use]
    pub fn size(&self) -> usize {
        const REST: usize = 256;
        self.name.len() + self.object.media_type.len() + REST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_back_as_they_were_written() {
        let run = "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f";
        for text in [format!("{run}.3.main.00000000000000ff"), "upl_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".to_owned()] {
            assert_eq!(text.parse::<ObjectId>().expect(&text).to_string(), text);
        }
        let garbage = [
            String::new(),
            run.to_owned(),
            format!("{run}.3.main"),
            format!("{run}.3.main.ff"),
            format!("{run}.3.main.+0000000000000ff"),
            format!("{run}.3.ma>in.00000000000000ff"),
            format!("{run}.*.main.00000000000000ff"),
            format!("{run}.3.main.00000000000000ff.0"),
            "upl_".to_owned(),
            "upl_01980F3C2A5B7C3E8D4F5A6B7C8D9E0F".to_owned(),
        ];
        for text in garbage {
            text.parse::<ObjectId>().expect_err(&text);
        }
    }
}
