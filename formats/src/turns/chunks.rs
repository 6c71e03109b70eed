//! A turn as a model streams it: the list of a stream's events, with the arguments of its calls in fragments. The
//! events are put together to the message that they stream.

use std::collections::BTreeMap;

use crate::turns::error::{Error, Problem};
use crate::turns::json::{self, Node, Object};

/// A call whose fragments are being put together.
#[derive(Debug, Default)]
struct Partial {
    id: String,
    kind: String,
    name: String,
    text: String,
}

impl Partial {
    /// A name or an id, which most servers send once and some with every fragment.
    fn once(kept: &mut String, given: Option<String>) {
        if let Some(given) = given.filter(|given| given != kept) {
            kept.push_str(&given);
        }
    }
}

/// The message that a list of a stream's events stands for; `None` if the value is no such list.
pub(crate) fn assembled(turn: &Node<'_>) -> Result<Option<String>, Error> {
    if !turn.is_array() {
        return Ok(None);
    }
    let elements = turn.array()?;
    let Some(first) = elements.first().filter(|first| first.is_object()) else { return Ok(None) };
    let (first, objects) = (first.object()?, || elements.iter().map(Node::object).collect::<Result<Vec<_>, _>>());
    if first.get("choices").is_some() {
        return chat(&objects()?, turn).map(Some);
    }
    if first.get("candidates").is_some() {
        return gemini(&objects()?).map(Some);
    }
    match first.get("type").filter(Node::is_string).map(|kind| kind.string()).transpose()?.as_deref() {
        Some("message_start") => anthropic(&objects()?, turn).map(Some),
        Some(kind) if kind.starts_with("response.") => responses(&objects()?, turn).map(Some),
        Some(_) | None => Ok(None),
    }
}

fn cut_off(turn: &Node<'_>, missing: &str) -> Error {
    Error::new(&turn.pointer, Problem::Incomplete(format!("the stream has no {missing}")))
}

fn number(node: Option<Node<'_>>) -> Result<u64, Error> {
    let Some(node) = node else { return Ok(0) };
    node.text.parse().map_err(|_| node.unexpected("a number"))
}

