//! Tools of MCP servers.
//!
//! A server is a program that speaks on its standard input and output, or an address of the Streamable HTTP transport.
//! Both eras of the protocol are spoken: that of `initialize` (2025-11-25 and older) and that of `server/discover`
//! (2026-07-28). [`Host`] connects to the servers, makes a [`Table`] of their tools and those of the worker itself, and
//! another one whenever tools change. A server that ends is started again; what its tools do is described by
//! `docs/howto/mcp-servers.md`.

mod asking;
mod call;
mod client;
pub mod config;
mod connect;
mod content;
mod lines;
mod listed;
mod mcp_client;
mod metrics;
mod schemas;
mod server;
mod session;
mod tasks;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use toolyard_tool::{Manifest, Table, ToolName};

use self::config::{ConfigError, Patterns, ServerConfig};
pub use self::connect::Programs;
use self::server::Server;

/// Bytes of the descriptions of all tools together: they are advertised in one message of the broker (1 MiB).
const TOOLS_BYTES_MAX: usize = 960 * 1024;
/// How long a worker waits for its servers before it begins without those that are not running yet.
const START_WAIT: Duration = Duration::from_secs(60);

/// Which tools are hosted, by their names.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Only these; all if it is empty.
    pub enable: Patterns,
    /// All but these.
    pub disable: Patterns,
}

impl Selection {
    fn selects(&self, name: &ToolName) -> bool {
        (self.enable.is_empty() || self.enable.matches(name.as_str())) && !self.disable.matches(name.as_str())
    }
}

/// Hosts the tools of servers beside those of the worker.
#[derive(Debug)]
pub struct Host {
    servers: Vec<Arc<Server>>,
    /// The worker's own tools.
    own: Table,
    selection: Selection,
    /// The servers whose tools are reached through `mcp_client`.
    by_name: Patterns,
    /// `mcp_client` and `mcp_tools`, if there are such servers.
    client: Option<Table>,
}

impl Host {
    /// Prepares the hosting of servers by a worker with so many slots. `programs` may be `None` if no server is a
    /// program.
    #[must_use]
    pub fn new(servers: Vec<ServerConfig>, own: Table, programs: Option<&Programs>, slots: usize) -> Self {
        let server = |config: ServerConfig| Server::new(config, programs.cloned(), slots);
        let servers = servers.into_iter().map(server).collect();
        Self { servers, own, selection: Selection::default(), by_name: Patterns::default(), client: None }
    }

    /// Has the tools of these servers (`*` stands for any characters) reached through the tools `mcp_client` and
    /// `mcp_tools`, instead of hosting each. One whose calls a person must approve is still hosted.
    ///
    /// # Errors
    /// There is no server of such a name.
    pub fn by_name(mut self, names: &[String]) -> Result<Self, ConfigError> {
        for name in names {
            let pattern = Patterns::new(&[name])?;
            if !self.servers.iter().any(|server| pattern.matches(server.name())) {
                let known = self.servers.iter().map(|server| server.name().to_owned()).collect();
                return Err(ConfigError::NoServer { name: name.clone(), known });
            }
        }
        self.by_name = Patterns::new(names)?;
        Ok(self)
    }

    /// Hosts only some of the tools, the worker's own ones included.
    #[must_use]
    pub fn selecting(self, selection: Selection) -> Self {
        Self { selection, ..self }
    }

    /// Starts the servers, and returns the tables when each of them has been tried, or after a minute. They are kept
    /// until `stop`; the tasks end soon after it.
    pub async fn start(mut self, stop: CancellationToken) -> (watch::Receiver<Arc<Table>>, JoinSet<()>) {
        self.client = self.client_tools();
        let mut tasks = JoinSet::new();
        let mut tools: Vec<_> = self.servers.iter().map(|server| server.tools()).collect();
        for server in &self.servers {
            tasks.spawn(Arc::clone(server).keep(stop.clone()));
        }
        let tried = async {
            for tools in &mut tools {
                // It cannot fail while the server is here.
                drop(tools.wait_for(Option::is_some).await);
            }
        };
        tokio::select! {
            waited = tokio::time::timeout(START_WAIT, tried) => if waited.is_err() {
                tracing::warn!("not all MCP servers are running yet; the worker begins with the tools of the others");
            },
            () = stop.cancelled() => {}
        }
        let sender = watch::Sender::new(Arc::new(self.table(&mut tools)));
        let tables = sender.subscribe();
        tasks.spawn(self.follow(tools, sender, stop));
        (tables, tasks)
    }

    /// The tools for the servers that are reached by name, if there are any.
    fn client_tools(&self) -> Option<Table> {
        let named = self.servers.iter().filter(|server| self.by_name.matches(server.name()));
        let named: Vec<Arc<Server>> = named.cloned().collect();
        if named.is_empty() {
            return None;
        }
        let made = mcp_client::table(named, self.selection.disable.clone());
        let log = |error| tracing::error!(%error, "leaving out the tools mcp_client and mcp_tools");
        made.map_err(log).ok().map(|table| table.keep(|name| self.selection.selects(name)))
    }

    /// Makes another table whenever tools of a server change.
    async fn follow(self, mut tools: Vec<Listed>, tables: watch::Sender<Arc<Table>>, stop: CancellationToken) {
        while !tools.is_empty() {
            let changed = tools.iter_mut().map(|tools| Box::pin(tools.changed()));
            tokio::select! {
                _ = futures::future::select_all(changed) => {}
                () = stop.cancelled() => return,
            }
            tables.send_replace(Arc::new(self.table(&mut tools)));
        }
    }

    /// The tools that are hosted now. One whose name is taken, or that is too much, is left out.
    fn table(&self, tools: &mut [Listed]) -> Table {
        let mut table = self.own.clone().keep(|name| self.selection.selects(name));
        if let Some(Err(error)) = self.client.as_ref().map(|client| table.adopt(client)) {
            tracing::warn!(%error, "leaving out the tools mcp_client and mcp_tools");
        }
        let mut bytes: usize = table.manifests().map(size).sum();
        for (server, tools) in self.servers.iter().zip(tools) {
            let tools = tools.borrow_and_update().clone().unwrap_or_default();
            let by_name = self.by_name.matches(server.name());
            for tool in tools.iter() {
                let is_hosted =
                    |tool: &&Manifest| self.selection.selects(&tool.name) && (!by_name || tool.requires_confirmation);
                let Some(manifest) = tool.manifests().next().filter(is_hosted) else { continue };
                let left_out = if bytes + size(manifest) > TOOLS_BYTES_MAX {
                    Some(format!("all tools of a worker have at most {TOOLS_BYTES_MAX} bytes: use allow or deny"))
                } else {
                    table.adopt(tool).err().map(|error| format!("{error}: use a prefix"))
                };
                match left_out {
                    None => bytes += size(manifest),
                    Some(reason) => {
                        let (server, tool) = (server.name(), &manifest.name);
                        tracing::warn!(server, %tool, reason, "leaving out a tool of an MCP server");
                    }
                }
            }
        }
        table
    }
}

type Listed = watch::Receiver<Option<Arc<Vec<Table>>>>;

/// About what a tool takes of an advertisement.
fn size(manifest: &Manifest) -> usize {
    const REST: usize = 256;
    let texts = [&manifest.description, &manifest.input_schema, &manifest.output_schema, &manifest.title];
    texts.into_iter().map(String::len).sum::<usize>() + manifest.name.as_str().len() + REST
}
