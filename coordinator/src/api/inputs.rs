//! Parsing of requests and of the file of callers without a broker, for the fuzzing targets in `fuzz/`. Not an API.

use std::path::Path;

use proto::v1;
use schema::pattern::Budget;
use schema::steps::Steps;

use super::read;
use crate::admission::custom::Custom;
use crate::auth::callers;

/// Parses a request that opens a run.
///
/// # Errors
/// The request is invalid.
pub fn create_run(mut request: v1::CreateRunRequest) -> Result<(), String> {
    let tools = read::custom_tools(std::mem::take(&mut request.request_tools));
    tools.and_then(|tools| read::new_run(request, tools)).map(drop).map_err(|refusal| refusal.to_string())
}

/// Parses the calls that a request appends to a run.
///
/// # Errors
/// The request is invalid.
pub fn append_calls(request: v1::AppendCallsRequest) -> Result<(), String> {
    read::asked(request.calls).map(drop).map_err(|refusal| refusal.to_string())
}

/// Parses one answer of a client.
///
/// # Errors
/// The answer is invalid.
pub fn answer(output: v1::ToolOutput) -> Result<(), String> {
    read::answer(0, output).map(drop).map_err(|refusal| refusal.to_string())
}

/// Parses one decision about a call that awaits approval.
///
/// # Errors
/// The decision is invalid.
pub fn decision(decision: v1::CallDecision) -> Result<(), String> {
    read::decision(0, decision).map(drop).map_err(|refusal| refusal.to_string())
}

/// Compiles the format of a request's own tool: a schema, a pattern or a grammar. Then checks an input against it.
///
/// # Errors
/// The format is invalid. An invalid input is not an error here.
pub fn request_tool(format: v1::request_tool::Format, input: &[u8]) -> Result<bool, String> {
    let mut budget = Budget::new(Budget::REQUEST_BYTES);
    let custom = Custom::of(Some(format), &mut budget).map_err(|(field, reason)| format!("{field}: {reason}"))?;
    Ok(custom.check(input, &mut Steps::of_one(input.len())).is_ok())
}

/// Reads a file of callers, and the files that it names.
///
/// # Errors
/// Every mistake in it.
pub fn callers(path: &Path) -> Result<(), String> {
    callers::open(path).map(drop).map_err(|error| error.to_string())
}
