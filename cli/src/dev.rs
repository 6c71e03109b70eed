//! `toolyard dev`: everything in one process, to work against.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use sandbox::Wanted;

use coordinator::ApiOptions;

use crate::exit::{Exit, Failure};
use crate::interrupts::Interrupts;
use crate::json::Object;
use crate::serve::TlsArgs;
use crate::server::Server;
use crate::terminal::{Paint, Terminal};
use crate::words::duration;
use crate::yard::{self, BrokerPort, Ended, Yard};

const LISTEN: &str = "127.0.0.1:7420";
/// The address at which other commands look for the broker by default.
const NATS_URL: &str = crate::broker::DEFAULT_URL;

const EXAMPLES: &str = "\
Examples:
  toolyard dev
  toolyard dev --root ~/src/project --data-dir ~/.local/share/toolyard
  toolyard dev --listen 127.0.0.1:0 -o json
  toolyard dev --auth callers.toml --key-file ops.key
  toolyard dev --redis-url redis://127.0.0.1:6379 --admin-listen 127.0.0.1:9464

nats-server is taken from PATH, else fetched once into the cache. Once all is
up it says where; with -o json as {url, nats_url, data_dir, root}. The first
Ctrl-C drains, a second one ends at once.";

/// Run a broker, a coordinator and a worker with the built-in tools, until Ctrl-C
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The broker's port [default: 4222, or a free one if that is taken]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    nats_port: Option<u16>,
    /// The address of gRPC and HTTP; port 0 takes a free port
    #[arg(long, value_name = "ADDR", default_value = LISTEN)]
    listen: SocketAddr,
    /// Serve an address that other machines can reach without authentication: their users can run commands here as you
    #[arg(long, env = "TOOLYARD_OPEN_TO_ALL", value_parser = clap::builder::FalseyValueParser::new())]
    open_to_all: bool,
    /// The folder that the tools work in
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
    /// The folder of the log, and of runs that have ended, which are kept for 30 days [default: a temporary folder with
    /// the log alone, removed at the end]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Calls that the worker runs at once
    #[arg(long, value_name = "N", default_value_t = worker::SLOTS)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    slots: u32,
    /// The file that names the hooks to ask about calls (docs/howto/hooks.md)
    #[arg(long, env = "TOOLYARD_HOOKS", value_name = "FILE")]
    hooks: Option<PathBuf>,
    /// The file of webhook endpoints (docs/howto/webhooks.md)
    #[arg(long, env = "TOOLYARD_WEBHOOKS", value_name = "FILE")]
    webhooks: Option<PathBuf>,
    /// The file of agents to host as tools (docs/howto/agents.md)
    #[arg(long, env = "TOOLYARD_AGENTS", value_name = "FILE")]
    agents: Option<PathBuf>,
    /// How strongly programs of tools are confined, as for `worker`, but with network. none: commands of bash may do
    /// what you may
    #[arg(long, env = "TOOLYARD_SANDBOX", value_name = "LEVEL", default_value = "none")]
    #[arg(value_parser = PossibleValuesParser::new(Wanted::NAMES).try_map(|name| name.parse::<Wanted>()))]
    sandbox: Wanted,
    /// The file of callers and their permissions (docs/howto/security.md). Tools that call the fleet are hosted if
    /// --key-file names the key of a caller, too
    #[arg(long, env = "TOOLYARD_AUTH", value_name = "FILE")]
    auth: Option<PathBuf>,
    #[command(flatten)]
    tls: TlsArgs,
    /// The address of the coordinator's admin port (HTTP): /livez, /readyz, /metrics, /stats [default: no admin port]
    #[arg(long, env = "TOOLYARD_ADMIN_LISTEN", value_name = "ADDR")]
    admin_listen: Option<SocketAddr>,
    /// The Redis or Valkey server of the index of runs, rediss:// for TLS [default: the index is in memory]
    #[arg(long, env = "TOOLYARD_REDIS_URL", value_name = "URL", hide_env_values = true)]
    redis_url: Option<String>,
    /// The file of the authorities (PEM) of its certificate, for rediss://
    #[arg(long, env = "TOOLYARD_REDIS_CA", value_name = "FILE", requires = "redis_url")]
    redis_ca: Option<PathBuf>,
}

