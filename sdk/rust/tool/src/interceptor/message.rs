//! Gives a model the text of an error as the result of its call.

use run::is_retried;

use super::{Call, Interceptor, Next};
use crate::error::ToolError;
use crate::output::Output;

/// Converts an error to the result `The call failed: …`, so that the call completes, for clients that handle only
/// results. An error after which the tool's policy makes another attempt stays an error. Output from before the error
/// stays.
#[derive(Debug, Clone, Copy)]
pub struct ErrorToMessage;

impl Interceptor for ErrorToMessage {
    async fn call(&self, call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
        let (policy, context) = (&call.hosted.manifest.policy, call.context);
        let ToolError(error) = match next.run(call).await {
            Ok(output) => return Ok(output),
            Err(error) => error,
        };
        // Attempts that were given back count here, and not in the log: then one attempt fewer is made than might be.
        let is_tried_again = policy.repeatable && is_retried(policy, &error) && context.attempt() < policy.attempts_max;
        // A result that comes in time counts: a call that was stopped must not seem to have completed.
        if is_tried_again || context.execution.stop.wanted.is_cancelled() {
            return Err(ToolError(error));
        }
        Ok(format!("The call failed: {}", error.message).into())
    }
}
