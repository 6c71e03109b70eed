//! `toolyard nats-config`: writes the broker's configuration and the keys of those that connect to it.

use std::fs;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use coordinator::Durability;
use nats::access::Party;
use nats::access::config::{self, Cluster, Server, Tls, User};
use run::PoolId;

use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::key_files::{self, KeyFiles, wrong};
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  toolyard nats-config --out broker --pool shell
  toolyard nats-config --out broker --pool shell --durability strict \\
    --tls-cert /tls/tls.crt --tls-key /tls/tls.key --tls-ca /tls/ca.crt \\
    --route nats-route://nats-0:6222 --route nats-route://nats-1:6222 \\
    --route nats-route://nats-2:6222
  SERVER_NAME=nats-0 nats-server --config broker/nats.conf
  toolyard worker --pool shell --root /srv/work \\
    --nats-nkey broker/keys/pool-shell.nk

It writes
  accounts.conf   accounts and permissions, for any NATS configuration
  nats.conf       a whole configuration, which includes it
  keys/*.nk       the seed of each user's NKey, mode 0600; existing keys stay
  operator.nk     the seed of your own, for toolyard log, backup and restore:
                  keep it away from everything that runs

Only the keys are secret. Each pool lives in an account of its own. To add a
pool, name it beside the others, give each server the new accounts.conf, and
reload each server twice (`nats-server --signal reload`): a new account gets
its imports with the second reload. To replace a key: toolyard nats-keys.

A server that joins a cluster reads everything, so --route needs --tls-cert,
--tls-key and --tls-ca. Let that authority sign nothing but these servers.

With -o json it writes {accounts, config, keys [user, public_key, file, made]}.";

/// Write the broker's configuration: one account per pool and component, with no more rights than it needs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The folder to write to; created if it is missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// A pool whose workers connect; may be repeated
    #[arg(long = "pool", value_name = "NAME")]
    pools: Vec<PoolId>,
    /// Durability of the log, as given to coordinators. standard and strict need three servers, strict writes each
    /// entry to disk before it is confirmed
    #[arg(long, env = "TOOLYARD_DURABILITY", value_name = "PROFILE", default_value_t = Durability::default())]
    #[arg(value_parser = PossibleValuesParser::new(Durability::NAMES).try_map(|name| name.parse::<Durability>()))]
    durability: Durability,
    /// The address for clients
    #[arg(long, value_name = "PORT", default_value_t = 4222)]
    port: u16,
    /// Serve the monitoring pages on this port, without authentication. KEDA needs them
    #[arg(long, value_name = "PORT")]
    monitor_port: Option<u16>,
    /// The folder in which a server stores its data
    #[arg(long, value_name = "DIR", default_value = "/data")]
    store_dir: String,
    /// Bytes that it may keep there: the log, as `toolyard coordinator --log-max-bytes` has it, and the rest
    #[arg(long, value_name = "B", default_value_t = 3 << 30)]
    store_bytes: u64,
    /// The path of the server's certificate (PEM) on the server. With it TLS is required
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// The key of the certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
    /// The authority that signs the servers' certificates, with which the servers of a cluster authenticate each other
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_ca: Option<String>,
    /// The name of the cluster
    #[arg(long, value_name = "NAME", default_value = "toolyard")]
    cluster: String,
    /// The port on which the servers of the cluster meet
    #[arg(long, value_name = "PORT", default_value_t = 6222)]
    cluster_port: u16,
    /// A server of the cluster, as nats-route://nats-0:6222; once for each. Needs --tls-cert and --tls-ca
    #[arg(long = "route", value_name = "URL")]
    routes: Vec<String>,
}

pub(crate) fn run(args: Args, terminal: &Terminal) -> Result<Exit, Failure> {
    let (out, pools) = (args.out.clone(), args.pools.clone());
    let server = server(args)?;
    let folder = out.join("keys");
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
    made.map_err(|error| wrong(&folder, &error))?;
    let mut parties = vec![Party::Coordinator, Party::Observer, Party::Operator];
    for pool in pools {
        let party = Party::Pool(pool);
        if !parties.contains(&party) {
            parties.push(party);
        }
    }
    let mut keys = Vec::new();
    for party in parties {
        keys.extend(Key::all(&party, &out)?);
    }
    let users: Vec<User> = keys.iter().map(|key| key.user.clone()).collect();
    let (accounts, config) = (out.join("accounts.conf"), out.join("nats.conf"));
    key_files::publish(&accounts, &config::accounts(&users))?;
    key_files::publish(&config, &config::server(&server))?;
    tell(terminal, &accounts, &config, &keys)?;
    Ok(Exit::Completed)
}

fn server(args: Args) -> Result<Server, Failure> {
    if args.durability.replicas() > 1 && args.routes.len() < args.durability.replicas() {
        return Err(Failure::Usage(format!(
            "--durability {} keeps {} copies, each on a server of its own: name them with --route, there are {}",
            args.durability,
            args.durability.replicas(),
            args.routes.len()
        )));
    }
    if !args.routes.is_empty() && (args.tls_cert.is_none() || args.tls_ca.is_none()) {
        return Err(Failure::Usage(
            "--route without --tls-cert and --tls-ca: any server that reaches the cluster's port would join it and read \
             everything. Give the certificate by which the servers know each other, its key, and who signs it"
                .to_owned(),
        ));
    }
    let tls = args.tls_cert.zip(args.tls_key).map(|(cert, key)| Tls { cert, key, ca: args.tls_ca });
    let cluster = Cluster { name: args.cluster, port: args.cluster_port, routes: args.routes };
    Ok(Server {
        port: args.port,
        monitor_port: args.monitor_port,
        store_dir: args.store_dir,
        store_bytes: args.store_bytes,
        sync_always: args.durability == Durability::Strict,
        tls,
        cluster: Some(cluster).filter(|cluster| !cluster.routes.is_empty()),
    })
}

/// A user, and the file of its seed.
struct Key {
    user: User,
    file: PathBuf,
    made: bool,
}

impl Key {
    /// The key that is there, or a new one; and a second one while the key is replaced.
    fn all(party: &Party, out: &Path) -> Result<Vec<Self>, Failure> {
        let KeyFiles { current, next, old } = KeyFiles::of(party, out);
        let (pair, made) = match key_files::read(&current)? {
            Some(pair) => (pair, false),
            None => (key_files::make(&current)?, true),
        };
        let user = |public_key| User { party: party.clone(), public_key };
        let mut keys = vec![Self { user: user(pair.public_key()), file: current, made }];
        for file in [next, old] {
            if let Some(pair) = key_files::read(&file)?.filter(|second| second.public_key() != pair.public_key()) {
                keys.push(Self { user: user(pair.public_key()), file, made: false });
            }
        }
        Ok(keys)
    }
}

fn tell(terminal: &Terminal, accounts: &Path, config: &Path, keys: &[Key]) -> Result<(), Failure> {
    if !terminal.is_json() {
        terminal.line(&format!("{}  who may what", accounts.display()))?;
        terminal.line(&format!("{}  for nats-server --config", config.display()))?;
        return keys.iter().try_for_each(|Key { file, made, .. }| {
            let made = if *made { "secret, new" } else { "secret, kept as it was" };
            terminal.line(&format!("{}  {made}", file.display()))
        });
    }
    let keys: Vec<Object> = keys.iter().map(described).collect();
    let said = Object::default()
        .field("accounts", accounts.display().to_string())
        .field("config", config.display().to_string())
        .field("keys", keys);
    terminal.object(&said)
}

fn described(Key { user, file, made }: &Key) -> Object {
    Object::default()
        .field("user", user.party.name())
        .field("public_key", &user.public_key)
        .field("file", file.display().to_string())
        .field("made", *made)
}
