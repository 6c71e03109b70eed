//! A web service that is asked: the question is posted to it, the answer is what it responds with.

use ::http::{Method, Request, StatusCode, Uri, header};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

use crate::ANSWER_BYTES_MAX;
use crate::contract::Unanswered;

pub(crate) struct Service {
    address: Uri,
    client: Caller,
}

enum Caller {
    Plain(Client<HttpConnector, Full<Bytes>>),
    Secure(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
}

impl Caller {
    fn secure() -> Result<Self, String> {
        let ring = rustls::crypto::ring::default_provider();
        let connector = HttpsConnectorBuilder::new().with_provider_and_native_roots(ring);
        let connector = connector.map_err(|error| format!("cannot read the certificates of this machine: {error}"))?;
        let connector = connector.https_only().enable_http1().build();
        Ok(Self::Secure(Client::builder(TokioExecutor::new()).build(connector)))
    }
}

impl Service {
    /// # Errors
    /// When the address is none, or the machine has no certificates to trust.
    pub(crate) fn new(address: &str) -> Result<Self, String> {
        let address: Uri = address.parse().map_err(|error| format!("{address:?} is no address: {error}"))?;
        let client = match (address.scheme_str(), address.host()) {
            (Some("https"), Some(_)) => Caller::secure()?,
            (Some("http"), Some(_)) => Caller::Plain(Client::builder(TokioExecutor::new()).build_http()),
            _ => return Err(format!("{address} is no address: write http://… or https://…")),
        };
        Ok(Self { address, client })
    }

    /// What it answers to a question.
    pub(crate) async fn post(&self, question: Bytes) -> Result<Bytes, Unanswered> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.address.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(question))
            .map_err(|error| Unanswered::new(error.to_string()))?;
        // Its address may hold a secret, which is for nobody else.
        let response = match &self.client {
            Caller::Plain(client) => client.request(request).await,
            Caller::Secure(client) => client.request(request).await,
        };
        let response = response.map_err(|error| {
            tracing::warn!(address = %self.address, error = %cause(&error), "a hook's service cannot be reached");
            Unanswered::new("its service cannot be reached")
        })?;
        if response.status() != StatusCode::OK {
            return Err(Unanswered::new(format!("its service answered {}", response.status())));
        }
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        Ok(body.map_err(|error| Unanswered::new(format!("its answer broke off: {error}")))?.to_bytes())
    }
}

fn cause(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
