//! Items that are complete when they are emitted: requests to the client, and its answers.

use serde_json::{Value, json};

use super::part::Part;

/// Emits an item from its beginning to its end.
pub(super) fn tell(part: &mut Part, item: Value) {
    let text = match item["type"].as_str().unwrap_or_default() {
        "function_call" => "arguments",
        "custom_tool_call" => "input",
        "local_shell_call" | "shell_call" | "apply_patch_call" => "",
        _ => {
            part.add_done(item);
            return;
        }
    };
    let mut begun = item.clone();
    if !begun["status"].is_null() {
        begun["status"] = "in_progress".into();
    }
    if !text.is_empty() {
        begun[text] = "".into();
    }
    let place = part.add(begun);
    match item["type"].as_str().unwrap_or_default() {
        "function_call" => {
            let (name, arguments) = (&item["name"], &item["arguments"]);
            part.of_item("response.function_call_arguments.delta", place, json!({ "delta": arguments }));
            let data = json!({ "arguments": arguments, "name": name });
            part.of_item("response.function_call_arguments.done", place, data);
        }
        "custom_tool_call" => {
            part.of_item("response.custom_tool_call_input.delta", place, json!({ "delta": item["input"] }));
            part.of_item("response.custom_tool_call_input.done", place, json!({ "input": item["input"] }));
        }
        // `say_commands` completes the item.
        "shell_call" => return say_commands(part, place),
        _ => {}
    }
    part.done(place, item);
}

/// Emits the commands of a shell call. The call is complete then; the shell's output is an item of its own.
pub(super) fn say_commands(part: &mut Part, place: usize) {
    let mut item = part.item(place);
    let commands = item["action"]["commands"].as_array().cloned().unwrap_or_default();
    for (nth, command) in commands.into_iter().enumerate() {
        let of = |name: &str, text: Value| json!({ "output_index": place, "command_index": nth, name: text });
        part.emit("response.shell_call_command.added", of("command", "".into()));
        part.emit("response.shell_call_command.delta", of("delta", command.clone()));
        part.emit("response.shell_call_command.done", of("command", command));
    }
    item["status"] = "completed".into();
    part.done(place, item);
}
