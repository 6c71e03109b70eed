//! All of Toolyard in one process, for `dev` and `demo`: a broker, a coordinator, and a worker with the built-in tools.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use coordinator::{ApiOptions, ConsoleOptions, Coordinator, History, HistoryLocation, LogOptions, Webhooks};
use hooks::Hooks;
use local::{Broker, BrokerOptions};
use nats::Credentials;
use run::PoolId;
use sandbox::{Network, Sandbox, Settings, Wanted};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::exit::Failure;
use crate::history::RETENTION;
use crate::sandboxing;
use crate::server::Server;

/// How long running calls may take to end. It is short because a user waits at the terminal.
pub(crate) const DRAIN: Duration = Duration::from_secs(10);
const POOL: &str = "local";
/// How long the coordinator may take to hear of the worker's tools: milliseconds, on a machine that is not too busy.
const KNOWN_LIMIT: Duration = Duration::from_secs(10);
/// There is no event for it, so it is polled.
const KNOWN_POLL: Duration = Duration::from_millis(10);

/// The port at which workers and `toolyard doctor` look for the broker if they are given no address.
const USUAL_PORT: u16 = 4222;

/// The loopback port of the broker.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BrokerPort {
    This(u16),
    /// The usual one, or a free one if another program has it.
    UsualOrFree,
    Free,
}

/// The history of runs that have ended, beside the log.
fn kept_in(data: &Path) -> Result<History, Failure> {
    let unusable = |error: &dyn std::fmt::Display| {
        let data = data.display();
        Failure::Usage(format!("--data-dir {data}: {error}: name a folder in which you may create files"))
    };
    std::fs::create_dir_all(data).map_err(|error| unusable(&error))?;
    let data = data.canonicalize().map_err(|error| unusable(&error))?;
    History::new(&HistoryLocation::Folder(data.join("runs")), RETENTION).map_err(|error| unusable(&error))
}

/// The URL under which this machine reaches a listener.
fn url_of(mut address: SocketAddr, is_encrypted: bool) -> String {
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    format!("{}://{address}", if is_encrypted { "https" } else { "http" })
}

#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) listen: SocketAddr,
    pub(crate) api: ApiOptions,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) redis_url: Option<String>,
    pub(crate) redis_ca: Option<PathBuf>,
    /// The credentials with which tools of the worker call the coordinator.
    pub(crate) server: Server,
    pub(crate) nats_port: BrokerPort,
    /// `None`: a temporary folder, gone with the yard. Otherwise runs that have ended are kept there too.
    pub(crate) data_dir: Option<PathBuf>,
    /// The folder that the tools work in.
    pub(crate) root: PathBuf,
    pub(crate) slots: u32,
    pub(crate) hooks: Hooks,
    pub(crate) webhooks: Webhooks,
    pub(crate) agents: Option<agents::Agents>,
    /// How strongly programs of tools are confined.
    pub(crate) sandbox: Wanted,
}

#[derive(Debug)]
pub(crate) struct Yard {
    // Dropped first, so that nothing talks to a broker that is gone.
    worker: Part,
    coordinator: Part,
    broker: Broker,
    address: SocketAddr,
    is_encrypted: bool,
}

/// Whether the coordinator authenticates callers.
fn is_guarded(api: &ApiOptions) -> bool {
    api.callers.is_some() || api.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
}

/// The worker has advertised its tools; the coordinator receives them a moment later.
async fn until_known(server: &Server, names: &[String]) -> Result<(), Failure> {
    let client = server.connect().await?;
    let known = async {
        loop {
            let tools = client.tools(proto::v1::ListToolsRequest::default()).await?.tools;
            if names.iter().all(|name| tools.iter().any(|tool| tool.name == *name)) {
                return Ok(());
            }
            sleep(KNOWN_POLL).await;
        }
    };
    timeout(KNOWN_LIMIT, known).await.unwrap_or(Err(Failure::ToolsUnknown))
}

impl Yard {
    /// Starts everything, and returns when calls can be made.
    pub(crate) async fn start(options: Options) -> Result<Self, Failure> {
        let Options { listen, api, admin, redis_url, redis_ca, server, nats_port, data_dir, root, slots, .. } = options;
        let Options { hooks, webhooks, agents, sandbox, .. } = options;
        let (network, workspace) = (Network::Allowed, Some(root.clone()));
        let hidden = agents.iter().flat_map(|agents| agents.secret_files().to_vec()).collect();
        let settings = Settings { level: sandbox, network, workspace, hidden, ..Settings::default() };
        let sandbox = Sandbox::new(settings)?;
        let told = Some(sandboxing::told(&sandbox, None));
        let table = tools::built_in(tools::Options::new(&root, sandbox))?;
        let names: Vec<String> = table.manifests().map(|tool| tool.name.to_string()).collect();
        let asked = hooks.clone();
        let history = data_dir.as_deref().map(kept_in).transpose()?;
        let (is_encrypted, is_guarded) = (api.tls.is_some(), is_guarded(&api));
        if is_guarded && agents.is_some() && !server.has_credentials() {
            let why = "--agents: agents call the coordinator, which authenticates callers: give --key-file or \
                       --client-cert for them";
            return Err(Failure::Usage(why.to_owned()));
        }
        let broker = start_broker(data_dir, nats_port).await?;

        let options = coordinator::Options {
            nats_url: broker.url(),
            credentials: Credentials::default(),
            listen,
            log: LogOptions::default(),
            bucket: None,
            redis_url,
            redis_ca,
            admin,
            api: ApiOptions { console: Some(ConsoleOptions::default()), ..api },
        };
        let bound = Coordinator::bind(options).await?.with_hooks(hooks).with_webhooks(webhooks).await?;
        let bound = history.into_iter().fold(bound, Coordinator::with_history);
        let address = bound.address();
        let mut coordinator = Part::new("the coordinator");
        let (stop, ready) = (coordinator.stop.clone(), coordinator.ready.clone());
        coordinator.task.spawn(async { Ok(bound.serve(stop, move || ready.cancel()).await?) });
        coordinator.until_ready().await?;

        let server = server.at(url_of(address, is_encrypted));
        let may_call = !is_guarded || server.has_credentials();
        let table = if may_call { with_fleet(table, server.connection()?, agents)? } else { table };
        let pool: PoolId = POOL.parse().expect("the pool's name is well formed");
        let options = worker::Options::new(broker.url(), pool);
        let options = worker::Options { slots, drain: DRAIN, hooks: asked, sandbox: told, ..options };
        let mut worker = Part::new("the worker");
        let (stop, ready) = (worker.stop.clone(), worker.ready.clone());
        worker.task.spawn(async { Ok(worker::serve(options, table, stop, move |_| ready.cancel()).await?) });
        worker.until_ready().await?;
        let yard = Self { worker, coordinator, broker, address, is_encrypted };
        // A caller is shown the tools that it may call, and nobody else any.
        if !is_guarded {
            until_known(&server, &names).await?;
        }
        Ok(yard)
    }

