//! The only place of the scenarios that touches the API.

use std::net::SocketAddr;
use std::time::Duration;

use proto::v1::fleet_service_client::FleetServiceClient;
use proto::v1::index_service_client::IndexServiceClient;
use proto::v1::object_service_client::ObjectServiceClient;
use proto::v1::run_event::Event;
use proto::v1::run_service_client::RunServiceClient;
use proto::v1::schedule_service_client::ScheduleServiceClient;
use proto::v1::tool_service_client::ToolServiceClient;
use proto::v1::webhook_service_client::WebhookServiceClient;
use proto::v1::{self, FloorPolicy, RunEvent};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_types::StatusExt as _;

use crate::PATIENCE;

/// A connection whose requests carry the caller's credentials.
pub type Transport = InterceptedService<Channel, Key>;

/// The credentials; none if the coordinator does not authenticate callers.
#[derive(Debug, Clone)]
pub struct Key(Option<MetadataValue<Ascii>>);

impl Interceptor for Key {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(key) = &self.0 {
            request.metadata_mut().insert("authorization", key.clone());
        }
        Ok(request)
    }
}

#[derive(Debug, Clone)]
pub struct Client {
    channel: Channel,
    pub runs: RunServiceClient<Transport>,
    pub tools: ToolServiceClient<Transport>,
    pub index: IndexServiceClient<Transport>,
    pub fleet: FleetServiceClient<Transport>,
    pub objects: ObjectServiceClient<Transport>,
    pub schedules: ScheduleServiceClient<Transport>,
    pub webhooks: WebhookServiceClient<Transport>,
}

/// A call of `tool` under the id `id`.
#[must_use]
pub fn call(id: &str, tool: &str, arguments: serde_json::Value) -> v1::NewCall {
    let (call_id, tool, arguments) = (id.to_owned(), tool.to_owned(), arguments.to_string());
    v1::NewCall { call_id, tool, arguments, ..v1::NewCall::default() }
}

#[must_use]
pub fn client_answer(id: &str, text: &str) -> v1::ToolOutput {
    let body = Some(v1::content::Body::Text(text.to_owned()));
    v1::ToolOutput {
        call_id: id.to_owned(),
        result: vec![v1::Content { body, ..v1::Content::default() }],
        error: String::new(),
    }
}

/// The id of a run that does not exist: that of one that does, with another last digit.
#[must_use]
pub fn unlike(id: &str) -> String {
    let (rest, last) = id.split_at(id.len() - 1);
    format!("{rest}{}", if last == "0" { "1" } else { "0" })
}

/// The stable reason of an error.
#[must_use]
pub fn reason(status: &Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

impl Client {
    pub async fn connect(address: SocketAddr) -> Self {
        let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address makes a URL");
        // The transport drops a connection on which too many small frames wait to be read; the window sets how many.
        let endpoint = endpoint.initial_connection_window_size(16 * 1024 * 1024);
        Self::through(endpoint.connect().await.expect("the coordinator listens"))
    }

    /// The same connection with a key or a token.
    #[must_use]
    pub fn with_key(&self, key: &str) -> Self {
        Self::over(&self.channel, Key(Some(format!("Bearer {key}").parse().expect("a key is a header"))))
    }

    /// A client of the server at the other end.
    #[must_use]
    pub fn through(channel: Channel) -> Self {
        Self::over(&channel, Key(None))
    }

    /// The connection.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    fn over(channel: &Channel, key: Key) -> Self {
        let transport = InterceptedService::new(channel.clone(), key);
        Self {
            channel: channel.clone(),
            runs: RunServiceClient::new(transport.clone()),
            tools: ToolServiceClient::new(transport.clone()),
            index: IndexServiceClient::new(transport.clone()),
            fleet: FleetServiceClient::new(transport.clone()),
            schedules: ScheduleServiceClient::new(transport.clone()),
            webhooks: WebhookServiceClient::new(transport.clone()),
            objects: ObjectServiceClient::new(transport),
        }
    }

    pub async fn wait_for_tool(&self, name: &str) {
        let known = async {
            let mut tools = self.tools.clone();
            while tools.get_tool(v1::GetToolRequest { name: name.to_owned() }).await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, known).await.expect("the tool becomes known");
    }

    /// Whether the coordinator's index covers all runs.
    pub async fn index_is_complete(&self) -> bool {
        let counts = self.index.clone().count_runs(v1::CountRunsRequest::default()).await.expect("the index answers");
        counts.into_inner().coverage.is_some_and(|known| known.complete)
    }

    pub async fn create(&self, calls: Vec<v1::NewCall>) -> Run {
        let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
        let response = self.runs.clone().create_run(request).await.expect("the run is accepted");
        let id = response.into_inner().run.expect("the response has the run").run_id;
        Run { client: self.clone(), id }
    }

    pub async fn execute(&self, calls: Vec<v1::NewCall>) -> Stream {
        let run = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
        self.execute_request(run).await.expect("the run is accepted")
    }

    /// # Errors
    /// The coordinator's refusal.
    pub async fn execute_request(&self, request: impl Into<v1::ExecuteRunRequest>) -> Result<Stream, Status> {
        let stream = self.runs.clone().execute_run(request.into()).await?.into_inner();
        Ok(Stream::new(self, Messages::Execute(stream)))
    }
}

/// A run by its id, seen through one client.
#[derive(Debug, Clone)]
pub struct Run {
    pub client: Client,
    pub id: String,
}

impl Run {
    #[must_use]
    pub fn through(&self, client: &Client) -> Self {
        Self { client: client.clone(), id: self.id.clone() }
    }

