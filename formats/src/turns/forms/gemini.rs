//! Gemini: parts with `functionCall`, answered by parts with `functionResponse` of one user content. Reads the names of
//! REST (`functionCall`) and of the Python SDK (`function_call`). Writes the names of REST, which the SDK reads too.

use crate::turns::answer::{Answer, IMAGES, PDF, Shown};
use crate::turns::error::{Error, Problem};
use crate::turns::json::{self, Node, Object};
use crate::turns::turn::{Arguments, Call, Carrier, Draft, Reason};

/// A response with `candidates`, one candidate, its content, the list of its parts, or one part.
pub(crate) fn read(turn: &Node<'_>, draft: &mut Draft) -> Result<(), Error> {
    if turn.is_array() {
        return read_parts(&turn.array()?, draft);
    }
    let whole = turn.object()?;
    let Some(candidates) = whole.get("candidates") else { return read_candidate(turn, &whole, draft) };
    match &candidates.array()?[..] {
        [] => Ok(()),
        [candidate] => read_candidate(candidate, &candidate.object()?, draft),
        several => Err(Error::new(candidates.pointer.clone(), Problem::Alternatives { count: several.len() })),
    }
}

fn read_candidate(node: &Node<'_>, candidate: &Object<'_>, draft: &mut Draft) -> Result<(), Error> {
    if let Some(content) = candidate.get("content") {
        let content = content.object()?;
        return content.get("parts").map_or(Ok(()), |parts| read_parts(&parts.array()?, draft));
    }
    if let Some(parts) = candidate.get("parts") {
        return read_parts(&parts.array()?, draft);
    }
    let is_part = ["functionCall", "function_call", "text"].iter().any(|name| candidate.has(name));
    // The vendor's filters may return a candidate without content.
    let is_blocked = ["finishReason", "finish_reason"].iter().any(|name| candidate.has(name));
    match (is_part, is_blocked) {
        (true, _) => read_parts(std::slice::from_ref(node), draft),
        (false, true) => Ok(()),
        (false, false) => Err(Error::new(&candidate.pointer, Problem::Missing("parts"))),
    }
}

fn read_parts(parts: &[Node<'_>], draft: &mut Draft) -> Result<(), Error> {
    for node in parts {
        let part = node.object()?;
        let Some(call) = part.either(["functionCall", "function_call"]) else {
            let by_vendor = ["executableCode", "executable_code", "toolCall", "tool_call"];
            if let Some(kind) = by_vendor.into_iter().find(|kind| part.get(kind).is_some()) {
                draft.pass_over(&node.pointer, kind, Reason::ExecutedByVendor);
            }
            continue;
        };
        read_call(&call, draft)?;
    }
    Ok(())
}

fn read_call(node: &Node<'_>, draft: &mut Draft) -> Result<(), Error> {
    let call = node.object()?;
    let id = call.string("id")?.filter(|id| !id.is_empty());
    let mut arguments = Arguments::of_object(call.get("args").as_ref())?;
    let goes_on = call.either(["willContinue", "will_continue"]).is_some_and(|goes_on| goes_on.text == "true");
    if goes_on || call.either(["partialArgs", "partial_args"]).is_some() {
        arguments = arguments.unfinished(&node.pointer, "a part of a stream");
    }
    let key = id.clone();
    let call = Call {
        id: String::new(),
        name: call.need("name")?.string()?,
        namespace: None,
        arguments,
        pointer: node.pointer.clone(),
        carrier: Carrier::FunctionCall { id },
    };
    draft.push(key.as_deref(), key.as_deref(), call)
}

pub(crate) fn function_response(id: Option<&str>, name: &str, answer: &Answer<'_>) -> String {
    let is_taken = |media_type: &str| IMAGES.contains(&media_type) || media_type == PDF;
    let (mut texts, mut media) = (Vec::new(), Vec::new());
    for part in answer.shown(is_taken) {
        match part {
            Shown::Text(text) => texts.push(text),
            Shown::Data { media_type, base64 } => media.push(inline_data(media_type, &base64)),
        }
    }
    // Always under one of the two names that the vendor defines, because a tool's own object could have a member
    // `error`.
    let text = || json::string(&texts.join("\n"));
    let said = match answer.structure() {
        Some(structure) if !answer.is_error => structure.to_owned(),
        Some(_) | None => text(),
    };
    let response = json::object(&[(if answer.is_error { "error" } else { "output" }, Some(said))]);
    let response = json::object(&[
        ("id", id.map(json::string)),
        ("name", Some(json::string(name))),
        ("response", Some(response)),
        ("parts", (!media.is_empty()).then(|| json::array(&media))),
    ]);
    json::object(&[("functionResponse", Some(response))])
}

fn inline_data(media_type: &str, base64: &str) -> String {
    let data = json::object(&[("mimeType", Some(json::string(media_type))), ("data", Some(json::string(base64)))]);
    json::object(&[("inlineData", Some(data))])
}

pub(crate) fn message(parts: &[String]) -> Vec<String> {
    if parts.is_empty() {
        return Vec::new();
    }
    vec![json::object(&[("role", Some(json::string("user"))), ("parts", Some(json::array(parts)))])]
}
