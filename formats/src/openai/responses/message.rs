//! The result of a final tool is also meant for the user, so it is emitted as a message of the assistant besides the
//! call's own item.

use proto::v1;
use proto::v1::content::Body;
use run::RunId;
use serde_json::{Value, json};

use super::items::{Carrier, exited};
use super::part::Part;
use super::results::{annotations, cited};
use crate::openai::calls::{Call, parts};
use crate::openai::url::Link;
use crate::turns::Answer;

fn text_part(text: &str, annotations: &[Value]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": annotations, "logprobs": [] })
}

/// A part of a result for the user.
#[derive(Debug)]
pub(crate) struct ForUser {
    /// Images, files and links are Markdown.
    pub(crate) text: String,
    /// The URL of an image: of its bytes, or of its object.
    pub(crate) image: Option<String>,
    /// The sources of the text.
    pub(crate) citations: Vec<v1::Citation>,
}

impl ForUser {
    fn of(text: String) -> Self {
        Self { text, image: None, citations: Vec::new() }
    }
}

/// A result for the user. The exit code of a shell is left out, and so is the list of what a search found if the search
/// has a text besides, or what describes an image.
pub(crate) fn for_user(call: &Call, outcome: &v1::CallOutcome) -> Vec<ForUser> {
    let carrier = Carrier::of(call);
    if carrier == Carrier::Shell {
        let shown = exited(outcome).1.parts;
        return shown.into_iter().map(|part| ForUser::of(Answer::new(vec![part]).text())).collect();
    }
    let mut contents: Vec<&v1::Content> = outcome.result.iter().collect();
    let is_text = |content: &&v1::Content| matches!(content.body, Some(Body::Text(_)));
    if matches!(carrier, Carrier::WebSearch | Carrier::FileSearch) && contents.iter().any(is_text) {
        contents.retain(is_text);
    }
    let is_shown = |content: &&v1::Content| !matches!(content.body, Some(Body::Json(_)) | None);
    if matches!(carrier, Carrier::Image | Carrier::Code) && contents.iter().any(is_shown) {
        contents.retain(is_shown);
    }
    let part = |content: &v1::Content| match (&content.body, Link::of(content)) {
        (Some(Body::Object(object)), _) if object.media_type.starts_with("text/") => {
            ForUser::of(object.preview.clone())
        }
        (_, Some(link)) => ForUser { image: link.is_image.then_some(link.url.clone()), ..ForUser::of(link.markdown()) },
        (_, None) => ForUser {
            citations: content.citations.clone(),
            ..ForUser::of(Answer::new(parts(std::slice::from_ref(content))).text())
        },
    };
    contents.into_iter().map(part).collect()
}

/// Emits the result as a message, with its citations.
pub(super) fn say(run: RunId, call: &Call, outcome: &v1::CallOutcome, part: &mut Part) {
    if call.hidden {
        return;
    }
    let carrier = Carrier::of(call);
    let contents: Vec<(String, Vec<Value>)> = for_user(call, outcome)
        .into_iter()
        .map(|ForUser { text, citations, .. }| {
            // Sources that the tool names itself count, not those that are found in its text.
            let annotations = match citations.as_slice() {
                [] => annotations(carrier, &text, outcome),
                citations => cited(citations, &text),
            };
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
