//! A client's `grpc-timeout`, turned into an absolute deadline when the request arrives.
//!
//! An overdue request is answered DEADLINE_EXCEEDED; streams read the [`Deadline`] from the request's extensions.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

use crate::api::ApiError;
use crate::runs::AboutToOpen;

/// When the client stops waiting.
#[derive(Debug, Clone, Copy)]
pub(in crate::api) struct Deadline(Instant);

impl Deadline {
    pub(in crate::api) fn of<T>(request: &tonic::Request<T>) -> Option<Instant> {
        request.extensions().get::<Self>().map(|deadline| deadline.0)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Deadlines<S> {
    inner: S,
}

impl<S> Deadlines<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S, B> Service<Request<B>> for Deadlines<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Some(deadline) = timeout(request.headers()).map(|timeout| Instant::now() + timeout) else {
            return Box::pin(self.inner.call(request));
        };
        request.extensions_mut().insert(Deadline(deadline));
        let about_to_open = AboutToOpen::default();
        request.extensions_mut().insert(about_to_open.clone());
        let overdue = tokio::time::sleep_until(deadline);
        let response = self.inner.call(request);
        Box::pin(async move {
            tokio::select! {
                biased;
                response = response => response,
                () = overdue => Ok(Status::from(ApiError::exceeded(about_to_open.get())).into_http()),
            }
        })
    }
}

/// Parses the header: at most eight digits and a unit. A malformed header is ignored, as gRPC demands.
fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number * 3600)),
        "M" => Some(Duration::from_secs(number * 60)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", text.parse().expect("a header"));
        timeout(&headers)
    }

    #[test]
    fn each_unit_is_understood() {
        assert_eq!(parse("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(parse("3M"), Some(Duration::from_secs(180)));
        assert_eq!(parse("250m"), Some(Duration::from_millis(250)));
        assert_eq!(parse("7n"), Some(Duration::from_nanos(7)));
    }

    #[test]
    fn a_malformed_header_counts_as_absent() {
        for text in ["", "S", "12", "123456789S", "-1S", "1 S", "1ü"] {
            let header = http::HeaderValue::from_bytes(text.as_bytes()).expect("visible or obscure bytes");
            let mut headers = HeaderMap::new();
            headers.insert("grpc-timeout", header);
            assert_eq!(timeout(&headers), None, "{text:?}");
        }
    }
}
