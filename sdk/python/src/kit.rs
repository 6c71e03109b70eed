//! The test kit of the Rust SDK: calls of an app's tools without a broker.

use std::sync::Arc;

use ::worker::testkit::{self, Beside, Called};
use ::worker::{Chunk, Content, Elicitation, Reply as Answered, Requester};
use bytes::Bytes;
use proto::convert::fields::fields_in;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::settle::{Reply, runtime, settle};
use crate::table::Table;

/// What a call has beside its arguments, as the Python part writes it.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Described {
    context: Option<Value>,
    tenant: Option<String>,
    caller: Option<String>,
    unstored: bool,
}

/// A call that runs.
#[pyclass(frozen)]
pub(crate) struct Running {
    call: Arc<Mutex<Option<testkit::Call>>>,
    stop: CancellationToken,
}

#[pymethods]
impl Running {
    /// Starts a call. `answer` is called with each question as JSON, and returns the answer as JSON.
    #[staticmethod]
    fn start(
        table: &Table,
        call: (String, String),
        beside: &str,
        files: Vec<(String, Vec<u8>)>,
        answer: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let wrong = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let (tool, arguments) = call;
        let described: Described = serde_json::from_str(beside).map_err(|error| wrong(&error))?;
        let arguments: Value = serde_json::from_str(&arguments).map_err(|error| wrong(&error))?;
        if tool.parse::<::worker::ToolName>().is_err() {
            return Err(PyValueError::new_err(format!("{tool:?} is no name of a tool")));
        }
        let mut requester = Requester::default();
        if let Some(tenant) = described.tenant {
            requester.tenant = Some(tenant.parse().map_err(|error| wrong(&error))?);
        }
        if let Some(caller) = described.caller {
            requester.caller = Some(caller.parse().map_err(|error| wrong(&error))?);
        }
        let context = described.context.map(|context| fields_in(&context.to_string())).transpose();
        let beside = Beside {
            context: context.map_err(|error| wrong(&error))?.unwrap_or_default(),
            files: files.into_iter().map(|(name, bytes)| (name, Bytes::from(bytes))).collect(),
            asker: answer.map(|answer| testkit::answering(move |question| answered(&answer, question))),
            is_unstored: described.unstored,
            requester,
        };
        let _inside = runtime()?.enter();
        let call = testkit::start_with(&table.table(), &tool, arguments, beside);
        let stop = call.stop();
        Ok(Self { call: Arc::new(Mutex::new(Some(call))), stop })
    }

    /// The next piece of output; `None` if there is no more.
    fn next(&self, done: Py<PyAny>) -> PyResult<()> {
        let call = Arc::clone(&self.call);
        settle(done, async move {
            let mut call = call.lock().await;
            let chunk = match call.as_mut() {
                Some(call) => call.chunk().await,
                None => None,
            };
            Ok(chunk.map_or(Reply::Nothing, |chunk| {
                Reply::object(move |py| Ok(python_chunk(py, &chunk)?.into_any().unbind()))
            }))
        })
    }

    /// Requests the function to stop.
    fn cancel(&self) {
        self.stop.cancel();
    }

    /// Waits for the end: output that was not read, parts of the result, the error as JSON, and the state as JSON.
    fn end(&self, done: Py<PyAny>) -> PyResult<()> {
        let call = Arc::clone(&self.call);
        settle(done, async move {
            let Some(call) = call.lock().await.take() else { return Ok(Reply::Nothing) };
            let called = call.end().await;
            Ok(Reply::object(move |py| Ok(python_end(py, &called)?.into_any().unbind())))
        })
    }
}

/// What the function of a test answers to a question.
fn answered(answer: &Py<PyAny>, question: &Elicitation) -> Answered {
    let question = String::from_utf8_lossy(&question.to_arguments()).into_owned();
    let said = Python::attach(|py| answer.call1(py, (question,)).and_then(|said| said.extract::<String>(py)));
    let said: Value = match said.map(|said| serde_json::from_str(&said)) {
        Ok(Ok(said)) => said,
        Ok(Err(_)) => return Answered::Cancel,
        Err(error) => {
            tracing::warn!(%error, "the answer of a test failed");
            return Answered::Cancel;
        }
    };
    match said["action"].as_str() {
        Some("accept") => Answered::Accept(said["content"].as_object().cloned().unwrap_or_else(Map::new)),
        Some("decline") => Answered::Decline,
        _ => Answered::Cancel,
    }
}

/// A kind, a channel and a payload.
fn python_chunk<'py>(py: Python<'py>, chunk: &Chunk) -> PyResult<Bound<'py, PyTuple>> {
    match chunk {
        Chunk::Content { channel, content } => {
            let (kind, payload) = python_content(py, content)?;
            (kind, channel.as_str(), payload).into_pyobject(py)
        }
        Chunk::Progress(progress) => {
            ("progress", "", (progress.done, progress.total, progress.message.as_str())).into_pyobject(py)
        }
    }
}

fn python_content<'py>(py: Python<'py>, content: &Content) -> PyResult<(String, Bound<'py, PyAny>)> {
    Ok(match content {
        Content::Text(text) => ("text".to_owned(), text.into_pyobject(py)?.into_any()),
        Content::Cited(cited) => ("text".to_owned(), cited.text.as_str().into_pyobject(py)?.into_any()),
        Content::Json(json) => ("json".to_owned(), json.into_pyobject(py)?.into_any()),
        Content::Data { media_type, data } => (media_type.clone(), PyBytes::new(py, data).into_any()),
        Content::Object(object) => ("text".to_owned(), object.preview.as_str().into_pyobject(py)?.into_any()),
    })
}

fn python_end<'py>(py: Python<'py>, called: &Called) -> PyResult<Bound<'py, PyTuple>> {
    let output: Vec<_> = called.output.iter().map(|chunk| python_chunk(py, chunk)).collect::<PyResult<_>>()?;
    let (parts, error) = match &called.result {
        Ok(parts) => {
            let parts: Vec<_> = parts.iter().map(|part| python_content(py, part)).collect::<PyResult<_>>()?;
            (Some(parts), None)
        }
        Err(error) => {
            let violations: Vec<_> = error.violations.iter().map(|it| (&it.path, &it.message)).collect();
            let error = json!({
                "kind": proto::convert::error_kind_name(error.kind),
                "message": error.message,
                "retryable": error.retryable,
                "retry_after": error.retry_after.map(|wait| wait.as_secs_f64()),
                "violations": violations,
            });
            (None, Some(error.to_string()))
        }
    };
    let states: Vec<(&str, &str)> = called.states().collect();
    (output, parts, error, states).into_pyobject(py)
}