    pub async fn get(&self) -> v1::Run {
        let request = v1::GetRunRequest { run_id: self.id.clone() };
        let response = self.client.runs.clone().get_run(request).await.expect("the run is there");
        response.into_inner().run.expect("the response has the run")
    }

    pub async fn watch(&self, policy: FloorPolicy) -> Stream {
        self.watch_after(policy, None).await.expect("the run is there")
    }

    /// # Errors
    /// The coordinator's refusal.
    pub async fn watch_after(&self, policy: FloorPolicy, after: Option<u64>) -> Result<Stream, Status> {
        let floor_policy = policy.into();
        self.watch_as(v1::WatchRunRequest { after_sequence: after, floor_policy, ..Default::default() }).await
    }

    /// In the order of a floor policy that the coordinator adds.
    ///
    /// # Errors
    /// The coordinator's refusal.
    pub async fn watch_by_name(&self, name: &str, after: Option<u64>) -> Result<Stream, Status> {
        let floor_policy_name = name.to_owned();
        self.watch_as(v1::WatchRunRequest { after_sequence: after, floor_policy_name, ..Default::default() }).await
    }

    async fn watch_as(&self, request: v1::WatchRunRequest) -> Result<Stream, Status> {
        let request = v1::WatchRunRequest { run_id: self.id.clone(), ..request };
        let stream = self.client.runs.clone().watch_run(request).await?.into_inner();
        Ok(Stream::new(&self.client, Messages::Watch(stream)))
    }

    /// # Errors
    /// The coordinator's refusal.
    pub async fn submit(&self, outputs: Vec<v1::ToolOutput>) -> Result<v1::Run, Status> {
        let request = v1::SubmitToolOutputsRequest { run_id: self.id.clone(), outputs, all_required: false };
        let response = self.client.runs.clone().submit_tool_outputs(request).await?;
        Ok(response.into_inner().run.expect("the response has the run"))
    }

    pub async fn cancel(&self, reason: &str) {
        let request = v1::CancelRunRequest { run_id: self.id.clone(), reason: reason.to_owned() };
        self.client.runs.clone().cancel_run(request).await.expect("a run can be cancelled");
    }
}

#[derive(Debug)]
enum Messages {
    Execute(Streaming<v1::ExecuteRunResponse>),
    Watch(Streaming<v1::WatchRunResponse>),
}

/// An output stream and its events so far.
#[derive(Debug)]
pub struct Stream {
    client: Box<Client>,
    messages: Messages,
    pub seen: Vec<RunEvent>,
    pub heartbeats: usize,
    pub ended: bool,
}

impl Stream {
    fn new(client: &Client, messages: Messages) -> Self {
        Self { client: Box::new(client.clone()), messages, seen: Vec::new(), heartbeats: 0, ended: false }
    }

    /// Takes in the next message. `false` at the end, which must be a terminal message.
    ///
    /// # Errors
    /// When the connection breaks.
    pub async fn next(&mut self) -> Result<bool, Status> {
        let parts = match &mut self.messages {
            Messages::Execute(stream) => stream.message().await?.map(|m| (m.events, m.heartbeat, m.end)),
            Messages::Watch(stream) => stream.message().await?.map(|m| (m.events, m.heartbeat, m.end)),
        };
        let Some((events, heartbeat, end)) = parts else {
            assert!(self.ended, "a stream ends with a terminal message");
            return Ok(false);
        };
        self.seen.extend(events);
        self.heartbeats += usize::from(heartbeat.is_some());
        self.ended = end.is_some();
        Ok(true)
    }

    /// Reads to the end.
    pub async fn to_end(mut self) -> Vec<RunEvent> {
        let read = async { while self.next().await.expect("the stream does not break") {} };
        if tokio::time::timeout(PATIENCE, read).await.is_err() {
            panic!("the run does not end in time: {}", Box::pin(self.why_open()).await);
        }
        self.seen
    }

    /// Reads until an event is seen that is `wanted`.
    pub async fn until(&mut self, wanted: impl Fn(&Event) -> bool) {
        let is_seen = |seen: &[RunEvent]| seen.iter().filter_map(|event| event.event.as_ref()).any(&wanted);
        let read = async {
            while !is_seen(&self.seen) {
                assert!(self.next().await.expect("the stream does not break"), "the stream ended: {:#?}", self.seen);
            }
        };
        tokio::time::timeout(PATIENCE, read).await.expect("the event comes in time");
    }

    /// What the calls wait for that have not completed, as the coordinator explains it.
    async fn why_open(&self) -> String {
        let Some(run) = self.opened(&self.client) else { return format!("{:#?}", self.seen) };
        let mut why = Vec::new();
        for call in run.get().await.calls.into_iter().filter(|call| call.state() != v1::CallState::Completed) {
            let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: call.call_id };
            why.push(self.client.runs.clone().explain_call(request).await.map(|answer| answer.into_inner().why));
        }
        format!("run {}, {} events seen, {why:#?}", run.id, self.seen.len())
    }

    /// The run that the stream opened.
    #[must_use]
    pub fn run(&self, client: &Client) -> Run {
        self.opened(client).expect("the first event names the run")
    }

    fn opened(&self, client: &Client) -> Option<Run> {
        let id = self.seen.iter().find_map(|event| match &event.event {
            Some(Event::RunOpened(opened)) => Some(opened.run_id.clone()),
            _ => None,
        });
        id.map(|id| Run { client: client.clone(), id })
    }
}
