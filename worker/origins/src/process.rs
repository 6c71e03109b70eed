//! Tools that are programs of any language: the arguments arrive on standard input, and what the program writes to
//! standard output is the output of the call (docs/howto/program-tools.md).

mod event;
mod manifest;
mod program;
mod run;

use std::path::{Path, PathBuf};

use sandbox::{Sandbox, Workspaces};
use toolyard_tool::Table;

pub use crate::source::{InvalidFile, Skipped};

use self::manifest::Manifest;
use crate::table::Hosting;

/// The programs of a file, or of a folder of files and programs.
#[derive(Debug)]
pub struct ProgramTools {
    path: PathBuf,
    manifests: Vec<(String, Manifest)>,
}

impl ProgramTools {
    /// Reads a file, or all `.toml` and `.json` files of a folder. Other files of a folder that can be executed are
    /// programs that describe themselves. No program is started yet.
    ///
    /// # Errors
    /// If something cannot be read or is not valid, with the place.
    pub fn read(path: &Path) -> Result<Self, InvalidFile> {
        Ok(Self { path: path.to_owned(), manifests: manifest::read(path)? })
    }

    /// The folders in which programs run or lie: the sandbox must let them be read.
    #[must_use]
    pub fn folders(&self) -> Vec<PathBuf> {
        let mut folders: Vec<PathBuf> = self.manifests.iter().flat_map(|(_, manifest)| manifest.folders()).collect();
        folders.sort();
        folders.dedup();
        folders
    }

    /// The files of values that programs are given by reference. Other tools of the worker must not read them.
    #[must_use]
    pub fn secret_files(&self) -> Vec<PathBuf> {
        self.manifests.iter().flat_map(|(_, manifest)| manifest.secret_files()).collect()
    }

    /// Hosts the programs beside the tools of a table, and returns which were left out. With `workspaces` each call
    /// works in a folder of those. Programs that describe themselves are started now, with `--describe`.
    ///
    /// # Errors
    /// If nothing is left to host.
    pub async fn host(
        self,
        table: Table,
        sandbox: &Sandbox,
        workspaces: Option<&Workspaces>,
    ) -> Result<(Table, Vec<Skipped>), InvalidFile> {
        let mut hosting = Hosting::beside(table);
        for (place, manifest) in self.manifests {
            match manifest.complete(sandbox).await {
                Ok(complete) => {
                    let (name, schema, about) = complete.described();
                    hosting.add(place, &name, schema, about, complete.program(sandbox.clone(), workspaces.cloned()));
                }
                Err(reason) => hosting.skip(place, reason),
            }
        }
        hosting.finish(&self.path)
    }
}
