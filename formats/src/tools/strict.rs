//! Strict definitions: the subset of JSON Schema that `OpenAI` enforces while a model writes arguments. Every object is
//! closed and has all of its properties; one that was optional may be null instead, which counts as missing when the
//! call is accepted. A constraint that the subset does not have is left out, because calls are checked against the
//! tool's own schema in any case. A schema with another meaning is not expressible.

use serde_json::{Map, Value, json};

use super::{Exported, Format};

/// The deepest nesting that the vendor allows.
const DEPTH_MAX: usize = 10;
/// Formats of strings that the vendor knows.
const FORMATS: [&str; 9] = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];
/// Keywords that are kept as they are.
const KEPT: [&str; 11] = [
    "description",
    "type",
    "enum",
    "const",
    "pattern",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "$ref",
];
/// Keywords whose values are schemas that apply to the value itself or describe its members in a way of their own.
const FOREIGN: [&str; 14] = [
    "allOf",
    "not",
    "if",
    "then",
    "else",
    "patternProperties",
    "propertyNames",
    "prefixItems",
    "contains",
    "dependentSchemas",
    "dependentRequired",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
];

/// Makes definitions strict. Returns the tools, by their exported names, whose schemas cannot be, and why; their
/// definitions stay as they are.
pub fn make_strict(exported: &mut [Exported], format: Format) -> Vec<(String, String)> {
    let mut others = Vec::new();
    for exported in exported {
        let function = match format {
            Format::OpenAiChat => &mut exported.definition["function"],
            _ => &mut exported.definition,
        };
        match strict(&function["parameters"]) {
            Ok(schema) => (function["parameters"], function["strict"]) = (schema, Value::Bool(true)),
            Err(why) => others.push((exported.name.clone(), why)),
        }
    }
    others
}

/// The schema of arguments in the subset.
fn strict(schema: &Value) -> Result<Value, String> {
    let mut root = schema.clone();
    // A tool without parameters takes no arguments.
    if root["type"] == "object" && root.get("properties").is_none() && root.get("additionalProperties").is_none() {
        root["properties"] = json!({});
    }
    if root["type"] != "object" || root.get("anyOf").is_some() || root.get("oneOf").is_some() {
        return Err("#: its arguments are a choice of several objects".to_owned());
    }
    node(&root, "#", 0)
}

fn node(schema: &Value, at: &str, depth: usize) -> Result<Value, String> {
    let Some(schema) = schema.as_object() else { return Err(format!("{at}: any value is allowed")) };
    if depth > DEPTH_MAX {
        return Err(format!("{at}: nested deeper than {DEPTH_MAX}"));
    }
    if let Some(foreign) = FOREIGN.into_iter().find(|keyword| schema.contains_key(*keyword)) {
        return Err(format!("{at}: `{foreign}` cannot be expressed"));
    }
    let is_typed = ["type", "enum", "const", "$ref", "anyOf", "oneOf"].iter().any(|name| schema.contains_key(*name));
    if !is_typed {
        return Err(format!("{at}: any value is allowed"));
    }
    let mut made = Map::new();
    for (keyword, value) in schema {
        match keyword.as_str() {
            kept if KEPT.contains(&kept) => made.insert(keyword.clone(), value.clone()),
            "minItems" | "maxItems" => made.insert(keyword.clone(), value.clone()),
            "format" if value.as_str().is_some_and(|format| FORMATS.contains(&format)) => {
                made.insert(keyword.clone(), value.clone())
            }
            // Each value of one of the alternatives is a value of any of them.
            "anyOf" | "oneOf" => {
                let choices = value.as_array().into_iter().flatten().enumerate();
                let choices = choices.map(|(nth, choice)| node(choice, &format!("{at}/{keyword}/{nth}"), depth));
                made.insert("anyOf".to_owned(), choices.collect::<Result<Vec<_>, _>>()?.into())
            }
            "$defs" | "definitions" => made.insert(keyword.clone(), each(value, &format!("{at}/{keyword}"), depth)?),
            "items" => made.insert(keyword.clone(), node(value, &format!("{at}/items"), depth + 1)?),
            _ => None,
        };
    }
    let has = |kind: &str| match schema.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().any(|it| it == kind),
        named => named.is_some_and(|named| named == kind),
    };
    if has("array") && !schema.contains_key("items") {
        return Err(format!("{at}: its elements may be any values"));
    }
    if has("object") {
        close(schema, &mut made, at, depth)?;
    }
    Ok(made.into())
}

fn each(schemas: &Value, at: &str, depth: usize) -> Result<Value, String> {
    let schemas = schemas.as_object().into_iter().flatten();
    let made = schemas.map(|(name, schema)| Ok((name.clone(), node(schema, &format!("{at}/{name}"), depth)?)));
    made.collect::<Result<Map<_, _>, String>>().map(Value::from)
}

