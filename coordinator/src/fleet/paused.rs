//! Pauses. Calls of a paused tool are not given to workers, and workers give back those that they receive. The queue of
//! a paused pool delivers nothing. Pure: the last content of the bucket of pauses.

use std::collections::BTreeMap;
use std::fmt;

use run::{Call, CallState, PoolId, Route, Timestamp, ToolName, span};
use serde::{Deserialize, Serialize};

/// Something that can be paused.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Pausable {
    Tool(ToolName),
    Pool(PoolId),
}

impl fmt::Display for Pausable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tool(tool) => write!(f, "tool {tool}"),
            Self::Pool(pool) => write!(f, "pool {pool}"),
        }
    }
}

/// A pause: its author, its time and its reason.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Word {
    /// Empty if callers are not authenticated.
    pub(crate) by: String,
    pub(crate) reason: String,
    pub(crate) at_ms: u64,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Paused {
    tools: BTreeMap<ToolName, Word>,
    pools: BTreeMap<PoolId, Word>,
}

impl Paused {
    pub(crate) fn pause(&mut self, what: Pausable, word: Word) {
        match what {
            Pausable::Tool(tool) => self.tools.insert(tool, word),
            Pausable::Pool(pool) => self.pools.insert(pool, word),
        };
    }

    pub(crate) fn resume(&mut self, what: &Pausable) {
        match what {
            Pausable::Tool(tool) => self.tools.remove(tool),
            Pausable::Pool(pool) => self.pools.remove(pool),
        };
    }

    pub(crate) fn tools(&self) -> impl Iterator<Item = (&ToolName, &Word)> {
        self.tools.iter()
    }

    pub(crate) fn pools(&self) -> impl Iterator<Item = (&PoolId, &Word)> {
        self.pools.iter()
    }

    /// The tool is paused: its calls are held before their jobs are appended.
    pub(crate) fn holds(&self, tool: &ToolName) -> bool {
        self.tools.contains_key(tool)
    }

    /// The pool is paused: its queue delivers nothing.
    pub(crate) fn stops(&self, pool: &PoolId) -> bool {
        self.pools.contains_key(pool)
    }

    /// The pause for which a call waits, as a sentence. `tool` is the real name of its tool. The operator's name is
    /// only for callers who may see it.
    pub(crate) fn why(&self, call: &Call, tool: &ToolName, now: Timestamp, names: bool) -> Option<String> {
        let Route::Pool { pool, .. } = &call.spec().route else { return None };
        let of_tool = || Some((format!("tool {tool}"), self.tools.get(tool)?));
        let of_pool = || Some((format!("pool {pool}"), self.pools.get(pool)?));
        let (what, word) = match call.state() {
            // A call in the queue of another pool is given back by the worker that receives it.
            CallState::Accepted | CallState::Queued { .. } => of_tool().or_else(of_pool)?,
            CallState::AwaitingApproval
            | CallState::Delayed
            | CallState::WaitingForClient
            | CallState::Running(_)
            | CallState::Ended(_) => return None,
        };
        let by = if word.by.is_empty() || !names { String::new() } else { format!(" by {}", word.by) };
        let reason = if word.reason.is_empty() { String::new() } else { format!(" ({})", line(&word.reason)) };
        let since = span(now.since(Timestamp(word.at_ms)));
        let left = span(call.start_by().since(now));
        Some(format!(
            "waiting: {what} was paused {since} ago{by}{reason}; unless it is resumed the call expires in {left}"
        ))
    }
}

/// A person's text, on one line.
fn line(text: &str) -> String {
    text.split(char::is_control).map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}
