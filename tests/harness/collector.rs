//! An OpenTelemetry collector that keeps what it is given.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1 as metrics;
use opentelemetry_proto::tonic::collector::trace::v1 as traces;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
pub use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

use crate::{Fixture, PATIENCE};

/// Listens as long as it lives.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    taken: Taken,
    _server: JoinSet<()>,
}

#[derive(Debug, Clone, Default)]
struct Taken {
    spans: Arc<Mutex<Vec<Span>>>,
    metrics: Arc<Mutex<Vec<metrics::ExportMetricsServiceRequest>>>,
}

impl Collector {
    /// # Panics
    /// When no port is free.
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let taken = Taken::default();
        let server = Server::builder()
            .add_service(traces::trace_service_server::TraceServiceServer::new(taken.clone()))
            .add_service(metrics::metrics_service_server::MetricsServiceServer::new(taken.clone()));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            server.serve_with_incoming(TcpIncoming::from(listener)).await.expect("the collector serves");
        });
        Self { address, taken, _server: tasks }
    }

    /// Where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// How many spans came so far.
    ///
    /// # Panics
    /// When the collector did.
    #[must_use]
    pub fn spans_taken(&self) -> usize {
        self.taken.spans.lock().expect("nobody panicked").len()
    }

    /// The fixture with its telemetry sent here.
    #[must_use]
    pub fn of(&self, fixture: &Fixture) -> Fixture {
        fixture.with("OTEL_EXPORTER_OTLP_ENDPOINT", self.url()).with("OTEL_METRIC_EXPORT_INTERVAL", 200)
    }

    /// The spans of a trace that came so far.
    ///
    /// # Panics
    /// When the collector did.
    #[must_use]
    pub fn spans(&self, trace_id: &str) -> Vec<Span> {
        let spans = self.taken.spans.lock().expect("nobody panicked");
        spans.iter().filter(|span| hex(&span.trace_id) == trace_id).cloned().collect()
    }

    /// Waits until a trace has spans as wanted, and gives them.
    ///
    /// # Panics
    /// When it never has.
    pub async fn until(&self, trace_id: &str, wanted: impl Fn(&[Span]) -> bool) -> Vec<Span> {
        let come = async {
            while !wanted(&self.spans(trace_id)) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let come = tokio::time::timeout(PATIENCE, come).await;
        assert!(come.is_ok(), "of the trace came {:#?}", names(&self.spans(trace_id)));
        self.spans(trace_id)
    }

    /// Waits until a metric of this name has come.
    ///
    /// # Panics
    /// When it never does.
    pub async fn until_metric(&self, name: &str) {
        let come = async {
            while !self.everything().contains(name) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, come).await.expect("the metric comes in time");
    }

    /// All that came, as text: to look for what must not be there.
    ///
    /// # Panics
    /// When the collector did.
    #[must_use]
    pub fn everything(&self) -> String {
        let spans = self.taken.spans.lock().expect("nobody panicked");
        let metrics = self.taken.metrics.lock().expect("nobody panicked");
        format!("{spans:?}{metrics:?}")
    }
}

/// Names of spans, for a test that fails.
fn names(spans: &[Span]) -> Vec<&str> {
    spans.iter().map(|span| span.name.as_str()).collect()
}

#[must_use]
pub fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a span says of itself under this key, as text.
#[must_use]
pub fn said(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

#[tonic::async_trait]
impl traces::trace_service_server::TraceService for Taken {
    async fn export(
        &self,
        request: Request<traces::ExportTraceServiceRequest>,
    ) -> Result<Response<traces::ExportTraceServiceResponse>, Status> {
        let of_resources = request.into_inner().resource_spans.into_iter();
        let spans = of_resources.flat_map(|of| of.scope_spans).flat_map(|of| of.spans);
        self.spans.lock().expect("nobody panicked").extend(spans);
        Ok(Response::new(traces::ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl metrics::metrics_service_server::MetricsService for Taken {
    async fn export(
        &self,
        request: Request<metrics::ExportMetricsServiceRequest>,
    ) -> Result<Response<metrics::ExportMetricsServiceResponse>, Status> {
        self.metrics.lock().expect("nobody panicked").push(request.into_inner());
        Ok(Response::new(metrics::ExportMetricsServiceResponse::default()))
    }
}
