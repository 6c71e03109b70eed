//! `toolyard coordinator` and `toolyard worker`: one process of a fleet, until it is told to stop.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use coordinator::{
    ApiOptions, ConsoleOptions, Coordinator, Durability, LogOptions, TRACE_PLACE, Tail, TlsFiles, Webhooks,
};
use hooks::Hooks;
use run::PoolId;
use sandbox::{User, Workspaces};
use tokio_util::sync::CancellationToken;
use tools::ToolSettings;

use crate::broker::BrokerArgs;
use crate::bucket::BucketArgs;
use crate::collaboration::CollaborationArgs;
use crate::exit::{Exit, Failure};
use crate::history::{HistoryArgs, retention};
use crate::interrupts::Interrupts;
use crate::mcp::{self, McpArgs};
use crate::observe::{ObserveArgs, finish};
use crate::origins::OriginArgs;
use crate::sandboxing::{self, SandboxArgs};

const COORDINATOR_EXAMPLES: &str = "\
Examples:
  toolyard coordinator --listen 0.0.0.0:7420 --auth callers.toml
  toolyard coordinator --nats-url nats://broker:4222 --durability standard
  toolyard coordinator --redis-url redis://127.0.0.1:6379

SIGTERM or Ctrl-C: ends its streams, which clients read on elsewhere, and
leaves. A second one ends it at once. Logs go to standard error, as JSON with
-o json.";

