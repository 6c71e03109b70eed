//! `toolyard parked`: calls that used all their attempts. Lists them with their errors, redrives and drops them.

use std::time::Duration;

use proto::v1;

use crate::bulk::{Bulk, confirm, needs_yes};
use crate::exit::{Exit, Failure};
use crate::last::RunArg;
use crate::list::{LIMIT, ago, all_or_failed, call_table, span, tell_coverage};
use crate::runs::show;
use crate::server::Server;
use crate::terminal::{Paint, Terminal};
use crate::words::{brief, counted, error, harmless, meter};
use client::Client;

const LS_EXAMPLES: &str = "\
Examples:
  toolyard parked ls
  toolyard parked ls --tool bash --since 1h -o json | jq -r .call.call_id";

const SHOW_EXAMPLE: &str = "\
Example:
  toolyard parked show run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0";

const REDRIVE_EXAMPLES: &str = "\
Examples:
  toolyard parked redrive run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0
  toolyard parked redrive --tool fetch_page --since 1h
  toolyard parked redrive --all --limit 1000 --yes

The call is executed once more, with the same arguments, as the only call of a
new run. The old one keeps its outcome. Redriving twice gives the same run.
Exit code 1: the index is incomplete, so there may be more calls.";

const DROP_EXAMPLES: &str = "\
Examples:
  toolyard parked drop run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f call_0
  toolyard parked drop --tenant acme

The call keeps its outcome and is listed as parked no more.
Exit code 1: the index is incomplete, so there may be more calls.";

/// See calls that used up their attempts, ask for them once more, or put them aside
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List parked calls, those of the newest run first
    #[command(after_help = LS_EXAMPLES)]
    #[command(alias = "list")]
    Ls(Filter),
    /// Show a parked call: its arguments, its attempts, and why each failed
    #[command(after_help = SHOW_EXAMPLE)]
    Show(Which),
    /// Ask for a parked call once more, or for all that match
    #[command(after_help = REDRIVE_EXAMPLES)]
    Redrive(OneOrMany),
    /// Put a parked call aside for good, or all that match
    #[command(after_help = DROP_EXAMPLES)]
    Drop(OneOrMany),
}

#[derive(Debug, clap::Args)]
pub(crate) struct Filter {
    /// Only calls of this tool
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Only calls of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only calls of runs that are at most so old, as 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    since: Option<Duration>,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = LIMIT)]
    limit: usize,
}

/// One call by its ids, or those that a filter finds.
#[derive(Debug, clap::Args)]
#[group(id = "which", required = true, multiple = true, args = ["run", "tool", "tenant", "since", "all"])]
pub(crate) struct OneOrMany {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    #[arg(requires = "call", conflicts_with_all = ["tool", "tenant", "since", "all"])]
    run: Option<RunArg>,
    /// The call's id
    call: Option<String>,
    /// Every parked call
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    bulk: Bulk,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Which {
    /// The run's id, the beginning or the end of it, or `last`: the run that you created last
    run: RunArg,
    /// The call's id
    call: String,
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    match command {
        Command::Show(Which { run, call }) => {
            let explained = client.explain(&run.id(&client).await?, &call).await?;
            if terminal.is_json() {
                terminal.message(&explained)?;
            } else {
                terminal.write(described(&explained, terminal.paint()).as_bytes())?;
            }
        }
        Command::Ls(filter) => {
            let (calls, coverage) = find(&client, filter).await?;
            if terminal.is_json() {
                calls.iter().try_for_each(|call| terminal.message(call))?;
            } else if calls.is_empty() {
                terminal.note("nothing is parked");
            } else {
                call_table(&calls, terminal)?;
            }
            tell_coverage(coverage, terminal);
        }
        Command::Redrive(which) => {
            let redrive = async |run: String, call: String| Ok(client.redrive(&run, &call).await?);
            return each(&client, which, "Redrive", terminal, redrive).await;
        }
        Command::Drop(which) => {
            let drop = async |run: String, call: String| Ok(client.drop_call(&run, &call).await?);
            return each(&client, which, "Drop", terminal, drop).await;
        }
    }
    Ok(Exit::Completed)
}

async fn find(client: &Client, filter: Filter) -> Result<(Vec<v1::ListedCall>, Option<v1::IndexCoverage>), Failure> {
    let Filter { tool, tenant, since, limit } = filter;
    let request = v1::ListCallsRequest {
        parked: true,
        tool: tool.unwrap_or_default(),
        tenant: tenant.unwrap_or_default(),
        created_from: ago(since),
        ..v1::ListCallsRequest::default()
    };
    Ok(client.list_calls(request, limit).await?)
}

/// Does something with one call or with each that is found, and shows the runs that come of it.
async fn each(
    client: &Client,
    which: OneOrMany,
    verb: &str,
    terminal: &Terminal,
    act: impl AsyncFn(String, String) -> Result<v1::Run, Failure>,
) -> Result<Exit, Failure> {
    let OneOrMany { run, call, all, filter, bulk: Bulk { dry_run, yes } } = which;
    if let (Some(run), Some(call)) = (run, call) {
        let run = run.id(client).await?;
        if dry_run {
            terminal.line(&format!("{run}  {call}"))?;
        } else {
            show(&act(run, call).await?, terminal)?;
        }
        return Ok(Exit::Completed);
    }
    if !dry_run && !yes && all && !terminal.has_person() {
        return Err(needs_yes("acting on every parked call"));
    }
    let (calls, coverage) = find(client, filter).await?;
    if !dry_run && !yes && !calls.is_empty() && terminal.has_person() {
        confirm(&format!("{verb} {}?", counted(calls.len(), "call")), "yes", terminal).await?;
    }
    for (listed, done) in calls.iter().zip(0..) {
        if !dry_run {
            terminal.progress(&meter(done, calls.len() as u64));
        }
        let call = listed.call.clone().unwrap_or_default().call_id;
        match dry_run {
            true if terminal.is_json() => terminal.message(listed)?,
            true => terminal.line(&format!("{}  {}", listed.run_id, harmless(&call)))?,
            false => {
                let run = act(listed.run_id.clone(), call).await;
                terminal.end_progress();
                show(&run?, terminal)?;
            }
        }
    }
    terminal.note(&format!("{}{}", counted(calls.len(), "call"), if dry_run { ", and nothing was done" } else { "" }));
    Ok(all_or_failed(coverage, terminal))
}

fn described(explained: &v1::ExplainCallResponse, paint: Paint) -> String {
    let call = explained.call.clone().unwrap_or_default();
    let who = format!("{} · {}", harmless(&call.tool), harmless(&call.call_id));
    let mut text = format!("{}\n{}\n", paint.bold(&who), harmless(&explained.why));
    text.push_str(&format!("{} {}\n", paint.dim("arguments"), brief(&harmless(&call.arguments))));
    for failed in &call.failed_attempts {
        let why = failed.error.as_ref().map(error).unwrap_or_default();
        let time = failed.time.map(|time| time.to_string()).unwrap_or_default();
        text.push_str(&format!(
            "{} {} {}\n",
            paint.dim(&time),
            paint.bad(&format!("attempt {}", failed.attempt)),
            brief(&why)
        ));
    }
    text
}
