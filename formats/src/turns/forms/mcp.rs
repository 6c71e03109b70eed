//! MCP: `tools/call` requests of JSON-RPC, one or a batch, each answered by a response with its result.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;

use crate::turns::answer::{Answer, Part, Shown};
use crate::turns::error::{Error, Problem};
use crate::turns::json::{self, Node};
use crate::turns::turn::{Arguments, Call, Carrier, Draft, Reason};

/// The protocol's revision in a request. Revisions with sessions do not send it.
const REVISION: &str = "io.modelcontextprotocol/protocolVersion";

/// A request, or a batch of them.
pub(crate) fn read(turn: &Node<'_>, draft: &mut Draft) -> Result<(), Error> {
    if !turn.is_array() {
        return read_message(turn, draft);
    }
    turn.array()?.iter().try_for_each(|message| read_message(message, draft))
}

fn read_message(node: &Node<'_>, draft: &mut Draft) -> Result<(), Error> {
    let message = node.object()?;
    let version = message.need("jsonrpc")?;
    if version.text != r#""2.0""# {
        return Err(Error::new(version.pointer, Problem::Expected { expected: "\"2.0\"", found: "another".into() }));
    }
    let Some(method) = message.string("method")? else {
        draft.pass_over(&node.pointer, "response", Reason::Unsupported);
        return Ok(());
    };
    if method != "tools/call" {
        draft.pass_over(&node.pointer, &method, Reason::Unsupported);
        return Ok(());
    }
    let id = message.need("id")?;
    // A number and the string of its digits are different ids.
    let (key, shown) = match id.text.as_bytes().first() {
        Some(b'"') => (json::string(&id.string()?), id.string()?),
        Some(b'-' | b'0'..=b'9') => (id.text.to_owned(), id.text.to_owned()),
        _ => return Err(id.unexpected("a string or a number")),
    };
    let params = message.need("params")?.object()?;
    let meta = params.get("_meta").filter(Node::is_object).map(|meta| meta.object()).transpose()?;
    let call = Call {
        id: String::new(),
        name: params.need("name")?.string()?,
        namespace: None,
        arguments: Arguments::of_object(params.get("arguments").as_ref())?,
        pointer: node.pointer.clone(),
        carrier: Carrier::Request {
            id: id.text.to_owned(),
            is_modern: meta.is_some_and(|meta| meta.get(REVISION).is_some()),
        },
    };
    draft.push(Some(&shown), Some(&key), call)
}

pub(crate) fn response(id: &str, answer: &Answer<'_>) -> String {
    // In revisions with sessions, structured content is an object.
    let structure = answer.structure().filter(|structure| structure.starts_with('{'));
    enveloped(id, None, structure, answer)
}

pub(crate) fn modern_response(id: &str, answer: &Answer<'_>) -> String {
    enveloped(id, Some("complete"), answer.structure(), answer)
}

fn enveloped(id: &str, result_type: Option<&str>, structure: Option<&str>, answer: &Answer<'_>) -> String {
    let content: Vec<String> = answer.parts.iter().enumerate().map(|(index, part)| content(index, part)).collect();
    let result = json::object(&[
        ("resultType", result_type.map(json::string)),
        ("content", Some(json::array(&content))),
        ("structuredContent", structure.map(str::to_owned)),
        ("isError", Some(answer.is_error.to_string())),
    ]);
    json::object(&[("jsonrpc", Some(json::string("2.0"))), ("id", Some(id.to_owned())), ("result", Some(result))])
}

fn content(index: usize, part: &Part<'_>) -> String {
    let only = Answer { parts: vec![*part], is_error: false };
    let is_medium = |media_type: &str| media_type.starts_with("image/") || media_type.starts_with("audio/");
    match (&only.shown(is_medium)[..], part) {
        ([Shown::Data { media_type, base64 }], _) => {
            let kind = if media_type.starts_with("image/") { "image" } else { "audio" };
            json::object(&[
                ("type", Some(json::string(kind))),
                ("data", Some(json::string(base64))),
                ("mimeType", Some(json::string(media_type))),
            ])
        }
        (_, Part::Data { media_type, data })
            if std::str::from_utf8(data).is_err() || !media_type.starts_with("text/") =>
        {
            let resource = json::object(&[
                ("uri", Some(json::string(&format!("toolyard:part/{index}")))),
                ("mimeType", Some(json::string(media_type))),
                ("blob", Some(json::string(&BASE64_STANDARD.encode(data)))),
            ]);
            json::object(&[("type", Some(json::string("resource"))), ("resource", Some(resource))])
        }
        (_, _) => json::object(&[("type", Some(json::string("text"))), ("text", Some(json::string(&only.text())))]),
    }
}
