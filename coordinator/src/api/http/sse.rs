//! Server-sent events: a run's output as `text/event-stream`, numbered so that a reader can resume.

use std::convert::Infallible;
use std::io::Write as _;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{Stream, StreamExt as _};
use http::{HeaderValue, header};
use proto::json;
use tokio_util::sync::CancellationToken;

use crate::api::ApiError;
use crate::api::abandoned::Abandoned;
use crate::api::output::{Piece, pieces};
use crate::api::problem::Problem;
use crate::readers::Reader;

/// The output of a run as events. Each has its number as its id, and no name, because the data has the type. The last
/// one is named `end`, or `problem` if the stream failed.
/// `abandoned` is dropped with a response that its client does not read to its end.
pub(crate) fn output(reader: Box<Reader>, stop: CancellationToken, mut abandoned: Option<Abandoned>) -> Response {
    let pieces = pieces(reader, stop, None).map(move |piece| {
        let is_last = piece.as_ref().map_or(true, |piece| piece.end.is_some());
        if let Some(abandoned) = abandoned.take_if(|_| is_last) {
            abandoned.keep();
        }
        text(piece)
    });
    response(pieces)
}

/// A response of events that are given as text.
pub(crate) fn response(events: impl Stream<Item = Bytes> + Send + 'static) -> Response {
    let mut response = Response::new(Body::from_stream(events.map(Ok::<_, Infallible>)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Without it some proxies would buffer events.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// A piece of a run's output.
pub(crate) fn text(piece: Result<Piece, ApiError>) -> Bytes {
    let mut text = Vec::new();
    match piece {
        Ok(Piece { events, heartbeat, end }) => {
            for said in &events {
                event(&mut text, Some(said.sequence), None, &json::write(said));
            }
            if heartbeat.is_some() {
                text.extend_from_slice(HEARTBEAT);
            }
            if let Some(end) = end {
                event(&mut text, None, Some("end"), &json::write(&end));
            }
        }
        Err(error) => event(&mut text, None, Some("problem"), &Problem::from(error).json().to_string()),
    }
    text.into()
}

/// A comment: clients ignore it, and proxies see traffic.
pub(crate) const HEARTBEAT: &[u8] = b": heartbeat\n\n";

/// Adds an event. Neither its name nor its data may have line breaks; JSON on one line has none.
pub(crate) fn event(text: &mut Vec<u8>, id: Option<u64>, name: Option<&'static str>, data: &str) {
    const MEMORY: &str = "memory does not fail";
    debug_assert!(!data.contains(['\n', '\r']), "it would end the event: {data}");
    if let Some(id) = id {
        writeln!(text, "id: {id}").expect(MEMORY);
    }
    if let Some(name) = name {
        writeln!(text, "event: {name}").expect(MEMORY);
    }
    write!(text, "data: {data}\n\n").expect(MEMORY);
}
