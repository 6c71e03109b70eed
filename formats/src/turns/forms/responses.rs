//! OpenAI Responses: the items of a response's output, each kind of call answered by an item of its own kind.

use std::collections::HashSet;

use crate::turns::answer::{Answer, IMAGES, PDF, Shown};
use crate::turns::error::{Error, Problem};
use crate::turns::forms::chat::free_text;
use crate::turns::json::{self, Node, Object};
use crate::turns::turn::{Arguments, Call, Carrier, Draft, Reason};

/// The kinds of calls that Toolyard's tools can answer.
#[derive(Debug)]
pub(crate) enum Kind {
    Function,
    Custom,
    /// The limit of the output's length in a `shell_call` is sent back with the output.
    Shell {
        max_output_length: Option<String>,
    },
    LocalShell,
    ApplyPatch,
}

/// Types of items that the vendor executes itself, and of items that record such an execution.
const BY_VENDOR: [&str; 12] = [
    "code_interpreter_call",
    "file_search_call",
    "image_generation_call",
    "mcp_call",
    "mcp_list_tools",
    "program",
    "program_output",
    "tool_search_call",
    "tool_search_output",
    "web_search_call",
    "compaction",
    "item_reference",
];

/// Whether only this vendor has items of this type.
pub(crate) fn is_told_by(kind: &str) -> bool {
    let ours =
        ["function_call", "custom_tool_call", "reasoning", "output_text", "mcp_approval_request", "computer_call"];
    let shells = ["shell_call", "local_shell_call", "apply_patch_call"];
    ours.contains(&kind) || shells.contains(&kind) || BY_VENDOR.contains(&kind) || kind.ends_with("_call_output")
}

/// A response with `output`, the list of its items, or one item.
pub(crate) fn read(turn: &Node<'_>, draft: &mut Draft) -> Result<(), Error> {
    if turn.is_array() {
        return read_items(&turn.array()?, draft);
    }
    match turn.object()?.get("output") {
        // An output item has a member `output` too.
        Some(output) if turn.object()?.get("type").is_none() => read_items(&output.array()?, draft),
        Some(_) | None => read_items(std::slice::from_ref(turn), draft),
    }
}

