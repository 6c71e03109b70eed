//! One response while it is emitted: its items by their final positions, and its events by their numbers.

use serde_json::{Value, json};

use super::ResponseId;
use crate::openai::NAME;

/// An event of a response's stream.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The part of the run that the event belongs to.
    pub part: u32,
    /// Starts at 0 and increases within a part. An event that is not shown to a reader leaves a gap.
    pub sequence: u64,
    /// The name of the event; also in `data`.
    pub kind: &'static str,
    pub data: Value,
}

impl Event {
    /// Whether the API documents it. Other events are only shown to clients that request them.
    #[must_use]
    pub fn is_documented(&self) -> bool {
        !self.kind.starts_with(super::SLUG)
    }

    /// Whether this is the last event of its response. It carries the response in its final form.
    #[must_use]
    pub fn is_last(&self) -> bool {
        matches!(self.kind, "response.completed" | "response.failed" | "response.incomplete")
    }
}

/// The state of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing<'a> {
    InProgress,
    Completed,
    Failed { message: &'a str },
    Cancelled,
    Expired,
}

#[derive(Debug)]
pub(super) struct Part {
    pub(super) id: ResponseId,
    /// In seconds, by the log's clock.
    created_at: i64,
    metadata: Value,
    /// The response can be read as long as the log is kept.
    store: bool,
    sequence: u64,
    output: Vec<Value>,
    /// The positions of the items that are not done.
    open: Vec<usize>,
    events: Vec<Event>,
}

impl Part {
    /// Begins a part and emits its first events.
    pub(super) fn begin(id: ResponseId, created_at: i64, (metadata, store): (Value, bool)) -> Self {
        let (output, open, events) = (Vec::new(), Vec::new(), Vec::new());
        let mut part = Self { id, created_at, metadata, store, sequence: 0, output, open, events };
        for kind in ["response.created", "response.in_progress"] {
            let response = part.response(Standing::InProgress, created_at);
            part.emit(kind, json!({ "response": response }));
        }
        part
    }

    pub(super) fn emit(&mut self, kind: &'static str, mut data: Value) {
        data["type"] = kind.into();
        data["sequence_number"] = self.sequence.into();
        self.events.push(Event { part: self.id.part, sequence: self.sequence, kind, data });
        self.sequence += 1;
    }

    /// Moves the events since the last call into `into`.
    pub(super) fn take_events(&mut self, into: &mut Vec<Event>) {
        into.append(&mut self.events);
    }

    /// Appends an item and returns its position, which does not change.
    pub(super) fn add(&mut self, item: Value) -> usize {
        let place = self.output.len();
        self.emit("response.output_item.added", json!({ "output_index": place, "item": item }));
        self.output.push(item);
        self.open.push(place);
        place
    }

    /// Emits an item in its final state.
    pub(super) fn done(&mut self, place: usize, item: Value) {
        self.emit("response.output_item.done", json!({ "output_index": place, "item": item }));
        if let Some(slot) = self.output.get_mut(place) {
            *slot = item;
        }
        self.open.retain(|open| *open != place);
    }

    /// Whether the item was begun and is not done.
    pub(super) fn is_open(&self, place: usize) -> bool {
        self.open.contains(&place)
    }

    /// Whether some item is open.
    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Appends an item that is complete.
    pub(super) fn add_done(&mut self, item: Value) -> usize {
        let place = self.add(item.clone());
        self.done(place, item);
        place
    }

    /// Emits an event of an item.
    pub(super) fn of_item(&mut self, kind: &'static str, place: usize, mut data: Value) {
        data["output_index"] = place.into();
        data["item_id"] = self.output.get(place).map_or(Value::Null, |item| item["id"].clone());
        self.emit(kind, data);
    }

    /// Sets a field of an item whose value the client got by events.
    pub(super) fn fill(&mut self, place: usize, name: &str, value: Value) {
        if let Some(item) = self.output.get_mut(place) {
            item[name] = value;
        }
    }

    pub(super) fn item(&self, place: usize) -> Value {
        self.output.get(place).cloned().unwrap_or_default()
    }

    /// The response in its current state.
    pub(super) fn response(&self, standing: Standing<'_>, at: i64) -> Value {
        // The API defines reasons of an incomplete response for the limits of a model only.
        let (status, error, reason) = match standing {
            Standing::InProgress => ("in_progress", Value::Null, Value::Null),
            Standing::Completed => ("completed", Value::Null, Value::Null),
            Standing::Failed { message } => {
                ("failed", json!({ "code": "server_error", "message": message }), Value::Null)
            }
            Standing::Cancelled => ("cancelled", Value::Null, "cancelled".into()),
            Standing::Expired => ("incomplete", Value::Null, "expired".into()),
        };
        let previous = self.id.part.checked_sub(1).map(|part| ResponseId { part, ..self.id }.to_string());
        json!({
            "id": self.id.to_string(),
            "object": "response",
            "created_at": self.created_at,
            "completed_at": if standing == Standing::Completed { at.into() } else { Value::Null },
            "status": status,
            "background": true,
            "error": error,
            "incomplete_details": null,
            "instructions": null,
            "metadata": self.metadata,
            "model": NAME,
            "output": self.output,
            "parallel_tool_calls": true,
            "previous_response_id": previous,
            "store": self.store,
            "temperature": null,
            "tool_choice": "auto",
            "tools": [],
            "top_p": null,
            "usage": null,
            "toolyard": { "run_id": self.id.run.to_string(), "part": self.id.part, "incomplete": reason },
        })
    }

    /// Emits the last event. `ours` are further members of `toolyard`.
    pub(super) fn end(&mut self, standing: Standing<'_>, at: i64, ours: Value) {
        let mut response = self.response(standing, at);
        if let (Some(members), Value::Object(ours)) = (response["toolyard"].as_object_mut(), ours) {
            members.extend(ours);
        }
        let kind = match standing {
            Standing::InProgress | Standing::Completed => "response.completed",
            Standing::Failed { .. } => "response.failed",
            Standing::Cancelled | Standing::Expired => "response.incomplete",
        };
        self.emit(kind, json!({ "response": response }));
    }
}
