//! Messages about the records of tools: workers' requests, their replies, and the values in the bucket.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use prost::Message as _;
use run::{AttemptNumber, CallIndex, RunId};

use super::worker::index_in;
use super::{InvalidMessage, VERSION, check_version};
use crate::wire::v1 as wire;

/// Bytes of the longest key of a record.
pub const KEY_BYTES_MAX: usize = 128;
/// Bytes of the largest value of a record.
pub const VALUE_BYTES_MAX: usize = 64 * 1024;
/// The most records of a page. A page ends earlier if its values take [`PAGE_BYTES_MAX`].
pub const PAGE_RECORDS_MAX: usize = 100;
/// Bytes of values after which a page ends. With one more value it still fits a message of the broker.
pub const PAGE_BYTES_MAX: usize = 256 * 1024;

/// The key of a record: 1 to 128 of `A-Z a-z 0-9 _ - /`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey(String);

/// A text is no key of a record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a key of a record: give 1 to {KEY_BYTES_MAX} of A-Z a-z 0-9 _ - /")]
pub struct InvalidRecordKey(String);

impl RecordKey {
    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a text may be the beginning of a key; the empty one is.
    #[must_use]
    pub fn may_begin_with(text: &str) -> bool {
        text.len() <= KEY_BYTES_MAX && text.bytes().all(is_of_key)
    }
}

fn is_of_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'/')
}

impl FromStr for RecordKey {
    type Err = InvalidRecordKey;

    fn from_str(text: &str) -> Result<Self, InvalidRecordKey> {
        if text.is_empty() || !Self::may_begin_with(text) {
            let shown: String = text.chars().take(KEY_BYTES_MAX).collect();
            return Err(InvalidRecordKey(shown));
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A worker's request for records of its pool and of the tenant of a call that it executes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordRequest {
    /// The run.
    pub run: RunId,
    /// The call.
    pub call: CallIndex,
    /// The attempt that executes the call.
    pub attempt: AttemptNumber,
    /// The operation.
    pub operation: RecordOperation,
}

/// An operation on records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordOperation {
    /// Reads a record.
    Get(RecordKey),
    /// Writes a record.
    Put {
        /// Its key.
        key: RecordKey,
        /// Its new value.
        value: Bytes,
        /// The revision that it replaces; 0 if there must be none.
        revision: u64,
    },
    /// Deletes a record.
    Delete {
        /// Its key.
        key: RecordKey,
        /// The revision that is deleted.
        revision: u64,
    },
    /// Reads some records, in the order of their keys.
    List {
        /// The beginning of their keys.
        prefix: String,
        /// Only keys after this one.
        after: String,
        /// The most records.
        limit: usize,
    },
}

/// A record, as the call that reads it sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its key.
    pub key: RecordKey,
    /// Its value.
    pub value: Bytes,
    /// Its revision, which every write changes.
    pub revision: u64,
    /// The call that reads it has written this revision, in this attempt or in one before.
    pub is_own: bool,
}

/// Some records, in the order of their keys.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordPage {
    /// The records.
    pub records: Vec<Record>,
    /// More records follow the last one.
    pub more: bool,
}

/// The reply to a request for records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordReply {
    /// The records that were read. Of a get: none or one.
    Page(RecordPage),
    /// The write or the deletion is stored; the revision of the written record, 0 for a deletion.
    Stored(u64),
    /// The record has this revision, and not the one that the request names; 0 if there is no record.
    Conflict(u64),
    /// There is no room, and why.
    Full(String),
    /// The request is rejected for this reason.
    Refused(String),
    /// The owner does not know yet; the worker repeats the request.
    AskAgain,
}

/// The value of a record in the bucket, and the call that wrote it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRecord {
    /// The value.
    pub value: Bytes,
    /// The run.
    pub run: RunId,
    /// The call.
    pub call: CallIndex,
}