fn read_items(items: &[Node<'_>], draft: &mut Draft) -> Result<(), Error> {
    let mut read = Vec::with_capacity(items.len());
    let mut answered = HashSet::new();
    for node in items {
        let item = node.object()?;
        // The type of a message is optional.
        let kind = match item.string("type")? {
            Some(kind) => kind,
            None if item.get("role").is_some() => "message".to_owned(),
            None => return Err(Error::new(&item.pointer, Problem::Missing("type"))),
        };
        if kind.ends_with("_call_output")
            && let Some(id) = item.string("call_id")?
        {
            answered.insert(id);
        }
        read.push((node, item, kind));
    }
    for (node, item, kind) in read {
        let call_id = item.string("call_id")?;
        match kind.as_str() {
            "message" | "reasoning" => {}
            output if output.ends_with("_call_output") => {}
            _ if call_id.as_ref().is_some_and(|id| answered.contains(id)) => {
                draft.pass_over(&node.pointer, &kind, Reason::Answered);
            }
            "mcp_approval_request" => draft.pass_over(&node.pointer, &kind, Reason::NeedsApproval),
            by_vendor if BY_VENDOR.contains(&by_vendor) || (by_vendor == "shell_call" && is_hosted(&item)?) => {
                draft.pass_over(&node.pointer, &kind, Reason::ExecutedByVendor);
            }
            _ => match asked(&item, &kind)? {
                Some((kind, name, arguments)) => read_call(node, &item, kind, name, arguments, draft)?,
                None => draft.pass_over(&node.pointer, &kind, Reason::Unsupported),
            },
        }
    }
    Ok(())
}

/// Whether the shell call runs in a container of the vendor.
fn is_hosted(item: &Object<'_>) -> Result<bool, Error> {
    let Some(environment) = item.get("environment") else { return Ok(false) };
    Ok(environment.object()?.need("type")?.string()? != "local")
}

/// The kind of a call, the tool's name and the arguments. `None` if the item is not a known call.
fn asked(item: &Object<'_>, kind: &str) -> Result<Option<(Kind, String, Arguments)>, Error> {
    let object = |name| Arguments::of_object(Some(&item.need(name)?));
    Ok(Some(match kind {
        "function_call" => {
            let arguments = item.need("arguments")?;
            let arguments = Arguments::of_text(arguments.string()?, &arguments.pointer);
            (Kind::Function, item.need("name")?.string()?, arguments)
        }
        "custom_tool_call" => (Kind::Custom, item.need("name")?.string()?, free_text(&item.need("input")?)?),
        "shell_call" => {
            let length = item.need("action")?.object()?.get("max_output_length");
            let max_output_length = length.map(|length| length.text.to_owned());
            (Kind::Shell { max_output_length }, "shell".to_owned(), object("action")?)
        }
        "local_shell_call" => (Kind::LocalShell, "local_shell".to_owned(), object("action")?),
        "apply_patch_call" => (Kind::ApplyPatch, "apply_patch".to_owned(), object("operation")?),
        _ => return Ok(None),
    }))
}

fn read_call(
    node: &Node<'_>,
    item: &Object<'_>,
    kind: Kind,
    name: String,
    mut arguments: Arguments,
    draft: &mut Draft,
) -> Result<(), Error> {
    // Shell items are `in_progress` until their outputs exist.
    let is_waiting = matches!(kind, Kind::Shell { .. } | Kind::LocalShell | Kind::ApplyPatch);
    if let Some(status) = item.string("status")?
        && status != "completed"
        && !(is_waiting && status == "in_progress")
    {
        arguments = arguments.unfinished(&node.pointer, &status);
    }
    let call_id = item.need("call_id")?.string()?;
    let call = Call {
        id: String::new(),
        name,
        namespace: item.string("namespace")?,
        arguments,
        pointer: node.pointer.clone(),
        carrier: Carrier::Item {
            kind,
            call_id: call_id.clone(),
            caller: item.get("caller").map(|caller| caller.text.to_owned()),
        },
    };
    draft.push(Some(&call_id), Some(&call_id), call)
}

/// The item that answers a call. `caller` is the JSON of the call's originator if that was not the model itself; it is
/// returned unchanged.
pub(crate) fn output_item(kind: &Kind, call_id: &str, caller: Option<&str>, answer: &Answer<'_>) -> String {
    let id = json::string(call_id);
    let caller = caller.map(str::to_owned);
    let text = || json::string(&answer.text_with_error());
    match kind {
        Kind::Function => {
            item("function_call_output", &[("call_id", Some(id)), ("output", Some(output(answer))), ("caller", caller)])
        }
        Kind::Custom => item(
            "custom_tool_call_output",
            &[("call_id", Some(id)), ("output", Some(output(answer))), ("caller", caller)],
        ),
        Kind::Shell { max_output_length } => item(
            "shell_call_output",
            &[
                ("call_id", Some(id)),
                ("max_output_length", max_output_length.clone()),
                ("output", Some(json::array(&[shell_output(answer)]))),
                ("caller", caller),
            ],
        ),
        // The reference names it `id`; other documents and agents use `call_id`.
        Kind::LocalShell => item(
            "local_shell_call_output",
            &[("id", Some(id.clone())), ("call_id", Some(id)), ("output", Some(text()))],
        ),
        Kind::ApplyPatch => {
            let status = if answer.is_error { "failed" } else { "completed" };
            item(
                "apply_patch_call_output",
                &[
                    ("call_id", Some(id)),
                    ("status", Some(json::string(status))),
                    ("output", Some(json::string(&answer.text()))),
                    ("caller", caller),
                ],
            )
        }
    }
}

fn item(kind: &str, members: &[(&str, Option<String>)]) -> String {
    let mut all = vec![("type", Some(json::string(kind)))];
    all.extend_from_slice(members);
    json::object(&all)
}

/// A text, or a list of texts, images and files if there is more than text.
fn output(answer: &Answer<'_>) -> String {
    let shown =
        answer.shown(|media_type| IMAGES.contains(&media_type) || media_type == "image/gif" || media_type == PDF);
    if shown.iter().all(|part| matches!(part, Shown::Text(_))) {
        return json::string(&answer.text_with_error());
    }
    let mut content = Vec::with_capacity(shown.len() + 1);
    if answer.is_error {
        content.push(input_text("Error:"));
    }
    content.extend(shown.into_iter().map(|part| match part {
        Shown::Text(text) => input_text(&text),
        Shown::Data { media_type, base64 } => input_data(media_type, &base64),
    }));
    json::array(&content)
}

fn input_text(text: &str) -> String {
    item("input_text", &[("text", Some(json::string(text)))])
}

fn input_data(media_type: &str, base64: &str) -> String {
    let url = json::string(&format!("data:{media_type};base64,{base64}"));
    if media_type == PDF {
        let name = json::string("result.pdf");
        return item("input_file", &[("filename", Some(name)), ("file_data", Some(url))]);
    }
    item("input_image", &[("image_url", Some(url)), ("detail", Some(json::string("auto")))])
}

/// The whole answer as one output. The exit code is 0 for a success and 1 for an error, unless the last part is an
/// object with an `exit_code`, as for the tool `bash`. That part then determines how the shell ended and is not shown.
fn shell_output(answer: &Answer<'_>) -> String {
    let ended = answer.exit_code();
    let said = if ended.is_some() { answer.without_last() } else { answer.clone() };
    let exit_code = ended.unwrap_or_else(|| i64::from(answer.is_error));
    let (stdout, stderr) = if answer.is_error { (String::new(), said.text()) } else { (said.text(), String::new()) };
    let outcome = json::object(&[("type", Some(json::string("exit"))), ("exit_code", Some(exit_code.to_string()))]);
    json::object(&[
        ("stdout", Some(json::string(&stdout))),
        ("stderr", Some(json::string(&stderr))),
        ("outcome", Some(outcome)),
    ])
}