/// Run a coordinator: takes in runs, gives out their output
#[derive(Debug, clap::Args)]
#[command(after_help = COORDINATOR_EXAMPLES)]
pub(crate) struct CoordinatorArgs {
    #[command(flatten)]
    broker: BrokerArgs,
    /// The address of gRPC and HTTP; port 0 takes a free port
    #[arg(long, env = "TOOLYARD_LISTEN", value_name = "ADDR", default_value = "127.0.0.1:7420")]
    listen: SocketAddr,
    /// How safe the log is. dev: one copy. standard: three, on a cluster. strict: three, each on disk before it is
    /// confirmed, which needs sync_interval: always in every node
    #[arg(long, env = "TOOLYARD_DURABILITY", value_name = "PROFILE", default_value_t = Durability::default())]
    #[arg(value_parser = PossibleValuesParser::new(Durability::NAMES).try_map(|name| name.parse::<Durability>()))]
    durability: Durability,
    /// Limit of the log's bytes. A full log refuses new runs and keeps accepted ones
    #[arg(long, env = "TOOLYARD_LOG_MAX_BYTES", value_name = "B", default_value_t = LogOptions::default().bytes_max)]
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    log_max_bytes: i64,
    /// Messages that the log may hold: each server of the broker keeps their subjects in memory, two for each call
    /// [default: the log's bytes / 512]
    #[arg(long, env = "TOOLYARD_LOG_MAX_MESSAGES", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    log_max_messages: Option<i64>,
    /// How long the log keeps runs that have ended, as 6h; at least 1m. They may stay a minute longer. Open runs stay
    /// [default: as long as the broker keeps entries, 25 h]
    #[arg(long, env = "TOOLYARD_TAIL", value_name = "SPAN", value_parser = tail)]
    tail: Option<Duration>,
    /// How much of the log runs that have ended may use, in percent of its bytes and of its messages: above that the
    /// oldest leave it before their time, but none within 30 s
    #[arg(long, env = "TOOLYARD_TAIL_PERCENT", value_name = "N", default_value_t = Tail::default().percent)]
    #[arg(value_parser = clap::value_parser!(u8).range(10..=80))]
    tail_percent: u8,
    /// How long the request id of a client is kept, from 1h to 25h: a request that is repeated later makes another run.
    /// There is room for some 500 ids for each MiB of the log, and new runs with an id are refused when it is full. All
    /// coordinators should have the same [default: 25h]
    #[arg(long, env = "TOOLYARD_REQUEST_IDS_FOR", value_name = "SPAN", value_parser = request_ids_for)]
    request_ids_for: Option<Duration>,
    /// Bytes of memory that each server of the broker may use, its GOMEMLIMIT. Metrics and alerts compare the need with
    /// it
    #[arg(long, env = "TOOLYARD_BROKER_MEMORY", value_name = "B")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    broker_memory: Option<u64>,
    /// Bytes that objects may take beside the log: results that are too large for it, and uploads. Not in a bucket
    #[arg(
        long,
        env = "TOOLYARD_OBJECTS_MAX_BYTES",
        value_name = "B",
        default_value_t = LogOptions::default().objects_bytes_max
    )]
    #[arg(value_parser = clap::value_parser!(i64).range(1..))]
    objects_max_bytes: i64,
    #[command(flatten)]
    bucket: BucketArgs,
    #[command(flatten)]
    history: HistoryArgs,
    /// How long runs of the history are listed after their end, with --redis-url: from 25h to 366d. Redis needs some KB
    /// for each. Without it, as long as the history keeps them
    #[arg(long, env = "TOOLYARD_INDEX_RETENTION", value_name = "SPAN", value_parser = retention)]
    index_retention: Option<Duration>,
    /// The Redis or Valkey server in which coordinators share the index of runs, rediss:// for TLS. Without it each
    /// keeps its own in memory
    #[arg(long, env = "TOOLYARD_REDIS_URL", value_name = "URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// The file of the authorities (PEM) of its certificate, for rediss://. Without it the system's count
    #[arg(long, env = "TOOLYARD_REDIS_CA", value_name = "FILE", requires = "redis_url")]
    redis_ca: Option<PathBuf>,
    /// How long after its end a run can be read that is not to be stored (`store: false`); then it is erased
    #[arg(
        long,
        env = "TOOLYARD_ERASE_AFTER",
        value_name = "SECONDS",
        default_value_t = coordinator::ERASE_AFTER.as_secs()
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=86_400))]
    erase_after: u64,
    #[command(flatten)]
    observe: ObserveArgs,
    #[command(flatten)]
    tls: TlsArgs,
    /// The file that names the hooks to ask before calls are accepted, and which calls await approval
    /// (docs/howto/hooks.md)
    #[arg(long, env = "TOOLYARD_HOOKS", value_name = "FILE")]
    hooks: Option<PathBuf>,
    /// The file of webhook endpoints (docs/howto/webhooks.md)
    #[arg(long, env = "TOOLYARD_WEBHOOKS", value_name = "FILE")]
    webhooks: Option<PathBuf>,
    /// The file of callers and their permissions (TOML, or JSON). Read again when it changes. Without it every caller
    /// may do everything
    #[arg(long, env = "TOOLYARD_AUTH", value_name = "FILE")]
    auth: Option<PathBuf>,
    /// The file of the tools that each pool may host and the tenants that it serves (TOML, or JSON;
    /// docs/howto/registry.md). Read again when it changes. Without it a tool's name belongs to the pool that hosted it
    /// first
    #[arg(long, env = "TOOLYARD_POOLS", value_name = "FILE")]
    pools: Option<PathBuf>,
    /// Serve an address that other machines can reach without authentication. Without this, --auth or --tls-client-ca,
    /// such an address is refused
    #[arg(long, env = "TOOLYARD_OPEN_TO_ALL", value_parser = clap::builder::FalseyValueParser::new())]
    open_to_all: bool,
    /// Execute only tools that the run attached (`tools`), also if it attached none. Without this, a run that attaches
    /// none may name every listed tool
    #[arg(long, env = "TOOLYARD_ATTACHED_ONLY", value_parser = clap::builder::FalseyValueParser::new())]
    attached_only: bool,
    /// Serve the web console under /console (docs/howto/console.md); auto: with --auth
    #[arg(long, env = "TOOLYARD_CONSOLE", value_name = "WHEN", default_value = "auto")]
    console: ConsoleWhen,
    /// The address of a trace in your tracing system, with {trace_id} in it: the web console links runs to it. It can
    /// be read without a key
    #[arg(long, env = "TOOLYARD_TRACE_URL", value_name = "URL", value_parser = trace_url)]
    trace_url: Option<String>,
    /// Pools that an autoscaler starts when they have calls, with commas between them. Their tools are offered and not
    /// forgotten while they have no worker
    #[arg(long, env = "TOOLYARD_ON_DEMAND", value_name = "POOLS", value_delimiter = ',')]
    on_demand: Vec<PoolId>,
    /// Most connections at once; one address may have half of them. Fewer if the limit of open files is lower
    #[arg(
        long,
        env = "TOOLYARD_CONNECTIONS_MAX",
        value_name = "N",
        default_value_t = coordinator::CONNECTIONS_MAX as u64
    )]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    connections_max: u64,
}

/// An address that a browser may open.
fn trace_url(text: &str) -> Result<String, String> {
    let is_web = text.starts_with("https://") || text.starts_with("http://");
    match is_web && text.contains(TRACE_PLACE) {
        true => Ok(text.to_owned()),
        false => Err(format!("it begins with https:// or http:// and has {TRACE_PLACE} in it")),
    }
}

