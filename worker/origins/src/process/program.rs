//! One program as a tool: starts it for a call, and makes an outcome of its end.

use sandbox::{Exit, Request, Sandbox, Workspaces};
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

/// The variable of the folder that a call may change, if each has its own.
const FOLDER: &str = "TOOLYARD_FOLDER";

#[derive(Debug)]
pub(super) struct Program {
    pub(super) sandbox: Sandbox,
    /// The folders that its calls work in; `None`: those of its manifest.
    pub(super) workspaces: Option<Workspaces>,
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
        let Ended { exit, stderr, heard } = match &self.workspaces {
            None => self.run(context, request, &arguments).await?,
            Some(workspaces) => {
                let workspace = workspaces.open(context)?;
                let folder = workspace.folder();
                let mut request = request.with(FOLDER, folder.display().to_string());
                if !self.manifest.has_folder {
                    folder.clone_into(&mut request.folder);
                }
                request.workspace = Some(folder.to_owned());
                workspace.bounded(self.run(context, request, &arguments)).await?
            }
        };
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

impl Program {
    async fn run(&self, context: &Context, request: Request, arguments: &Value) -> Result<Ended, ToolError> {
        let guarded = self.sandbox.start(request, context.left()).await;
        let guarded = guarded.map_err(|error| ToolError::new(format!("{} cannot be started: {error}", self.name)))?;
        run::follow(self, context, guarded, format!("{arguments}\n")).await
    }
}

/// A message with the end of what the program wrote to standard error.
fn said(message: String, stderr: &str) -> String {
    match stderr.trim() {
        "" => message,
        text => format!("{message}: {text}"),
    }
}
