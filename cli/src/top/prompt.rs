//! The line that the user types, and what it is for.

use proto::v1;

use super::effect::Action;
use crate::prompt::Question;

/// What a line is for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Rows are shown if they contain it.
    Filter,
    /// The action is done if it is `y`.
    Confirm(Action),
    /// The answer to a question of a run.
    Answer { run_id: String, question: Question },
    /// Why a call is not executed.
    Reject { run_id: String, call_id: String },
    /// Arguments with which a call is approved instead of its own.
    Arguments { run_id: String, call_id: String },
    /// Why a pool is paused.
    Pause { pool: String },
}

/// A line that is being typed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Prompt {
    pub(super) purpose: Purpose,
    pub(super) text: String,
    /// The cursor, in characters from the beginning.
    pub(super) cursor: usize,
}

impl Prompt {
    pub(super) fn new(purpose: Purpose, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { purpose, cursor: text.chars().count(), text }
    }

    /// The question in front of the line.
    pub(super) fn label(&self) -> String {
        match &self.purpose {
            Purpose::Filter => "/".to_owned(),
            Purpose::Confirm(action) => format!("{}? y/n ", action.question()),
            Purpose::Answer { question, .. } if question.options.is_empty() => "answer> ".to_owned(),
            Purpose::Answer { .. } => "number or answer> ".to_owned(),
            Purpose::Reject { .. } => "reject, because> ".to_owned(),
            Purpose::Arguments { .. } => "approve with> ".to_owned(),
            Purpose::Pause { pool } => format!("pause pool {pool}, because> "),
        }
    }

    /// Adds text at the cursor, without characters that a line cannot hold.
    pub(super) fn insert(&mut self, text: &str) {
        for letter in text.chars().filter(|letter| !letter.is_control()) {
            let at = self.byte(self.cursor);
            self.text.insert(at, letter);
            self.cursor += 1;
        }
    }

    /// Removes the character before the cursor.
    pub(super) fn back(&mut self) {
        if self.cursor > 0 {
            self.cursor -= 1;
            self.text.remove(self.byte(self.cursor));
        }
    }

    /// Removes the character at the cursor.
    pub(super) fn delete(&mut self) {
        if self.cursor < self.text.chars().count() {
            self.text.remove(self.byte(self.cursor));
        }
    }

    pub(super) fn left(&mut self) {
        self.cursor = self.cursor.saturating_sub(1);
    }

    pub(super) fn right(&mut self) {
        self.cursor = (self.cursor + 1).min(self.text.chars().count());
    }

    pub(super) fn home(&mut self) {
        self.cursor = 0;
    }

    pub(super) fn end(&mut self) {
        self.cursor = self.text.chars().count();
    }

    pub(super) fn clear(&mut self) {
        self.text.clear();
        self.cursor = 0;
    }

    fn byte(&self, chars: usize) -> usize {
        self.text.char_indices().nth(chars).map_or(self.text.len(), |(at, _)| at)
    }

    /// The action that the typed line requests; `Ok(None)` if it requests none.
    ///
    /// # Errors
    /// What is wrong with the line.
    pub(super) fn action(&self) -> Result<Option<Action>, String> {
        let text = self.text.trim().to_owned();
        Ok(Some(match &self.purpose {
            Purpose::Filter => return Ok(None),
            Purpose::Confirm(action) if text.eq_ignore_ascii_case("y") || text.eq_ignore_ascii_case("yes") => {
                action.clone()
            }
            Purpose::Confirm(_) => return Ok(None),
            Purpose::Answer { run_id, question } => {
                let text = question.answer(&text).ok_or("the answer is empty: type it, or leave with Esc")?;
                Action::Answer { run_id: run_id.clone(), call_id: question.call_id.clone(), text }
            }
            Purpose::Reject { run_id, call_id } => {
                Action::Reject { run_id: run_id.clone(), call_id: call_id.clone(), reason: text }
            }
            Purpose::Arguments { run_id, call_id } => {
                let parsed: Result<serde_json::Map<String, serde_json::Value>, _> = serde_json::from_str(&text);
                parsed.map_err(|error| format!("the arguments are no JSON object: {error}"))?;
                Action::Approve { run_id: run_id.clone(), call_id: call_id.clone(), arguments: Some(text) }
            }
            Purpose::Pause { pool } => Action::Pause { pool: pool.clone(), reason: text },
        }))
    }
}

/// A call that waits for its client, as a question.
pub(super) fn question(call: &v1::Call) -> Question {
    let (call_id, tool, arguments) = (call.call_id.clone(), call.tool.clone(), call.arguments.clone());
    let asked_by_call_id = call.asked_by_call_id.clone();
    Question::of(&v1::CallWaiting { call_id, tool, arguments, deadline: None, asked_by_call_id })
}
