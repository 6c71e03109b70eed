//! The context of a call beside its arguments: only those keys that its tool declares.

use proto::history::{self, PastCall};
use run::Fields;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::error::ToolError;
use crate::tool::About;

impl About {
    /// A key of the context that its calls are given, with what the run or the call has there; at most 32, of 1 to 64
    /// bytes each. [`TOOL_CALL_HISTORY`](crate::TOOL_CALL_HISTORY) asks for the calls of the run that ended before.
    /// Read them with [`Context::given`] and [`Context::history`]; `#[context]` on an argument of a function does both.
    #[must_use]
    pub fn context_key(mut self, key: impl Into<String>) -> Self {
        self.context_keys.push(key.into());
        self
    }
}

impl Context {
    /// The caller's value under a key that the tool declares; the model does not see it. A missing value is read as
    /// `null`, so use an `Option` if the tool can do without it.
    ///
    /// # Errors
    /// `NeedsInput` where nothing was given and `T` cannot do without, or where it is not a `T`. The error does not
    /// repeat what was given: the model reads errors.
    pub fn given<T: DeserializeOwned>(&self, key: &str) -> Result<T, ToolError> {
        let given = self.execution.call.context.get(key);
        serde_json::from_str(given.unwrap_or("null")).map_err(|_| {
            let tool = &self.execution.call.tool;
            ToolError::needs(match given {
                None => format!("{tool} needs {key:?} in the context of its call, and nothing was given"),
                Some(_) => format!("{tool} needs something else for {key:?} in the context of its call than was given"),
            })
        })
    }

    /// The calls of the run that had ended when this call was put into its queue, in the order in which they stand in
    /// the run. Every attempt finds the same. Empty unless the tool declares
    /// [`TOOL_CALL_HISTORY`](crate::TOOL_CALL_HISTORY).
    ///
    /// # Errors
    /// When it cannot be read: its coordinator is newer than this program.
    pub fn history(&self) -> Result<Vec<PastCall>, ToolError> {
        let calls = self.execution.call.context.get(history::TOOL_CALL_HISTORY).unwrap_or(history::NONE);
        serde_json::from_str(calls).map_err(|_| ToolError::new("the history of the run cannot be read"))
    }

    pub(crate) fn all_given(&self) -> &Fields {
        &self.execution.call.context
    }
}
