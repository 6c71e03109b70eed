//! The context of a call beside its arguments: only those keys that its tool declares.

use proto::conversation::{Message, TOOL_CALL_CONVERSATION};
use proto::history::{self, PastCall};
use run::{Fields, limit};
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::error::ToolError;
use crate::tool::About;

impl About {
    /// A key of the context that its calls are given, with what the run or the call has there; at most 32, of 1 to 64
    /// bytes each. [`TOOL_CALL_HISTORY`](crate::TOOL_CALL_HISTORY) asks for the calls of the run that ended before, and
    /// [`TOOL_CALL_CONVERSATION`](crate::TOOL_CALL_CONVERSATION) for the conversation of the request. Read them with
    /// [`Context::given`], [`Context::history`] and [`Context::conversation`]; `#[context]` on an argument of a
    /// function declares and reads a key.
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

    /// The conversation to which the call belongs, oldest message first: the messages before it, and the message of the
    /// model with the calls of the request, this one among them. `None` if the request gave no conversation, or if the
    /// tool does not declare [`TOOL_CALL_CONVERSATION`](crate::TOOL_CALL_CONVERSATION). A large one is fetched each
    /// time.
    ///
    /// # Errors
    /// When it cannot be fetched, which another attempt may do; and when it cannot be read, because its coordinator is
    /// newer than this program.
    pub async fn conversation(&self) -> Result<Option<Vec<Message>>, ToolError> {
        let call = &self.execution.call;
        let unreadable = |_| ToolError::new("the conversation of the call cannot be read");
        if let Some(json) = call.context.get(TOOL_CALL_CONVERSATION) {
            return serde_json::from_str(json).map(Some).map_err(unreadable);
        }
        let Some(file) = call.files.iter().find(|file| file.name == TOOL_CALL_CONVERSATION) else { return Ok(None) };
        let json = self.read_all(file, limit::CONVERSATION_BYTES_MAX as u64).await?;
        serde_json::from_slice(&json).map(Some).map_err(unreadable)
    }

    pub(crate) fn all_given(&self) -> &Fields {
        &self.execution.call.context
    }
}
