//! Makes JSON Schemas that stand on their own of the schemas of an OpenAPI document: what they refer to goes with them
//! as `$defs`, so a schema may contain itself.

use std::collections::{BTreeMap, VecDeque};

use serde_json::{Map, Value, json};

/// References that lead to one another.
const HOPS_MAX: usize = 16;
/// Schemas inside of one another.
const DEPTH_MAX: usize = 64;
/// Schemas that one operation may refer to, directly or not.
const DEFINITIONS_MAX: usize = 256;

/// Keywords whose value is a schema.
const ONE: [&str; 11] = [
    "items",
    "additionalProperties",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contains",
    "propertyNames",
    "not",
    "if",
    "then",
    "else",
    "additionalItems",
];
/// Keywords whose value is a list of schemas.
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
const TABLES: [&str; 3] = ["properties", "patternProperties", "dependentSchemas"];
/// Keywords that say nothing about a value, or are rewritten.
const DROPPED: [&str; 19] = [
    "$id",
    "$anchor",
    "$dynamicAnchor",
    "$schema",
    "$comment",
    "$defs",
    "$vocabulary",
    "definitions",
    "example",
    "examples",
    "xml",
    "externalDocs",
    "discriminator",
    "deprecated",
    "readOnly",
    "writeOnly",
    "nullable",
    "contentMediaType",
    "contentEncoding",
];

/// Converts the schemas of one operation.
#[derive(Debug)]
pub(super) struct Schemas<'a> {
    root: &'a Value,
    /// OpenAPI 3.0 has a dialect of its own.
    is_3_0: bool,
    /// The name of each pointer that was met.
    names: BTreeMap<String, String>,
    pending: VecDeque<(String, String)>,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let is_3_0 = root["openapi"].as_str().is_some_and(|version| version.starts_with("3.0"));
        Self { root, is_3_0, names: BTreeMap::new(), pending: VecDeque::new() }
    }

    /// A schema, whose references lead to the definitions.
    pub(super) fn convert(&mut self, schema: &Value) -> Result<Value, String> {
        self.convert_at(schema, 0)
    }

    /// All schemas that were referred to, also by one another.
    pub(super) fn finish(mut self) -> Result<Map<String, Value>, String> {
        let mut definitions = Map::new();
        while let Some((reference, name)) = self.pending.pop_front() {
            let schema = at(self.root, &reference)?;
            let converted = self.convert_at(schema, 0).map_err(|error| format!("in {reference}: {error}"))?;
            definitions.insert(name, converted);
        }
        Ok(definitions)
    }

    fn convert_at(&mut self, schema: &Value, depth: usize) -> Result<Value, String> {
        if depth > DEPTH_MAX {
            return Err(format!("schemas are nested deeper than {DEPTH_MAX}"));
        }
        let fields = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(fields) => fields,
            other => return Err(format!("{other} is no schema")),
        };
        if let Some(reference) = fields.get("$ref") {
            let name = self.name(reference.as_str().ok_or("a $ref is no text")?)?;
            let target = json!({ "$ref": format!("#/$defs/{name}") });
            // In 3.0 nothing beside a reference counts.
            return match self.is_3_0 || fields.len() == 1 {
                true => Ok(target),
                false => {
                    let mut beside = fields.clone();
                    beside.remove("$ref");
                    let mut beside = self.convert_at(&Value::Object(beside), depth + 1)?;
                    beside["$ref"] = target["$ref"].clone();
                    Ok(beside)
                }
            };
        }
        let mut made = Map::new();
        for (key, value) in fields {
            if DROPPED.contains(&key.as_str()) || key.starts_with("x-") {
                continue;
            }
            if key == "$dynamicRef" {
                return Err("$dynamicRef is not supported".to_owned());
            }
            made.insert(key.clone(), self.keyword(key, value, depth)?);
        }
        without_read_only(fields, &mut made);
        if self.is_3_0 {
            made = as_2020(fields, made);
        }
        Ok(Value::Object(made))
    }

    fn keyword(&mut self, key: &str, value: &Value, depth: usize) -> Result<Value, String> {
        let within = |error: String| format!("{key}: {error}");
        match value {
            Value::Array(list) if LISTS.contains(&key) => {
                let list: Result<Vec<Value>, String> =
                    list.iter().map(|schema| self.convert_at(schema, depth + 1)).collect();
                Ok(Value::Array(list.map_err(within)?))
            }
            Value::Object(table) if TABLES.contains(&key) => {
                let mut made = Map::new();
                for (name, schema) in table {
                    let schema = self.convert_at(schema, depth + 1).map_err(|error| format!("{name}: {error}"))?;
                    made.insert(name.clone(), schema);
                }
                Ok(Value::Object(made))
            }
            Value::Object(_) | Value::Bool(_) if ONE.contains(&key) => {
                self.convert_at(value, depth + 1).map_err(within)
            }
            other => Ok(other.clone()),
        }
    }

    /// The name of the definition that a reference leads to.
    fn name(&mut self, reference: &str) -> Result<String, String> {
        if let Some(name) = self.names.get(reference) {
            return Ok(name.clone());
        }
        at(self.root, reference)?;
        if self.names.len() == DEFINITIONS_MAX {
            return Err(format!("it refers to more than {DEFINITIONS_MAX} schemas"));
        }
        let last = super::name(reference.rsplit('/').next().unwrap_or_default());
        let names = std::iter::once(last.clone()).chain((2..).map(|number| format!("{last}_{number}")));
        let free = names.into_iter().find(|name| !self.names.values().any(|taken| taken == name));
        let name = free.unwrap_or(last);
        self.names.insert(reference.to_owned(), name.clone());
        self.pending.push_back((reference.to_owned(), name.clone()));
        Ok(name)
    }
}

