//! The choices of a call of `ask_user`, the built-in tool by which a model asks the user: the client must answer with
//! them, unless free text is allowed too.

use run::{Content, Violation};
use serde_json::Value;

/// The name of the tool.
pub const ASK_USER: &str = "ask_user";

/// What a call of `ask_user` lets the user choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The labels of the options.
    pub options: Vec<String>,
    /// Several options may be chosen.
    pub is_multiple: bool,
    /// Any other text is an answer too.
    pub is_free: bool,
}

impl Choice {
    /// The choices of a call with these arguments; `None` if there are none.
    #[must_use]
    pub fn of_arguments(arguments: &[u8]) -> Option<Self> {
        let arguments: Value = serde_json::from_slice(arguments).ok()?;
        let options = arguments["options"].as_array()?;
        let options: Vec<String> = options.iter().filter_map(label).map(str::to_owned).collect();
        let is_multiple = arguments["multi_select"].as_bool().unwrap_or(false);
        let is_free = arguments["free_text"].as_bool().unwrap_or(true);
        (!options.is_empty()).then_some(Self { options, is_multiple, is_free })
    }

    /// Checks an answer: the label of an option, or a JSON array of labels if several may be chosen.
    ///
    /// # Errors
    /// The places in which it is no choice.
    pub fn check(&self, output: &[Content]) -> Result<(), Vec<Violation>> {
        if self.is_free {
            return Ok(());
        }
        let [Content::Text(text) | Content::Json(text)] = output else {
            return Err(vec![Violation::new("", "one text or one JSON value was expected")]);
        };
        let known = |given: &str| self.options.iter().any(|option| option == given);
        if known(text) {
            return Ok(());
        }
        match serde_json::from_str(text) {
            Ok(Value::String(label)) if known(&label) => Ok(()),
            Ok(Value::Array(labels)) if self.is_multiple => {
                let unknown = labels.iter().zip(0..).filter(|(label, _)| !label.as_str().is_some_and(known));
                let unknown: Vec<_> =
                    unknown.map(|(_, at)| Violation::new(format!("/{at}"), self.expected())).collect();
                if unknown.is_empty() { Ok(()) } else { Err(unknown) }
            }
            _ => Err(vec![Violation::new("", self.expected())]),
        }
    }

    fn expected(&self) -> String {
        let several = if self.is_multiple { ", or a JSON array of several," } else { "" };
        format!("one of the options{several} was expected: {}", self.options.join(", "))
    }
}

/// The label of an option: a text, or an object with a label and a description.
fn label(option: &Value) -> Option<&str> {
    option.as_str().or_else(|| option["label"].as_str())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(arguments: &Value, answer: &str) -> Result<(), Vec<String>> {
        let choice = Choice::of_arguments(arguments.to_string().as_bytes());
        let checked = choice.map_or(Ok(()), |choice| choice.check(&[Content::Text(answer.to_owned())]));
        checked.map_err(|violations| violations.into_iter().map(|violation| violation.path).collect())
    }

    #[test]
    fn options_alone_leave_the_answer_free() {
        for arguments in [json!({ "question": "?" }), json!({ "question": "?", "options": ["tea", "coffee"] })] {
            assert_eq!(check(&arguments, "water"), Ok(()));
        }
    }

    #[test]
    fn without_free_text_the_answer_is_an_option() {
        let options = json!([{ "label": "tea", "description": "green" }, { "label": "coffee" }]);
        let one = json!({ "question": "?", "options": options, "free_text": false });
        assert_eq!(check(&one, "tea"), Ok(()));
        assert_eq!(check(&one, "\"tea\""), Ok(()));
        assert_eq!(check(&one, "water"), Err(vec![String::new()]));
        assert_eq!(check(&one, "[\"tea\"]"), Err(vec![String::new()]), "one is to be chosen");
        let several = json!({ "question": "?", "options": options, "free_text": false, "multi_select": true });
        assert_eq!(check(&several, "[\"tea\",\"coffee\"]"), Ok(()));
        assert_eq!(check(&several, "coffee"), Ok(()));
        assert_eq!(check(&several, "[\"tea\",\"water\"]"), Err(vec!["/1".to_owned()]));
    }
}
