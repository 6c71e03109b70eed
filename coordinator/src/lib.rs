//! Decides. Takes in runs over gRPC, appends them to the log, follows the log, does what is outstanding for the shards
//! that it owns, and gives out each run's ordered output. Never executes a tool.

mod accept;
mod grpc;
mod ledger;
mod nats;
mod registry;
mod runs;
mod watch;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::{self, context::ContextBuilder};
use proto::names;
use tokio::net::TcpListener;
use tokio::sync::watch as watch_channel;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use nats::journal::ReadError;
pub use nats::setup::{LogOptions, SetupError};

/// How long the broker may take to confirm an append before it is tried again.
const APPEND_TIMEOUT: Duration = Duration::from_secs(5);
/// How long streams and requests may take to end once the process is told to.
const DRAIN: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Options {
    /// The broker's address, for example `nats://127.0.0.1:4222`.
    pub nats_url: String,
    /// Where to serve gRPC; port 0 picks a free one.
    pub listen: SocketAddr,
    pub log: LogOptions,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Connect(#[from] proto::nats::ConnectError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    #[error("cannot listen on {address}: {source}. Is something else there?")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("the gRPC server failed: {0}")]
    Serve(#[from] tonic::transport::Error),
    #[error("a part of the coordinator ended before it was told to")]
    Died,
}

/// A coordinator that holds its port and its connection, and does not serve yet.
#[derive(Debug)]
pub struct Coordinator {
    listener: TcpListener,
    address: SocketAddr,
    client: async_nats::Client,
    context: jetstream::Context,
    log: LogOptions,
}

impl Coordinator {
    /// Listens and connects.
    ///
    /// # Errors
    /// When the port is taken, or the broker cannot be reached, is too old or has no room for the log.
    pub async fn bind(options: Options) -> Result<Self, Error> {
        let listen_error = |source| Error::Listen { address: options.listen, source };
        let listener = TcpListener::bind(options.listen).await.map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let name = format!("coordinator-{}", uuid::Uuid::now_v7().simple());
        let client = proto::nats::connect(&options.nats_url, &name).await?;
        let context = ContextBuilder::new().timeout(APPEND_TIMEOUT).build(client.clone());
        nats::setup::ensure_log(&context, &options.log).await?;
        Ok(Self { listener, address, client, context, log: options.log })
    }

    /// Where gRPC is served.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until told to stop; then says so in its health, ends its streams with a word that they can be read on
    /// elsewhere, and gives its shards back. `ready` is called once, when the log was read and requests are served.
    ///
    /// # Errors
    /// When a part of the coordinator fails for good: the process should end and be started again.
    pub async fn serve(self, stop: CancellationToken, ready: impl FnOnce() + Send) -> Result<(), Error> {
        let Self { listener, address, client, context, log } = self;
        let leases = nats::setup::ensure_bucket(&context, names::LEASES_BUCKET, &log).await?;
        let tools = nats::setup::ensure_bucket(&context, names::TOOLS_BUCKET, &log).await?;

        let (owned_sender, owned) = watch_channel::channel(nats::leases::nothing());
        let (registry_sender, registry) = watch_channel::channel(Arc::default());
        let (position_sender, mut position) = watch_channel::channel(0);
        let journal = nats::journal::Journal::new(client.clone(), context.clone());
        let rim = ledger::Rim {
            feed: nats::feed::Feed::new(client.clone(), context.clone()),
            journal: journal.clone(),
            signals: nats::signals::Signals::new(client.clone()),
            owned: owned.clone(),
            registry: registry.clone(),
            position: position_sender,
        };
        let (ledger, keeper) = ledger::new(rim);
        let advertisements = nats::tools::Keeper::new(client.clone(), context.clone(), tools, registry_sender);

        // Doors close first, then the parts behind them.
        let inner = CancellationToken::new();
        let mut parts = JoinSet::new();
        parts.spawn(keeper.keep(inner.clone()));
        parts.spawn(advertisements.keep(inner.clone()));
        let owner = format!("{address}/{}", uuid::Uuid::now_v7().simple());

        // What was stored before we came is read before anybody is served or any shard is owned.
        let tip = journal.tip().await?;
        tokio::select! {
            caught_up = position.wait_for(|position| *position >= tip) => { caught_up.map_err(|_| Error::Died)?; }
            () = stop.cancelled() => return Ok(()),
        }
        parts.spawn(nats::leases::hold(leases, owner, owned_sender, inner.clone()));

        let (health, health_service) = tonic_health::server::health_reporter();
        grpc::report_ready(&health).await;
        let runs = runs::Runs { journal, ledger, registry, owned };
        let doors = grpc::serve(listener, runs, health, health_service, stop.clone());
        tracing::info!(%address, "serving");
        ready();
        let overdue = async {
            stop.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            served = doors => served?,
            () = overdue => tracing::warn!("requests were still under way after {DRAIN:?}, leaving them"),
            _ = parts.join_next() => return Err(Error::Died),
        }
        inner.cancel();
        while parts.join_next().await.is_some() {}
        client.flush().await.unwrap_or_else(|error| tracing::warn!(%error, "the last words to the broker were lost"));
        Ok(())
    }
}
