//! A run's output in pieces, for gRPC and HTTP alike: events as they become known, heartbeats in silence, and a final
//! piece.

use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt as _};
use prost::Message;
use proto::convert::api;
use proto::v1;
use run::Run;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::error::ApiError;
use crate::admission::error::RequestError;
use crate::readers::{Reader, WatchError};

/// The longest time without a message on a stream.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(15);
/// The longest time until a response begins. A client without a response gives up after some seconds, and loses its
/// turn to read the log.
const RESPONSE: Duration = Duration::from_secs(2);
/// If many messages in a row follow each other faster than this, they are sent together. It saves work on both sides,
/// and avoids many tiny frames, which some HTTP/2 client libraries treat as an attack.
const PACE: Duration = Duration::from_millis(5);
/// Only messages with fewer events and fewer bytes than these are delayed.
const SMALL_EVENTS: usize = 64;
const SMALL_BYTES: usize = 8 * 1024;
/// This many quick messages are sent undelayed: most streams are short, and their latency counts.
const QUICK_MAX: u32 = 16;

/// One message of an output stream.
#[derive(Debug, Default)]
pub(crate) struct Piece {
    pub(crate) events: Vec<v1::RunEvent>,
    pub(crate) heartbeat: Option<v1::Heartbeat>,
    pub(crate) end: Option<v1::StreamEnd>,
}

impl Piece {
    fn end(reason: v1::StreamEndReason) -> Self {
        Self { end: Some(v1::StreamEnd { reason: reason.into() }), ..Self::default() }
    }

    fn heartbeat() -> Self {
        Self { heartbeat: Some(v1::Heartbeat { time: Some(api::timestamp(::nats::now())) }), ..Self::default() }
    }

    fn is_small(&self) -> bool {
        self.events.len() < SMALL_EVENTS && self.events.iter().map(Message::encoded_len).sum::<usize>() < SMALL_BYTES
    }
}

/// A run's output while it is streamed.
pub(crate) struct Streaming {
    reader: Box<Reader>,
    stop: CancellationToken,
    /// When the client stops waiting.
    deadline: Option<Instant>,
    ended: bool,
    sent: Instant,
    /// How many messages in a row came quickly.
    quick: u32,
}

/// The pieces from the reader's position on, until the run ends, the coordinator stops or the client's deadline passes.
pub(crate) fn pieces(
    reader: Box<Reader>,
    stop: CancellationToken,
    deadline: Option<Instant>,
) -> impl Stream<Item = Result<Piece, ApiError>> + Send {
    let streaming = Streaming::new(reader, stop, deadline);
    futures::stream::unfold(streaming, async |mut streaming| {
        if streaming.ended {
            return None;
        }
        let piece = streaming.next().await;
        streaming.ended |= piece.is_err();
        Some((piece, streaming))
    })
}

/// The pieces of a run that is watched. An error is the answer if it is known soon, and otherwise the end of the
/// stream.
pub(crate) async fn watched(
    opening: impl Future<Output = Result<Box<Reader>, ApiError>> + Send + 'static,
    stop: CancellationToken,
    deadline: Option<Instant>,
) -> Result<BoxStream<'static, Result<Piece, ApiError>>, ApiError> {
    let mut opening = Box::pin(opening);
    if let Ok(reader) = tokio::time::timeout(RESPONSE, &mut opening).await {
        return Ok(pieces(reader?, stop, deadline).boxed());
    }
    let waiting = futures::stream::unfold(Some(opening), move |opening| {
        let stop = stop.clone();
        async move {
            let mut opening = opening?;
            let one = |piece| futures::stream::iter([piece]).boxed();
            Some(tokio::select! {
                biased;
                () = stop.cancelled() => (one(Ok(Piece::end(v1::StreamEndReason::Shutdown))), None),
                reader = &mut opening => match reader {
                    Ok(reader) => (pieces(reader, stop, deadline).boxed(), None),
                    Err(error) => (one(Err(error)), None),
                },
                () = tokio::time::sleep(HEARTBEAT) => (one(Ok(Piece::heartbeat())), Some(opening)),
            })
        }
    });
    Ok(futures::stream::iter([Ok(Piece::heartbeat())]).chain(waiting.flatten()).boxed())
}

impl Streaming {
    pub(crate) fn new(reader: Box<Reader>, stop: CancellationToken, deadline: Option<Instant>) -> Self {
        Self { reader, stop, deadline, ended: false, sent: Instant::now(), quick: 0 }
    }

    /// The run up to the streamed position, or further.
    pub(crate) fn run(&self) -> &Run {
        self.reader.run()
    }

    pub(crate) async fn next(&mut self) -> Result<Piece, ApiError> {
        if self.quick >= QUICK_MAX {
            tokio::time::sleep_until(self.sent + PACE).await;
        }
        let piece = self.next_piece().await;
        let now = Instant::now();
        let is_quick = now < self.sent + PACE * 2 && !self.ended && piece.as_ref().is_ok_and(Piece::is_small);
        self.quick = if is_quick { self.quick.saturating_add(1) } else { 0 };
        self.sent = now;
        piece
    }

