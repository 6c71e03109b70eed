//! Runs a tool without a broker, for tests of tools. It applies a worker's limits of arguments, output and results. It
//! does not enforce the deadline, and gives a cancelled tool unlimited time.
//!
//! ```
//! use toolyard_tool::{testkit, tool};
//!
//! /// Greets.
//! #[tool(read_only)]
//! async fn greet(name: String) -> String {
//!     format!("Hello, {name}!")
//! }
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() {
//! let called = testkit::call(Greet, serde_json::json!({ "name": "Ada" })).await;
//! assert_eq!(called.answer(), "Hello, Ada!");
//! # }
//! ```

mod records;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proto::convert::fields::fields_in;
use proto::convert::worker::UserAnswer;
use proto::elicitation::{Elicitation, Reply};
use proto::object::CHUNK_BYTES;
use ring::digest::{SHA256, digest};
use run::{
    AttemptNumber, CallError, CallIndex, CallSpec, Chunk, ChunkIndex, Completion, Content, ErrorKind, Fields, File,
    Manifest, Nonce, Object, ObjectId, Policy, Route, Timestamp, ToolName,
};
use serde_json::Value;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::context::{Context, Execution, Stop};
use crate::error::ToolError;
use crate::files::Source;
use crate::limits::{self, Said};
use crate::objects::ObjectSink;
use crate::output::Output;
use crate::question::Asker;
use crate::table::Table;
use crate::tool::Tool;

pub use records::Records;
pub use run::Requester;

/// Chunks that may wait to be received, as in a worker; then the tool waits.
const CHUNKS_WAITING_MAX: usize = 256;
const RUN: &str = "run_00_01890000000070008000000000000000";

/// Calls a tool and waits for its end.
///
/// # Panics
/// When the tool cannot be hosted, or panics.
pub async fn call<T: Tool>(tool: T, arguments: Value) -> Called {
    start(tool, arguments).end().await
}

/// Calls a tool that is to be watched or cancelled on its way.
///
/// # Panics
/// When the tool cannot be hosted.
pub fn start<T: Tool>(tool: T, arguments: Value) -> Call {
    start_in(&Table::new().host(tool).expect("the tool can be hosted"), T::NAME, arguments)
}

/// Calls a tool of a table, through its interceptors, and waits for its end.
///
/// # Panics
/// When the name is malformed, or the tool or an interceptor panics.
pub async fn call_in(table: &Table, tool: &str, arguments: Value) -> Called {
    start_in(table, tool, arguments).end().await
}

/// As [`call_in`], for a call that is to be watched or cancelled on its way.
///
/// # Panics
/// When the name is malformed.
pub fn start_in(table: &Table, tool: &str, arguments: Value) -> Call {
    start_with(table, tool, arguments, Beside::default())
}

/// Calls a tool of a table that is given a context, and waits for its end. It sees the keys that it declares.
///
/// # Panics
/// When the name is malformed, the context is no object, or the tool or an interceptor panics.
pub async fn call_given(table: &Table, tool: &str, arguments: Value, context: Value) -> Called {
    let given = fields_in(&context.to_string()).expect("a context is an object");
    start_with(table, tool, arguments, Beside { context: given, ..Beside::default() }).end().await
}

/// Calls a tool of a table that asks its client, and waits for its end. `answer` is what the client answers to each
/// question.
///
/// # Panics
/// As [`call_in`]. An answer that does not fit its question fails the question.
pub async fn call_answered(
    table: &Table,
    tool: &str,
    arguments: Value,
    answer: impl Fn(&Elicitation) -> Reply + Send + Sync + 'static,
) -> Called {
    let asker = Some(answering(answer));
    start_with(table, tool, arguments, Beside { asker, ..Beside::default() }).end().await
}

/// A client that answers each question of a call with this.
pub fn answering(answer: impl Fn(&Elicitation) -> Reply + Send + Sync + 'static) -> Asker {
    Asker::new(move |asked| {
        let question = Elicitation::of_arguments(&asked.arguments).expect("the test kit passes questions on unchanged");
        let reply = answer(&question).to_content();
        let answered = match question.read(std::slice::from_ref(&reply)) {
            Ok(_) => Ok(UserAnswer::Answered(Ok(vec![reply]))),
            Err(violations) => Err(format!("the answer of the test does not fit: {violations:?}")),
        };
        Box::pin(async { answered })
    })
}

/// Calls a tool of a table in a run that is not stored (`store: false`), and waits for its end.
///
/// # Panics
/// As [`call_in`].
pub async fn call_unstored(table: &Table, tool: &str, arguments: Value) -> Called {
    start_with(table, tool, arguments, Beside { is_unstored: true, ..Beside::default() }).end().await
}

/// Calls a tool of a table for this tenant and caller, and waits for its end. Other calls of the test kit have neither.
///
/// # Panics
/// As [`call_in`].
pub async fn call_for(table: &Table, tool: &str, arguments: Value, requester: Requester) -> Called {
    start_with(table, tool, arguments, Beside { requester, ..Beside::default() }).end().await
}

/// What a call has beside its arguments.
#[derive(Debug, Default)]
pub struct Beside {
    /// The caller's context; the call sees the keys that its tool declares.
    pub context: Fields,
    /// The files that it may open, by their names.
    pub files: Vec<(String, Bytes)>,
    /// The client that answers its questions; `None`: a question fails. See [`answering`].
    pub asker: Option<Asker>,
    /// Its run is not stored.
    pub is_unstored: bool,
    /// For whom it is.
    pub requester: Requester,
}

/// As [`start_in`], for a call that has something beside its arguments.
///
/// # Panics
/// When the name is malformed.
pub fn start_with(table: &Table, tool: &str, arguments: Value, beside: Beside) -> Call {
    let Beside { context: mut given, files, asker, is_unstored, requester } = beside;
    given.keep(manifest(table, tool).map_or(&[], |manifest| &manifest.context_keys));
    launch(table, (tool, arguments), given, |context| {
        context.execution.requester = Some(requester);
        if !files.is_empty() {
            give(context, files);
        }
        if let Some(asker) = asker {
            context.execution.asker = asker;
        }
        context.execution.is_stored = !is_unstored;
    })
}

/// Starts a call whose context is completed by `equip`.
fn launch(table: &Table, (tool, arguments): (&str, Value), given: Fields, equip: impl FnOnce(&mut Context)) -> Call {
    let timeout = manifest(table, tool).map_or(Policy::ATTEMPT_TIMEOUT, |manifest| manifest.policy.attempt_timeout);
    let name: ToolName = tool.parse().expect("a tool's name");
    let arguments = arguments.to_string();
    let prepared = table.prepare(&name, arguments.as_bytes());
    let (mut context, chunks) = context(name, arguments, timeout, given);
    equip(&mut context);
    let stop = context.execution.stop.wanted.clone();
    let task = match prepared {
        Ok(prepared) => prepared.spawn(&Handle::current(), context),
        Err(error) => tokio::spawn(async { Err(ToolError(error)) }),
    };
    Call { chunks, task, stop, said: Said::default(), too_much: false }
}

/// The reference to an object of the call.
fn object(nonce: u64, media_type: String, bytes: &Bytes) -> Object {
    let (run, pool) = (RUN.parse().expect("a run id"), "testkit".parse().expect("a pool's name"));
    let id = ObjectId::Result { run, call: CallIndex(0), pool, nonce: Nonce(nonce) };
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(digest(&SHA256, bytes).as_ref());
    Object { id, media_type, size: bytes.len() as u64, sha256, preview: String::new() }
}

/// Gives a call its files.
fn give(context: &mut Context, files: Vec<(String, Bytes)>) {
    let (mut spec, mut all) = ((*context.execution.call).clone(), HashMap::new());
    for ((name, bytes), nonce) in files.into_iter().zip(0..) {
        let object = object(nonce, "application/octet-stream".to_owned(), &bytes);
        all.insert(object.id.clone(), bytes);
        spec.files.push(File { name, object });
    }
    context.execution.call = Arc::new(spec);
    context.execution.source = Source::new(move |wanted| {
        let chunk = all.get(&wanted.object).map(|bytes| {
            let at = |chunk: u64| usize::try_from(chunk * CHUNK_BYTES).unwrap_or(usize::MAX).min(bytes.len());
            bytes.slice(at(wanted.chunk)..at(wanted.chunk + 1))
        });
        Box::pin(async { chunk.ok_or_else(|| "there is no such object".to_owned()) })
    });
}

/// As [`call_in`], for a call that may open these files.
///
/// # Panics
/// As [`call_in`].
pub async fn call_with(table: &Table, tool: &str, arguments: Value, files: &[(&str, &[u8])]) -> Called {
    let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), Bytes::copy_from_slice(bytes))).collect();
    start_with(table, tool, arguments, Beside { files, ..Beside::default() }).end().await
}

