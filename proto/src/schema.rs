//! Checks arguments against a tool's JSON Schema. Coordinator and worker use the same check: the coordinator refuses
//! before a job exists, the worker before its tool runs, because it alone knows which version of the tool it hosts.

mod references;

use run::{Violation, limit};
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
    #[error("the schema is {bytes} bytes, at most {limit} are taken: say less, or define once what is said often")]
    TooLarge { bytes: usize, limit: usize },
    #[error("the schema is written in {0}: write it in {DIALECT}, or leave $schema out")]
    Dialect(String),
    #[error("the schema is not valid: {0}")]
    Invalid(String),
    #[error("the schema is not that of an object: arguments have names, so say \"type\": \"object\" at its top")]
    NotAnObject,
    #[error("the schema refers to {0}: only #/… is followed, so put what it refers to under $defs")]
    Foreign(String),
    #[error("the schema refers to {0}, where there is none")]
    Dangling(String),
    #[error("the schema at {0} leads back to itself without a step into the value: no check of it would end")]
    Endless(String),
    #[error("more than {max} subschemas apply to one value: use fewer alternatives", max = limit::SCHEMA_BRANCHES_MAX)]
    TooBranched,
    #[error("subschemas lead deeper than {max} steps without a step into the value: make it flatter", max = limit::SCHEMA_DEPTH_MAX)]
    TooDeep,
}

/// The only dialect that is taken.
const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// What is told of a schema that is not valid.
const FAULTS_MAX: usize = 4;

impl Schema {
    /// Compiles the schema of a tool's arguments.
    ///
    /// # Errors
    /// As [`Self::compile`], and when it is not that of an object.
    pub fn of_arguments(text: &str) -> Result<Self, InvalidSchema> {
        let (schema, value) = Self::compiled(text)?;
        if value["type"] == "object" { Ok(schema) } else { Err(InvalidSchema::NotAnObject) }
    }

    /// Compiles a schema.
    ///
    /// # Errors
    /// When the text is too large, not JSON or not a JSON Schema, refers to other documents, or checking it might not end.
    pub fn compile(text: &str) -> Result<Self, InvalidSchema> {
        Self::compiled(text).map(|(schema, _)| schema)
    }

    fn compiled(text: &str) -> Result<(Self, Value), InvalidSchema> {
        if text.len() > limit::SCHEMA_BYTES_MAX {
            return Err(InvalidSchema::TooLarge { bytes: text.len(), limit: limit::SCHEMA_BYTES_MAX });
        }
        let schema: Value = serde_json::from_str(text)?;
        if let Some(dialect) = schema.get("$schema").filter(|dialect| dialect.as_str() != Some(DIALECT)) {
            return Err(InvalidSchema::Dialect(cut(dialect.to_string())));
        }
        let meta = jsonschema::draft202012::meta::validator();
        let faults = meta.iter_errors(&schema).take(FAULTS_MAX);
        let faults =
            faults.map(|fault| format!("at {:?}: {}", fault.instance_path().to_string(), cut(fault.to_string())));
        let faults: Vec<String> = faults.collect();
        if !faults.is_empty() {
            return Err(InvalidSchema::Invalid(faults.join("; ")));
        }
        references::check(&schema)?;
        let validator =
            jsonschema::validator_for(&schema).map_err(|error| InvalidSchema::Invalid(cut(error.to_string())))?;
        Ok((Self(std::sync::Arc::new(validator)), schema))
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
    fn a_schema_that_cannot_be_used_is_refused_with_its_fault() {
        let refused = |text: &str| Schema::of_arguments(text).expect_err(text);
        assert!(matches!(refused("{ not json"), InvalidSchema::NotJson(_)));
        assert!(matches!(refused(&"[".repeat(100_000)), InvalidSchema::TooLarge { .. }));
        assert!(matches!(refused(&"[".repeat(60_000)), InvalidSchema::NotJson(_)));
        for no_object in ["true", "{}", r#"{"type":"array"}"#, r#"{"type":["object","null"]}"#] {
            assert!(matches!(refused(no_object), InvalidSchema::NotAnObject), "{no_object}");
        }
        for invalid in ["[]", r#"{"type":"objekt"}"#, r#"{"type":"object","required":"a"}"#] {
            assert!(matches!(refused(invalid), InvalidSchema::Invalid(_)), "{invalid}");
        }
        let pattern = r#"{"type":"object","properties":{"a":{"type":"string","pattern":"("}}}"#;
        assert!(matches!(refused(pattern), InvalidSchema::Invalid(_)));
        let dialect = r#"{"$schema":"https://example.org/mine","type":"object"}"#;
        assert!(matches!(refused(dialect), InvalidSchema::Dialect(_)));
    }
}
