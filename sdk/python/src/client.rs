//! The client: requests and events are JSON, as the HTTP API has them.

use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use ::client::turn::{Form, PassedOver, Turn as ModelTurn};
use ::client::{Connection, Watch as RunWatch};
use bytes::Bytes;
use formats::tools::{Exported, Format, export};
use prost::{Message, Name};
use proto::{json, v1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::json as value;
use tokio::sync::{Mutex, Notify};

use crate::settle::{Failure, Owner, Reply, settle};

/// Bytes of one piece of an upload.
const PIECE_BYTES: usize = 256 * 1024;

/// A coordinator, and how it is reached.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    url: String,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    ca: Option<String>,
    #[serde(default)]
    certificate: Option<(String, String)>,
}

/// A connection to a coordinator.
#[pyclass(frozen)]
pub(crate) struct Client(::client::Client);

#[pymethods]
impl Client {
    /// Connects; `done` is given the client.
    #[staticmethod]
    fn connect(settings: &str, done: Py<PyAny>) -> PyResult<()> {
        let described: Described =
            serde_json::from_str(settings).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let mut connection = Connection::to(described.url);
        if let Some(key) = described.key {
            connection = connection.with_key(key);
        }
        if let Some(ca) = described.ca {
            connection = connection.trusting(ca);
        }
        if let Some((certificate, key)) = described.certificate {
            connection = connection.with_certificate(certificate, key);
        }
        settle(done, async move {
            let client = ::client::Client::connect(&connection).await?;
            Ok(Reply::object(move |py| Ok(Py::new(py, Self(client))?.into_any())))
        })
    }

    /// A request of the API by its name: JSON goes in, and JSON comes out.
    fn request(&self, name: &str, body: Vec<u8>, done: Py<PyAny>) -> PyResult<()> {
        let (client, name) = (self.0.clone(), name.to_owned());
        settle(done, async move { request(&client, &name, &body).await })
    }

    /// The definitions of the tools that the request selects, in a format of a vendor.
    fn tools(&self, body: Vec<u8>, format: Option<String>, done: Py<PyAny>) -> PyResult<()> {
        let client = self.0.clone();
        settle(done, async move {
            let format = format.map(|name| format_of(&name)).transpose()?;
            let listed = client.tools(read(&body)?).await?;
            let Some(format) = format else { return Ok(written(&listed)) };
            let exported = export(&listed.tools, format);
            let named = |it: Exported| value!({ "tool": it.tool, "name": it.name, "definition": it.definition });
            Ok(Reply::Text(value!(exported.into_iter().map(named).collect::<Vec<_>>()).to_string()))
        })
    }

    /// Executes calls as a run; `done` is given its watch.
    fn execute(&self, body: Vec<u8>, done: Py<PyAny>) -> PyResult<()> {
        let client = self.0.clone();
        settle(done, async move {
            let watch = client.execute(read::<v1::ExecuteRunRequest>(&body)?).await?;
            Ok(Reply::object(move |py| Ok(Py::new(py, Watch::of(watch))?.into_any())))
        })
    }

    /// Watches a run after a sequence number; `done` is given the watch.
    fn watch(&self, run_id: String, after: Option<u64>, floor: &str, done: Py<PyAny>) -> PyResult<()> {
        let (client, floor) = (self.0.clone(), floor_of(floor)?);
        settle(done, async move {
            let watch = client.watch(&run_id, after, floor).await?;
            Ok(Reply::object(move |py| Ok(Py::new(py, Watch::of(watch))?.into_any())))
        })
    }

    /// Uploads an object, at most 256 MiB.
    fn upload(&self, media_type: String, data: Vec<u8>, done: Py<PyAny>) -> PyResult<()> {
        let (client, data) = (self.0.clone(), Bytes::from(data));
        settle(done, async move {
            let ends = (0..data.len()).step_by(PIECE_BYTES);
            let pieces: Vec<_> =
                ends.map(|start| Ok(data.slice(start..(start + PIECE_BYTES).min(data.len())))).collect();
            Ok(written(&client.upload(&media_type, futures::stream::iter(pieces)).await?))
        })
    }

