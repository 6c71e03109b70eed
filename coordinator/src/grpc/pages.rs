//! Keeps out the pages that somebody's browser has open. A browser that runs beside a coordinator reaches it, and would send it
//! what any page on the net wants, as long as nobody asks who comes.
//!
//! Who comes from a page says so in `Origin`, and must come from a page of this very host. A page that had its name
//! pointed at this machine meanwhile comes from such a one; but where only this machine is listened to, it is known by no
//! name but `localhost`.

use std::future::{Ready, ready};
use std::net::IpAddr;
use std::task::{Context, Poll};

use axum::response::IntoResponse as _;
use futures::future::Either;
use http::header::{HOST, ORIGIN};
use http::{Request, Response, StatusCode};
use tonic::body::Body;
use tower::Service;

use crate::http::problem::Problem;

#[derive(Debug, Clone)]
pub(super) struct Pages<S> {
    inner: S,
    /// Only this machine is listened to.
    is_local: bool,
}

impl<S> Pages<S> {
    pub(super) fn new(inner: S, is_local: bool) -> Self {
        Self { inner, is_local }
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
        match objection(&request, self.is_local) {
            None => Either::Left(self.inner.call(request)),
            Some(objection) => {
                let problem = Problem::new(StatusCode::FORBIDDEN, "PAGE_REFUSED", objection);
                Either::Right(ready(Ok(problem.into_response().map(Body::new))))
            }
        }
    }
}

/// Why the request is not served, unless it is.
fn objection<B>(request: &Request<B>, is_local: bool) -> Option<String> {
    let header = |name| request.headers().get(name).map(|value| String::from_utf8_lossy(value.as_bytes()));
    let host = request.uri().authority().map(|host| host.as_str().into()).or_else(|| header(HOST)).unwrap_or_default();
    let origin = header(ORIGIN);
    if let Some(origin) = &origin
        && origin.split_once("://").is_none_or(|(_, authority)| authority != host)
    {
        return Some(format!("the request comes from a page of {origin:?}, and this is {host:?}"));
    }
    // A browser cannot speak HTTP/2 without being asked, and gRPC clients may call us what they like.
    let could_be_a_page = origin.is_some() || request.version() < http::Version::HTTP_2;
    let is_unknown = is_local && could_be_a_page && !is_this_machine(&host);
    is_unknown.then(|| format!("the request is for {host:?}, and only `localhost` and addresses are served here"))
}

/// No page's name stands for it.
fn is_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_served(host: &str, origin: Option<&str>, is_local: bool) -> bool {
        let request = Request::builder().uri("/v1/runs").header(HOST, host);
        let request = origin.into_iter().fold(request, |request, origin| request.header(ORIGIN, origin));
        objection(&request.body(()).expect("a request"), is_local).is_none()
    }

    #[test]
    fn programs_are_served_and_pages_of_others_are_not() {
        for is_local in [true, false] {
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
        assert!(!is_served("evil.example:7420", Some("http://evil.example:7420"), true));
        assert!(!is_served("evil.example:7420", None, true));
        assert!(is_served("toolyard.internal", None, false), "on a network it has a name");
        assert!(is_served("toolyard.internal", Some("https://toolyard.internal"), false));
    }
}
