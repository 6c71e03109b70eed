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
}

impl Question {
    /// A tool that asks has a `question` and perhaps `options`; for any other tool the arguments are shown.
    pub(crate) fn of(waiting: &v1::CallWaiting) -> Self {
        let arguments: Value = serde_json::from_str(&waiting.arguments).unwrap_or(Value::Null);
        let options = arguments["options"].as_array().into_iter().flatten().filter_map(Value::as_str);
        Self {
            call_id: waiting.call_id.clone(),
            tool: waiting.tool.clone(),
            text: arguments["question"].as_str().unwrap_or(&waiting.arguments).to_owned(),
            options: options.map(str::to_owned).collect(),
        }
    }

    /// The question and its options, a line each.
    pub(crate) fn show(&self, paint: Paint) -> String {
        let (tool, call) = (harmless(&self.tool), harmless(&self.call_id));
        let head = paint.dim(&format!("{tool} · {call}"));
        let mut text = format!("{} {} {head}\n", paint.asking("?"), paint.bold(&harmless(&self.text)));
        for (option, number) in self.options.iter().zip(1..) {
            text.push_str(&format!("  {number}) {}\n", harmless(option)));
        }
        text
    }

    /// The meaning of a typed line: an option's number, or any text. `None` if it is empty.
    pub(crate) fn answer(&self, line: &str) -> Option<String> {
        let line = line.trim();
        let chosen = line.parse::<usize>().ok().and_then(|number| self.options.get(number.checked_sub(1)?));
        match chosen {
            Some(option) => Some(option.clone()),
            None if line.is_empty() => None,
            None => Some(line.to_owned()),
        }
    }

    /// Asks on the terminal; the answer comes from the [`Keyboard`].
    pub(crate) fn ask(&self, terminal: &Terminal) {
        let paint = terminal.paint_notes();
        let prompt = if self.options.is_empty() { "answer> " } else { "number or answer> " };
        terminal.aside(&format!("{}{}", self.show(paint), paint.asking(prompt)));
    }
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
        })
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