    async fn next_piece(&mut self) -> Result<Piece, ApiError> {
        let silent_until = Instant::now() + HEARTBEAT;
        let until = self.deadline.map_or(silent_until, |deadline| deadline.min(silent_until));
        let is_opened = self.reader.run().opened_at().is_some();
        let events = tokio::select! {
            biased;
            // A client that opened the run learns the run's id from the first event, so it is sent before the stream is
            // stopped.
            () = self.stop.cancelled(),
                if !self.reader.answers_opening || is_opened => Err(WatchError::Stopped(crate::owner::Stopped)),
            () = tokio::time::sleep_until(until) => {
                if self.deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                    return Err(ApiError::exceeded(Some(self.reader.run().id())));
                }
                return Ok(Piece::heartbeat());
            }
            events = self.reader.next() => events,
        };
        match events {
            Ok(Some(events)) => {
                let is_last = |event: &v1::RunEvent| matches!(event.event, Some(v1::run_event::Event::RunEnded(_)));
                self.ended = events.last().is_some_and(is_last);
                let end = if self.ended { Piece::end(v1::StreamEndReason::RunEnded).end } else { None };
                Ok(Piece { events, end, ..Piece::default() })
            }
            Ok(None) => {
                self.ended = true;
                Ok(Piece::end(v1::StreamEndReason::RunEnded))
            }
            // A client that has not received its run's id yet could not resume.
            Err(WatchError::Stopped(_)) if !self.reader.answers_opening || is_opened => {
                self.ended = true;
                Ok(Piece::end(v1::StreamEndReason::Shutdown))
            }
            Err(error) => Err(broken(&self.reader, error)),
        }
    }
}

/// The error for the client whose request opened the run, or found it open, if its output cannot be read. If the client
/// repeated it as a new request, the calls would be executed twice.
pub(crate) fn broken(reader: &Reader, error: WatchError) -> ApiError {
    match error {
        WatchError::Stopped(_) | WatchError::Read(_) if reader.answers_opening() => {
            RequestError::Unconfirmed { run: reader.run().id(), reason: error.to_string() }.into()
        }
        WatchError::Unknown => RequestError::RunNotFound(reader.run().id()).into(),
        WatchError::Gone(_) => RequestError::EventsExpired(reader.run().id()).into(),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_many_events_or_bytes_is_not_held_back_for_others() {
        let said = |text: usize| v1::RunEvent {
            event: Some(v1::run_event::Event::CallOutput(v1::CallOutput {
                channel: "x".repeat(text),
                ..v1::CallOutput::default()
            })),
            ..v1::RunEvent::default()
        };
        let of = |events: Vec<v1::RunEvent>| Piece { events, ..Piece::default() };
        assert!(of(vec![said(10)]).is_small());
        assert!(!of(vec![said(SMALL_BYTES)]).is_small());
        assert!(!of(vec![said(10); SMALL_EVENTS]).is_small());
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_a_run_hears_heartbeats_and_then_that_the_coordinator_stops() {
        let (stop, began) = (CancellationToken::new(), Instant::now());
        let opening = std::future::pending::<Result<Box<Reader>, ApiError>>();
        let mut pieces = watched(opening, stop.clone(), None).await.expect("a response begins");
        assert_eq!(began.elapsed(), RESPONSE);
        for _ in 0..2 {
            let heard = pieces.next().await.expect("it goes on").expect("nothing is wrong");
            assert!(heard.heartbeat.is_some() && heard.end.is_none());
        }
        assert_eq!(began.elapsed(), RESPONSE + HEARTBEAT);
        stop.cancel();
        let last = pieces.next().await.expect("it goes on").expect("nothing is wrong");
        let reason = last.end.map(|end| end.reason());
        assert_eq!(reason, Some(v1::StreamEndReason::Shutdown));
        assert!(pieces.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_wrong_with_a_run_is_the_answer_if_it_is_known_soon_and_else_the_end_of_the_stream() {
        let run = run::RunId::new(run::Shard(0), uuid::Uuid::now_v7());
        let unknown = move || ApiError::from(crate::admission::error::RequestError::RunNotFound(run));
        let soon = watched(async move { Err(unknown()) }, CancellationToken::new(), None).await;
        assert!(soon.is_err());
        let late = async move {
            tokio::time::sleep(RESPONSE * 2).await;
            Err(unknown())
        };
        let mut pieces = watched(late, CancellationToken::new(), None).await.expect("a response begins");
        assert!(pieces.next().await.expect("it goes on").is_ok_and(|piece| piece.heartbeat.is_some()));
        assert!(pieces.next().await.expect("it goes on").is_err());
        assert!(pieces.next().await.is_none());
    }
}
