//! Decides. Takes in runs over gRPC and HTTP, appends them to the log, follows the log, does what is outstanding for the shards
//! that it owns, and gives out each run's ordered output. Never executes a tool.

mod accept;
mod audit;
mod callers;
mod custom;
mod door;
mod files;
mod gate;
mod grpc;
mod health;
mod http;
mod index;
mod known;
mod ledger;
mod limits;
mod members;
mod metrics;
mod nats;
mod objects;
mod offload;
mod paused;
mod pools;
mod quotas;
mod redis;
mod registry;
mod requests;
mod resolve;
mod runs;
mod shards;
mod stranded;
mod tasks;
mod tls;
mod trace;
mod uploads;
mod usage;
mod watch;
mod webhooks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch as watch_channel;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use proto::nats::Credentials;
use proto::nats::clock::ClockError;
use store::{Objects, Unfit};
use telemetry::hosts::Hosts;

use crate::nats::{Broker, BrokerError};

pub use crate::callers::{CallersError, new_key};
#[doc(hidden)]
pub use crate::door::inputs;
pub use crate::nats::doctor::{Finding, Level, examine};
pub use crate::nats::durability::{Durability, UnknownDurability};
pub use crate::nats::journal::ReadError;
pub use crate::nats::operate::{Changed, OperateError, Operator, StreamUsage};
pub use crate::nats::setup::{LogOptions, SetupError};
pub use crate::pools::PoolsError;
pub use crate::redis::UrlError;
pub use crate::tls::{TlsError, TlsFiles};
pub use crate::webhooks::{InvalidWebhooks, Webhooks};
pub use store::Bucket;

/// How long after its end a run can be read that is not to be stored, where nobody says: time enough to read on after a stream
/// broke.
pub const ERASE_AFTER: Duration = Duration::from_secs(60);

/// How long streams and requests may take to end once the process is told to.
const DRAIN: Duration = Duration::from_secs(10);

/// Words about shards that were written down and may wait to be heard: more than can be under way.
const WRITTEN_MAX: usize = 4 * proto::names::SHARDS as usize;

#[derive(Debug, Clone)]
pub struct Options {
    /// The broker's address, for example `nats://127.0.0.1:4222`.
    pub nats_url: String,
    pub credentials: Credentials,
    /// Where to serve gRPC and HTTP; port 0 picks a free one.
    pub listen: SocketAddr,
    pub log: LogOptions,
    /// Where objects lie; `None`: at the broker. The same for all coordinators and workers.
    pub bucket: Option<Bucket>,
    /// Where coordinators share the index of runs; `None`: each keeps one of its own in memory.
    pub redis_url: Option<String>,
    /// The file of the authorities (PEM) of that server's certificate; `None`: the system's.
    pub redis_ca: Option<PathBuf>,
    pub door: DoorOptions,
    /// Where probes, scrapers and operators find it; `None`: nowhere.
    pub admin: Option<SocketAddr>,
}

/// Who is let in, and behind what.
#[derive(Debug, Clone)]
pub struct DoorOptions {
    /// `None`: whoever reaches the door can read along.
    pub tls: Option<TlsFiles>,
    /// The file that says who may what (TOML, or JSON where it ends in .json); `None`: everybody may everything.
    pub callers: Option<PathBuf>,
    /// The file that says which tools each pool may host and which tenants it serves; `None`: a name belongs to the pool that had it
    /// first, and every tenant may use every pool whose tools do not use the machine.
    pub pools: Option<PathBuf>,
    /// Serves everybody who reaches an address that is not this machine's alone, though nobody is asked who they are.
    pub open_to_all: bool,
    /// The names under which HTTP is served, beside addresses and `localhost`; see [`Hosts`].
    pub host_names: Vec<String>,
    /// Connections at once, as far as the system lets the process have so many files; half as many of one address.
    pub connections_max: usize,
}

impl Default for DoorOptions {
    fn default() -> Self {
        let (tls, callers, pools, host_names) = Default::default();
        Self { tls, callers, pools, open_to_all: false, host_names, connections_max: CONNECTIONS_MAX }
    }
}

/// Connections of a coordinator unless somebody says otherwise. Each takes a file and some 100 KiB when it is used fully.
pub const CONNECTIONS_MAX: usize = 16_384;

