//! `toolyard.v1.RunService`.

use std::pin::Pin;
use std::time::Duration;

use futures::Stream;
use prost::Message;
use proto::convert::{self, api};
use proto::v1;
use run::{Answer, CallError, CallId, Decision, ErrorKind, Rejection, RunId, ToolName, limit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::deadline::{Deadline, exceeded};
use super::many;
use crate::accept::{Asked, AskedApproval};
use crate::custom::{self, Custom, CustomTools};
use crate::runs::{NewRun, Refusal, Runs};
use crate::watch::{Reader, WatchError};

/// The longest silence of a stream.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(15);
/// Messages that follow each other faster than this, many times in a row, are sent together. It saves both sides work, and
/// keeps frames from being so small that a client's HTTP/2 library takes those that it has not read yet for an attack.
const PACE: Duration = Duration::from_millis(5);
/// Messages with fewer events, and with fewer bytes, are worth waiting with.
const SMALL_EVENTS: usize = 64;
const SMALL_BYTES: usize = 8 * 1024;
/// As many quick messages are sent as they come: most streams are short, and their latency counts.
const QUICK_MAX: u32 = 16;

#[derive(Debug, Clone)]
pub(super) struct RunDoor {
    pub(super) runs: Runs,
    pub(super) stop: CancellationToken,
}

type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl v1::run_service_server::RunService for RunDoor {
    type ExecuteRunStream = Streamed<v1::ExecuteRunResponse>;
    type ExecuteRunsStream = Streamed<v1::ExecuteRunsResponse>;
    type WatchRunStream = Streamed<v1::WatchRunResponse>;

    async fn create_run(
        &self,
        request: Request<v1::CreateRunRequest>,
    ) -> Result<Response<v1::CreateRunResponse>, Status> {
        let run = self.runs.create(new_run(request.into_inner())?).await?;
        Ok(Response::new(v1::CreateRunResponse { run: Some(api::run(&run)) }))
    }

    async fn execute_run(
        &self,
        request: Request<v1::ExecuteRunRequest>,
    ) -> Result<Response<Self::ExecuteRunStream>, Status> {
        let deadline = request.extensions().get::<Deadline>().copied();
        let request = request.into_inner();
        let reader = execute(&self.runs, request).await?;
        let stream = stream(reader, self.stop.clone(), deadline, |piece| {
            let Piece { events, heartbeat, end } = piece;
            v1::ExecuteRunResponse { events, heartbeat, end }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn execute_runs(
        &self,
        request: Request<tonic::Streaming<v1::ExecuteRunsRequest>>,
    ) -> Result<Response<Self::ExecuteRunsStream>, Status> {
        let stream = many::execute(request.into_inner(), self.runs.clone(), self.stop.clone());
        Ok(Response::new(Box::pin(stream)))
    }

    async fn watch_run(&self, request: Request<v1::WatchRunRequest>) -> Result<Response<Self::WatchRunStream>, Status> {
        let deadline = request.extensions().get::<Deadline>().copied();
        let request = request.into_inner();
        let policy = api::floor_policy(request.floor_policy());
        let reader = self.runs.watch(run_id(&request.run_id)?, policy, request.after_sequence).await?;
        let stream = stream(reader, self.stop.clone(), deadline, |piece| {
            let Piece { events, heartbeat, end } = piece;
            v1::WatchRunResponse { events, heartbeat, end }
        });
        Ok(Response::new(Box::pin(stream)))
    }

    async fn get_run(&self, request: Request<v1::GetRunRequest>) -> Result<Response<v1::GetRunResponse>, Status> {
        let run = self.runs.get(run_id(&request.into_inner().run_id)?).await?;
        Ok(Response::new(v1::GetRunResponse { run: Some(api::run(&run)) }))
    }

    async fn append_calls(
        &self,
        request: Request<v1::AppendCallsRequest>,
    ) -> Result<Response<v1::AppendCallsResponse>, Status> {
        let request = request.into_inner();
        let calls = asked(request.calls)?;
        let tools = custom_tools(request.request_tools)?;
        let run = self.runs.append_calls(run_id(&request.run_id)?, &calls, &tools).await?;
        Ok(Response::new(v1::AppendCallsResponse { run: Some(api::run(&run)) }))
    }

    async fn close_run(&self, request: Request<v1::CloseRunRequest>) -> Result<Response<v1::CloseRunResponse>, Status> {
        let run = self.runs.close(run_id(&request.into_inner().run_id)?).await?;
        Ok(Response::new(v1::CloseRunResponse { run: Some(api::run(&run)) }))
    }

    async fn submit_tool_outputs(
        &self,
        request: Request<v1::SubmitToolOutputsRequest>,
    ) -> Result<Response<v1::SubmitToolOutputsResponse>, Status> {
        let request = request.into_inner();
        let answers = request.outputs.into_iter().enumerate().map(|(index, output)| answer(index, output));
        let answers = answers.collect::<Result<Vec<_>, _>>()?;
        let run = self.runs.submit_outputs(run_id(&request.run_id)?, &answers, request.all_required).await?;
        Ok(Response::new(v1::SubmitToolOutputsResponse { run: Some(api::run(&run)) }))
    }

    async fn decide_calls(
        &self,
        request: Request<v1::DecideCallsRequest>,
    ) -> Result<Response<v1::DecideCallsResponse>, Status> {
        let request = request.into_inner();
        let decisions = request.decisions.into_iter().enumerate().map(|(index, wire)| decision(index, wire));
        let decisions = decisions.collect::<Result<Vec<_>, _>>()?;
        let run = self.runs.decide(run_id(&request.run_id)?, &decisions).await?;
        Ok(Response::new(v1::DecideCallsResponse { run: Some(api::run(&run)) }))
    }

    async fn cancel_run(
        &self,
        request: Request<v1::CancelRunRequest>,
    ) -> Result<Response<v1::CancelRunResponse>, Status> {
        let request = request.into_inner();
        let run = self.runs.cancel_run(run_id(&request.run_id)?, reason(&request.reason)?).await?;
        Ok(Response::new(v1::CancelRunResponse { run: Some(api::run(&run)) }))
    }

    async fn cancel_call(
        &self,
        request: Request<v1::CancelCallRequest>,
    ) -> Result<Response<v1::CancelCallResponse>, Status> {
        let request = request.into_inner();
        let call = call_id(&request.call_id)?;
        let run = self.runs.cancel_call(run_id(&request.run_id)?, &call, reason(&request.reason)?).await?;
        Ok(Response::new(v1::CancelCallResponse { run: Some(api::run(&run)) }))
    }

    async fn explain_call(
        &self,
        request: Request<v1::ExplainCallRequest>,
    ) -> Result<Response<v1::ExplainCallResponse>, Status> {
        let request = request.into_inner();
        let call_id = call_id(&request.call_id)?;
        let run = self.runs.get(run_id(&request.run_id)?).await?;
        let call = run.find(&call_id).ok_or(Refusal::Rejected(Rejection::UnknownCall { call: call_id }))?;
        let (why, call) = (self.runs.explain(&run, call), Some(api::call(call)));
        Ok(Response::new(v1::ExplainCallResponse { why, call }))
    }

    async fn redrive_call(
        &self,
        request: Request<v1::RedriveCallRequest>,
    ) -> Result<Response<v1::RedriveCallResponse>, Status> {
        let request = request.into_inner();
        let run = self.runs.redrive(run_id(&request.run_id)?, &call_id(&request.call_id)?).await?;
        Ok(Response::new(v1::RedriveCallResponse { run: Some(api::run(&run)) }))
    }

    async fn drop_call(&self, request: Request<v1::DropCallRequest>) -> Result<Response<v1::DropCallResponse>, Status> {
        let request = request.into_inner();
        let run = self.runs.drop_call(run_id(&request.run_id)?, &call_id(&request.call_id)?).await?;
        Ok(Response::new(v1::DropCallResponse { run: Some(api::run(&run)) }))
    }
}

// ---- requests ----

fn malformed<E: std::fmt::Display>(field: impl Into<String>) -> impl FnOnce(E) -> Refusal {
    let field = field.into();
    move |error| Refusal::Malformed { field, reason: error.to_string() }
}

fn run_id(text: &str) -> Result<RunId, Refusal> {
    text.parse().map_err(malformed("run_id"))
}

fn call_id(text: &str) -> Result<CallId, Refusal> {
    text.parse().map_err(malformed("call_id"))
}

pub(super) fn reason(text: &str) -> Result<&str, Refusal> {
    match text.len() {
        size if size > limit::REASON_BYTES_MAX => {
            Err(malformed("reason")(format!("is {size} bytes, at most {} are taken", limit::REASON_BYTES_MAX)))
        }
        _ => Ok(text),
    }
}

fn timeout(field: &str, wire: Option<prost_types::Duration>) -> Result<Option<Duration>, Refusal> {
    let Some(wire) = wire else { return Ok(None) };
    match proto::convert::time_in(wire) {
        Some(timeout) if !timeout.is_zero() => Ok(Some(timeout)),
        Some(_) | None => Err(malformed(field)("must be longer than zero")),
    }
}

fn new_run(request: v1::CreateRunRequest) -> Result<NewRun, Refusal> {
    let v1::CreateRunRequest { calls, keep_open, timeout: run_timeout, fail_fast, execute, .. } = request;
    let tenant = match request.tenant.as_str() {
        "" => None,
        tenant => Some(tenant.parse().map_err(malformed("tenant"))?),
    };
    let request_id = match request.request_id.as_str() {
        "" => None,
        id => Some(id.parse().map_err(malformed("request_id"))?),
    };
    let timeout = timeout("timeout", run_timeout)?;
    let (client_only, custom) = (execute == Some(false), custom_tools(request.request_tools)?);
    let tools = attached(&request.tools)?;
    let calls = asked(calls)?;
    Ok(NewRun { calls, keep_open, timeout, fail_fast, client_only, custom, tenant, tools, request_id })
}

/// The names of the tools that a run attaches.
fn attached(tools: &[String]) -> Result<Vec<ToolName>, Refusal> {
    if tools.len() > limit::RUN_TOOLS_MAX {
        let (count, max) = (tools.len(), limit::RUN_TOOLS_MAX);
        return Err(malformed("tools")(format!("names {count} tools, at most {max} are taken")));
    }
    let names = tools.iter().enumerate();
    names.map(|(index, tool)| tool.parse().map_err(malformed(format!("tools[{index}]")))).collect()
}

fn custom_tools(tools: Vec<v1::RequestTool>) -> Result<CustomTools, Refusal> {
    if tools.len() > custom::TOOLS_MAX {
        let (count, max) = (tools.len(), custom::TOOLS_MAX);
        return Err(malformed("request_tools")(format!("are {count}, at most {max} are taken")));
    }
    let mut known = CustomTools::new();
    for (index, v1::RequestTool { name, format }) in tools.into_iter().enumerate() {
        let field = |name: &str| format!("request_tools[{index}].{name}");
        let name: ToolName = name.parse().map_err(malformed(field("name")))?;
        let tool = Custom::of(format).map_err(|(name, reason)| malformed(field(name))(reason))?;
        if known.insert(name, tool).is_some() {
            return Err(malformed(field("name"))("another tool of the request has it"));
        }
    }
    Ok(known)
}

fn asked(calls: Vec<v1::NewCall>) -> Result<Vec<Asked>, Refusal> {
    let asked = calls.into_iter().enumerate().map(|(index, call)| {
        let field = |name: &str| format!("calls[{index}].{name}");
        let id = match call.call_id.as_str() {
            "" => None,
            id => Some(id.parse().map_err(malformed(field("call_id")))?),
        };
        let without_worker = api::without_worker(call.without_worker());
        let concurrency = convert::concurrency(call.concurrency());
        let approval = match call.approval {
            Some(approval) => Some(AskedApproval {
                default: convert::approval_default(approval.default()),
                timeout: timeout(&field("approval.timeout"), approval.timeout)?,
            }),
            None => None,
        };
        Ok(Asked {
            id,
            tool: call.tool.parse().map_err(malformed(field("tool")))?,
            arguments: call.arguments.into(),
            metadata: call.metadata.into_iter().collect(),
            timeout: timeout(&field("timeout"), call.timeout)?,
            queue_timeout: timeout(&field("queue_timeout"), call.queue_timeout)?,
            without_worker,
            concurrency,
            approval,
        })
    });
    asked.collect()
}

fn decision(index: usize, wire: v1::CallDecision) -> Result<(CallId, Decision), Refusal> {
    use v1::call_decision::Decision as Wire;
    let field = |name: &str| format!("decisions[{index}].{name}");
    let call = wire.call_id.parse().map_err(malformed(field("call_id")))?;
    match wire.decision {
        Some(Wire::Approve(v1::CallApproval { arguments })) => {
            Ok((call, Decision::Approved { arguments: arguments.map(Into::into) }))
        }
        Some(Wire::Reject(v1::CallRejection { reason: why })) => {
            reason(&why)?;
            Ok((call, Decision::Rejected { reason: why }))
        }
        None => Err(malformed(field("decision"))("neither approves nor rejects")),
    }
}

fn answer(index: usize, output: v1::ToolOutput) -> Result<Answer, Refusal> {
    let field = |name: &str| format!("outputs[{index}].{name}");
    let call = output.call_id.parse().map_err(malformed(field("call_id")))?;
    let result = api::contents(output.result).map_err(malformed(field("result")))?;
    match (output.error.as_str(), result.is_empty()) {
        ("", _) => Ok(Answer { call, output: Ok(result) }),
        (error, true) => Ok(Answer { call, output: Err(CallError::new(ErrorKind::ClientFailed, error)) }),
        (_, false) => Err(malformed(field("error"))("either a result or an error, not both")),
    }
}

pub(super) async fn execute(runs: &Runs, request: v1::ExecuteRunRequest) -> Result<Reader, Status> {
    let policy = api::floor_policy(request.floor_policy());
    let new = new_run(v1::CreateRunRequest {
        calls: request.calls,
        keep_open: request.keep_open,
        timeout: request.timeout,
        request_id: request.request_id,
        fail_fast: request.fail_fast,
        tenant: request.tenant,
        execute: request.execute,
        request_tools: request.request_tools,
        tools: request.tools,
    })?;
    Ok(runs.execute(new, policy).await?)
}

// ---- responses ----

/// One message of an output stream.
#[derive(Default)]
pub(super) struct Piece {
    pub(super) events: Vec<v1::RunEvent>,
    pub(super) heartbeat: Option<v1::Heartbeat>,
    pub(super) end: Option<v1::StreamEnd>,
}

impl Piece {
    fn end(reason: v1::StreamEndReason) -> Self {
        Self { end: Some(v1::StreamEnd { reason: reason.into() }), ..Self::default() }
    }

    fn is_small(&self) -> bool {
        self.events.len() < SMALL_EVENTS && self.events.iter().map(Message::encoded_len).sum::<usize>() < SMALL_BYTES
    }
}

struct Streaming {
    reader: Reader,
    stop: CancellationToken,
    deadline: Option<Deadline>,
    ended: bool,
    sent: Instant,
    /// How many messages in a row came quickly.
    quick: u32,
}

pub(super) fn stream<T>(
    reader: Reader,
    stop: CancellationToken,
    deadline: Option<Deadline>,
    wrap: impl Fn(Piece) -> T + Send + Clone + 'static,
) -> impl Stream<Item = Result<T, Status>> + Send
where
    T: Send,
{
    let streaming = Streaming { reader, stop, deadline, ended: false, sent: Instant::now(), quick: 0 };
    futures::stream::unfold(streaming, move |mut streaming| {
        let wrap = wrap.clone();
        async move {
            if streaming.ended {
                return None;
            }
            let piece = streaming.next().await.map(wrap);
            streaming.ended |= piece.is_err();
            Some((piece, streaming))
        }
    })
}

impl Streaming {
    async fn next(&mut self) -> Result<Piece, Status> {
        if self.quick >= QUICK_MAX {
            tokio::time::sleep_until(self.sent + PACE).await;
        }
        let piece = self.next_piece().await;
        let now = Instant::now();
        let is_small = piece.as_ref().is_ok_and(Piece::is_small);
        self.quick = if is_small && now < self.sent + PACE * 2 { self.quick.saturating_add(1) } else { 0 };
        self.sent = now;
        piece
    }

    async fn next_piece(&mut self) -> Result<Piece, Status> {
        let silent_until = Instant::now() + HEARTBEAT;
        let until = self.deadline.map_or(silent_until, |Deadline(deadline)| deadline.min(silent_until));
        let events = tokio::select! {
            biased;
            () = self.stop.cancelled() => Err(WatchError::Stopped(crate::ledger::Stopped)),
            () = tokio::time::sleep_until(until) => {
                if self.deadline.is_some_and(|Deadline(deadline)| deadline <= Instant::now()) {
                    return Err(exceeded());
                }
                let time = Some(api::timestamp(proto::now()));
                return Ok(Piece { heartbeat: Some(v1::Heartbeat { time }), ..Piece::default() });
            }
            events = self.reader.next() => events,
        };
        match events {
            Ok(Some(events)) => {
                let is_last = |event: &v1::RunEvent| matches!(event.event, Some(v1::run_event::Event::RunEnded(_)));
                self.ended = events.last().is_some_and(is_last);
                let end = if self.ended { Piece::end(v1::StreamEndReason::RunEnded).end } else { None };
                Ok(Piece { events, end, ..Piece::default() })
            }
            Ok(None) => {
                self.ended = true;
                Ok(Piece::end(v1::StreamEndReason::RunEnded))
            }
            Err(WatchError::Stopped(_)) => {
                self.ended = true;
                Ok(Piece::end(v1::StreamEndReason::Shutdown))
            }
            Err(error) => Err(error.into()),
        }
    }
}
