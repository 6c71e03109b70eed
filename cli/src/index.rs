//! `toolyard index`: counts runs and calls, compares the index with the log, and rebuilds it.

use std::pin::pin;
use std::time::{Duration, Instant};

use client::{Client, Status};
use futures::TryStreamExt as _;
use proto::v1;

use crate::exit::{Exit, Failure};
use crate::list::{columns, tell_coverage};
use crate::server::Server;
use crate::terminal::Terminal;
use crate::words::{call_state, counted, run_status};

const COUNT_EXAMPLES: &str = "\
Examples:
  toolyard index count
  toolyard index count -o json | jq .waiting_for_client";

const VERIFY_EXAMPLES: &str = "\
Examples:
  toolyard index verify
  toolyard index verify || toolyard index rebuild

Reads the whole log. With -o json it writes {run_id, what} for each difference,
then {entries, runs, differences, complete}. Exit code 1: there are differences.";

const REBUILD_EXAMPLE: &str = "\
Example:
  toolyard index rebuild
  toolyard index rebuild --wait

Runs go on meanwhile. `toolyard index count` tells when the index is complete.
With --wait, exit code 1: shards are missing, and none was read for 3 minutes.";

/// Count runs and calls, and see to the index that finds them
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Count runs and calls by their state
    #[command(after_help = COUNT_EXAMPLES)]
    Count,
    /// Compare the index with the log
    #[command(after_help = VERIFY_EXAMPLES)]
    Verify,
    /// Empty the index; it is rebuilt from the log
    #[command(after_help = REBUILD_EXAMPLE)]
    Rebuild {
        /// Wait until the index is complete
        #[arg(long)]
        wait: bool,
    },
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    match command {
        Command::Count => {
            count(&client.counts().await?, terminal)?;
            Ok(Exit::Completed)
        }
        Command::Verify => verify(&client, terminal).await,
        Command::Rebuild { wait } => {
            client.rebuild_index().await?;
            terminal.note("the index is empty, and is rebuilt from the log");
            if wait { until_complete(&client, terminal).await } else { Ok(Exit::Completed) }
        }
    }
}

/// How often an index that is being rebuilt is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// An index that lacks shards, and into which none of them is read for so long, may never be complete.
const STALLED: Duration = Duration::from_secs(180);

async fn until_complete(client: &Client, terminal: &Terminal) -> Result<Exit, Failure> {
    let (mut unread, mut since) = (0, Instant::now());
    loop {
        let v1::CountRunsResponse { runs, coverage, .. } = client.counts().await?;
        let count = many(runs.iter().map(|of| of.count).sum(), "run");
        let coverage = coverage.unwrap_or_default();
        if coverage.complete {
            terminal.end_progress();
            terminal.note(&format!("the index is complete: {count}"));
            return Ok(Exit::Completed);
        }
        if coverage.shards_reading > 0 || coverage.shards_unread == 0 || coverage.shards_unread != unread {
            (unread, since) = (coverage.shards_unread, Instant::now());
        } else if since.elapsed() >= STALLED {
            terminal.end_progress();
            terminal.note(&format!(
                "the index is incomplete: {count}, and none of {unread} shards was read for {} s. Each coordinator \
                keeps its own index in memory (set TOOLYARD_REDIS_URL for one of all), or the broker does not list \
                its streams for them (write accounts.conf again: toolyard nats-config)",
                STALLED.as_secs()
            ));
            return Ok(Exit::Failed);
        }
        terminal.progress(&format!("{count} so far"));
        tokio::time::sleep(LOOK).await;
    }
}

fn count(counts: &v1::CountRunsResponse, terminal: &Terminal) -> Result<(), Failure> {
    if terminal.is_json() {
        return terminal.message(counts);
    }
    let mut lines: Vec<[String; 3]> = Vec::new();
    let line = |what: &str, stands: String, count: u64| [what.to_owned(), stands, format!("{count:>9}")];
    lines.extend(counts.runs.iter().map(|of| line("runs", run_status(of.status()), of.count)));
    lines.extend(counts.calls.iter().map(|of| line("calls", call_state(of.state()), of.count)));
    lines.extend((counts.parked > 0).then(|| line("calls", "parked".to_owned(), counts.parked)));
    lines.extend(counts.tools.iter().map(|of| line(&of.tool, call_state(of.state()), of.count)));
    if lines.is_empty() {
        terminal.note("there are no runs");
    }
    columns(&lines, terminal)?;
    tell_coverage(counts.coverage, terminal);
    Ok(())
}

async fn verify(client: &Client, terminal: &Terminal) -> Result<Exit, Failure> {
    let mut words = pin!(client.verify_index().await?);
    loop {
        let Some(word) = words.try_next().await? else {
            return Err(Failure::Refused(Box::new(Status::internal("the comparison broke off"))));
        };
        terminal.end_progress();
        if terminal.is_json() {
            terminal.message(&word)?;
        } else {
            let lines = word.differences.iter().map(|found| format!("{} {}", found.run_id, found.what));
            lines.into_iter().try_for_each(|line| terminal.line(&line))?;
        }
        let Some(end) = &word.end else {
            terminal.progress(&format!("{} in {} compared", many(word.runs, "run"), many(word.entries, "message")));
            continue;
        };
        if !terminal.is_json() {
            let seen = format!("{} in a log of {}", many(word.runs, "run"), many(word.entries, "message"));
            let found = match end.differences {
                0 if end.complete => "index and log agree".to_owned(),
                0 => "no difference so far, and the index is incomplete: compare again when it is not".to_owned(),
                found => format!("{}: `toolyard index rebuild` rebuilds the index", many(found, "difference")),
            };
            terminal.line(&format!("{seen}: {found}"))?;
        }
        if !end.complete {
            tell_coverage(Some(v1::IndexCoverage::default()), terminal);
        }
        return Ok(if end.differences == 0 && end.complete { Exit::Completed } else { Exit::Failed });
    }
}

fn many(count: u64, noun: &str) -> String {
    counted(usize::try_from(count).unwrap_or(usize::MAX), noun)
}