impl RecordRequest {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        use wire::record_request::Operation;
        let operation = match &self.operation {
            RecordOperation::Get(key) => Operation::Get(wire::RecordGet { key: key.to_string() }),
            RecordOperation::Put { key, value, revision } => {
                Operation::Put(wire::RecordPut { key: key.to_string(), value: value.clone(), revision: *revision })
            }
            RecordOperation::Delete { key, revision } => {
                Operation::Delete(wire::RecordDelete { key: key.to_string(), revision: *revision })
            }
            RecordOperation::List { prefix, after, limit } => Operation::List(wire::RecordList {
                prefix: prefix.clone(),
                after: after.clone(),
                limit: u32::try_from(*limit).unwrap_or(u32::MAX),
            }),
        };
        wire::RecordRequest {
            version: VERSION,
            run_id: self.run.to_string(),
            call: u32::from(self.call.0),
            attempt: self.attempt.0,
            operation: Some(operation),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the request.
    ///
    /// # Errors
    /// The message is not a request for records.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        use wire::record_request::Operation;
        let wire = wire::RecordRequest::decode(payload)?;
        check_version(wire.version)?;
        let (run, call, attempt) = (wire.run_id.parse()?, index_in(wire.call)?, AttemptNumber(wire.attempt));
        let operation = match wire.operation.ok_or(InvalidMessage::Missing("the operation on records"))? {
            Operation::Get(get) => RecordOperation::Get(key_in(&get.key)?),
            Operation::Put(put) if put.value.len() > VALUE_BYTES_MAX => {
                return Err(InvalidMessage::Missing("a value of at most 64 KiB"));
            }
            Operation::Put(put) => {
                RecordOperation::Put { key: key_in(&put.key)?, value: put.value, revision: put.revision }
            }
            Operation::Delete(delete) => {
                RecordOperation::Delete { key: key_in(&delete.key)?, revision: delete.revision }
            }
            Operation::List(list) => {
                if !RecordKey::may_begin_with(&list.prefix) || !RecordKey::may_begin_with(&list.after) {
                    return Err(InvalidMessage::Missing("the beginning of a key of a record"));
                }
                let limit = usize::try_from(list.limit).unwrap_or(PAGE_RECORDS_MAX).clamp(1, PAGE_RECORDS_MAX);
                RecordOperation::List { prefix: list.prefix, after: list.after, limit }
            }
        };
        Ok(Self { run, call, attempt, operation })
    }
}

fn key_in(text: &str) -> Result<RecordKey, InvalidMessage> {
    text.parse().map_err(|_| InvalidMessage::Missing("the key of a record"))
}

impl RecordReply {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(self) -> Bytes {
        use wire::record_reply::Given;
        let given = match self {
            Self::Page(RecordPage { records, more }) => {
                let records = records.into_iter().map(|Record { key, value, revision, is_own }| wire::Record {
                    key: key.0,
                    value,
                    revision,
                    own: is_own,
                });
                Given::Page(wire::RecordPage { records: records.collect(), more })
            }
            Self::Stored(revision) => Given::Stored(revision),
            Self::Conflict(revision) => Given::Conflict(revision),
            Self::Full(reason) => Given::Full(reason),
            Self::Refused(reason) => Given::Refused(reason),
            Self::AskAgain => Given::AskAgain(wire::AskAgain {}),
        };
        wire::RecordReply { version: VERSION, given: Some(given) }.encode_to_vec().into()
    }

