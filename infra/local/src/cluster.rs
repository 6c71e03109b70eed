//! Three `nats-server` on loopback ports that form a cluster, for tests that kill, pause and restart replicas.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::error::Error;
use crate::find::{Lookup, find};
use crate::folder::Folder;
use crate::ports::free_port;
use crate::program::Program;
use crate::ready;
use crate::server::Server;

/// As many nodes as it takes to lose one.
const NODES: usize = 3;
/// Sets of free ports tried before giving up, as for a store.
const PORTS_TRIED_MAX: usize = 5;
/// The nodes meet and elect a leader in some 2 s; a node that was away has to catch up as well.
const HEALTHY_LIMIT: Duration = Duration::from_secs(60);
const HEALTHY_POLL: Duration = Duration::from_millis(50);

const SYNC_ALWAYS: &str = "jetstream { sync_interval: always }\n";

/// The sync setting and the users of a cluster's nodes.
#[derive(Debug, Clone, Default)]
pub struct ClusterOptions {
    /// Every write is on disk before it is confirmed (`sync_interval: always`).
    pub sync_always: bool,
    /// A file of further configuration, as with accounts, the same for all nodes.
    pub config: Option<PathBuf>,
}

/// A running cluster. Dropping it ends its servers and removes their temporary folders.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
}

/// One server of a cluster.
#[derive(Debug)]
pub struct Node {
    server: Server,
    args: Vec<OsString>,
    port: u16,
    monitoring: u16,
}

impl Cluster {
    /// Starts three nodes that write as the server does by default. Else as [`Cluster::start_with`].
    ///
    /// # Errors
    /// As [`Cluster::start_with`].
    pub async fn start(say: fn(&str)) -> Result<Self, Error> {
        Self::start_with(ClusterOptions::default(), say).await
    }

    /// Finds `nats-server` (fetching it when needed, told through `say`), starts three of them and waits until they
    /// have a leader, and each of them may hold a replica.
    ///
    /// # Errors
    /// As [`crate::Broker::start`]; a cluster that has no leader within a minute.
    pub async fn start_with(options: ClusterOptions, say: fn(&str)) -> Result<Self, Error> {
        let mut tried = 1;
        loop {
            match Self::try_start(&options, say).await {
                Err(Error::PortTaken { .. }) if tried < PORTS_TRIED_MAX => tried += 1,
                result => return result,
            }
        }
    }

    async fn try_start(options: &ClusterOptions, say: fn(&str)) -> Result<Self, Error> {
        let binary = find(Program::NatsServer, &Lookup::from_env(), say).await?;
        let ports = free_ports(NODES * 3)?;
        let routes = &ports[..NODES];
        let mut nodes = Vec::with_capacity(NODES);
        for (index, chunk) in ports[NODES..].chunks_exact(2).enumerate() {
            let folder = Folder::temporary().await?;
            let (port, monitoring) = (chunk[0], chunk[1]);
            let args = args(&folder, index, routes, monitoring, options)?;
            let server = Server::new(Program::NatsServer, binary.clone(), folder);
            nodes.push(Node { server, args, port, monitoring });
        }
        for node in &mut nodes {
            node.server.come_up(node.port, &node.args()).await?;
        }
        let cluster = Self { nodes };
        cluster.healthy().await?;
        Ok(cluster)
    }

    /// The address for clients: all nodes, separated by commas.
    pub fn url(&self) -> String {
        self.nodes.iter().map(Node::url).collect::<Vec<_>>().join(",")
    }

    /// The nodes, always three.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    pub fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// Waits until every node that runs has a leader and has caught up with it, and the leader has heard of each.
    ///
    /// # Errors
    /// When that takes more than a minute.
    pub async fn healthy(&self) -> Result<(), Error> {
        let deadline = Instant::now() + HEALTHY_LIMIT;
        while let Some(node) = self.unhealthy().await {
            if Instant::now() >= deadline {
                let log = node.server.log_end();
                return Err(Error::Slow { program: Program::NatsServer, limit: HEALTHY_LIMIT, log });
            }
            sleep(HEALTHY_POLL).await;
        }
        Ok(())
    }

