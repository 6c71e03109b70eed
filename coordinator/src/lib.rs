//! The coordinator. It accepts runs over gRPC and HTTP, appends them to the log, follows the log, performs the
//! outstanding effects of the shards that it owns, and serves each run's ordered output. It never executes a tool.

mod admission;
mod api;
mod auth;
mod fleet;
mod history_writer;
mod hook_notices;
mod index;
mod metrics;
mod monitor;
mod nats;
mod notifications;
mod objects;
mod offload;
mod overview;
mod owner;
mod quotas;
mod readers;
mod requests;
mod runs;
mod schedules;
mod shards;
mod start;
mod tasks;
mod trace;
mod turns;

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch as watch_channel;
use tokio_util::sync::CancellationToken;

use ::nats::Credentials;
use ::nats::clock::ClockError;
use ::objects::{BucketError, Objects};
use run::PoolId;
use telemetry::hosts::Hosts;

use crate::nats::{Broker, BrokerError};

#[doc(hidden)]
pub use crate::api::inputs;
pub use crate::auth::callers::{CallersError, new_key};
pub use crate::auth::tls::{TlsError, TlsFiles};
pub use crate::fleet::pools::PoolsError;
pub use crate::index::redis::UrlError;
pub use crate::nats::doctor::{Finding, Level, examine};
pub use crate::nats::durability::{Durability, UnknownDurability};
pub use crate::nats::journal::ReadError;
pub use crate::nats::operate::{Changed, OperateError, Operator, StreamUsage};
pub use crate::nats::setup::{LogOptions, SetupError};
pub use crate::notifications::{InvalidWebhooks, Webhooks};
pub use ::history::{History, HistoryLocation, InvalidLocation};
pub use ::objects::Bucket;
pub use ::owner::retention::Tail;
pub use run::{AddedPolicy, CallIndex, ChooseSpeaker, Voice};

/// Default time for which a run with `store: false` can be read after its end: long enough to resume a broken stream.
pub const ERASE_AFTER: Duration = Duration::from_secs(60);

/// How long streams and requests may take to end after the signal to stop.
const DRAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Options {
    /// The broker's address, for example `nats://127.0.0.1:4222`.
    pub nats_url: String,
    pub credentials: Credentials,
    /// The address of gRPC and HTTP; port 0 picks a free one.
    pub listen: SocketAddr,
    pub log: LogOptions,
    /// The bucket of the objects; `None`: objects are stored at the broker. The same for all coordinators and workers.
    pub bucket: Option<Bucket>,
    /// The Redis server in which coordinators share the index of runs; `None`: each keeps its own index in memory.
    pub redis_url: Option<String>,
    /// The file of the authorities (PEM) that sign that server's certificate; `None`: the system's.
    pub redis_ca: Option<PathBuf>,
    pub api: ApiOptions,
    /// Address of the admin port, for probes, scrapers and operators; `None`: no admin port.
    pub admin: Option<SocketAddr>,
}

/// Options of the API: authentication, TLS and limits of connections.
#[derive(Debug, Clone)]
pub struct ApiOptions {
    /// `None`: traffic is not encrypted.
    pub tls: Option<TlsFiles>,
    /// The file of callers and their rights (TOML, or JSON if its name ends in .json); `None`: every client has all
    /// rights.
    pub callers: Option<PathBuf>,
    /// The file that lists the tools that each pool may host and the tenants that it serves. `None`: a tool name
    /// belongs to the pool that registered it first, and every tenant may use every pool whose tools do not use the
    /// machine.
    pub pools: Option<PathBuf>,
    /// Allows an address that other machines can reach, although callers are not authenticated.
    pub open_to_all: bool,
    /// Calls may name only tools that their run attached, also if it attached none.
    pub attached_only: bool,
    /// Serves the web console under `/console`.
    pub console: Option<ConsoleOptions>,
    /// The host names under which HTTP is served, beside addresses and `localhost`; see [`Hosts`].
    pub host_names: Vec<String>,
    /// Connections at once, bounded by the process's limit of open files; a single address may have half of them.
    pub connections_max: usize,
}

impl Default for ApiOptions {
    fn default() -> Self {
        let (tls, callers, pools, host_names, console) = Default::default();
        let (open_to_all, attached_only, connections_max) = (false, false, CONNECTIONS_MAX);
        Self { tls, callers, pools, open_to_all, attached_only, console, host_names, connections_max }
    }
}

