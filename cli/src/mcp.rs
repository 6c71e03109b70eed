//! The MCP servers of `toolyard worker`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use origins::mcp::config::{self, ConfigError, Patterns, Reach, ServerConfig, Token, number_names, variable_of_worker};
use origins::mcp::{Host, Programs, Selection};
use sandbox::Sandbox;
use tokio_util::sync::CancellationToken;
use worker::{Table, WorkerId};

use crate::exit::Failure;

/// How long the servers may take to end when the worker does.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Servers whose tools are hosted.
#[derive(Debug, clap::Args)]
pub(crate) struct McpArgs {
    /// An MCP server to host: a command that is started, or the address of one (Streamable HTTP). May be repeated
    /// (docs/howto/mcp-servers.md)
    #[arg(long, env = "TOOLYARD_MCP", value_name = "SERVER")]
    mcp: Vec<String>,
    /// A file of MCP servers to host, in the format of other MCP hosts: {"mcpServers": {…}}
    #[arg(long, env = "TOOLYARD_MCP_CONFIG", value_name = "FILE")]
    mcp_config: Option<PathBuf>,
    /// The file of the bearer token for the addresses of --mcp. Read again for each connection
    #[arg(long, env = "TOOLYARD_MCP_TOKEN_FILE", value_name = "FILE", requires = "mcp")]
    mcp_token_file: Option<PathBuf>,
    /// The name of the environment variable with that token
    #[arg(long, value_name = "NAME", requires = "mcp", conflicts_with = "mcp_token_file")]
    mcp_token_env: Option<String>,
    /// The names of the worker's environment variables that the commands of --mcp receive; others they do not
    #[arg(long, env = "TOOLYARD_MCP_ENV", value_name = "NAMES", value_delimiter = ',', requires = "mcp")]
    mcp_env: Vec<String>,
    /// Stands in front of the names of the tools of --mcp
    #[arg(long, env = "TOOLYARD_MCP_PREFIX", value_name = "TEXT", requires = "mcp")]
    mcp_prefix: Option<String>,
    /// Whether the servers of --mcp are believed what their tools do. If not, each tool counts as destructive
    #[arg(long, env = "TOOLYARD_MCP_TRUST_HINTS", value_name = "BOOL", default_value = "true")]
    #[arg(value_parser = BoolishValueParser::new(), action = clap::ArgAction::Set)]
    mcp_trust_hints: bool,
    /// Reach the tools of these servers through the tools mcp_client and mcp_tools, instead of hosting each: names of
    /// servers with commas between them; `*` stands for any characters
    #[arg(long, env = "TOOLYARD_MCP_CLIENT", value_name = "SERVERS", value_delimiter = ',')]
    mcp_client: Vec<String>,
    /// Start a process of each command of --mcp for each slot, instead of one for all calls
    #[arg(long, env = "TOOLYARD_MCP_PER_SLOT", requires = "mcp")]
    mcp_per_slot: bool,
}

impl McpArgs {
    pub(crate) fn is_empty(&self) -> bool {
        self.mcp.is_empty() && self.mcp_config.is_none()
    }

    /// The files that hold secrets, or the names of such; those that --mcp-config names are [`token_files`].
    pub(crate) fn secrets(&self) -> impl Iterator<Item = &PathBuf> {
        self.mcp_token_file.iter().chain(&self.mcp_config)
    }

    /// The names of the servers whose tools are reached by name.
    pub(crate) fn by_name(&self) -> Vec<String> {
        self.mcp_client.clone()
    }

    /// The servers.
    pub(crate) fn servers(self) -> Result<Vec<ServerConfig>, Failure> {
        let mut servers = match &self.mcp_config {
            Some(file) => config::read(file, |name| std::env::var(name).ok())?,
            None => Vec::new(),
        };
        for text in &self.mcp {
            let mut server = ServerConfig::of_command(text)?;
            match &mut server.reach {
                Reach::Http { token, .. } => {
                    *token = self.mcp_token_file.clone().map(Token::File);
                    *token = token.take().or_else(|| self.mcp_token_env.clone().map(Token::Variable));
                }
                Reach::Program { environment, .. } => {
                    let variable = |name: &String| Ok::<_, ConfigError>((name.clone(), variable_of_worker(name)?));
                    *environment = self.mcp_env.iter().map(variable).collect::<Result<_, _>>()?;
                    server.per_slot = self.mcp_per_slot;
                }
            }
            server.trust_hints = self.mcp_trust_hints;
            servers.push(server.with_prefix(self.mcp_prefix.clone().unwrap_or_default())?);
        }
        number_names(&mut servers);
        Ok(servers)
    }
}

/// The files of tokens of servers.
pub(crate) fn token_files(servers: &[ServerConfig]) -> impl Iterator<Item = &PathBuf> {
    servers.iter().filter_map(|server| match &server.reach {
        Reach::Http { token: Some(Token::File(file)), .. } => Some(file),
        Reach::Http { token: Some(Token::Variable(_)) | None, .. } | Reach::Program { .. } => None,
    })
}

/// The tools that --enable and --disable choose. Those of servers are not known yet, so a pattern may match none.
pub(crate) fn selection(enable: &[String], disable: &[String]) -> Result<Selection, Failure> {
    Ok(Selection { enable: Patterns::new(enable)?, disable: Patterns::new(disable)? })
}

/// Serves the tools of servers beside those of the worker.
pub(crate) async fn serve(
    options: worker::Options,
    host: Host,
    stop: CancellationToken,
    ready: impl FnOnce(&WorkerId) + Send + 'static,
) -> Result<(), worker::Error> {
    // The servers are needed until the last call has ended.
    let end = CancellationToken::new();
    let (tables, mut servers) = tokio::select! {
        started = host.start(end.clone()) => started,
        () = stop.cancelled() => return Ok(()),
    };
    let served = worker::serve_changing(options, tables, stop, ready).await;
    end.cancel();
    let ended = async { while servers.join_next().await.is_some() {} };
    if tokio::time::timeout(STOP_LIMIT, ended).await.is_err() {
        tracing::warn!("the MCP servers do not end");
    }
    served
}

/// A host of servers for a worker with a folder and slots.
pub(crate) fn host(
    servers: Vec<ServerConfig>,
    own: Table,
    (sandbox, root): (&Sandbox, Option<PathBuf>),
    slots: u32,
) -> Result<Host, Failure> {
    let programs = match root {
        Some(root) => Programs::new(sandbox.clone(), root),
        None => Programs::without_root(sandbox.clone()),
    };
    let programs = programs.map_err(Failure::McpPrograms)?;
    Ok(Host::new(servers, own, Some(&programs), usize::try_from(slots).unwrap_or(usize::MAX).min(SLOTS_MAX)))
}

/// As many as a worker has at most.
const SLOTS_MAX: usize = 10_000;