/// Closes an object: it has all of its properties and no others.
fn close(schema: &Map<String, Value>, made: &mut Map<String, Value>, at: &str, depth: usize) -> Result<(), String> {
    let is_closed = schema.get("additionalProperties").is_none_or(|others| *others == Value::Bool(false));
    let Some(properties) = schema.get("properties").and_then(Value::as_object).filter(|_| is_closed) else {
        return Err(format!("{at}: it takes members of any name"));
    };
    let required = schema.get("required").and_then(Value::as_array);
    let is_required = |name: &String| required.is_some_and(|names| names.iter().any(|it| it == name));
    let mut all = Map::new();
    for (name, property) in properties {
        let property = node(property, &format!("{at}/properties/{name}"), depth + 1)?;
        all.insert(name.clone(), if is_required(name) { property } else { nullable(property) });
    }
    made.insert("required".to_owned(), all.keys().cloned().map(Value::from).collect());
    made.insert("properties".to_owned(), all.into());
    made.insert("additionalProperties".to_owned(), Value::Bool(false));
    Ok(())
}

/// The schema with null as a further value.
fn nullable(mut schema: Value) -> Value {
    let null = json!("null");
    // A constant stays the only value beside null.
    if schema.get("const").is_some_and(|value| !value.is_null()) {
        return null_or(schema);
    }
    match schema.get_mut("type") {
        Some(Value::Array(kinds)) => {
            if !kinds.contains(&null) {
                kinds.push(null);
            }
        }
        Some(Value::String(kind)) if kind == "null" => {}
        Some(Value::String(kind)) => schema["type"] = json!([kind, "null"]),
        _ => return null_or(schema),
    }
    if let Value::Array(values) = &mut schema["enum"] {
        if !values.contains(&Value::Null) {
            values.push(Value::Null);
        }
    } else if let Some(members) = schema.as_object_mut() {
        members.remove("enum");
    }
    schema
}

/// A choice of null and the schema.
fn null_or(mut schema: Value) -> Value {
    let described = schema.as_object_mut().and_then(|schema| schema.remove("description"));
    let mut either = json!({ "anyOf": [schema, { "type": "null" }] });
    if let Some(description) = described {
        either["description"] = description;
    }
    either
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_is_closed_and_what_was_optional_may_be_null() {
        let schema = json!({
            "type": "object",
            "properties": {
                "city": { "type": "string", "minLength": 1, "description": "Which" },
                "unit": { "type": "string", "enum": ["C", "F"], "default": "C" },
                "near": { "$ref": "#/$defs/Place" },
                "mode": { "type": "string", "const": "fast" },
                "kinds": { "type": "array", "items": { "oneOf": [{ "type": "string" }, { "type": "integer" }] } },
            },
            "required": ["city"],
            "$defs": { "Place": { "type": "object", "properties": { "lat": { "type": "number" } } } },
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "city": { "type": "string", "description": "Which" },
                "unit": { "type": ["string", "null"], "enum": ["C", "F", null] },
                "near": { "anyOf": [{ "$ref": "#/$defs/Place" }, { "type": "null" }] },
                "mode": { "anyOf": [{ "type": "string", "const": "fast" }, { "type": "null" }] },
                "kinds": {
                    "type": ["array", "null"],
                    "items": { "anyOf": [{ "type": "string" }, { "type": "integer" }] },
                },
            },
            "required": ["city", "kinds", "mode", "near", "unit"],
            "additionalProperties": false,
            "$defs": { "Place": {
                "type": "object", "properties": { "lat": { "type": ["number", "null"] } },
                "required": ["lat"], "additionalProperties": false,
            } },
        });
        assert_eq!(strict(&schema), Ok(expected));
        assert_eq!(strict(&json!({ "type": "object" })).unwrap()["additionalProperties"], false);
    }

    #[test]
    fn a_schema_with_another_meaning_is_refused_with_its_place() {
        let cases = [
            (json!({ "type": "object", "additionalProperties": true }), "#: it takes members of any name"),
            (json!({ "type": "object", "properties": { "a": {} } }), "#/properties/a: any value is allowed"),
            (
                json!({ "type": "object", "properties": { "a": { "type": "array" } } }),
                "#/properties/a: its elements may be any values",
            ),
            (
                json!({ "type": "object", "properties": { "a": { "type": "object" } } }),
                "#/properties/a: it takes members of any name",
            ),
            (json!({ "type": "object", "properties": {}, "allOf": [{}] }), "#: `allOf` cannot be expressed"),
        ];
        for (schema, why) in cases {
            assert_eq!(strict(&schema), Err(why.to_owned()));
        }
    }
}
