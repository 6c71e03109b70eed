//! The results of executed calls, as their items have room for them, and the sources that they cite.

use crate::turns::{Answer, Part};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proto::names::object_path;
use proto::v1;
use serde_json::{Value, json};

use super::items::Carrier;
use super::returned::attachments;
use crate::heard::Heard;
use crate::openai::calls::{Failure, parts};

/// Annotations of one text: a search finds far fewer pages.
pub(crate) const ANNOTATIONS_MAX: usize = 256;

/// The item of an executed call after its end. `said` is the output that its tool streamed.
pub(super) fn ended(
    mut item: Value,
    (carrier, said): (Carrier, &str),
    outcome: &v1::CallOutcome,
    heard: &Heard,
) -> Value {
    if let Some(failure) = Failure::of(outcome) {
        return failed(item, carrier, said, &failure);
    }
    let text = match (said, Answer::new(parts(&outcome.result)).text()) {
        ("", text) => text,
        (said, text) if text.is_empty() => said.to_owned(),
        (said, text) => format!("{said}\n{text}"),
    };
    match carrier {
        Carrier::Mcp => item["output"] = text.into(),
        Carrier::McpList => {
            item["tools"] = list(outcome, "tools").unwrap_or_else(|| json!([]));
            return item;
        }
        Carrier::Image => image(&mut item, outcome, heard),
        Carrier::FileSearch => {
            item["results"] = list(outcome, "results").map_or(Value::Null, passages);
            item["toolyard"] = json!({ "output": text });
        }
        Carrier::WebSearch => {
            let sources: Vec<Value> = found(outcome)
                .iter()
                .filter_map(|page| Some(json!({ "type": "url", "url": page["url"].as_str()? })))
                .collect();
            item["action"]["sources"] = sources.into();
            item["toolyard"] = json!({ "output": text });
        }
        Carrier::Code => {
            item["outputs"] = code_outputs(said, outcome);
            item["toolyard"] = json!({ "output": text });
            let summary = structure(outcome).unwrap_or_default();
            for name in ["exit_code", "signal", "files"] {
                if !summary[name].is_null() {
                    item["toolyard"][name] = summary[name].clone();
                }
            }
        }
        Carrier::Shell
        | Carrier::Function
        | Carrier::Custom
        | Carrier::LocalShell
        | Carrier::ClientShell
        | Carrier::ApplyPatch => {}
    }
    item["status"] = "completed".into();
    let cited: Vec<Value> = outcome.result.iter().flat_map(|part| cited(&part.citations, plain(part))).collect();
    if !cited.is_empty() {
        item["toolyard"]["annotations"] = cited.into();
    }
    let attachments = attachments(outcome);
    if !matches!(carrier, Carrier::Image | Carrier::Code) && !attachments.is_null() {
        item["toolyard"]["attachments"] = attachments;
    }
    item
}

fn plain(content: &v1::Content) -> &str {
    if let Some(v1::content::Body::Text(text)) = &content.body { text } else { "" }
}

fn failed(mut item: Value, carrier: Carrier, said: &str, failure: &Failure) -> Value {
    item["toolyard"] = failure.json();
    if !said.is_empty() {
        match carrier {
            Carrier::Mcp => item["output"] = said.into(),
            Carrier::Code => item["outputs"] = json!([{ "type": "logs", "logs": said }]),
            _ => item["toolyard"]["output"] = said.into(),
        }
    }
    item["status"] = if failure.state == "CANCELLED" { carrier.cut_short() } else { "failed" }.into();
    match carrier {
        Carrier::Mcp if failure.is_callers() => {
            item["error"] = json!({ "type": "mcp_protocol_error", "code": -32602, "message": failure.message });
        }
        Carrier::Mcp | Carrier::McpList => {
            let content = json!([{ "type": "text", "text": failure.message }]);
            item["error"] = json!({ "type": "mcp_tool_execution_error", "content": content });
        }
        // The SDKs accept nothing but a text.
        Carrier::Image => item["result"] = "".into(),
        Carrier::Code | Carrier::FileSearch | Carrier::WebSearch => {}
        Carrier::Shell
        | Carrier::Function
        | Carrier::Custom
        | Carrier::LocalShell
        | Carrier::ClientShell
        | Carrier::ApplyPatch => {}
    }
    if carrier == Carrier::McpList {
        // This is the only one of these items without a status.
        item.as_object_mut().map(|item| item.remove("status"));
    }
    item
}

