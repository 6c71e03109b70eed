//! Authentication: a layer over all routes, gRPC and HTTP alike. It identifies the caller and puts the [`Caller`] into
//! the request's extensions. It rejects callers without the right to the method: for gRPC here, by the path; for HTTP
//! [at the route](crate::api::http::router), which names the same methods.

use std::task::{Context, Poll};

use axum::response::IntoResponse as _;
use futures::future::{Either, Ready, ready};
use http::{HeaderMap, Request, Response, StatusCode, header};
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use super::incoming::Peer;
use crate::admission::error::RequestError;
use crate::api::ApiError;
use crate::api::mcp::challenge;
use crate::api::needs::needs;
use crate::api::problem::Problem;
use crate::auth::audit;
use crate::auth::callers::{Caller, Callers, Denied, Role, Shown, Unknown};

/// Health checks need no authentication.
pub(in crate::api) const HEALTH: &str = "/grpc.health.v1.Health/";
pub(in crate::api) const REFLECTION: &str = "/grpc.reflection.";
const API: &str = "/toolyard.";
const PACKAGE: &str = "/toolyard.v1.";

#[derive(Debug, Clone)]
pub(in crate::api) struct Gate<S> {
    inner: S,
    callers: Callers,
    /// Whether the port has TLS.
    is_tls: bool,
}

impl<S> Gate<S> {
    pub(in crate::api) fn new(inner: S, callers: Callers, is_tls: bool) -> Self {
        Self { inner, callers, is_tls }
    }

    fn admit<B>(&self, request: &Request<B>) -> Result<Caller, ApiError> {
        let path = request.uri().path();
        if !path.starts_with(API) && (path.starts_with(HEALTH) || crate::api::http::is_open(path)) {
            return Ok(self.callers.unsaid());
        }
        let peer = request.extensions().get::<Peer>();
        let certificate = peer.and_then(|peer| peer.certificate.as_deref()).map(|certificate| certificate.as_ref());
        let identified = credential(request.headers())
            .and_then(|credential| self.callers.identify(Shown { credential, certificate }, ::nats::now()));
        let caller = identified.inspect_err(|unknown| {
            audit::turned_away(path, peer.and_then(|peer| peer.address), unknown.reason());
        })?;
        judge(&caller, path).map_err(|denied| {
            audit::refused(&caller, path, denied.reason);
            RequestError::from(denied)
        })?;
        Ok(caller)
    }
}

/// Whether the caller may call this method, if it is gRPC.
fn judge(caller: &Caller, path: &str) -> Result<(), Denied> {
    if let Some((service, method)) = path.strip_prefix(PACKAGE).and_then(|method| method.split_once('/')) {
        return caller.must(needs(service, method));
    }
    match caller {
        _ if path.starts_with(API) => caller.must(Role::Admin),
        Caller::Nobody | Caller::OneCall(_) if path.starts_with(REFLECTION) => caller.must(Role::Read),
        Caller::Anyone | Caller::Known(_) | Caller::Nobody | Caller::OneCall(_) => Ok(()),
    }
}

fn credential(headers: &HeaderMap) -> Result<Option<&str>, Unknown> {
    let unreadable = || Unknown::Token("it is not text".to_owned());
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        let text = value.to_str().map_err(|_| unreadable())?;
        return match text.split_once(' ') {
            Some((scheme, credential)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(credential.trim())),
            Some(_) | None => Err(Unknown::Token("`authorization` is not `Bearer KEY`".to_owned())),
        };
    }
    headers.get("x-api-key").map(|value| value.to_str().map_err(|_| unreadable())).transpose()
}

impl<S, B> Service<Request<B>> for Gate<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        match self.admit(&request) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
                Either::Left(self.inner.call(request))
            }
            Err(error) if super::is_grpc(request.headers()) => {
                Either::Right(ready(Ok(Status::from(error).into_http())))
            }
            Err(error) => {
                let mut response = Problem::from(error).into_response().map(Body::new);
                let challenge = challenge(request.uri(), request.headers(), self.is_tls);
                if let Some(challenge) = challenge.filter(|_| response.status() == StatusCode::UNAUTHORIZED) {
                    response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
                }
                Either::Right(ready(Ok(response)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_thought_of_is_for_admins() {
        assert!(judge(&Caller::Nobody, "/toolyard.v1.RunService/Unheard").is_err());
        assert!(judge(&Caller::Nobody, "/toolyard.v2.RunService/CreateRun").is_err());
        assert!(judge(&Caller::Nobody, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo").is_err());
        assert!(judge(&Caller::Anyone, "/toolyard.v1.RunService/Unheard").is_ok());
    }
}
