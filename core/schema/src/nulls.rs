//! Nulls that stand for missing members. A model whose vendor demands all properties of an object writes null for one
//! that is optional.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

/// References that are followed in a row.
const REFERENCES_MAX: usize = 8;
/// The deepest nesting that is searched.
const DEPTH_MAX: usize = 64;
/// A value counts as this many bytes more than its text has.
const VALUE_BYTES: usize = 64;
/// Bytes of values that are searched, each as often as there are schemas that it may fit and values that contain it.
const BYTES_MAX: usize = 8 * 1024 * 1024;

/// The arguments without members that are null, optional, and declared with types that have no null. `None` if there is
/// no such member. Other members keep their text.
#[must_use]
pub fn dropped(schema: &str, arguments: &[u8]) -> Option<String> {
    let schema: Value = serde_json::from_str(schema).ok()?;
    let arguments: &RawValue = serde_json::from_slice(arguments).ok()?;
    Search { root: &schema, left: BYTES_MAX }.pruned(arguments.get(), &schema, 0)
}

struct Search<'a> {
    root: &'a Value,
    /// Bytes that may still be searched.
    left: usize,
}

impl Search<'_> {
    fn pruned(&mut self, text: &str, schema: &Value, depth: usize) -> Option<String> {
        let root = self.root;
        let schema = followed(schema, root)?;
        self.left = self.left.checked_sub(text.len() + VALUE_BYTES)?;
        if depth > DEPTH_MAX {
            return None;
        }
        // The first choice that changes; a value that does not fit after that is left as it was.
        if let Some(choices) = choices(schema).filter(|_| schema.get("properties").is_none()) {
            return choices.iter().find_map(|choice| self.pruned_as(choice, text, depth + 1));
        }
        match text.as_bytes().first()? {
            b'{' => {
                let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
                let (mut kept, mut is_changed) = (Vec::with_capacity(members.len()), false);
                for (name, value) in members {
                    let property = &schema["properties"][name.as_str()];
                    if value.get() == "null" && stands_for_missing(&name, property, schema, root) {
                        is_changed = true;
                        continue;
                    }
                    let changed = self.pruned(value.get(), property, depth + 1);
                    is_changed |= changed.is_some();
                    let value = changed.unwrap_or_else(|| value.get().to_owned());
                    kept.push(format!("{}:{value}", Value::from(name)));
                }
                is_changed.then(|| format!("{{{}}}", kept.join(",")))
            }
            b'[' => {
                let elements: Vec<&RawValue> = serde_json::from_str(text).ok()?;
                let changed: Vec<Option<String>> =
                    elements.iter().map(|element| self.pruned(element.get(), &schema["items"], depth + 1)).collect();
                let is_changed = changed.iter().any(Option::is_some);
                let kept = elements.iter().zip(changed).map(|(old, new)| new.unwrap_or_else(|| old.get().to_owned()));
                is_changed.then(|| format!("[{}]", kept.collect::<Vec<_>>().join(",")))
            }
            _ => None,
        }
    }

    /// The value as one of several choices. An object with members that the choice does not have is none of it.
    fn pruned_as(&mut self, choice: &Value, text: &str, depth: usize) -> Option<String> {
        self.left = self.left.checked_sub(text.len())?;
        let properties = &followed(choice, self.root)?["properties"];
        if let (Value::Object(properties), true) = (properties, text.starts_with('{')) {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).ok()?;
            if !members.keys().all(|name| properties.contains_key(name)) {
                return None;
            }
        }
        self.pruned(text, choice, depth)
    }
}

fn choices(schema: &Value) -> Option<&Vec<Value>> {
    schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array())
}

/// The schema that a schema refers to.
fn followed<'a>(mut schema: &'a Value, root: &'a Value) -> Option<&'a Value> {
    for _ in 0..REFERENCES_MAX {
        match schema["$ref"].as_str() {
            Some(path) => schema = root.pointer(path.strip_prefix('#')?)?,
            None => return Some(schema),
        }
    }
    None
}

fn stands_for_missing(name: &str, property: &Value, object: &Value, root: &Value) -> bool {
    let required = object["required"].as_array();
    let is_required = required.is_some_and(|names| names.iter().any(|it| it == name));
    property.is_object()
        && !is_required
        && followed(property, root).is_some_and(|property| !takes_null(property, root, 0))
}

/// Whether null may be a value; `true` if that is not certain.
fn takes_null(schema: &Value, root: &Value, depth: usize) -> bool {
    let Some(schema) = followed(schema, root).filter(|_| depth < REFERENCES_MAX) else { return true };
    if let Some(values) = schema["enum"].as_array() {
        return values.contains(&Value::Null);
    }
    if let Some(value) = schema.get("const") {
        return value.is_null();
    }
    match &schema["type"] {
        Value::String(kind) => kind == "null",
        Value::Array(kinds) => kinds.iter().any(|kind| kind == "null"),
        _ => choices(schema).is_none_or(|choices| choices.iter().any(|choice| takes_null(choice, root, depth + 1))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r##"{
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "unit": { "enum": ["C", "F"] },
            "any": {},
            "perhaps": { "type": ["string", "null"] },
            "near": { "$ref": "#/$defs/Place" },
            "last": { "anyOf": [{ "$ref": "#/$defs/Name" }, { "$ref": "#/$defs/Place" }, { "type": "null" }] },
            "all": { "type": "array", "items": { "$ref": "#/$defs/Place" } }
        },
        "required": ["city"],
        "$defs": { "Place": { "type": "object", "properties": { "lat": { "type": "number" } } },
            "Name": { "type": "object", "properties": { "lat": {}, "name": { "type": "string" } } } }
    }"##;

    #[test]
    fn a_value_that_may_be_many_things_is_not_searched_as_each_of_them() {
        let choice = r#"{ "type": "object", "properties": { "a": { "type": "string" } } }"#;
        let schema = format!(r#"{{ "anyOf": [{}] }}"#, vec![choice; 4000].join(","));
        let arguments = format!(r#"{{ "a": "{}" }}"#, "x".repeat(256 * 1024));
        let value: Value = serde_json::from_str(&schema).unwrap();
        let mut search = Search { root: &value, left: BYTES_MAX };
        assert_eq!(search.pruned(&arguments, &value, 0), None);
        assert!(search.left < arguments.len() + VALUE_BYTES, "it ended for want of room: {}", search.left);
    }

    #[test]
    fn an_optional_member_that_takes_no_null_is_left_out_and_others_keep_their_text() {
        let cases = [
            (r#"{"city":"A","unit":null}"#, Some(r#"{"city":"A"}"#)),
            (r#"{"city":null,"any":null,"perhaps":null}"#, None),
            (r#"{"near":{"lat":null},"city":1.10}"#, Some(r#"{"city":1.10,"near":{}}"#)),
            (r#"{"near":null,"all":[{"lat":null},{"lat":2.0}]}"#, Some(r#"{"all":[{},{"lat":2.0}]}"#)),
            (r#"{"last":{"lat":null}}"#, Some(r#"{"last":{}}"#)),
            (r#"{"last":{"name":null}}"#, Some(r#"{"last":{}}"#)),
            (r#"{"last":null}"#, None),
            (r#"{"last":{"name":"A","lat":null}}"#, None),
            (r#"{"unknown":null}"#, None),
            ("[null]", None),
            ("not json", None),
        ];
        for (arguments, expected) in cases {
            assert_eq!(dropped(SCHEMA, arguments.as_bytes()).as_deref(), expected, "{arguments}");
        }
    }
}
