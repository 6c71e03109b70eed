//! How a process is told where its broker is, and as whom it goes there.

use std::path::PathBuf;

use nats::Credentials;

/// Where the broker is if nobody says.
pub(crate) const DEFAULT_URL: &str = "nats://127.0.0.1:4222";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BrokerArgs {
    /// The broker: nats-server 2.14 or newer, with JetStream. Several addresses are separated by commas
    #[arg(long, env = "TOOLYARD_NATS_URL", value_name = "URL", default_value = DEFAULT_URL)]
    nats_url: String,
    /// The file of our key at the broker, as `toolyard nats-config` makes it. Without it the broker is not told who we
    /// are
    #[arg(long, env = "TOOLYARD_NATS_NKEY", value_name = "FILE")]
    nats_nkey: Option<PathBuf>,
    /// The file of the certificates (PEM) that the broker's is signed by. With it nothing is said without TLS; without
    /// it the system's count, where the broker asks for TLS
    #[arg(long, env = "TOOLYARD_NATS_CA", value_name = "FILE")]
    nats_ca: Option<PathBuf>,
}

impl BrokerArgs {
    pub(crate) fn split(self) -> (String, Credentials) {
        (self.nats_url, Credentials { nkey: self.nats_nkey, ca: self.nats_ca })
    }
}
