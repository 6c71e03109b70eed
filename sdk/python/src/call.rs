//! A call of a tool that a Python function executes.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::worker::{Answer, AnyTool, CallError, Context, ErrorKind, Output, Question, ToolError, Violation};
use futures::FutureExt as _;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::inbox::{Key, Outside};
use crate::settle::{Failure, Reply, Work, runtime, settle};

type Outcome = Result<Output, ToolError>;

/// A tool whose calls are executed by Python.
pub(crate) enum PythonTool {
    /// An async function: the event loop takes its calls.
    InLoop { calls: Arc<Outside>, tool: u32 },
    /// A function that blocks: `start` begins it for a call and its arguments, and returns what cancels it.
    OnThread { start: Py<PyAny> },
}

impl PythonTool {
    fn start(&self, call: Call, arguments: String) -> Result<Started, ToolError> {
        match self {
            Self::InLoop { calls, tool } => {
                static KEYS: AtomicU64 = AtomicU64::new(0);
                let key = KEYS.fetch_add(1, Ordering::Relaxed);
                calls.begin((key, *tool, call, arguments))?;
                Ok(Started::InLoop(Arc::clone(calls), key))
            }
            Self::OnThread { start } => Python::attach(|py| {
                let started = start.call1(py, (call, PyBytes::new(py, arguments.as_bytes())));
                started.map(Started::OnThread).map_err(|error| ToolError::new(error.to_string()))
            }),
        }
    }
}

impl AnyTool for PythonTool {
    async fn call(&self, context: &Context, arguments: Value) -> Outcome {
        let ((ended, mut end), (living, gone)) = (oneshot::channel(), oneshot::channel());
        let call = Call { context: context.clone(), ends: Mutex::new(Some(Ends { living, ended })) };
        let started = self.start(call, arguments.to_string())?;
        let running = Some(Running { context, runtime: Handle::current(), gone });
        let mut execution = Execution { started: Some(started), running };
        let ended = tokio::select! {
            biased;
            ended = &mut end => ended,
            () = context.cancelled() => {
                execution.cancel();
                end.await
            }
        };
        execution.finish();
        ended.unwrap_or_else(|_| Err(ToolError::new("the function was abandoned without a result")))
    }
}

/// How a function that was started is cancelled.
enum Started {
    InLoop(Arc<Outside>, Key),
    OnThread(Py<PyAny>),
}

impl Started {
    fn cancel(self) {
        match self {
            Self::InLoop(calls, key) => calls.stop(key),
            Self::OnThread(handle) => Python::attach(|py| {
                if let Err(error) = handle.call_method0(py, "cancel") {
                    tracing::warn!(%error, "cancelling a function failed");
                }
            }),
        }
    }
}

/// A function that has not ended.
struct Running<'a> {
    context: &'a Context,
    runtime: Handle,
    gone: oneshot::Receiver<Infallible>,
}

/// Dropping it, as for a call whose attempt is over, cancels the function.
struct Execution<'a> {
    started: Option<Started>,
    running: Option<Running<'a>>,
}

impl Execution<'_> {
    fn cancel(&mut self) {
        if let Some(started) = self.started.take() {
            started.cancel();
        }
    }

    /// The function has ended.
    fn finish(&mut self) {
        (self.started, self.running) = (None, None);
    }
}

impl Drop for Execution<'_> {
    fn drop(&mut self) {
        self.cancel();
        // A function that does not notice that it should stop runs on: its attempt is not over before it is.
        if let Some(Running { context, runtime, gone }) = self.running.take() {
            context.left().keep(gone.map(|_: Result<Infallible, _>| ()), &runtime);
        }
    }
}

/// Where a call's end goes.
struct Ends {
    /// Dropped when the function has ended.
    living: oneshot::Sender<Infallible>,
    ended: oneshot::Sender<Outcome>,
}

/// One execution of a call, for the Python part.
#[pyclass(frozen)]
pub(crate) struct Call {
    context: Context,
    ends: Mutex<Option<Ends>>,
}

#[pymethods]
impl Call {
    #[getter]
    fn run_id(&self) -> String {
        self.context.run_id().to_string()
    }

    #[getter]
    fn call_id(&self) -> &str {
        self.context.call_id().as_str()
    }

    #[getter]
    fn tool(&self) -> &str {
        self.context.tool().as_str()
    }

    #[getter]
    fn attempt(&self) -> u32 {
        self.context.attempt()
    }

    #[getter]
    fn tenant(&self) -> Option<&str> {
        self.context.tenant().map(|tenant| tenant.as_str())
    }

