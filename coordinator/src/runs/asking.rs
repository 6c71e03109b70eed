//! A command in progress, for the audit log.

use std::collections::BTreeSet;

use run::{CallId, RunId};

use super::Runs;
use crate::admission::accept::RequestedCall;
use crate::admission::error::RequestError;
use crate::auth::audit;
use crate::auth::callers::Caller;

/// Names of tools that one audit event lists.
const TOOLS_TOLD_MAX: usize = 16;

/// The tools of a request, each once; `None` if callers are not authenticated.
pub(crate) fn tools(caller: &Caller, calls: &[RequestedCall]) -> Option<String> {
    if matches!(caller, Caller::Anyone) {
        return None;
    }
    let tools: BTreeSet<&str> = calls.iter().map(|call| call.tool.as_str()).collect();
    Some(tools.into_iter().take(TOOLS_TOLD_MAX).collect::<Vec<_>>().join(","))
}

/// A command in progress. Its audit event is written when it is done, or when its client disconnects before that,
/// because what was stored by then is executed all the same.
pub(crate) struct Asking<'here> {
    runs: &'here Runs,
    command: &'static str,
    run: Option<RunId>,
    call: Option<&'here CallId>,
    tools: Option<String>,
    is_done: bool,
}

impl<'here> Asking<'here> {
    /// A command that opens a run.
    pub(crate) fn new(runs: &'here Runs, command: &'static str, tools: Option<String>) -> Self {
        Self { runs, command, run: None, call: None, tools, is_done: false }
    }

    /// A command on a run, or on a call of it.
    pub(crate) fn on(runs: &'here Runs, command: &'static str, (run, call): (RunId, Option<&'here CallId>)) -> Self {
        Self { runs, command, run: Some(run), call, tools: None, is_done: false }
    }

    /// The run is about to be opened.
    pub(crate) fn about(&mut self, run: RunId) {
        self.run = Some(run);
        if let Some(slot) = &self.runs.about_to_open {
            slot.set(run);
        }
    }

    fn audited(&self, run: Option<RunId>) -> audit::Command<'_> {
        audit::Command { name: self.command, run, call: self.call, tool: self.tools.as_deref() }
    }

    /// Writes the outcome. An error names the run only if the command was on one.
    pub(crate) fn done(mut self, run: Option<RunId>, refusal: Option<&RequestError>) {
        self.is_done = true;
        let refusal = refusal.map(RequestError::reason);
        audit::command(&self.runs.caller, self.audited(run), refusal);
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            audit::abandoned(&self.runs.caller, self.audited(self.run));
        }
    }
}
