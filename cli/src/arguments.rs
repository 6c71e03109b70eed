//! Arguments as they are typed, `key=value`, made into the JSON that a tool's schema wants.

use std::convert::Infallible;
use std::str::FromStr;

use serde_json::{Map, Value};

use crate::exit::Failure;

/// References that are followed in a schema. Values behind deeper ones are sent as text, and the coordinator checks
/// them.
const REFERENCES_MAX: usize = 8;

/// One `key=value`; without `=`, the value is missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pair {
    key: String,
    value: Option<String>,
}

impl FromStr for Pair {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let (key, value) = text.split_once('=').map_or((text, None), |(key, value)| (key, Some(value.to_owned())));
        Ok(Self { key: key.to_owned(), value })
    }
}

/// The object that is given as a whole.
pub(crate) fn parse_base(json: Option<&str>) -> Result<Map<String, Value>, Failure> {
    match json.map(serde_json::from_str) {
        None => Ok(Map::new()),
        Some(Ok(Value::Object(object))) => Ok(object),
        Some(Ok(_)) => Err(Failure::Usage("--json is no JSON object: write it as '{\"key\": \"value\"}'".to_owned())),
        Some(Err(error)) => Err(Failure::Usage(format!("--json is no JSON: {error}"))),
    }
}

/// Adds the pairs to the object. `schema` is the tool's, or empty if it is not known.
pub(crate) fn build(mut base: Map<String, Value>, pairs: Vec<Pair>, schema: &str) -> Result<String, Failure> {
    let schema: Value = serde_json::from_str(schema).unwrap_or(Value::Null);
    for Pair { key, value } in pairs {
        let Some(value) = value else {
            return Err(Failure::Usage(format!("{key:?} is no argument: write KEY=VALUE")));
        };
        let text = match value.strip_prefix('@') {
            Some(path) => read(&key, path)?,
            None => value,
        };
        let value = typed(&key, text, &schema)?;
        base.insert(key, value);
    }
    Ok(Value::Object(base).to_string())
}

fn read(key: &str, path: &str) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|error| {
        let hint = "a value that begins with @ stands for a file; give any other such text with --json";
        Failure::Usage(format!("{key}: cannot read {path:?}: {error} ({hint})"))
    })
}

/// A value as the schema requires it: text if it takes text, else JSON. Without a schema: JSON if it is valid JSON,
/// else text.
fn typed(key: &str, text: String, schema: &Value) -> Result<Value, Failure> {
    let property = &schema["properties"][key];
    match takes(property, schema, 0) {
        Takes::Text => Ok(Value::String(text)),
        Takes::Other => serde_json::from_str(&text).map_err(|_| {
            Failure::Usage(format!("{key}={text} is no JSON, and the tool wants {} here", wanted(property)))
        }),
        Takes::Unknown => Ok(serde_json::from_str(&text).unwrap_or(Value::String(text))),
    }
}

fn wanted(property: &Value) -> String {
    match &property["type"] {
        Value::Null => property.to_string(),
        Value::String(name) => name.clone(),
        names => names.to_string(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    Text,
    Other,
    Unknown,
}

fn takes(property: &Value, root: &Value, depth: usize) -> Takes {
    let Some(schema) = property.as_object().filter(|_| depth < REFERENCES_MAX) else { return Takes::Unknown };
    let is_text = |name: &Value| name == "string";
    match schema.get("type") {
        Some(Value::Array(names)) if names.iter().any(is_text) => return Takes::Text,
        Some(name) if is_text(name) => return Takes::Text,
        Some(_) => return Takes::Other,
        None => {}
    }
    let values = schema.get("enum").and_then(Value::as_array).into_iter().flatten().chain(schema.get("const"));
    let of_values = values.map(|value| if value.is_string() { Takes::Text } else { Takes::Other });
    let reference = schema.get("$ref").and_then(Value::as_str).and_then(|path| root.pointer(path.strip_prefix('#')?));
    let choices = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
    let of_schemas = reference.into_iter().chain(choices).map(|choice| takes(choice, root, depth + 1));
    // A schema that accepts text and other types is given text.
    of_values.chain(of_schemas).fold(Takes::Unknown, |known, found| match (known, found) {
        (Takes::Text, _) | (_, Takes::Text) => Takes::Text,
        (Takes::Other, _) | (_, Takes::Other) => Takes::Other,
        (Takes::Unknown, Takes::Unknown) => Takes::Unknown,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn built(pairs: &[&str], properties: Value) -> Result<Value, String> {
        let pairs = pairs.iter().map(|pair| pair.parse().unwrap_or_else(|never: Infallible| match never {}));
        let schema = json!({
            "properties": properties,
            "$defs": { "Color": { "enum": ["red", "blue"] }, "Count": { "type": "integer" } },
        });
        let built = build(Map::new(), pairs.collect(), &schema.to_string()).map_err(|failure| failure.to_string())?;
        Ok(serde_json::from_str(&built).expect("arguments are JSON"))
    }

    #[test]
    fn text_stays_text_even_where_it_looks_like_json() {
        let properties = json!({
            "plain": { "type": "string" },
            "perhaps": { "type": ["string", "null"] },
            "either": { "anyOf": [{ "type": "integer" }, { "type": "string" }] },
            "color": { "$ref": "#/$defs/Color" },
        });
        let built = built(&["plain=1", "perhaps=true", "either=2", "color=red"], properties).unwrap();
        assert_eq!(built, json!({ "plain": "1", "perhaps": "true", "either": "2", "color": "red" }));
    }

    #[test]
    fn what_is_no_text_is_json() {
        let properties = json!({
            "count": { "type": "integer" },
            "perhaps": { "anyOf": [{ "$ref": "#/$defs/Count" }, { "type": "null" }] },
            "names": { "type": "array" },
        });
        let built = built(&["count=3", "perhaps=null", "names=[\"a\"]"], properties).unwrap();
        assert_eq!(built, json!({ "count": 3, "perhaps": null, "names": ["a"] }));
    }

    #[test]
    fn a_value_that_should_be_json_and_is_not_is_refused() {
        let refusal = built(&["count=three"], json!({ "count": { "type": "integer" } })).unwrap_err();
        assert_eq!(refusal, "count=three is no JSON, and the tool wants integer here");
        assert_eq!(built(&["count"], json!({})).unwrap_err(), "\"count\" is no argument: write KEY=VALUE");
    }

    #[test]
    fn where_the_schema_is_silent_a_value_is_what_it_looks_like() {
        assert_eq!(built(&["a=1", "b=one", "c=x=y"], json!({})).unwrap(), json!({ "a": 1, "b": "one", "c": "x=y" }));
    }

    #[test]
    fn a_file_stands_for_its_content() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "from a file\n").unwrap();
        let pair = format!("text=@{}", file.path().display());
        let built = built(&[&pair], json!({ "text": { "type": "string" } })).unwrap();
        assert_eq!(built, json!({ "text": "from a file\n" }));
    }

    #[test]
    fn only_an_object_can_be_given_as_a_whole() {
        assert!(parse_base(Some("[]")).is_err());
        assert!(parse_base(Some("{")).is_err());
        assert_eq!(parse_base(Some("{\"a\":1}")).unwrap().len(), 1);
    }

    #[test]
    fn a_schema_that_refers_to_itself_ends() {
        let properties = json!({ "loop": { "$ref": "#/properties/loop" } });
        assert_eq!(built(&["loop=x"], properties).unwrap(), json!({ "loop": "x" }));
    }
}
