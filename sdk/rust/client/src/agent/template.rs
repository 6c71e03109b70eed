//! Messages with named values, for instructions and user messages of agents.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde_json::Value;

/// A text with named values in braces: `Find {topic} in {language}.` A doubled brace, `{{` or `}}`, is a brace.
///
/// ```
/// use toolyard_client::agent::Template;
/// # fn main() -> Result<(), toolyard_client::agent::TemplateError> {
/// let template: Template = "Find {topic}.".parse()?;
/// let values = serde_json::json!({ "topic": "owls" });
/// assert_eq!(template.render(|name| values.get(name))?, "Find owls.");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Value(String),
}

/// Why a text is no template, or why it cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A brace without its other one.
    #[error("the brace at character {0} has no other one: double it if it is text")]
    Unpaired(usize),
    /// A name that is none.
    #[error("{0:?} is no name of a value: write letters, digits, dots, - and _, or double the braces if it is text")]
    Name(String),
    /// A value is not given.
    #[error("the template needs the value {name:?}, which is missing")]
    Missing {
        /// The value's name.
        name: String,
    },
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut characters = text.chars().enumerate().peekable();
        while let Some((at, character)) = characters.next() {
            match character {
                '{' | '}' if characters.next_if(|(_, next)| *next == character).is_some() => plain.push(character),
                '{' => {
                    let mut name = String::new();
                    loop {
                        match characters.next() {
                            Some((_, '}')) => break,
                            Some((_, character)) => name.push(character),
                            None => return Err(TemplateError::Unpaired(at)),
                        }
                    }
                    let is_name = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_');
                    if name.is_empty() || !name.chars().all(is_name) {
                        return Err(TemplateError::Name(name));
                    }
                    parts.push(Part::Text(std::mem::take(&mut plain)));
                    parts.push(Part::Value(name));
                }
                '}' => return Err(TemplateError::Unpaired(at)),
                _ => plain.push(character),
            }
        }
        parts.push(Part::Text(plain));
        Ok(Self(parts))
    }
}

impl Template {
    /// The names of its values.
    #[must_use]
    pub fn names(&self) -> BTreeSet<&str> {
        let names = self.0.iter().filter_map(|part| match part {
            Part::Value(name) => Some(name.as_str()),
            Part::Text(_) => None,
        });
        names.collect()
    }

    /// The text with its values. A text is put as it is, anything else as JSON; null is no value. Values are not
    /// templates themselves.
    ///
    /// # Errors
    /// A value is missing.
    pub fn render<'a>(&self, value: impl Fn(&str) -> Option<&'a Value>) -> Result<String, TemplateError> {
        let mut rendered = String::new();
        for part in &self.0 {
            match part {
                Part::Text(text) => rendered.push_str(text),
                Part::Value(name) => match value(name) {
                    Some(Value::String(text)) => rendered.push_str(text),
                    None | Some(Value::Null) => return Err(TemplateError::Missing { name: name.clone() }),
                    Some(other) => rendered.push_str(&other.to_string()),
                },
            }
        }
        Ok(rendered)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Template").field(&self.names()).finish()
    }
}

/// The user's message with the schema that the answer must fit.
#[must_use]
pub fn with_output_schema(message: &str, schema: &Value) -> String {
    format!("{message}\n\nAnswer with JSON alone, without a fence, that fits this JSON Schema:\n{schema}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(template: &str) -> Result<String, TemplateError> {
        let values = json!({ "topic": "owls", "count": 1.5, "nothing": null, "list": ["{topic}"] });
        template.parse::<Template>()?.render(|name| values.get(name))
    }

    #[test]
    fn values_are_put_in_their_places_and_doubled_braces_are_braces() {
        assert_eq!(render("Find {topic}, {count} of them: {list}").unwrap(), r#"Find owls, 1.5 of them: ["{topic}"]"#);
        assert_eq!(render(r#"{{"topic": "{topic}"}}"#).unwrap(), r#"{"topic": "owls"}"#);
        assert_eq!(render("").unwrap(), "");
        let template: Template = "{b} {a} {b}".parse().unwrap();
        assert_eq!(template.names().into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }

    #[test]
    fn a_missing_value_and_a_mistake_are_named() {
        let missing = |name: &str| TemplateError::Missing { name: name.to_owned() };
        assert_eq!(render("Find {owner}"), Err(missing("owner")));
        assert_eq!(render("Find {nothing}"), Err(missing("nothing")));
        assert!(missing("owner").to_string().contains("\"owner\""));
        for (text, expected) in [
            ("Über {topic", TemplateError::Unpaired(5)),
            ("topic}", TemplateError::Unpaired(5)),
            ("{}", TemplateError::Name(String::new())),
            (r#"{"a": 1}"#, TemplateError::Name(r#""a": 1"#.to_owned())),
        ] {
            assert_eq!(text.parse::<Template>(), Err(expected), "{text}");
        }
    }

    #[test]
    fn a_message_asks_for_the_schema_of_the_answer() {
        let message = with_output_schema("Count.", &json!({ "type": "integer" }));
        assert!(message.starts_with("Count.\n\nAnswer with JSON") && message.ends_with(r#"{"type":"integer"}"#));
    }
}
