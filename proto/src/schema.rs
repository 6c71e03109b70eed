//! Checks arguments against a tool's JSON Schema. Coordinator and worker use the same check: the coordinator refuses
//! before a job exists, the worker before its tool runs, because it alone knows which version of the tool it hosts.

use run::Violation;
use serde_json::Value;

/// Violations reported for one call; a model mends a few at a time.
const VIOLATIONS_MAX: usize = 16;

/// Characters of one violation's text, and of its path.
const VIOLATION_CHARS_MAX: usize = 400;

/// A compiled schema.
#[derive(Debug, Clone)]
pub struct Schema(std::sync::Arc<jsonschema::Validator>);

/// A text that is no usable JSON Schema.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSchema {
    #[error("the schema is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    #[error("the schema is not valid: {0}")]
    Invalid(String),
}

impl Schema {
    /// Compiles a schema. References to other documents are not followed.
    ///
    /// # Errors
    /// When the text is not JSON or not a JSON Schema.
    pub fn compile(text: &str) -> Result<Self, InvalidSchema> {
        let schema: Value = serde_json::from_str(text)?;
        let validator =
            jsonschema::validator_for(&schema).map_err(|error| InvalidSchema::Invalid(error.to_string()))?;
        Ok(Self(std::sync::Arc::new(validator)))
    }

    /// Parses arguments and checks them. Empty arguments are `{}`.
    ///
    /// # Errors
    /// Where the text is not a JSON object or does not fit, each with its place.
    pub fn check(&self, arguments: &[u8]) -> Result<Value, Vec<Violation>> {
        let at_root = |message: String| vec![Violation { path: String::new(), message }];
        let arguments = parse(arguments).map_err(|message| at_root(format!("the arguments are {message}")))?;
        if self.0.is_valid(&arguments) {
            return Ok(arguments);
        }
        let violations = self.0.iter_errors(&arguments).take(VIOLATIONS_MAX);
        Err(violations
            .map(|error| Violation { path: cut(error.instance_path().to_string()), message: cut(error.to_string()) })
            .collect())
    }
}

/// One line that says what is wrong and where.
#[must_use]
pub fn describe(violations: &[Violation]) -> String {
    let lines: Vec<String> = violations
        .iter()
        .map(|violation| match violation.path.as_str() {
            "" => violation.message.clone(),
            path => format!("at {path}: {}", violation.message),
        })
        .collect();
    format!("the arguments do not fit the tool's schema: {}", lines.join("; "))
}

/// A violation quotes the offending value, which may be large.
fn cut(text: String) -> String {
    match text.char_indices().nth(VIOLATION_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn parse(arguments: &[u8]) -> Result<Value, String> {
    if arguments.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    match serde_json::from_slice(arguments) {
        Ok(Value::Null) => Ok(Value::Object(serde_json::Map::new())),
        Ok(value @ Value::Object(_)) => Ok(value),
        Ok(_) => Err("not a JSON object".to_owned()),
        Err(error) => Err(format!("not JSON: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(schema: &str, arguments: &str) -> Vec<String> {
        let schema = Schema::compile(schema).expect("a schema");
        schema.check(arguments.as_bytes()).err().unwrap_or_default().into_iter().map(|v| v.path).collect()
    }

    const NESTED: &str = r#"{"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}}}"#;

    #[test]
    fn a_violation_names_its_place() {
        assert_eq!(paths(NESTED, r#"{"a":[1,"two"]}"#), ["/a/1"]);
    }

    #[test]
    fn empty_and_null_arguments_are_an_empty_object() {
        assert!(paths(r#"{"type":"object"}"#, " ").is_empty());
        assert!(paths(r#"{"type":"object"}"#, "null").is_empty());
    }

    #[test]
    fn arguments_that_are_no_object_or_no_json_are_told_so() {
        for arguments in ["[]", "{", "\u{0}"] {
            assert_eq!(paths(r#"{"type":"object"}"#, arguments), [""]);
        }
    }

    #[test]
    fn a_schema_that_refers_to_another_document_is_refused() {
        assert!(Schema::compile(r#"{"$ref":"http://example.org/other.json"}"#).is_err());
    }
}
