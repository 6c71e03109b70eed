//! Metrics of the servers that a worker hosts. Only a server's first process counts, which also lists its tools.

use telemetry::metrics::{Counter, Family, Gauge, Metric, publish};

static UP: Family<Gauge> = Family::new(
    "toolyard_mcp_server_up",
    "Whether an MCP server is running and listed its tools: 1 or 0.",
    &["server"],
)
.exported_as("toolyard.mcp.server.up", "{server}");
static ENDS: Family<Counter> = Family::new(
    "toolyard_mcp_server_failures_total",
    "How often an MCP server ended, or could not be started.",
    &["server"],
)
.exported_as("toolyard.mcp.server.failures", "{failure}");

const METRICS: [Metric; 2] = [Metric::Gauge(&UP), Metric::Counter(&ENDS)];

/// Of one server.
#[derive(Debug)]
pub(super) struct OfServer {
    up: Gauge,
    failures: Counter,
}

impl OfServer {
    pub(super) fn new(server: &str) -> Self {
        publish(&METRICS);
        Self { up: UP.with(&[server]), failures: ENDS.with(&[server]) }
    }

    pub(super) fn runs(&self) {
        self.up.set(1.0);
    }

    pub(super) fn failed(&self) {
        self.up.set(0.0);
        self.failures.add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_of_metrics_is_current() {
        telemetry::metrics::check_reference("mcp", &METRICS);
    }
}
