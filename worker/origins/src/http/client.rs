//! Sends requests within the egress rules, over connections that are kept, and follows redirects.

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use ::http::header::{ACCEPT, CONTENT_TYPE, LOCATION, USER_AGENT};
use ::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::rt::TokioExecutor;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use url::Url;

use super::egress::{Connector, Egress, EgressError};

/// Redirects of one request.
const REDIRECTS_MAX: usize = 5;
/// How we introduce ourselves.
const AGENT: &str = concat!("toolyard/", env!("CARGO_PKG_VERSION"));

type Link = Pool<HttpsConnector<Connector>, Full<Bytes>>;

/// Sends requests for all tools of a file.
#[derive(Debug)]
pub(crate) struct Client {
    egress: Arc<Egress>,
    tls: rustls::ClientConfig,
    /// By the time that a connection may take.
    links: HashMap<Duration, Link>,
}

/// A request that can be sent again, to another address.
#[derive(Debug, Clone)]
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// A request without a response. It was not sent, or refused, unless it is [`Self::Lost`].
#[derive(Debug, thiserror::Error)]
pub(crate) enum SendError {
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error("it redirects to {to:?}, which is no address")]
    Redirect { to: String },
    #[error("it redirects to {host} without encryption")]
    Downgrade { host: String },
    #[error("it redirects more than {REDIRECTS_MAX} times")]
    Redirects,
    #[error("the request is malformed: {0}")]
    Request(#[from] ::http::Error),
    #[error("the connection failed: {0}")]
    Connection(String),
    #[error("the connection broke off: {0}")]
    Lost(String),
}

impl SendError {
    /// Another attempt may succeed.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Connection(_) | Self::Lost(_) => true,
            Self::Egress(error) => match error {
                EgressError::Unknown { .. } | EgressError::Unreachable { .. } | EgressError::Slow { .. } => true,
                EgressError::Scheme(_)
                | EgressError::Credentials
                | EgressError::Host { .. }
                | EgressError::Address { .. } => false,
            },
            Self::Redirect { .. } | Self::Downgrade { .. } | Self::Redirects | Self::Request(_) => false,
        }
    }
}

impl Client {
    /// A client that trusts the machine's authorities, and those of `authorities` (PEM).
    pub(crate) fn new(egress: Egress, authorities: Option<&[u8]>) -> Result<Self, String> {
        let mut roots = rustls::RootCertStore::empty();
        // A machine without certificates can still use plain HTTP.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        for certificate in authorities.into_iter().flat_map(CertificateDer::pem_slice_iter) {
            let certificate = certificate.map_err(|error| format!("the certificates are no PEM: {error}"))?;
            roots.add(certificate).map_err(|error| format!("a certificate is of no use: {error}"))?;
        }
        let ring = Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ClientConfig::builder_with_provider(ring).with_safe_default_protocol_versions();
        let tls = tls.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth();
        Ok(Self { egress: Arc::new(egress), tls, links: HashMap::new() })
    }

    /// Prepares connections that may take this long to be made.
    pub(crate) fn prepare(&mut self, timeout: Duration) {
        let connector = Connector { egress: Arc::clone(&self.egress), timeout };
        let tls = &self.tls;
        self.links.entry(timeout).or_insert_with(|| {
            let https = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http().enable_http1();
            Pool::builder(TokioExecutor::new()).build(https.wrap_connector(connector))
        });
    }

    /// Whether the rules allow this address.
    pub(crate) fn check(&self, url: &Url) -> Result<(), EgressError> {
        self.egress.check(url)
    }

    /// The response to a request, after redirects. A connection may take as long as was prepared.
    pub(crate) async fn send(
        &self,
        mut outgoing: Outgoing,
        connect: Duration,
    ) -> Result<Response<Incoming>, SendError> {
        outgoing.headers.entry(USER_AGENT).or_insert(HeaderValue::from_static(AGENT));
        for hop in 0..=REDIRECTS_MAX {
            self.egress.check(&outgoing.url)?;
            let response = self.once(&outgoing, connect).await.map_err(|error| match hop {
                // The service that redirects may have done what it was called for.
                1.. if error.is_transient() => SendError::Lost(error.to_string()),
                _ => error,
            })?;
            match redirect(&outgoing, &response)? {
                Some(next) => outgoing = next,
                None => return Ok(response),
            }
        }
        Err(SendError::Redirects)
    }

    async fn once(&self, outgoing: &Outgoing, connect: Duration) -> Result<Response<Incoming>, SendError> {
        let request = Request::builder().method(outgoing.method.clone()).uri(outgoing.url.as_str());
        let mut request = request.body(Full::new(outgoing.body.clone()))?;
        *request.headers_mut() = outgoing.headers.clone();
        let link = self.links.get(&connect).ok_or_else(|| SendError::Connection("it was not prepared".to_owned()))?;
        link.request(request).await.map_err(|error| {
            let causes = || {
                std::iter::successors(error.source(), |cause: &&(dyn std::error::Error + 'static)| (*cause).source())
            };
            match causes().find_map(|cause| cause.downcast_ref::<EgressError>()) {
                Some(error) => SendError::Egress(error.clone()),
                None => {
                    let cause = causes().last().map_or_else(|| error.to_string(), ToString::to_string);
                    if error.is_connect() { SendError::Connection(cause) } else { SendError::Lost(cause) }
                }
            }
        })
    }
}

/// The next request if a response redirects. Another host gets nothing that the operator configured for this one.
fn redirect(sent: &Outgoing, response: &Response<Incoming>) -> Result<Option<Outgoing>, SendError> {
    let status = response.status();
    let is_redirect = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(to) = response.headers().get(LOCATION).filter(|_| is_redirect) else { return Ok(None) };
    let to = String::from_utf8_lossy(to.as_bytes()).into_owned();
    let url = sent.url.join(&to).map_err(|_| SendError::Redirect { to })?;
    if sent.url.scheme() == "https" && url.scheme() != "https" {
        return Err(SendError::Downgrade { host: url.host_str().unwrap_or_default().to_owned() });
    }
    let mut next = Outgoing { url, ..sent.clone() };
    let becomes_get = status == StatusCode::SEE_OTHER && next.method != Method::HEAD
        || matches!(status.as_u16(), 301 | 302) && next.method == Method::POST;
    if becomes_get {
        next.method = Method::GET;
        next.body = Bytes::new();
        next.headers.remove(CONTENT_TYPE);
    }
    if next.url.origin() != sent.url.origin() {
        let kept = [ACCEPT, CONTENT_TYPE, USER_AGENT].into_iter();
        next.headers = kept.filter_map(|name| Some((name.clone(), sent.headers.get(&name)?.clone()))).collect();
    }
    Ok(Some(next))
}
