//! A turn of a model: its calls are executed as a run, and the messages that answer it are made of their ends.

use std::collections::HashMap;

use formats::heard::Heard;
use formats::turns::{self, Answer};
use proto::v1;
use serde_json::value::RawValue;

use crate::client::{Client, passes};
use crate::error::Error;
use crate::inlining::Inlining;
use crate::watch::{Floor, Watch};

pub use formats::turns::{Call, Error as UnreadableTurn, Form, Reason as PassedOver, SkippedItem};

/// A turn of a model in the form of its vendor, while its calls are executed.
///
/// ```no_run
/// # use toolyard_client::turn::{Turn, TurnError};
/// # use toolyard_client::{Client, v1};
/// # async fn example(client: &Client, message: &[u8]) -> Result<(), TurnError> {
/// let run = v1::CreateRunRequest { request_id: "conversation-7/1".to_owned(), ..v1::CreateRunRequest::default() };
/// let mut turn = Turn::read(message, None, run)?;
/// turn.start(client, v1::FloorPolicy::Interleaved).await?;
/// while let Some(events) = turn.next().await? {
///     println!("{} events", events.len());
/// }
/// println!("{:?}", turn.messages());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Turn {
    turn: turns::Turn,
    /// The run without its calls.
    options: v1::CreateRunRequest,
    /// Errors of calls that are not executed.
    refused: HashMap<String, String>,
    heard: Heard,
    running: Option<(Client, Watch)>,
    /// Events that were read and not given out, because stored parts of their results are being read.
    fetched: Option<Vec<v1::RunEvent>>,
    inlining: Inlining,
}

/// Why a turn is not executed.
#[derive(Debug, thiserror::Error)]
pub enum TurnError {
    /// It cannot be read; nothing was sent.
    #[error("the model's message cannot be read: {0}")]
    Unreadable(#[from] UnreadableTurn),
    /// The request failed.
    #[error(transparent)]
    Request(#[from] Error),
}

impl Turn {
    /// Reads the assistant's message as its vendor's API returned it. Without a form, the form is recognised. `options`
    /// is the run without its calls; give it a `request_id`, because the request may be repeated.
    ///
    /// # Errors
    /// The message is of no form, or of several.
    pub fn read(message: &[u8], form: Option<Form>, options: v1::CreateRunRequest) -> Result<Self, UnreadableTurn> {
        let turn = turns::Turn::parse(message, form)?;
        let mut read = Self {
            turn,
            options,
            refused: HashMap::new(),
            heard: Heard::default(),
            running: None,
            fetched: None,
            inlining: Inlining::default(),
        };
        for call in &read.turn.calls {
            if let Err(why) = call.to_execute(&read.options.request_tools) {
                read.refused.insert(call.id.clone(), why);
            }
        }
        Ok(read)
    }

    /// The form of the message.
    #[must_use]
    pub fn form(&self) -> Form {
        self.turn.form
    }

    /// Calls of the message. Those that cannot be read are answered without being executed.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.turn.calls
    }

    /// Requested items that are not answered here, such as those that the vendor executes.
    #[must_use]
    pub fn passed_over(&self) -> &[SkippedItem] {
        &self.turn.passed_over
    }

    /// The calls that are executed: all but those that cannot be read.
    #[must_use]
    pub fn executed(&self) -> Vec<v1::NewCall> {
        let own = &self.options.request_tools;
        self.turn.calls.iter().filter_map(|call| call.to_execute(own).ok()).collect()
    }

    /// Has the calls executed. If the run of this request id exists, its output is read from the beginning. Does
    /// nothing if there are no calls to execute.
    ///
    /// # Errors
    /// If the coordinator refuses the request or cannot be reached.
    pub async fn start(&mut self, client: &Client, floor: v1::FloorPolicy) -> Result<(), Error> {
        let calls = self.executed();
        if calls.is_empty() {
            return Ok(());
        }
        let run = v1::CreateRunRequest { calls, ..self.options.clone() };
        let is_repeatable = !run.request_id.is_empty();
        let request = v1::ExecuteRunRequest {
            run: Some(run.clone()),
            floor_policy: floor.into(),
            ..v1::ExecuteRunRequest::default()
        };
        let watch = match client.execute(request).await {
            Ok(watch) => watch,
            Err(error) if is_repeatable && may_pass(&error) => created(client, run, floor.into()).await?,
            Err(error) => return Err(error),
        };
        self.running = Some((client.clone(), watch));
        Ok(())
    }

    /// The next events of the run, at least one; `None` once it has ended, or if nothing is executed. Cancel safe: if
    /// it is dropped while it waits, no event is lost.
    ///
    /// # Errors
    /// As [`Watch::next`].
    pub async fn next(&mut self) -> Result<Option<Vec<v1::RunEvent>>, Error> {
        if self.fetched.is_none() {
            let Some(events) = self.fetch().await? else { return Ok(None) };
            events.iter().for_each(|event| self.heard.take(event));
            self.inlining.note(&events);
            self.fetched = Some(events);
        }
        if let Some((client, _)) = &self.running {
            self.inlining.read(client, &mut self.heard).await?;
        }
        Ok(self.fetched.take())
    }

    async fn fetch(&mut self) -> Result<Option<Vec<v1::RunEvent>>, Error> {
        let Some((client, watch)) = &mut self.running else { return Ok(None) };
        match watch.next().await {
            // The connection broke before the run was known, and the request id finds it.
            Err(Error::RunUnknown) if !self.options.request_id.is_empty() => {
                let (client, floor) = (client.clone(), watch.floor());
                let run = v1::CreateRunRequest { calls: self.executed(), ..self.options.clone() };
                let watch = created(&client, run, floor).await?;
                self.running.insert((client, watch)).1.next().await
            }
            events => events,
        }
    }

    /// The messages that answer the turn, as the vendor's API takes them after it: of the calls that have ended so far.
    #[must_use]
    pub fn messages(&self) -> Vec<Box<RawValue>> {
        self.turn.answers(|call| match self.refused.get(&call.id) {
            Some(why) => Some(Answer::error(why)),
            None => self.heard.answer(&call.id),
        })
    }

    /// Whether every call has an answer.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.turn.calls.iter().all(|call| self.refused.contains_key(&call.id) || self.heard.has_ended(&call.id))
    }

