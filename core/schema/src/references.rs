//! Ensures that a check against a schema ends: all references have targets, and no chain of references returns to its
//! start without a step into the value, whose depth is bounded.

use std::collections::{HashMap, HashSet};

use run::limit;
use serde_json::Value;

use super::InvalidSchema;

/// Keywords with subschemas that apply to the same value, to its parts, or only through references.
const SAME_ONE: [&str; 4] = ["not", "if", "then", "else"];
const SAME_LIST: [&str; 3] = ["allOf", "anyOf", "oneOf"];
const SAME_MAP: [&str; 2] = ["dependentSchemas", "dependencies"];
const PART_ONE: [&str; 8] = [
    "items",
    "contains",
    "additionalProperties",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "additionalItems",
    "contentSchema",
];
const PART_LIST: [&str; 1] = ["prefixItems"];
const PART_MAP: [&str; 4] = ["properties", "patternProperties", "$defs", "definitions"];
/// Keywords that refer to targets by other names than paths. No generator of schemas from types uses them.
const UNFOLLOWED: [&str; 3] = ["$dynamicRef", "$recursiveRef", "$id"];

pub(super) fn check(root: &Value) -> Result<(), InvalidSchema> {
    let mut walk = Walk { root, known: HashMap::new() };
    let mut schemas = vec![root];
    let mut met = HashSet::new();
    while let Some(schema) = schemas.pop() {
        if !met.insert(std::ptr::from_ref(schema)) {
            continue;
        }
        for name in UNFOLLOWED {
            if let Some(other) = schema.get(name)
                && (name != "$id" || !std::ptr::eq(schema, root))
            {
                return Err(InvalidSchema::Foreign(format!("{name} {}", super::cut(other.to_string()))));
            }
        }
        walk.reach(schema, "", 0)?;
        // Its target may be at a position where no keyword expects a schema.
        if let Some(reference) = schema.get("$ref").and_then(Value::as_str) {
            schemas.push(walk.target(reference)?);
        }
        schemas.extend(below(schema, &PART_ONE, &PART_LIST, &PART_MAP));
        schemas.extend(below(schema, &SAME_ONE, &SAME_LIST, &SAME_MAP));
    }
    Ok(())
}

struct Walk<'a> {
    root: &'a Value,
    /// By the address of a schema; `None` while it is being found out.
    known: HashMap<*const Value, Option<Reach>>,
}

/// Subschemas that apply to the same value.
#[derive(Debug, Clone, Copy)]
struct Reach {
    /// How many schemas, itself included.
    branches: u64,
    /// In how many steps the farthest of them is reached.
    depth: usize,
}

impl<'a> Walk<'a> {
    fn reach(&mut self, schema: &'a Value, at: &str, steps: usize) -> Result<Reach, InvalidSchema> {
        match self.known.get(&std::ptr::from_ref(schema)) {
            Some(Some(known)) => return Ok(*known),
            Some(None) => return Err(InvalidSchema::Endless(super::cut(at.to_owned()))),
            None if steps > limit::SCHEMA_DEPTH_MAX => return Err(InvalidSchema::TooDeep),
            None => {}
        }
        self.known.insert(schema, None);
        let mut reach = Reach { branches: 1, depth: 0 };
        let mut add = |below: Reach| {
            reach.branches = reach.branches.saturating_add(below.branches);
            reach.depth = reach.depth.max(below.depth + 1);
        };
        if let Some(reference) = schema.get("$ref") {
            let reference = reference.as_str().unwrap_or_default();
            add(self.reach(self.target(reference)?, reference, steps + 1)?);
        }
        for below in below(schema, &SAME_ONE, &SAME_LIST, &SAME_MAP) {
            add(self.reach(below, at, steps + 1)?);
        }
        if reach.branches > limit::SCHEMA_BRANCHES_MAX {
            return Err(InvalidSchema::TooBranched);
        }
        if reach.depth > limit::SCHEMA_DEPTH_MAX {
            return Err(InvalidSchema::TooDeep);
        }
        self.known.insert(schema, Some(reach));
        Ok(reach)
    }

    fn target(&self, reference: &str) -> Result<&'a Value, InvalidSchema> {
        let path = path(reference).ok_or_else(|| InvalidSchema::Foreign(super::cut(reference.to_owned())))?;
        let target = self.root.pointer(&path).filter(|target| target.is_object() || target.is_boolean());
        target.ok_or_else(|| InvalidSchema::Dangling(super::cut(reference.to_owned())))
    }
}