/// When the web console is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ConsoleWhen {
    Auto,
    Always,
    Never,
}

/// The API certificate.
#[derive(Debug, clap::Args)]
pub(crate) struct TlsArgs {
    /// The file of the API certificate (PEM), and behind it those that lead to its authority. Read again when it
    /// changes
    #[arg(long, env = "TOOLYARD_TLS_CERT", value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The file of its private key (PEM)
    #[arg(long, env = "TOOLYARD_TLS_KEY", value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// The file of the authorities (PEM) of clients' certificates. With it clients need a certificate
    #[arg(long, env = "TOOLYARD_TLS_CLIENT_CA", value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
}

impl TlsArgs {
    pub(crate) fn files(self) -> Option<TlsFiles> {
        Some(TlsFiles { certificate: self.tls_cert?, key: self.tls_key?, client_ca: self.tls_client_ca })
    }
}

const WORKER_EXAMPLES: &str = "\
Examples:
  toolyard worker --pool main --root ~/work
  toolyard worker --nats-url nats://broker:4222 --pool builds --slots 4 \\
    --root /srv/builds --sandbox isolated --network
  toolyard worker --pool main --root /srv/work --workspace tenant
  toolyard worker --pool api --http tools.toml
  toolyard worker --pool scripts --programs tools.toml
  toolyard worker --pool docs --network \\
    --mcp 'npx -y @modelcontextprotocol/server-everything'
  toolyard worker --pool crm --mcp https://mcp.example.com/mcp \\
    --mcp-token-file /run/secrets/mcp
  toolyard worker --pool search --backends backends.toml

SIGTERM or Ctrl-C: takes no more calls, lets those that run end and gives back
the rest. A second one ends it at once. Its log tells at its start how
programs of tools are confined, and what the system cannot give. Logs go to standard error, as JSON
with -o json.";

/// Run a worker that hosts the built-in tools, HTTP endpoints, programs and tools of MCP servers
#[derive(Debug, clap::Args)]
#[command(after_help = WORKER_EXAMPLES)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    broker: BrokerArgs,
    /// The pool whose calls it executes: workers that host the same tools share a pool
    #[arg(long, env = "TOOLYARD_POOL", value_name = "NAME")]
    pool: PoolId,
    #[command(flatten)]
    bucket: BucketArgs,
    /// Calls that it runs at once
    #[arg(long, env = "TOOLYARD_SLOTS", value_name = "N", default_value_t = worker::SLOTS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,
    /// The folder that its tools work in. It must not contain the files of keys and hooks that the worker is given.
    /// With --http, --programs, --backends, --agents or MCP servers it may be left out: then the built-in tools are
    /// not hosted
    #[arg(long, env = "TOOLYARD_ROOT", value_name = "DIR")]
    #[arg(required_unless_present_any = ["http", "programs", "backends", "agents", "mcp", "mcp_config"])]
    root: Option<PathBuf>,
    #[command(flatten)]
    origins: OriginArgs,
    #[command(flatten)]
    mcp: McpArgs,
    /// The user, and the group, as which programs of tools run. Only root can choose another than its own
    /// [default: 65532 if the worker runs as root, else its own]
    #[arg(long, env = "TOOLYARD_TOOLS_USER", value_name = "UID[:GID]")]
    tools_user: Option<User>,
    #[command(flatten)]
    sandbox: SandboxArgs,
    /// The file of linters and language servers for its tools (docs/howto/built-in-tools.md)
    #[arg(long, env = "TOOLYARD_TOOLS_FILE", value_name = "FILE")]
    tools_file: Option<PathBuf>,
    /// How long running calls may take to end after a stop was requested
    #[arg(long, env = "TOOLYARD_DRAIN", value_name = "SECONDS", default_value_t = worker::DRAIN.as_secs())]
    drain: u64,
    /// Host these tools alone, wherever they come from, by their names with commas between them; `*` stands for any
    /// characters
    #[arg(long, env = "TOOLYARD_ENABLE", value_name = "TOOLS", value_delimiter = ',')]
    enable: Vec<String>,
    /// Do not host these tools, named as for --enable
    #[arg(long, env = "TOOLYARD_DISABLE", value_name = "TOOLS", value_delimiter = ',')]
    disable: Vec<String>,
    #[command(flatten)]
    collaboration: CollaborationArgs,
    /// Include arguments and results of calls in traces. Then every reader of the traces can read them
    #[arg(long, env = "TOOLYARD_INCLUDE_CONTENT")]
    include_content: bool,
    #[command(flatten)]
    observe: ObserveArgs,
    /// The file that names the hooks to ask about results and errors, before they are stored (docs/howto/hooks.md)
    #[arg(long, env = "TOOLYARD_HOOKS", value_name = "FILE")]
    hooks: Option<PathBuf>,
    /// The file of the interceptors around its tools: retries, limits of rate, caches, shorter results
    /// (docs/howto/interceptors.md)
    #[arg(long, env = "TOOLYARD_INTERCEPTORS", value_name = "FILE")]
    interceptors: Option<PathBuf>,
}

