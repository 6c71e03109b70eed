//! The context of a call: its metadata, and the means to send output.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use run::{
    AttemptNumber, CallId, CallIndex, CallSpec, CallerName, Chunk, ChunkIndex, Content, Progress, Requester, Roles,
    RunId, TenantId, ToolName, limit,
};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::ToolError;
use crate::files::Source;
use crate::limits::label_size;
use crate::objects::ObjectSink;
use crate::question::Asker;
use crate::records::RecordStore;

/// What a call knows of itself, and how it speaks.
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) execution: Execution,
    /// The number of chunks that were sent, counted for interceptors.
    pub(crate) said: Option<Arc<AtomicU32>>,
}

/// One execution of a call, as the executing program sets it up.
#[derive(Debug, Clone)]
pub struct Execution {
    pub run: RunId,
    pub index: CallIndex,
    pub call: Arc<CallSpec>,
    /// Who asked for the run; `None` if the coordinator does not say it.
    pub requester: Option<Requester>,
    pub attempt: AttemptNumber,
    /// The chunk to go on with.
    pub from: ChunkIndex,
    /// When the attempt must have ended, beside the time in which it waits for answers.
    pub deadline: Instant,
    /// When the call must have ended.
    pub call_deadline: Instant,
    pub stop: Stop,
    /// Receives the tool's output, one chunk after another.
    pub output: mpsc::Sender<Chunk>,
    /// The source of its files.
    pub source: Source,
    /// Its way to ask its client.
    pub asker: Asker,
    /// The records of its pool and its tenant.
    pub records: RecordStore,
    /// Whether its run is stored, or nothing is kept after the run's end.
    pub is_stored: bool,
    /// The store for parts of its result; `None` if its result must be inline.
    pub objects: Option<ObjectSink>,
}

impl From<Execution> for Context {
    fn from(execution: Execution) -> Self {
        Self { execution, said: None }
    }
}

/// A request to stop a tool, whether the tool has noticed it, and processes that it leaves behind.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    pub wanted: CancellationToken,
    pub noticed: CancellationToken,
    pub left: Left,
}

/// Processes and other work that outlive a tool's future.
#[derive(Debug, Clone, Default)]
pub struct Left {
    /// Ends when nothing of it lives.
    living: TaskTracker,
    /// Something may still run, and this cannot be determined.
    unknown: CancellationToken,
}

impl Left {
    /// The call is not over before this is.
    pub fn keep(&self, gone: impl Future<Output = ()> + Send + 'static, runtime: &Handle) {
        drop(self.living.spawn_on(gone, runtime));
    }

    /// Something may still run that cannot be observed.
    pub fn note_unknown(&self) {
        self.unknown.cancel();
    }

    pub fn is_living(&self) -> bool {
        !self.living.is_empty()
    }

    /// As far as this can be determined.
    pub fn may_live(&self) -> bool {
        self.is_living() || self.unknown.is_cancelled()
    }

    /// Resolves when nothing that is known of lives.
    pub async fn gone(&self) {
        self.living.close();
        self.living.wait().await;
    }
}

impl Context {
    #[must_use]
    pub fn run_id(&self) -> RunId {
        self.execution.run
    }

    /// The caller's id of the call. With the run's id it is the same for every attempt: use both as an idempotency key.
    #[must_use]
    pub fn call_id(&self) -> &CallId {
        &self.execution.call.id
    }

    #[must_use]
    pub fn tool(&self) -> &ToolName {
        &self.execution.call.tool
    }

