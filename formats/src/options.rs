//! The options of Toolyard in requests that have the form of another API: the member `toolyard` of the body. It is the
//! JSON form of a `CreateRunRequest`, whose calls have ids and options alone, and has three members of its own.

use proto::{json, v1};
use run::limit::CALLS_PER_RUN_MAX;
use serde_json::value::RawValue;

use crate::openai::InputError;
use crate::turns::json::{Node, Object};

/// The member's name.
pub const MEMBER: &str = "toolyard";

/// The options of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    /// Everything but the calls: it has their ids and options.
    pub run: v1::CreateRunRequest,
    /// The open run to which the calls are added; empty for a run of their own.
    pub run_id: String,
    /// The floor policy by its name; empty for the endpoint's default.
    pub floor_policy: String,
    /// Cancel the calls if the client disconnects.
    pub cancels_on_disconnect: bool,
}

/// A turn in a body, which may be the turn itself.
#[derive(Debug)]
pub struct Enveloped<'a> {
    pub turn: &'a [u8],
    /// The JSON pointer of the turn in the body.
    pub pointer: &'static str,
    /// The turn is a conversation, whose last turn may have calls.
    pub is_history: bool,
    pub options: Options,
}

impl<'a> Enveloped<'a> {
    /// Splits a body: `{"turn": …, "toolyard": …}`, `{"messages": […], "toolyard": …}`, or the turn itself, which
    /// may have a member `toolyard` beside those of its vendor.
    ///
    /// # Errors
    /// The options are invalid.
    pub fn read(body: &'a [u8]) -> Result<Self, InputError> {
        let whole = |options| Self { turn: body, pointer: "", is_history: false, options };
        // A body that cannot be read is reported as a turn.
        let members = std::str::from_utf8(body).ok().and_then(|text| Node::parse(text, "").ok()?.object().ok());
        let Some(members) = members else { return Ok(whole(Options::default())) };
        let options = members.get(MEMBER).map(|options| Options::of(&options)).transpose()?.unwrap_or_default();
        // A response of a vendor has neither.
        for (name, pointer, is_history) in [("turn", "/turn", false), ("messages", "/messages", true)] {
            let Some(turn) = members.get(name) else { continue };
            if let Some(other) = members.names_other_than(&[name, MEMBER]).into_iter().next() {
                let message = format!("it is unknown beside `{name}`, which is the turn: put options into `{MEMBER}`");
                return Err(InputError::invalid(format!("/{other}"), message));
            }
            return Ok(Self { turn: turn.text.as_bytes(), pointer, is_history, options });
        }
        Ok(whole(options))
    }
}

impl Options {
    /// Reads the member, if it is there.
    ///
    /// # Errors
    /// An error with a JSON pointer into the body.
    pub(crate) fn read(member: Option<&RawValue>) -> Result<Self, InputError> {
        match member.filter(|member| member.get() != "null") {
            None => Ok(Self::default()),
            Some(member) => {
                let at = format!("/{MEMBER}");
                let node = Node::parse(member.get(), &at).map_err(InputError::from)?;
                Self::of(&node)
            }
        }
    }

    fn of(node: &Node<'_>) -> Result<Self, InputError> {
        let members: Object<'_> = node.object()?;
        let text = |name: &str| Ok::<_, InputError>(members.string(name)?.unwrap_or_default());
        let (run_id, floor_policy) = (text("run")?, text("floor_policy")?);
        let cancels_on_disconnect = on_disconnect(&text("on_disconnect")?)
            .ok_or_else(|| InputError::invalid(format!("/{MEMBER}/on_disconnect"), ON_DISCONNECT))?;
        let own = ["run", "floor_policy", "on_disconnect"];
        let others = members.names_other_than(&own);
        let others = others.iter().filter_map(|name| Some((name.as_str(), Some(members.get(name)?.text.to_owned()))));
        let others = crate::turns::json::object(&others.collect::<Vec<_>>());
        let run: v1::CreateRunRequest = json::read(others.as_bytes(), &[])
            .map_err(|error| InputError::invalid(format!("/{MEMBER}{}", pointer(&error.field)), error.to_string()))?;
        check_calls(&run.calls)?;
        Ok(Self { run, run_id, floor_policy, cancels_on_disconnect })
    }