    /// Decodes the reply.
    ///
    /// # Errors
    /// The message is not a reply to a request for records.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        use wire::record_reply::Given;
        let wire = wire::RecordReply::decode(payload)?;
        check_version(wire.version)?;
        Ok(match wire.given.ok_or(InvalidMessage::Missing("the records"))? {
            Given::Page(page) => {
                let record = |it: wire::Record| {
                    let key = key_in(&it.key)?;
                    Ok(Record { key, value: it.value, revision: it.revision, is_own: it.own })
                };
                let records = page.records.into_iter().map(record).collect::<Result<_, InvalidMessage>>()?;
                Self::Page(RecordPage { records, more: page.more })
            }
            Given::Stored(revision) => Self::Stored(revision),
            Given::Conflict(revision) => Self::Conflict(revision),
            Given::Full(reason) => Self::Full(reason),
            Given::Refused(reason) => Self::Refused(reason),
            Given::AskAgain(_) => Self::AskAgain,
        })
    }
}

impl StoredRecord {
    /// The bytes of the message.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        wire::StoredRecord {
            version: VERSION,
            value: self.value.clone(),
            run_id: self.run.to_string(),
            call: u32::from(self.call.0),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes the value.
    ///
    /// # Errors
    /// The message is not the value of a record.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire = wire::StoredRecord::decode(payload)?;
        check_version(wire.version)?;
        Ok(Self { value: wire.value, run: wire.run_id.parse()?, call: index_in(wire.call)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(operation: RecordOperation) -> RecordRequest {
        let run = "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().expect("an id");
        RecordRequest { run, call: CallIndex(1), attempt: AttemptNumber(2), operation }
    }

    #[test]
    fn messages_about_records_are_read_as_they_were_written() {
        let key: RecordKey = "task/1".parse().expect("a key");
        let value = Bytes::from_static(b"{}");
        for operation in [
            RecordOperation::Get(key.clone()),
            RecordOperation::Put { key: key.clone(), value: value.clone(), revision: 7 },
            RecordOperation::Delete { key: key.clone(), revision: 7 },
            RecordOperation::List { prefix: "task/".to_owned(), after: "task/0".to_owned(), limit: 3 },
        ] {
            let request = request(operation);
            assert_eq!(RecordRequest::decode(request.encode()).expect("one"), request);
        }
        let record = Record { key, value: value.clone(), revision: 7, is_own: true };
        for reply in [
            RecordReply::Page(RecordPage { records: vec![record], more: true }),
            RecordReply::Stored(8),
            RecordReply::Conflict(0),
            RecordReply::Full("full".to_owned()),
            RecordReply::Refused("no".to_owned()),
            RecordReply::AskAgain,
        ] {
            assert_eq!(RecordReply::decode(reply.clone().encode()).expect("one"), reply);
        }
        let stored = StoredRecord {
            value,
            run: request(RecordOperation::Get("a".parse().expect("a key"))).run,
            call: CallIndex(3),
        };
        assert_eq!(StoredRecord::decode(stored.encode()).expect("one"), stored);
    }

    #[test]
    fn keys_have_letters_digits_dashes_and_slashes_only() {
        for good in ["a", "task/1", "A_b-9/", &"k".repeat(KEY_BYTES_MAX)] {
            assert!(good.parse::<RecordKey>().is_ok(), "{good}");
        }
        for bad in ["", "a b", "a.b", "a*", ">", "ä", "a\n", &"k".repeat(KEY_BYTES_MAX + 1)] {
            assert!(bad.parse::<RecordKey>().is_err(), "{bad}");
        }
    }

    #[test]
    fn requests_beyond_the_limits_are_refused_or_cut() {
        let key: RecordKey = "a".parse().expect("a key");
        let value = Bytes::from(vec![0; VALUE_BYTES_MAX + 1]);
        let large = request(RecordOperation::Put { key, value, revision: 0 });
        assert!(RecordRequest::decode(large.encode()).is_err());
        let list =
            |prefix: &str, limit| RecordOperation::List { prefix: prefix.to_owned(), after: String::new(), limit };
        assert!(RecordRequest::decode(request(list("a.b", 1)).encode()).is_err());
        let cut = RecordRequest::decode(request(list("a", 10_000)).encode()).expect("one");
        assert_eq!(cut.operation, list("a", PAGE_RECORDS_MAX));
    }
}