/// Chunks of Chat Completions: fragments by the index of their call.
fn chat(chunks: &[Object<'_>], turn: &Node<'_>) -> Result<String, Error> {
    let (mut calls, mut finish) = (BTreeMap::<u64, Partial>::new(), None);
    for chunk in chunks {
        for choice in chunk.get("choices").map(|choices| choices.array()).transpose()?.into_iter().flatten() {
            let choice = choice.object()?;
            if number(choice.get("index"))? != 0 {
                return Err(Error::new(&choice.pointer, Problem::Alternatives { count: 2 }));
            }
            finish = choice.string("finish_reason")?.or(finish);
            let Some(delta) = choice.get("delta") else { continue };
            for part in delta.object()?.get("tool_calls").map(|calls| calls.array()).transpose()?.into_iter().flatten()
            {
                let part = part.object()?;
                let call = calls.entry(number(part.get("index"))?).or_default();
                Partial::once(&mut call.id, part.string("id")?);
                Partial::once(&mut call.kind, part.string("type")?);
                for (member, text) in [("function", "arguments"), ("custom", "input")] {
                    let Some(named) = part.get(member).map(|named| named.object()).transpose()? else { continue };
                    Partial::once(&mut call.name, named.string("name")?);
                    call.text.push_str(&named.string(text)?.unwrap_or_default());
                }
            }
        }
    }
    let finish = finish.ok_or_else(|| cut_off(turn, "finish_reason"))?;
    if finish == "length" && !calls.is_empty() {
        return Err(Error::new(&turn.pointer, Problem::Incomplete(finish)));
    }
    let calls: Vec<String> = calls.into_values().map(chat_call).collect();
    Ok(json::object(&[("role", Some(json::string("assistant"))), ("tool_calls", Some(json::array(&calls)))]))
}

fn chat_call(call: Partial) -> String {
    let Partial { id, kind, name, text } = call;
    let (member, text_name) = if kind == "custom" { ("custom", "input") } else { ("function", "arguments") };
    let named = json::object(&[("name", Some(json::string(&name))), (text_name, Some(json::string(&text)))]);
    json::object(&[("id", Some(json::string(&id))), ("type", Some(json::string(member))), (member, Some(named))])
}

/// Events of Anthropic's Messages: each block begins, has deltas, and stops.
fn anthropic(events: &[Object<'_>], turn: &Node<'_>) -> Result<String, Error> {
    let (mut blocks, mut stop) = (BTreeMap::<u64, (String, Option<Partial>)>::new(), None);
    for event in events {
        match event.string("type")?.as_deref() {
            Some("content_block_start") => {
                let block = event.need("content_block")?;
                let object = block.object()?;
                let is_call = object.string("type")?.as_deref() == Some("tool_use");
                let (mut id, mut name) = (String::new(), String::new());
                if is_call {
                    (id, name) = (object.need("id")?.string()?, object.need("name")?.string()?);
                }
                let call = is_call.then(|| Partial { id, name, ..Partial::default() });
                blocks.insert(number(event.get("index"))?, (block.text.to_owned(), call));
            }
            Some("content_block_delta") => {
                let delta = event.need("delta")?.object()?;
                if let Some((_, Some(call))) = blocks.get_mut(&number(event.get("index"))?) {
                    call.text.push_str(&delta.string("partial_json")?.unwrap_or_default());
                }
            }
            Some("message_delta") => stop = event.need("delta")?.object()?.string("stop_reason")?.or(stop),
            _ => {}
        }
    }
    let stop = stop.ok_or_else(|| cut_off(turn, "stop_reason"))?;
    let blocks = blocks.into_values().map(|(block, call)| {
        let Some(call) = call else { return block };
        let input = match call.text.trim() {
            "" => "{}".to_owned(),
            text => json::raw(text).map_or_else(|| json::string(text), str::to_owned),
        };
        json::object(&[
            ("type", Some(json::string("tool_use"))),
            ("id", Some(json::string(&call.id))),
            ("name", Some(json::string(&call.name))),
            ("input", Some(input)),
        ])
    });
    Ok(json::object(&[
        ("role", Some(json::string("assistant"))),
        ("stop_reason", Some(json::string(&stop))),
        ("content", Some(json::array(&blocks.collect::<Vec<_>>()))),
    ]))
}

/// Events of Responses: the last one has the whole response, and each item is complete when it is done.
fn responses(events: &[Object<'_>], turn: &Node<'_>) -> Result<String, Error> {
    let mut items = Vec::new();
    for event in events {
        match event.string("type")?.as_deref() {
            Some("response.completed" | "response.incomplete" | "response.failed") => {
                return Ok(event.need("response")?.text.to_owned());
            }
            Some("response.output_item.done") => items.push(event.need("item")?.text.to_owned()),
            _ => {}
        }
    }
    if items.is_empty() { Err(cut_off(turn, "item that is done")) } else { Ok(json::array(&items)) }
}

/// Responses of Gemini, each with some parts; a call is whole.
fn gemini(responses: &[Object<'_>]) -> Result<String, Error> {
    let mut all = Vec::new();
    for response in responses {
        let candidates = response.get("candidates").map(|candidates| candidates.array()).transpose()?;
        for candidate in candidates.into_iter().flatten() {
            let content = candidate.object()?.get("content").map(|content| content.object()).transpose()?;
            let parts = content.and_then(|content| content.get("parts"));
            all.extend(
                parts.map(|parts| parts.array()).transpose()?.into_iter().flatten().map(|it| it.text.to_owned()),
            );
        }
    }
    Ok(json::object(&[("role", Some(json::string("model"))), ("parts", Some(json::array(&all)))]))
}