    #[getter]
    fn caller(&self) -> Option<&str> {
        self.context.caller().map(|caller| caller.as_str())
    }

    #[getter]
    fn roles(&self) -> Vec<String> {
        self.context.roles().iter().map(|role| role.to_string()).collect()
    }

    #[getter]
    fn continue_from(&self) -> u32 {
        self.context.continue_from()
    }

    #[getter]
    fn is_stored(&self) -> bool {
        self.context.is_stored()
    }

    #[getter]
    fn cancelled(&self) -> bool {
        self.context.is_cancelled()
    }

    /// Metadata of the caller, as JSON.
    fn metadata(&self) -> String {
        json!(self.context.metadata()).to_string()
    }

    /// Seconds until the attempt must have ended.
    fn seconds_left(&self) -> f64 {
        self.context.deadline().saturating_duration_since(Instant::now()).as_secs_f64()
    }

    /// Seconds until the call must have ended, whichever attempt it is in.
    fn call_seconds_left(&self) -> f64 {
        self.context.call_deadline().saturating_duration_since(Instant::now()).as_secs_f64()
    }

    /// The caller's value under a key that the tool declares, as JSON; `None` if nothing was given.
    fn given(&self, key: &str) -> Option<String> {
        let given = self.context.given::<Box<RawValue>>(key).ok()?;
        (given.get() != "null").then(|| given.get().to_owned())
    }

    /// The ended calls of the run, as JSON.
    fn history(&self) -> PyResult<String> {
        let history = self.context.history().map_err(|error| PyRuntimeError::new_err(error.message().to_owned()))?;
        Ok(json!(history).to_string())
    }

    /// Names, media types and sizes of the files.
    fn files(&self) -> Vec<(String, String, u64)> {
        let file = |file: &::worker::File| (file.name.clone(), file.object.media_type.clone(), file.object.size);
        self.context.files().iter().map(file).collect()
    }

    /// Reads a file as a whole.
    fn read(&self, name: &str, bytes_max: u64, done: Py<PyAny>) -> PyResult<Work> {
        let (context, name) = (self.context.clone(), name.to_owned());
        Work::settle(done, async move {
            let file = context.file(&name).map_err(failed)?;
            context.read_all(file, bytes_max).await.map(Reply::Bytes).map_err(failed)
        })
    }

    /// Asks the client. The answer is JSON: an action, and the content if it accepts.
    fn ask(&self, message: String, schema: &str, timeout_s: Option<f64>, done: Py<PyAny>) -> PyResult<Work> {
        let schema: Value = serde_json::from_str(schema).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let mut question = Question::new(message).json_schema(schema);
        if let Some(timeout) = timeout_s.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            question = question.timeout(timeout);
        }
        let context = self.context.clone();
        Work::settle(done, async move {
            let answer = match context.ask(question).await.map_err(failed)? {
                Answer::Accepted(content) => json!({ "action": "accept", "content": content }),
                Answer::Declined => json!({ "action": "decline" }),
                Answer::Cancelled => json!({ "action": "cancel" }),
            };
            Ok(Reply::Text(answer.to_string()))
        })
    }

    /// Sends a piece of output if there is room for it now; returns whether it was sent.
    fn say(&self, kind: &str, channel: &str, payload: &Bound<'_, PyAny>) -> PyResult<bool> {
        let piece = Piece::of(kind, channel, payload)?;
        if piece.is_long() {
            return Ok(false);
        }
        match piece.send(&self.context).now_or_never() {
            Some(sent) => sent.map(|()| true).map_err(raised),
            None => Ok(false),
        }
    }

    /// Sends a piece of output when there is room for it. `done` is called when there is room for many more.
    fn say_later(&self, kind: &str, channel: &str, payload: &Bound<'_, PyAny>, done: Py<PyAny>) -> PyResult<()> {
        let (piece, context) = (Piece::of(kind, channel, payload)?, self.context.clone());
        settle(done, async move { piece.send_patiently(&context).await.map(|()| Reply::Nothing).map_err(failed) })
    }

    /// As [`Self::say_later`]. It blocks the thread, without Python's lock.
    fn say_blocking(&self, py: Python<'_>, kind: &str, channel: &str, payload: &Bound<'_, PyAny>) -> PyResult<()> {
        let (piece, runtime) = (Piece::of(kind, channel, payload)?, runtime()?);
        py.detach(|| runtime.block_on(piece.send_patiently(&self.context))).map_err(raised)
    }

    /// The function returned. `parts` are kinds (`text`, `json`, or a media type) and payloads; `state` is JSON by key.
    fn complete(&self, parts: Vec<(String, Bound<'_, PyAny>)>, state: Vec<(String, String)>) -> PyResult<()> {
        let mut output: Option<Output> = None;
        for (kind, payload) in parts {
            let part = match kind.as_str() {
                "text" => payload.extract::<String>()?.into(),
                "json" => vec![::worker::Content::Json(as_json(payload.extract()?)?.get().to_owned())].into(),
                media_type => Output::data(media_type, payload.extract::<PyBackedBytes>()?.to_vec()),
            };
            output = Some(output.map_or_else(|| Output::clone(&part), |output| output.and(part.clone())));
        }
        let mut output = output.unwrap_or_else(|| ().into());
        for (key, value) in state {
            output = output.with_state(key, &as_json(value)?).map_err(raised)?;
        }
        self.end(Ok(output));
        Ok(())
    }

    /// The function failed. `violations` are JSON pointers into the arguments, and what is wrong there.
    fn fail(
        &self,
        kind: &str,
        message: &str,
        retry: (bool, Option<f64>),
        violations: Vec<(String, String)>,
    ) -> PyResult<()> {
        let kind = match kind {
            "tool_failed" => ErrorKind::ToolFailed,
            "arguments_invalid" => ErrorKind::ArgumentsInvalid,
            "model_retry" => ErrorKind::ModelRetry,
            "needs_input" => ErrorKind::NeedsInput,
            "rate_limited" => ErrorKind::RateLimited,
            _ => return Err(PyValueError::new_err(format!("{kind:?} is no kind of error"))),
        };
        let mut error = CallError::new(kind, message);
        error.violations = violations.into_iter().map(|(path, message)| Violation::new(path, message)).collect();
        let wait = retry.1.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        let error = match (retry.0, wait) {
            (_, Some(wait)) => error.retryable_after(wait),
            (true, None) => error.retryable(),
            (false, None) => error,
        };
        self.end(Err(ToolError::of_call(error)));
        Ok(())
    }
}

