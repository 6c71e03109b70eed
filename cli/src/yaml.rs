//! JSON as YAML, for people who read it or edit it. Members keep their order and numbers their digits.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Texts without quotes that YAML would not read as texts.
const WORDS: [&str; 12] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", "nan", "inf"];

/// The members of an object in their order.
struct Members(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

/// A document; the text itself if it is no JSON.
pub(crate) fn document(json: &str) -> String {
    let mut out = "---\n".to_owned();
    match serde_json::from_str::<&RawValue>(json) {
        Ok(value) => put(&mut out, value.get().trim(), 0, false),
        Err(_) => out.push_str(json),
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    out
}

/// Adds a value. `is_after`: something stands on its line already.
fn put(out: &mut String, json: &str, depth: usize, is_after: bool) {
    let begin = |out: &mut String, is_first: &mut bool| {
        if !std::mem::take(is_first) || is_after {
            out.push_str(&"  ".repeat(depth));
        }
    };
    if let Ok(Members(members)) = serde_json::from_str(json) {
        if members.is_empty() {
            out.push_str(if is_after { " {}\n" } else { "{}\n" });
            return;
        }
        if is_after {
            out.push('\n');
        }
        let mut is_first = true;
        for (name, value) in members {
            begin(out, &mut is_first);
            out.push_str(&text(&serde_json::Value::from(name).to_string()));
            out.push(':');
            put(out, value.get().trim(), depth + 1, true);
        }
        return;
    }
    if let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(json) {
        if items.is_empty() {
            out.push_str(if is_after { " []\n" } else { "[]\n" });
            return;
        }
        if is_after {
            out.push('\n');
        }
        let mut is_first = true;
        for item in items {
            begin(out, &mut is_first);
            out.push_str("- ");
            put(out, item.get().trim(), depth + 1, false);
        }
        return;
    }
    if is_after {
        out.push(' ');
    }
    out.push_str(&text(json));
    out.push('\n');
}

/// A text without quotes if YAML reads the same text, or any other value as it is: JSON's are YAML's.
fn text(json: &str) -> String {
    let Ok(text) = serde_json::from_str::<String>(json) else { return json.to_owned() };
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '/' | '.' | '-');
    let begins_well = text.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_');
    let is_word = WORDS.iter().any(|word| text.eq_ignore_ascii_case(word));
    if begins_well && !is_word && text.chars().all(is_plain) { text } else { json.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_and_lists_are_indented_and_keep_their_order_and_digits() {
        let json = r#"{"z":1.10,"a":{"b":[1,{"c":"x","d":[]}],"e":{}},"f":[[1,2]],"g":null}"#;
        let expected =
            "---\nz: 1.10\na:\n  b:\n    - 1\n    - c: x\n      d: []\n  e: {}\nf:\n  - - 1\n    - 2\ng: null\n";
        assert_eq!(document(json), expected);
        assert_eq!(document("[]"), "---\n[]\n");
        assert_eq!(document("7"), "---\n7\n");
    }

    #[test]
    fn texts_that_yaml_would_read_as_something_else_keep_their_quotes() {
        let json = r#"{"a":"true","b":"1","c":"run_0b","d":"a: b","e":"two\nlines","f":"","No":"-x"}"#;
        let expected =
            "---\na: \"true\"\nb: \"1\"\nc: run_0b\nd: \"a: b\"\ne: \"two\\nlines\"\nf: \"\"\n\"No\": \"-x\"\n";
        assert_eq!(document(json), expected);
    }
}