/// Options of the web console.
#[derive(Debug, Clone, Default)]
pub struct ConsoleOptions {
    /// The address of a trace, with [`TRACE_PLACE`] in the place of its id. Everybody who reaches the console can read
    /// it.
    pub trace_url: Option<String>,
}

/// Stands for the id of a trace in an address.
pub const TRACE_PLACE: &str = "{trace_id}";

/// Default of the connections of a coordinator. Each takes a file and about 100 KiB when it is used fully.
pub const CONNECTIONS_MAX: usize = 16_384;

impl ApiOptions {
    /// Whether callers must authenticate.
    fn asks(&self) -> bool {
        self.callers.is_some() || self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// The host names from the options, which the admin port uses.
    fn listed(&self) -> Hosts {
        Hosts::new(self.host_names.iter().map(String::as_str))
    }

    /// Which host names are served at this address.
    fn check(&self, listen: SocketAddr) -> Result<Hosts, Error> {
        let listed = self.listed();
        if listen.ip().is_loopback() {
            return Ok(listed);
        }
        match (self.asks(), self.open_to_all) {
            (true, _) => Ok(Hosts::any()),
            (false, false) => Err(Error::OpenToAll(listen)),
            (false, true) => {
                tracing::warn!(
                    address = %listen,
                    "open to all: every client that reaches this address may call every tool. Start with --auth"
                );
                // A web page whose name is pointed at this address (DNS rebinding) has no key, but none is needed
                // either. With TLS it lacks the certificate.
                Ok(if self.tls.is_some() { Hosts::any() } else { listed })
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{0} can be reached from other machines, and without --auth every one of them could call every tool: give \
        --auth FILE, listen on 127.0.0.1, or allow it with --open-to-all (TOOLYARD_OPEN_TO_ALL=true)"
    )]
    OpenToAll(SocketAddr),
    #[error(transparent)]
    Connect(::nats::ConnectError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error(transparent)]
    Clock(#[from] ClockError),
    #[error("cannot listen on {address}: {source}. Stop the program that listens there, or choose another address")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Admin(#[from] telemetry::admin::ListenError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Callers(#[from] CallersError),
    #[error(transparent)]
    Pools(#[from] PoolsError),
    #[error(transparent)]
    Index(#[from] UrlError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("a part of the coordinator ended unexpectedly")]
    Died,
}

impl From<BrokerError> for Error {
    fn from(error: BrokerError) -> Self {
        match error {
            BrokerError::Connect(error) => Self::Connect(error),
            BrokerError::Setup(error) => Self::Setup(error),
        }
    }
}

/// Creates the queues of these pools, and the log if there is none. Existing ones are not changed.
///
/// # Errors
/// If the broker cannot be reached, is too old, has no room, or has a log with other settings.
pub async fn make_queues(
    nats_url: &str,
    credentials: &Credentials,
    log: &LogOptions,
    pools: &[run::PoolId],
) -> Result<(), Error> {
    let broker = Box::pin(Broker::connect(nats_url, credentials, log)).await?;
    Ok(broker.make_queues(pools).await?)
}

/// A coordinator that has its port and its connection, and does not serve yet.
#[derive(Debug)]
pub struct Coordinator {
    listener: TcpListener,
    address: SocketAddr,
    admin: Option<TcpListener>,
    broker: Box<Broker>,
    objects: Objects,
    history: Option<History>,
    index: index::Index,
    tls: Option<(auth::tls::Current, auth::tls::CertificateReload)>,
    hooks: hooks::Hooks,
    callers: Option<(auth::callers::Callers, auth::callers::CallersReload)>,
    pools: Option<(watch_channel::Receiver<Arc<fleet::pools::PoolRules>>, fleet::pools::PoolsReload)>,
    erase_after: Duration,
    attached_only: bool,
    console: Option<ConsoleOptions>,
    on_demand: HashSet<PoolId>,
    log: LogOptions,
    notices: Option<api::Notices>,
    /// Those of the API and of the admin port.
    hosts: [Hosts; 2],
    connections_max: usize,
    floor_policies: Vec<AddedPolicy>,
}

impl Coordinator {
    /// Listens and connects.
    ///
    /// # Errors
    /// If the port is taken, the index's address is malformed, a file of the options cannot be used, or the broker
    /// cannot be reached, is too old or has no room for the log.
    pub async fn bind(options: Options) -> Result<Self, Error> {
        let index = index::Index::new(options.redis_url.as_deref(), options.redis_ca.as_deref())?;
        let hosts = [options.api.check(options.listen)?, options.api.listed()];
        let tls = options.api.tls.map(TlsFiles::load).transpose()?;
        let callers = options.api.callers.as_deref().map(auth::callers::open).transpose()?;
        let pools = options.api.pools.as_deref().map(fleet::pools::open).transpose()?;
        let listen_error = |source| Error::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let admin = match options.admin {
            Some(address) => Some(telemetry::admin::listen(address).await?),
            None => None,
        };
        let broker = Box::new(Box::pin(Broker::connect(&options.nats_url, &options.credentials, &options.log)).await?);
        if let Some(bucket) = &options.bucket {
            bucket.check().await?;
        }
        let objects = broker.objects(options.bucket, &options.log).await?;
        let hooks = hooks::Hooks::default();
        let (erase_after, log, notices) = (ERASE_AFTER, options.log, None);
        let connections_max = api::affordable(options.api.connections_max);
        let attached_only = options.api.attached_only;
        Ok(Self {
            listener,
            address,
            admin,
            broker,
            objects,
            history: None,
            index,
            tls,
            callers,
            pools,
            hooks,
            erase_after,
            attached_only,
            console: options.api.console,
            on_demand: HashSet::new(),
            log,
            notices,
            hosts,
            connections_max,
            floor_policies: Vec::new(),
        })
    }

    /// Lets readers choose a floor policy by its name; it replaces one of the same name that was added before. Give all
    /// coordinators the same policies, because a reader may continue at any of them.
    #[must_use]
    pub fn with_floor_policy(mut self, policy: AddedPolicy) -> Self {
        self.floor_policies.retain(|other| other.name != policy.name);
        self.floor_policies.push(policy);
        self
    }

    /// Runs these hooks before calls are accepted and on answers of clients, and notifies them of ends that no worker
    /// reports.
    #[must_use]
    pub fn with_hooks(mut self, hooks: hooks::Hooks) -> Self {
        let by_workers = hooks.about_executions();
        if !by_workers.is_empty() {
            tracing::info!(
                hooks = by_workers.join(", "),
                "some hooks are called by workers: each worker needs the \
                hooks file too"
            );
        }
        self.hooks = hooks;
        self
    }

    /// Sets how long after its end a run with `store: false` is erased, instead of [`ERASE_AFTER`]. Applies to runs
    /// that are accepted from now on.
    #[must_use]
    pub fn erasing_after(self, erase_after: Duration) -> Self {
        Self { erase_after, ..self }
    }

    /// Offers the tools of these pools also without a worker, and does not forget them: an autoscaler starts workers
    /// when calls wait.
    #[must_use]
    pub fn on_demand(self, pools: impl IntoIterator<Item = PoolId>) -> Self {
        Self { on_demand: pools.into_iter().collect(), ..self }
    }

    /// Keeps runs that have ended for longer than the log does. Give all coordinators the same history. An index in
    /// Redis lists runs for as long as the history keeps them.
    #[must_use]
    pub fn with_history(self, history: History) -> Self {
        let listed = index::Listed { span: history.retention(), retention: history.retention() };
        Self { index: self.index.listing(listed), history: Some(history), ..self }
    }

    /// Lists runs of the history in Redis for this long after their end, and not for as long as it keeps them.
    #[must_use]
    pub fn listing_for(self, span: Duration) -> Self {
        let Some(history) = &self.history else { return self };
        let listed = index::Listed { span, retention: history.retention() };
        Self { index: self.index.listing(listed), ..self }
    }

    /// Notifies these endpoints of the events of runs.
    ///
    /// # Errors
    /// If the broker cannot hold the queue of notifications.
    pub async fn with_webhooks(self, webhooks: Webhooks) -> Result<Self, Error> {
        if !webhooks.is_on() {
            return Ok(self);
        }
        let queue = nats::notifications::Queue::make(&self.broker, &self.log).await?;
        Ok(Self { notices: Some(api::Notices { webhooks, queue }), ..self })
    }

    /// The address of gRPC and HTTP.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop`. Then it reports itself as not ready, ends its streams with an error that lets clients
    /// resume at another coordinator, and releases its shards. `ready` is called once, when requests are served; shards
    /// are claimed in the moments after.
    ///
    /// # Errors
    /// If a part of the coordinator fails for good: the process should end and be restarted.
    pub async fn serve(self, stop: CancellationToken, ready: impl FnOnce() + Send) -> Result<(), Error> {
        // Boxed because the future holds all parts before they are spawned, which is too large to move with the
        // caller's future.
        Box::pin(self.serve_in_place(stop, ready)).await
    }
}
