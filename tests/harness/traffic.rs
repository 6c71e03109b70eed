//! Messages between each process and the broker, as the broker counts them.

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// Messages of connections, as one number each; what the broker's protocol itself needs (pings) is not among them.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Traffic {
    /// From the process to the broker: appends, acknowledgements, requests.
    pub to_broker: u64,
    /// From the broker to the process: jobs, entries, confirmations.
    pub from_broker: u64,
}

impl Traffic {
    /// The messages so far of all connections whose name begins like this, over a broker that is monitored.
    ///
    /// # Errors
    /// When the broker is not monitored or does not answer.
    pub async fn of(broker: &local::Broker, name: &str) -> anyhow::Result<Self> {
        let ours = connections(broker, name).await?;
        Ok(ours.iter().fold(Self::default(), |sum, one| Self {
            to_broker: sum.to_broker + one["in_msgs"].as_u64().unwrap_or_default(),
            from_broker: sum.from_broker + one["out_msgs"].as_u64().unwrap_or_default(),
        }))
    }

    /// How many open connections have a name that begins like this.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub async fn connections(broker: &local::Broker, name: &str) -> anyhow::Result<usize> {
        Ok(connections(broker, name).await?.len())
    }

    /// The messages since an earlier reading.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            to_broker: self.to_broker.saturating_sub(earlier.to_broker),
            from_broker: self.from_broker.saturating_sub(earlier.from_broker),
        }
    }
}

/// What the broker tells of its connections whose name begins like this.
async fn connections(broker: &local::Broker, name: &str) -> anyhow::Result<Vec<serde_json::Value>> {
    let url = broker.monitoring_url().context("the broker is not monitored")?;
    let mut told = get(&url, "/connz").await?;
    let all = told["connections"].as_array_mut().context("the answer has no connections")?;
    Ok(all.extract_if(.., |one| one["name"].as_str().is_some_and(|is| is.starts_with(name))).collect())
}

/// Version 1.0, so that the answer comes in one piece and ends with the connection.
async fn get(url: &str, path: &str) -> anyhow::Result<serde_json::Value> {
    let address = url.trim_start_matches("http://");
    let mut socket = TcpStream::connect(address).await?;
    socket.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").context("the answer has no body")?;
    Ok(serde_json::from_str(body)?)
}
