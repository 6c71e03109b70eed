//! The output and the end of each call of a run, as they are given to a model.

use std::collections::HashMap;

use bytes::Bytes;
use proto::names::{AGENT_TEXT, PARTIAL_IMAGE};
use proto::v1;
use proto::v1::content::Body;
use proto::v1::run_event::Event;

use crate::turns::{Answer, Part};

/// Bytes of a call's output that a model is given; as many as a result may have.
const SAID_BYTES_MAX: usize = 256 * 1024;

/// Bytes of a stored image or document that answers have inline; a larger one is given by its URL.
pub const INLINED_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Bytes of all that the answers of a run have inline, because each reader holds them in memory.
pub const ALL_INLINED_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The stored images and documents among the results of an event, as far as the APIs of vendors have them inline.
pub fn inlined(event: &v1::RunEvent) -> impl Iterator<Item = &v1::Object> {
    let outcome = match &event.event {
        Some(Event::CallEnded(ended)) => ended.outcome.as_ref(),
        _ => None,
    };
    let results = outcome.into_iter().flat_map(|outcome| &outcome.result);
    results.filter_map(|content| match content.body.as_ref()? {
        Body::Object(object) if is_inlined(&object.media_type) => Some(object),
        _ => None,
    })
}

/// Only what the APIs of vendors take.
fn is_inlined(media_type: &str) -> bool {
    matches!(media_type, "image/png" | "image/jpeg" | "image/webp" | "image/gif" | "application/pdf")
}

/// The calls of a run by their ids.
#[derive(Debug, Default)]
pub struct Heard {
    calls: HashMap<String, Call>,
    /// The bytes of stored parts of results, by the ids of their objects.
    stored: HashMap<String, Bytes>,
    /// Notes in place of other stored parts that are no text.
    notes: HashMap<String, String>,
}

#[derive(Debug, Default)]
struct Call {
    said: Vec<v1::Content>,
    said_bytes: usize,
    left_out_bytes: usize,
    end: Option<End>,
}

#[derive(Debug)]
struct End {
    /// The error text for the model of a call without a result.
    fault: Option<String>,
    outcome: v1::CallOutcome,
    /// Its result may be the answer to the user.
    return_direct: bool,
}

impl Heard {
    /// Keeps the bytes of a stored part of a result, so that answers have it inline.
    pub fn keep(&mut self, object_id: String, bytes: Bytes) {
        self.stored.insert(object_id, bytes);
    }

    /// The bytes that are kept for an object.
    #[must_use]
    pub fn stored(&self, object_id: &str) -> Option<&Bytes> {
        self.stored.get(object_id)
    }

    /// Applies the next event of the run.
    pub fn take(&mut self, event: &v1::RunEvent) {
        match &event.event {
            Some(Event::CallOutput(output)) => {
                if let Some(v1::call_output::Piece::Content(content)) = &output.piece
                    && ![AGENT_TEXT, PARTIAL_IMAGE].contains(&output.channel.as_str())
                {
                    self.calls.entry(output.call_id.clone()).or_default().say(content);
                }
            }
            Some(Event::CallOutputWithdrawn(withdrawn)) => {
                self.calls.remove(&withdrawn.call_id);
            }
            Some(Event::CallEnded(ended)) => {
                let results = ended.outcome.iter().flat_map(|outcome| &outcome.result);
                for object in results.filter_map(object) {
                    self.notes.insert(object.object_id.clone(), note(object));
                }
                let call = self.calls.entry(ended.call_id.clone()).or_default();
                let end = ended.outcome.as_ref().map(|outcome| call.ended(outcome));
                call.end = end.map(|end| End { return_direct: ended.return_direct, ..end });
            }
            _ => {}
        }
    }

    /// Whether the call has ended.
    #[must_use]
    pub fn has_ended(&self, call: &str) -> bool {
        self.calls.get(call).is_some_and(|call| call.end.is_some())
    }

