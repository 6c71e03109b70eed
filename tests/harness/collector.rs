//! An OpenTelemetry collector that stores all received data, over gRPC or HTTP, with TLS or without.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use opentelemetry_proto::tonic::collector::logs::v1 as logs;
use opentelemetry_proto::tonic::collector::metrics::v1 as metrics;
use opentelemetry_proto::tonic::collector::trace::v1 as traces;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
pub use opentelemetry_proto::tonic::logs::v1::LogRecord;
pub use opentelemetry_proto::tonic::metrics::v1::{Metric, metric::Data};
pub use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use prost::Message as _;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status};

use crate::certificates::Authority;
use crate::{Fixture, PATIENCE};

/// Listens as long as it lives.
#[derive(Debug)]
pub struct Collector {
    address: SocketAddr,
    scheme: &'static str,
    protocol: &'static str,
    taken: Taken,
    _server: JoinSet<()>,
}

#[derive(Debug, Clone, Default)]
struct Taken {
    spans: Arc<Mutex<Vec<Span>>>,
    metrics: Arc<Mutex<Vec<metrics::ExportMetricsServiceRequest>>>,
    records: Arc<Mutex<Vec<LogRecord>>>,
    /// The header `x-team` of each request.
    teams: Arc<Mutex<Vec<String>>>,
}