    /// Gives the options to a request that has calls and options of its API's own form. An option that both have is
    /// ambiguous.
    ///
    /// # Errors
    /// As described.
    pub(crate) fn give_to(self, mut own: v1::CreateRunRequest) -> Result<v1::CreateRunRequest, InputError> {
        self.check_ids(|id| own.calls.iter().any(|call| call.call_id == id))?;
        let calls = std::mem::take(&mut own.calls).into_iter().map(|call| self.give_to_call(call)).collect();
        let mut run = v1::CreateRunRequest { calls, ..self.run };
        run.tools.append(&mut own.tools);
        run.request_tools.append(&mut own.request_tools);
        run.files.append(&mut own.files);
        if run.conversation.is_empty() {
            run.conversation = own.conversation;
        }
        let both = |name: &str| {
            let message = "the request says this in its own form too: send it once";
            InputError::invalid(format!("/{MEMBER}/{name}"), message)
        };
        if let Some(store) = own.store
            && run.store.replace(store).is_some_and(|other| other != store)
        {
            return Err(both("store"));
        }
        if let Some(own) = own.rules {
            let rules = run.rules.get_or_insert_default();
            merge(&mut rules.confirmation, own.confirmation).ok_or_else(|| both("rules/confirmation"))?;
            merge(&mut rules.running_max, own.running_max).ok_or_else(|| both("rules/running_max"))?;
            merge(&mut rules.calls_max, own.calls_max).ok_or_else(|| both("rules/calls_max"))?;
            merge(&mut rules.priority, own.priority).ok_or_else(|| both("rules/priority"))?;
        }
        Ok(run)
    }

    /// Checks that every call with options is one of the request.
    ///
    /// # Errors
    /// The first that is not.
    pub fn check_ids(&self, has: impl Fn(&str) -> bool) -> Result<(), InputError> {
        match self.run.calls.iter().position(|call| !has(&call.call_id)) {
            Some(index) => {
                let message = format!("no call of the request has the id {:?}", self.run.calls[index].call_id);
                Err(InputError::invalid(format!("/{MEMBER}/calls/{index}/call_id"), message))
            }
            None => Ok(()),
        }
    }

    /// Gives a call of the request its options.
    #[must_use]
    pub fn give_to_call(&self, call: v1::NewCall) -> v1::NewCall {
        let Some(options) = self.run.calls.iter().find(|options| options.call_id == call.call_id) else { return call };
        let v1::NewCall { call_id, tool, arguments, not_before, .. } = call;
        v1::NewCall { call_id, tool, arguments, not_before: options.not_before.or(not_before), ..options.clone() }
    }

    /// The options have something that only a new run can have, named.
    #[must_use]
    pub fn of_new_run(&self) -> bool {
        let run = self.run.clone();
        let v1::CreateRunRequest { calls, request_tools, files, approve, context, conversation, .. } = run;
        let other = v1::CreateRunRequest {
            calls,
            request_tools,
            files,
            approve,
            context,
            conversation,
            ..v1::CreateRunRequest::default()
        };
        self.run != other
    }
}

/// Options of calls name their calls by ids; tools and arguments are those of the request.
fn check_calls(calls: &[v1::NewCall]) -> Result<(), InputError> {
    if calls.len() > CALLS_PER_RUN_MAX {
        let message = format!("has the options of {} calls; a run has at most {CALLS_PER_RUN_MAX}", calls.len());
        return Err(InputError::invalid(format!("/{MEMBER}/calls"), message));
    }
    for (index, call) in calls.iter().enumerate() {
        let wrong =
            |name: &str, message: &str| Err(InputError::invalid(format!("/{MEMBER}/calls/{index}/{name}"), message));
        let own = "the request has it already: give the `call_id` and options of the call alone";
        match call {
            v1::NewCall { tool, .. } if !tool.is_empty() => return wrong("tool", own),
            v1::NewCall { arguments, .. } if !arguments.is_empty() => return wrong("arguments", own),
            v1::NewCall { call_id, .. } if call_id.is_empty() => {
                return wrong("call_id", "is missing: name a call of the request");
            }
            v1::NewCall { call_id, .. } if calls[..index].iter().any(|other| other.call_id == *call_id) => {
                return wrong("call_id", "is there twice: give all options of a call at once");
            }
            v1::NewCall { .. } => {}
        }
    }
    Ok(())
}

/// Sets a value unless it is another one already; 0 is none.
fn merge<T: Default + PartialEq>(value: &mut T, own: T) -> Option<()> {
    let is_free = *value == T::default() || *value == own;
    if own != T::default() {
        if !is_free {
            return None;
        }
        *value = own;
    }
    Some(())
}

/// Why a value of `on_disconnect` is refused.
pub const ON_DISCONNECT: &str = "cancel or continue was expected";

/// Whether calls are cancelled when their client disconnects.
#[must_use]
pub fn on_disconnect(value: &str) -> Option<bool> {
    match value {
        "" | "continue" => Some(false),
        "cancel" => Some(true),
        _ => None,
    }
}

