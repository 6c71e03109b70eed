//! Tools that are HTTP endpoints: single addresses, and operations of OpenAPI documents. A file names them, with the
//! hosts that they may reach (docs/howto/http-tools.md).

mod answer;
mod client;
mod egress;
mod endpoint;
mod events;
mod file;
mod openapi;
mod service;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use toolyard_tool::Table;

pub(crate) use events::Lines;

pub use crate::source::{InvalidFile, Skipped};
pub use service::{Answer, Piece, Service, ServiceFile, Services};

use self::client::Client;
use self::file::{Entry, Tool};
use crate::table::Hosting;

/// The HTTP tools of a file.
#[derive(Debug)]
pub struct HttpTools {
    path: PathBuf,
    client: Client,
    entries: Vec<Entry>,
    secret_files: Vec<PathBuf>,
}

impl HttpTools {
    /// Reads a file. Nothing is sent yet.
    ///
    /// # Errors
    /// If it cannot be read or is not valid, with the place.
    pub fn read(path: &Path) -> Result<Self, InvalidFile> {
        let file = file::read(path)?;
        let entry = |error| InvalidFile::Entry { path: path.to_owned(), place: "egress".to_owned(), error };
        let mut client = Client::new(file.egress, file.authorities.as_deref()).map_err(entry)?;
        file.connect_timeouts.iter().for_each(|timeout| client.prepare(*timeout));
        Ok(Self { path: path.to_owned(), client, entries: file.entries, secret_files: file.secret_files })
    }

    /// The files of values that tools are given by reference. Other tools of the worker must not read them.
    #[must_use]
    pub fn secret_files(&self) -> &[PathBuf] {
        &self.secret_files
    }

    /// Hosts the tools beside those of a table, and returns which were left out. OpenAPI documents are fetched now.
    ///
    /// # Errors
    /// If a document cannot be read, or nothing is left to host.
    pub async fn host(self, table: Table) -> Result<(Table, Vec<Skipped>), InvalidFile> {
        let Self { path, client, entries, .. } = self;
        let (client, mut hosting) = (Arc::new(client), Hosting::beside(table));
        for Entry { place, tool } in entries {
            match tool {
                Tool::Single(single) => {
                    let (endpoint, about) = single.endpoint(&client);
                    hosting.add(place, &single.name, single.input_schema.to_string(), about, endpoint);
                }
                Tool::Document(document) => {
                    let wrong = |error| InvalidFile::Entry { path: path.clone(), place: place.clone(), error };
                    let operations = document.operations(&client).await.map_err(wrong)?;
                    for operation in operations {
                        match operation {
                            Ok(single) => {
                                let (endpoint, about) = single.endpoint(&client);
                                let place = format!("{place}, {}", endpoint.label());
                                hosting.add(place, &single.name, single.input_schema.to_string(), about, endpoint);
                            }
                            Err(Skipped { place: inner, reason }) => {
                                hosting.skip(format!("{place}, {inner}"), reason);
                            }
                        }
                    }
                }
            }
        }
        hosting.finish(&path)
    }
}
