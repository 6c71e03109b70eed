//! How a future of Rust answers Python: it calls a function with a value and an error; one of the two is `None`. Python
//! makes a future of its own of it, of asyncio or of threads, so no event loop is known here.

use std::sync::OnceLock;

use ::client::{Code, Error, metadata, reason_code, retry_after};
use bytes::Bytes;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use serde_json::{Value, json};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::sync::CancellationToken;

/// Threads for tools, clients and the test kit. Python's lock leaves little for more of them to do.
const THREADS: usize = 2;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// The runtime of the process. It lives as long as the process.
pub(crate) fn runtime() -> PyResult<&'static Handle> {
    if RUNTIME.get().is_none() {
        let built = Builder::new_multi_thread().worker_threads(THREADS).thread_name("toolyard").enable_all().build();
        let built = built.map_err(|error| PyRuntimeError::new_err(format!("cannot start threads: {error}")))?;
        // Another thread of Python may have been faster.
        drop(RUNTIME.set(built));
    }
    Ok(RUNTIME.get().expect("it was set").handle())
}

/// Makes an object of Python.
type Make = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// A value for Python.
pub(crate) enum Reply {
    Nothing,
    Text(String),
    Bytes(Bytes),
    Object(Make),
}

impl Reply {
    pub(crate) fn object(make: impl FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send + 'static) -> Self {
        Self::Object(Box::new(make))
    }

    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::Nothing => py.None(),
            Self::Text(text) => PyString::new(py, &text).into_any().unbind(),
            Self::Bytes(bytes) => PyBytes::new(py, &bytes).into_any().unbind(),
            Self::Object(make) => make(py)?,
        })
    }
}

/// An error for Python, as a JSON object with a `message`.
#[derive(Debug)]
pub(crate) struct Failure(Value);

impl Failure {
    pub(crate) fn new(kind: &str, message: impl std::fmt::Display) -> Self {
        Self(json!({ "kind": kind, "message": message.to_string() }))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        match error {
            Error::Settings(_) => Self::new("settings", message),
            Error::Unreachable { .. } => Self::new("unreachable", message),
            Error::RunUnknown => Self::new("run_unknown", message),
            Error::Source(_) => Self::new("source", message),
            Error::Refused(status) => Self(json!({
                "kind": "refused",
                "message": message,
                "code": code_name(status.code()),
                "reason": reason_code(&status),
                "retry_after": retry_after(&status).map(|wait| wait.as_secs_f64()),
                "run_id": metadata(&status, "run_id"),
            })),
        }
    }
}

fn code_name(code: Code) -> String {
    format!("{code:?}").chars().fold(String::new(), |name, letter| {
        let gap = if letter.is_uppercase() && !name.is_empty() { "_" } else { "" };
        name + gap + &letter.to_ascii_uppercase().to_string()
    })
}

/// Runs a future, and calls `done` with its end. Python's future awaits it, so nothing else has to.
pub(crate) fn settle<F>(done: Py<PyAny>, work: F) -> PyResult<()>
where
    F: Future<Output = Result<Reply, Failure>> + Send + 'static,
{
    settle_until(&CancellationToken::new(), done, work)
}

/// As [`settle`], for work that ends with nobody told of it once `stop` is cancelled.
pub(crate) fn settle_until<F>(stop: &CancellationToken, done: Py<PyAny>, work: F) -> PyResult<()>
where
    F: Future<Output = Result<Reply, Failure>> + Send + 'static,
{
    let stop = stop.clone();
    runtime()?.spawn(async move {
        let outcome = stop.run_until_cancelled(work).await;
        // The callback is dropped with Python's lock held, so that what it keeps alive is gone at once.
        Python::attach(move |py| match outcome {
            Some(outcome) => answer(py, &done, outcome),
            None => drop(done),
        });
    });
    Ok(())
}

/// Belongs to an object of Python: work that nobody can await any more ends when the object is gone.
pub(crate) struct Owner(CancellationToken);

impl Owner {
    pub(crate) fn new() -> Self {
        Self(CancellationToken::new())
    }

    /// As [`settle`], until this is dropped.
    pub(crate) fn settle<F>(&self, done: Py<PyAny>, work: F) -> PyResult<()>
    where
        F: Future<Output = Result<Reply, Failure>> + Send + 'static,
    {
        settle_until(&self.0, done, work)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Work that Python gives up when nobody waits for it any more.
#[pyclass(frozen)]
pub(crate) struct Work(CancellationToken);

impl Work {
    /// As [`settle`].
    pub(crate) fn settle<F>(done: Py<PyAny>, work: F) -> PyResult<Self>
    where
        F: Future<Output = Result<Reply, Failure>> + Send + 'static,
    {
        let begun = Self(CancellationToken::new());
        settle_until(&begun.0, done, work)?;
        Ok(begun)
    }
}

#[pymethods]
impl Work {
    /// Ends it, with nobody told of it.
    fn cancel(&self) {
        self.0.cancel();
    }
}

/// Calls a callback of Python.
pub(crate) fn answer(py: Python<'_>, done: &Py<PyAny>, outcome: Result<Reply, Failure>) {
    let called = match outcome {
        Ok(reply) => match reply.into_python(py) {
            Ok(value) => done.call1(py, (value, py.None())),
            Err(error) => done.call1(py, (py.None(), Failure::new("conversion", error).0.to_string())),
        },
        Err(Failure(error)) => done.call1(py, (py.None(), error.to_string())),
    };
    if let Err(error) = called {
        // The event loop was closed meanwhile, so nobody waits any more.
        tracing::debug!(%error, "an answer reached no future of Python");
    }
}
