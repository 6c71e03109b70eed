//! Logs, metrics, traces and the admin port of a serving process.

use std::net::SocketAddr;

use telemetry::otlp::{Exporter, Settings};

use crate::exit::Failure;

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "To be observed")]
pub(crate) struct ObserveArgs {
    /// The address of the admin port (HTTP): /livez, /readyz, /metrics, /stats, and PUT /log-level. It has no
    /// authentication. Port 0 takes a free port and logs it [default: no admin port]
    #[arg(long, env = "TOOLYARD_ADMIN_LISTEN", value_name = "ADDR")]
    pub(crate) admin_listen: Option<SocketAddr>,
    /// The host names under which requests over HTTP are served, with commas between them, beside addresses and
    /// localhost. A web page can point a name of its own at any address; a name that is not listed is refused. `*` is
    /// every name [default: none]. A coordinator with --auth or TLS serves every name, but at its admin port
    #[arg(long, env = "TOOLYARD_HOST_NAMES", value_name = "NAMES", value_delimiter = ',')]
    pub(crate) host_names: Vec<String>,
    /// The OpenTelemetry collector for traces and metrics, as http://127.0.0.1:4317, or https:// for TLS.
    /// OTEL_EXPORTER_OTLP_PROTOCOL selects grpc (the default) or http/protobuf. OpenTelemetry's other variables for
    /// headers, TLS, timeouts, batches, sampling and the resource are supported; docs/howto/observe.md lists them
    /// [default: no export]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
}

impl ObserveArgs {
    /// Begins to export telemetry, if a collector is configured.
    pub(crate) fn exporter(&self, service: &str) -> Result<Option<Exporter>, Failure> {
        let settings = Settings::read(self.otlp_endpoint.as_deref(), service, |name| std::env::var(name).ok())?;
        Ok(settings.map(|settings| Exporter::start(&settings)).transpose()?)
    }
}

/// Exports pending telemetry.
pub(crate) async fn finish(exporter: Option<Exporter>) {
    if let Some(exporter) = exporter {
        exporter.finish().await;
    }
}
