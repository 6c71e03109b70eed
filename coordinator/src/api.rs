//! The API, independent of the protocol: messages are converted to domain types, served, and answered, and refusals get
//! their reasons. gRPC and HTTP only transport. No decisions about runs are made here.

pub(crate) mod abandoned;
mod conversation;
mod erase;
pub(crate) mod error;
mod fleet;
mod grpc;
mod http;
pub mod inputs;
mod lists;
pub(crate) mod mcp;
pub(crate) mod needs;
pub(crate) mod objects;
pub(crate) mod output;
mod overview;
mod port;
mod problem;
pub(crate) mod read;
mod schedules;
mod serve;
mod tools;
mod webhooks;

use std::ops::Deref;
use std::sync::Arc;

use formats::tools::Format;
use futures::stream::BoxStream;
use proto::convert::api;
use proto::v1;
use run::CommandError;
use tokio_util::sync::CancellationToken;

pub(crate) use self::error::ApiError;
pub(crate) use self::port::places::affordable;
use self::read::{
    answer, approved_in, asked, call_id, custom_tools, decision, files, new_run, reason, run_id, timeout, whose,
};
pub(crate) use self::schedules::read_run;
pub(crate) use self::serve::{Port, serve};
pub(crate) use self::webhooks::Notices;
use crate::ConsoleOptions;
use crate::admission::custom::{self, CustomTools};
use crate::admission::error::RequestError;
use crate::index::Index;
use crate::nats::scan::Log;
use crate::objects::uploads::Uploads;
use crate::offload;
use crate::readers::Reader;
use crate::runs::{NewRun, Runs};
use crate::schedules::Schedules;
use crate::trace::run_out;

/// Largest request: the arguments of a run's calls, with room for the rest.
pub(crate) const REQUEST_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The API in the name of a caller. Cheap to clone: each request does.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) runs: Runs,
    parts: Arc<Parts>,
}

/// What serving the API needs beside the runs.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) index: Index,
    pub(crate) log: Log,
    /// Set if there are webhooks.
    pub(crate) notices: Option<Notices>,
    pub(crate) schedules: Schedules,
    pub(crate) uploads: Uploads,
    pub(crate) mcp: Arc<mcp::Shared>,
    /// Those that the deployment adds.
    pub(crate) floor_policies: Arc<[run::AddedPolicy]>,
    pub(crate) abandoned: abandoned::Queue,
    pub(crate) inlined: http::stored::Inlined,
    /// Set if the web console is served.
    pub(crate) console: Option<Arc<ConsoleOptions>>,
    /// On cancellation, streams end with a final error and new requests are refused.
    pub(crate) stop: CancellationToken,
}

/// A stream of messages in answer to a request.
pub(crate) type MessageStream<T> = BoxStream<'static, Result<T, ApiError>>;

/// Compiles the tools of a request.
async fn compiled(tools: Vec<v1::RequestTool>) -> Result<CustomTools, RequestError> {
    offload::run_unless(custom::is_quick(&tools), || custom_tools(tools)).await
}

impl Deref for Api {
    type Target = Parts;

    fn deref(&self) -> &Parts {
        &self.parts
    }
}

impl Api {
    pub(crate) fn new(runs: Runs, parts: Parts) -> Self {
        Self { runs, parts: Arc::new(parts) }
    }

    /// The API in the name of the caller in the extensions of the request.
    pub(crate) fn by(&self, extensions: &::http::Extensions) -> Self {
        Self { runs: self.runs.by(extensions), parts: Arc::clone(&self.parts) }
    }

    /// The API for a client that knows the tools by their names in this form.
    pub(crate) fn in_form(mut self, form: Format) -> Self {
        self.runs.form = Some(form);
        self
    }

    /// Converts a request for a new run. Its own tools are compiled only if its caller may submit it.
    async fn new_run(&self, command: &'static str, mut request: v1::CreateRunRequest) -> Result<NewRun, RequestError> {
        let tools = std::mem::take(&mut request.request_tools);
        if tools.is_empty() {
            return new_run(request, CustomTools::new());
        }
        let tools = async {
            let (tenant, id) = whose(&request.tenant, &request.request_id)?;
            self.runs.may_submit(command, (tenant, id.as_ref()), request.calls.len()).await?;
            compiled(tools).await
        };
        let tools = Box::pin(tools).await?;
        new_run(request, tools)
    }

    pub(crate) async fn create_run(&self, request: v1::CreateRunRequest) -> Result<v1::CreateRunResponse, ApiError> {
        let new = self.new_run("CreateRun", request).await?;
        let run = self.runs.create(new).await?;
        Ok(v1::CreateRunResponse { run: Some(run_out(&run)) })
    }

    pub(crate) async fn execute_run(&self, request: v1::ExecuteRunRequest) -> Result<Box<Reader>, ApiError> {
        let policy = self.floor_policy(request.floor_policy(), &request.floor_policy_name)?;
        let run = request.run.ok_or_else(|| ApiError::malformed("run", "run: is missing".to_owned()))?;
        let new = self.new_run("ExecuteRun", run).await?;
        Ok(self.runs.execute(new, policy).await?)
    }

    /// The floor policy that a reader chose.
    fn floor_policy(&self, wire: v1::FloorPolicy, name: &str) -> Result<run::FloorPolicy, ApiError> {
        if name.is_empty() {
            return Ok(api::floor_policy(wire));
        }
        let malformed =
            |reason: String| ApiError::malformed("floor_policy_name", format!("floor_policy_name: {reason}"));
        if wire != v1::FloorPolicy::Unspecified {
            return Err(malformed("stands beside floor_policy: give one of them".to_owned()));
        }
        let added = self.floor_policies.iter().find(|added| added.name == name);
        added.map(|added| run::FloorPolicy::Added(*added)).ok_or_else(|| {
            let names: Vec<&str> = self.floor_policies.iter().map(|added| added.name).collect();
            let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            malformed(format!("{name:?} is unknown; this coordinator adds: {names}"))
        })
    }

