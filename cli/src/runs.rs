//! `toolyard runs`: how runs stand, their output, and their end.

mod create;
mod logs;
mod watch;

use std::time::Duration;

use proto::v1;

use self::create::Append;
pub(crate) use self::create::Create;
use self::logs::Logs;
use self::watch::{Messages, Watch};
use crate::erase::{self, Erase};
use crate::exit::{Exit, Failure};
use crate::last::RunArg;
use crate::list::{LIMIT, age, ago, named, span, table, tell_coverage};
use crate::server::Server;
use crate::terminal::{Paint, Terminal};
use crate::words::{brief, call_state, contents, counted, error, harmless, run_status, summary_status};
use client::Client;

const LS_EXAMPLES: &str = "\
Examples:
  toolyard runs ls
  toolyard runs ls --status requires_action --since 10m
  toolyard runs ls --status failed --limit 500 -o json | jq -r .run_id";

const GET_EXAMPLE: &str = "\
Example:
  toolyard runs get run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f";

const CLOSE_EXAMPLE: &str = "\
Example:
  toolyard runs close run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f";

const CANCEL_EXAMPLES: &str = "\
Examples:
  toolyard runs cancel run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f
  toolyard runs cancel run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f --call call_2";

/// Create runs, find them, see how they stand, read their output, add calls, cancel and erase them
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    #[command(alias = "list")]
    Ls(Ls),
    /// Show a run and its calls as they stand
    #[command(after_help = GET_EXAMPLE)]
    Get {
        /// The run's id, the beginning or the end of it, or `last`: the run that you created last
        run: RunArg,
    },
    Create(Box<Create>),
    Append(Append),
    /// Close a run to further calls: it ends when its calls have ended
    #[command(after_help = CLOSE_EXAMPLE)]
    Close {
        /// The run's id, the beginning or the end of it, or `last`: the run that you created last
        run: RunArg,
    },
    Watch(Watch),
    Logs(Logs),
    Messages(Messages),
    Cancel(Cancel),
    Erase(Erase),
}

const STATUSES: [&str; 6] = ["in_progress", "requires_action", "completed", "failed", "cancelled", "expired"];

fn status(word: &str) -> Option<v1::RunStatus> {
    v1::RunStatus::from_str_name(&format!("RUN_STATUS_{word}"))
}

/// List runs, the newest first
#[derive(Debug, clap::Args)]
#[command(after_help = LS_EXAMPLES)]
pub(crate) struct Ls {
    /// Only runs with this status
    #[arg(long, value_parser = named(&STATUSES, status))]
    status: Option<v1::RunStatus>,
    /// Only runs of this tenant
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    tenant: String,
    /// Only runs of this schedule
    #[arg(long, value_name = "ID", default_value = "", hide_default_value = true)]
    schedule: String,
    /// Only runs that are at most so old, as 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    since: Option<Duration>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = LIMIT)]
    limit: usize,
}

/// Cancel a run, or one call of it
#[derive(Debug, clap::Args)]
#[command(after_help = CANCEL_EXAMPLES)]
pub(crate) struct Cancel {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// Cancel only this call; the others go on
    #[arg(long)]
    call: Option<String>,
    /// Why, for people and the model
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    match command {
        Command::Ls(args) => list(&client, args, terminal).await,
        Command::Get { run } => {
            show(&client.run(&run.id(&client).await?).await?, terminal)?;
            Ok(Exit::Completed)
        }
        Command::Create(args) => args.run(&client, terminal).await,
        Command::Append(args) => args.run(&client, terminal).await,
        Command::Close { run } => {
            show(&client.close(&run.id(&client).await?).await?, terminal)?;
            Ok(Exit::Completed)
        }
        Command::Watch(args) => args.run(&client, terminal).await,
        Command::Logs(args) => args.run(&client, terminal).await,
        Command::Messages(args) => args.run(&client, terminal).await,
        Command::Erase(args) => erase::erase(&client, args, terminal).await,
        Command::Cancel(Cancel { run, call, reason }) => {
            let run = run.id(&client).await?;
            let run = match call {
                Some(call) => client.cancel_call(&run, &call, &reason).await?,
                None => client.cancel_run(&run, &reason).await?,
            };
            show(&run, terminal)?;
            Ok(Exit::Completed)
        }
    }
}

/// `toolyard run`, which is `toolyard runs create`.
pub(crate) async fn create(args: Create, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    args.run(&door.connect().await?, terminal).await
}

