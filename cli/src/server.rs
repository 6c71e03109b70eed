//! The coordinator that client commands talk to: its address, its authority, and the client's credentials.

use std::path::{Path, PathBuf};

use client::{Client, Connection};

use crate::context::{self, Context};
use crate::exit::Failure;

/// The coordinator of `toolyard dev`.
const USUAL_URL: &str = "http://127.0.0.1:7420";

#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct Server {
    /// The coordinator that client commands talk to: http://HOST:PORT, or https:// [default: that of the current
    /// context, or http://127.0.0.1:7420]
    #[arg(long, env = "TOOLYARD_URL", global = true)]
    url: Option<String>,
    /// The file of the authorities (PEM) by which the coordinator's certificate is signed [default: the system's]
    #[arg(long, env = "TOOLYARD_CA", value_name = "FILE", global = true, hide_short_help = true)]
    ca: Option<PathBuf>,
    /// The file of the client's certificate (PEM), if the coordinator requires one
    #[arg(long, env = "TOOLYARD_CLIENT_CERT", value_name = "FILE", requires = "client_key", global = true)]
    #[arg(hide_short_help = true)]
    client_cert: Option<PathBuf>,
    /// The file of its private key (PEM)
    #[arg(long, env = "TOOLYARD_CLIENT_KEY", value_name = "FILE", requires = "client_cert", global = true)]
    #[arg(hide_short_help = true)]
    client_key: Option<PathBuf>,
    /// The file of the client's key or token, if the coordinator authenticates callers
    #[arg(long, env = "TOOLYARD_KEY_FILE", value_name = "FILE", global = true)]
    key_file: Option<PathBuf>,
    /// The context with the coordinator and the credentials (`toolyard context`), instead of the current one
    #[arg(long, env = "TOOLYARD_CONTEXT", value_name = "NAME", global = true)]
    use_context: Option<String>,
}

impl Server {
    /// The same credentials for another address.
    pub(crate) fn at(&self, url: String) -> Self {
        Self { url: Some(url), use_context: None, ..self.clone() }
    }

    /// Whether a caller's key or certificate is given.
    pub(crate) fn has_credentials(&self) -> bool {
        self.key_file.is_some() || self.client_cert.is_some()
    }

    /// The address, and the files that are given beside it, or else those of the context.
    fn resolved(&self) -> Result<Context, Failure> {
        let Self { url, ca, client_cert, client_key, key_file, use_context } = self.clone();
        let context = match (&url, &use_context) {
            (Some(_), Some(_)) => {
                let why = "give --url or --use-context, not both; TOOLYARD_URL and TOOLYARD_CONTEXT count, too";
                return Err(Failure::Usage(why.to_owned()));
            }
            // A key of a context goes to the coordinator of the context alone.
            (Some(_), None) => None,
            (None, name) => context::chosen(name.as_deref())?,
        };
        let context = context.unwrap_or_default();
        let usual = || if context.url.is_empty() { USUAL_URL.to_owned() } else { context.url.clone() };
        let own_certificate = client_cert.is_some();
        Ok(Context {
            url: url.unwrap_or_else(usual),
            key_file: key_file.or(context.key_file),
            ca: ca.or(context.ca),
            client_cert: client_cert.or(context.client_cert),
            client_key: if own_certificate { client_key } else { context.client_key },
        })
    }

    /// The address.
    pub(crate) fn url(&self) -> Result<String, Failure> {
        Ok(self.resolved()?.url)
    }

    /// What is given, to be stored as a context, with whole paths.
    pub(crate) fn stored(&self) -> Result<Context, Failure> {
        let Some(url) = self.url.clone() else {
            return Err(Failure::Usage("give the coordinator of the context: --url URL".to_owned()));
        };
        let whole = |path: &Option<PathBuf>| {
            let whole = path.as_ref().map(std::path::absolute).transpose();
            whole.map_err(|error| Failure::Usage(format!("there is no such path: {error}")))
        };
        Ok(Context {
            url,
            key_file: whole(&self.key_file)?,
            ca: whole(&self.ca)?,
            client_cert: whole(&self.client_cert)?,
            client_key: whole(&self.client_key)?,
        })
    }

    /// How to reach it.
    pub(crate) fn connection(&self) -> Result<Connection, Failure> {
        let Context { url, key_file, ca, client_cert, client_key } = self.resolved()?;
        let mut connection = Connection::to(url);
        if let Some(ca) = &ca {
            connection = connection.trusting(read(ca)?);
        }
        if let (Some(certificate), Some(key)) = (&client_cert, &client_key) {
            connection = connection.with_certificate(read(certificate)?, read(key)?);
        }
        if let Some(file) = &key_file {
            let key = String::from_utf8_lossy(&read(file)?).into_owned();
            if key.trim().is_empty() {
                return Err(Failure::Usage(format!("{} holds no key", file.display())));
            }
            connection = connection.with_key(key);
        }
        Ok(connection)
    }

    /// Connects.
    pub(crate) async fn connect(&self) -> Result<Client, Failure> {
        Ok(Client::connect(&self.connection()?).await?)
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))
}