/// The context of a call, and its output.
pub(crate) fn context(
    tool: ToolName,
    arguments: String,
    timeout: Duration,
    given: Fields,
) -> (Context, mpsc::Receiver<Chunk>) {
    let (output, chunks) = mpsc::channel(CHUNKS_WAITING_MAX);
    let id = "call".parse().expect("a call id");
    let call = CallSpec { context: given, ..CallSpec::new(id, tool, arguments, Route::Client, Timestamp(u64::MAX)) };
    let execution = Execution {
        run: RUN.parse().expect("a run id"),
        index: CallIndex(0),
        call: Arc::new(call),
        requester: Some(Requester::default()),
        attempt: AttemptNumber(1),
        deadline: Instant::now() + timeout,
        call_deadline: Instant::now() + Policy::ATTEMPT_TIMEOUT.max(timeout),
        from: ChunkIndex(0),
        stop: Stop::default(),
        output,
        source: Source::new(|_| Box::pin(async { Err("the test kit was given none".to_owned()) })),
        asker: Asker::new(|_| Box::pin(async { Err("the test kit was given no answers".to_owned()) })),
        records: Records::default().store(),
        is_stored: true,
        objects: Some(ObjectSink::new(|media_type, data| {
            let stored = object(rand::random(), media_type, &data);
            Box::pin(async { Ok(stored) })
        })),
    };
    (execution.into(), chunks)
}

