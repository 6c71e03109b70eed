//! Why the broker did not store an entry, and whether it makes sense to send it again.

use std::error::Error as _;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, ErrorCode};
use bytes::Bytes;

/// The server's answers if a stream's limit of bytes or of messages is reached and it may not discard. The same
/// code stands for other failures of the store, which pass.
const STREAM_IS_FULL: [&str; 2] = ["maximum bytes exceeded", "maximum messages exceeded"];

/// The pause after the first copy, and the longest.
pub const PAUSE: Duration = Duration::from_millis(200);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AppendFailure {
    /// Something else is last on the subject.
    Conflict,
    /// The entry does not fit one message, and never will.
    TooLarge,
    /// The log or the server's disk has no room, until something has aged out.
    Full,
    /// Not confirmed, perhaps stored all the same: worth another try.
    Unconfirmed,
}

impl AppendFailure {
    #[must_use]
    pub fn of(error: &PublishError) -> Self {
        match error.kind() {
            PublishErrorKind::WrongLastSequence => Self::Conflict,
            PublishErrorKind::MaxPayloadExceeded => Self::TooLarge,
            PublishErrorKind::Other => {
                let answer = error.source().and_then(|source| source.downcast_ref());
                answer.map_or(Self::Unconfirmed, Self::of_answer)
            }
            PublishErrorKind::StreamNotFound
            | PublishErrorKind::WrongLastMessageId
            | PublishErrorKind::TimedOut
            | PublishErrorKind::BrokenPipe
            | PublishErrorKind::MaxAckPending => Self::Unconfirmed,
        }
    }

    fn of_answer(answer: &jetstream::Error) -> Self {
        match answer.error_code() {
            ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM => Self::TooLarge,
            ErrorCode::INSUFFICIENT_RESOURCES | ErrorCode::STORAGE_RESOURCES_EXCEEDED => Self::Full,
            ErrorCode::STREAM_STORE_FAILED => {
                let answer = answer.to_string();
                let is_full = STREAM_IS_FULL.iter().any(|reason| answer.contains(reason));
                if is_full { Self::Full } else { Self::Unconfirmed }
            }
            _ => Self::Unconfirmed,
        }
    }
}

/// Sends one copy of an entry and waits for its position in the log. If `expected` is given, the entry is stored only
/// if the last entry on its subject has this sequence.
///
/// # Errors
/// The broker refused it or did not confirm it; [`AppendFailure::of`] tells these apart.
pub async fn publish(
    context: &jetstream::Context,
    subject: &str,
    payload: Bytes,
    expected: Option<u64>,
) -> Result<u64, PublishError> {
    let mut message = PublishMessage::build().payload(payload);
    if let Some(sequence) = expected {
        message = message.expected_last_subject_sequence(sequence);
    }
    Ok(context.send_publish(subject.to_owned(), message).await?.await?.sequence)
}

/// The pauses between two copies of an entry: 200 ms, doubled up to 1 s. Coordinators and workers differ in how long
/// they try, and in the meaning of a conflict after the first copy, so each has its own loop.
#[derive(Debug)]
pub struct Pauses(Duration);

impl Default for Pauses {
    fn default() -> Self {
        Self(PAUSE)
    }
}

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.0;
        self.0 = (pause * 2).min(PAUSE_LONGEST);
        Some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(code: u64, description: &str) -> AppendFailure {
        let answer = serde_json::json!({ "code": 503, "err_code": code, "description": description });
        let answer: jetstream::Error = serde_json::from_value(answer).expect("an error of the server");
        AppendFailure::of(&PublishError::with_source(PublishErrorKind::Other, answer))
    }

    #[test]
    fn what_will_not_pass_is_told_from_what_will() {
        assert_eq!(answered(10054, "message size exceeds maximum allowed"), AppendFailure::TooLarge);
        assert_eq!(answered(10023, "insufficient resources"), AppendFailure::Full);
        assert_eq!(answered(10047, "insufficient storage resources available"), AppendFailure::Full);
        assert_eq!(answered(10077, "maximum bytes exceeded"), AppendFailure::Full);
        assert_eq!(answered(10077, "maximum messages exceeded"), AppendFailure::Full);
        assert_eq!(answered(10077, "write: input/output error"), AppendFailure::Unconfirmed);
        assert_eq!(answered(10008, "JetStream system temporarily unavailable"), AppendFailure::Unconfirmed);
        assert_eq!(AppendFailure::of(&PublishError::new(PublishErrorKind::TimedOut)), AppendFailure::Unconfirmed);
        assert_eq!(AppendFailure::of(&PublishError::new(PublishErrorKind::WrongLastSequence)), AppendFailure::Conflict);
        assert_eq!(
            AppendFailure::of(&PublishError::new(PublishErrorKind::MaxPayloadExceeded)),
            AppendFailure::TooLarge
        );
    }

    #[test]
    fn pauses_double_up_to_a_second() {
        let pauses: Vec<u64> = Pauses::default().take(5).map(|pause| pause.as_millis() as u64).collect();
        assert_eq!(pauses, [200, 400, 800, 1000, 1000]);
    }
}
