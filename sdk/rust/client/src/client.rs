//! The connection to a coordinator, and every request that it takes.

use std::error::Error as _;
use std::time::Duration;

use futures::{Stream, TryStreamExt as _};
use proto::v1;
use proto::v1::fleet_service_client::FleetServiceClient;
use proto::v1::index_service_client::IndexServiceClient;
use proto::v1::object_service_client::ObjectServiceClient;
use proto::v1::run_service_client::RunServiceClient;
use proto::v1::schedule_service_client::ScheduleServiceClient;
use proto::v1::tool_service_client::ToolServiceClient;
use proto::v1::webhook_service_client::WebhookServiceClient;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Response, Status};

use crate::backoff::Backoff;
use crate::call_stream::CallEvent;
use crate::connection::{Connection, Key};
use crate::error::{Error, reason_code};
use crate::watch::{Floor, Watch};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A coordinator whose machine died sends nothing; after these two times its stream counts as broken.
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Largest response: a run of 128 calls, with results and arguments of 256 KiB each.
pub(crate) const RESPONSE_BYTES_MAX: usize = 80 * 1024 * 1024;
/// Runs or calls of one page: more would not be given.
const PAGE_MAX: usize = 500;

/// The id of the call of a run of its own, as the coordinator would make it.
const ONLY_CALL: &str = "call_0";

/// The connection, which adds the caller's key to every request.
type Transport = InterceptedService<Channel, Key>;

/// A connection to a coordinator. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    url: String,
    pub(crate) transport: Transport,
    pub(crate) runs: RunServiceClient<Transport>,
    tools: ToolServiceClient<Transport>,
    index: IndexServiceClient<Transport>,
    fleet: FleetServiceClient<Transport>,
    pub(crate) objects: ObjectServiceClient<Transport>,
    pub(crate) schedules: ScheduleServiceClient<Transport>,
    webhooks: WebhookServiceClient<Transport>,
}

