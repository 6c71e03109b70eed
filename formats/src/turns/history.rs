//! A conversation whose last turn is to be answered: calls that have results already are passed over, and calls of
//! earlier turns that never got one are dangling.

use proto::v1::ConversationMessage;
use serde_json::value::RawValue;

use crate::turns::answer::Answer;
use crate::turns::conversation;
use crate::turns::error::{Error, Problem};
use crate::turns::form::Form;
use crate::turns::json::Node;
use crate::turns::limit::TURN_BYTES_MAX;
use crate::turns::turn::{Reason, SkippedItem, Turn};

/// The result of a call that was never executed.
const DANGLING: &str = "the call was not executed: the conversation went on without its result";

/// A conversation as it was sent.
#[derive(Debug)]
pub struct History {
    /// The last turn without the calls that have results. Empty if the conversation went on after it.
    pub turn: Turn,
    /// The last message is the model's. If not, the model must speak next.
    pub is_of_model: bool,
    /// Results for calls of earlier turns: the index of the message after which they belong, and the messages.
    pub dangling: Vec<(usize, Vec<Box<RawValue>>)>,
    /// All of it in a form of no vendor.
    pub messages: Vec<ConversationMessage>,
}

/// A message of a conversation.
enum Said {
    /// Of the model; with calls, if the turn has any.
    Turn(Turn),
    /// Results, by the ids of their calls, or by the tools' names in a form without ids.
    Results(Vec<String>),
    Other,
}

impl History {
    /// Reads the messages of a conversation: Chat Completions, Anthropic or Gemini. For Responses its items are a turn.
    ///
    /// # Errors
    /// An error with a JSON pointer into the list of messages.
    pub fn parse(messages: &[u8], form: Option<Form>) -> Result<Self, Error> {
        if messages.len() > TURN_BYTES_MAX {
            return Err(Error::new("", Problem::TooLarge { bytes: messages.len(), max: TURN_BYTES_MAX }));
        }
        let text =
            std::str::from_utf8(messages).map_err(|error| Error::new("", Problem::NotJson(error.to_string())))?;
        let messages = Node::parse(text, "")?.array()?;
        let form = match form {
            Some(form) => form,
            None => recognised(&messages)?,
        };
        let mut turns: Vec<(usize, Turn, bool)> = Vec::new();
        let mut is_of_model = false;
        for (index, message) in messages.iter().enumerate() {
            let said = said(message, form)?;
            is_of_model = matches!(said, Said::Turn(_));
            match said {
                Said::Turn(turn) if turn.calls.is_empty() && turn.passed_over.is_empty() => close(&mut turns),
                Said::Turn(turn) => {
                    close(&mut turns);
                    turns.push((index, turn, false));
                }
                Said::Results(ids) => {
                    if let Some((last, turn, _)) = turns.last_mut() {
                        answer(turn, ids);
                        // Results that are missing come after those that there are.
                        *last = index;
                    }
                }
                Said::Other => close(&mut turns),
            }
        }
        let messages = conversation::read(&messages, form)?;
        let open = turns.pop_if(|(_, _, is_closed)| !*is_closed);
        let turn = open.map_or_else(|| Turn::empty(form), |(_, turn, _)| turn);
        let dangling = turns.into_iter().filter(|(_, turn, _)| !turn.calls.is_empty());
        let results = |turn: &Turn| turn.answers(|_| Some(Answer::error(DANGLING)));
        let dangling = dangling.map(|(index, turn, _)| (index, results(&turn))).collect();
        Ok(Self { turn, is_of_model, dangling, messages })
    }
}

fn recognised(messages: &[Node<'_>]) -> Result<Form, Error> {
    let mut last = None;
    for message in messages {
        match Form::recognised(message) {
            Ok(form) => last = Some(form),
            Err(error) if matches!(error.problem, Problem::UnknownForm { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(last.unwrap_or(Form::Chat))
}

/// The conversation went on after its newest turn.
fn close(turns: &mut [(usize, Turn, bool)]) {
    if let Some((_, _, is_closed)) = turns.last_mut() {
        *is_closed = true;
    }
}

/// Passes over the calls that have results.
fn answer(turn: &mut Turn, ids: Vec<String>) {
    for id in ids {
        let at = turn.calls.iter().position(|call| call.vendor_id().map_or(call.name == id, |own| own == id));
        let Some(at) = at else { continue };
        let call = turn.calls.remove(at);
        turn.passed_over.push(SkippedItem { pointer: call.pointer, kind: call.name, reason: Reason::Answered });
    }
}

fn said(message: &Node<'_>, form: Form) -> Result<Said, Error> {
    let object = message.object()?;
    let role = object.string("role")?.unwrap_or_default();
    match role.as_str() {
        "assistant" | "model" => {
            let turn = Turn::parse_node(message, form)?;
            Ok(Said::Turn(turn))
        }
        "tool" => Ok(Said::Results(object.string("tool_call_id")?.into_iter().collect())),
        "function" => Ok(Said::Results(object.string("name")?.into_iter().collect())),
        "user" => {
            // In order, and as often as they are there: a form without ids names the tool only.
            let mut ids: Vec<String> = Vec::new();
            let list = object.get("content").or_else(|| object.get("parts")).filter(Node::is_array);
            let mut others = list.is_none();
            for part in list.map(|list| list.array()).transpose()?.into_iter().flatten() {
                let part = part.object()?;
                let result = part.either(["functionResponse", "function_response"]);
                let result = result.map(|result| result.object()).transpose()?;
                let id = match (part.string("tool_use_id"), result) {
                    (Ok(Some(id)), _) => Some(id),
                    (_, Some(result)) => result.string("id")?.or(result.string("name")?),
                    _ => None,
                };
                others |= id.is_none();
                ids.extend(id);
            }
            // Text beside results is said after them.
            Ok(if ids.is_empty() && others { Said::Other } else { Said::Results(ids) })
        }
        _ => Ok(Said::Other),
    }
}
