//! The same call through Toolyard: gRPC in, an ordered stream out.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use async_nats::jetstream;
use harness::Admin;
use proto::names;
use proto::v1::run_event::Event;
use proto::v1::{self, run_service_client::RunServiceClient};
use tonic::transport::Channel;

use crate::roles::{self, Process};
use crate::submission::Submission;

/// Small unread messages that a connection may hold before the transport takes them for an attack; see
/// `docs/reference/client-guide.md`.
const CONNECTION_WINDOW_BYTES: u32 = 16 * 1024 * 1024;

/// The processes of a yard.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fleet {
    pub(crate) coordinators: usize,
    /// Processes of workers.
    pub(crate) workers: u32,
    /// Workers in each process.
    pub(crate) workers_each: u32,
    pub(crate) slots: u32,
    /// Tools beside those that are called.
    pub(crate) tools: u32,
    /// Whether the log is too small for all calls.
    pub(crate) has_short_log: bool,
}

impl Default for Fleet {
    fn default() -> Self {
        // As many slots as the floor's worker takes jobs.
        Self { coordinators: 1, workers: 1, workers_each: 1, slots: 512, tools: 0, has_short_log: false }
    }
}

/// How the processes of a yard are looked at.
#[derive(Debug, Clone, Default)]
pub(crate) struct Looked {
    /// Admin ports of the only coordinator and of the only worker.
    pub(crate) admin: Option<[Admin; 2]>,
    /// The collector of their metrics, and of traces of 1 % of all requests.
    pub(crate) collector: Option<String>,
    /// The store of the coordinators' index.
    pub(crate) redis: Option<String>,
    /// The folder of the coordinators' history.
    pub(crate) history: Option<PathBuf>,
    /// Whether workers host an MCP server.
    pub(crate) mcp: bool,
}

impl Looked {
    /// The environments of coordinators and of workers.
    pub(crate) fn environments(&self) -> [Vec<(&'static str, String)>; 2] {
        [0, 1].map(|of| {
            let admin = self.admin.map(|admin| ("TOOLYARD_ADMIN_LISTEN", admin[of].address().to_string()));
            let collector = self.collector.iter().flat_map(|url| {
                [("OTEL_EXPORTER_OTLP_ENDPOINT", url.clone()), ("OTEL_TRACES_SAMPLER_ARG", "0.01".to_owned())]
            });
            let redis = self.redis.iter().filter(|_| of == 0).map(|url| ("TOOLYARD_REDIS_URL", url.clone()));
            let history = self.history.iter().filter(|_| of == 0);
            let history = history.map(|folder| ("TOOLYARD_HISTORY", folder.display().to_string()));
            let mcp = (self.mcp && of == 1).then(|| (crate::mcp::VARIABLE, "1".to_owned()));
            admin.into_iter().chain(collector).chain(redis).chain(history).chain(mcp).collect()
        })
    }
}

/// A coordinator serves 256 requests of a connection at once.
const REQUESTS_PER_CONNECTION: usize = 256;
const CONNECTIONS_EACH: usize = 10;

pub(crate) struct Yard {
    pub(crate) broker: local::Broker,
    pub(crate) coordinators: Vec<Process>,
    pub(crate) workers: Vec<Process>,
    /// One a coordinator, and then further ones to each. As many are used in turn as there are requests for.
    clients: Vec<RunServiceClient<Channel>>,
    used: AtomicUsize,
    /// To the first coordinator.
    submission: Submission,
    turn: AtomicUsize,
}

impl Yard {
    pub(crate) async fn start(fleet: Fleet) -> anyhow::Result<Self> {
        Self::start_looked_at(fleet, &Looked::default()).await
    }

    pub(crate) async fn start_looked_at(fleet: Fleet, looked: &Looked) -> anyhow::Result<Self> {
        Self::start_with(fleet, looked, if fleet.has_short_log { &roles::SHORT_LOG } else { &[] }).await
    }

    /// With further arguments of the coordinators.
    pub(crate) async fn start_with(fleet: Fleet, looked: &Looked, more: &[&str]) -> anyhow::Result<Self> {
        let [of_coordinators, of_workers] = looked.environments();
        let options = local::BrokerOptions { monitored: true, ..local::BrokerOptions::default() };
        let broker = local::Broker::start(options, |line| eprintln!("{line}")).await?;
        let (mut coordinators, mut workers, mut clients) = (Vec::new(), Vec::new(), Vec::new());
        let url = broker.url();
        let arguments = [&["coordinator", &url], more].concat();
        for _ in 0..fleet.coordinators {
            coordinators.push(roles::start(&arguments, &of_coordinators).await?);
        }
        for _ in 0..CONNECTIONS_EACH {
            for coordinator in &coordinators {
                clients.push(connect(&coordinator.ready).await?);
            }
        }
        let [slots, each, tools] = [fleet.slots, fleet.workers_each, fleet.tools].map(|number| number.to_string());
        for _ in 0..fleet.workers {
            let arguments = ["workers", &broker.url(), &slots, &each, &tools];
            workers.push(roles::start(&arguments, &of_workers).await?);
        }
        let submission = Submission::open(clients.first().context("a coordinator")?.clone()).await?;
        let (used, turn) = (AtomicUsize::new(coordinators.len()), AtomicUsize::default());
        let yard = Self { broker, coordinators, workers, clients, used, submission, turn };
        for client in yard.clients.iter().take(yard.coordinators.len()) {
            until_known(client).await?;
        }
        Ok(yard)
    }

