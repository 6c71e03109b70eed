//! How every process of ours connects to the broker.

pub mod clock;
pub mod unstored;

use std::time::Duration;

use async_nats::{Client, ConnectOptions, Event};

/// A half-open link is noticed after two missed pings; the library's default of a minute would hide it for three.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// Oldest broker that has what the log needs.
const VERSION_MIN: (u32, u32) = (2, 14);

#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("cannot reach the broker at {url}: {source}. Is nats-server running there, with JetStream (-js)?")]
    Unreachable { url: String, source: async_nats::ConnectError },
    #[error("the broker at {url} is nats-server {version}, at least {}.{} is needed: upgrade it", VERSION_MIN.0, VERSION_MIN.1)]
    TooOld { url: String, version: String },
}

/// Connects to one of the brokers that `url` names, separated by commas, under a name that the broker's monitoring shows, with an inbox of its own so that permissions can tell
/// clients apart.
///
/// # Errors
/// When no broker is there or it is too old.
pub async fn connect(url: &str, name: &str) -> Result<Client, ConnectError> {
    let options = ConnectOptions::new()
        .name(name)
        .custom_inbox_prefix(format!("_INBOX_{name}"))
        .ping_interval(PING_INTERVAL)
        .event_callback(|event| async move { log(&event) });
    let servers: Vec<&str> = url.split(',').map(str::trim).collect();
    let client =
        options.connect(servers).await.map_err(|source| ConnectError::Unreachable { url: url.to_owned(), source })?;
    let version = client.server_info().version;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if found < VERSION_MIN {
        return Err(ConnectError::TooOld { url: url.to_owned(), version });
    }
    Ok(client)
}

fn log(event: &Event) {
    match event {
        Event::ServerError(error) => tracing::error!(%error, "the broker refused something; are permissions missing?"),
        Event::SlowConsumer(subscription) => tracing::warn!(subscription, "messages of the broker were dropped"),
        Event::Disconnected => tracing::warn!("lost the broker, reconnecting"),
        Event::Connected | Event::LameDuckMode | Event::Draining | Event::Closed | Event::ClientError(_) => {
            tracing::info!(%event, "broker");
        }
    }
}
