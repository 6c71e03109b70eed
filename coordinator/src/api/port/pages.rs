//! Rejects requests that web pages send through a user's browser. A browser on the same machine can reach the
//! coordinator, and without authentication any page on the web could send any request.
//!
//! A request from a page has an `Origin` header, which must name this host. A page whose host name was pointed at this
//! machine (DNS rebinding) also passes that check, so only [known host names](Hosts) are served.

use std::future::{Ready, ready};
use std::task::{Context, Poll};

use axum::response::IntoResponse as _;
use futures::future::Either;
use http::header::{HOST, ORIGIN};
use http::{HeaderMap, Request, Response, Uri};
use proto::Reason;
use telemetry::hosts::Hosts;
use tonic::body::Body;
use tower::Service;

use crate::api::problem::Problem;

#[derive(Debug, Clone)]
pub(in crate::api) struct Pages<S> {
    inner: S,
    hosts: Hosts,
}

impl<S> Pages<S> {
    pub(in crate::api) fn new(inner: S, hosts: Hosts) -> Self {
        Self { inner, hosts }
    }
}

impl<S, B> Service<Request<B>> for Pages<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Self::Response, Self::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        if request.headers().get_all(HOST).iter().nth(1).is_some() {
            let problem = Problem::new(Reason::Malformed, "the request has several `Host` headers");
            return Either::Right(ready(Ok(problem.into_response().map(Body::new))));
        }
        match objection(&request, &self.hosts) {
            None => Either::Left(self.inner.call(request)),
            Some(objection) => {
                let problem = Problem::new(Reason::PageRefused, objection);
                Either::Right(ready(Ok(problem.into_response().map(Body::new))))
            }
        }
    }
}

/// The host that a client names: in the address over HTTP/2, and otherwise in a header.
pub(in crate::api) fn host(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let header = || Some(String::from_utf8_lossy(headers.get(HOST)?.as_bytes()).into_owned());
    uri.authority().map(|host| host.as_str().to_owned()).or_else(header)
}

/// Why the request is rejected; `None` if it is served.
fn objection<B>(request: &Request<B>, hosts: &Hosts) -> Option<String> {
    let header = |name| request.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let host = host(request.uri(), request.headers()).unwrap_or_default();
    let origin = header(ORIGIN);
    if let Some(origin) = &origin
        && origin.split_once("://").is_none_or(|(_, authority)| authority != host)
    {
        return Some(format!("the request comes from a page of {origin:?}, and this server is {host:?}"));
    }
    // A browser uses HTTP/2 only after negotiation, and gRPC clients may use any host name.
    let could_be_a_page = origin.is_some() || request.version() < http::Version::HTTP_2;
    let is_unknown = could_be_a_page && !hosts.serve(&host);
    is_unknown.then(|| {
        format!(
            "the request is for the host {host:?}, which is not served: use an address or `localhost`, or start the \
                 coordinator with --host-names {host}"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_served(host: &str, origin: Option<&str>, hosts: &Hosts) -> bool {
        let request = Request::builder().uri("/v1/runs").header(HOST, host);
        let request = origin.into_iter().fold(request, |request, origin| request.header(ORIGIN, origin));
        objection(&request.body(()).expect("a request"), hosts).is_none()
    }

    #[test]
    fn programs_are_served_and_pages_of_others_are_not() {
        for is_local in [&Hosts::new([]), &Hosts::any()] {
            assert!(is_served("127.0.0.1:7420", None, is_local));
            assert!(is_served("localhost:7420", None, is_local));
            assert!(is_served("[::1]:7420", None, is_local));
            assert!(is_served("localhost:7420", Some("http://localhost:7420"), is_local));
            for origin in ["https://evil.example", "null", "http://localhost:3000"] {
                assert!(!is_served("localhost:7420", Some(origin), is_local), "{origin}");
            }
        }
    }

    #[test]
    fn a_page_whose_name_was_pointed_at_this_machine_is_not_served() {
        assert!(!is_served("evil.example:7420", Some("http://evil.example:7420"), &Hosts::new([])));
        assert!(!is_served("evil.example:7420", None, &Hosts::new([])));
        let named = Hosts::new(["toolyard.internal"]);
        assert!(is_served("toolyard.internal", None, &named), "on a network it has a name");
        assert!(is_served("toolyard.internal", Some("https://toolyard.internal"), &named));
    }
}
