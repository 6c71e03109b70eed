//! A span for each traced request. Its context is active while the response is made, and while its body is streamed. A
//! request that is not traced passes unchanged.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::FutureExt as _;
use futures::future::Either;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use telemetry::trace::{self, Kind, Moment, Span, SpanContext, TRACEPARENT};
use tonic::body::Body;
use tower::Service;

/// Health and reflection, which are no client's requests.
const UNTRACED: &str = "/grpc.";

#[derive(Debug, Clone)]
pub(crate) struct Traces<S> {
    inner: S,
}

impl<S> Traces<S> {
    pub(crate) fn new(inner: S) -> Self {
        Self { inner }
    }
}

type Traced<R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send>>;

impl<S, B> Service<Request<B>> for Traces<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Traced<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Some(serving) = Serving::begin(&request) else { return self.inner.call(request).left_future() };
        let response = self.inner.call(request);
        let traced: Traced<Self::Response, Self::Error> = Box::pin(async move {
            let mut serving = serving;
            let response = trace::scope(serving.context, response).await?;
            serving.note(response.headers());
            let context = serving.context;
            let mut response = response.map(|body| Body::new(Streamed { body, serving }));
            // Adds the trace to the request's duration as an exemplar.
            response.extensions_mut().insert(context);
            Ok(response)
        });
        traced.right_future()
    }
}

/// A traced request, until its response has ended or is dropped: then its span is exported.
struct Serving {
    context: SpanContext,
    began: Moment,
    /// `None` once it was exported.
    span: Option<Span>,
    status: Option<String>,
}

impl Serving {
    fn begin<B>(request: &Request<B>) -> Option<Self> {
        let path = request.uri().path();
        if !trace::is_on() || path.starts_with(UNTRACED) {
            return None;
        }
        let kind = request.headers().get(http::header::CONTENT_TYPE).map(http::HeaderValue::as_bytes);
        let is_grpc = kind.is_some_and(|kind| kind.starts_with(b"application/grpc"));
        // HTTP paths have ids in them, so they are not used as names.
        let name = || if is_grpc { path.trim_start_matches('/').to_owned() } else { request.method().to_string() };
        let began = Moment::now(::nats::now().0);
        let traceparent = request.headers().get(TRACEPARENT).and_then(|value| value.to_str().ok());
        let span = trace::begin(traceparent, Kind::Server, began.since_epoch(), || name().into())?;
        let span = match is_grpc {
            true => span.text("rpc.system.name", "grpc").text("rpc.method", name()),
            false => span.text("http.request.method", name()),
        };
        Some(Self { context: span.context(), began, span: Some(span), status: None })
    }

    /// Reads the gRPC status from headers or trailers.
    fn note(&mut self, sent_headers: &HeaderMap) {
        let status = sent_headers.get("grpc-status").and_then(|status| status.to_str().ok());
        self.status = status.map(str::to_owned).or(self.status.take());
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let Some(span) = self.span.take() else { return };
        let span = match self.status.take() {
            Some(status) if status == "0" => span.text("rpc.response.status_code", status),
            Some(status) => span.text("rpc.response.status_code", &status).failed(status),
            None => span,
        };
        span.end(self.began.later());
    }
}

/// A response's body, streamed for the request that it answers.
struct Streamed {
    body: Body,
    serving: Serving,
}

impl http_body::Body for Streamed {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = &mut *self;
        let frame = ready!(trace::poll_within(this.serving.context, || Pin::new(&mut this.body).poll_frame(cx)));
        if let Some(trailers) = frame.as_ref().and_then(|frame| frame.as_ref().ok()).and_then(Frame::trailers_ref) {
            this.serving.note(trailers);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
