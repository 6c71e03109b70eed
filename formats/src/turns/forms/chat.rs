//! OpenAI Chat Completions: `tool_calls` of an assistant message, and the `function_call` from before them.

use crate::turns::answer::Answer;
use crate::turns::error::{Error, Problem};
use crate::turns::json::{self, Node, Object};
use crate::turns::turn::{Arguments, Call, Carrier, Draft, Reason};

/// A response with `choices`, one of the choices, a message, or the list of its calls.
pub(crate) fn read(turn: &Node<'_>, draft: &mut Draft) -> Result<(), Error> {
    if turn.is_array() {
        return read_calls(turn, draft);
    }
    let whole = turn.object()?;
    let Some(choices) = whole.get("choices") else {
        return match whole.get("message") {
            Some(message) => read_message(&message.object()?, draft),
            None => read_message(&whole, draft),
        };
    };
    match &choices.array()?[..] {
        [] => Ok(()),
        [choice] => read_message(&choice.object()?.need("message")?.object()?, draft),
        several => Err(Error::new(choices.pointer.clone(), Problem::Alternatives { count: several.len() })),
    }
}

fn read_message(message: &Object<'_>, draft: &mut Draft) -> Result<(), Error> {
    if let Some(calls) = message.get("tool_calls") {
        read_calls(&calls, draft)?;
    }
    let Some(function) = message.get("function_call") else {
        let is_message = ["tool_calls", "role", "content"].iter().any(|name| message.has(name));
        return if is_message { Ok(()) } else { Err(Error::new(&message.pointer, Problem::Missing("tool_calls"))) };
    };
    let call = function_call(&function, function.pointer.clone(), Carrier::ChatFunction)?;
    draft.push(None, None, call)
}

fn read_calls(calls: &Node<'_>, draft: &mut Draft) -> Result<(), Error> {
    for node in calls.array()? {
        let object = node.object()?;
        let id = object.need("id")?.string()?;
        let carrier = Carrier::ChatTool { id: id.clone() };
        let kind = object.string("type")?;
        // Some servers omit the type. Then the member that is present determines it.
        let call = match (kind.as_deref(), object.get("function"), object.get("custom")) {
            (Some("tool_call"), None, _) if object.get("name").is_some() => {
                langchain_call(&object, node.pointer, carrier)?
            }
            (Some("function") | None, Some(function), _) => function_call(&function, node.pointer, carrier)?,
            (Some("custom") | None, _, Some(custom)) => custom_call(&custom, node.pointer, carrier)?,
            (Some("function") | None, None, _) => return Err(Error::new(node.pointer, Problem::Missing("function"))),
            (Some("custom"), _, None) => return Err(Error::new(node.pointer, Problem::Missing("custom"))),
            (Some(other), _, _) => {
                draft.pass_over(&node.pointer, other, Reason::Unsupported);
                continue;
            }
        };
        let key = Some(id.as_str()).filter(|id| !id.is_empty());
        draft.push(key, key, call)?;
    }
    Ok(())
}

fn function_call(node: &Node<'_>, pointer: String, carrier: Carrier) -> Result<Call, Error> {
    let function = node.object()?;
    let name = function.need("name")?.string()?;
    let arguments = match function.get("arguments") {
        // Some servers of this form send the object itself.
        Some(arguments) if !arguments.is_string() => Arguments::of_object(Some(&arguments))?,
        Some(arguments) => Arguments::of_text(arguments.string()?, &arguments.pointer),
        None => Arguments::none(),
    };
    Ok(Call { id: String::new(), name, namespace: None, arguments, pointer, carrier })
}

/// LangChain's own form of a call, the same for all vendors.
fn langchain_call(call: &Object<'_>, pointer: String, carrier: Carrier) -> Result<Call, Error> {
    let arguments = Arguments::of_object(call.get("args").as_ref())?;
    Ok(Call { id: String::new(), name: call.need("name")?.string()?, namespace: None, arguments, pointer, carrier })
}

fn custom_call(node: &Node<'_>, pointer: String, carrier: Carrier) -> Result<Call, Error> {
    let custom = node.object()?;
    let name = custom.need("name")?.string()?;
    let arguments = free_text(&custom.need("input")?)?;
    Ok(Call { id: String::new(), name, namespace: None, arguments, pointer, carrier })
}

/// The arguments of a tool that takes text instead of JSON: an object with the text in its only member, `input`.
pub(crate) fn free_text(input: &Node<'_>) -> Result<Arguments, Error> {
    let input = json::string(&input.string()?);
    Ok(Arguments::Json(json::object(&[("input", Some(input))])))
}

pub(crate) fn tool_message(id: &str, answer: &Answer<'_>) -> String {
    let content = json::string(&answer.text_with_error());
    json::object(&[
        ("role", Some(json::string("tool"))),
        ("tool_call_id", Some(json::string(id))),
        ("content", Some(content)),
    ])
}

pub(crate) fn function_message(name: &str, answer: &Answer<'_>) -> String {
    let content = json::string(&answer.text_with_error());
    json::object(&[
        ("role", Some(json::string("function"))),
        ("name", Some(json::string(name))),
        ("content", Some(content)),
    ])
}
