//! The library's HTTP client: the same client, TLS and certificates as everywhere else here.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt as _;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::client::{
    HttpClient, HttpConnector as Connect, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions, Error, Result};

/// Connect timeout for each of a host's addresses.
const CONNECT_PATIENCE: Duration = Duration::from_secs(2);
/// How long a store may take to begin its answer. Callers of this crate give up earlier; the history has no timeout of
/// its own for writes.
const ANSWER_PATIENCE: Duration = Duration::from_secs(30);
/// How long an idle connection is kept: shorter than stores keep them.
const IDLE: Duration = Duration::from_secs(15);

#[derive(Debug)]
pub(super) struct Connector;

#[derive(Debug)]
struct Link(Client<HttpsConnector<HttpConnector>, HttpRequestBody>);

impl Connect for Connector {
    fn connect(&self, options: &ClientOptions) -> Result<HttpClient> {
        let ring = rustls::crypto::ring::default_provider();
        let connector = HttpsConnectorBuilder::new().with_provider_and_native_roots(ring);
        let connector = connector.map_err(|error| Error::Generic {
            store: "S3",
            source: format!("cannot read the certificates of this machine: {error}").into(),
        })?;
        let is_plain_allowed = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        let connector = if is_plain_allowed { connector.https_or_http() } else { connector.https_only() };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_PATIENCE));
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
        Ok(HttpClient::new(Link(client.build(connector.enable_http1().wrap_connector(tcp)))))
    }
}

#[async_trait]
impl HttpService for Link {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // The kind only matters for the library's retries, which are off.
        let response = tokio::time::timeout(ANSWER_PATIENCE, self.0.request(request)).await;
        let response = response.map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))?;
        let response = response.map_err(|error| HttpError::new(HttpErrorKind::Request, error))?;
        let broken = |error| HttpError::new(HttpErrorKind::Interrupted, error);
        Ok(response.map(|body| HttpResponseBody::new(body.map_err(broken))))
    }
}
