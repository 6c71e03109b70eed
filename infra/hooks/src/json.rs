//! Requests and answers as JSON, for programs and web services.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use proto::convert::fields::{fields_in, fields_out};
use run::{CallError, Chunk, Citation, CitationSource, CitedText, Content, Progress};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::contract::{CallStage, HookError, HookPoint, HookRequest, Reply};

#[derive(Serialize)]
struct Asked<'a> {
    event: HookPoint,
    run_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    call_id: Option<&'a str>,
    tool: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    alias_of: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    metadata: &'a BTreeMap<String, String>,
    arguments: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Vec<Part>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_state: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<Vec<Said>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Fault<'a>>,
}

#[derive(Serialize)]
struct Fault<'a> {
    kind: &'static str,
    message: &'a str,
    retryable: bool,
}

/// Exactly one of text, json, and data with its media type is set.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    json: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    /// In base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    /// The sources of a text.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    citations: Vec<Source>,
}

/// A source that a text cites: exactly one of url and file_id is set.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Source {
    #[serde(skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file_id: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    title: String,
    #[serde(default)]
    start: u32,
    #[serde(default)]
    end: u32,
}

/// A piece of output: content with its channel, or progress.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Said {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    channel: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Part>,
    #[serde(skip_serializing_if = "Option::is_none")]
    progress: Option<Step>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    done: f64,
    total: Option<f64>,
    #[serde(default)]
    message: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Decision {
    Allow,
    Deny,
    Modify,
    LeaveToClient,
    Answer,
    ModifyResult,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Answered {
    decision: Decision,
    reason: Option<String>,
    arguments: Option<Box<RawValue>>,
    result: Option<Vec<Part>>,
    extra_state: Option<Box<RawValue>>,
    output: Option<Vec<Said>>,
}

/// A request as a JSON object.
pub(crate) fn question(question: &HookRequest) -> Bytes {
    let (mut result, mut extra_state, mut output, mut error) = (None, None, None, None);
    match &question.happened {
        CallStage::Asked => {}
        CallStage::Completed { result: parts, extra_state: state, output: said } => {
            result = Some(parts.iter().map(part_out).collect());
            extra_state = (!state.is_empty()).then(|| raw(&fields_out(state)));
            output = said.as_ref().map(|said| said.iter().map(said_out).collect());
        }
        CallStage::Failed { error: why } => error = Some(fault(why)),
        CallStage::Ended { kind, message, .. } => error = Some(Fault { kind, message, retryable: false }),
    }
    let asked = Asked {
        event: question.moment(),
        run_id: question.run.to_string(),
        call_id: question.call.as_ref().map(run::CallId::as_str),
        tool: question.tool.as_str(),
        alias_of: question.alias_of.as_ref().map(run::ToolName::as_str),
        tenant: question.tenant.as_ref().map(run::TenantId::as_str),
        attempt: question.attempt.map(|number| number.0),
        metadata: &question.metadata,
        arguments: raw(&String::from_utf8_lossy(&question.arguments)),
        result,
        extra_state,
        output,
        error,
    };
    serde_json::to_vec(&asked).map(Bytes::from).unwrap_or_default()
}

fn fault(error: &CallError) -> Fault<'_> {
    Fault { kind: proto::convert::error_kind_name(error.kind), message: &error.message, retryable: error.retryable }
}

