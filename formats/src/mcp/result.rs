//! The result of `tools/call`. A failure of the tool, a refusal and a missed deadline are results, so that the model
//! can react; a failure of this service is an error of the request.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proto::v1;
use proto::v1::content::Body;

use super::{Era, object_uri};
use crate::heard::fault;
use crate::turns::json::{array, object, raw, string};

/// JSON-RPC's code of a failure of the server.
pub const INTERNAL: i64 = -32603;

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// The members of a result, as JSON without the braces.
    Result(String),
    /// The error of the request.
    Failed { code: i64, message: String },
    /// It was cancelled, and why.
    Cancelled(String),
}

/// The end of a call. `said`: its output, in order.
#[must_use]
pub fn ended(said: &[&v1::Content], outcome: &v1::CallOutcome, era: Era) -> Ended {
    let fault = match (outcome.state(), fault(outcome)) {
        (v1::CallState::Cancelled, Some(why)) => return Ended::Cancelled(why),
        (v1::CallState::Failed, Some(message)) if is_of_service(outcome) => {
            return Ended::Failed { code: INTERNAL, message };
        }
        (_, fault) => fault,
    };
    let all: Vec<&v1::Content> = said.iter().copied().chain(&outcome.result).collect();
    let mut content: Vec<String> = all.iter().enumerate().flat_map(|(index, part)| parts(index, part)).collect();
    content.extend(fault.iter().map(|fault| text(fault)));
    let structure = if fault.is_none() { structure(&all, era) } else { None };
    Ended::Result(members(&[
        ("content", Some(array(&content))),
        ("structuredContent", structure.map(str::to_owned)),
        ("isError", Some(fault.is_some().to_string())),
    ]))
}

/// A result with one text, for an end that no call has.
#[must_use]
pub fn refused(message: &str) -> String {
    members(&[("content", Some(array(&[text(message)]))), ("isError", Some("true".to_owned()))])
}

/// Whether not the tool failed, but this service or the tool's host.
fn is_of_service(outcome: &v1::CallOutcome) -> bool {
    let kind = outcome.error.as_ref().map(v1::CallError::kind);
    matches!(
        kind,
        Some(v1::CallErrorKind::ToolPanicked | v1::CallErrorKind::WorkerLost | v1::CallErrorKind::HookFailed)
    )
}

/// The only JSON of a result. Before 2026-07-28 it must be an object.
fn structure<'a>(all: &[&'a v1::Content], era: Era) -> Option<&'a str> {
    let mut found = all.iter().filter_map(|part| match &part.body {
        Some(Body::Json(json)) => raw(json),
        _ => None,
    });
    let only = found.next().filter(|_| found.next().is_none())?;
    (era == Era::Modern || only.starts_with('{')).then_some(only)
}

fn text(text: &str) -> String {
    object(&[("type", Some(string("text"))), ("text", Some(string(text)))])
}

/// The parts that show one content. `index`: its position, which names it if it has no other name.
fn parts(index: usize, content: &v1::Content) -> Vec<String> {
    match &content.body {
        None => Vec::new(),
        Some(Body::Text(said) | Body::Json(said)) => vec![text(said)],
        Some(Body::Data(v1::Data { media_type, data })) => vec![data_part(index, media_type, data)],
        Some(Body::Object(object)) => vec![text(&object.preview), link(object)],
    }
}

fn data_part(index: usize, media_type: &str, data: &[u8]) -> String {
    let kind = ["image", "audio"].into_iter().find(|kind| {
        let rest = media_type.strip_prefix(kind);
        rest.is_some_and(|rest| rest.starts_with('/'))
    });
    let encoded = || Some(string(&BASE64_STANDARD.encode(data)));
    if let Some(kind) = kind {
        return object(&[("type", Some(string(kind))), ("data", encoded()), ("mimeType", Some(string(media_type)))]);
    }
    if (media_type.starts_with("text/") || media_type == "application/json")
        && let Ok(said) = std::str::from_utf8(data)
    {
        return text(said);
    }
    let resource = object(&[
        ("uri", Some(string(&format!("toolyard:part/{index}")))),
        ("mimeType", Some(string(media_type))),
        ("blob", encoded()),
    ]);
    object(&[("type", Some(string("resource"))), ("resource", Some(resource))])
}

