//! How a process that serves lets be seen what it does.

use std::net::SocketAddr;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "To be observed")]
pub(crate) struct ObserveArgs {
    /// Where to serve the admin port over HTTP: /livez, /readyz, /metrics, /stats, and PUT /log-level. It asks nobody who
    /// they are. Port 0 takes a free one and logs it [default: nowhere]
    #[arg(long, env = "TOOLYARD_ADMIN_LISTEN", value_name = "ADDR")]
    pub(crate) admin_listen: Option<SocketAddr>,
}
