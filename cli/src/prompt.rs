//! Asks the user questions that only the client can answer.

use std::io;

use proto::v1;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::terminal::{Paint, Terminal};
use crate::words::harmless;

/// A call that waits for the client, as a question to the user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Question {
    pub(crate) call_id: String,
    tool: String,
    text: String,
    pub(crate) options: Vec<String>,
    /// What each option means; empty if it is not said.
    meanings: Vec<String>,
    /// Several options may be chosen.
    is_multiple: bool,
    /// The values that the answer must name, if it must name more than one.
    fields: Vec<String>,
    /// The question of a running tool, which can be declined.
    can_be_declined: bool,
}

impl Question {
    /// A tool that asks has a `question` and perhaps `options`; a running tool that asks has a `message` and a schema.
    /// For any other call the arguments are shown.
    pub(crate) fn of(waiting: &v1::CallWaiting) -> Self {
        let arguments: Value = serde_json::from_str(&waiting.arguments).unwrap_or(Value::Null);
        let can_be_declined = !waiting.asked_by_call_id.is_empty();
        let asks = if can_be_declined { &arguments["message"] } else { &arguments["question"] };
        let properties = arguments["requestedSchema"]["properties"].as_object();
        let only = properties.filter(|properties| properties.len() == 1).and_then(|all| all.values().next());
        let listed = match only {
            Some(value) if !value["items"]["enum"].is_null() => &value["items"]["enum"],
            Some(value) => &value["enum"],
            None => &arguments["options"],
        };
        let listed = listed.as_array().into_iter().flatten();
        let label = |option: &Value| Some((option.as_str().or(option["label"].as_str())?.to_owned(), meaning(option)));
        let (options, meanings) = listed.filter_map(label).unzip();
        let fields = properties.filter(|all| all.len() > 1).into_iter().flatten().map(|(name, _)| name.clone());
        let mut text = asks.as_str().unwrap_or(&waiting.arguments).to_owned();
        if let Some(url) = arguments["url"].as_str().filter(|_| can_be_declined) {
            text = format!("{text} {url}");
        }
        Self {
            call_id: waiting.call_id.clone(),
            tool: waiting.tool.clone(),
            text,
            options,
            meanings,
            is_multiple: only.is_some_and(|value| value["type"] == "array") || arguments["multi_select"] == true,
            fields: fields.collect(),
            can_be_declined,
        }
    }

    /// The question and its options, a line each.
    pub(crate) fn show(&self, paint: Paint) -> String {
        let (tool, call) = (harmless(&self.tool), harmless(&self.call_id));
        let head = paint.dim(&format!("{tool} · {call}"));
        let mut text = format!("{} {} {head}\n", paint.asking("?"), paint.bold(&harmless(&self.text)));
        for ((option, meaning), number) in self.options.iter().zip(&self.meanings).zip(1..) {
            let meaning = if meaning.is_empty() { String::new() } else { format!(": {}", harmless(meaning)) };
            text.push_str(&format!("  {number}) {}{meaning}\n", harmless(option)));
        }
        if !self.fields.is_empty() {
            text.push_str(&format!("  a JSON object with {}\n", harmless(&self.fields.join(", "))));
        }
        text
    }