    pub(crate) async fn watch_run(&self, request: v1::WatchRunRequest) -> Result<Box<Reader>, ApiError> {
        let policy = self.floor_policy(request.floor_policy(), &request.floor_policy_name)?;
        Ok(self.runs.watch(run_id(&request.run_id)?, policy, request.after_sequence).await?)
    }

    pub(crate) async fn get_run(&self, request: v1::GetRunRequest) -> Result<v1::GetRunResponse, ApiError> {
        let run = self.runs.get(run_id(&request.run_id)?).await?;
        Ok(v1::GetRunResponse { run: Some(run_out(&run)) })
    }

    pub(crate) async fn append_calls(
        &self,
        request: v1::AppendCallsRequest,
    ) -> Result<v1::AppendCallsResponse, ApiError> {
        let (id, mut calls) = (run_id(&request.run_id)?, asked(request.calls)?);
        conversation::give(request.conversation, &mut calls, false)?;
        let approved = approved_in(&request.approve, &calls)?;
        if !request.request_tools.is_empty() {
            Box::pin(self.runs.may_append(id, calls.len())).await?;
        }
        let tools = compiled(request.request_tools).await?;
        self.runs.give_files_in(id, &mut calls, &files(request.files)?).await?;
        let run = self.runs.append_calls(id, &calls, &tools, &approved).await?;
        Ok(v1::AppendCallsResponse { run: Some(run_out(&run)) })
    }

    pub(crate) async fn close_run(&self, request: v1::CloseRunRequest) -> Result<v1::CloseRunResponse, ApiError> {
        let run = self.runs.close(run_id(&request.run_id)?).await?;
        Ok(v1::CloseRunResponse { run: Some(run_out(&run)) })
    }

    pub(crate) async fn submit_tool_outputs(
        &self,
        request: v1::SubmitToolOutputsRequest,
    ) -> Result<v1::SubmitToolOutputsResponse, ApiError> {
        let answers = request.outputs.into_iter().enumerate().map(|(index, output)| answer(index, output));
        let answers = answers.collect::<Result<Vec<_>, _>>()?;
        let run = self.runs.submit_outputs(run_id(&request.run_id)?, &answers, request.all_required).await?;
        Ok(v1::SubmitToolOutputsResponse { run: Some(self.runs.shown(&run)) })
    }

    pub(crate) async fn create_answer_token(
        &self,
        request: v1::CreateAnswerTokenRequest,
    ) -> Result<v1::CreateAnswerTokenResponse, ApiError> {
        let (run, call) = (run_id(&request.run_id)?, call_id(&request.call_id)?);
        let (token, until) = self.runs.answer_token(run, &call, timeout(|| "lifetime", request.lifetime)?).await?;
        Ok(v1::CreateAnswerTokenResponse { token, expire_time: Some(api::timestamp(until)) })
    }

    pub(crate) async fn decide_calls(
        &self,
        request: v1::DecideCallsRequest,
    ) -> Result<v1::DecideCallsResponse, ApiError> {
        let decisions = request.decisions.into_iter().enumerate().map(|(index, wire)| decision(index, wire));
        let decisions = decisions.collect::<Result<Vec<_>, _>>()?;
        let run = self.runs.decide(run_id(&request.run_id)?, decisions).await?;
        Ok(v1::DecideCallsResponse { run: Some(run_out(&run)) })
    }

    pub(crate) async fn cancel_run(&self, request: v1::CancelRunRequest) -> Result<v1::CancelRunResponse, ApiError> {
        let run = self.runs.cancel_run(run_id(&request.run_id)?, reason(&request.reason)?).await?;
        Ok(v1::CancelRunResponse { run: Some(run_out(&run)) })
    }

    pub(crate) async fn cancel_call(&self, request: v1::CancelCallRequest) -> Result<v1::CancelCallResponse, ApiError> {
        let call = call_id(&request.call_id)?;
        let run = self.runs.cancel_call(run_id(&request.run_id)?, &call, reason(&request.reason)?).await?;
        Ok(v1::CancelCallResponse { run: Some(run_out(&run)) })
    }

    pub(crate) async fn explain_call(
        &self,
        request: v1::ExplainCallRequest,
    ) -> Result<v1::ExplainCallResponse, ApiError> {
        let call_id = call_id(&request.call_id)?;
        let run = self.runs.get(run_id(&request.run_id)?).await?;
        let call = run.find(&call_id).ok_or(RequestError::Rejected(CommandError::UnknownCall { call: call_id }))?;
        let (why, call) = (self.runs.explain_fully(&run, call).await, Some(api::call_in(&run, call)));
        Ok(v1::ExplainCallResponse { why, call })
    }

    pub(crate) async fn redrive_call(
        &self,
        request: v1::RedriveCallRequest,
    ) -> Result<v1::RedriveCallResponse, ApiError> {
        let run = self.runs.redrive(run_id(&request.run_id)?, &call_id(&request.call_id)?).await?;
        Ok(v1::RedriveCallResponse { run: Some(run_out(&run)) })
    }

    pub(crate) async fn drop_call(&self, request: v1::DropCallRequest) -> Result<v1::DropCallResponse, ApiError> {
        let run = self.runs.drop_call(run_id(&request.run_id)?, &call_id(&request.call_id)?).await?;
        Ok(v1::DropCallResponse { run: Some(run_out(&run)) })
    }
}
