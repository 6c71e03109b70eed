//! The result of a final tool is also meant for the user, so it is emitted as a message of the assistant besides the
//! call's own item.

use crate::turns::Answer;
use proto::v1;
use run::RunId;
use serde_json::{Value, json};

use super::items::{Carrier, exited};
use super::part::Part;
use crate::openai::calls::{Call, parts};

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

/// Emits the result as a message, with one message part per part of the result. The API only has text parts, so data
/// becomes a note. The exit code of a shell is left out.
pub(super) fn say(run: RunId, call: &Call, outcome: &v1::CallOutcome, part: &mut Part) {
    if call.hidden {
        return;
    }
    let is_shell = Carrier::of(call) == Carrier::Shell;
    let contents = if is_shell { exited(outcome).1.parts } else { parts(&outcome.result) };
    let texts: Vec<String> = contents.into_iter().map(|content| Answer::new(vec![content]).text()).collect();
    if texts.is_empty() {
        return;
    }
    let mut item = json!({
        "type": "message", "id": format!("msg_{}", call.token(run)), "role": "assistant", "status": "in_progress", "content": [],
        "toolyard": { "call_id": call.id },
    });
    let place = part.add(item.clone());
    for (nth, text) in texts.iter().enumerate() {
        let of = |name: &str, value: Value| json!({ "content_index": nth, name: value });
        part.of_item("response.content_part.added", place, of("part", text_part("")));
        for (kind, name) in [("response.output_text.delta", "delta"), ("response.output_text.done", "text")] {
            let mut data = of(name, text.as_str().into());
            data["logprobs"] = json!([]);
            part.of_item(kind, place, data);
        }
        part.of_item("response.content_part.done", place, of("part", text_part(text)));
    }
    item["status"] = "completed".into();
    item["content"] = texts.iter().map(|text| text_part(text)).collect();
    part.done(place, item);
}