    /// The call's output, and its outcome; `None` before its end.
    #[must_use]
    pub fn contents(&self, call: &str) -> Option<(Vec<&v1::Content>, &v1::CallOutcome)> {
        let call = self.calls.get(call)?;
        Some((call.said.iter().collect(), &call.end.as_ref()?.outcome))
    }

    /// The result of a call whose tool returns directly, without its output; `None` for others, and before its end.
    #[must_use]
    pub fn direct(&self, call: &str) -> Option<Answer<'_>> {
        let end = self.calls.get(call)?.end.as_ref().filter(|end| end.return_direct && end.fault.is_none())?;
        Some(Answer::new(end.outcome.result.iter().filter_map(|content| self.part(content)).collect()))
    }

    /// The call's output, followed by its result or error; `None` before its end.
    #[must_use]
    pub fn answer(&self, call: &str) -> Option<Answer<'_>> {
        let call = self.calls.get(call)?;
        let end = call.end.as_ref()?;
        let parts = call.said.iter().chain(&end.outcome.result).filter_map(|content| self.part(content));
        let fault = end.fault.iter().map(|fault| Part::Text(fault));
        Some(Answer { parts: parts.chain(fault).collect(), is_error: end.fault.is_some() })
    }

    fn part<'a>(&'a self, content: &'a v1::Content) -> Option<Part<'a>> {
        Some(match content.body.as_ref()? {
            Body::Text(text) => Part::Text(text),
            Body::Json(json) => Part::Json(json),
            Body::Data(v1::Data { media_type, data }) => Part::Data { media_type, data },
            Body::Object(object) => match (self.stored.get(&object.object_id), self.notes.get(&object.object_id)) {
                (Some(data), _) => Part::Data { media_type: &object.media_type, data },
                (None, Some(note)) => Part::Text(note),
                (None, None) => Part::Text(&object.preview),
            },
        })
    }
}

/// The object that holds a part which is no text.
fn object(content: &v1::Content) -> Option<&v1::Object> {
    match content.body.as_ref()? {
        Body::Object(object) if !object.media_type.starts_with("text/") && object.media_type != "application/json" => {
            Some(object)
        }
        Body::Object(_) | Body::Text(_) | Body::Json(_) | Body::Data(_) => None,
    }
}

fn note(object: &v1::Object) -> String {
    let v1::Object { media_type, size_bytes, object_id, .. } = object;
    format!("[{media_type}, {size_bytes} bytes: stored as {}]", proto::names::object_path(object_id))
}

impl Call {
    fn say(&mut self, content: &v1::Content) {
        let bytes = prost::Message::encoded_len(content);
        if self.left_out_bytes > 0 || self.said_bytes + bytes > SAID_BYTES_MAX {
            self.left_out_bytes += bytes;
            return;
        }
        self.said_bytes += bytes;
        let last = self.said.last_mut().and_then(|last| last.body.as_mut());
        match (last, &content.body) {
            // Pieces of one text.
            (Some(Body::Text(text)), Some(Body::Text(piece))) => text.push_str(piece),
            _ => self.said.push(content.clone()),
        }
    }

    fn ended(&mut self, outcome: &v1::CallOutcome) -> End {
        if self.left_out_bytes > 0 {
            let note = format!("[{} more bytes of output are left out]", self.left_out_bytes);
            self.said.push(v1::Content::from(Body::Text(note)));
        }
        End { fault: fault(outcome), outcome: outcome.clone(), return_direct: false }
    }
}