    /// A node that is not as it should be, if any.
    async fn unhealthy(&self) -> Option<&Node> {
        let running: Vec<&Node> = self.nodes.iter().filter(|node| node.pid().is_some()).collect();
        let mut is_led = false;
        for node in &running {
            if !ready::is_healthy(node.monitoring).await {
                return Some(node);
            }
            // A leader that knows too few would refuse a stream of three replicas.
            let heard = ready::peers_heard(node.monitoring, &node.name()).await;
            is_led |= heard.is_some_and(|heard| heard + 1 >= running.len());
        }
        running.first().copied().filter(|_| !is_led)
    }

    /// Ends the servers gently and waits until they are gone.
    pub async fn stop(mut self) {
        for node in &mut self.nodes {
            node.resume();
            node.server.end().await;
        }
    }
}

impl Node {
    /// The address for clients of this node alone.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Where it tells of itself over HTTP, as `http://127.0.0.1:8222`.
    pub fn monitoring_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.monitoring)
    }

    /// Its name in the cluster, as the broker reports leaders by it.
    pub fn name(&self) -> String {
        self.args[1].to_string_lossy().into_owned()
    }

    /// The process id; none after [`Node::kill`].
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Sends SIGKILL and waits until it is gone. Its folder stays; [`Node::restart`] brings it back.
    pub async fn kill(&mut self) {
        self.server.kill().await;
    }

    /// Starts the server again on the same ports and folder and waits until it listens; [`Cluster::healthy`] waits
    /// until it has caught up.
    ///
    /// # Errors
    /// As [`crate::Broker::restart`].
    pub async fn restart(&mut self) -> Result<(), Error> {
        let args = self.args();
        self.server.come_back(self.port, &args).await
    }

    /// SIGSTOP: it stands still, and nobody is told.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.server.resume();
    }

    fn args(&self) -> Vec<OsString> {
        let port = ["--port".into(), self.port.to_string().into()];
        self.args.iter().cloned().chain(port).collect()
    }
}

fn args(
    folder: &Folder,
    index: usize,
    routes: &[u16],
    monitoring: u16,
    options: &ClusterOptions,
) -> Result<Vec<OsString>, Error> {
    let others: Vec<String> = routes.iter().map(|port| format!("nats-route://127.0.0.1:{port}")).collect();
    let mut args: Vec<OsString> = vec![
        "--server_name".into(),
        format!("toolyard-local-{index}").into(),
        "--addr".into(),
        "127.0.0.1".into(),
        "--http_port".into(),
        monitoring.to_string().into(),
        "--jetstream".into(),
        "--store_dir".into(),
        folder.path().into(),
        "--ports_file_dir".into(),
        folder.path().into(),
        "--cluster_name".into(),
        cluster_name(routes).into(),
        "--cluster".into(),
        format!("nats://127.0.0.1:{}", routes[index]).into(),
        "--routes".into(),
        others.join(",").into(),
        // Clients get all addresses with the URL. One that connects through a proxy must not learn how to go round it.
        "--no_advertise".into(),
    ];
    // Settings without a flag.
    let mut text = String::new();
    if options.sync_always {
        text.push_str(SYNC_ALWAYS);
    }
    if let Some(config) = &options.config {
        // Not by its path: the server takes paths of what it includes from the including file's folder, whole ones too.
        let further = std::fs::read_to_string(config);
        text.push_str(&further.map_err(|source| Error::Folder { path: config.clone(), source })?);
    }
    if !text.is_empty() {
        let config = folder.path().join("node.conf");
        std::fs::write(&config, text).map_err(|source| Error::Folder { path: config.clone(), source })?;
        args.extend(["--config".into(), config.into()]);
    }
    Ok(args)
}

/// A name of its own: a node that comes back may find another cluster's node on the port of a friend, and servers of
/// one name join.
fn cluster_name(routes: &[u16]) -> String {
    let ports: Vec<String> = routes.iter().map(u16::to_string).collect();
    format!("toolyard-local-{}-{}", std::process::id(), ports.join("-"))
}

/// Ports that are free now, all at the same time. Nodes must know each other's ports before any of them runs.
fn free_ports(count: usize) -> Result<Vec<u16>, Error> {
    (0..count).map(|_| free_port().map_err(|source| Error::NoPort { source })).collect()
}