/// The hooks of a file; none if no file is given.
pub(crate) fn read_hooks(file: Option<&Path>) -> Result<Hooks, Failure> {
    Ok(file.map(Hooks::read).transpose()?.unwrap_or_default())
}

/// The webhooks of a file; none if no file is given.
pub(crate) fn read_webhooks(file: Option<&Path>) -> Result<Webhooks, Failure> {
    Ok(file.map(|file| Webhooks::read(file, |name| std::env::var(name).ok())).transpose()?.unwrap_or_default())
}

/// A table with the interceptors of a file around its tools.
fn intercepted(table: worker::Table, file: Option<&Path>) -> Result<worker::Table, Failure> {
    Ok(match file {
        Some(file) => worker::interceptors::intercept(table, file)?,
        None => table,
    })
}

/// An opening counts for some minutes, and its request may be repeated after that.
const REQUEST_IDS_FOR_MIN: Duration = Duration::from_secs(3600);
const REQUEST_IDS_FOR_MAX: Duration = Duration::from_secs(25 * 3600);

/// A time for which request ids of clients are kept.
pub(crate) fn request_ids_for(text: &str) -> Result<Duration, String> {
    let span = crate::list::span(text)?;
    let is_allowed = (REQUEST_IDS_FOR_MIN..=REQUEST_IDS_FOR_MAX).contains(&span);
    if is_allowed { Ok(span) } else { Err("it is at least 1h and at most 25h".to_owned()) }
}

/// A time for which the log keeps runs that have ended.
fn tail(text: &str) -> Result<Duration, String> {
    let tail = crate::list::span(text)?;
    if tail < Duration::from_secs(60) { Err("it is at least a minute, as 1m".to_owned()) } else { Ok(tail) }
}

pub(crate) async fn coordinator(args: CoordinatorArgs) -> Result<Exit, Failure> {
    let (nats_url, credentials) = args.broker.split();
    let CoordinatorArgs { listen, durability, redis_url, redis_ca, observe, tls, hooks, .. } = args;
    let (auth, pools, open_to_all, attached_only) = (args.auth, args.pools, args.open_to_all, args.attached_only);
    let erase_after = Duration::from_secs(args.erase_after);
    let hooks = read_hooks(hooks.as_deref())?;
    let webhooks = read_webhooks(args.webhooks.as_deref())?;
    let (bucket, history) = (args.bucket.open()?, args.history.open()?);
    let log = LogOptions {
        durability,
        bytes_max: args.log_max_bytes,
        messages_max: args.log_max_messages,
        tail: Tail { age: args.tail, percent: args.tail_percent },
        objects_bytes_max: args.objects_max_bytes,
        broker_memory: args.broker_memory,
        // All are kept for that long in any case.
        request_ids_for: args.request_ids_for.filter(|span| *span < REQUEST_IDS_FOR_MAX),
    };
    let admin = observe.admin_listen;
    let (host_names, connections_max) =
        (observe.host_names.clone(), usize::try_from(args.connections_max).unwrap_or(usize::MAX));
    let (tls, callers) = (tls.files(), auth);
    let has_console = args.console == ConsoleWhen::Always || args.console == ConsoleWhen::Auto && callers.is_some();
    let console = has_console.then_some(ConsoleOptions { trace_url: args.trace_url });
    let api = ApiOptions { tls, callers, pools, open_to_all, attached_only, console, host_names, connections_max };
    let options = coordinator::Options { nats_url, credentials, listen, log, bucket, redis_url, redis_ca, api, admin };
    let mut interrupts = Interrupts::listen()?;
    let stop = CancellationToken::new();
    let exporter = observe.exporter("toolyard-coordinator")?;
    let serving = Box::pin(async {
        let coordinator = Coordinator::bind(options).await?;
        let coordinator = coordinator.with_hooks(hooks).with_webhooks(webhooks).await?;
        let coordinator = match history {
            Some(history) => coordinator.with_history(history),
            None => coordinator,
        };
        let coordinator = args.index_retention.into_iter().fold(coordinator, Coordinator::listing_for);
        coordinator.erasing_after(erase_after).on_demand(args.on_demand).serve(stop.clone(), || {}).await
    });
    let served = interrupts.stop_well(serving, &stop).await;
    finish(exporter).await;
    served?;
    Ok(Exit::Completed)
}