    /// Reads an object as a whole; `done` is given its media type and its bytes.
    fn download(&self, object_id: String, done: Py<PyAny>) -> PyResult<()> {
        let client = self.0.clone();
        settle(done, async move {
            let mut reader = client.read_object(&object_id).await?;
            let mut bytes = Vec::new();
            while let Some(piece) = reader.next().await? {
                bytes.extend_from_slice(&piece);
            }
            let media_type = reader.about().media_type.clone();
            Ok(Reply::object(move |py| {
                let bytes = pyo3::types::PyBytes::new(py, &bytes);
                Ok((media_type, bytes).into_pyobject(py)?.into_any().unbind())
            }))
        })
    }
}

/// A run's ordered output.
#[pyclass(frozen)]
pub(crate) struct Watch {
    watch: Arc<Mutex<RunWatch>>,
    owner: Owner,
}

impl Watch {
    fn of(watch: RunWatch) -> Self {
        Self { watch: Arc::new(Mutex::new(watch)), owner: Owner::new() }
    }
}

#[pymethods]
impl Watch {
    /// The next events as a JSON list; `None` once the run has ended.
    fn next(&self, done: Py<PyAny>) -> PyResult<()> {
        let watch = Arc::clone(&self.watch);
        self.owner.settle(done, async move { Ok(events(watch.lock().await.next().await?)) })
    }
}

/// A model's message, whose calls are executed.
#[pyclass(frozen)]
pub(crate) struct Turn {
    turn: Arc<Mutex<ModelTurn>>,
    /// Somebody wants to look at the turn while its next event is awaited.
    wanted: Arc<Notify>,
    owner: Owner,
}

#[pymethods]
impl Turn {
    /// Reads a message. `options` is the run without its calls.
    #[new]
    fn new(message: &[u8], form: Option<&str>, options: &[u8]) -> PyResult<Self> {
        let wrong = |error: &dyn std::fmt::Display| PyValueError::new_err(error.to_string());
        let form: Option<Form> = form.map(|form| form.parse()).transpose().map_err(|error| wrong(&error))?;
        let options = json::read(options, &[]).map_err(|error| wrong(&error))?;
        let turn = ModelTurn::read(message, form, options)
            .map_err(|error| PyValueError::new_err(format!("the model's message cannot be read: {error}")))?;
        Ok(Self { turn: Arc::new(Mutex::new(turn)), wanted: Arc::default(), owner: Owner::new() })
    }

    /// The form, the calls, and the refused ones, as JSON.
    fn about(&self) -> PyResult<String> {
        let turn = self.turn.try_lock().map_err(|_| PyValueError::new_err("the turn is being read"))?;
        let call = |call: &::client::turn::Call| {
            let refused = turn.refusal(&call.id);
            value!({ "call_id": call.id, "name": call.name, "refused": refused })
        };
        let calls: Vec<_> = turn.calls().iter().map(call).collect();
        let passed = turn.passed_over().iter();
        let passed: Vec<_> = passed.map(|it| value!({ "kind": it.kind, "reason": word(it.reason) })).collect();
        Ok(value!({ "form": turn.form().as_str(), "calls": calls, "passed_over": passed }).to_string())
    }

    /// Has the calls executed.
    fn start(&self, client: &Client, floor: &str, done: Py<PyAny>) -> PyResult<()> {
        let (turn, client, floor) = (Arc::clone(&self.turn), client.0.clone(), floor_of(floor)?);
        self.owner.settle(done, async move {
            turn.lock().await.start(&client, floor).await?;
            Ok(Reply::Nothing)
        })
    }

    /// The next events as a JSON list; `None` at the end.
    fn next(&self, done: Py<PyAny>) -> PyResult<()> {
        let (turn, wanted) = (Arc::clone(&self.turn), Arc::clone(&self.wanted));
        self.owner.settle(done, async move {
            loop {
                let mut turn = turn.lock().await;
                // It may be dropped while it waits; then those that want to look come first.
                tokio::select! {
                    biased;
                    next = turn.next() => return Ok(events(next?)),
                    () = wanted.notified() => {}
                }
            }
        })
    }

