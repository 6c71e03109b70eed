//! What a worker is given for tools that call the fleet or a service outside.

use std::path::{Path, PathBuf};

use client::Connection;
use collaboration::{Fleet, Options, Triggers};

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
}

impl CollaborationArgs {
    /// The options of the tools, and the files that no tool may read.
    pub(crate) fn open(&self, enabled: &[String]) -> Result<(Options, Vec<PathBuf>), Failure> {
        let mut hidden: Vec<PathBuf> = self.api_key_file.iter().cloned().collect();
        let fleet = self.api_url.as_deref().map(|url| self.fleet(url)).transpose()?;
        let read = |file: &PathBuf| Triggers::read(file, |name| std::env::var(name).ok());
        let triggers =
            self.triggers.as_ref().map(read).transpose().map_err(|error| Failure::Usage(error.to_string()))?;
        hidden.extend(triggers.iter().flat_map(Triggers::secret_files).cloned());
        let options = Options { fleet, triggers };
        options.check(enabled).map_err(|error| Failure::Usage(error.to_string()))?;
        Ok((options, hidden))
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
