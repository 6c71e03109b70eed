//! Answers of language servers in one form.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use super::place::Places;

/// Bytes of a hover text, and of a diagnostic.
const TEXT_MAX: usize = 16 * 1024;
/// Symbols within symbols.
const DEPTH_MAX: usize = 32;

/// The kinds of symbols, by their numbers from 1.
const KINDS: [&str; 26] = [
    "file",
    "module",
    "namespace",
    "package",
    "class",
    "method",
    "property",
    "field",
    "constructor",
    "enum",
    "interface",
    "function",
    "variable",
    "constant",
    "string",
    "number",
    "boolean",
    "array",
    "object",
    "key",
    "null",
    "enum_member",
    "struct",
    "event",
    "operator",
    "type_parameter",
];

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

pub(super) fn locations<R: Fn(&Path) -> Option<Arc<str>>>(
    places: &mut Places<'_, R>,
    found: &Value,
    limit: usize,
) -> Value {
    let all = if found.is_object() { std::slice::from_ref(found) } else { list(found) };
    let shown: Vec<_> = all.iter().take(limit).filter_map(|location| places.place(location)).collect();
    json!({ "locations": shown, "cut": all.len() > limit })
}

/// The text of `MarkupContent`, of a string, or of a list of marked strings.
pub(super) fn hover(found: &Value) -> Value {
    fn text(contents: &Value) -> String {
        match contents {
            Value::String(text) => text.clone(),
            Value::Array(parts) => parts.iter().map(text).collect::<Vec<_>>().join("\n\n"),
            contents => contents["value"].as_str().unwrap_or_default().to_owned(),
        }
    }
    json!({ "hover": text(&found["contents"]).chars().take(TEXT_MAX / 4).collect::<String>() })
}

/// `DocumentSymbol`s with their children, or `SymbolInformation`s, as one flat list.
pub(super) fn symbols<R: Fn(&Path) -> Option<Arc<str>>>(
    places: &mut Places<'_, R>,
    file: &str,
    found: &Value,
    limit: usize,
) -> Value {
    let mut shown = Vec::new();
    let mut waiting: Vec<(&Value, Option<&str>, usize)> =
        list(found).iter().rev().map(|symbol| (symbol, None, 0)).collect();
    let mut is_cut = false;
    while let Some((symbol, container, depth)) = waiting.pop() {
        is_cut = shown.len() == limit;
        if is_cut {
            break;
        }
        let name = symbol["name"].as_str().unwrap_or_default();
        let kind = symbol["kind"].as_u64().and_then(|number| KINDS.get(usize::try_from(number).ok()?.checked_sub(1)?));
        let range = [&symbol["selectionRange"], &symbol["range"]].into_iter().find(|range| range.is_object());
        let place = match range {
            Some(range) => places.range(file, range),
            None => places.place(&symbol["location"]),
        };
        let container = container.or_else(|| symbol["containerName"].as_str()).filter(|name| !name.is_empty());
        if let Some(place) = place {
            let mut one = json!({ "name": name, "kind": kind, "place": place });
            if let Some(container) = container {
                one["container"] = json!(container);
            }
            shown.push(one);
        }
        if depth < DEPTH_MAX {
            let children = list(&symbol["children"]).iter().rev();
            waiting.extend(children.map(|child| (child, Some(name), depth + 1)));
        }
    }
    json!({ "symbols": shown, "cut": is_cut })
}

/// Diagnostics, or the note that none came.
pub(super) fn diagnostics<R: Fn(&Path) -> Option<Arc<str>>>(
    places: &mut Places<'_, R>,
    file: &str,
    found: Option<&Value>,
    limit: usize,
) -> Value {
    let Some(found) = found else {
        return json!({ "diagnostics": [], "cut": false, "note": "the server has reported nothing yet: ask again" });
    };
    let severity = |number: Option<u64>| match number {
        Some(2) => "warning",
        Some(3) => "info",
        Some(4) => "hint",
        _ => "error",
    };
    let all = list(found);
    let mut shown = Vec::new();
    for one in all.iter().take(limit) {
        let Some(place) = places.range(file, &one["range"]) else { continue };
        let code =
            one["code"].as_str().map(str::to_owned).or_else(|| one["code"].as_i64().map(|code| code.to_string()));
        let message: String = one["message"].as_str().unwrap_or_default().chars().take(TEXT_MAX / 16).collect();
        let severity = severity(one["severity"].as_u64());
        shown.push(json!({
            "place": place, "severity": severity, "message": message, "source": one["source"], "rule": code,
        }));
    }
    json!({ "diagnostics": shown, "cut": all.len() > limit })
}