/// The first part of a result that is JSON.
fn structure(outcome: &v1::CallOutcome) -> Option<Value> {
    parts(&outcome.result).into_iter().find_map(|part| match part {
        Part::Json(json) => serde_json::from_str::<Value>(json).ok(),
        Part::Text(_) | Part::Data { .. } => None,
    })
}

/// The list of a result that is a list, or that has it under this name.
fn list(outcome: &v1::CallOutcome, name: &str) -> Option<Value> {
    let result = structure(outcome)?;
    Some(if result.is_array() { result } else { result[name].clone() }).filter(Value::is_array)
}

/// The passages that a search found, with all members that the SDKs require.
fn passages(mut found: Value) -> Value {
    let defaults = [
        ("file_id", json!("")),
        ("filename", json!("")),
        ("score", json!(0)),
        ("text", json!("")),
        ("attributes", json!({})),
    ];
    for passage in found.as_array_mut().into_iter().flatten().filter(|passage| passage.is_object()) {
        for (name, default) in &defaults {
            if passage[*name].is_null() {
                passage[*name] = default.clone();
            }
        }
    }
    found
}

/// What a search found.
fn found(outcome: &v1::CallOutcome) -> Vec<Value> {
    match list(outcome, "results") {
        Some(Value::Array(found)) => found,
        _ => Vec::new(),
    }
}

/// An image in its item: as base64, or the URL of the object that holds it if its bytes are not kept. The SDKs accept
/// nothing but a text.
fn image(item: &mut Value, outcome: &v1::CallOutcome, heard: &Heard) {
    let (mut inline, mut path) = (Value::Null, None);
    for body in outcome.result.iter().filter_map(|content| content.body.as_ref()) {
        match body {
            v1::content::Body::Data(data) if data.media_type.starts_with("image/") && inline.is_null() => {
                inline = BASE64_STANDARD.encode(&data.data).into();
            }
            v1::content::Body::Object(object) if object.media_type.starts_with("image/") && path.is_none() => {
                path = Some(object_path(&object.object_id));
                if let Some(bytes) = heard.stored(&object.object_id).filter(|_| inline.is_null()) {
                    inline = BASE64_STANDARD.encode(bytes).into();
                }
            }
            v1::content::Body::Data(_)
            | v1::content::Body::Object(_)
            | v1::content::Body::Text(_)
            | v1::content::Body::Json(_) => {}
        }
    }
    let summary = structure(outcome).unwrap_or_default();
    let link = || Some(summary["url"].as_str().or_else(|| summary["image_url"]["url"].as_str())?.to_owned());
    let url = path.or_else(link);
    item["result"] = match (inline, &url) {
        (Value::Null, Some(url)) => url.as_str().into(),
        (Value::Null, None) => "".into(),
        (inline, _) => inline,
    };
    if let Some(url) = url {
        item["toolyard"] = json!({ "url": url });
    }
    for name in ["revised_prompt", "size", "quality", "background", "output_format"] {
        if summary[name].is_string() {
            item[name] = summary[name].clone();
        }
    }
}