    /// The meaning of a typed line: an option's number, several of them, or any text. `None` if it is empty.
    pub(crate) fn answer(&self, line: &str) -> Option<String> {
        let line = line.trim();
        let option = |number: &str| self.options.get(number.trim().parse::<usize>().ok()?.checked_sub(1)?).cloned();
        let several = || line.split(',').map(option).collect::<Option<Vec<String>>>();
        match line {
            "" => None,
            "/decline" | "/cancel" if self.can_be_declined => Some(format!(r#"{{"action":"{}"}}"#, &line[1..])),
            _ if self.is_multiple => {
                Some(several().map_or_else(|| line.to_owned(), |all| Value::from(all).to_string()))
            }
            _ => Some(option(line).unwrap_or_else(|| line.to_owned())),
        }
    }

    /// Asks on the terminal; the answer comes from the [`Keyboard`].
    pub(crate) fn ask(&self, terminal: &Terminal) {
        let paint = terminal.paint_notes();
        let prompt = match (self.options.is_empty(), self.is_multiple) {
            (true, _) => "answer",
            (false, false) => "number or answer",
            (false, true) => "numbers, as 1,3, or answer",
        };
        let declines = if self.can_be_declined { ", /decline or /cancel" } else { "" };
        terminal.aside(&format!("{}{}", self.show(paint), paint.asking(&format!("{prompt}{declines}> "))));
    }
}

fn meaning(option: &Value) -> String {
    option["description"].as_str().unwrap_or_default().to_owned()
}

/// Lines that a person types.
#[derive(Debug, Default)]
pub(crate) struct Keyboard(Option<mpsc::Receiver<String>>);

impl Keyboard {
    /// The next line; `None` when there will be no more. May be dropped while it waits.
    pub(crate) async fn line(&mut self) -> Option<String> {
        self.0.get_or_insert_with(listen).recv().await
    }
}

/// Reads on a thread of its own: a read from a terminal cannot be called off, and the thread ends with the process.
fn listen() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in io::stdin().lines() {
            let Ok(line) = line else { return };
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(arguments: &str) -> Question {
        Question::of(&v1::CallWaiting {
            call_id: "ask".to_owned(),
            tool: "ask_user".to_owned(),
            arguments: arguments.to_owned(),
            deadline: None,
            asked_by_call_id: String::new(),
        })
    }

    fn asked(arguments: &str) -> Question {
        Question::of(&v1::CallWaiting {
            call_id: "ask_0_1_1".to_owned(),
            tool: "elicitation".to_owned(),
            arguments: arguments.to_owned(),
            deadline: None,
            asked_by_call_id: "a".to_owned(),
        })
    }

    #[test]
    fn a_question_of_a_running_tool_is_shown_by_its_schema_and_can_be_declined() {
        let one = r#"{"message":"Which?","requestedSchema":{"properties":{"answer":{"enum":["red","blue"]}}}}"#;
        assert_eq!(asked(one).show(Paint(false)), "? Which? elicitation · ask_0_1_1\n  1) red\n  2) blue\n");
        assert_eq!(asked(one).answer("2").as_deref(), Some("blue"));
        assert_eq!(asked(one).answer("/decline").as_deref(), Some(r#"{"action":"decline"}"#));
        let two = r#"{"message":"Who?","requestedSchema":{"properties":{"name":{},"age":{}}}}"#;
        assert!(asked(two).show(Paint(false)).contains("a JSON object with "));
        let answer = r#"{"type":"array","items":{"enum":["a","b","c"]}}"#;
        let several = format!(r#"{{"message":"Which?","requestedSchema":{{"properties":{{"answer":{answer}}}}}}}"#);
        assert_eq!(asked(&several).answer("1, 3").as_deref(), Some(r#"["a","c"]"#));
        assert_eq!(question(r#"{"question":"?"}"#).answer("/decline").as_deref(), Some("/decline"), "it is a text");
    }

    #[test]
    fn options_have_meanings_and_several_may_be_chosen() {
        let question = question(
            r#"{"question":"?","options":[{"label":"tea","description":"green"},"coffee"],"multi_select":true}"#,
        );
        assert_eq!(question.show(Paint(false)), "? ? ask_user · ask\n  1) tea: green\n  2) coffee\n");
        assert_eq!(question.answer("1,2").as_deref(), Some(r#"["tea","coffee"]"#));
    }

    #[test]
    fn a_number_stands_for_an_option_and_any_other_text_for_itself() {
        let question = question(r#"{"question":"Which?","options":["red","blue"]}"#);
        assert_eq!(question.answer(" 2 ").as_deref(), Some("blue"));
        assert_eq!(question.answer("3").as_deref(), Some("3"));
        assert_eq!(question.answer("0").as_deref(), Some("0"));
        assert_eq!(question.answer("green").as_deref(), Some("green"));
        assert_eq!(question.answer("  "), None);
    }

    #[test]
    fn a_tool_that_asks_nothing_shows_its_arguments() {
        assert_eq!(question(r#"{"path":"/tmp"}"#).text, r#"{"path":"/tmp"}"#);
        assert_eq!(question("no json").text, "no json");
    }

    #[test]
    fn the_options_are_numbered_from_one() {
        let question = question(r#"{"question":"Which?","options":["red","blue"]}"#);
        assert_eq!(question.show(Paint(false)), "? Which? ask_user · ask\n  1) red\n  2) blue\n");
    }
}
