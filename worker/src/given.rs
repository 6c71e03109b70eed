//! What a call is given beside its arguments: the keys of its context that its tool declares, and nothing else.

use run::Object;
use serde::de::DeserializeOwned;

use crate::tool::{About, Context, ToolError};

impl About {
    /// A key of the context that its calls are given, with what the run or the call has there; at most 32, of 1 to 64 bytes each.
    /// Read it with [`Context::given`]; `#[context]` on an argument of a function does both.
    #[must_use]
    pub fn context_key(mut self, key: impl Into<String>) -> Self {
        self.context_keys.push(key.into());
        self
    }
}

impl Context {
    /// What the caller gave under a key that the tool declares, and the model does not see. Where nothing was given, it is as if it
    /// was `null`: ask for an `Option` where the tool can do without.
    ///
    /// # Errors
    /// `NeedsInput` where nothing was given and `T` cannot do without, or where it is not a `T`. The error does not repeat what
    /// was given: the model reads errors.
    pub fn given<T: DeserializeOwned>(&self, key: &str) -> Result<T, ToolError> {
        let given = self.call.context.get(key);
        serde_json::from_str(given.unwrap_or("null")).map_err(|_| {
            let tool = &self.call.tool;
            ToolError::needs(match given {
                None => format!("{tool} needs {key:?} in the context of its call, and nothing was given"),
                Some(_) => format!("{tool} needs something else for {key:?} in the context of its call than was given"),
            })
        })
    }

    pub(crate) fn all_given(&self) -> &Object {
        &self.call.context
    }
}
