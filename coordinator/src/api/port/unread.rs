//! The unread rest of a request's body over HTTP/1, for example of an upload that is too large: it is read and
//! discarded before the response is sent. Otherwise the connection would be closed after the response and then reset,
//! and a client that is still sending would see the reset instead of the error. HTTP/2 ends such a stream by itself.

use std::future::ready;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, Either};
use futures::{FutureExt as _, StreamExt as _};
use http::{Request, Response, Version, header};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tonic::Status;
use tonic::body::Body;
use tower::Service;

/// How much of the rest is read, and for how long. Beyond that the connection is reset.
const REST_BYTES_MAX: u64 = 64 << 20;
const REST_TIME_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, Clone)]
pub(in crate::api) struct Unread<S> {
    inner: S,
}

impl<S> Unread<S> {
    pub(in crate::api) fn new(inner: S) -> Self {
        Self { inner }
    }
}

impl<S> Service<Request<Body>> for Unread<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, BoxFuture<'static, Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if request.version() > Version::HTTP_11 || request.body().is_end_stream() {
            return Either::Left(self.inner.call(request));
        }
        let (sender, mut unread) = oneshot::channel();
        // A client that expects `100-continue` sends no body if it is rejected before; reading would request the body.
        let is_sent = !request.headers().contains_key(header::EXPECT);
        let answer = self.inner.call(request.map(|body| Body::new(Read { body, is_sent, rest: Some(sender) })));
        Either::Right(
            async move {
                let answer = answer.await;
                if let Ok(rest) = unread.try_recv() {
                    // After the time limit, the connection is reset.
                    drop(tokio::time::timeout(REST_TIME_MAX, throw_away(rest)).await);
                }
                answer
            }
            .boxed(),
        )
    }
}

async fn throw_away(rest: Body) {
    if rest.size_hint().lower() > REST_BYTES_MAX {
        return;
    }
    let mut left = REST_BYTES_MAX;
    let frames = rest.into_data_stream().take_while(|frame| {
        let length = frame.as_ref().map_or(u64::MAX, |data| data.len() as u64);
        let fits = left.checked_sub(length);
        left = fits.unwrap_or_default();
        ready(fits.is_some())
    });
    pin!(frames).for_each(|_| ready(())).await;
}

/// A body that passes on its unread rest when it is dropped.
struct Read {
    body: Body,
    /// Whether the client sends the rest without `100-continue`.
    is_sent: bool,
    rest: Option<oneshot::Sender<Body>>,
}

impl HttpBody for Read {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.is_sent = true;
        let frame = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(None | Some(Err(_))) = &frame {
            self.rest = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Read {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take()
            && self.is_sent
            && !self.body.is_end_stream()
        {
            // The receiver is gone if the request is gone too.
            drop(rest.send(std::mem::take(&mut self.body)));
        }
    }
}
