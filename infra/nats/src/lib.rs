//! Parts that coordinators and workers share at the broker: the connection, the common clock, permissions, and appends.

pub mod access;
pub mod append;
pub mod clock;
pub mod time;

use std::path::PathBuf;
use std::time::Duration;

use async_nats::{Client, ConnectErrorKind, ConnectOptions, Event};

use crate::access::Party;
pub use crate::time::now;

/// How often a connection is tried. A server that has answered none of three pings is left for another one.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The same for coordinators, which are near the broker: without it one loses its shards within 6 s. A worker may be at
/// the end of a slow link, on which a ping waits behind what is being sent.
const PING_INTERVAL_OF_COORDINATORS: Duration = Duration::from_secs(2);
/// Messages of a subscription that wait for their reader; more are dropped. The broker sends a consumer 32 MiB ahead,
/// which may be twice as many messages of the log as the library's default.
const WAITING_MAX: usize = 256 * 1024;
/// The oldest broker with the features that the log needs.
const VERSION_MIN: (u32, u32) = (2, 14);

/// How the client and the broker authenticate each other.
#[derive(Debug, Clone, Default)]
pub struct Credentials {
    /// The file of our user's NKey seed, as `toolyard nats-config` writes it. Read at every connection.
    pub nkey: Option<PathBuf>,
    /// The file of the authorities (PEM) that sign the broker's certificate. If it is given, TLS is required. If not,
    /// the system's authorities are used if the address begins with `tls://` or the broker requires TLS.
    pub ca: Option<PathBuf>,
}

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot read the key {path}: {source}", path = path.display())]
    Key { path: PathBuf, source: std::io::Error },
    #[error("{path} is not the seed of a user's NKey, which begins with SU; `toolyard nats-config` makes them", path = path.display())]
    NotAKey { path: PathBuf },
    #[error("the broker at {url} does not let us in: {source}. Is --nats-nkey the key of one of its users?")]
    Refused { url: String, source: async_nats::ConnectError },
    #[error(
        "cannot reach the broker at {url}: {source}. Is nats-server running there, with JetStream (-js)? TOOLYARD_NATS_URL says where it is: `toolyard dev` prints its own"
    )]
    Unreachable { url: String, source: async_nats::ConnectError },
    #[error("the broker at {url} is nats-server {version}, at least {}.{} is needed: upgrade it", VERSION_MIN.0, VERSION_MIN.1)]
    TooOld { url: String, version: String },
}

/// Connects to one of the brokers that `url` names, separated by commas, under a name that the broker's monitoring
/// shows, with the inbox of its party so that permissions can tell them apart.
///
/// # Errors
/// When no broker is there, it does not let us in, or it is too old; when the key cannot be used.
pub async fn connect(url: &str, credentials: &Credentials, name: &str, party: &Party) -> Result<Client, ConnectError> {
    let ping_interval = match party {
        Party::Coordinator => PING_INTERVAL_OF_COORDINATORS,
        Party::Observer | Party::Operator | Party::Pool(_) => PING_INTERVAL,
    };
    let mut options = ConnectOptions::new()
        .name(name)
        .custom_inbox_prefix(party.inbox())
        .ping_interval(ping_interval)
        .subscription_capacity(WAITING_MAX)
        .event_callback(|event| async move { log(&event) });
    if let Some(path) = &credentials.nkey {
        options = options.nkey(seed(path)?);
    }
    if let Some(path) = &credentials.ca {
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    let servers: Vec<&str> = url.split(',').map(str::trim).collect();
    let client = options.connect(servers).await.map_err(|source| failed(all_hidden(url), source))?;
    let version = client.server_info().version;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < VERSION_MIN {
        return Err(ConnectError::TooOld { url: all_hidden(url), version });
    }
    Ok(client)
}

fn seed(path: &PathBuf) -> Result<String, ConnectError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConnectError::Key { path: path.clone(), source })?;
    let seed = text.trim();
    if !seed.starts_with("SU") || !seed.chars().all(|letter| letter.is_ascii_alphanumeric()) {
        return Err(ConnectError::NotAKey { path: path.clone() });
    }
    Ok(seed.to_owned())
}

/// An address without what may be a password.
#[must_use]
pub fn hidden(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://***@{host}"),
        (None, Some((_, host))) => format!("***@{host}"),
        (_, None) => url.to_owned(),
    }
}

/// As [`hidden`], for addresses that are separated by commas.
fn all_hidden(urls: &str) -> String {
    urls.split(',').map(hidden).collect::<Vec<_>>().join(",")
}

fn failed(url: String, source: async_nats::ConnectError) -> ConnectError {
    match source.kind() {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
            ConnectError::Refused { url, source }
        }
        _ => ConnectError::Unreachable { url, source },
    }
}

fn log(event: &Event) {
    match event {
        Event::ServerError(error) => tracing::error!(
            %error,
            "the broker refused something; are permissions missing? Those of an older release lack some: write them \
            again with `toolyard nats-config`"
        ),
        Event::SlowConsumer(subscription) => tracing::warn!(subscription, "messages of the broker were dropped"),
        Event::Disconnected => tracing::warn!("lost the broker, reconnecting"),
        Event::Connected | Event::LameDuckMode | Event::Draining | Event::Closed | Event::ClientError(_) => {
            tracing::info!(%event, "broker");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_without_their_passwords() {
        assert_eq!(all_hidden("nats://me:secret@one:4222,tls://two,three:1"), "nats://***@one:4222,tls://two,three:1");
        assert_eq!(hidden("me:se@cret@one:4222"), "***@one:4222");
        assert_eq!(hidden("redis://:se,cret@one:6379"), "redis://***@one:6379");
    }
}
