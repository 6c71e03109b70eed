//! `toolyard calls`: finds calls of all runs.

use std::time::Duration;

use proto::v1;

use crate::bulk::{Bulk, confirm, needs_yes};
use crate::exit::{Exit, Failure};
use crate::inbox::{self, Approve, Reject};
use crate::list::{LIMIT, ago, all_or_failed, call_table, named, span, tell_coverage};
use crate::server::Server;
use crate::terminal::Terminal;
use crate::words::{counted, harmless};
use client::Client;

const LS_EXAMPLES: &str = "\
Examples:
  toolyard calls ls --waiting                    Those that wait for an answer
  toolyard calls ls --parked                     Those that are tried no more
  toolyard calls ls --tool bash --state running
  toolyard calls ls --state delayed
  toolyard calls ls --state failed --since 1h -o json | jq -r .run_id";

/// Find calls of all runs, cancel them, approve or reject them
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    #[command(alias = "list")]
    Ls(Ls),
    Cancel(Cancel),
    Approve(Approve),
    Reject(Reject),
}

const CANCEL_EXAMPLES: &str = "\
Examples:
  toolyard calls cancel --tool bash --state queued
  toolyard calls cancel --tenant acme --since 1h --reason 'a bad deployment'
  toolyard calls cancel --all --dry-run
  toolyard calls cancel --all --yes

At a terminal you are asked first. Each cancellation is stored before it is told. What runs stops a little later;
`toolyard why` tells how far that is. For one run: toolyard runs cancel.
Exit code 1: the index is incomplete, so there may be more calls.";

/// Cancel the calls that match and have not ended
#[derive(Debug, clap::Args)]
#[command(after_help = CANCEL_EXAMPLES)]
pub(crate) struct Cancel {
    #[command(flatten)]
    which: Selection,
    /// Why, for people and the model
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    bulk: Bulk,
}

/// A group of its own: clap counts every argument of the struct that it stands on as one of the group.
#[derive(Debug, clap::Args)]
#[group(id = "which", required = true, multiple = true)]
struct Selection {
    /// Only calls in this state
    #[arg(long, value_parser = named(&OPEN_STATES, state))]
    state: Option<v1::CallState>,
    /// Only calls of this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Only calls of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only calls of runs that are at most so old, as 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    since: Option<Duration>,
    /// Every call that has not ended
    #[arg(long, conflicts_with_all = ["state", "tool", "tenant", "since"])]
    all: bool,
}

const OPEN_STATES: [&str; 6] = ["accepted", "awaiting_approval", "delayed", "waiting_for_client", "queued", "running"];

const STATES: [&str; 10] = [
    "accepted",
    "awaiting_approval",
    "delayed",
    "waiting_for_client",
    "queued",
    "running",
    "completed",
    "failed",
    "cancelled",
    "expired",
];

fn state(word: &str) -> Option<v1::CallState> {
    v1::CallState::from_str_name(&format!("CALL_STATE_{word}"))
}

/// List calls, those of the newest run first
#[derive(Debug, clap::Args)]
#[command(after_help = LS_EXAMPLES)]
pub(crate) struct Ls {
    /// Only calls in this state
    #[arg(long, value_parser = named(&STATES, state))]
    state: Option<v1::CallState>,
    /// Only calls that wait for their client
    #[arg(long, conflicts_with = "state")]
    waiting: bool,
    /// Only calls that used all their attempts without a result and are parked
    #[arg(long)]
    parked: bool,
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

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    match command {
        Command::Ls(args) => list(&client, args, terminal).await,
        Command::Cancel(args) => cancel(&client, args, terminal).await,
        Command::Approve(args) => inbox::approve(&client, args, terminal).await,
        Command::Reject(args) => inbox::reject(&client, args, terminal).await,
    }
}

async fn cancel(client: &Client, args: Cancel, terminal: &Terminal) -> Result<Exit, Failure> {
    let Cancel { which: Selection { state, tool, tenant, since, all }, reason, bulk: Bulk { dry_run, yes } } = args;
    let request = v1::CancelCallsRequest {
        state: state.unwrap_or_default().into(),
        tool: tool.unwrap_or_default(),
        tenant: tenant.unwrap_or_default(),
        created_from: ago(since),
        created_before: None,
        reason,
        all,
        dry_run,
    };
    if !dry_run && !yes && terminal.has_person() {
        let trial = v1::CancelCallsRequest { dry_run: true, ..request.clone() };
        let (count, _) = client.cancel_calls(trial, |_| Ok::<(), Failure>(())).await?;
        confirm(&format!("Cancel {}?", counted(count, "call")), "yes", terminal).await?;
    } else if !dry_run && !yes && all {
        return Err(needs_yes("cancelling every call"));
    }
    let told = |call: &v1::CancelledCall| {
        if terminal.is_json() {
            return terminal.message(call);
        }
        terminal.line(&format!("{}  {}", call.run_id, harmless(&call.call_id)))
    };
    let (count, coverage) = client.cancel_calls(request, told).await?;
    terminal.note(&format!("{} {}", counted(count, "call"), if dry_run { "would be cancelled" } else { "cancelled" }));
    Ok(all_or_failed(coverage, terminal))
}

async fn list(client: &Client, args: Ls, terminal: &Terminal) -> Result<Exit, Failure> {
    let Ls { state, waiting, parked, tool, tenant, since, limit } = args;
    let state = if waiting { Some(v1::CallState::WaitingForClient) } else { state };
    let state = state.unwrap_or_default().into();
    let request = v1::ListCallsRequest {
        state,
        tool,
        tenant,
        parked,
        created_from: ago(since),
        ..v1::ListCallsRequest::default()
    };
    let (calls, coverage) = client.list_calls(request, limit).await?;
    if terminal.is_json() {
        calls.iter().try_for_each(|call| terminal.message(call))?;
    } else if calls.is_empty() {
        terminal.note("no such call");
    } else {
        call_table(&calls, terminal)?;
    }
    tell_coverage(coverage, terminal);
    Ok(Exit::Completed)
}
