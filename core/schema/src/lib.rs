//! Checks arguments against a tool's JSON Schema. Coordinator and worker use the same check: the coordinator refuses
//! before a job exists, the worker before its tool runs, because it alone knows which version of the tool it hosts.

mod compile;
pub mod concurrency;
mod evaluate;
mod explain;
pub mod nulls;
pub mod pattern;
mod references;
pub mod steps;
mod value;

use std::sync::Arc;

use run::{Violation, limit};
use serde_json::Value;

use self::compile::{Node, Nodes};
use self::evaluate::{Check, Stop};
use self::explain::Explainer;
use crate::pattern::Budget;
use crate::steps::{Exhausted, Steps};

/// Violations reported for one call; a model mends a few at a time.
const VIOLATIONS_MAX: usize = 16;

/// Characters of one violation's text, and of its path.
const VIOLATION_CHARS_MAX: usize = 400;

/// Characters of a value that a violation quotes.
const QUOTE_CHARS_MAX: usize = 120;

/// Parts of a value that are searched for the position at which a check gave up.
const PATHS_LOOKED_MAX: usize = 10_000;

/// Steps of a check that a thread which serves others may do itself: less than a millisecond.
const QUICK_STEPS_MAX: usize = 40_000;

/// A compiled schema. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Schema(Arc<Nodes>);

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

impl Schema {
    /// Compiles the schema of a tool's arguments, with a budget for patterns of its own.
    ///
    /// # Errors
    /// As [`Self::of_arguments_within`].
    pub fn of_arguments(text: &str) -> Result<Self, InvalidSchema> {
        Self::of_arguments_within(text, &mut Budget::default())
    }

    /// Compiles the schema of a tool's arguments, whose patterns draw on a budget.
    ///
    /// # Errors
    /// As [`Self::compile_within`], and when it is not that of an object.
    pub fn of_arguments_within(text: &str, patterns: &mut Budget) -> Result<Self, InvalidSchema> {
        let (schema, value) = Self::compiled(text, patterns)?;
        if value["type"] == "object" { Ok(schema) } else { Err(InvalidSchema::NotAnObject) }
    }

    /// Compiles a schema, with a budget for patterns of its own.
    ///
    /// # Errors
    /// As [`Self::compile_within`].
    pub fn compile(text: &str) -> Result<Self, InvalidSchema> {
        Self::compile_within(text, &mut Budget::default())
    }

    /// Compiles a schema, whose patterns draw on a budget.
    ///
    /// # Errors
    /// When the text is too large, not JSON or not a JSON Schema, refers to other documents, has patterns that cannot
    /// be used, or checking it might not end.
    pub fn compile_within(text: &str, patterns: &mut Budget) -> Result<Self, InvalidSchema> {
        Self::compiled(text, patterns).map(|(schema, _)| schema)
    }

    fn compiled(text: &str, patterns: &mut Budget) -> Result<(Self, Value), InvalidSchema> {
        if text.len() > limit::SCHEMA_BYTES_MAX {
            return Err(InvalidSchema::TooLarge { bytes: text.len(), limit: limit::SCHEMA_BYTES_MAX });
        }
        let schema: Value = serde_json::from_str(text)?;
        if let Some(dialect) = schema.get("$schema").filter(|dialect| dialect.as_str() != Some(DIALECT)) {
            return Err(InvalidSchema::Dialect(cut(dialect.to_string())));
        }
        references::check(&schema)?;
        let nodes = compile::compile(&schema, patterns)?;
        Ok((Self(Arc::new(nodes)), schema))
    }

    /// Parses arguments and checks them. Empty arguments are `{}`.
    ///
    /// # Errors
    /// The text is not a JSON object, or does not match (each mismatch with its path), or the check would take too
    /// long.
    pub fn check(&self, arguments: &[u8]) -> Result<Value, Vec<Violation>> {
        self.check_within(arguments, &mut Steps::of_one(arguments.len()))
    }