pub(crate) async fn run(args: Args, server: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let Args { nats_port, listen, open_to_all, root, data_dir, slots, hooks, webhooks, agents, sandbox, .. } = args;
    let Args { auth, tls, admin_listen, redis_url, redis_ca, .. } = args;
    let api = ApiOptions { open_to_all, callers: auth, tls: tls.files(), ..ApiOptions::default() };
    let is_guarded = api.callers.is_some();
    let hooks = crate::serve::read_hooks(hooks.as_deref())?;
    let webhooks = crate::serve::read_webhooks(webhooks.as_deref())?;
    let agents = agents.as_deref().map(agents::Agents::read).transpose()?;
    let keeps = data_dir.is_some();
    let nats_port = nats_port.map_or(BrokerPort::UsualOrFree, BrokerPort::This);
    let root = root.canonicalize().unwrap_or(root);
    let options = yard::Options {
        listen,
        api,
        admin: admin_listen,
        redis_url,
        redis_ca,
        server: server.clone(),
        nats_port,
        data_dir,
        root: root.clone(),
        slots,
        hooks,
        webhooks,
        agents,
        sandbox,
    };

    let mut interrupts = Interrupts::listen()?;
    let mut yard = tokio::select! {
        yard = Yard::start(options) => yard?,
        () = interrupts.next() => return Err(Failure::Interrupted),
    };
    if terminal.is_json() {
        terminal.object(&described(&yard, &root))?;
    } else {
        terminal.write(announcement(&yard, &root, keeps, terminal.paint()).as_bytes())?;
    }
    let listens = yard.address();
    if let Some(admin) = admin_listen.filter(|_| !terminal.is_json()) {
        terminal.note(&format!("the admin port is at http://{admin}: /livez, /readyz, /metrics, /stats"));
    }
    if is_guarded && !server.has_credentials() {
        terminal.note("commands need --key-file; without it here, tools that call the fleet are not hosted");
    }
    if !listens.ip().is_loopback() && !is_guarded {
        terminal.note(&format!("whoever reaches {listens} can run commands here as you"));
    }

    let died = loop {
        tokio::select! {
            ended = yard.ended() => match ended {
                Ended::WorkerDrained => terminal.note(&drained(&yard)),
                Ended::Failed(failure) => break Some(failure),
            },
            () = interrupts.next() => break None,
        }
    };
    if died.is_none() {
        let longest = duration(yard::DRAIN);
        terminal.note(&format!("draining, {longest} at most; Ctrl-C again leaves at once"));
    }
    tokio::select! {
        stopped = yard.stop() => died.map_or(stopped, Err)?,
        () = interrupts.next() => return Err(Failure::Interrupted),
    }
    Ok(Exit::Completed)
}

/// A worker that was drained is not started again, because an operator wanted it to leave.
fn drained(yard: &Yard) -> String {
    format!(
        "the worker was drained and has left; the broker and the coordinator still run. Start another worker with: \
         toolyard worker --pool local --root . --nats-url {}",
        yard.nats_url()
    )
}

fn described(yard: &Yard, root: &Path) -> Object {
    Object::default()
        .field("url", yard.url())
        .field("nats_url", yard.nats_url())
        .field("data_dir", yard.data_dir().display().to_string())
        .field("root", root.display().to_string())
}

fn announcement(yard: &Yard, root: &Path, keeps: bool, paint: Paint) -> String {
    let (url, nats_url) = (yard.url(), yard.nats_url());
    let data = yard.data_dir().display();
    let fate = if keeps { "" } else { ", removed at the end" };
    let mut export = String::new();
    if url != format!("http://{LISTEN}") {
        export.push_str(&format!("  export TOOLYARD_URL={url}\n"));
    }
    if nats_url != NATS_URL {
        export.push_str(&format!("  export TOOLYARD_NATS_URL={nats_url}\n"));
    }
    format!(
        "{title}

  coordinator  {url}
  console      {url}/console
  broker       {nats_url}
  data         {data}{fate}
  tools        work in {root}

In another terminal:

{export}  toolyard tools ls
  toolyard call get_current_time time_zone=Asia/Shanghai
  toolyard call bash command='for i in 1 2 3; do echo $i; sleep 1; done'
  toolyard call ask_user question='Tea or coffee?' options='[\"tea\", \"coffee\"]'

Ctrl-C drains and ends it.
",
        title = paint.bold("Toolyard is up"),
        root = root.display(),
    )
}
