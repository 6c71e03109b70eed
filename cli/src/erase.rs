//! `toolyard runs erase`: erases the runs of a tenant, or one run.

use std::time::{Duration, Instant};

use proto::v1;

use crate::bulk::{Bulk, confirm, needs_yes};
use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::list::{ago, span};
use crate::terminal::Terminal;
use crate::words::{harmless, meter};
use client::Client;

const EXAMPLES: &str = "\
Examples:
  toolyard runs erase --tenant acme --dry-run
  toolyard runs erase --tenant acme --older-than 2h --wait
  toolyard runs erase --tenant acme --yes -o json
  toolyard runs erase --run run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f

Runs that have not ended are cancelled first. Nothing of an erased run can be
read again. Only admins may do this.";

/// The pause before the log is looked through once more for runs that are not erased yet.
const WAIT_PAUSE: Duration = Duration::from_secs(1);
/// How often progress is shown.
const PROGRESS: Duration = Duration::from_millis(200);

/// Erase the runs of a tenant, or one run: output, arguments, results, objects
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Erase {
    #[command(flatten)]
    which: Selection,
    /// Only runs that are at least so old, as 30s, 10m, 2h or 1d
    #[arg(long, value_name = "SPAN", value_parser = span)]
    older_than: Option<Duration>,
    #[command(flatten)]
    bulk: Bulk,
    /// Wait until the runs are gone
    #[arg(long)]
    wait: bool,
    /// Why, for people; at most 1 KiB
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
}

/// A struct of its own, because clap puts every argument of the struct into the group.
#[derive(Debug, clap::Args)]
#[group(id = "erased", required = true, multiple = true)]
struct Selection {
    /// Runs of this tenant
    #[arg(long, value_name = "NAME")]
    tenant: Option<String>,
    /// Only this run
    #[arg(long, value_name = "ID")]
    run: Option<String>,
}

/// Runs in the log that a request selected, and those of them whose erasure was requested now.
#[derive(Debug, Default, Clone, Copy)]
struct Count {
    matched: u64,
    requested: u64,
}

pub(crate) async fn erase(client: &Client, args: Erase, terminal: &Terminal) -> Result<Exit, Failure> {
    let Bulk { dry_run, yes } = args.bulk;
    let wait = args.wait && !dry_run;
    if !dry_run && !yes {
        if !terminal.has_person() {
            return Err(needs_yes("erasing"));
        }
        let (question, expected) = question(&args);
        confirm(&question, &expected, terminal).await?;
    }
    let Erase { which: Selection { tenant, run }, older_than, reason, .. } = args;
    let request = v1::EraseRunsRequest {
        tenant: tenant.unwrap_or_default(),
        run_id: run.unwrap_or_default(),
        // Runs that are created from now on are not erased, and so not waited for.
        created_before: ago(Some(older_than.unwrap_or_default())),
        dry_run,
        reason,
        page_token: String::new(),
    };
    let count = through_the_log(client, request.clone(), terminal).await?;
    let mut left = count.matched;
    while wait && left > 0 {
        tokio::time::sleep(WAIT_PAUSE).await;
        left =
            through_the_log(client, v1::EraseRunsRequest { dry_run: true, ..request.clone() }, terminal).await?.matched;
    }
    tell(count, dry_run, wait, terminal)
}

/// Goes through the whole log, part by part.
async fn through_the_log(
    client: &Client,
    mut request: v1::EraseRunsRequest,
    terminal: &Terminal,
) -> Result<Count, Failure> {
    let (mut count, mut told) = (Count::default(), Instant::now());
    loop {
        let part = client.erase_runs(request.clone()).await?;
        count.matched += part.matched;
        count.requested += part.requested;
        if part.next_page_token.is_empty() {
            terminal.end_progress();
            return Ok(count);
        }
        request.page_token = part.next_page_token;
        if told.elapsed() >= PROGRESS {
            told = Instant::now();
            terminal.progress(&progress(count.matched, &request.page_token));
        }
    }
}

/// The token is a position in the log and the log's end. If a coordinator formats it differently, only the percentage
/// is lost.
fn progress(matched: u64, token: &str) -> String {
    let share = token.split_once('-').and_then(|(at, end)| {
        let (at, end) = (at.parse::<u64>().ok()?, end.parse::<u64>().ok()?);
        Some(format!("{} of the log: ", meter(at, end)))
    });
    format!("{}{} so far", share.unwrap_or_default(), runs(matched))
}

fn tell(count: Count, dry_run: bool, waited: bool, terminal: &Terminal) -> Result<Exit, Failure> {
    let Count { matched, requested } = count;
    if terminal.is_json() {
        let told = Object::default().field("matched", matched).field("requested", requested);
        terminal.object(&told.field("dry_run", dry_run).field("erased", waited))?;
        return Ok(Exit::Completed);
    }
    match (matched, dry_run, waited) {
        (0, ..) => terminal.note("no such run"),
        (_, true, _) => terminal.line(&format!("{} would be erased", runs(matched)))?,
        (_, false, true) => terminal.line(&format!("{} erased", runs(matched)))?,
        (_, false, false) => terminal.line(&format!("{} will be erased within seconds", runs(matched)))?,
    }
    Ok(Exit::Completed)
}

fn runs(count: u64) -> String {
    if count == 1 { "1 run".to_owned() } else { format!("{count} runs") }
}

/// The text to type as a confirmation, and the action that it confirms.
fn question(args: &Erase) -> (String, String) {
    let older = if args.older_than.is_some() { "old " } else { "" };
    match (&args.which.run, &args.which.tenant) {
        (Some(run), _) => (format!("Erase run {} for good?", harmless(run)), "yes".to_owned()),
        (None, tenant) => {
            let tenant = tenant.clone().unwrap_or_default();
            (format!("Erase all {older}runs of tenant {} for good?", harmless(&tenant)), tenant)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Program {
        #[command(flatten)]
        erase: Erase,
    }

    fn parse(words: &[&str]) -> Result<Erase, clap::Error> {
        Ok(Program::try_parse_from(std::iter::once(&"erase").chain(words))?.erase)
    }

    #[test]
    fn a_tenant_or_a_run_must_be_named_and_is_what_is_asked_for() {
        assert!(parse(&[]).is_err() && parse(&["--dry-run"]).is_err() && parse(&["--older-than", "1h"]).is_err());
        let all = parse(&["--tenant", "acme"]).expect("a tenant is enough");
        assert_eq!(question(&all), ("Erase all runs of tenant acme for good?".to_owned(), "acme".to_owned()));
        let one = parse(&["--run", "run_1", "--yes", "--wait"]).expect("a run is enough");
        assert_eq!(question(&one).1, "yes");
        assert!(one.bulk.yes && one.wait && !one.bulk.dry_run);
        let old = parse(&["--tenant", "acme", "--older-than", "30d"]).expect("a span may be given");
        assert_eq!(old.older_than, Some(Duration::from_secs(30 * 86_400)));
    }

    #[test]
    fn progress_tells_how_much_of_the_log_was_looked_through() {
        assert_eq!(progress(3, "50-200"), "█████░░░░░░░░░░░░░░░  25 % of the log: 3 runs so far");
        assert_eq!(progress(1, "of a newer coordinator"), "1 run so far");
    }
}
