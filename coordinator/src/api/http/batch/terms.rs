//! A request of the batch endpoint: the turn, and the options in the query, the headers and the body. The options
//! become a `CreateRunRequest`, whose calls are those of the turn.

use std::collections::HashMap;
use std::time::Duration;

use formats::openai::InputError;
use formats::options::{Enveloped, ON_DISCONNECT, Options, on_disconnect};
use formats::turns::{Form, History, Turn};
use proto::convert::{self, api};
use proto::v1;
use serde_json::value::RawValue;

use crate::api::http::ask::Ask;
use crate::api::problem::{Place, Problem, pointer};

/// Default waiting time.
const WAIT: Duration = Duration::from_secs(30);
/// Longest waiting time, which most proxies allow; a client that wants to wait longer repeats the request.
const WAIT_MAX: Duration = Duration::from_secs(300);

/// The request.
pub(super) struct Terms {
    pub(super) turn: Turn,
    /// Results for calls of earlier turns of a conversation, behind the message that they follow.
    pub(super) dangling: Vec<(usize, Vec<Box<RawValue>>)>,
    /// The newest message is the model's.
    pub(super) is_of_model: bool,
    pub(super) options: Options,
    pub(super) wait: Duration,
    /// No call is executed before this time.
    not_before: Option<prost_types::Timestamp>,
    /// The JSON pointer of the turn in the body.
    turn_at: &'static str,
    /// Names of options that the query gives.
    in_query: Vec<String>,
    /// The pointers of the calls to execute, and which of the options of calls is theirs.
    called_at: Vec<(String, Option<usize>)>,
}

/// How long a client waits, and the form that it names: what a request about a run has too.
pub(super) struct Wanted {
    pub(super) form: Option<Form>,
    pub(super) wait: Duration,
}

