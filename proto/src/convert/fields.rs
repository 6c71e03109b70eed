//! JSON objects between text and the domain. Only their keys are interpreted.

use std::collections::BTreeMap;

use run::Fields;
use serde_json::Value;
use serde_json::value::RawValue;

/// A text that is not a JSON object. The error does not contain the text, which may be a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not a JSON object: {reason} at line {line}, column {column}")]
pub struct NotAnObject {
    reason: &'static str,
    line: usize,
    column: usize,
}

impl From<serde_json::Error> for NotAnObject {
    fn from(error: serde_json::Error) -> Self {
        use serde_json::error::Category;
        let reason = match error.classify() {
            Category::Io | Category::Syntax => "it is no JSON, or nested deeper than 127 levels,",
            Category::Data => "it is something else",
            Category::Eof => "it breaks off",
        };
        Self { reason, line: error.line(), column: error.column() }
    }
}

/// The object as text; empty if the object is empty.
#[must_use]
pub fn fields_out(object: &Fields) -> String {
    if object.is_empty() {
        return String::new();
    }
    let mut text = String::from("{");
    for (index, (key, json)) in object.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        text.push_str(&Value::from(key).to_string());
        text.push(':');
        text.push_str(json);
    }
    text.push('}');
    text
}

/// Reads an object. Values keep their text, including digits. If a key is repeated, the last value counts.
///
/// # Errors
/// The text is neither empty nor a JSON object, or is nested too deeply for other readers.
pub fn fields_in(text: &str) -> Result<Fields, NotAnObject> {
    if text.is_empty() {
        return Ok(Fields::default());
    }
    let fields: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text)?;
    // Raw values have no depth limit, so the depth is checked here.
    serde_json::from_str::<Value>(text)?;
    Ok(fields.into_iter().map(|(key, json)| (key, String::from(Box::<str>::from(json)))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_stay_as_they_are_written() {
        let text = r#"{"a":{"x": 1.10},"b\"\n":12345678901234567890123,"c":null}"#;
        let object = fields_in(text).unwrap();
        assert_eq!((object.get("a"), object.get("b\"\n")), (Some(r#"{"x": 1.10}"#), Some("12345678901234567890123")));
        assert_eq!(fields_out(&object), text);
        assert_eq!(fields_in(&fields_out(&object)), Ok(object));
        assert_eq!((fields_in(""), fields_in("{}")), (Ok(Fields::default()), Ok(Fields::default())));
        assert_eq!(fields_out(&Fields::default()), "");
    }

    #[test]
    fn what_is_no_object_is_refused_and_not_repeated() {
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(500), "]".repeat(500));
        for text in ["[\"s3cret\"]", "\"s3cret\"", "{\"s3cret\":", "{\"a\":s3cret}", "{} {}", "7", &deep] {
            let error = fields_in(text).expect_err(text).to_string();
            assert!(error.starts_with("is not a JSON object") && !error.contains("s3cret"), "{text}: {error}");
        }
        assert!(!format!("{:?}", fields_in(r#"{"key":"s3cret"}"#).unwrap()).contains("s3cret"));
    }
}