/// The logs and images of code that was run. The logs are the streamed output; if there is none, those of the result.
fn code_outputs(said: &str, outcome: &v1::CallOutcome) -> Value {
    let summary = structure(outcome).unwrap_or_default();
    let logs = if said.is_empty() { summary["logs"].as_str().unwrap_or_default() } else { said };
    let mut outputs = Vec::new();
    if !logs.is_empty() {
        outputs.push(json!({ "type": "logs", "logs": logs }));
    }
    let images = outcome.result.iter().filter_map(|content| match content.body.as_ref()? {
        v1::content::Body::Data(data) if data.media_type.starts_with("image/") => {
            Some(format!("data:{};base64,{}", data.media_type, BASE64_STANDARD.encode(&data.data)))
        }
        v1::content::Body::Object(object) if object.media_type.starts_with("image/") => {
            Some(object_path(&object.object_id))
        }
        v1::content::Body::Data(_)
        | v1::content::Body::Object(_)
        | v1::content::Body::Text(_)
        | v1::content::Body::Json(_) => None,
    });
    outputs.extend(images.map(|url| json!({ "type": "image", "url": url })));
    outputs.into()
}

/// The annotations of a text that is the result of a search: the pages that it cites by number (`[1]`), or the files in
/// which passages were found.
pub(super) fn annotations(carrier: Carrier, text: &str, outcome: &v1::CallOutcome) -> Vec<Value> {
    let found = found(outcome);
    let mut annotations = match carrier {
        Carrier::WebSearch => url_citations(text, &found),
        Carrier::FileSearch => file_citations(&found),
        Carrier::Mcp
        | Carrier::McpList
        | Carrier::Shell
        | Carrier::Image
        | Carrier::Code
        | Carrier::Function
        | Carrier::Custom
        | Carrier::LocalShell
        | Carrier::ClientShell
        | Carrier::ApplyPatch => Vec::new(),
    };
    annotations.truncate(ANNOTATIONS_MAX);
    annotations
}

/// The annotations of a text whose tool named its sources.
pub(super) fn cited(citations: &[v1::Citation], text: &str) -> Vec<Value> {
    let whole = text.chars().count();
    let one = |(index, citation): (usize, &v1::Citation)| {
        let (start, end) = crate::openai::calls::span(citation, whole);
        Some(match citation.source.as_ref()? {
            v1::citation::Source::Url(url) => {
                let title = if citation.title.is_empty() { url } else { &citation.title };
                json!({ "type": "url_citation", "start_index": start, "end_index": end, "url": url, "title": title })
            }
            v1::citation::Source::FileId(id) => {
                json!({ "type": "file_citation", "index": index, "file_id": id, "filename": citation.title })
            }
        })
    };
    citations.iter().enumerate().filter_map(one).take(ANNOTATIONS_MAX).collect()
}

/// Places count characters.
fn url_citations(text: &str, found: &[Value]) -> Vec<Value> {
    let mut citations: Vec<(usize, Value)> = Vec::new();
    for (nth, page) in found.iter().enumerate() {
        let Some(url) = page["url"].as_str() else { continue };
        let number = page["index"].as_u64().unwrap_or_else(|| nth as u64 + 1);
        let mark = format!("[{number}]");
        for (at, _) in text.match_indices(&mark) {
            let start = text[..at].chars().count();
            let title = page["title"].as_str().unwrap_or(url);
            let end = start + mark.len();
            let citation =
                json!({ "type": "url_citation", "start_index": start, "end_index": end, "url": url, "title": title });
            citations.push((start, citation));
            if citations.len() == ANNOTATIONS_MAX {
                break;
            }
        }
    }
    citations.sort_by_key(|(start, _)| *start);
    citations.into_iter().map(|(_, citation)| citation).collect()
}

/// Each file once; the index is its position in the list of files.
fn file_citations(found: &[Value]) -> Vec<Value> {
    let mut files: Vec<(&str, &str)> = Vec::new();
    for passage in found {
        let Some(id) = passage["file_id"].as_str() else { continue };
        if !files.iter().any(|(known, _)| *known == id) {
            files.push((id, passage["filename"].as_str().unwrap_or_default()));
        }
    }
    let citation = |(index, (id, name)): (usize, &(&str, &str))| {
        let (kind, id, name) = ("file_citation", *id, *name);
        json!({ "type": kind, "index": index, "file_id": id, "filename": name })
    };
    files.iter().enumerate().map(citation).collect()
}