impl Collector {
    /// Over gRPC, without TLS.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn start() -> Self {
        Self::start_grpc(None).await
    }

    /// Over gRPC, with a certificate of this authority.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn start_tls(authority: &Authority) -> Self {
        let certified = authority.server("collector");
        let read = |file: &std::path::Path| std::fs::read(file).expect("it is there");
        let identity = Identity::from_pem(read(&certified.certificate), read(&certified.key));
        Self::start_grpc(Some(ServerTlsConfig::new().identity(identity))).await
    }

    async fn start_grpc(tls: Option<ServerTlsConfig>) -> Self {
        let (listener, address) = listen().await;
        let taken = Taken::default();
        let (mut server, scheme) = match tls {
            Some(tls) => (Server::builder().tls_config(tls).expect("the certificate is used"), "https"),
            None => (Server::builder(), "http"),
        };
        let server = server
            .add_service(traces::trace_service_server::TraceServiceServer::new(taken.clone()))
            .add_service(logs::logs_service_server::LogsServiceServer::new(taken.clone()))
            .add_service(metrics::metrics_service_server::MetricsServiceServer::new(taken.clone()));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            server.serve_with_incoming(TcpIncoming::from(listener)).await.expect("the collector serves");
        });
        Self { address, scheme, protocol: "grpc", taken, _server: tasks }
    }

    /// Over HTTP, with a certificate of this authority or without TLS.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn start_http(authority: Option<&Authority>) -> Self {
        let (listener, address) = listen().await;
        let taken = Taken::default();
        let routes = Router::new()
            .route("/v1/traces", post(take_traces))
            .route("/v1/metrics", post(take_metrics))
            .route("/v1/logs", post(take_logs))
            .with_state(taken.clone());
        let mut tasks = JoinSet::new();
        let scheme = match authority.map(acceptor) {
            Some(acceptor) => {
                tasks.spawn(serve_tls(listener, acceptor, routes));
                "https"
            }
            None => {
                tasks.spawn(async move { axum::serve(listener, routes).await.expect("the collector serves") });
                "http"
            }
        };
        Self { address, scheme, protocol: "http/protobuf", taken, _server: tasks }
    }

    /// Its address.
    #[must_use]
    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    /// How many spans came so far.
    ///
    /// # Panics
    /// When the collector did.
    #[must_use]
    pub fn spans_taken(&self) -> usize {
        self.taken.spans.lock().expect("nobody panicked").len()
    }

    /// The fixture with its telemetry sent here, soon.
    #[must_use]
    pub fn of(&self, fixture: &Fixture) -> Fixture {
        fixture
            .with("OTEL_EXPORTER_OTLP_ENDPOINT", self.url())
            .with("OTEL_EXPORTER_OTLP_PROTOCOL", self.protocol)
            .with("OTEL_METRIC_EXPORT_INTERVAL", 200)
            .with("OTEL_BSP_SCHEDULE_DELAY", 200)
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

    /// Waits until a metric of this name has come as wanted, and gives it.
    ///
    /// # Panics
    /// When it never does.
    pub async fn until_metric(&self, name: &str, wanted: impl Fn(&Metric) -> bool) -> Metric {
        let come = async {
            loop {
                if let Some(metric) = self.metric(name).filter(&wanted) {
                    return metric;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let come = tokio::time::timeout(PATIENCE, come).await;
        come.unwrap_or_else(|_| panic!("{name} came as {:#?}", self.metric(name)))
    }

    /// A metric as it came last.
    fn metric(&self, name: &str) -> Option<Metric> {
        let taken = self.taken.metrics.lock().expect("nobody panicked");
        let of_scopes =
            taken.iter().rev().flat_map(|request| &request.resource_metrics).flat_map(|of| &of.scope_metrics);
        of_scopes.flat_map(|of| &of.metrics).find(|metric| metric.name == name).cloned()
    }

    /// Waits until a log record has come as wanted.
    ///
    /// # Panics
    /// When none ever does.
    pub async fn until_logged(&self, wanted: impl Fn(&LogRecord) -> bool) {
        let come = async {
            while !self.taken.records.lock().expect("nobody panicked").iter().any(&wanted) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let come = tokio::time::timeout(PATIENCE, come).await;
        assert!(come.is_ok(), "there came {:#?}", self.taken.records);
    }

    /// Which requests came with a header `x-team`, by its value.
    ///
    /// # Panics
    /// When the collector did.
    #[must_use]
    pub fn teams(&self) -> Vec<String> {
        self.taken.teams.lock().expect("nobody panicked").clone()
    }

    /// All received data as text, for checks that secrets are not in it.
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

async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
    let address = listener.local_addr().expect("it has an address");
    (listener, address)
}

fn acceptor(authority: &Authority) -> TlsAcceptor {
    let certified = authority.server("collector");
    let chain = CertificateDer::pem_file_iter(&certified.certificate).and_then(Iterator::collect);
    let key = PrivateKeyDer::from_pem_file(&certified.key).expect("a key");
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(ring).with_safe_default_protocol_versions().expect("known");
    let config = config.with_no_client_auth().with_single_cert(chain.expect("certificates"), key);
    TlsAcceptor::from(Arc::new(config.expect("the certificate is used")))
}

async fn serve_tls(listener: TcpListener, acceptor: TlsAcceptor, routes: Router) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let (acceptor, service) = (acceptor.clone(), TowerToHyperService::new(routes.clone()));
        connections.spawn(async move {
            // Clients that do not trust the certificate disconnect.
            let Ok(stream) = acceptor.accept(stream).await else { return };
            http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
        });
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

/// The attribute of a span with this key, as text.
#[must_use]
pub fn said(span: &Span, key: &str) -> Option<String> {
    let found = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match found.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        Value::IntValue(number) => Some(number.to_string()),
        other => Some(format!("{other:?}")),
    }
}

impl Taken {
    fn spans(&self, team: Option<String>, request: traces::ExportTraceServiceRequest) {
        self.teams.lock().expect("nobody panicked").extend(team);
        let of_resources = request.resource_spans.into_iter();
        let spans = of_resources.flat_map(|of| of.scope_spans).flat_map(|of| of.spans);
        self.spans.lock().expect("nobody panicked").extend(spans);
    }

    fn logs(&self, team: Option<String>, request: logs::ExportLogsServiceRequest) {
        self.teams.lock().expect("nobody panicked").extend(team);
        let of_resources = request.resource_logs.into_iter();
        let records = of_resources.flat_map(|of| of.scope_logs).flat_map(|of| of.log_records);
        self.records.lock().expect("nobody panicked").extend(records);
    }

    fn metrics(&self, team: Option<String>, request: metrics::ExportMetricsServiceRequest) {
        self.teams.lock().expect("nobody panicked").extend(team);
        self.metrics.lock().expect("nobody panicked").push(request);
    }
}

fn team(headers: &HeaderMap) -> Option<String> {
    headers.get("x-team").map(|team| String::from_utf8_lossy(team.as_bytes()).into_owned())
}

async fn take_traces(State(taken): State<Taken>, headers: HeaderMap, body: Bytes) {
    taken.spans(team(&headers), traces::ExportTraceServiceRequest::decode(body).expect("it is protobuf"));
}

async fn take_metrics(State(taken): State<Taken>, headers: HeaderMap, body: Bytes) {
    taken.metrics(team(&headers), metrics::ExportMetricsServiceRequest::decode(body).expect("it is protobuf"));
}

async fn take_logs(State(taken): State<Taken>, headers: HeaderMap, body: Bytes) {
    taken.logs(team(&headers), logs::ExportLogsServiceRequest::decode(body).expect("it is protobuf"));
}

#[tonic::async_trait]
impl logs::logs_service_server::LogsService for Taken {
    async fn export(
        &self,
        request: Request<logs::ExportLogsServiceRequest>,
    ) -> Result<Response<logs::ExportLogsServiceResponse>, Status> {
        let team = team(request.metadata().as_ref());
        self.logs(team, request.into_inner());
        Ok(Response::new(logs::ExportLogsServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl traces::trace_service_server::TraceService for Taken {
    async fn export(
        &self,
        request: Request<traces::ExportTraceServiceRequest>,
    ) -> Result<Response<traces::ExportTraceServiceResponse>, Status> {
        let team = team(request.metadata().as_ref());
        self.spans(team, request.into_inner());
        Ok(Response::new(traces::ExportTraceServiceResponse::default()))
    }
}

#[tonic::async_trait]
impl metrics::metrics_service_server::MetricsService for Taken {
    async fn export(
        &self,
        request: Request<metrics::ExportMetricsServiceRequest>,
    ) -> Result<Response<metrics::ExportMetricsServiceResponse>, Status> {
        let team = team(request.metadata().as_ref());
        self.metrics(team, request.into_inner());
        Ok(Response::new(metrics::ExportMetricsServiceResponse::default()))
    }
}
