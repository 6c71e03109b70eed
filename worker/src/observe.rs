//! What an embedding program adds to the spans of the calls that its worker executes.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use run::{AttemptNumber, CallSpec, Requester, RunId};

/// A call whose tool is about to be executed, as an [`Observer`] sees it.
#[derive(Debug, Clone, Copy)]
pub struct ObservedCall<'a> {
    /// The run of the call.
    pub run: RunId,
    /// The call: its tool, arguments, metadata and context.
    pub call: &'a CallSpec,
    /// For whom it is; `None` if the coordinator does not say it.
    pub requester: Option<&'a Requester>,
    /// Which attempt it is.
    pub attempt: AttemptNumber,
    /// The tool's description.
    pub description: &'a str,
}

/// What is added to the span `execute_tool …` of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observation {
    /// The span's name instead of `execute_tool` and the tool's name. Choose from a small set.
    pub name: Option<String>,
    /// Further attributes. Every reader of the traces can read them.
    pub attributes: Vec<(String, String)>,
}

type Observe = dyn Fn(&ObservedCall<'_>) -> Observation + Send + Sync;

/// A function from a call to what is added to its span. It is called only for calls that are traced, on the thread on
/// which the worker speaks to the broker: it must not block.
#[derive(Clone)]
pub struct Observer(Arc<Observe>);

impl Observer {
    /// Observes with this function. If it panics, nothing is added, and a line is logged.
    pub fn new(observe: impl Fn(&ObservedCall<'_>) -> Observation + Send + Sync + 'static) -> Self {
        Self(Arc::new(observe))
    }

    pub(crate) fn observe(&self, call: &ObservedCall<'_>) -> Observation {
        catch_unwind(AssertUnwindSafe(|| (self.0)(call))).unwrap_or_else(|_| {
            tracing::warn!(tool = %call.call.tool, "observing a call failed: its observer panicked");
            Observation::default()
        })
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

#[cfg(test)]
mod tests {
    use run::{Route, Timestamp};

    use super::*;

    #[test]
    fn an_observer_that_panics_adds_nothing() {
        let route = Route::Client;
        let call = CallSpec::new("c".parse().unwrap(), "echo".parse().unwrap(), "{}", route, Timestamp(0));
        let run = "run_0b_0193a7b4c2d07e3f8a1b2c3d4e5f6071".parse().unwrap();
        let seen = ObservedCall { run, call: &call, requester: None, attempt: AttemptNumber(1), description: "" };
        let names =
            |seen: &ObservedCall<'_>| Observation { name: Some(seen.call.tool.to_string()), ..Default::default() };
        assert_eq!(Observer::new(names).observe(&seen).name.as_deref(), Some("echo"));
        assert_eq!(Observer::new(|_| panic!("as it is meant to")).observe(&seen), Observation::default());
    }
}