    pub(crate) fn client(&self) -> RunServiceClient<Channel> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.clients[turn % self.used.load(Ordering::Relaxed)].clone()
    }

    /// Uses as many connections as so many requests at once need.
    pub(crate) fn make_way_for(&self, in_flight: usize) {
        let each = in_flight.div_ceil(REQUESTS_PER_CONNECTION * self.coordinators.len()).clamp(1, CONNECTIONS_EACH);
        self.used.store(each * self.coordinators.len(), Ordering::Relaxed);
    }

    /// More connections to the first coordinator.
    pub(crate) async fn connections(&self, count: usize) -> anyhow::Result<Vec<RunServiceClient<Channel>>> {
        let mut clients = Vec::new();
        for _ in 0..count {
            clients.push(connect(&self.coordinators[0].ready).await?);
        }
        Ok(clients)
    }

    pub(crate) fn call(&self) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        noop(self.client())
    }

    /// The same call, beside others on one stream.
    pub(crate) fn submitted_call(&self, tool: &str) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        self.submission.call(tool)
    }

    /// A call until its first chunk is here.
    pub(crate) fn first_chunk(&self) -> impl Future<Output = anyhow::Result<()>> + Send + use<> {
        let mut runs = self.client();
        async move {
            let mut stream = runs.execute_run(request(chunks(1, 64, 0))).await?.into_inner();
            while let Some(message) = stream.message().await? {
                if message.events.iter().any(|event| matches!(event.event, Some(Event::CallOutput(_)))) {
                    return Ok(());
                }
            }
            bail!("the stream ended without a chunk")
        }
    }

    /// The size of the log: entries and bytes.
    pub(crate) async fn log(&self) -> anyhow::Result<(u64, u64)> {
        let context = jetstream::new(async_nats::connect(self.broker.url()).await?);
        let stream = context.get_stream(names::STREAM).await?;
        let state = &stream.cached_info().state;
        Ok((state.messages, state.bytes))
    }
}

pub(crate) async fn connect(address: &str) -> anyhow::Result<RunServiceClient<Channel>> {
    let endpoint = Channel::from_shared(format!("http://{address}"))?;
    let channel = endpoint.initial_connection_window_size(CONNECTION_WINDOW_BYTES).connect().await?;
    Ok(RunServiceClient::new(channel))
}

/// The tools may take a moment to be known.
pub(crate) async fn until_known(client: &RunServiceClient<Channel>) -> anyhow::Result<()> {
    for _ in 0..100 {
        if noop(client.clone()).await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    noop(client.clone()).await.context("the tools do not become known")
}

pub(crate) async fn noop(runs: RunServiceClient<Channel>) -> anyhow::Result<()> {
    completed(runs, new_call("noop", "{}".to_owned())).await
}

/// Runs a call, which must complete.
pub(crate) async fn completed(mut runs: RunServiceClient<Channel>, call: v1::NewCall) -> anyhow::Result<()> {
    let mut stream = runs.execute_run(request(call)).await?.into_inner();
    let mut completed = false;
    while let Some(message) = stream.message().await? {
        completed |= message.events.iter().any(is_completed);
    }
    ensure!(completed, "the call did not complete");
    Ok(())
}

/// A call that sends a given number of chunks.
pub(crate) fn chunks(count: u32, bytes: u32, every_ms: u32) -> v1::NewCall {
    chunks_of("chunks", (count, bytes, every_ms))
}

/// The same call of a tool by another name.
pub(crate) fn chunks_of(tool: &str, (count, bytes, every_ms): (u32, u32, u32)) -> v1::NewCall {
    let arguments = serde_json::json!({ "count": count, "bytes": bytes, "every_ms": every_ms });
    new_call(tool, arguments.to_string())
}

pub(crate) fn new_call(tool: &str, arguments: String) -> v1::NewCall {
    v1::NewCall { tool: tool.to_owned(), arguments, ..v1::NewCall::default() }
}

pub(crate) fn request(call: v1::NewCall) -> v1::ExecuteRunRequest {
    v1::CreateRunRequest { calls: vec![call], ..v1::CreateRunRequest::default() }.into()
}

pub(crate) fn is_completed(event: &v1::RunEvent) -> bool {
    let Some(Event::CallEnded(ended)) = &event.event else { return false };
    ended.outcome.as_ref().is_some_and(|outcome| outcome.state() == v1::CallState::Completed)
}
