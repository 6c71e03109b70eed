//! The bodies of requests as they arrive. A request is kept in memory until it is complete. So incomplete requests have
//! a limit in bytes, for all together, and a limit in time. For gRPC the limit in time applies to each message.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method};
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use proto::Reason;
use tokio::time::{Instant, Sleep};
use tonic::Status;

use super::gate::{HEALTH, REFLECTION};
use super::is_grpc;
use super::places::Room;
use crate::api::{ApiError, REQUEST_BYTES_MAX};

/// How long a message may take to arrive from its first byte on; the same as for a body over HTTP.
const MESSAGE_WITHIN: Duration = Duration::from_secs(60);
/// A request for health or reflection: the name of a service.
const NAME_BYTES_MAX: usize = 4 * 1024;
/// The flag and the length before each message of gRPC.
const PREFIX_BYTES: usize = 5;

/// A request's body.
pub(in crate::api) struct Received {
    body: Incoming,
    room: Room,
    kind: Kind,
    late: Option<Pin<Box<Sleep>>>,
}

enum Kind {
    /// The reader buffers the whole body and enforces the time limit.
    Whole,
    /// The body is passed on as it arrives.
    Passing,
    /// Messages of at most `max` bytes.
    Messages { max: usize, state: Message },
}

/// The parsing state of a body of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Message {
    Prefix { bytes: [u8; PREFIX_BYTES], length: usize },
    Rest(usize),
}

const BETWEEN: Message = Message::Prefix { bytes: [0; PREFIX_BYTES], length: 0 };

impl Received {
    pub(in crate::api) fn new(parts: &Parts, body: Incoming, room: Room) -> Self {
        Self { body, room, kind: kind(&parts.method, parts.uri.path(), &parts.headers), late: None }
    }

    /// Counts received bytes. An error ends the request.
    fn take(&mut self, data: &Bytes) -> Result<(), Status> {
        let is_between = match &mut self.kind {
            Kind::Passing => return Ok(()),
            Kind::Whole => false,
            Kind::Messages { max, state } => {
                *state = follow(*state, data, *max)?;
                *state == BETWEEN
            }
        };
        if is_between {
            self.room.free();
            self.late = None;
            return Ok(());
        }
        if !self.room.grow(data.len()) {
            return Err(no_room().into());
        }
        Ok(())
    }
}

fn kind(method: &Method, path: &str, headers: &HeaderMap) -> Kind {
    // The rest of the API reads a whole body, whatever its content type says.
    let is_service = ["/toolyard.", "/grpc."].iter().any(|package| path.starts_with(package));
    if !(is_service && is_grpc(headers)) {
        let is_upload = *method == Method::POST && path == "/v1/objects";
        return if is_upload { Kind::Passing } else { Kind::Whole };
    }
    let is_name = path.starts_with(HEALTH) || path.starts_with(REFLECTION);
    let max = if is_name { NAME_BYTES_MAX } else { REQUEST_BYTES_MAX };
    Kind::Messages { max, state: BETWEEN }
}

/// The parsing state after `data`.
fn follow(mut state: Message, mut data: &[u8], max: usize) -> Result<Message, ApiError> {
    while !data.is_empty() {
        state = match state {
            Message::Prefix { mut bytes, mut length } => {
                let taken = data.len().min(PREFIX_BYTES - length);
                bytes[length..length + taken].copy_from_slice(&data[..taken]);
                (length, data) = (length + taken, &data[taken..]);
                let [_, size @ ..] = bytes;
                let size = usize::try_from(u32::from_be_bytes(size)).unwrap_or(usize::MAX);
                match length {
                    PREFIX_BYTES if size > max => return Err(too_large(size, max)),
                    PREFIX_BYTES if size > 0 => Message::Rest(size),
                    PREFIX_BYTES => BETWEEN,
                    _ => Message::Prefix { bytes, length },
                }
            }
            Message::Rest(left) => {
                let taken = data.len().min(left);
                data = &data[taken..];
                if left == taken { BETWEEN } else { Message::Rest(left - taken) }
            }
        };
    }
    Ok(state)
}

fn too_large(size: usize, max: usize) -> ApiError {
    let message = format!("the message has {size} bytes; the limit is {max} bytes: put large input in files");
    ApiError::new(Reason::PayloadTooLarge, message).with("limit", max)
}

fn no_room() -> ApiError {
    let message = "this coordinator has no room for more unfinished requests: retry in a moment";
    ApiError::new(Reason::RequestsFull, message)
}

/// The error of a body that was rejected here; `None` if the body failed for another reason.
pub(crate) fn refusal(error: &(dyn std::error::Error + 'static)) -> Option<ApiError> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    let status = causes.find_map(|error| error.downcast_ref::<Status>())?;
    (status.code() == tonic::Code::ResourceExhausted).then(no_room)
}

fn too_slow() -> ApiError {
    let message = format!("the message did not arrive within {} s", MESSAGE_WITHIN.as_secs());
    ApiError::new(Reason::RequestTimeout, message)
}

impl HttpBody for Received {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(Some(Ok(frame))) => {
                let taken = frame.data_ref().map_or(Ok(()), |data| this.take(data));
                Poll::Ready(Some(taken.map(|()| frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(Status::from_error(Box::new(error))))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                match &this.kind {
                    Kind::Messages { state, .. } if *state != BETWEEN => {}
                    Kind::Messages { .. } | Kind::Whole | Kind::Passing => return Poll::Pending,
                }
                let late = this
                    .late
                    .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + MESSAGE_WITHIN)));
                late.as_mut().poll(cx).map(|()| Some(Err(too_slow().into())))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_followed_however_they_are_cut() {
        let bytes = [&[0, 0, 0, 0, 3][..], b"abc", &[0, 0, 0, 0, 0], &[0, 0, 0, 1, 0], &[7; 256]].concat();
        for size in 1..=bytes.len() {
            let mut state = BETWEEN;
            for piece in bytes.chunks(size) {
                state = follow(state, piece, 256).expect("none is too large");
            }
            assert_eq!(state, BETWEEN, "cut into {size}");
            assert!(bytes.chunks(size).try_fold(BETWEEN, |state, piece| follow(state, piece, 255)).is_err());
        }
        assert_eq!(follow(BETWEEN, &bytes[..7], 256).expect("it is taken"), Message::Rest(1));
    }
}