impl Call {
    fn end(&self, outcome: Outcome) {
        let ends = self.ends.lock().expect("no code panics while it holds the end").take();
        if let Some(Ends { living, ended }) = ends {
            drop(living);
            // The attempt may be over.
            drop(ended.send(outcome));
        }
    }
}

/// A piece of output.
enum Piece {
    Text { channel: String, text: String },
    Json { channel: String, json: Box<RawValue> },
    Data { channel: String, media_type: String, data: PyBackedBytes },
    Progress { done: f64, total: Option<f64>, message: String },
}

impl Piece {
    fn of(kind: &str, channel: &str, payload: &Bound<'_, PyAny>) -> PyResult<Self> {
        let channel = channel.to_owned();
        Ok(match kind {
            "text" => Self::Text { channel, text: payload.extract()? },
            "json" => Self::Json { channel, json: as_json(payload.extract()?)? },
            "progress" => {
                let (done, total, message) = payload.extract()?;
                Self::Progress { done, total, message }
            }
            media_type => Self::Data { channel, media_type: media_type.to_owned(), data: payload.extract()? },
        })
    }

    /// It may be sent as several pieces, so it must not be given up on its way.
    fn is_long(&self) -> bool {
        matches!(self, Self::Text { text, .. } if text.len() > 4096)
    }

    /// Sends it, and waits for room for many more: a tool that is faster than the broker does not wait for each piece.
    async fn send_patiently(self, context: &Context) -> Result<(), ToolError> {
        self.send(context).await?;
        context.room().await;
        Ok(())
    }

    async fn send(self, context: &Context) -> Result<(), ToolError> {
        match self {
            Self::Text { channel, text } => context.text_on(&channel, text).await,
            Self::Json { channel, json } => context.json_on(&channel, &json).await,
            Self::Data { channel, media_type, data } => context.data_on(&channel, &media_type, data.to_vec()).await,
            Self::Progress { done, total, message } => context.progress(done, total, message).await,
        }
    }
}

/// What Python calls JSON may hold NaN, and nobody else could read that.
fn as_json(text: String) -> PyResult<Box<RawValue>> {
    RawValue::from_string(text).map_err(|error| PyValueError::new_err(format!("it is not JSON: {error}")))
}

fn failed(error: ToolError) -> Failure {
    let kind = match error.kind() {
        ErrorKind::NeedsInput => "needs_input",
        _ if error.is_retryable() => "retry",
        _ => "tool",
    };
    Failure::new(kind, error.message())
}

fn raised(error: ToolError) -> PyErr {
    PyRuntimeError::new_err(error.message().to_owned())
}