/// A text as JSON with all digits if it is JSON, otherwise as a string.
fn raw(text: &str) -> Box<RawValue> {
    let as_it_is = RawValue::from_string(text.trim().to_owned());
    let quoted = || serde_json::to_string(text).and_then(RawValue::from_string);
    as_it_is.or_else(|_| quoted()).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

fn part_out(content: &Content) -> Part {
    match content {
        Content::Text(text) => Part { text: Some(text.clone()), ..Part::default() },
        Content::Json(json) => Part { json: Some(raw(json)), ..Part::default() },
        Content::Data { media_type, data } => {
            Part { media_type: Some(media_type.clone()), data: Some(BASE64_STANDARD.encode(data)), ..Part::default() }
        }
        Content::Object(object) => Part { text: Some(object.preview.clone()), ..Part::default() },
        Content::Cited(cited) => Part {
            text: Some(cited.text.clone()),
            citations: cited.citations.iter().map(source_out).collect(),
            ..Part::default()
        },
    }
}

fn source_out(citation: &Citation) -> Source {
    let (url, file_id) = match citation.source.clone() {
        CitationSource::Url(url) => (Some(url), None),
        CitationSource::File(id) => (None, Some(id)),
    };
    Source { url, file_id, title: citation.title.clone(), start: citation.start, end: citation.end }
}

fn source_in(source: Source) -> Result<Citation, HookError> {
    let Source { url, file_id, title, start, end } = source;
    let source = match (url, file_id) {
        (Some(url), None) => CitationSource::Url(url),
        (None, Some(id)) => CitationSource::File(id),
        _ => return Err(HookError::new("a citation has not exactly one of url and file_id")),
    };
    Ok(Citation { source, title, start, end })
}

fn said_out(chunk: &Chunk) -> Said {
    match chunk {
        Chunk::Content { channel, content } => {
            Said { channel: channel.clone(), part: Some(part_out(content)), progress: None }
        }
        Chunk::Progress(Progress { done, total, message }) => {
            let step = Step { done: *done, total: *total, message: message.clone() };
            Said { progress: Some(step), ..Said::default() }
        }
    }
}

/// An answer from a JSON object.
pub(crate) fn reply(text: &[u8]) -> Result<Reply, HookError> {
    let answered: Answered =
        serde_json::from_slice(text).map_err(|error| HookError::new(format!("its answer is not one: {error}")))?;
    let Answered { decision, reason, arguments, result, extra_state, output } = answered;
    let after = result.is_some() || extra_state.is_some() || output.is_some();
    match (decision, arguments.is_some(), after) {
        (Decision::Allow, false, false) => Ok(Reply::Allow),
        (Decision::LeaveToClient, false, false) => Ok(Reply::LeaveToClient),
        (Decision::Deny, false, false) => {
            let reason = reason.filter(|reason| !reason.trim().is_empty());
            Ok(Reply::Deny { reason: reason.unwrap_or_else(|| "no reason was given".to_owned()) })
        }
        (Decision::Modify, true, false) => {
            let text = arguments.map_or_else(String::new, |arguments| arguments.get().to_owned());
            // The input of a tool that takes text.
            let arguments = serde_json::from_str::<String>(&text).unwrap_or(text);
            Ok(Reply::Modify { arguments: arguments.into() })
        }
        (Decision::Answer, false, true) if extra_state.is_none() && output.is_none() => {
            Ok(Reply::Answer { result: result.into_iter().flatten().map(part_in).collect::<Result<_, _>>()? })
        }
        (Decision::Answer, _, _) => Err(HookError::new("it decided answer, and gave not a result alone")),
        (Decision::ModifyResult, false, true) => Ok(Reply::ModifyResult {
            result: result.map(|parts| parts.into_iter().map(part_in).collect()).transpose()?,
            extra_state: extra_state
                .map(|state| fields_in(state.get()))
                .transpose()
                .map_err(|error| HookError::new(format!("its extra_state {error}")))?,
            output: output.map(|said| said.into_iter().map(said_in).collect()).transpose()?,
        }),
        (Decision::Modify, _, _) => Err(HookError::new("it decided modify, and gave not arguments alone")),
        (Decision::ModifyResult, _, _) => {
            Err(HookError::new("it decided modify_result, and gave none of result, extra_state and output alone"))
        }
        (Decision::Allow | Decision::Deny | Decision::LeaveToClient, _, _) => {
            Err(HookError::new("it gave arguments, a result, state or output with a decision that takes none"))
        }
    }
}

fn part_in(part: Part) -> Result<Content, HookError> {
    let Part { text, json, media_type, data, citations } = part;
    let has_sources = !citations.is_empty();
    match (text, json, media_type, data) {
        (Some(text), None, None, None) if has_sources => {
            let citations = citations.into_iter().map(source_in).collect::<Result<_, _>>()?;
            Ok(Content::Cited(Box::new(CitedText { text, citations })))
        }
        (Some(text), None, None, None) => Ok(Content::Text(text)),
        _ if has_sources => Err(HookError::new("a part that is no text has citations")),
        (None, Some(json), None, None) => Ok(Content::Json(json.get().to_owned())),
        (None, None, Some(media_type), Some(data)) => {
            let data = BASE64_STANDARD.decode(data);
            let data = data.map_err(|error| HookError::new(format!("its data is not base64: {error}")))?;
            Ok(Content::Data { media_type, data: data.into() })
        }
        _ => Err(HookError::new("a part is not exactly one of text, json, and data with media_type")),
    }
}

fn said_in(said: Said) -> Result<Chunk, HookError> {
    match said {
        Said { channel, part: Some(part), progress: None } => Ok(Chunk::Content { channel, content: part_in(part)? }),
        Said { part: None, progress: Some(Step { done, total, message }), .. } => {
            Ok(Chunk::Progress(Progress { done, total, message }))
        }
        _ => Err(HookError::new("a piece of output is not exactly one of part and progress")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_of_a_text_are_asked_about_and_come_back() {
        let sources = vec![Citation::url("https://a.example", "A").at(1..2), Citation::file("f1", "")];
        let cited = Content::Cited(Box::new(CitedText { text: "It is so.".to_owned(), citations: sources }));
        let json = serde_json::to_string(&part_out(&cited)).expect("it is JSON");
        let page = r#"{"url":"https://a.example","title":"A","start":1,"end":2}"#;
        assert_eq!(
            json,
            format!(r#"{{"text":"It is so.","citations":[{page},{{"file_id":"f1","start":0,"end":0}}]}}"#)
        );
        let read = |json: &str| part_in(serde_json::from_str(json).expect("it is a part"));
        assert_eq!(read(&json).expect("it is a part"), cited);
        for wrong in [r#"{"text":"a","citations":[{}]}"#, r#"{"json":1,"citations":[{"url":"u"}]}"#] {
            read(wrong).expect_err(wrong);
        }
    }
}