    /// As [`Self::check`], with steps that it shares with other checks.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_within(&self, arguments: &[u8], steps: &mut Steps) -> Result<Value, Vec<Violation>> {
        let bytes = arguments.len();
        let arguments = match parse(arguments) {
            Ok(arguments) => arguments,
            Err(message) => return Err(vec![at_root(format!("the arguments are {message}"))]),
        };
        let mut check = Check::new(&self.0.0, steps.lend(bytes));
        match check.fits(0, &arguments) {
            Ok(true) => {
                steps.give_back(check.steps);
                Ok(arguments)
            }
            Ok(false) => {
                check.steps.give_back(steps.lend(bytes));
                let (violations, rest) = explain(check, &arguments);
                steps.give_back(rest);
                Err(violations)
            }
            Err(stop) => Err(vec![given_up(stop, &check, &arguments)]),
        }
    }

    /// Whether arguments fit.
    ///
    /// # Errors
    /// When that would take too long to find out.
    pub fn accepts(&self, arguments: &[u8]) -> Result<bool, Exhausted> {
        let Ok(value) = parse(arguments) else { return Ok(false) };
        Check::new(&self.0.0, Steps::of(arguments.len())).fits(0, &value).map_err(|_| Exhausted)
    }

    /// Whether checking these arguments is sure to be so quick that a thread which serves others may do it.
    #[must_use]
    pub fn is_quick(&self, arguments: &[u8]) -> bool {
        // A value has no more parts than such signs, and one.
        let parts = 1 + arguments.iter().filter(|byte| matches!(byte, b',' | b'[' | b'{')).count();
        let text = if self.0.0.iter().any(Node::has_pattern) { arguments.len() / 8 } else { 0 };
        self.0.0.len().saturating_mul(parts + text) <= QUICK_STEPS_MAX
    }
}

/// Why a value does not fit, and the steps that are left.
fn explain(check: Check<'_>, value: &Value) -> (Vec<Violation>, Steps) {
    let mut explainer = Explainer::new(check);
    let explained = explainer.explain(0, value);
    let Explainer { check, mut violations, .. } = explainer;
    if violations.is_empty() {
        violations.push(match explained {
            Ok(()) => at_root("the arguments do not fit".to_owned()),
            Err(_) => Violation {
                path: check.stopped_at.and_then(|stop| path_of(stop, value)).unwrap_or_default(),
                message: "this does not fit; finding out what is wrong with it would take too long".to_owned(),
            },
        });
    }
    (violations, check.steps)
}

fn given_up(stop: Stop, check: &Check<'_>, value: &Value) -> Violation {
    let path = check.stopped_at.and_then(|stop| path_of(stop, value)).unwrap_or_default();
    let message = match stop {
        Stop::Steps => "checking this takes too long: give fewer or smaller values, or make the tool's schema simpler",
        Stop::Depth => "values are too deep within each other for the tool's schema: make them flatter",
    };
    Violation { path, message: message.to_owned() }
}

/// The path of a part of a value.
fn path_of(part: *const Value, whole: &Value) -> Option<String> {
    let mut left = vec![(String::new(), whole)];
    let mut looked = 0;
    while let Some((path, value)) = left.pop() {
        if std::ptr::eq(value, part) {
            return Some(cut(path));
        }
        looked += 1;
        // The path is a kindness that must not cost much itself.
        if path.len() > VIOLATION_CHARS_MAX || looked > PATHS_LOOKED_MAX {
            continue;
        }
        match value {
            Value::Array(items) => {
                left.extend(
                    items.iter().enumerate().take(PATHS_LOOKED_MAX).map(|(at, item)| (format!("{path}/{at}"), item)),
                );
            }
            Value::Object(members) => {
                let members = members.iter().take(PATHS_LOOKED_MAX);
                left.extend(members.map(|(name, value)| (format!("{path}/{}", escaped(name)), value)));
            }
            _ => {}
        }
    }
    None
}

fn at_root(message: String) -> Violation {
    Violation { path: String::new(), message }
}

/// A name as a part of a JSON pointer.
fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// The beginning of a value, to be quoted.
fn quote(value: &Value) -> String {
    match value {
        Value::Array(items) if !items.is_empty() => format!("an array of {}", items.len()),
        Value::Object(members) if !members.is_empty() => {
            let names: Vec<String> = members.keys().take(4).map(|name| short(&format!("{name:?}"))).collect();
            let more = if members.len() > 4 { ", …" } else { "" };
            format!("an object with {}{more}", names.join(", "))
        }
        Value::String(text) if text.len() > QUOTE_CHARS_MAX => short(&format!("{:?}", short(text))),
        other => other.to_string(),
    }
}

fn short(text: &str) -> String {
    match text.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// One line that names each mistake and its path.
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
mod suite;

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
