//! Why the broker did not store an entry, and whether it makes sense to send it again.

use std::error::Error as _;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::{self, ErrorCode};

/// What the server answers when a stream's limit of bytes or of messages is reached and it may not discard. The same
/// code stands for other failures of the store, which pass.
const STREAM_IS_FULL: [&str; 2] = ["maximum bytes exceeded", "maximum messages exceeded"];

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
}
