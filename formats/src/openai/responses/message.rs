//! The result of a final tool is also meant for the user, so it is emitted as a message of the assistant besides the
//! call's own item.

use crate::turns::{Answer, Part as AnswerPart};
use proto::v1;
use run::RunId;
use serde_json::{Value, json};

use super::items::{Carrier, exited};
use super::part::Part;
use super::results::annotations;
use crate::openai::calls::{Call, parts};

fn text_part(text: &str, annotations: &[Value]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": annotations, "logprobs": [] })
}

/// The texts for the user, one per part of the result. The API only has text parts, so data becomes a note. The exit
/// code of a shell is left out, and so is the list of what a search found if the search has a text besides.
fn texts(carrier: Carrier, outcome: &v1::CallOutcome) -> Vec<String> {
    let mut contents = match carrier {
        Carrier::Shell => exited(outcome).1.parts,
        _ => parts(&outcome.result),
    };
    let is_text = |part: &AnswerPart<'_>| matches!(part, AnswerPart::Text(_));
    if matches!(carrier, Carrier::WebSearch | Carrier::FileSearch) && contents.iter().any(is_text) {
        contents.retain(is_text);
    }
    contents.into_iter().map(|content| Answer::new(vec![content]).text()).collect()
}

/// Emits the result as a message, with its citations.
pub(super) fn say(run: RunId, call: &Call, outcome: &v1::CallOutcome, part: &mut Part) {
    if call.hidden {
        return;
    }
    let carrier = Carrier::of(call);
    let contents: Vec<(String, Vec<Value>)> = texts(carrier, outcome)
        .into_iter()
        .map(|text| {
            let annotations = annotations(carrier, &text, outcome);
            (text, annotations)
        })
        .collect();
    if contents.is_empty() {
        return;
    }
    let mut item = json!({
        "type": "message", "id": format!("msg_{}", call.token(run)), "role": "assistant", "status": "in_progress", "content": [],
        "toolyard": { "call_id": call.id },
    });
    let place = part.add(item.clone());
    for (nth, (text, annotations)) in contents.iter().enumerate() {
        let of = |name: &str, value: Value| json!({ "content_index": nth, name: value });
        part.of_item("response.content_part.added", place, of("part", text_part("", &[])));
        let mut data = of("delta", text.as_str().into());
        data["logprobs"] = json!([]);
        part.of_item("response.output_text.delta", place, data);
        for (number, annotation) in annotations.iter().enumerate() {
            let mut data = of("annotation", annotation.clone());
            data["annotation_index"] = number.into();
            part.of_item("response.output_text.annotation.added", place, data);
        }
        let mut data = of("text", text.as_str().into());
        data["logprobs"] = json!([]);
        part.of_item("response.output_text.done", place, data);
        part.of_item("response.content_part.done", place, of("part", text_part(text, annotations)));
    }
    item["status"] = "completed".into();
    item["content"] = contents.iter().map(|(text, annotations)| text_part(text, annotations)).collect();
    part.done(place, item);
}