impl Wanted {
    /// Takes one of the parameters that it has; `false` if it is none of them.
    pub(super) fn take(&mut self, name: &str, value: &str) -> Result<bool, Problem> {
        match name {
            // The name under which the same vendor's tool definitions are exported.
            "format" if value == "openai" => self.form = Some(Form::Responses),
            "format" => {
                let form = value.parse();
                self.form = Some(form.map_err(|error: formats::turns::UnknownName| wrong(name, error.to_string()))?);
            }
            "wait" => {
                let wait = duration(value).filter(|wait| *wait <= WAIT_MAX);
                self.wait = wait.ok_or_else(|| {
                    wrong(name, format!("{value:?} is not a duration of at most {} s, such as 30s", WAIT_MAX.as_secs()))
                })?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn wrong(name: &str, why: impl std::fmt::Display) -> Problem {
    Problem::malformed(Place::Parameter(name.to_owned()), format!("{name}: {why}"))
}

impl Terms {
    pub(super) fn read(ask: &Ask) -> Result<Self, Problem> {
        let enveloped = Enveloped::read(&ask.body).map_err(refused)?;
        let (turn_at, is_history, mut options) = (enveloped.pointer, enveloped.is_history, enveloped.options);
        let mut wanted = Wanted { form: None, wait: WAIT };
        let (mut not_before, mut in_query) = (None, Vec::new());
        for (name, value) in &ask.query {
            if wanted.take(name, value)? {
                continue;
            }
            in_query.push(name.clone());
            match name.as_str() {
                "not_before" => {
                    let time = value.parse().ok().filter(|time| api::time_in(*time).is_some());
                    let reason = || wrong(name, format!("{value:?} is not a time, such as 2030-01-01T00:00:00Z"));
                    not_before = Some(time.ok_or_else(reason)?);
                }
                _ => Given { name, value }.give_to(&mut options)?,
            }
        }
        let key = ask.request_id(std::mem::take(&mut options.run.request_id))?;
        options.run.request_id = key;
        let unreadable = |error: formats::turns::Error| {
            let (reason, detail) = (error.problem.reason(), error.to_string());
            Problem::at(reason, Place::Body(format!("{turn_at}{}", error.pointer)), detail)
        };
        let (turn, dangling, is_of_model) = if is_history {
            let History { turn, dangling, is_of_model, messages } =
                History::parse(enveloped.turn, wanted.form).map_err(unreadable)?;
            // The one that the options name is not of this form.
            if options.run.conversation.is_empty() {
                options.run.conversation = messages;
            }
            (turn, dangling, is_of_model)
        } else {
            (Turn::parse(enveloped.turn, wanted.form).map_err(unreadable)?, Vec::new(), true)
        };
        // In a shared run a call without an id of its own is given a random one.
        let is_named = |call: &formats::turns::Call| options.run_id.is_empty() || call.has_own_id();
        let has = |id: &str| turn.calls.iter().any(|call| call.id == id && is_named(call));
        options.check_ids(has).map_err(refused)?;
        let (wait, called_at) = (wanted.wait, Vec::new());
        Ok(Self { turn, dangling, is_of_model, options, wait, not_before, turn_at, in_query, called_at })
    }

    /// The calls to execute, and the errors of the others by the ids of their calls.
    pub(super) fn calls(&mut self) -> (Vec<v1::NewCall>, HashMap<String, String>) {
        let (mut calls, mut refused) = (Vec::new(), HashMap::new());
        for call in &self.turn.calls {
            match call.to_execute(&self.options.run.request_tools) {
                Ok(new) => {
                    let options = self.options.run.calls.iter().position(|options| options.call_id == call.id);
                    self.called_at.push((call.pointer.clone(), options));
                    calls.push(self.options.give_to_call(v1::NewCall { not_before: self.not_before, ..new }));
                }
                Err(why) => {
                    refused.insert(call.id.clone(), why);
                }
            }
        }
        (calls, refused)
    }

    /// Where in the request a field of the message is that was made from it.
    pub(super) fn place(&self, ask: &Ask, field: &str) -> Place {
        let (index, of_call) = field.strip_prefix("calls[").and_then(|rest| rest.split_once(']')).unzip();
        let called_at = index.and_then(|index| self.called_at.get(index.parse::<usize>().ok()?));
        let of_call = of_call.unwrap_or_default();
        let is_option = !matches!(of_call, "" | ".call_id" | ".tool" | ".arguments");
        let has_time = |options: usize| self.options.run.calls[options].not_before.is_some();
        let option = field.rsplit('.').next().unwrap_or(field);
        let option = if option == "run_id" { "run" } else { option };
        match called_at {
            Some((_, Some(at))) if is_option && (of_call != ".not_before" || has_time(*at)) => {
                Place::Body(format!("/toolyard/calls/{at}{}", pointer(of_call.trim_start_matches('.'))))
            }
            Some((call, _)) if of_call != ".not_before" => Place::Body(format!("{}{call}", self.turn_at)),
            _ if self.in_query.iter().any(|name| name == option) => Place::Parameter(option.to_owned()),
            _ if field == "request_id" && ask.headers.contains_key("idempotency-key") => {
                Place::Header("idempotency-key")
            }
            _ if field == "run_id" => Place::Body("/toolyard/run".to_owned()),
            _ => Place::Body(format!("/toolyard{}", pointer(field))),
        }
    }

    /// The floor policy of the events. Without one no call's output is held back by another's, so the calls that have
    /// ended when the time is up are answered.
    pub(super) fn floor_policy(&self, ask: &Ask) -> Result<v1::FloorPolicy, Problem> {
        let place = || self.place(ask, "floor_policy");
        match self.options.floor_policy.as_str() {
            "" => Ok(v1::FloorPolicy::Interleaved),
            _ if !ask.wants_events() => {
                Err(Problem::malformed(place(), "floor_policy: is for a client that accepts text/event-stream"))
            }
            name => v1::FloorPolicy::from_str_name(name).ok_or_else(|| {
                let names = "FLOOR_POLICY_ARRIVAL, FLOOR_POLICY_SUBMISSION or FLOOR_POLICY_INTERLEAVED";
                Problem::malformed(place(), format!("floor_policy: {name:?} is not {names}"))
            }),
        }
    }
}

/// An option in the query.
struct Given<'a> {
    name: &'a str,
    value: &'a str,
}

impl Given<'_> {
    fn give_to(self, options: &mut Options) -> Result<(), Problem> {
        let Self { name, value } = self;
        let run = &mut options.run;
        let is_new = match name {
            "timeout" => {
                let timeout = duration(value).filter(|timeout| !timeout.is_zero());
                let reason = || wrong(name, format!("{value:?} is not a duration, such as 90s"));
                run.timeout.replace(convert::duration(timeout.ok_or_else(reason)?)).is_none()
            }
            "tenant" => {
                value.parse::<run::TenantId>().map_err(|error| wrong(name, error))?;
                std::mem::replace(&mut run.tenant, value.to_owned()).is_empty()
            }
            "confirmation" => {
                let confirmation = match value {
                    "none" => v1::Confirmation::None,
                    "ask" => v1::Confirmation::Ask,
                    _ => return Err(wrong(name, format!("{value:?} is neither none nor ask"))),
                };
                let rules = run.rules.get_or_insert_default();
                std::mem::replace(&mut rules.confirmation, confirmation.into()) == 0
            }
            "store" => run.store.replace(flag(name, value)?).is_none(),
            "run" => std::mem::replace(&mut options.run_id, value.to_owned()).is_empty(),
            "floor_policy" => std::mem::replace(&mut options.floor_policy, value.to_owned()).is_empty(),
            "on_disconnect" => {
                let cancels = on_disconnect(value).ok_or_else(|| wrong(name, ON_DISCONNECT))?;
                !std::mem::replace(&mut options.cancels_on_disconnect, cancels)
            }
            _ => {
                let known = "format, wait, timeout, not_before, tenant, confirmation, store, run, floor_policy, \
                    on_disconnect; all others are members of `toolyard` in the body";
                return Err(wrong(name, format!("unknown parameter; known parameters: {known}")));
            }
        };
        if is_new { Ok(()) } else { Err(wrong(name, "is given twice, or in `toolyard` too: send it once")) }
    }
}

fn flag(name: &str, value: &str) -> Result<bool, Problem> {
    value.parse().map_err(|_| wrong(name, format!("{value:?} is neither true nor false")))
}

/// A problem of the options in the body.
fn refused(error: InputError) -> Problem {
    Problem::at(error.reason, Place::Body(error.pointer), error.message)
}

/// `1.5s`, `500ms`, `2m`.
fn duration(text: &str) -> Option<Duration> {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit_s = match &text[number.len()..] {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit_s).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_and_its_unit() {
        assert_eq!(duration("30s"), Some(Duration::from_secs(30)));
        assert_eq!(duration("1.5s"), Some(Duration::from_millis(1500)));
        assert_eq!(duration("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(duration("2m"), Some(Duration::from_secs(120)));
        for text in ["", "s", "30", "-1s", "1e400s", "NaNs", "1 s", "1h", "1ss", "٣s"] {
            assert_eq!(duration(text), None, "{text:?}");
        }
    }
}
