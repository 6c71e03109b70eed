//! One program as a tool: starts it for a call, and makes an outcome of its end.

use sandbox::{Exit, Sandbox};
use serde_json::Value;
use tokio::time::Instant;
use toolyard_tool::{AnyTool, CallError, Context, ErrorKind, Output, ToolError};

use super::manifest::{Form, Manifest, Stderr};
use super::run::{self, Ended};
use crate::requester;

/// The exit code with which a program refuses its arguments (`EX_USAGE` of sysexits.h).
const BAD_INPUT: i32 = 64;
/// The exit code of a failure that may pass (`EX_TEMPFAIL`).
const TRY_AGAIN: i32 = 75;

/// The variables of the call's tenant, its caller, and the caller's roles with commas between them.
const REQUESTER: [&str; 3] = ["TOOLYARD_TENANT", "TOOLYARD_CALLER", "TOOLYARD_ROLES"];

#[derive(Debug)]
pub(super) struct Program {
    pub(super) sandbox: Sandbox,
    pub(super) manifest: Manifest,
    pub(super) form: Form,
    pub(super) stderr: Stderr,
    pub(super) name: String,
}

impl AnyTool for Program {
    async fn call(&self, context: &Context, arguments: Value) -> Result<Output, ToolError> {
        let key = format!("{}/{}", context.run_id(), context.call_id());
        let left = context.deadline().saturating_duration_since(Instant::now());
        let request = self.manifest.request(&[]).map_err(|error| {
            tracing::warn!(tool = self.name, error, "a configured variable of a program cannot be used");
            ToolError::new("a configured variable of the program cannot be used: the worker's log says why")
        })?;
        let request = request
            .with("TOOLYARD_RUN_ID", context.run_id().to_string())
            .with("TOOLYARD_CALL_ID", context.call_id().to_string())
            .with("TOOLYARD_ATTEMPT", context.attempt().to_string())
            .with("TOOLYARD_SECONDS_LEFT", left.as_secs().to_string())
            .with("TOOLYARD_IDEMPOTENCY_KEY", key)
            .piped();
        // An empty one takes the place of a configured one, too.
        let told = REQUESTER.into_iter().zip(requester(context));
        let request = told.fold(request, |request, (name, value)| request.with(name, value));
        let guarded = self.sandbox.start(request, context.left()).await;
        let guarded = guarded.map_err(|error| ToolError::new(format!("{} cannot be started: {error}", self.name)))?;
        let mut line = arguments.to_string();
        line.push('\n');
        let Ended { exit, stderr, heard } = run::follow(self, context, guarded, line).await?;
        match (heard.error, exit) {
            (Some(error), _) => Err(error),
            (None, Exit::ExitCode(0)) => match heard.result {
                Some(result) => Ok(result),
                None => heard.transcript.result(),
            },
            (None, Exit::ExitCode(code)) => {
                let message = said(format!("{} ended with exit code {code}", self.name), &stderr);
                Err(match code {
                    TRY_AGAIN => ToolError::retryable(message),
                    BAD_INPUT => ToolError::of_call(CallError::new(ErrorKind::ArgumentsInvalid, message)),
                    _ => ToolError::new(message),
                })
            }
            (None, Exit::Signal(signal)) => {
                Err(ToolError::new(said(format!("{} was ended by signal {signal}", self.name), &stderr)))
            }
        }
    }
}

/// A message with the end of what the program wrote to standard error.
fn said(message: String, stderr: &str) -> String {
    match stderr.trim() {
        "" => message,
        text => format!("{message}: {text}"),
    }
}