/// The text for a model about a call that ended without a result; `None` for a call that completed.
pub(crate) fn fault(outcome: &v1::CallOutcome) -> Option<String> {
    let why = |what: &str| match outcome.reason.as_str() {
        "" => what.to_owned(),
        reason => format!("{what}: {reason}"),
    };
    match outcome.state() {
        v1::CallState::Completed => None,
        v1::CallState::Cancelled => Some(why("the call was cancelled")),
        v1::CallState::Expired => Some(why("the call ended without a result")),
        v1::CallState::Failed
        | v1::CallState::Unspecified
        | v1::CallState::Accepted
        | v1::CallState::AwaitingApproval
        | v1::CallState::Delayed
        | v1::CallState::WaitingForClient
        | v1::CallState::Queued
        | v1::CallState::Running => {
            let message = outcome.error.as_ref().map(|error| error.message.clone());
            Some(message.unwrap_or_else(|| why("the call failed")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> v1::Content {
        v1::Content::from(Body::Text(text.to_owned()))
    }

    fn said(piece: &str) -> Event {
        let piece = Some(v1::call_output::Piece::Content(text(piece)));
        Event::CallOutput(v1::CallOutput { call_id: "a".to_owned(), piece, ..v1::CallOutput::default() })
    }

    fn ended(outcome: v1::CallOutcome) -> Event {
        Event::CallEnded(v1::CallEnded { call_id: "a".to_owned(), outcome: Some(outcome), ..v1::CallEnded::default() })
    }

    fn heard(events: impl IntoIterator<Item = Event>) -> Heard {
        let mut heard = Heard::default();
        for event in events {
            heard.take(&v1::RunEvent { event: Some(event), ..v1::RunEvent::default() });
        }
        heard
    }

    fn completed() -> v1::CallOutcome {
        v1::CallOutcome {
            state: v1::CallState::Completed.into(),
            result: vec![text("done")],
            ..v1::CallOutcome::default()
        }
    }

    #[test]
    fn a_model_is_told_what_was_said_and_the_result() {
        let withdrawn = v1::CallOutputWithdrawn { call_id: "a".to_owned(), attempt: 1 };
        let events =
            [said("lost"), Event::CallOutputWithdrawn(withdrawn), said("one "), said("two"), ended(completed())];
        assert_eq!(heard(events).answer("a"), Some(Answer::new(vec![Part::Text("one two"), Part::Text("done")])));
        assert_eq!(heard([said("one")]).answer("a"), None, "it has not ended");
    }

    #[test]
    fn unfinished_images_are_not_for_the_model() {
        let data = v1::Data { media_type: "image/png".to_owned(), data: "a piece".into() };
        let piece = Some(v1::call_output::Piece::Content(v1::Content::from(Body::Data(data))));
        let (call_id, channel) = ("a".to_owned(), PARTIAL_IMAGE.to_owned());
        let piece = Event::CallOutput(v1::CallOutput { call_id, channel, piece, ..v1::CallOutput::default() });
        assert_eq!(heard([piece, ended(completed())]).answer("a"), Some(Answer::new(vec![Part::Text("done")])));
    }

    #[test]
    fn what_an_agent_says_while_it_works_is_not_for_the_model_that_called_it() {
        let (call_id, channel) = ("a".to_owned(), AGENT_TEXT.to_owned());
        let piece = Some(v1::call_output::Piece::Content(text("Let me look.")));
        let piece = Event::CallOutput(v1::CallOutput { call_id, channel, piece, ..v1::CallOutput::default() });
        assert_eq!(heard([piece, ended(completed())]).answer("a"), Some(Answer::new(vec![Part::Text("done")])));
    }

    #[test]
    fn a_model_is_told_what_went_wrong_after_what_was_said() {
        let error = v1::CallError { message: "it broke".to_owned(), ..v1::CallError::default() };
        let failed =
            v1::CallOutcome { state: v1::CallState::Failed.into(), error: Some(error), ..v1::CallOutcome::default() };
        let expected = Answer { parts: vec![Part::Text("so far"), Part::Text("it broke")], is_error: true };
        assert_eq!(heard([said("so far"), ended(failed)]).answer("a"), Some(expected));
    }

    #[test]
    fn output_beyond_what_a_result_may_have_is_left_out_and_counted() {
        let long = "x".repeat(100 * 1024);
        let heard = heard((0..4).map(|_| said(&long)).chain([ended(completed())]));
        let answer = heard.answer("a").expect("it has ended");
        let [Part::Text(said), Part::Text(note), Part::Text("done")] = answer.parts[..] else { panic!("{answer:?}") };
        assert_eq!(said.len(), 200 * 1024);
        assert!(note.contains("more bytes of output"), "{note}");
    }
}