async fn list(client: &Client, args: Ls, terminal: &Terminal) -> Result<Exit, Failure> {
    let Ls { status, tenant, schedule: schedule_id, since, limit } = args;
    let status = status.unwrap_or_default().into();
    let created_from = ago(since);
    let request = v1::ListRunsRequest { status, tenant, schedule_id, created_from, ..v1::ListRunsRequest::default() };
    let (runs, coverage) = client.list_runs(request, limit).await?;
    if terminal.is_json() {
        runs.iter().try_for_each(|run| terminal.message(run))?;
    } else if runs.is_empty() {
        terminal.note("no such run");
    } else {
        let mut names = vec!["RUN", "STATUS", "AGE", "CALLS"];
        if terminal.is_wide() {
            names.extend(["TENANT", "DEADLINE", "SCHEDULE"]);
        }
        table(&names, 1, runs.iter().map(|run| listed(run, terminal.is_wide())).collect(), terminal)?;
    }
    tell_coverage(coverage, terminal);
    Ok(Exit::Completed)
}

fn listed(run: &v1::RunSummary, is_wide: bool) -> Vec<String> {
    let mut tools: Vec<&str> = run.calls.iter().map(|call| call.tool.as_str()).collect();
    tools.dedup();
    let calls = format!("{} of {}", counted(run.calls.len(), "call"), brief(&tools.join(", ")));
    let calls = if run.calls.is_empty() { counted(0, "call") } else { calls };
    let mut row = vec![run.run_id.clone(), summary_status(run), age(run.create_time), calls];
    if is_wide {
        let deadline = run.deadline.map(|at| at.to_string()).unwrap_or_default();
        row.extend([harmless(&run.tenant), deadline, run.schedule_id.clone()]);
    }
    row
}

/// Shows a run as it stands.
pub(crate) fn show(run: &v1::Run, terminal: &Terminal) -> Result<(), Failure> {
    if terminal.is_json() {
        return terminal.message(run);
    }
    if terminal.is_names() {
        return terminal.line(&run.run_id);
    }
    terminal.write(described(run, terminal.paint()).as_bytes())
}

fn described(run: &v1::Run, paint: Paint) -> String {
    let open = if run.open { ", open to more calls" } else { "" };
    let status = run_status(run.status());
    let calls = counted(run.calls.len(), "call");
    let mut text = format!("{} · {status} · {calls}{open}\n", paint.bold(&run.run_id));
    let time = |name: &str, time: Option<_>| time.map(|time: String| format!("{name} {time}"));
    let created = time("created", run.create_time.map(|at| at.to_string()));
    let deadline = time("ends by", run.deadline.map(|at| at.to_string()));
    let times: Vec<String> = [created, deadline].into_iter().flatten().collect();
    text.push_str(&format!("{}\n", paint.dim(&times.join(", "))));
    for call in &run.calls {
        text.push_str(&format!("{} {}\n", mark(call.state(), paint), line(call, paint)));
    }
    text
}

fn mark(state: v1::CallState, paint: Paint) -> String {
    match state {
        v1::CallState::Completed => paint.good("✓"),
        v1::CallState::Failed | v1::CallState::Cancelled | v1::CallState::Expired => paint.bad("✗"),
        v1::CallState::WaitingForClient | v1::CallState::AwaitingApproval => paint.asking("?"),
        v1::CallState::Unspecified
        | v1::CallState::Accepted
        | v1::CallState::Delayed
        | v1::CallState::Queued
        | v1::CallState::Running => paint.dim("·"),
    }
}

fn line(call: &v1::Call, paint: Paint) -> String {
    let mut parts = vec![call_state(call.state())];
    if let (v1::CallState::Delayed, Some(until)) = (call.state(), call.not_before) {
        parts.push(format!("until {until}"));
    }
    if call.attempts > 1 {
        parts.push(counted(call.attempts as usize, "attempt"));
    }
    if matches!(call.state(), v1::CallState::AwaitingApproval | v1::CallState::WaitingForClient) {
        parts.push(brief(&harmless(&call.arguments)));
    }
    if let Some(last) = &call.last_error {
        parts.push(format!("last: {}", brief(&error(last))));
    }
    if let Some(outcome) = &call.outcome {
        let why = outcome.error.as_ref().map(error).unwrap_or_else(|| harmless(&outcome.reason));
        parts.extend([brief(&contents(&outcome.result)), brief(&why)]);
    }
    parts.retain(|part| !part.is_empty());
    let who = format!("{} · {}", harmless(&call.tool), harmless(&call.call_id));
    format!("{} · {}", paint.bold(&who), parts.join(" · "))
}
