//! The JSON for programs: messages of the API unchanged, and objects for this program's own output.

use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

pub(crate) const HELP: &str = "\
JSON (-o json): one object a line. They are messages of the API in the form
that they have over HTTP, with the fields that docs/openapi.json lists:
  call, run, runs watch, RunEvent: sequence, time, and one of run_opened,
  runs logs, tail, demo  calls_appended, run_closed, call_waiting,
                         call_awaiting_approval, call_approved,
                         call_rejected, attempt_started, attempt_ended,
                         cancel_requested, cancel_delivered,
                         cancel_acknowledged, call_speaking, call_output,
                         call_output_withdrawn, call_ended,
                         run_status_changed, run_ended;
                         --children adds run_id, depth, and for runs below
                         parent_run_id and parent_call_id;
                         tail adds run_id;
                         demo adds {summary: {calls, calls_s, wall_s}}
  runs messages          the answer of GET /v1/runs/{run_id}/messages
  runs ls                RunSummary, one for each run
  calls ls, inbox,       ListedCall, one for each call
  parked ls
  calls cancel           CancelledCall, one for each call
  why, parked show       ExplainCallResponse
  tools ls, tools get    ListToolsResponse, Tool
  webhooks parked        ParkedWebhook, one for each notice
  index count, verify    CountRunsResponse, VerifyIndexResponse
  others that tell of    Run
  a run
Arguments, schemas and results in JSON are texts, so that numbers keep their
digits. When the program itself fails it writes one object to standard error:
{error: {reason, message, exit_code}}. -o yaml writes the same objects as YAML
documents. For people, -o wide adds columns and their names to lists, and
-o name writes only ids or names, one a line; of a call that of its run, too.";

/// A JSON object whose fields keep their order.
#[derive(Debug, Default)]
pub(crate) struct Object(Vec<(&'static str, Box<RawValue>)>);

impl Object {
    pub(crate) fn field(mut self, name: &'static str, value: impl Serialize) -> Self {
        let value = to_raw_value(&value).expect("texts, numbers, objects and lists of them always serialize");
        self.0.push((name, value));
        self
    }

    /// A field that is only there when it has a value.
    pub(crate) fn maybe(self, name: &'static str, value: Option<impl Serialize>) -> Self {
        match value {
            Some(value) => self.field(name, value),
            None => self,
        }
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::to_string(self).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_their_order() {
        let object = Object::default().field("z", 1).field("a", "text").maybe("m", None::<u32>);
        assert_eq!(object.to_string(), r#"{"z":1,"a":"text"}"#);
    }
}