    /// The messages that answer the calls which have ended, as a JSON list, and whether all have.
    fn messages(&self, done: Py<PyAny>) -> PyResult<()> {
        let (turn, wanted) = (Arc::clone(&self.turn), Arc::clone(&self.wanted));
        settle(done, async move {
            // In the queue for the lock first, so that the one who gives it away does not take it again before.
            let mut locking = pin!(turn.lock());
            let turn = match futures::poll!(locking.as_mut()) {
                Poll::Ready(turn) => turn,
                Poll::Pending => {
                    wanted.notify_one();
                    locking.await
                }
            };
            Ok(Reply::Text(value!({ "messages": turn.messages(), "complete": turn.is_answered() }).to_string()))
        })
    }
}

fn word(reason: PassedOver) -> &'static str {
    match reason {
        PassedOver::ExecutedByVendor => "executed_by_vendor",
        PassedOver::Answered => "answered",
        PassedOver::NeedsApproval => "needs_approval",
        PassedOver::Unsupported => "unsupported",
    }
}

fn events(events: Option<Vec<v1::RunEvent>>) -> Reply {
    let Some(events) = events else { return Reply::Nothing };
    let mut text = b"[".to_vec();
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            text.push(b',');
        }
        json::write_into(&mut text, event);
    }
    text.push(b']');
    Reply::Bytes(text.into())
}

fn read<M: Message + Name + Default>(body: &[u8]) -> Result<M, Failure> {
    json::read(body, &[]).map_err(|error| Failure::new("malformed", error))
}

fn written<M: Message + Name>(message: &M) -> Reply {
    Reply::Text(json::write(message))
}

fn floor_of(name: &str) -> PyResult<v1::FloorPolicy> {
    match name {
        "arrival" => Ok(v1::FloorPolicy::Arrival),
        "submission" => Ok(v1::FloorPolicy::Submission),
        "interleaved" => Ok(v1::FloorPolicy::Interleaved),
        _ => Err(PyValueError::new_err(format!("floor is {name:?}: use arrival, submission or interleaved"))),
    }
}

fn format_of(name: &str) -> Result<Format, Failure> {
    let known = Format::ALL.iter().find(|(known, _)| *known == name);
    known.map(|(_, format)| *format).ok_or_else(|| {
        let names: Vec<&str> = Format::ALL.iter().map(|(name, _)| *name).collect();
        Failure::new("malformed", format!("format is {name:?}: use one of {}", names.join(", ")))
    })
}

/// Only what the Python part asks for.
async fn request(client: &::client::Client, name: &str, body: &[u8]) -> Result<Reply, Failure> {
    Ok(match name {
        "create" => written(&client.create(read(body)?).await?),
        "append" => written(&client.append(read(body)?).await?),
        "run" => written(&client.run(&read::<v1::GetRunRequest>(body)?.run_id).await?),
        "close" => written(&client.close(&read::<v1::CloseRunRequest>(body)?.run_id).await?),
        "cancel_run" => {
            let v1::CancelRunRequest { run_id, reason } = read(body)?;
            written(&client.cancel_run(&run_id, &reason).await?)
        }
        "cancel_call" => {
            let v1::CancelCallRequest { run_id, call_id, reason } = read(body)?;
            written(&client.cancel_call(&run_id, &call_id, &reason).await?)
        }
        "explain" => {
            let v1::ExplainCallRequest { run_id, call_id } = read(body)?;
            written(&client.explain(&run_id, &call_id).await?)
        }
        "submit" => {
            let v1::SubmitToolOutputsRequest { run_id, outputs, .. } = read(body)?;
            let output = outputs.into_iter().next().ok_or_else(|| Failure::new("malformed", "no answer was given"))?;
            written(&client.submit(&run_id, output).await?)
        }
        "decide" => {
            let v1::DecideCallsRequest { run_id, decisions } = read(body)?;
            let decision =
                decisions.into_iter().next().ok_or_else(|| Failure::new("malformed", "no decision was given"))?;
            written(&client.decide(run_id, decision).await?)
        }
        "answer_token" => {
            let v1::CreateAnswerTokenRequest { run_id, call_id, lifetime } = read(body)?;
            let lifetime = lifetime.and_then(|lifetime| lifetime.try_into().ok());
            written(&client.answer_token(run_id, call_id, lifetime).await?)
        }
        "delete_object" => {
            client.delete_object(read::<v1::DeleteObjectRequest>(body)?.object_id).await?;
            Reply::Nothing
        }
        _ => return Err(Failure::new("malformed", format!("there is no request {name:?}"))),
    })
}
