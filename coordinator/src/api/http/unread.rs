//! Bodies of answers that are large because of what they have inline: they hold their part of the memory for such
//! content until they are read, and not for longer than a while.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::response::Response;
use bytes::Bytes;
use futures::FutureExt as _;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

/// Bytes that are handed to the connection together. It asks for more only when the client has room for them.
const PIECE_BYTES: usize = 64 * 1024;
/// How long a client may take to read an answer.
const READ_WITHIN: Duration = Duration::from_secs(60);

/// What is still to be read; `None` if that took too long.
type Rest = Arc<Mutex<Option<(Bytes, OwnedSemaphorePermit)>>>;

struct Unread {
    rest: Rest,
    /// Ends with the body.
    _limit: JoinSet<()>,
}

/// The same answer, whose body holds `held` until it is read. The body must be whole.
pub(crate) fn holding(response: Response, held: OwnedSemaphorePermit) -> Response {
    response.map(|body| {
        let whole = to_bytes(body, usize::MAX).now_or_never().and_then(Result::ok);
        let rest: Rest = Arc::new(Mutex::new(Some((whole.expect("the body is whole"), held))));
        let late = Arc::downgrade(&rest);
        let mut limit = JoinSet::new();
        limit.spawn(async move {
            tokio::time::sleep(READ_WITHIN).await;
            if let Some(rest) = late.upgrade() {
                rest.lock().unwrap_or_else(PoisonError::into_inner).take();
            }
        });
        Body::new(Unread { rest, _limit: limit })
    })
}

impl Unread {
    /// The number of bytes that are left; `None` if reading took too long.
    fn left(&self) -> Option<usize> {
        let rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        rest.as_ref().map(|(bytes, _)| bytes.len())
    }
}

impl HttpBody for Unread {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((bytes, _)) = &mut *rest else {
            let message = format!("the answer was not read within {} s", READ_WITHIN.as_secs());
            return Poll::Ready(Some(Err(io::Error::new(io::ErrorKind::TimedOut, message))));
        };
        if bytes.is_empty() {
            return Poll::Ready(None);
        }
        let piece = bytes.split_to(PIECE_BYTES.min(bytes.len()));
        // A copy: a part of the whole would keep all of its memory.
        Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(&piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left() == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left().unwrap_or(0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use tokio::sync::Semaphore;

    use super::*;

    async fn of_bytes(bytes: usize) -> (Arc<Semaphore>, Body) {
        let all = Arc::new(Semaphore::new(10));
        let held = Arc::clone(&all).acquire_many_owned(10).await.expect("it is open");
        (all, holding(Response::new(Body::from("x".repeat(bytes))), held).into_body())
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_holds_its_memory_until_its_last_byte_is_read() {
        let (all, mut body) = of_bytes(3 * PIECE_BYTES + 1).await;
        assert_eq!(body.size_hint().exact(), Some(3 * PIECE_BYTES as u64 + 1));
        for piece in [PIECE_BYTES, PIECE_BYTES, PIECE_BYTES, 1] {
            assert!(!body.is_end_stream() && all.available_permits() == 0);
            let frame = body.frame().await.expect("there is more").expect("it is read in time");
            assert_eq!(frame.data_ref().map(Bytes::len), Some(piece));
        }
        assert!(body.is_end_stream());
        drop(body);
        assert_eq!(all.available_permits(), 10);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_not_read_gives_its_memory_back() {
        let (all, mut body) = of_bytes(2 * PIECE_BYTES).await;
        body.frame().await.expect("there is more").expect("it is read in time");
        tokio::time::sleep(READ_WITHIN + Duration::from_millis(1)).await;
        assert_eq!(all.available_permits(), 10);
        let error = body.frame().await.expect("it is not complete").expect_err("it took too long");
        assert!(error.to_string().contains("not read"), "{error}");
    }
}
