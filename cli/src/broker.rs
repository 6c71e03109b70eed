//! The address of the broker, and the credentials for it.

use std::path::PathBuf;

use nats::Credentials;

/// The default address of the broker.
pub(crate) const DEFAULT_URL: &str = "nats://127.0.0.1:4222";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct BrokerArgs {
    /// The broker: nats-server 2.14 or newer, with JetStream. Several addresses are separated by commas
    #[arg(long, env = "TOOLYARD_NATS_URL", value_name = "URL", default_value = DEFAULT_URL)]
    nats_url: String,
    /// The file of this process's key for the broker, as `toolyard nats-config` creates it. Without it the process does
    /// not authenticate
    #[arg(long, env = "TOOLYARD_NATS_NKEY", value_name = "FILE")]
    nats_nkey: Option<PathBuf>,
    /// The file of the authorities (PEM) that sign the broker's certificate. With it TLS is required; without it the
    /// system's authorities are used if the broker requires TLS
    #[arg(long, env = "TOOLYARD_NATS_CA", value_name = "FILE")]
    nats_ca: Option<PathBuf>,
}

impl BrokerArgs {
    pub(crate) fn split(self) -> (String, Credentials) {
        (self.nats_url, Credentials { nkey: self.nats_nkey, ca: self.nats_ca })
    }
}
