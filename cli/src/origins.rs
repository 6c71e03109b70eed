//! The tools of a worker that are no code of its own: HTTP endpoints and programs, as its arguments name them.

use std::path::PathBuf;

use origins::http::HttpTools;
use origins::process::ProgramTools;
use sandbox::{Sandbox, Workspaces};
use tools::Backends;
use worker::Table;

use crate::exit::Failure;

/// The files of tools that need no Rust.
#[derive(Debug, clap::Args)]
pub(crate) struct OriginArgs {
    /// The file of HTTP endpoints and OpenAPI documents to host as tools (TOML or JSON; docs/howto/http-tools.md)
    #[arg(long, env = "TOOLYARD_HTTP", value_name = "FILE")]
    http: Option<PathBuf>,
    /// The file, or the folder of files, of programs to host as tools (TOML or JSON; docs/howto/program-tools.md)
    #[arg(long, env = "TOOLYARD_PROGRAMS", value_name = "PATH")]
    programs: Option<PathBuf>,
    /// The file of backends for web_search, file_search, image_generation and code_interpreter, each hosted if it is
    /// there (docs/howto/backends.md)
    #[arg(long, env = "TOOLYARD_BACKENDS", value_name = "FILE")]
    backends: Option<PathBuf>,
}

/// The files, read.
#[derive(Debug)]
pub(crate) struct Origins {
    http: Option<HttpTools>,
    programs: Option<ProgramTools>,
    backends: Option<Backends>,
}

impl OriginArgs {
    /// Reads the files.
    pub(crate) fn read(self) -> Result<Origins, Failure> {
        let http = self.http.as_deref().map(HttpTools::read).transpose()?;
        let programs = self.programs.as_deref().map(ProgramTools::read).transpose()?;
        let backends = self.backends.as_deref().map(Backends::read).transpose()?;
        Ok(Origins { http, programs, backends })
    }
}

impl Origins {
    /// The files of their secrets, which programs must not open.
    pub(crate) fn secret_files(&self) -> Vec<PathBuf> {
        let http = self.http.iter().flat_map(|http| http.secret_files().to_vec());
        let backends = self.backends.iter().flat_map(|backends| backends.secret_files().to_vec());
        http.chain(backends).chain(self.programs.iter().flat_map(ProgramTools::secret_files)).collect()
    }

    /// The folders of programs, which they must be able to read.
    pub(crate) fn folders(&self) -> Vec<PathBuf> {
        self.programs.iter().flat_map(ProgramTools::folders).collect()
    }

    pub(crate) fn has_programs(&self) -> bool {
        self.programs.is_some() || self.backends.as_ref().is_some_and(Backends::has_programs)
    }

    /// Hosts their tools beside those of a table. The log has those that cannot be hosted.
    pub(crate) async fn host(
        self,
        mut table: Table,
        sandbox: &Sandbox,
        workspaces: Option<&Workspaces>,
    ) -> Result<Table, Failure> {
        if let Some(http) = self.http {
            (table, _) = http.host(table).await?;
        }
        if let Some(programs) = self.programs {
            (table, _) = programs.host(table, sandbox, workspaces).await?;
        }
        if let Some(backends) = self.backends {
            table = backends.host(table, sandbox).await.map_err(tools::Error::from)?;
        }
        Ok(table)
    }
}
