//! Records: small values that outlive their calls. Each pool has records of its own, and of each tenant's calls. They
//! lie at the broker, so all workers of the pool see the same ones, and no crash loses a confirmed write.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use proto::convert::record::{RecordKey, RecordOperation, RecordReply, RecordRequest, VALUE_BYTES_MAX};
use run::{CallError, ErrorKind};

pub use proto::convert::record::{Record, RecordPage};

use crate::context::Context;
use crate::error::ToolError;

type Asking = Pin<Box<dyn Future<Output = Result<RecordReply, String>> + Send>>;

/// Where the records of a call are.
#[derive(Clone)]
pub struct RecordStore(Arc<dyn Fn(RecordRequest) -> Asking + Send + Sync>);

impl RecordStore {
    /// A store that performs requests with this function.
    pub fn new(ask: impl Fn(RecordRequest) -> Asking + Send + Sync + 'static) -> Self {
        Self(Arc::new(ask))
    }
}

impl fmt::Debug for RecordStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecordStore")
    }
}

/// Why an operation on a record failed. It is no [`std::error::Error`], so that `?` in a tool keeps whether another
/// attempt may succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordError {
    /// The key is malformed, or the value too large.
    Invalid(String),
    /// The record has this revision, and not the one that was named; 0 if there is no record.
    Conflict(u64),
    /// There is no room for the record.
    Full(String),
    /// The call may not use records, because it has ended or a newer attempt executes it.
    Refused(String),
    /// No coordinator answered. The operation may have been performed.
    Unavailable(String),
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(reason) => f.write_str(reason),
            Self::Conflict(0) => f.write_str("there is no such record any more"),
            Self::Conflict(revision) => write!(f, "another call changed the record: its revision is {revision}"),
            Self::Full(reason) => write!(f, "there is no room for the record: {reason}"),
            Self::Refused(reason) => write!(f, "the records cannot be used: {reason}"),
            Self::Unavailable(reason) => write!(f, "the records cannot be reached: {reason}"),
        }
    }
}

impl From<RecordError> for ToolError {
    fn from(error: RecordError) -> Self {
        let message = error.to_string();
        match error {
            RecordError::Conflict(_) | RecordError::Unavailable(_) => Self::retryable(message),
            RecordError::Full(_) => Self::of_call(CallError::new(ErrorKind::ToolFailed, message)),
            RecordError::Invalid(_) | RecordError::Refused(_) => Self::new(message),
        }
    }
}

/// The records of a call's pool and tenant.
///
/// A write names the revision that it replaces, so of two calls that change the same revision one fails with
/// [`RecordError::Conflict`]. A write that the same call has made already, in an attempt before, succeeds without
/// effect.
#[derive(Debug, Clone, Copy)]
pub struct Records<'a>(&'a Context);

impl Context {
    /// Small values that outlive the call: those of its pool and its tenant.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records(self)
    }
}

impl Records<'_> {
    /// The record of a key of 1 to 128 of `A-Z a-z 0-9 _ - /`; `None` if there is none.
    ///
    /// # Errors
    /// If the key is malformed, or the records cannot be used.
    pub async fn get(&self, key: &str) -> Result<Option<Record>, RecordError> {
        let page = self.read(RecordOperation::Get(parsed(key)?)).await?;
        Ok(page.records.into_iter().next())
    }

    /// Writes a record of at most 64 KiB in place of this revision, 0 if there must be none. Returns its new revision.
    ///
    /// # Errors
    /// If the record has another revision, there is no room, the key is malformed, the value is too large, or the
    /// records cannot be used.
    pub async fn put(&self, key: &str, value: impl Into<Bytes>, revision: u64) -> Result<u64, RecordError> {
        let (key, value) = (parsed(key)?, value.into());
        if value.len() > VALUE_BYTES_MAX {
            let size = value.len();
            return Err(RecordError::Invalid(format!(
                "record {key} has {size} bytes, at most {VALUE_BYTES_MAX} are kept"
            )));
        }
        self.write(RecordOperation::Put { key, value, revision }).await
    }

    /// Deletes a record of this revision. One that is gone already is no error.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub async fn delete(&self, key: &str, revision: u64) -> Result<(), RecordError> {
        self.write(RecordOperation::Delete { key: parsed(key)?, revision }).await.map(drop)
    }

    /// The records whose keys begin with `prefix` and come after the key `after`, in the order of their keys: at most
    /// `limit`, 100, or 256 KiB.
    ///
    /// # Errors
    /// If the prefix is malformed, or the records cannot be used.
    pub async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<RecordPage, RecordError> {
        for text in [prefix, after] {
            if !RecordKey::may_begin_with(text) {
                return Err(RecordError::Invalid(format!("{text:?} is not the beginning of a key of a record")));
            }
        }
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        self.read(RecordOperation::List { prefix, after, limit }).await
    }

    async fn read(&self, operation: RecordOperation) -> Result<RecordPage, RecordError> {
        match self.ask(operation).await? {
            RecordReply::Page(page) => Ok(page),
            other => Err(unexpected(&other)),
        }
    }

    async fn write(&self, operation: RecordOperation) -> Result<u64, RecordError> {
        match self.ask(operation).await? {
            RecordReply::Stored(revision) => Ok(revision),
            other => Err(unexpected(&other)),
        }
    }

    async fn ask(&self, operation: RecordOperation) -> Result<RecordReply, RecordError> {
        let execution = &self.0.execution;
        let (run, call, attempt) = (execution.run, execution.index, execution.attempt);
        let reply = (execution.records.0)(RecordRequest { run, call, attempt, operation }).await;
        match reply.map_err(RecordError::Unavailable)? {
            RecordReply::Conflict(revision) => Err(RecordError::Conflict(revision)),
            RecordReply::Full(reason) => Err(RecordError::Full(reason)),
            RecordReply::Refused(reason) => Err(RecordError::Refused(reason)),
            reply @ (RecordReply::Page(_) | RecordReply::Stored(_) | RecordReply::AskAgain) => Ok(reply),
        }
    }
}

fn parsed(key: &str) -> Result<RecordKey, RecordError> {
    key.parse().map_err(|error: proto::convert::record::InvalidRecordKey| RecordError::Invalid(error.to_string()))
}

fn unexpected(reply: &RecordReply) -> RecordError {
    RecordError::Unavailable(format!("the coordinator answered something else: {reply:?}"))
}
