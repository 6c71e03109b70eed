//! What a tool's manifest says, in words: its arguments, permission, effects and attempts.

use proto::v1;
use serde_json::Value;

use crate::words::{duration, harmless};

/// A property of an object, according to its schema.
pub(crate) struct Property {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) is_required: bool,
    pub(crate) text: String,
}

pub(crate) fn properties(schema: &str) -> Vec<Property> {
    let schema: Value = serde_json::from_str(schema).unwrap_or(Value::Null);
    let properties = schema["properties"].as_object().into_iter().flatten();
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let told = properties.map(|(name, property)| {
        let mut kinds = Vec::new();
        add_kinds(&schema, property, REFERENCES_MAX, &mut kinds);
        let kind = harmless(&[vec![kinds.join(" or ")], bounds(property)].concat().join(", "));
        let text = harmless(property["description"].as_str().unwrap_or_default()).replace('\n', " ");
        Property { name: harmless(name), kind, is_required: required.contains(&name.as_str()), text }
    });
    told.collect()
}

/// References that are followed one after another. A schema may refer to itself.
const REFERENCES_MAX: usize = 8;

/// The allowed values: types, or the values themselves if the schema lists them.
fn add_kinds(schema: &Value, of: &Value, references: usize, kinds: &mut Vec<String>) {
    let mut add = |kind: String| {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    };
    let target = of["$ref"].as_str().and_then(|place| schema.pointer(place.strip_prefix('#')?));
    let branches = ["anyOf", "oneOf"].iter().filter_map(|keyword| of[keyword].as_array()).flatten();
    match (&of["enum"], of.get("const"), &of["type"]) {
        (Value::Array(values), _, _) => values.iter().for_each(|value| add(value.to_string())),
        (_, Some(value), _) => add(value.to_string()),
        (_, _, Value::String(kind)) => add(kind.clone()),
        (_, _, Value::Array(types)) => types.iter().filter_map(Value::as_str).for_each(|kind| add(kind.to_owned())),
        _ if references == 0 => {}
        _ => target.into_iter().chain(branches).for_each(|of| add_kinds(schema, of, references - 1, kinds)),
    }
}

/// The limits of a value, and its default.
fn bounds(property: &Value) -> Vec<String> {
    let told = |name: &str| property.get(name).filter(|value| !value.is_null()).map(ToString::to_string);
    let range = match (told("minimum"), told("maximum")) {
        (Some(min), Some(max)) => Some(format!("{min} to {max}")),
        (Some(min), None) => Some(format!("at least {min}")),
        (None, Some(max)) => Some(format!("at most {max}")),
        (None, None) => None,
    };
    let default = told("default").map(|value| format!("{value} unless given"));
    range.into_iter().chain(default).collect()
}

pub(crate) fn permission(permission: v1::ToolPermission) -> &'static str {
    match permission {
        v1::ToolPermission::Read => "read",
        v1::ToolPermission::Write => "write",
        v1::ToolPermission::External => "reach beyond this system",
        v1::ToolPermission::Unspecified => "do what is not told",
    }
}

pub(crate) fn effects(effects: v1::ToolEffects) -> String {
    let named = [
        (effects.read_only, "changes nothing"),
        (effects.idempotent, "safe to repeat"),
        (effects.destructive, "may destroy something"),
        (effects.open_world, "reaches beyond this system"),
        (effects.uses_machine, "uses its worker's machine"),
    ];
    let named: Vec<&str> = named.into_iter().filter_map(|(is, name)| is.then_some(name)).collect();
    if named.is_empty() { "not told".to_owned() } else { named.join(", ") }
}

pub(crate) fn attempts(policy: &v1::ToolPolicy) -> String {
    let timeout = policy.attempt_timeout.and_then(proto::convert::time_in);
    let timeout = timeout.map_or_else(String::new, |timeout| format!(", {} each at most", duration(timeout)));
    let repeated = if policy.repeatable { "" } else { "; not repeated once begun" };
    format!("{}{timeout}{repeated}", policy.attempts_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_tells_its_values_its_bounds_and_its_default() {
        let schema = r##"{
            "properties": {
                "city": {"type": "string"},
                "limit": {"type": "integer", "minimum": 1, "maximum": 10000, "default": 500},
                "seconds": {"type": ["integer", "null"], "maximum": 600, "default": null},
                "unit": {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}]},
                "wind": {"oneOf": [{"const": "knots", "description": "at sea"}, {"const": "mph"}]},
                "self": {"$ref": "#/properties/self"}
            },
            "$defs": {"Unit": {"type": "string", "enum": ["Metric", "Imperial"]}}
        }"##;
        let kinds: Vec<String> = properties(schema).into_iter().map(|it| format!("{}: {}", it.name, it.kind)).collect();
        let expected = [
            "city: string",
            "limit: integer, 1 to 10000, 500 unless given",
            "seconds: integer or null, at most 600",
            "self: ",
            "unit: \"Metric\" or \"Imperial\" or null",
            "wind: \"knots\" or \"mph\"",
        ];
        let mut kinds = kinds;
        kinds.sort();
        assert_eq!(kinds, expected);
    }
}