    /// Which attempt this is, from 1.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.execution.attempt.0
    }

    /// For whom the call is: tenant, caller and roles. `None` if the coordinator is of a release that does not send it,
    /// which is not the same as a run without a tenant.
    #[must_use]
    pub fn requester(&self) -> Option<&Requester> {
        self.execution.requester.as_ref()
    }

    /// The tenant of the run, if it has one. A coordinator with `--auth` vouches for it: it is the caller's own, or an
    /// admin named it. Without `--auth` it is what the request named.
    #[must_use]
    pub fn tenant(&self) -> Option<&TenantId> {
        self.requester()?.tenant.as_ref()
    }

    /// The caller who opened the run, as the coordinator authenticated it: its name in the file of callers, and after a
    /// slash the subject of its token. Nothing in a request can change it. `None` without `--auth`, and for calls of
    /// some runs if the coordinator is of a release that does not send it.
    #[must_use]
    pub fn caller(&self) -> Option<&CallerName> {
        self.requester()?.caller.as_ref()
    }

    /// The roles that the caller had when the run was opened; none if [`Self::caller`] is `None`. They stay the same
    /// for all attempts, and for calls that are added to the run.
    #[must_use]
    pub fn roles(&self) -> Roles {
        self.requester().map(|requester| requester.roles).unwrap_or_default()
    }

    /// Metadata from the caller for the tool, which the model neither sees nor sets.
    #[must_use]
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.execution.call.metadata
    }

    /// The number of chunks (progress included) that earlier attempts delivered: this attempt should continue after
    /// them. Always 0 unless the tool has [`AfterPartialOutput::Continue`](crate::AfterPartialOutput::Continue).
    #[must_use]
    pub fn continue_from(&self) -> u32 {
        self.execution.from.0
    }

    /// When the attempt must have ended. It moves while the tool waits for an answer to [`Self::ask`].
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let waited = self.execution.asker.waits().now().total();
        (self.execution.deadline + waited).min(self.execution.call_deadline)
    }

    /// When the call must have ended, whichever attempt it is in.
    #[must_use]
    pub fn call_deadline(&self) -> Instant {
        self.execution.call_deadline
    }

    /// Resolves when the call should stop: it was cancelled, is overdue, or its worker lost its lease.
    pub async fn cancelled(&self) {
        self.execution.stop.wanted.cancelled().await;
        self.execution.stop.noticed.cancel();
    }

    /// Registers work that outlives the tool's future.
    #[must_use]
    pub fn left(&self) -> Left {
        self.execution.stop.left.clone()
    }

    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        let wanted = self.execution.stop.wanted.is_cancelled();
        if wanted {
            self.execution.stop.noticed.cancel();
        }
        wanted
    }

    /// Sends a piece of text. Waits while the broker is slower than the tool.
    ///
    /// # Errors
    /// When the attempt is over; the tool should return.
    pub async fn text(&self, text: impl Into<String>) -> Result<(), ToolError> {
        self.text_on("", text).await
    }

    /// Sends a piece of text on a named channel, for example `stderr`.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub async fn text_on(&self, channel: &str, text: impl Into<String>) -> Result<(), ToolError> {
        let text = text.into();
        if text.len() <= limit::CHUNK_BYTES_MAX {
            return self.say(channel, Content::Text(text)).await;
        }
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let mut cut = rest.len().min(limit::CHUNK_BYTES_MAX);
            while !rest.is_char_boundary(cut) {
                cut -= 1;
            }
            let (piece, tail) = rest.split_at(cut);
            self.say(channel, Content::Text(piece.to_owned())).await?;
            rest = tail;
        }
        Ok(())
    }

    /// Sends a JSON value of at most 64 KiB.
    ///
    /// # Errors
    /// As [`Self::text`], and when the value does not serialize or is too large.
    pub async fn json(&self, value: &impl Serialize) -> Result<(), ToolError> {
        self.json_on("", value).await
    }

    /// As [`Self::json`], on a channel of its own.
    ///
    /// # Errors
    /// As [`Self::json`].
    pub async fn json_on(&self, channel: &str, value: &impl Serialize) -> Result<(), ToolError> {
        self.say(channel, Content::Json(serde_json::to_string(value)?)).await
    }

    /// Sends at most 64 KiB of bytes.
    ///
    /// # Errors
    /// As [`Self::text`], and when there are too many.
    pub async fn data(&self, media_type: &str, data: impl Into<Bytes>) -> Result<(), ToolError> {
        self.data_on("", media_type, data).await
    }

    /// As [`Self::data`], on a channel of its own, as `stderr`.
    ///
    /// # Errors
    /// As [`Self::data`].
    pub async fn data_on(&self, channel: &str, media_type: &str, data: impl Into<Bytes>) -> Result<(), ToolError> {
        self.say(channel, Content::Data { media_type: media_type.to_owned(), data: data.into() }).await
    }

    /// Reports the progress of the call, in units of its own.
    ///
    /// # Errors
    /// As [`Self::text`].
    pub async fn progress(&self, done: f64, total: Option<f64>, message: impl Into<String>) -> Result<(), ToolError> {
        self.send(Chunk::Progress(Progress { done, total, message: message.into() })).await
    }

    /// Resolves when half of the room for output is free, or the attempt is over. A tool that tries to send without
    /// waiting, because each wait is costly, waits here once for many pieces.
    pub async fn room(&self) {
        let output = &self.execution.output;
        // The permits are given back at once.
        drop(output.reserve_many(output.max_capacity().div_ceil(2)).await);
    }

    /// Runs a future to its end from a tool that is not async: `context.block_on(context.text("…"))?`.
    ///
    /// # Panics
    /// In an async tool, because its thread must not be blocked.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        Handle::current().block_on(future)
    }

    /// Sends a chunk; text is split into pieces of 64 KiB.
    pub(crate) async fn chunk(&self, chunk: Chunk) -> Result<(), ToolError> {
        match chunk {
            Chunk::Content { channel, content: Content::Text(text) } => self.text_on(&channel, text).await,
            Chunk::Content { channel, content } => self.say(&channel, content).await,
            Chunk::Progress(_) => self.send(chunk).await,
        }
    }

    pub(crate) fn said(&self) -> u32 {
        self.said.as_ref().map_or(0, |said| said.load(Ordering::Relaxed))
    }

    async fn say(&self, channel: &str, content: Content) -> Result<(), ToolError> {
        let size = content.size();
        if size > limit::CHUNK_BYTES_MAX {
            let limit = limit::CHUNK_BYTES_MAX;
            return Err(ToolError::new(format!(
                "a piece of output is {size} bytes, at most {limit} are taken: split it"
            )));
        }
        self.send(Chunk::Content { channel: channel.to_owned(), content }).await
    }

    async fn send(&self, chunk: Chunk) -> Result<(), ToolError> {
        if label_size(&chunk) > limit::LABEL_BYTES_MAX {
            let limit = limit::LABEL_BYTES_MAX;
            return Err(ToolError::new(format!(
                "a channel, media type or progress message is longer than {limit} bytes"
            )));
        }
        if let Some(said) = &self.said {
            said.fetch_add(1, Ordering::Relaxed);
        }
        self.execution.output.send(chunk).await.map_err(|_| ToolError::new("the attempt is over"))
    }
}