impl Client {
    /// Connects. Fails at once if no coordinator is there; one that goes away later is waited for.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn connect(connection: &Connection) -> Result<Self, Error> {
        let endpoint = connection
            .endpoint()?
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| Error::Unreachable { url: connection.url().to_owned(), reason: root_cause(&error) })?;
        let transport = InterceptedService::new(channel, connection.key()?);
        Ok(Self {
            url: connection.url().to_owned(),
            runs: RunServiceClient::new(transport.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX),
            tools: ToolServiceClient::new(transport.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX),
            index: IndexServiceClient::new(transport.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX),
            fleet: FleetServiceClient::new(transport.clone()),
            schedules: ScheduleServiceClient::new(transport.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX),
            webhooks: WebhookServiceClient::new(transport.clone()).max_decoding_message_size(RESPONSE_BYTES_MAX),
            objects: ObjectServiceClient::new(transport.clone()),
            transport,
        })
    }

    /// At most `limit` parked notifications, the oldest first.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn parked_webhooks(&self, endpoint: String, limit: usize) -> Result<Vec<v1::ParkedWebhook>, Error> {
        let mut request = v1::ListParkedWebhooksRequest { endpoint, ..v1::ListParkedWebhooksRequest::default() };
        let mut parked = Vec::new();
        loop {
            request.page_size = u32::try_from(limit - parked.len()).unwrap_or(u32::MAX);
            let page = self.persist(async || self.webhooks.clone().list_parked_webhooks(request.clone()).await).await?;
            parked.extend(page.webhooks);
            if parked.len() >= limit || page.next_page_token.is_empty() {
                return Ok(parked);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Puts parked notifications of an endpoint back into its queue; without ids, all. Returns how many.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn redrive_webhooks(&self, endpoint: String, webhook_ids: Vec<String>) -> Result<u32, Error> {
        let request = v1::RedriveWebhooksRequest { endpoint, webhook_ids };
        Ok(self.persist(async || self.webhooks.clone().redrive_webhooks(request.clone()).await).await?.count)
    }

    /// All tools that the request selects, sorted by name.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn tools(&self, mut request: v1::ListToolsRequest) -> Result<v1::ListToolsResponse, Error> {
        let mut all = v1::ListToolsResponse::default();
        loop {
            let page = self.tools.clone().list_tools(request.clone()).await;
            let page = page.map_err(|status| self.error(status))?.into_inner();
            all.tools.extend(page.tools);
            all.refused.extend(page.refused);
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// One tool.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn tool(&self, name: &str) -> Result<v1::Tool, Error> {
        let request = v1::GetToolRequest { name: name.to_owned() };
        let response = self.tools.clone().get_tool(request).await.map_err(|status| self.error(status))?;
        present(response.into_inner().tool)
    }

    /// A run with its calls, as they are now.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn run(&self, run_id: &str) -> Result<v1::Run, Error> {
        let request = v1::GetRunRequest { run_id: run_id.to_owned() };
        let ask = || {
            let (mut runs, request) = (self.runs.clone(), request.clone());
            async move { runs.get_run(request).await }
        };
        present(self.repeat(ask).await?.run)
    }

    /// Cancels a run.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn cancel_run(&self, run_id: &str, reason: &str) -> Result<v1::Run, Error> {
        let request = v1::CancelRunRequest { run_id: run_id.to_owned(), reason: reason.to_owned() };
        let ask = || {
            let (mut runs, request) = (self.runs.clone(), request.clone());
            async move { runs.cancel_run(request).await }
        };
        present(self.repeat(ask).await?.run)
    }

    /// Cancels one call.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn cancel_call(&self, run_id: &str, call_id: &str, reason: &str) -> Result<v1::Run, Error> {
        let (run_id, call_id, reason) = (run_id.to_owned(), call_id.to_owned(), reason.to_owned());
        let request = v1::CancelCallRequest { run_id, call_id, reason };
        present(self.ask_runs(request, |mut runs, request| async move { runs.cancel_call(request).await }).await?.run)
    }

    /// Why a call is in its state, in words.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn explain(&self, run_id: &str, call_id: &str) -> Result<v1::ExplainCallResponse, Error> {
        let request = v1::ExplainCallRequest { run_id: run_id.to_owned(), call_id: call_id.to_owned() };
        self.ask_runs(request, |mut runs, request| async move { runs.explain_call(request).await }).await
    }

    /// Executes a parked call again, as a new run, which is returned.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn redrive(&self, run_id: &str, call_id: &str) -> Result<v1::Run, Error> {
        let request = v1::RedriveCallRequest { run_id: run_id.to_owned(), call_id: call_id.to_owned() };
        present(self.persist(async || self.runs.clone().redrive_call(request.clone()).await).await?.run)
    }

    /// Gives a parked call up.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn drop_call(&self, run_id: &str, call_id: &str) -> Result<v1::Run, Error> {
        let request = v1::DropCallRequest { run_id: run_id.to_owned(), call_id: call_id.to_owned() };
        present(self.persist(async || self.runs.clone().drop_call(request.clone()).await).await?.run)
    }

    /// Answers a call that waits for the client.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn submit(&self, run_id: &str, output: v1::ToolOutput) -> Result<v1::Run, Error> {
        let request =
            v1::SubmitToolOutputsRequest { run_id: run_id.to_owned(), outputs: vec![output], all_required: false };
        let ask = || {
            let (mut runs, request) = (self.runs.clone(), request.clone());
            async move { runs.submit_tool_outputs(request).await }
        };
        present(self.repeat(ask).await?.run)
    }

    /// Adds calls to a run that was left open. The request is sent once if a call has no id of its own, because such a
    /// call would be added again.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn append(&self, request: v1::AppendCallsRequest) -> Result<v1::Run, Error> {
        if request.calls.iter().any(|call| call.call_id.is_empty()) {
            let appended = self.runs.clone().append_calls(request).await.map_err(|status| self.error(status))?;
            return present(appended.into_inner().run);
        }
        let ask = || {
            let (mut runs, request) = (self.runs.clone(), request.clone());
            async move { runs.append_calls(request).await }
        };
        present(self.repeat(ask).await?.run)
    }

    /// Closes a run to further calls: it ends when its calls have ended.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn close(&self, run_id: &str) -> Result<v1::Run, Error> {
        let request = v1::CloseRunRequest { run_id: run_id.to_owned() };
        let ask = || {
            let (mut runs, request) = (self.runs.clone(), request.clone());
            async move { runs.close_run(request).await }
        };
        present(self.repeat(ask).await?.run)
    }

    /// Approves or rejects a call that waits for approval.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn decide(&self, run_id: String, decision: v1::CallDecision) -> Result<v1::Run, Error> {
        let request = v1::DecideCallsRequest { run_id, decisions: vec![decision] };
        present(self.ask_runs(request, |mut runs, request| async move { runs.decide_calls(request).await }).await?.run)
    }

    /// Pauses a tool or a pool: its queued calls wait.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn pause(&self, what: v1::pause_request::What, reason: String) -> Result<(), Error> {
        let request = v1::PauseRequest { what: Some(what), reason };
        self.fleet.clone().pause(request).await.map(drop).map_err(|status| self.error(status))
    }

    /// Resumes a tool or a pool.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn resume(&self, what: v1::resume_request::What) -> Result<(), Error> {
        let request = v1::ResumeRequest { what: Some(what) };
        self.fleet.clone().resume(request).await.map(drop).map_err(|status| self.error(status))
    }

    /// The paused tools and pools.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn paused(&self) -> Result<Vec<v1::Pause>, Error> {
        let listed = self.fleet.clone().list_pauses(v1::ListPausesRequest {}).await;
        Ok(listed.map_err(|status| self.error(status))?.into_inner().pauses)
    }

    /// All live workers of one pool, or of all if `pool` is empty, sorted by id.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn workers(&self, pool: String) -> Result<Vec<v1::Worker>, Error> {
        let mut request = v1::ListWorkersRequest { pool, ..v1::ListWorkersRequest::default() };
        let mut workers = Vec::new();
        loop {
            let page = self.fleet.clone().list_workers(request.clone()).await;
            let page = page.map_err(|status| self.error(status))?.into_inner();
            workers.extend(page.workers);
            if page.next_page_token.is_empty() {
                return Ok(workers);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Requests a worker to take no more calls and to stop after those that it has.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn drain_worker(&self, worker_id: String) -> Result<(), Error> {
        let request = v1::DrainWorkerRequest { worker_id };
        self.fleet.clone().drain_worker(request).await.map(drop).map_err(|status| self.error(status))
    }

    /// A token with which any client can answer this one call until the token expires.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn answer_token(
        &self,
        run_id: String,
        call_id: String,
        lifetime: Option<Duration>,
    ) -> Result<v1::CreateAnswerTokenResponse, Error> {
        let lifetime = lifetime.and_then(|lifetime| lifetime.try_into().ok());
        let request = v1::CreateAnswerTokenRequest { run_id, call_id, lifetime };
        self.ask_runs(request, |mut runs, request| async move { runs.create_answer_token(request).await }).await
    }

    /// At most `limit` runs, the newest first, and how much of them the index knows.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn list_runs(
        &self,
        mut request: v1::ListRunsRequest,
        limit: usize,
    ) -> Result<(Vec<v1::RunSummary>, Option<v1::IndexCoverage>), Error> {
        let mut runs = Vec::new();
        loop {
            request.page_size = page_size(limit - runs.len());
            let page = self.index.clone().list_runs(request.clone()).await.map_err(|status| self.error(status))?;
            let page = page.into_inner();
            runs.extend(page.runs);
            runs.truncate(limit);
            if page.next_page_token.is_empty() || runs.len() >= limit {
                return Ok((runs, page.coverage));
            }
            request.page_token = page.next_page_token;
        }
    }

    /// At most `limit` calls, those of the newest run first, and how much of them the index knows.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn list_calls(
        &self,
        mut request: v1::ListCallsRequest,
        limit: usize,
    ) -> Result<(Vec<v1::ListedCall>, Option<v1::IndexCoverage>), Error> {
        let mut calls = Vec::new();
        loop {
            request.page_size = page_size(limit - calls.len());
            let page = self.index.clone().list_calls(request.clone()).await.map_err(|status| self.error(status))?;
            let page = page.into_inner();
            calls.extend(page.calls);
            calls.truncate(limit);
            if page.next_page_token.is_empty() || calls.len() >= limit {
                return Ok((calls, page.coverage));
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Cancels the calls that the request selects, calls `each` for each of them, and returns how many there were, and
    /// what the index covered: unless it was complete, matching calls may not have been cancelled.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn cancel_calls<E: From<Error>>(
        &self,
        request: v1::CancelCallsRequest,
        mut each: impl FnMut(&v1::CancelledCall) -> Result<(), E>,
    ) -> Result<(usize, Option<v1::IndexCoverage>), E> {
        let stream = self.index.clone().cancel_calls(request).await.map_err(|status| self.error(status))?;
        let (mut stream, mut count, mut coverage) = (stream.into_inner(), 0, None);
        while let Some(message) = stream.message().await.map_err(|status| self.error(status))? {
            count += message.calls.len();
            message.calls.iter().try_for_each(&mut each)?;
            coverage = message.coverage;
        }
        Ok((count, coverage))
    }

    /// Requests the erasure of runs in one part of the log, or counts them.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn erase_runs(&self, request: v1::EraseRunsRequest) -> Result<v1::EraseRunsResponse, Error> {
        let answer = self.runs.clone().erase_runs(request).await;
        Ok(answer.map_err(|status| self.error(status))?.into_inner())
    }

    /// How many runs and calls are in which state.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn counts(&self) -> Result<v1::CountRunsResponse, Error> {
        let counts = self.index.clone().count_runs(v1::CountRunsRequest::default()).await;
        Ok(counts.map_err(|status| self.error(status))?.into_inner())
    }

    /// Compares the index with the log; the messages are the differences.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn verify_index(
        &self,
    ) -> Result<impl Stream<Item = Result<v1::VerifyIndexResponse, Error>> + use<>, Error> {
        let messages = self.index.clone().verify_index(v1::VerifyIndexRequest {}).await;
        let (messages, client) = (messages.map_err(|status| self.error(status))?.into_inner(), self.clone());
        Ok(messages.map_err(move |status| client.error(status)))
    }

    /// Empties the index, which is then rebuilt from the log.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn rebuild_index(&self) -> Result<(), Error> {
        let emptied = self.index.clone().rebuild_index(v1::RebuildIndexRequest {}).await;
        emptied.map(|_| ()).map_err(|status| self.error(status))
    }

    /// Executes calls as a run and returns its ordered output.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn execute(&self, request: impl Into<v1::ExecuteRunRequest>) -> Result<Watch, Error> {
        let request = request.into();
        let floor = Floor { policy: request.floor_policy, name: request.floor_policy_name.clone() };
        let stream = self.runs.clone().execute_run(request).await.map_err(|status| self.error(status))?;
        Ok(Watch::executing(self.clone(), stream.into_inner(), floor))
    }

    /// Executes one call as a run of its own and returns its output piece by piece. If its tool does not stream, the
    /// call is not executed: it ends with `STREAMING_UNSUPPORTED`.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn stream_call(
        &self,
        mut call: v1::NewCall,
    ) -> Result<impl Stream<Item = Result<CallEvent, Error>> + Send + use<>, Error> {
        if call.call_id.is_empty() {
            ONLY_CALL.clone_into(&mut call.call_id);
        }
        let call_id = call.call_id.clone();
        let calls = vec![v1::NewCall { stream: true, ..call }];
        let watch = self.execute(v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() }).await?;
        Ok(watch.of_call(call_id))
    }

    /// Accepts calls as a run, without following it. Give it a `request_id`, because it may be sent several times.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn create(&self, request: v1::CreateRunRequest) -> Result<v1::Run, Error> {
        let ask = || {
            let (mut runs, request) = (self.runs.clone(), request.clone());
            async move { runs.create_run(request).await }
        };
        present(self.repeat(ask).await?.run)
    }

    /// The output of a run, from its beginning or from after a sequence number.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn watch(&self, run_id: &str, after: Option<u64>, floor: v1::FloorPolicy) -> Result<Watch, Error> {
        self.watch_in(run_id, after, floor.into()).await
    }

    /// As [`Self::watch`], in the order of a floor policy that the deployment adds to its coordinators.
    ///
    /// # Errors
    /// As [`Self::watch`], and if the coordinator has no policy of the name.
    pub async fn watch_by_name(&self, run_id: &str, after: Option<u64>, floor: &str) -> Result<Watch, Error> {
        self.watch_in(run_id, after, Floor { name: floor.to_owned(), ..Floor::default() }).await
    }

    pub(crate) async fn watch_in(&self, run_id: &str, after: Option<u64>, floor: Floor) -> Result<Watch, Error> {
        let mut watch = Watch::of_run(self.clone(), run_id, after, floor);
        watch.open().await.map_err(|status| self.error(status))?;
        Ok(watch)
    }

    /// Repeats the request while the coordinator is unavailable. For requests that are safe to repeat.
    pub(crate) async fn persist<T>(&self, ask: impl AsyncFn() -> Result<Response<T>, Status>) -> Result<T, Error> {
        self.repeat(|| ask()).await
    }

    /// As [`Self::persist`]. The compiler can prove that the future of such a request may move to another thread. It
    /// cannot for an async closure.
    pub(crate) async fn repeat<T, F>(&self, ask: impl Fn() -> F) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut backoff = Backoff::new();
        loop {
            match ask().await {
                Ok(response) => return Ok(response.into_inner()),
                Err(status) if passes(&status) && backoff.has_patience() => backoff.wait().await,
                Err(status) => return Err(self.error(status)),
            }
        }
    }

    /// As [`Self::repeat`], with a client of runs and a copy of the request for each time.
    async fn ask_runs<Q: Clone, T, F>(
        &self,
        request: Q,
        ask: impl Fn(RunServiceClient<Transport>, Q) -> F,
    ) -> Result<T, Error>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        self.repeat(|| ask(self.runs.clone(), request.clone())).await
    }

    pub(crate) fn error(&self, status: Status) -> Error {
        if is_of_transport(&status) {
            let reason = status.source().map_or_else(|| status.message().to_owned(), root_cause);
            return Error::Unreachable { url: self.url.clone(), reason };
        }
        Error::Refused(Box::new(status))
    }
}

/// As many of the remaining items as one page brings.
fn page_size(wanted: usize) -> i32 {
    i32::try_from(wanted.clamp(1, PAGE_MAX)).unwrap_or(i32::MAX)
}

/// Whether the same request may succeed in a moment, perhaps at another coordinator.
pub(crate) fn passes(status: &Status) -> bool {
    status.code() == Code::Unavailable || is_of_transport(status)
}

/// Whether the connection failed, or a proxy answered, and not the coordinator.
fn is_of_transport(status: &Status) -> bool {
    status.source().is_some() || (status.code() == Code::Unavailable && reason_code(status).is_none())
}

fn root_cause<E: std::error::Error + ?Sized>(error: &E) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    // The error of the TLS library for an answer in plain text.
    if text.contains("InvalidContentType") {
        return "no TLS is spoken there: use http://".to_owned();
    }
    text
}

/// A field that every response of a correct coordinator has.
fn present<T>(part: Option<T>) -> Result<T, Error> {
    part.ok_or_else(|| Error::Refused(Box::new(Status::internal("the coordinator's response is empty"))))
}
