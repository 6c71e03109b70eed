//! Schemas of servers, brought to the dialect that is checked here.

use serde_json::{Map, Value};

/// Dialects that are rewritten: their differences from 2020-12 in use are few.
const OLDER: [&str; 3] = ["draft-06/schema", "draft-07/schema", "2019-09/schema"];
/// Keywords whose values are data and not schemas.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];
/// How deep a schema is rewritten; what lies deeper is refused by its check.
const DEPTH_MAX: usize = 128;

/// Rewrites a schema of an older draft to 2020-12. One without a dialect is of 2020-12, but servers also leave it out
/// of older ones, so a tuple in the old form is rewritten in any.
pub(super) fn modern(mut schema: Map<String, Value>) -> Value {
    let older = schema.get("$schema").and_then(Value::as_str).is_some_and(|dialect| {
        let dialect = dialect.trim_end_matches('#');
        OLDER.iter().any(|older| dialect.ends_with(older))
    });
    if older {
        schema.remove("$schema");
    }
    let mut schema = Value::Object(schema);
    rewrite(&mut schema, 0);
    schema
}

fn rewrite(value: &mut Value, depth: usize) {
    if depth > DEPTH_MAX {
        return;
    }
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| rewrite(value, depth + 1)),
        Value::Object(fields) => {
            if fields.get("items").is_some_and(Value::is_array) {
                let rest = fields.remove("additionalItems");
                let tuple = fields.remove("items").unwrap_or_default();
                fields.insert("prefixItems".to_owned(), tuple);
                fields.extend(rest.map(|rest| ("items".to_owned(), rest)));
            }
            let schemas = fields.iter_mut().filter(|(name, _)| !DATA.contains(&name.as_str()));
            schemas.for_each(|(_, value)| rewrite(value, depth + 1));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn modern_of(value: Value) -> Value {
        let Value::Object(fields) = value else { panic!("no object") };
        modern(fields)
    }

    #[test]
    fn an_older_draft_is_rewritten_and_data_in_it_is_not() {
        let schema = modern_of(json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "properties": {"a": {"items": [{"type": "string"}], "additionalItems": false, "default": {"items": [1]}}}
        }));
        let a = json!({"prefixItems": [{"type": "string"}], "items": false, "default": {"items": [1]}});
        assert_eq!(schema, json!({"properties": {"a": a}}));
    }

    #[test]
    fn a_dialect_that_is_not_known_stays_to_be_refused() {
        let schema = json!({"$schema": "http://json-schema.org/draft-04/schema#"});
        assert_eq!(modern_of(schema.clone()), schema);
    }
}