impl DoorOptions {
    /// Whether somebody must show who they are.
    fn asks(&self) -> bool {
        self.callers.is_some() || self.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some())
    }

    /// The host names that somebody listed: those of the admin port.
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
                // A page that has its name pointed here has no key, but needs none either. With TLS it lacks the certificate.
                Ok(if self.tls.is_some() { Hosts::any() } else { listed })
            }
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{0} can be reached by others, and without --auth every one of them could call every tool: give --auth FILE, or \
         listen on 127.0.0.1, or say --open-to-all (TOOLYARD_OPEN_TO_ALL=true)"
    )]
    OpenToAll(SocketAddr),
    #[error(transparent)]
    Connect(proto::nats::ConnectError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error(transparent)]
    Bucket(#[from] Unfit),
    #[error(transparent)]
    Clock(#[from] ClockError),
    #[error("cannot listen on {address}: {source}. Is something else there?")]
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
    #[error("a part of the coordinator ended before it was told to")]
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

/// Makes the queues of these pools, and the log where there is none. What is there stays as it is.
///
/// # Errors
/// When the broker cannot be reached, is too old, has no room, or has its log otherwise.
pub async fn make_queues(
    nats_url: &str,
    credentials: &Credentials,
    log: &LogOptions,
    pools: &[run::PoolId],
) -> Result<(), Error> {
    let broker = Box::pin(Broker::connect(nats_url, credentials, log)).await?;
    Ok(broker.make_queues(pools).await?)
}

/// A coordinator that holds its port and its connection, and does not serve yet.
#[derive(Debug)]
pub struct Coordinator {
    listener: TcpListener,
    address: SocketAddr,
    admin: Option<TcpListener>,
    broker: Box<Broker>,
    objects: Objects,
    index: index::Index,
    tls: Option<(tls::Current, tls::Keeper)>,
    hooks: hooks::Hooks,
    callers: Option<(callers::Callers, callers::Keeper)>,
    pools: Option<(watch_channel::Receiver<Arc<pools::PoolRules>>, pools::Keeper)>,
    erase_after: Duration,
    log: LogOptions,
    notices: Option<door::Notices>,
    /// Of the door and of the admin port.
    hosts: [Hosts; 2],
    connections_max: usize,
}

impl Coordinator {
    /// Listens and connects.
    ///
    /// # Errors
    /// When the port is taken, the index's address is malformed, a file of the door cannot be used, or the broker cannot be reached, is too old or has no room for the log.
    pub async fn bind(options: Options) -> Result<Self, Error> {
        let index = index::Index::new(options.redis_url.as_deref(), options.redis_ca.as_deref())?;
        let hosts = [options.door.check(options.listen)?, options.door.listed()];
        let tls = options.door.tls.map(TlsFiles::load).transpose()?;
        let callers = options.door.callers.as_deref().map(callers::open).transpose()?;
        let pools = options.door.pools.as_deref().map(pools::open).transpose()?;
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
        let connections_max = grpc::places::affordable(options.door.connections_max);
        Ok(Self {
            listener,
            address,
            admin,
            broker,
            objects,
            index,
            tls,
            callers,
            pools,
            hooks,
            erase_after,
            log,
            notices,
            hosts,
            connections_max,
        })
    }

    /// Asks these hooks before calls are accepted, and tells them of calls that are not executed.
    #[must_use]
    pub fn with_hooks(mut self, hooks: hooks::Hooks) -> Self {
        let elsewhere = hooks.asked_elsewhere(&[hooks::Moment::PreToolUse, hooks::Moment::ToolSkip]);
        if !elsewhere.is_empty() {
            tracing::info!(hooks = elsewhere.join(", "), "workers ask these hooks: each of them needs the file too");
        }
        self.hooks = hooks;
        self
    }

    /// Runs that are not to be stored are erased this long after their end, and not [`ERASE_AFTER`]. Those that are accepted from
    /// here on.
    #[must_use]
    pub fn erasing_after(self, erase_after: Duration) -> Self {
        Self { erase_after, ..self }
    }

    /// Tells these what becomes of runs.
    ///
    /// # Errors
    /// When the broker cannot hold their queue.
    pub async fn with_webhooks(self, webhooks: Webhooks) -> Result<Self, Error> {
        if !webhooks.is_on() {
            return Ok(self);
        }
        let queue = nats::letters::Queue::make(&self.broker, &self.log).await?;
        Ok(Self { notices: Some(door::Notices { webhooks, queue }), ..self })
    }

    /// Where gRPC and HTTP are served.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until told to stop; then says so in its health, ends its streams with a word that they can be read on
    /// elsewhere, and gives its shards back. `ready` is called once, when requests are served; shards come to it, or not,
    /// in the moments after.
    ///
    /// # Errors
    /// When a part of the coordinator fails for good: the process should end and be started again.
    pub async fn serve(self, stop: CancellationToken, ready: impl FnOnce() + Send) -> Result<(), Error> {
        // It holds all parts before they are spawned: too much to be moved about with whatever awaits it.
        Box::pin(self.serve_in_place(stop, ready)).await
    }

    async fn serve_in_place(self, stop: CancellationToken, ready: impl FnOnce() + Send) -> Result<(), Error> {
        let Self {
            listener,
            address,
            admin,
            broker,
            objects,
            index,
            tls,
            callers,
            pools,
            hooks,
            erase_after,
            notices,
            log: log_options,
            hosts: [door_hosts, admin_hosts],
            connections_max,
        } = self;
        let (callers, callers_keeper) = callers.unzip();
        let callers = callers.unwrap_or_default();
        let (rules, pools_keeper) = pools.unzip();
        // Where nobody reads a file again the rules stay as they are.
        let rules = rules.unwrap_or_else(|| watch_channel::channel(Arc::default()).1);
        let clock = nats::clock::begin(&broker).await?;
        let (webhooks, letters) = notices.clone().map(|notices| (notices.webhooks, notices.queue)).unzip();
        let (owned_sender, owned) = watch_channel::channel(shards::Owned::nothing());
        let (registry_sender, registry) = watch_channel::channel(Arc::default());
        let (written_sender, written) = tokio::sync::mpsc::channel(WRITTEN_MAX);
        let journal = nats::journal::Journal::new(&broker);
        let log = nats::scan::Log::new(&broker, journal.clone());
        let (projector, index_keeper) = index::projector::new(index.clone(), log.clone(), owned.clone());
        let (pauses, pauses_keeper) = nats::pauses::Pauses::load(&broker).await?;
        let redis = index.redis();
        let requests = nats::requests::Requests::new(&broker);
        let quotas = quotas::Quotas::new(callers.clone(), owned.clone(), (redis.is_some(), log_options.bytes_max));
        let signals = nats::signals::Signals::new(&broker);
        let rim = ledger::Rim {
            feeds: nats::feed::Feeds::new(&broker),
            journal: journal.clone(),
            requests: requests.clone(),
            snapshots: nats::snapshots::Snapshots::new(&broker),
            signals: signals.clone(),
            queues: nats::queues::Queues::new(&broker),
            owned: owned.clone(),
            written: written_sender,
            registry: registry.clone(),
            index: projector,
            callers: callers.clone(),
            quotas: quotas.clone(),
            paused: pauses.current.clone(),
            webhooks: webhooks.unwrap_or_default(),
            letters,
            objects: objects.clone(),
            log: log.clone(),
        };
        let (ledger, keeper) = ledger::new(rim);

        // Doors close first, then the shards are given back, then the parts end that this needs.
        let (leave, inner) = (CancellationToken::new(), CancellationToken::new());
        let mut parts = JoinSet::new();
        parts.spawn(nats::clock::keep(clock, inner.clone()));
        parts.spawn(keeper.keep(inner.clone()));
        let limits = nats::tools::Limits::default();
        let mut advertisements = nats::tools::Keeper::new(&broker, registry_sender, (rules, callers.clone()), limits);
        advertisements.load().await?;
        parts.spawn(advertisements.keep(inner.clone()));
        parts.spawn(index_keeper.keep(inner.clone()));
        parts.spawn(
            nats::files::Files::new(&broker, objects.clone(), ledger.clone(), owned.clone()).give(inner.clone()),
        );
        let (tls, tls_keeper) = tls.unzip();
        if let Some(keeper) = tls_keeper {
            parts.spawn(keeper.keep(inner.clone()));
        }
        parts.spawn(pauses_keeper.keep(registry.clone(), inner.clone()));
        parts.spawn(quotas.clone().keep(redis, inner.clone()));
        if let Some(keeper) = pools_keeper {
            parts.spawn(keeper.keep(inner.clone()));
        }
        if let Some(keeper) = callers_keeper {
            parts.spawn(keeper.keep(inner.clone()));
        }
        let (led_sender, led) = watch_channel::channel(tokio::time::Instant::now());
        let (served_sender, served) = watch_channel::channel(false);
        parts.spawn(journal.clone().watch_room(led_sender, inner.clone()));
        parts.spawn(usage::keep((*broker).clone(), log_options.broker_memory, index.clone(), inner.clone()));
        parts.spawn(health::keep(led, owned.clone(), served_sender, (stop.clone(), inner.clone())));
        let told = (served.clone(), registry.clone(), signals.clone());
        parts.spawn(health::tell_workers(told, (stop.clone(), inner.clone())));
        let serving = Arc::new(AtomicBool::new(false));
        telemetry::process::begin("coordinator");
        if let Some(listener) = admin {
            let process = process(&broker, registry.clone(), Arc::clone(&serving), served.clone(), stop.clone());
            parts.spawn(telemetry::admin::serve(listener, process, admin_hosts, inner.clone()));
        }
        let who = format!("{address} {}", env!("CARGO_PKG_VERSION"));
        let joining = nats::leases::Membership::join(&broker, who, owned_sender);
        let membership = Box::pin(joining).await?;
        let mut holding = JoinSet::new();
        holding.spawn(membership.hold(written, leave.clone()));

        if let Some(door::Notices { webhooks, queue }) = notices.clone() {
            parts.spawn(webhooks::keep(webhooks, queue, owned.clone(), inner.clone()));
        }
        let (skips, skipped) = tokio::sync::mpsc::channel(gate::SKIPS_MAX);
        parts.spawn(gate::tell_skips(hooks.clone(), skipped, inner.clone()));
        let serves = runs::Parts {
            journal,
            objects,
            requests,
            ledger,
            registry,
            owned,
            hooks,
            skips,
            callers,
            quotas,
            pauses,
            signals,
            erase_after,
        };
        let runs = runs::Runs::new(serves);
        let uploads = uploads::Uploads::default();
        let door =
            door::Door { runs, index, log: Arc::new(log), notices, uploads: uploads.clone(), stop: stop.clone() };
        let doors = grpc::serve((listener, tls), (connections_max, door_hosts), door, served, || {
            tracing::info!(%address, "serving");
            serving.store(true, Ordering::Relaxed);
            ready();
        });
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            () = doors => {}
            () = overdue => tracing::warn!("requests were still under way after {DRAIN:?}, leaving them"),
            _ = parts.join_next() => return Err(Error::Died),
            _ = holding.join_next() => return Err(Error::Died),
        }
        leave.cancel();
        holding.join_next().await;
        inner.cancel();
        let last_words = async {
            uploads.end().await;
            while parts.join_next().await.is_some() {}
            broker.flush().await;
        };
        if tokio::time::timeout(DRAIN, last_words).await.is_err() {
            tracing::warn!("the broker does not hear that this coordinator leaves");
        }
        Ok(())
    }
}

/// What the admin port tells: ready while requests are served and what they ask for can be stored.
fn process(
    broker: &Broker,
    registry: watch_channel::Receiver<Arc<registry::Registry>>,
    serving: Arc<AtomicBool>,
    served: watch_channel::Receiver<bool>,
    stop: CancellationToken,
) -> telemetry::admin::Process {
    let queues = nats::queues::Queues::new(broker);
    telemetry::admin::Process {
        is_ready: Box::new(move || serving.load(Ordering::Relaxed) && *served.borrow() && !stop.is_cancelled()),
        stats: Box::new(move || {
            let (queues, registry) = (queues.clone(), Arc::clone(&registry.borrow()));
            Box::pin(async move { queues.stats(&registry).await })
        }),
    }
}
