//! What a worker is given for tools that call the fleet or a service outside.

use std::path::{Path, PathBuf};

use agents::Agents;
use client::Connection;
use collaboration::{Fleet, Options, Triggers};

use worker::Table;

use crate::exit::Failure;

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct CollaborationArgs {
    /// The coordinators that its tools call: http://HOST:PORT, or https://. Without it team_agent,
    /// task_broadcast, schedule_cron and search_tools are not hosted
    #[arg(long, env = "TOOLYARD_API_URL", value_name = "URL")]
    api_url: Option<String>,
    /// The file of the pool's key there, if coordinators authenticate callers. Other tools cannot read it
    #[arg(long, env = "TOOLYARD_API_KEY_FILE", value_name = "FILE", requires = "api_url")]
    api_key_file: Option<PathBuf>,
    /// The file of the authorities (PEM) by which the coordinators' certificate is signed [default: the system's]
    #[arg(long, env = "TOOLYARD_API_CA", value_name = "FILE", requires = "api_url")]
    api_ca: Option<PathBuf>,
    /// The file that names the addresses of remote_trigger (docs/howto/collaboration-tools.md)
    #[arg(long, env = "TOOLYARD_TRIGGERS", value_name = "FILE")]
    triggers: Option<PathBuf>,
    /// The file of agents to host as tools: models with instructions and tools (docs/howto/agents.md). Other tools
    /// cannot read the files of their keys
    #[arg(long, env = "TOOLYARD_AGENTS", value_name = "FILE", requires = "api_url")]
    agents: Option<PathBuf>,
}

/// The tools that call the fleet or a service outside, to be hosted.
#[derive(Debug)]
pub(crate) struct Together {
    options: Options,
    agents: Option<(Agents, Fleet)>,
    /// The files that no other tool may read.
    pub(crate) hidden: Vec<PathBuf>,
}

impl Together {
    /// Hosts the built-in ones beside those of a table.
    pub(crate) fn host(&self, table: Table) -> Result<Table, Failure> {
        Ok(collaboration::host(table, self.options.clone()).map_err(tools::Error::Host)?)
    }

    /// Hosts the agents beside the tools of a table.
    pub(crate) fn host_agents(self, table: Table) -> Result<Table, Failure> {
        match self.agents {
            Some((agents, fleet)) => Ok(agents.host(table, &fleet).map_err(tools::Error::Host)?),
            None => Ok(table),
        }
    }
}

impl CollaborationArgs {
    /// Reads the files that are given.
    pub(crate) fn open(&self, enabled: &[String]) -> Result<Together, Failure> {
        let mut hidden: Vec<PathBuf> = self.api_key_file.iter().cloned().collect();
        let fleet = self.api_url.as_deref().map(|url| self.fleet(url)).transpose()?;
        let read = |file: &PathBuf| Triggers::read(file, |name| std::env::var(name).ok());
        let triggers =
            self.triggers.as_ref().map(read).transpose().map_err(|error| Failure::Usage(error.to_string()))?;
        hidden.extend(triggers.iter().flat_map(Triggers::secret_files).cloned());
        let agents = self.agents.as_deref().map(Agents::read).transpose()?;
        hidden.extend(agents.iter().flat_map(Agents::secret_files).cloned());
        let agents = agents.zip(fleet.clone());
        let options = Options { fleet, triggers };
        options.check(enabled).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok(Together { options, agents, hidden })
    }

    fn fleet(&self, url: &str) -> Result<Fleet, Failure> {
        let mut connection = Connection::to(url);
        if let Some(ca) = &self.api_ca {
            connection = connection.trusting(read(ca)?);
        }
        if let Some(file) = &self.api_key_file {
            let key = String::from_utf8_lossy(&read(file)?).into_owned();
            if key.trim().is_empty() {
                return Err(Failure::Usage(format!("{} holds no key", file.display())));
            }
            connection = connection.with_key(key);
        }
        Ok(Fleet::new(connection))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))
}