/// A value within the document.
fn at<'a>(root: &'a Value, reference: &str) -> Result<&'a Value, String> {
    let Some(pointer) = reference.strip_prefix('#') else {
        return Err(format!("it refers to {reference:?}: only #/… within the document is followed"));
    };
    let pointer = percent_decoded(pointer);
    root.pointer(&pointer).ok_or_else(|| format!("it refers to {reference:?}, where there is nothing"))
}

fn percent_decoded(text: &str) -> String {
    // It is no form, so these signs stay what they are.
    let text = text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
    url::form_urlencoded::parse(text.as_bytes()).next().map_or_else(String::new, |(pointer, _)| pointer.into_owned())
}

/// The object itself, if `value` is a reference.
pub(super) fn follow<'a>(root: &'a Value, mut value: &'a Value) -> Result<&'a Value, String> {
    for _ in 0..HOPS_MAX {
        match value.get("$ref").and_then(Value::as_str) {
            Some(reference) => value = at(root, reference)?,
            None => return Ok(value),
        }
    }
    Err(format!("its references lead to one another more than {HOPS_MAX} times"))
}

/// A request does not send what only the service sets.
fn without_read_only(fields: &Map<String, Value>, made: &mut Map<String, Value>) {
    let properties = fields.get("properties").and_then(Value::as_object).into_iter().flatten();
    for (name, _) in properties.filter(|(_, schema)| schema["readOnly"] == true) {
        if let Some(Value::Object(properties)) = made.get_mut("properties") {
            properties.remove(name);
        }
        if let Some(Value::Array(required)) = made.get_mut("required") {
            required.retain(|other| other != name);
        }
    }
}

/// A schema of OpenAPI 3.0 as JSON Schema 2020-12.
fn as_2020(fields: &Map<String, Value>, mut made: Map<String, Value>) -> Map<String, Value> {
    for (exclusive, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match made.get(exclusive) {
            Some(Value::Bool(true)) => {
                let value = made.remove(bound).unwrap_or_default();
                made.remove(exclusive);
                if value.is_number() {
                    made.insert(exclusive.to_owned(), value);
                }
            }
            Some(Value::Bool(false)) => drop(made.remove(exclusive)),
            Some(_) | None => {}
        }
    }
    if fields.get("nullable") != Some(&Value::Bool(true)) {
        return made;
    }
    if let Some(Value::Array(values)) = made.get_mut("enum")
        && !values.contains(&Value::Null)
    {
        values.push(Value::Null);
    }
    match made.get("type") {
        Some(Value::String(kind)) => {
            let kinds = json!([kind, "null"]);
            made.insert("type".to_owned(), kinds);
            made
        }
        _ => Map::from_iter([("anyOf".to_owned(), json!([made, { "type": "null" }]))]),
    }
}
