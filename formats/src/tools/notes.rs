//! What a client should know of a tool and its definition does not say: vendors refuse definitions with other members.

use proto::v1;
use serde_json::{Value, json};

use super::Exported;

/// The notes on tools by their exported names. `tools` are those that were exported, in their order.
#[must_use]
pub fn notes(tools: &[v1::Tool], exported: &[Exported]) -> Value {
    let noted = tools.iter().zip(exported).map(|(tool, exported)| (exported.name.clone(), of(tool)));
    noted.collect::<serde_json::Map<_, _>>().into()
}

fn of(tool: &v1::Tool) -> Value {
    let effects = tool.effects.unwrap_or_default();
    json!({
        "needs_approval": tool.needs_approval,
        "answered_by_client": tool.definition_only,
        "return_direct": tool.return_direct,
        "read_only": effects.read_only,
        "idempotent": effects.idempotent,
        "destructive": effects.destructive,
        "open_world": effects.open_world,
    })
}

/// The same in `_meta` of a definition for MCP, which may have other members: only what is not in its annotations, and
/// only if it is so.
pub(crate) fn meta(tool: &v1::Tool) -> Option<Value> {
    let flags = [
        ("toolyard.dev/needs-approval", tool.needs_approval),
        ("toolyard.dev/answered-by-client", tool.definition_only),
        ("toolyard.dev/return-direct", tool.return_direct),
    ];
    let set: serde_json::Map<_, _> =
        flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| (name.to_owned(), Value::Bool(true))).collect();
    (!set.is_empty()).then(|| set.into())
}