/// The pointer to a field such as `files[0].tool`.
fn pointer(field: &str) -> String {
    let steps = field.split(['.', '[']).map(|step| step.trim_end_matches(']')).filter(|step| !step.is_empty());
    steps.map(|step| format!("/{step}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &str) -> Result<Enveloped<'_>, InputError> {
        Enveloped::read(body.as_bytes())
    }

    #[test]
    fn the_options_are_a_member_of_the_turn_or_stand_beside_it() {
        let files = r#"[{"tool":"_all","name":"a","object_id":"o"}]"#;
        let options = format!(r#"{{"tenant":"acme","files":{files},"on_disconnect":"cancel","run":"run_1"}}"#);
        let inside = format!(r#"{{"role":"assistant","tool_calls":[],"toolyard":{options}}}"#);
        let beside = format!(r#"{{"turn":[1],"toolyard":{options}}}"#);
        for (body, turn, pointer) in [(&inside, inside.as_str(), ""), (&beside, "[1]", "/turn")] {
            let read = read(body).unwrap();
            assert_eq!((read.turn, read.pointer), (turn.as_bytes(), pointer));
            let Options { run, run_id, cancels_on_disconnect, .. } = read.options;
            assert_eq!((run.tenant.as_str(), run.files.len(), run_id.as_str()), ("acme", 1, "run_1"));
            assert!(cancels_on_disconnect);
        }
        for body in ["[1]", "{", "", r#"{"role":"assistant"}"#] {
            let read = read(body).unwrap();
            assert_eq!((read.turn, read.options), (body.as_bytes(), Options::default()), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_with_options_is_refused_with_its_place() {
        let cases = [
            (r#"{"turn":[],"toolyard":{"calls":[{"tool":"a"}]}}"#, "/toolyard/calls/0/tool"),
            (r#"{"turn":[],"toolyard":{"calls":[{"call_id":"a","arguments":"{}"}]}}"#, "/toolyard/calls/0/arguments"),
            (r#"{"turn":[],"toolyard":{"calls":[{"execute":false}]}}"#, "/toolyard/calls/0/call_id"),
            (r#"{"turn":[],"toolyard":{"calls":[{"call_id":"a"},{"call_id":"a"}]}}"#, "/toolyard/calls/1/call_id"),
            (r#"{"turn":[],"toolyard":{"rules":{"running_max":"x"}}}"#, "/toolyard/rules/running_max"),
            (r#"{"turn":[],"toolyard":{"on_disconnect":"sulk"}}"#, "/toolyard/on_disconnect"),
            (r#"{"turn":[],"toolyard":{"tenannt":"a"}}"#, "/toolyard"),
            (r#"{"turn":[],"toolyard":{"tenant":"a","tenant":"b"}}"#, "/toolyard"),
            (r#"{"turn":[],"toolyard":[]}"#, "/toolyard"),
            (r#"{"turn":[],"tenant":"a"}"#, "/tenant"),
        ];
        for (body, place) in cases {
            assert_eq!(read(body).unwrap_err().pointer, place, "{body}");
        }
    }

    #[test]
    fn an_option_that_the_request_has_in_its_own_form_too_is_ambiguous() {
        let rules = |running_max| Some(v1::RunRules { running_max, ..Default::default() });
        let options = |running_max| Options {
            run: v1::CreateRunRequest { rules: rules(running_max), tenant: "acme".into(), ..Default::default() },
            ..Default::default()
        };
        let own = || v1::CreateRunRequest { rules: rules(1), tools: vec!["a".into()], ..Default::default() };
        assert_eq!(options(2).give_to(own()).unwrap_err().pointer, "/toolyard/rules/running_max");
        let given = options(0).give_to(own()).unwrap();
        assert_eq!((given.rules, given.tenant.as_str(), given.tools.len()), (rules(1), "acme", 1));
    }

    #[test]
    fn a_call_of_the_request_gets_the_options_that_stand_under_its_id() {
        let of = |call_id: &str| v1::NewCall { call_id: call_id.into(), ..Default::default() };
        let new = |call_id: &str| v1::NewCall { tool: "echo".into(), arguments: "{}".into(), ..of(call_id) };
        let options = |call_id: &str| Options {
            run: v1::CreateRunRequest {
                calls: vec![v1::NewCall { execute: Some(false), ..of(call_id) }],
                ..Default::default()
            },
            ..Default::default()
        };
        let own = || v1::CreateRunRequest { calls: vec![new("a"), new("b")], ..Default::default() };
        let given = options("b").give_to(own()).unwrap();
        assert_eq!(given.calls, [new("a"), v1::NewCall { execute: Some(false), ..new("b") }]);
        assert_eq!(options("c").give_to(own()).unwrap_err().pointer, "/toolyard/calls/0/call_id");
        assert!(!options("b").of_new_run(), "calls that are added have options too");
    }
}
