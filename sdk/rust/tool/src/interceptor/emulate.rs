//! Answers in place of tools, so that an agent can be tried without their effects.

use super::{Call, Interceptor, Next};
use crate::error::ToolError;
use crate::output::Output;

/// Gives every call the same text as its result. Neither inner interceptors nor the tool run; the arguments were
/// checked before, as for any call.
#[derive(Debug, Clone)]
pub struct Emulate {
    answer: String,
}

impl Emulate {
    #[must_use]
    pub fn new(answer: impl Into<String>) -> Self {
        Self { answer: answer.into() }
    }
}

impl Interceptor for Emulate {
    async fn call(&self, _: Call<'_>, _: Next<'_>) -> Result<Output, ToolError> {
        Ok(self.answer.clone().into())
    }
}