    /// Why a call is answered with an error without being executed.
    #[must_use]
    pub fn refusal(&self, call_id: &str) -> Option<&str> {
        self.refused.get(call_id).map(String::as_str)
    }
}

/// Whether the same request may succeed in a moment.
fn may_pass(error: &Error) -> bool {
    match error {
        Error::Unreachable { .. } | Error::RunUnknown => true,
        Error::Refused(status) => passes(status),
        Error::Settings(_) | Error::Source(_) => false,
    }
}

/// Accepts a run, or finds the one of its request id, and reads its output from the beginning.
async fn created(client: &Client, run: v1::CreateRunRequest, floor: Floor) -> Result<Watch, Error> {
    let run = client.create(run).await?;
    client.watch_in(&run.run_id, None, floor).await
}

#[cfg(test)]
mod tests {
    use proto::v1::run_event::Event;
    use serde_json::Value;

    use super::*;

    fn read(message: &str) -> Turn {
        Turn::read(message.as_bytes(), None, v1::CreateRunRequest::default()).unwrap()
    }

    #[test]
    fn a_call_that_cannot_be_read_is_answered_and_the_others_are_executed() {
        let mut turn = read(
            r#"{"role":"assistant","tool_calls":[
                {"id":"a","type":"function","function":{"name":"grep","arguments":"{\"x\":1}"}},
                {"id":"b","type":"function","function":{"name":"grep","arguments":"{\"x\":"}},
                {"id":"c","type":"function","function":{"name":"not a name","arguments":"{}"}}]}"#,
        );
        let executed: Vec<_> = turn.executed().into_iter().map(|call| (call.call_id, call.arguments)).collect();
        assert_eq!(executed, [("a".to_owned(), r#"{"x":1}"#.to_owned())]);
        assert!(turn.refusal("b").is_some() && turn.refusal("c").is_some() && !turn.is_answered());
        let outcome = v1::CallOutcome { state: v1::CallState::Completed.into(), ..v1::CallOutcome::default() };
        let ended = v1::CallEnded { call_id: "a".to_owned(), outcome: Some(outcome), ..v1::CallEnded::default() };
        turn.heard.take(&v1::RunEvent { event: Some(Event::CallEnded(ended)), ..v1::RunEvent::default() });
        assert!(turn.is_answered());
        let ids: Vec<Value> = turn.messages().iter().map(|it| serde_json::from_str(it.get()).unwrap()).collect();
        assert_eq!(ids.iter().map(|it| &it["tool_call_id"]).collect::<Vec<_>>(), ["a", "b", "c"]);
    }

    #[test]
    fn a_message_without_calls_is_answered_by_nothing() {
        let turn = read(r#"{"role":"assistant","content":"Hello"}"#);
        assert!(turn.is_answered() && turn.messages().is_empty() && turn.executed().is_empty());
    }
}
