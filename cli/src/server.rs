//! The coordinator that client commands talk to: its address, its authority, and the client's credentials.

use std::path::{Path, PathBuf};

use client::{Client, Connection};

use crate::exit::Failure;

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Server {
    /// The coordinator that client commands talk to: http://HOST:PORT, or https://
    #[arg(long, env = "TOOLYARD_URL", default_value = "http://127.0.0.1:7420", global = true)]
    pub(crate) url: String,
    /// The file of the authorities (PEM) by which the coordinator's certificate is signed [default: the system's]
    #[arg(long, env = "TOOLYARD_CA", value_name = "FILE", global = true)]
    ca: Option<PathBuf>,
    /// The file of the client's certificate (PEM), if the coordinator requires one
    #[arg(long, env = "TOOLYARD_CLIENT_CERT", value_name = "FILE", requires = "client_key", global = true)]
    client_cert: Option<PathBuf>,
    /// The file of its private key (PEM)
    #[arg(long, env = "TOOLYARD_CLIENT_KEY", value_name = "FILE", requires = "client_cert", global = true)]
    client_key: Option<PathBuf>,
    /// The file of the client's key or token, if the coordinator authenticates callers
    #[arg(long, env = "TOOLYARD_KEY_FILE", value_name = "FILE", global = true)]
    key_file: Option<PathBuf>,
}

impl Server {
    /// A door of this machine, open to all.
    pub(crate) fn at(url: String) -> Self {
        Self { url, ca: None, client_cert: None, client_key: None, key_file: None }
    }

    /// Connects.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        let mut connection = Connection::to(&self.url);
        if let Some(ca) = &self.ca {
            connection = connection.trusting(read(ca)?);
        }
        if let (Some(certificate), Some(key)) = (&self.client_cert, &self.client_key) {
            connection = connection.with_certificate(read(certificate)?, read(key)?);
        }
        if let Some(file) = &self.key_file {
            let key = String::from_utf8_lossy(&read(file)?).into_owned();
            if key.trim().is_empty() {
                return Err(Failure::Usage(format!("{} holds no key", file.display())));
            }
            connection = connection.with_key(key);
        }
        Ok(Client::connect(&connection).await?)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))
}
