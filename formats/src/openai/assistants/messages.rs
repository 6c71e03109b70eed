//! Messages of the assistant: the results of final tools, and of a run that answers with its results.

use proto::v1;
use serde_json::{Value, json};

use super::stream::Stream;
use crate::openai::NAME;
use crate::openai::calls::span;
use crate::openai::responses::{ANNOTATIONS_MAX, ForUser, for_user};

impl Stream {
    /// Emits the result of a call as a message.
    pub(super) fn say_message(&mut self, index: usize, outcome: &v1::CallOutcome, at: i64) {
        let Some(call) = self.calls.all.get(index).filter(|call| !call.hidden) else { return };
        let contents: Vec<Value> = for_user(call, outcome).into_iter().map(content).collect();
        if contents.is_empty() {
            return;
        }
        let id = format!("msg_{}", call.token(self.run));
        let mut message = json!({
            "id": id,
            "object": "thread.message",
            "created_at": at,
            "completed_at": null,
            "incomplete_at": null,
            "incomplete_details": null,
            "thread_id": self.thread,
            "assistant_id": NAME,
            "run_id": self.of.to_string(),
            "role": "assistant",
            "status": "in_progress",
            "content": [],
            "attachments": [],
            "metadata": { "toolyard.call_id": call.id },
        });
        self.say("thread.message.created", message.clone());
        self.say("thread.message.in_progress", message.clone());
        for (nth, content) in contents.iter().enumerate() {
            let mut content = content.clone();
            content["index"] = nth.into();
            let delta = json!({ "role": "assistant", "content": [content] });
            self.say("thread.message.delta", json!({ "id": id, "object": "thread.message.delta", "delta": delta }));
        }
        (message["status"], message["completed_at"]) = ("completed".into(), at.into());
        message["content"] = contents.into();
        self.say("thread.message.completed", message.clone());
        self.messages.push(message);
    }

    /// The messages of the run, the oldest first.
    #[must_use]
    pub fn messages(&self) -> Vec<Value> {
        self.messages.clone()
    }
}

/// The API has citations of files only, not of pages.
fn annotations(citations: &[v1::Citation], text: &str) -> Vec<Value> {
    let whole = text.chars().count();
    let of_file = |citation: &v1::Citation| {
        let Some(v1::citation::Source::FileId(id)) = &citation.source else { return None };
        let (start, end) = span(citation, whole);
        let cited: String = text.chars().skip(start).take(end - start).collect();
        Some(json!({ "type": "file_citation", "text": cited, "start_index": start, "end_index": end,
            "file_citation": { "file_id": id } }))
    };
    citations.iter().filter_map(of_file).take(ANNOTATIONS_MAX).collect()
}

fn content(ForUser { text, image, citations }: ForUser) -> Value {
    match image {
        Some(url) => json!({ "type": "image_url", "image_url": { "url": url, "detail": "auto" } }),
        None => {
            let annotations = annotations(&citations, &text);
            json!({ "type": "text", "text": { "value": text, "annotations": annotations } })
        }
    }
}
