//! The stream of a call: its notifications, questions and answer as server-sent events.

use axum::response::Response;
use bytes::Bytes;
use futures::StreamExt as _;

use super::follow::{Following, Step};
use super::resume::Place;
use crate::api::http::sse;

/// When a client reconnects after its stream broke off.
const RETRY_MS: u64 = 1000;

/// A stream while it is sent.
struct Streaming {
    following: Following,
    /// The first step, if it was taken before.
    first: Option<Step>,
    is_primed: bool,
    ended: bool,
}

/// The stream of a call. `first`: a step that was taken already.
pub(super) fn response(following: Following, first: Option<Step>) -> Response {
    let streaming = Streaming { following, first, is_primed: false, ended: false };
    let texts = futures::stream::unfold(streaming, async |mut streaming| {
        if streaming.ended {
            return None;
        }
        let text = streaming.next().await;
        Some((text, streaming))
    });
    // Empty texts need not be sent.
    sse::response(texts.filter(|text| std::future::ready(!text.is_empty())))
}

impl Streaming {
    async fn next(&mut self) -> Bytes {
        if self.following.client.is_primed() && !self.is_primed {
            self.is_primed = true;
            return format!("id: {}\nretry: {RETRY_MS}\ndata: \n\n", self.event_id()).into();
        }
        let step = match self.first.take() {
            Some(first) => Ok(first),
            None => self.following.next(None).await,
        };
        match step {
            Ok(Step::Messages(messages)) => {
                messages.iter().map(|message| self.event(message)).collect::<String>().into()
            }
            Ok(Step::Silence) => Bytes::from_static(sse::HEARTBEAT),
            Ok(Step::Waited) => Bytes::new(),
            Ok(Step::Done(answer)) => {
                self.ended = true;
                self.event(&answer).into()
            }
            Ok(Step::Cut) => {
                self.ended = true;
                Bytes::new()
            }
            Err(error) => {
                self.ended = true;
                self.event(&error.text(Some(&self.following.id))).into()
            }
        }
    }

    fn event(&self, message: &str) -> String {
        let id = self.following.client.is_primed().then(|| self.event_id());
        event(id.as_deref(), message)
    }

    fn event_id(&self) -> String {
        let Following { run, id, last, reported, progress, .. } = &self.following;
        let progress_token = progress.as_ref().map(|progress| progress.token().to_owned());
        Place { run: *run, id: id.clone(), progress_token, after: *last.max(reported) }.event_id()
    }
}

/// An event with a message. A tool may have written its JSON on several lines, which would end the event; outside of
/// strings, where JSON escapes them, line breaks mean as much as spaces.
pub(super) fn event(id: Option<&str>, message: &str) -> String {
    let line = message.replace(['\n', '\r'], " ");
    let id = id.map(|id| format!("id: {id}\n")).unwrap_or_default();
    format!("{id}data: {line}\n\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_on_several_lines_is_one_event() {
        assert_eq!(event(Some("7"), "{\n  \"a\": \"\\n\"\r\n}"), "id: 7\ndata: {   \"a\": \"\\n\"  }\n\n");
        assert_eq!(event(None, "{}"), "data: {}\n\n");
    }
}
