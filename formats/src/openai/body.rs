//! The body of a request, read member by member. Members that are passed on keep the digits of their numbers.

use std::collections::HashMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::openai::InputError;
use crate::options::{MEMBER, Options};

#[derive(Debug)]
pub(crate) struct Body<'a>(HashMap<String, &'a RawValue>);

impl<'a> Body<'a> {
    pub(crate) fn read(text: &'a [u8]) -> Result<Self, InputError> {
        let members = serde_json::from_slice(text);
        members.map(Self).map_err(|error| InputError::invalid("", format!("a JSON object was expected: {error}")))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'a RawValue> {
        self.0.get(name).copied()
    }

    /// The member, or null if it is missing. A member that is JSON but cannot be read (a number that is too large, or
    /// half of a surrogate pair) is an error, because otherwise it would be ignored silently.
    pub(crate) fn value(&self, name: &str) -> Result<Value, InputError> {
        self.get(name).map_or(Ok(Value::Null), |member| readable(member, &format!("/{name}")))
    }

    /// The options of Toolyard.
    pub(crate) fn options(&self) -> Result<Options, InputError> {
        let options = Options::read(self.get(MEMBER))?;
        if !options.floor_policy.is_empty() {
            let message = "not supported: the order is that of FLOOR_POLICY_ARRIVAL";
            return Err(InputError::unsupported(format!("/{MEMBER}/floor_policy"), message));
        }
        if options.run.keep_open {
            let message = "not supported, because the answer is that of the whole run: create the run with POST \
                           /v1/runs, and name it as `run`";
            return Err(InputError::unsupported(format!("/{MEMBER}/keep_open"), message));
        }
        Ok(options)
    }

    /// The member as a boolean, if it is present.
    pub(crate) fn flag(&self, name: &str) -> Result<Option<bool>, InputError> {
        match self.value(name)? {
            Value::Null => Ok(None),
            Value::Bool(flag) => Ok(Some(flag)),
            _ => Err(InputError::invalid(format!("/{name}"), "true or false was expected")),
        }
    }
}

/// Parses the value at `pointer`.
pub(crate) fn readable(value: &RawValue, pointer: &str) -> Result<Value, InputError> {
    serde_json::from_str(value.get())
        .map_err(|error| InputError::invalid(pointer, format!("it cannot be read: {error}")))
}
