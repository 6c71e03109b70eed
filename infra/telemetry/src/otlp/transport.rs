//! The transport of exports: gRPC or HTTP, with TLS if the endpoint is `https`. Headers, timeouts, compression and
//! retries are those of the OTLP crate, from its own variables.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::connect::HttpConnector;
use opentelemetry_http::hyper::HyperClient;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{LogExporter, MetricExporter, Protocol, SpanExporter};
use opentelemetry_otlp::{WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::runtime::Handle;
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::StartError;
use super::settings::{Settings, Signal};

/// A file for TLS that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot be used for TLS to the telemetry collector: {cause}")]
pub struct TlsError {
    what: String,
    cause: String,
}

fn unusable(file: &Path) -> impl Fn(&dyn std::fmt::Display) -> TlsError {
    move |cause| TlsError { what: file.display().to_string(), cause: cause.to_string() }
}

/// Files in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TlsFiles {
    /// The trusted authorities; `None`: the machine's.
    pub(super) ca: Option<PathBuf>,
    /// A certificate of our own, and its key.
    pub(super) own: Option<(PathBuf, PathBuf)>,
}

pub(super) fn spans(settings: &Settings, runtime: &Handle) -> Result<SpanExporter, StartError> {
    let endpoint = settings.endpoint(Signal::Traces).unwrap_or_default();
    let builder = SpanExporter::builder();
    Ok(match settings.protocol(Signal::Traces) {
        Protocol::Grpc => match tonic_tls(settings, Signal::Traces)? {
            Some(tls) => builder.with_tonic().with_endpoint(endpoint).with_tls_config(tls).build()?,
            None => builder.with_tonic().with_endpoint(endpoint).build()?,
        },
        http => {
            let client = OnRuntime::new(settings, Signal::Traces, runtime)?;
            builder.with_http().with_protocol(http).with_endpoint(endpoint).with_http_client(client).build()?
        }
    })
}

pub(super) fn metrics(settings: &Settings, runtime: &Handle) -> Result<MetricExporter, StartError> {
    let endpoint = settings.endpoint(Signal::Metrics).unwrap_or_default();
    let builder = MetricExporter::builder();
    Ok(match settings.protocol(Signal::Metrics) {
        Protocol::Grpc => match tonic_tls(settings, Signal::Metrics)? {
            Some(tls) => builder.with_tonic().with_endpoint(endpoint).with_tls_config(tls).build()?,
            None => builder.with_tonic().with_endpoint(endpoint).build()?,
        },
        http => {
            let client = OnRuntime::new(settings, Signal::Metrics, runtime)?;
            builder.with_http().with_protocol(http).with_endpoint(endpoint).with_http_client(client).build()?
        }
    })
}

pub(super) fn logs(settings: &Settings, runtime: &Handle) -> Result<LogExporter, StartError> {
    let endpoint = settings.endpoint(Signal::Logs).unwrap_or_default();
    let builder = LogExporter::builder();
    Ok(match settings.protocol(Signal::Logs) {
        Protocol::Grpc => match tonic_tls(settings, Signal::Logs)? {
            Some(tls) => builder.with_tonic().with_endpoint(endpoint).with_tls_config(tls).build()?,
            None => builder.with_tonic().with_endpoint(endpoint).build()?,
        },
        http => {
            let client = OnRuntime::new(settings, Signal::Logs, runtime)?;
            builder.with_http().with_protocol(http).with_endpoint(endpoint).with_http_client(client).build()?
        }
    })
}

fn is_secret(settings: &Settings, signal: Signal) -> bool {
    settings.endpoint(signal).is_some_and(|endpoint| endpoint.starts_with("https://"))
}

fn tonic_tls(settings: &Settings, signal: Signal) -> Result<Option<ClientTlsConfig>, TlsError> {
    if !is_secret(settings, signal) {
        return Ok(None);
    }
    let files = settings.tls(signal);
    let read = |file: &Path| std::fs::read(file).map_err(|error| unusable(file)(&error));
    let mut tls = match &files.ca {
        Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?)),
        None => ClientTlsConfig::new().with_native_roots(),
    };
    if let Some((certificate, key)) = &files.own {
        tls = tls.identity(Identity::from_pem(read(certificate)?, read(key)?));
    }
    Ok(Some(tls))
}

fn rustls_config(files: &TlsFiles) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    match &files.ca {
        Some(ca) => roots.add_parsable_certificates(certificates(ca)?),
        None => roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    };
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let general = |cause: rustls::Error| TlsError { what: "rustls".to_owned(), cause: cause.to_string() };
    let config = ClientConfig::builder_with_provider(ring).with_safe_default_protocol_versions().map_err(general)?;
    let config = config.with_root_certificates(roots);
    let Some((certificate, key)) = &files.own else { return Ok(config.with_no_client_auth()) };
    let own = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key)(&error))?;
    config.with_client_auth_cert(certificates(certificate)?, own).map_err(|error| unusable(certificate)(&error))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let parsed = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    parsed.map_err(|error| unusable(file)(&error))
}

/// The OTLP crate's HTTP client, on our runtime: the SDK exports from threads of its own, which have none.
#[derive(Debug)]
struct OnRuntime {
    client: Arc<dyn HttpClient>,
    runtime: Handle,
}

impl OnRuntime {
    fn new(settings: &Settings, signal: Signal, runtime: &Handle) -> Result<Self, TlsError> {
        let timeout = settings.timeout(signal);
        let client: Arc<dyn HttpClient> = if is_secret(settings, signal) {
            let connector = HttpsConnectorBuilder::new().with_tls_config(rustls_config(settings.tls(signal))?);
            Arc::new(HyperClient::new(connector.https_only().enable_http1().build(), timeout, None))
        } else {
            Arc::new(HyperClient::new(HttpConnector::new(), timeout, None))
        };
        Ok(Self { client, runtime: runtime.clone() })
    }
}

#[async_trait]
impl HttpClient for OnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = Arc::clone(&self.client);
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}
