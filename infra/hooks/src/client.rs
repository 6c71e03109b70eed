//! Posts JSON to an address that the deployment configures: over TLS if it begins with https. Redirects are not
//! followed.

use ::http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

pub use crate::reach::Reach;
use crate::reach::Resolver;

/// The endpoint of a hook. Cheap to clone.
#[derive(Clone)]
pub struct Address {
    uri: Uri,
    link: Link,
}

#[derive(Clone)]
enum Link {
    Plain(Client<HttpConnector<Resolver>, Full<Bytes>>),
    Secure(Client<HttpsConnector<HttpConnector<Resolver>>, Full<Bytes>>),
}

/// A response.
#[derive(Debug)]
pub struct Posted {
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// Its body, or why it could not be read completely.
    pub body: Result<Bytes, String>,
}

/// There is no response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NoResponseError {
    pub reason: String,
    /// There was no connection, so the request was not received.
    pub is_unsent: bool,
}

impl std::fmt::Debug for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Path and query may hold a secret.
        f.debug_struct("Address").field("host", &self.uri.host()).finish_non_exhaustive()
    }
}

impl Address {
    /// # Errors
    /// If the address is invalid, or the machine has no trusted certificates.
    pub fn parse(text: &str) -> Result<Self, String> {
        Self::within(text, Reach::Everything)
    }

    /// As [`Self::parse`], for an address that must be within reach. The addresses of a name are checked whenever it is
    /// connected to.
    ///
    /// # Errors
    /// As [`Self::parse`], and if the host is an address out of reach.
    pub fn within(text: &str, reach: Reach) -> Result<Self, String> {
        let uri: Uri = text.parse().map_err(|error| format!("{text:?} is no address: {error}"))?;
        if let Some(host) = uri.host() {
            reach.check_host(host)?;
        }
        let mut connector = HttpConnector::new_with_resolver(Resolver::new(reach));
        let link = match (uri.scheme_str(), uri.host()) {
            (Some("https"), Some(_)) => {
                connector.enforce_http(false);
                Link::secure(connector)?
            }
            (Some("http"), Some(_)) => Link::Plain(Client::builder(TokioExecutor::new()).build(connector)),
            _ => return Err(format!("{uri} is no address: write http://… or https://…")),
        };
        Ok(Self { uri, link })
    }

    /// Posts JSON, and reads at most that many bytes of the response.
    ///
    /// # Errors
    /// If there is no response, with the cause.
    pub async fn post(&self, headers: HeaderMap, json: Bytes, answer_bytes_max: usize) -> Result<Posted, String> {
        self.try_post(headers, json, answer_bytes_max).await.map_err(|error| error.reason)
    }

    /// As [`Self::post`], with an error that tells whether the request may have been received.
    ///
    /// # Errors
    /// As [`Self::post`].
    pub async fn try_post(
        &self,
        headers: HeaderMap,
        json: Bytes,
        answer_bytes_max: usize,
    ) -> Result<Posted, NoResponseError> {
        let mut request = Request::builder().method(Method::POST).uri(self.uri.clone());
        if let Some(all) = request.headers_mut() {
            all.extend(headers);
            all.insert(header::CONTENT_TYPE, ::http::HeaderValue::from_static("application/json"));
        }
        let unsent = |reason: String| NoResponseError { reason, is_unsent: true };
        let request = request.body(Full::new(json)).map_err(|error| unsent(error.to_string()))?;
        let response = match &self.link {
            Link::Plain(client) => client.request(request).await,
            Link::Secure(client) => client.request(request).await,
        };
        let no_response = |error: hyper_util::client::legacy::Error| NoResponseError {
            is_unsent: error.is_connect(),
            reason: cause(&error),
        };
        let (parts, body) = response.map_err(no_response)?.into_parts();
        let body = Limited::new(body, answer_bytes_max).collect().await;
        let body = body.map(|body| body.to_bytes()).map_err(|error| error.to_string());
        Ok(Posted { status: parts.status, headers: parts.headers, body })
    }
}

impl Link {
    fn secure(http: HttpConnector<Resolver>) -> Result<Self, String> {
        let ring = rustls::crypto::ring::default_provider();
        let connector = HttpsConnectorBuilder::new().with_provider_and_native_roots(ring);
        let connector = connector.map_err(|error| format!("cannot read the certificates of this machine: {error}"))?;
        let connector = connector.https_only().enable_http1().wrap_connector(http);
        Ok(Self::Secure(Client::builder(TokioExecutor::new()).build(connector)))
    }
}

fn cause(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