/// The path of a reference's target within the same schema.
pub(super) fn path(reference: &str) -> Option<String> {
    let path = reference.strip_prefix('#')?;
    (path.is_empty() || path.starts_with('/')).then(|| unescaped(path))
}

fn below<'a>(schema: &'a Value, one: &[&str], list: &[&str], map: &[&str]) -> Vec<&'a Value> {
    let one = one.iter().filter_map(|name| schema.get(name));
    let list = list.iter().filter_map(|name| schema.get(name)?.as_array()).flatten();
    let map = map.iter().filter_map(|name| schema.get(name)?.as_object()).flat_map(serde_json::Map::values);
    one.chain(list).chain(map).filter(|schema| schema.is_object()).collect()
}

/// A path in a reference may have characters written as `%3C`.
fn unescaped(path: &str) -> String {
    let bytes = path.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let escaped = path.get(at + 1..at + 3).filter(|_| *byte == b'%');
        let escaped = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        plain.push(escaped.unwrap_or(*byte));
        at += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&plain).into_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::Schema;

    fn refused(schema: &Value) -> InvalidSchema {
        Schema::compile(&schema.to_string()).expect_err("it is refused")
    }

    #[test]
    fn a_reference_out_of_the_schema_is_refused() {
        for elsewhere in ["http://example.org/other.json", "other.json#/a", "#anchor", "file:///etc/passwd"] {
            let schema = json!({ "type": "object", "properties": { "a": { "$ref": elsewhere } } });
            assert!(matches!(refused(&schema), InvalidSchema::Foreign(_)), "{elsewhere}");
        }
        let hidden = json!({ "properties": { "a": { "$id": "http://example.org", "$ref": "#/b" } } });
        assert!(matches!(refused(&hidden), InvalidSchema::Foreign(_)));
        assert!(matches!(refused(&json!({ "$ref": "#/$defs/nowhere" })), InvalidSchema::Dangling(_)));
    }

    #[test]
    fn a_schema_of_a_tree_is_taken_and_one_that_only_leads_back_to_itself_is_not() {
        let tree =
            json!({ "type": "object", "properties": { "children": { "type": "array", "items": { "$ref": "#" } } } });
        let schema = Schema::of_arguments(&tree.to_string()).expect("each step goes into the value");
        assert!(schema.check(br#"{"children":[{"children":[]}]}"#).is_ok());
        assert!(schema.check(br#"{"children":[{"children":[1]}]}"#).is_err());
        let endless = json!({
            "type": "object",
            "$defs": { "a": { "anyOf": [{ "type": "string" }, { "$ref": "#/$defs/b" }] }, "b": { "$ref": "#/$defs/a" } },
        });
        assert!(matches!(refused(&endless), InvalidSchema::Endless(_)));
        assert!(matches!(refused(&json!({ "allOf": [{ "$ref": "#" }] })), InvalidSchema::Endless(_)));
    }

    #[test]
    fn a_property_may_have_the_name_of_a_keyword() {
        let schema = json!({ "type": "object", "properties": { "$ref": { "type": "string" }, "$id": true } });
        assert!(Schema::of_arguments(&schema.to_string()).is_ok());
    }

    #[test]
    fn a_reference_may_be_escaped() {
        let schema =
            json!({ "$defs": { "A<B>": { "type": "string" } }, "properties": { "a": { "$ref": "#/$defs/A%3CB%3E" } } });
        let schema = Schema::compile(&schema.to_string()).expect("it is found");
        assert!(schema.check(br#"{"a":1}"#).is_err());
    }

    #[test]
    fn a_schema_that_doubles_itself_again_and_again_is_refused() {
        let doubled = |level: usize| json!({ "allOf": [{ "$ref": format!("#/$defs/{level}") }, { "$ref": format!("#/$defs/{level}") }] });
        let mut defs: serde_json::Map<String, Value> =
            (0..60).map(|level| (level.to_string(), doubled(level + 1))).collect();
        defs.insert("60".to_owned(), json!({ "type": "string" }));
        assert!(matches!(refused(&json!({ "$defs": defs })), InvalidSchema::TooBranched));
        let mut chain: serde_json::Map<String, Value> =
            (0..1000).map(|level| (level.to_string(), json!({ "$ref": format!("#/$defs/{}", level + 1) }))).collect();
        chain.insert("1000".to_owned(), json!(true));
        let chained = json!({ "properties": { "a": { "$ref": "#/$defs/0" } }, "$defs": chain });
        assert!(matches!(refused(&chained), InvalidSchema::TooDeep));
    }
}