    /// The address for clients.
    pub(crate) fn url(&self) -> String {
        url_of(self.address, self.is_encrypted)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn nats_url(&self) -> String {
        self.broker.url()
    }

    pub(crate) fn data_dir(&self) -> &Path {
        self.broker.data_dir()
    }

    /// Resolves when a part ends before [`Yard::stop`]. A worker that was drained by a command ends without a failure;
    /// afterwards only the coordinator is waited for.
    pub(crate) async fn ended(&mut self) -> Ended {
        tokio::select! {
            ended = self.worker.ended() => match ended {
                Ok(()) => Ended::WorkerDrained,
                Err(failure) => Ended::Failed(failure),
            },
            failure = self.coordinator.died() => Ended::Failed(failure),
        }
    }

    /// Lets running calls end, then ends everything. The worker ends first, so that its last output is still delivered.
    pub(crate) async fn stop(self) -> Result<(), Failure> {
        let Self { worker, coordinator, broker, .. } = self;
        let worker = worker.end().await;
        let coordinator = coordinator.end().await;
        broker.stop().await;
        worker.and(coordinator)
    }
}

/// Why a part of a yard ended.
#[derive(Debug)]
pub(crate) enum Ended {
    WorkerDrained,
    Failed(Failure),
}

impl From<Ended> for Failure {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::WorkerDrained => Self::Died { part: "the worker" },
            Ended::Failed(failure) => failure,
        }
    }
}

/// Hosts the tools that call the coordinator beside the others.
fn with_fleet(
    table: worker::Table,
    connection: client::Connection,
    agents: Option<agents::Agents>,
) -> Result<worker::Table, Failure> {
    let fleet = collaboration::Fleet::new(connection);
    let options = collaboration::Options { fleet: Some(fleet.clone()), triggers: None };
    let table = collaboration::host(table, options).map_err(tools::Error::Host)?;
    match agents {
        Some(agents) => Ok(agents.host(table, &fleet).map_err(tools::Error::Host)?),
        None => Ok(table),
    }
}

/// Starts the broker on the requested port.
async fn start_broker(data_dir: Option<PathBuf>, port: BrokerPort) -> Result<Broker, local::Error> {
    let options = |port| BrokerOptions { data_dir: data_dir.clone(), port, ..BrokerOptions::default() };
    match port {
        BrokerPort::This(port) => Broker::start(options(Some(port)), say).await,
        BrokerPort::Free => Broker::start(options(None), say).await,
        BrokerPort::UsualOrFree => match Broker::start(options(Some(USUAL_PORT)), say).await {
            Err(local::Error::PortTaken { .. }) => Broker::start(options(None), say).await,
            started => started,
        },
    }
}

/// A part that serves until a stop is requested.
#[derive(Debug)]
struct Part {
    name: &'static str,
    stop: CancellationToken,
    /// Cancelled by the part, when it serves.
    ready: CancellationToken,
    /// Holds one task at most; dropping it ends the task.
    task: JoinSet<Result<(), Failure>>,
}

impl Part {
    /// A part that does not serve yet.
    fn new(name: &'static str) -> Self {
        Self { name, stop: CancellationToken::new(), ready: CancellationToken::new(), task: JoinSet::new() }
    }

    async fn until_ready(&mut self) -> Result<(), Failure> {
        let ready = self.ready.clone();
        tokio::select! {
            () = ready.cancelled() => Ok(()),
            failure = self.died() => Err(failure),
        }
    }

    async fn died(&mut self) -> Failure {
        self.ended().await.err().unwrap_or(Failure::Died { part: self.name })
    }

    /// Resolves when the part ends; never again after that.
    async fn ended(&mut self) -> Result<(), Failure> {
        match self.task.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(_)) => Err(Failure::Died { part: self.name }),
            None => std::future::pending().await,
        }
    }

    async fn end(mut self) -> Result<(), Failure> {
        self.stop.cancel();
        match self.task.join_next().await {
            Some(Ok(done)) => done,
            Some(Err(_)) => Err(Failure::Died { part: self.name }),
            None => Ok(()),
        }
    }
}

/// Messages of the broker's start: a download and its target.
fn say(line: &str) {
    use std::io::Write as _;
    drop(writeln!(std::io::stderr(), "{line}"));
}
