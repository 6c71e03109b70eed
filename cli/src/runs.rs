//! `toolyard runs`: how runs stand, their output, and their end.

mod create;

use std::time::Duration;

use proto::v1;

use self::create::{Append, Create};
use crate::erase::{self, Erase};
use crate::exit::{Exit, Failure};
use crate::follow::View;
use crate::json;
use crate::list::{LIMIT, age, ago, columns, named, span, tell_coverage};
use crate::server::Server;
use crate::tally::Tally;
use crate::terminal::{Paint, Terminal};
use crate::words::{brief, call_state, contents, counted, error, harmless, run_status};
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

const WATCH_EXAMPLES: &str = "\
Examples:
  toolyard runs watch run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f
  toolyard runs watch run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f \\
    --after 41 -o json

Ctrl-C stops reading, and the run goes on. The exit code tells how the run
ended: 0 completed, 3 cancelled, 4 expired.";

const CANCEL_EXAMPLES: &str = "\
Examples:
  toolyard runs cancel run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f
  toolyard runs cancel run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f --call call_2";

/// Create runs, find them, see how they stand, read their output, add calls, cancel and erase them
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    Ls(Ls),
    /// Show a run and its calls as they stand
    #[command(after_help = GET_EXAMPLE)]
    Get {
        /// The run's id
        run: String,
    },
    Create(Box<Create>),
    Append(Append),
    /// Close a run to further calls: it ends when its calls have ended
    #[command(after_help = CLOSE_EXAMPLE)]
    Close {
        /// The run's id
        run: String,
    },
    Watch(Watch),
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

/// Read a run's ordered output, from its beginning, until the run ends
#[derive(Debug, clap::Args)]
#[command(after_help = WATCH_EXAMPLES, after_long_help = format!("{WATCH_EXAMPLES}\n\n{}", json::HELP))]
pub(crate) struct Watch {
    /// The run's id
    run: String,
    /// Begin after this sequence number. Numbers belong to a floor policy
    #[arg(long, value_name = "SEQUENCE")]
    after: Option<u64>,
    /// Which call has the floor if several have output
    #[arg(long, value_enum, default_value_t)]
    floor: Floor,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Floor {
    /// One call at a time; next is the call with the oldest pending output
    #[default]
    Arrival,
    /// One call at a time, in the order of submission
    Submission,
    /// Output as it is stored, each piece with its call
    Interleaved,
}

/// Cancel a run, or one call of it
#[derive(Debug, clap::Args)]
#[command(after_help = CANCEL_EXAMPLES)]
pub(crate) struct Cancel {
    /// The run's id
    run: String,
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
            show(&client.run(&run).await?, terminal)?;
            Ok(Exit::Completed)
        }
        Command::Create(args) => args.run(&client, terminal).await,
        Command::Append(args) => args.run(&client, terminal).await,
        Command::Close { run } => {
            show(&client.close(&run).await?, terminal)?;
            Ok(Exit::Completed)
        }
        Command::Watch(args) => watch(&client, args, terminal).await,
        Command::Erase(args) => erase::erase(&client, args, terminal).await,
        Command::Cancel(Cancel { run, call, reason }) => {
            let run = match call {
                Some(call) => client.cancel_call(&run, &call, &reason).await?,
                None => client.cancel_run(&run, &reason).await?,
            };
            show(&run, terminal)?;
            Ok(Exit::Completed)
        }
    }
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
        let lines: Vec<[String; 4]> = runs.iter().map(listed).collect();
        columns(&lines, terminal)?;
    }
    tell_coverage(coverage, terminal);
    Ok(Exit::Completed)
}

fn listed(run: &v1::RunSummary) -> [String; 4] {
    let mut tools: Vec<&str> = run.calls.iter().map(|call| call.tool.as_str()).collect();
    tools.dedup();
    let calls = format!("{} of {}", counted(run.calls.len(), "call"), brief(&tools.join(", ")));
    let calls = if run.calls.is_empty() { counted(0, "call") } else { calls };
    [run.run_id.clone(), run_status(run.status()), age(run.create_time), calls]
}

async fn watch(client: &Client, args: Watch, terminal: &Terminal) -> Result<Exit, Failure> {
    let Watch { run, after, floor } = args;
    let floor = match floor {
        Floor::Arrival => v1::FloorPolicy::Arrival,
        Floor::Submission => v1::FloorPolicy::Submission,
        Floor::Interleaved => v1::FloorPolicy::Interleaved,
    };
    let mut watch = client.watch(&run, after, floor).await?;
    let mut view = View::of_run(terminal, true);
    let mut tally = Tally::of_run(run);
    while let Some(events) = watch.next().await? {
        for event in &events {
            tally.note(event);
            view.show(event, &tally, terminal)?;
        }
    }
    Ok(exit_of(tally.status))
}

fn exit_of(status: Option<v1::RunStatus>) -> Exit {
    match status {
        Some(v1::RunStatus::Cancelled) => Exit::Cancelled,
        Some(v1::RunStatus::Expired) => Exit::Expired,
        Some(v1::RunStatus::Failed) => Exit::Failed,
        Some(
            v1::RunStatus::Completed
            | v1::RunStatus::Unspecified
            | v1::RunStatus::InProgress
            | v1::RunStatus::RequiresAction,
        )
        // The run had ended before the event after which it was read.
        | None => Exit::Completed,
    }
}

/// Shows a run as it stands.
pub(crate) fn show(run: &v1::Run, terminal: &Terminal) -> Result<(), Failure> {
    if terminal.is_json() {
        return terminal.message(run);
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