fn link(of: &v1::Object) -> String {
    object(&[
        ("type", Some(string("resource_link"))),
        ("uri", Some(string(&object_uri(&of.object_id)))),
        ("name", Some(string(&of.object_id))),
        ("mimeType", Some(string(&of.media_type))),
        ("size", Some(of.size_bytes.to_string())),
    ])
}

/// The members of an object without its braces.
fn members(all: &[(&str, Option<String>)]) -> String {
    let whole = object(all);
    whole.trim_start_matches('{').strip_suffix('}').unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(body: Body) -> v1::Content {
        v1::Content::from(body)
    }

    fn completed(result: Vec<v1::Content>) -> v1::CallOutcome {
        v1::CallOutcome { state: v1::CallState::Completed.into(), result, ..v1::CallOutcome::default() }
    }

    fn failed(kind: v1::CallErrorKind) -> v1::CallOutcome {
        let error = v1::CallError { kind: kind.into(), message: "it broke".to_owned(), ..v1::CallError::default() };
        v1::CallOutcome { state: v1::CallState::Failed.into(), error: Some(error), ..v1::CallOutcome::default() }
    }

    fn result(outcome: &v1::CallOutcome, era: Era) -> String {
        match ended(&[], outcome, era) {
            Ended::Result(members) => members,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn json_is_text_and_structure_and_keeps_its_digits() {
        let json = completed(vec![content(Body::Json(r#"{"n":1.10}"#.to_owned()))]);
        let expected =
            r#""content":[{"type":"text","text":"{\"n\":1.10}"}],"structuredContent":{"n":1.10},"isError":false"#;
        assert_eq!(result(&json, Era::Legacy), expected);
        let list = completed(vec![content(Body::Json("[1]".to_owned()))]);
        assert!(result(&list, Era::Modern).contains(r#""structuredContent":[1]"#));
        assert!(!result(&list, Era::Legacy).contains("structuredContent"), "it must be an object there");
    }

    #[test]
    fn output_comes_before_the_result() {
        let said = content(Body::Text("so far".to_owned()));
        let outcome = completed(vec![content(Body::Text("done".to_owned()))]);
        let Ended::Result(members) = ended(&[&said], &outcome, Era::Modern) else { panic!("it completed") };
        let expected = r#""content":[{"type":"text","text":"so far"},{"type":"text","text":"done"}],"isError":false"#;
        assert_eq!(members, expected);
    }

    #[test]
    fn media_are_shown_and_large_content_is_a_link() {
        let data =
            |media_type: &str| content(Body::Data(v1::Data { media_type: media_type.to_owned(), data: "x".into() }));
        let object = v1::Object {
            object_id: "o.1".to_owned(),
            media_type: "text/plain".to_owned(),
            size_bytes: 9,
            preview: "begins".to_owned(),
            ..v1::Object::default()
        };
        let all = vec![data("image/png"), data("audio/wav"), data("application/zip"), content(Body::Object(object))];
        let members = result(&completed(all), Era::Modern);
        for expected in [
            r#"{"type":"image","data":"eA==","mimeType":"image/png"}"#,
            r#"{"type":"audio","data":"eA==","mimeType":"audio/wav"}"#,
            r#"{"type":"resource","resource":{"uri":"toolyard:part/2","mimeType":"application/zip","blob":"eA=="}}"#,
            r#"{"type":"resource_link","uri":"toolyard://objects/o.1","name":"o.1","mimeType":"text/plain","size":9}"#,
        ] {
            assert!(members.contains(expected), "{members}");
        }
    }

    #[test]
    fn a_failure_of_the_tool_is_a_result_and_one_of_the_service_is_an_error() {
        let expected = r#""content":[{"type":"text","text":"it broke"}],"isError":true"#;
        assert_eq!(result(&failed(v1::CallErrorKind::ToolFailed), Era::Modern), expected);
        assert_eq!(result(&failed(v1::CallErrorKind::ArgumentsInvalid), Era::Legacy), expected);
        let panicked = ended(&[], &failed(v1::CallErrorKind::ToolPanicked), Era::Modern);
        assert_eq!(panicked, Ended::Failed { code: INTERNAL, message: "it broke".to_owned() });
    }
}
