//! `toolyard inbox`: calls that wait for a person, and decisions about calls that await approval.

use std::time::Duration;

use proto::v1;
use proto::v1::call_decision::Decision;

use crate::arguments;
use crate::exit::{Exit, Failure};
use crate::last::RunArg;
use crate::list::{LIMIT, ago, call_line, columns, span, tell_coverage};
use crate::runs::show;
use crate::server::Server;
use crate::terminal::Terminal;
use client::Client;

const EXAMPLES: &str = "\
Examples:
  toolyard inbox
  toolyard inbox --tenant acme
  toolyard inbox -o json |
    jq -r '.call | select(.state == \"CALL_STATE_AWAITING_APPROVAL\").call_id'

What it lists is answered with toolyard submit, or decided with
toolyard calls approve and toolyard calls reject.";

const APPROVE_EXAMPLES: &str = "\
Examples:
  toolyard calls approve run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0
  toolyard calls approve run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0 \\
    --json '{\"command\": \"ls\"}'

Arguments that take the place of the call's own must fit its tool's schema.";

const REJECT_EXAMPLES: &str = "\
Examples:
  toolyard calls reject run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0 \\
    --reason 'not on a Friday'

The call fails; the model reads the reason. The other calls of its run go on.";

/// List calls that wait for an answer or for approval
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Only calls of this tool
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tool: String,
    /// Only calls of this tenant
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tenant: String,
    /// Only calls of runs that are at most so old, as 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    since: Option<Duration>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = LIMIT)]
    limit: usize,
}

/// Let a call be executed that awaits approval
#[derive(Debug, clap::Args)]
#[command(after_help = APPROVE_EXAMPLES)]
pub(crate) struct Approve {
    /// The run's id, or `last`: the run that you created last
    run: RunArg,
    /// The call's id
    call: String,
    /// Execute it with these arguments instead of its own
    #[arg(long, value_name = "OBJECT")]
    json: Option<String>,
}

/// Have a call not executed that awaits approval
#[derive(Debug, clap::Args)]
#[command(after_help = REJECT_EXAMPLES)]
pub(crate) struct Reject {
    /// The run's id, or `last`: the run that you created last
    run: RunArg,
    /// The call's id
    call: String,
    /// Why, for the model
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

pub(crate) async fn run(args: Args, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let Args { tool, tenant, since, limit } = args;
    let client = door.connect().await?;
    let request =
        v1::ListCallsRequest { inbox: true, tool, tenant, created_from: ago(since), ..v1::ListCallsRequest::default() };
    let (calls, coverage) = client.list_calls(request, limit).await?;
    if terminal.is_json() {
        calls.iter().try_for_each(|call| terminal.message(call))?;
    } else if calls.is_empty() {
        terminal.note("nothing waits for anybody");
    } else {
        columns(&calls.iter().map(call_line).collect::<Vec<_>>(), terminal)?;
    }
    tell_coverage(coverage, terminal);
    Ok(Exit::Completed)
}

pub(crate) async fn approve(client: &Client, args: Approve, terminal: &Terminal) -> Result<Exit, Failure> {
    let Approve { run, call, json } = args;
    // A value that is no JSON object is rejected here, with the option's name.
    arguments::parse_base(json.as_deref())?;
    decide(client, run.id()?, call, Decision::Approve(v1::CallApproval { arguments: json }), terminal).await
}

pub(crate) async fn reject(client: &Client, args: Reject, terminal: &Terminal) -> Result<Exit, Failure> {
    let Reject { run, call, reason } = args;
    decide(client, run.id()?, call, Decision::Reject(v1::CallRejection { reason }), terminal).await
}

async fn decide(
    client: &Client,
    run: String,
    call_id: String,
    decision: Decision,
    terminal: &Terminal,
) -> Result<Exit, Failure> {
    let decision = v1::CallDecision { call_id, decision: Some(decision) };
    show(&client.decide(run, decision).await?, terminal)?;
    Ok(Exit::Completed)
}
