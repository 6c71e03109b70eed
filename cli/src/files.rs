//! Runs and calls in files, as `POST /v1/runs` takes them. Arguments and contexts may be JSON objects instead of texts.

use std::collections::BTreeMap;
use std::io::Read as _;

use proto::v1;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::exit::Failure;

/// Members that the API takes as text, and that are easier to write as JSON.
const TEXTS: [&str; 2] = ["arguments", "context"];

/// The content of a file; `-` is the standard input.
fn text(path: &str) -> Result<String, Failure> {
    let read = if path == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    read.map_err(|error| Failure::Usage(format!("cannot read {path}: {error}")))
}

/// The run in a file, or the list of its calls.
pub(crate) fn run(path: &str) -> Result<v1::CreateRunRequest, Failure> {
    let wrong = |error: &dyn std::fmt::Display| Failure::Usage(format!("cannot use {path}: {error}"));
    let text = text(path)?;
    let whole = if text.trim_start().starts_with('[') { format!("{{\"calls\":{text}}}") } else { text };
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(&whole).map_err(|error| wrong(&error))?;
    let written = members.into_iter().map(|(name, value)| {
        let value = match name.as_str() {
            "calls" => {
                let calls: Vec<&RawValue> = serde_json::from_str(value.get())?;
                let calls: Result<Vec<String>, _> = calls.into_iter().map(call).collect();
                format!("[{}]", calls?.join(","))
            }
            _ => plain(&name, value),
        };
        Ok(format!("{}:{value}", Value::from(name)))
    });
    let written: Result<Vec<String>, serde_json::Error> = written.collect();
    let json = format!("{{{}}}", written.map_err(|error| wrong(&error))?.join(","));
    proto::json::read(json.as_bytes(), &[]).map_err(|error| wrong(&error))
}

fn call(call: &RawValue) -> Result<String, serde_json::Error> {
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(call.get())?;
    let members = members.into_iter().map(|(name, value)| format!("{}:{}", Value::from(&*name), plain(&name, value)));
    Ok(format!("{{{}}}", members.collect::<Vec<_>>().join(",")))
}

/// The value as the API takes it; the text of an object keeps its digits.
fn plain(name: &str, value: &RawValue) -> String {
    let is_object = value.get().starts_with('{');
    if is_object && TEXTS.contains(&name) { Value::from(value.get()).to_string() } else { value.get().to_owned() }
}

/// The calls in a file: a list, or an object with it.
pub(crate) fn calls(path: &str) -> Result<v1::AppendCallsRequest, Failure> {
    let v1::CreateRunRequest { calls, request_tools, files, approve, conversation, .. } = run(path)?;
    Ok(v1::AppendCallsRequest { run_id: String::new(), calls, request_tools, files, approve, conversation })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_may_be_objects_and_keep_their_digits() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        let calls = r#"[{"tool":"echo","arguments":{"n":1.10}},{"tool":"echo","arguments":"{}"}]"#;
        for text in [calls.to_owned(), format!(r#"{{"calls":{calls},"context":{{"user":1.0}},"tenant":"a"}}"#)] {
            std::fs::write(path, &text).unwrap();
            let run = run(path).unwrap();
            let arguments: Vec<&str> = run.calls.iter().map(|call| call.arguments.as_str()).collect();
            assert_eq!(arguments, [r#"{"n":1.10}"#, "{}"]);
            assert!(run.context.is_empty() || (run.context.as_str(), run.tenant.as_str()) == (r#"{"user":1.0}"#, "a"));
        }
        for wrong in ["{", r#"{"calls":{}}"#, r#"[{"tol":"echo"}]"#] {
            std::fs::write(path, wrong).unwrap();
            assert!(run(path).is_err(), "{wrong}");
        }
    }
}
