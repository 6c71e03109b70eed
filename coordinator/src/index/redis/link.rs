//! One connection to the server. A failed connection is dropped, and the next request makes a new one, so requests
//! never wait for a server that is away. The library's own reconnecting connection would make requests wait, keeps
//! using a connection that went silent, and does not report a new connection.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, FromRedisValue, Pipeline, RedisError, TlsCertificates, pipe};
use tokio::sync::Mutex;
use tokio_rustls::rustls::crypto::ring::default_provider;

use crate::index::Unavailable;

const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a pipeline may take. The largest take some 50 ms.
const REPLY_PATIENCE: Duration = Duration::from_secs(5);

const WRITE: &str = include_str!("write.lua");
const ADVANCE: &str = include_str!("advance.lua");

#[derive(Debug, Clone, thiserror::Error)]
pub enum UrlError {
    #[error(
        "{url:?} is not the address of a Redis or Valkey server: {reason}. Give redis://HOST:PORT, or \
        rediss://HOST:PORT for TLS"
    )]
    Malformed { url: String, reason: String },
    #[error(
        "{url:?} is an address without TLS, but --redis-ca gives authorities for it. Give rediss://HOST:PORT, or \
        leave --redis-ca out"
    )]
    WithoutTls { url: String },
    #[error("cannot read the authorities of the index's server in {}: {reason}", file.display())]
    Authorities { file: PathBuf, reason: String },
}

pub(super) struct Link {
    client: Client,
    live: Mutex<Option<Live>>,
}

/// A connection, and the hashes of the scripts that were loaded on it.
#[derive(Clone)]
pub(super) struct Live {
    connection: MultiplexedConnection,
    pub(super) write: String,
    pub(super) advance: String,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The address may hold a password.
        f.debug_struct("Link").finish_non_exhaustive()
    }
}

impl Link {
    /// `ca`: the authorities (PEM) of the server's certificate; the system's if there is none.
    pub(super) fn new(url: &str, ca: Option<&Path>) -> Result<Self, UrlError> {
        let malformed = |error: RedisError| UrlError::Malformed { url: ::nats::hidden(url), reason: error.to_string() };
        let client = match ca {
            Some(_) if !url.starts_with("rediss:") => return Err(UrlError::WithoutTls { url: ::nats::hidden(url) }),
            Some(file) => {
                let unread = |reason: String| UrlError::Authorities { file: file.to_owned(), reason };
                let authorities = std::fs::read(file).map_err(|error| unread(error.to_string()))?;
                let certificates = TlsCertificates { client_tls: None, root_cert: Some(authorities) };
                Client::build_with_tls(url, certificates).map_err(|error| unread(error.to_string()))?
            }
            None => Client::open(url).map_err(malformed)?,
        };
        // The library uses the provider of the process. Another part may have installed the same one.
        default_provider().install_default().ok();
        Ok(Self { client, live: Mutex::new(None) })
    }

    /// The connection; made if there is none.
    pub(super) async fn live(&self) -> Result<Live, Unavailable> {
        let mut slot = self.live.lock().await;
        if let Some(live) = &*slot {
            return Ok(live.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_PATIENCE))
            .set_response_timeout(Some(REPLY_PATIENCE));
        let connect = async {
            let mut connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
            let mut scripts = pipe();
            scripts.cmd("SCRIPT").arg("LOAD").arg(WRITE).cmd("SCRIPT").arg("LOAD").arg(ADVANCE);
            let (write, advance) = scripts.query_async(&mut connection).await?;
            Ok(Live { connection, write, advance })
        };
        let live: Live = connect.await.map_err(unavailable)?;
        Ok(slot.insert(live).clone())
    }

    /// Executes a pipeline. After any error the connection is dropped, because a new one has the scripts and works.
    pub(super) async fn ask<T: FromRedisValue>(&self, live: Live, pipeline: &Pipeline) -> Result<T, Unavailable> {
        let mut connection = live.connection;
        match pipeline.query_async(&mut connection).await {
            Ok(answer) => Ok(answer),
            Err(error) => {
                *self.live.lock().await = None;
                Err(unavailable(error))
            }
        }
    }
}

fn unavailable(error: RedisError) -> Unavailable {
    Unavailable(error.to_string())
}