/// Hides this process first, because programs that describe themselves and MCP servers start before it serves.
pub(crate) async fn worker(args: WorkerArgs) -> Result<Exit, Failure> {
    worker::hide_this_process();
    let (nats_url, credentials) = args.broker.split();
    let WorkerArgs { pool, slots, root, drain, enable, disable, include_content, observe, hooks, .. } = args;
    let user = sandbox::choose_user(args.tools_user)?;
    let origins = args.origins.read()?;
    let together = args.collaboration.open(&enable)?;
    let (has_servers, by_name) = (!args.mcp.is_empty(), args.mcp.by_name());
    let of_servers: Vec<PathBuf> = args.mcp.secrets().cloned().collect();
    let servers = args.mcp.servers()?;
    let given = credentials.nkey.iter().chain(&hooks).chain(&together.hidden).chain(&of_servers);
    let given = given.chain(mcp::token_files(&servers)).cloned();
    let secrets: Vec<PathBuf> = given.chain(origins.secret_files()).collect();
    let workspaces = args.sandbox.workspaces(root.as_deref(), user)?;
    let sandbox = args.sandbox.open(root.as_deref(), origins.folders(), secrets, user)?;
    let settings = args.tools_file.as_deref().map(ToolSettings::read).transpose();
    let settings = settings.map_err(tools::Error::from)?.unwrap_or_default();
    let table = match &root {
        Some(root) => {
            let workspaces = workspaces.clone();
            let options = tools::Options { settings, workspaces, ..tools::Options::new(root, sandbox.clone()) };
            together.host(tools::built_in(options)?)?
        }
        None => worker::Table::new(),
    };
    let (watching, has_programs) = (read_hooks(hooks.as_deref())?, origins.has_programs());
    let table = together.host_agents(origins.host(table, &sandbox, workspaces.as_ref()).await?)?;
    // With servers, the tools are chosen when those of the servers are known.
    let table = if has_servers { table } else { table.only(&enable)?.without(&disable)? };
    let table = intercepted(table, args.interceptors.as_deref())?;
    let uses_machine = table.manifests().any(|manifest| manifest.effects.uses_machine);
    let starts_programs = uses_machine || has_programs || has_servers;
    let told = starts_programs.then(|| sandboxing::told(&sandbox, workspaces.as_ref()));
    if starts_programs {
        sandboxing::report(&sandbox, workspaces.as_ref());
    }
    // A server serves the calls of all, so it works beside their folders.
    let folder = workspaces.as_ref().filter(|_| has_servers).map(Workspaces::of_servers).transpose()?.or(root);
    let host = mcp::host(servers, table.clone(), (&sandbox, folder), slots)?;
    let host = host.selecting(mcp::selection(&enable, &disable)?).by_name(&by_name)?;
    let (drain, bucket) = (Duration::from_secs(drain), args.bucket.open()?);
    let (admin, host_names) = (observe.admin_listen, observe.host_names.clone());
    let options = worker::Options {
        nats_url,
        credentials,
        bucket,
        pool,
        slots,
        drain,
        hooks: watching,
        admin,
        host_names,
        include_content,
        observer: None,
        sandbox: told,
    };
    let mut interrupts = Interrupts::listen()?;
    let stop = CancellationToken::new();
    let exporter = observe.exporter("toolyard-worker")?;
    let serving = Box::pin(async {
        match has_servers {
            true => mcp::serve(options, host, stop.clone(), |_| {}).await,
            false => worker::serve(options, table, stop.clone(), |_| {}).await,
        }
    });
    let served = interrupts.stop_well(serving, &stop).await;
    finish(exporter).await;
    served?;
    Ok(Exit::Completed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_of_traces_is_one_that_a_browser_may_open() {
        assert!(trace_url("https://traces.example/t/{trace_id}").is_ok());
        for wrong in ["javascript:alert('{trace_id}')", "https://traces.example/t/", "{trace_id}"] {
            assert!(trace_url(wrong).is_err(), "{wrong}");
        }
    }
}
