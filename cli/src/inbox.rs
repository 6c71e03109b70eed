//! `toolyard inbox`: calls that wait for a person, and decisions about calls that await approval.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use proto::v1;
use proto::v1::call_decision::Decision;

use crate::arguments;
use crate::exit::{Exit, Failure};
use crate::last::RunArg;
use crate::list::{LIMIT, ago, call_names, call_row, span, table, tell_coverage};
use crate::runs::show;
use crate::server::Server;
use crate::terminal::Terminal;
use crate::why::only_call;
use crate::words::{brief, harmless, indented};
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
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// The call's id; it may be left out if the run has one call
    call: Option<String>,
    /// Execute it with these arguments instead of its own
    #[arg(long, value_name = "OBJECT")]
    json: Option<String>,
}

/// Have a call not executed that awaits approval
#[derive(Debug, clap::Args)]
#[command(after_help = REJECT_EXAMPLES)]
pub(crate) struct Reject {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// The call's id; it may be left out if the run has one call
    call: Option<String>,
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
        let arguments = arguments_of(&client, &calls).await;
        let rows = calls.iter().map(|listed| {
            let mut row = call_row(listed, terminal);
            let call = listed.call.as_ref().map_or("", |call| &call.call_id);
            row.extend(arguments.get(&(listed.run_id.as_str(), harmless(call))).cloned());
            row
        });
        let mut names = call_names(terminal);
        names.push("ARGUMENTS");
        table(&names, 2, rows.collect(), terminal)?;
    }
    tell_coverage(coverage, terminal);
    Ok(Exit::Completed)
}

/// The arguments of calls, shortened, by their runs and ids: a person decides about these.
async fn arguments_of<'a>(client: &Client, calls: &'a [v1::ListedCall]) -> HashMap<(&'a str, String), String> {
    let mut arguments = HashMap::new();
    for run_id in calls.iter().map(|listed| listed.run_id.as_str()).collect::<BTreeSet<_>>() {
        // A run that is erased meanwhile has none.
        let Ok(run) = client.run(run_id).await else { continue };
        arguments.extend(run.calls.into_iter().map(|call| {
            let shown = brief(&harmless(&call.arguments));
            ((run_id, harmless(&call.call_id)), shown)
        }));
    }
    arguments
}

/// Shows what is approved, before it is.
async fn show_arguments(client: &Client, run: &str, call_id: &str, json: Option<&str>, terminal: &Terminal) {
    // A caller that may decide and not read sees the end alone.
    let Ok(explained) = client.explain(run, call_id).await else { return };
    let call = explained.call.unwrap_or_default();
    let arguments = json.unwrap_or(&call.arguments);
    terminal.note(&harmless(&format!("approving {} · {} with\n{}", call.tool, call.call_id, indented(arguments))));
}

pub(crate) async fn approve(client: &Client, args: Approve, terminal: &Terminal) -> Result<Exit, Failure> {
    let Approve { run, call, json } = args;
    // A value that is no JSON object is rejected here, with the option's name.
    arguments::parse_base(json.as_deref())?;
    let run = run.id(client).await?;
    let call = only_call(client, &run, call).await?;
    if !terminal.is_json() {
        show_arguments(client, &run, &call, json.as_deref(), terminal).await;
    }
    decide(client, run, call, Decision::Approve(v1::CallApproval { arguments: json }), terminal).await
}

pub(crate) async fn reject(client: &Client, args: Reject, terminal: &Terminal) -> Result<Exit, Failure> {
    let Reject { run, call, reason } = args;
    let run = run.id(client).await?;
    let call = only_call(client, &run, call).await?;
    decide(client, run, call, Decision::Reject(v1::CallRejection { reason }), terminal).await
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
