//! Counts requests of each method: their number, their results, and the time until the response began.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll};
use std::time::Instant;

use http::{Request, Response, header};
use telemetry::metrics::{Counter, Histogram, OTHER};
use telemetry::trace::SpanContext;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::Service;

use crate::api::needs::methods;
use crate::metrics::{REQUEST_SECONDS, REQUESTS};

/// An extension of HTTP responses: the name of the method that the route belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Answers(pub(crate) &'static str);

/// Health and reflection, which are not counted.
const UNCOUNTED: &str = "/grpc.";

#[derive(Debug)]
struct Counts {
    method: &'static str,
    ok: Counter,
    took: Histogram,
}

impl Counts {
    fn new(method: &'static str) -> Self {
        Self { method, ok: REQUESTS.with(&["grpc", method, "OK"]), took: REQUEST_SECONDS.with(&["grpc", method]) }
    }
}

/// By path.
static METHODS: LazyLock<HashMap<String, Counts>> = LazyLock::new(|| {
    let path = |(service, method)| format!("/toolyard.v1.{service}/{method}");
    methods().map(|(service, method)| (path((service, method)), Counts::new(method))).collect()
});
static UNKNOWN: LazyLock<Counts> = LazyLock::new(|| Counts::new(OTHER));

#[derive(Debug, Clone)]
pub(crate) struct Counted<S> {
    inner: S,
}

impl<S> Counted<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S, B> Service<Request<B>> for Counted<S>
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

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (began, path) = (Instant::now(), request.uri().path());
        let kind = request.headers().get(header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
        let is_grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
        if path.starts_with(UNCOUNTED) {
            return Box::pin(self.inner.call(request));
        }
        let grpc = is_grpc.then(|| METHODS.get(path).unwrap_or(&UNKNOWN));
        let response = self.inner.call(request);
        Box::pin(async move {
            let response = response.await?;
            match grpc {
                Some(counts) => grpc_answered(counts, &response, began),
                None => http_answered(&response, began),
            }
            Ok(response)
        })
    }
}

/// A failure after the response began is not visible here: it is counted as an error, by its reason.
fn grpc_answered(counts: &Counts, response: &Response<Body>, began: Instant) {
    counts.took.record_of(began.elapsed(), response.extensions().get::<SpanContext>().copied());
    match Status::from_header_map(response.headers()).map(|status| status.code()) {
        None | Some(Code::Ok) => counts.ok.add(1),
        Some(code) => REQUESTS.with(&["grpc", counts.method, name(code)]).add(1),
    }
}

fn http_answered(response: &Response<Body>, began: Instant) {
    let method = response.extensions().get().map_or(OTHER, |Answers(method)| method);
    let trace = response.extensions().get::<SpanContext>().copied();
    REQUEST_SECONDS.with(&["http", method]).record_of(began.elapsed(), trace);
    REQUESTS.with(&["http", method, response.status().as_str()]).add(1);
}

/// The name of the code in gRPC's notation.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}