/// The manifest that a table advertises for one of its tools.
#[must_use]
pub fn manifest<'a>(table: &'a Table, tool: &str) -> Option<&'a Manifest> {
    table.manifests().find(|manifest| manifest.name.as_str() == tool)
}

/// A call on its way. Dropping it drops the tool's future, as a worker does that cannot wait any longer.
#[derive(Debug)]
pub struct Call {
    chunks: mpsc::Receiver<Chunk>,
    task: JoinHandle<Result<Output, ToolError>>,
    stop: CancellationToken,
    said: Said,
    too_much: bool,
}

impl Call {
    /// The next piece of output as it comes; `None` if there is no more, or the limit is exceeded.
    pub async fn chunk(&mut self) -> Option<Chunk> {
        let chunk = self.chunks.recv().await?;
        self.take(chunk)
    }

    /// Requests the tool to stop.
    pub fn cancel(&self) {
        self.stop.cancel();
    }

    /// Requests the tool to stop when it is cancelled.
    #[must_use]
    pub fn stop(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Waits for the end, with the output that was not yet received.
    ///
    /// # Panics
    /// When the tool does.
    pub async fn end(mut self) -> Called {
        let mut output = Vec::new();
        let ended = loop {
            tokio::select! {
                biased;
                Some(chunk) = self.chunks.recv(), if !self.too_much => output.extend(self.take(chunk)),
                ended = &mut self.task => break ended,
            }
        };
        while let (false, Ok(chunk)) = (self.too_much, self.chunks.try_recv()) {
            output.extend(self.take(chunk));
        }
        let result = match ended {
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Ok(_) | Err(_) if self.too_much => Err(limits::too_much_output()),
            Ok(Ok(output)) => limits::completion(output.0),
            Ok(Err(error)) => Err(error.0),
            Err(error) => Err(CallError::new(ErrorKind::ToolFailed, error.to_string())),
        };
        let (result, extra_state) = match result {
            Ok(Completion { result, extra_state }) => (Ok(result), extra_state),
            Err(error) => (Err(error), Fields::default()),
        };
        Called { output, result, extra_state }
    }

    fn take(&mut self, chunk: Chunk) -> Option<Chunk> {
        self.too_much = self.said.count(&chunk).is_none();
        if self.too_much {
            self.stop.cancel();
            self.chunks.close();
            self.task.abort();
        }
        (!self.too_much).then_some(chunk)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.stop.cancel();
        self.task.abort();
    }
}

/// A call that has ended.
#[derive(Debug)]
pub struct Called {
    pub output: Vec<Chunk>,
    pub result: Result<Vec<Content>, CallError>,
    extra_state: Fields,
}

impl Called {
    /// All text that was sent with [`Context::text`].
    #[must_use]
    pub fn text(&self) -> String {
        self.text_on("")
    }

    /// All text that was sent on a channel.
    #[must_use]
    pub fn text_on(&self, wanted: &str) -> String {
        let text = |chunk: &Chunk| match chunk {
            Chunk::Content { channel, content: Content::Text(text) } if channel == wanted => Some(text.clone()),
            Chunk::Content { .. } | Chunk::Progress(_) => None,
        };
        self.output.iter().filter_map(text).collect()
    }

    /// The result's text or JSON.
    ///
    /// # Panics
    /// When the call failed.
    #[must_use]
    #[track_caller]
    pub fn answer(&self) -> String {
        let parts = self.result.as_ref().expect("the call completed");
        let text = |content: &Content| match content {
            Content::Text(text) | Content::Json(text) => Some(text.clone()),
            Content::Object(object) => Some(object.preview.clone()),
            Content::Data { .. } => None,
        };
        parts.iter().filter_map(text).collect()
    }

    /// The call's value for the state of its run under this key.
    #[must_use]
    pub fn state(&self, key: &str) -> Option<Value> {
        serde_json::from_str(self.extra_state.get(key)?).ok()
    }

    /// The call's values for the state of its run, as JSON by their keys.
    pub fn states(&self) -> impl Iterator<Item = (&str, &str)> {
        self.extra_state.iter()
    }

    /// Why the call failed.
    ///
    /// # Panics
    /// When it completed.
    #[must_use]
    #[track_caller]
    pub fn error(&self) -> &str {
        &self.result.as_ref().expect_err("the call failed").message
    }
}
