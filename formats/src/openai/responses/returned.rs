//! What a model is given of a run's calls: for each call that has ended, the item that answers it. The caller appends
//! them to the history, after the items that requested the calls.

use proto::v1;
use run::{CallSpec, Route, Run};
use serde_json::Value;

use crate::heard::Heard;
use crate::openai::calls::ITEM;
use crate::turns::{ItemKind, output_item};

/// The items that answer the ended calls, in the order of the calls. Hidden tools are included, because the model
/// waits for their results too; questions of running calls are not, because no model asked them.
pub(super) fn input(run: &Run, heard: &Heard) -> Vec<Value> {
    let answered = run.requested_calls().filter_map(|call| {
        let (spec, id) = (call.spec(), call.spec().id.as_str());
        let item = output_item(&kind(spec), id, None, &heard.answer(id)?);
        serde_json::from_str(&item).ok()
    });
    answered.collect()
}

/// The calls whose results are the answer, with the names that metadata of such an answer has.
pub(super) fn directly(run: &Run) -> Value {
    let of = |call: &run::Call| serde_json::json!({ "toolId": call.spec().id.as_str(), "toolName": call.spec().tool.to_string() });
    run.requested_calls().map(of).collect()
}

/// The type of the item that requested the call.
fn kind(spec: &CallSpec) -> ItemKind {
    match spec.metadata.get(ITEM).map(String::as_str) {
        Some("custom_tool_call") => ItemKind::Custom,
        Some("shell_call") => ItemKind::Shell { max_output_length: None },
        Some("local_shell_call") => ItemKind::LocalShell,
        Some("apply_patch_call") => ItemKind::ApplyPatch,
        // Arguments that are no object belong to a tool of the request that takes text.
        None if matches!(spec.route, Route::Client) && !is_object(&spec.arguments) => ItemKind::Custom,
        Some(_) | None => ItemKind::Function,
    }
}

fn is_object(json: &[u8]) -> bool {
    serde_json::from_slice::<Value>(json).is_ok_and(|value| value.is_object())
}

/// The parts of a result that an item cannot carry, each with its media type and a URL: of its bytes, or of the object
/// that holds it. `null` if there are none.
pub(super) fn attachments(outcome: &v1::CallOutcome) -> Value {
    let urls = outcome.result.iter().filter_map(|content| crate::openai::url::of(content));
    let attached: Vec<Value> =
        urls.map(|(media_type, url)| serde_json::json!({ "media_type": media_type, "url": url })).collect();
    if attached.is_empty() { Value::Null } else { attached.into() }
}
