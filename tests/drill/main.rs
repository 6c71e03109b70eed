//! Causes the failures of the runbook with real processes, one after another, and measures each as a client sees it.
//! Exits with 1 if one of them is not within its promise.

mod brokers;
mod coordinators;
mod load;
mod report;
mod rest;
mod rows;
mod workers;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Parser, ValueEnum};

use crate::report::{Outcome, Seen};
use crate::rows::{ROWS, Row};

#[derive(Debug, Parser)]
#[command(
    about = "Causes the failures of the runbook with real processes, and measures what a client sees of each",
    after_help = "Exit codes: 0 if every row is within its promise, 1 if not.\n\nExamples:\n  drill\n  drill worker broker-leader\n  drill --format markdown\n  drill --write-docs docs/howto/runbook.md"
)]
struct Arguments {
    /// Rows whose name contains one of these; all if none is given
    rows: Vec<String>,
    /// Print the names of the rows and their promises, and do nothing
    #[arg(long)]
    list: bool,
    /// How the rows are printed at the end
    #[arg(long, short = 'o', value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Put the table between the two markers of this document. All rows must be run
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rows", "list"])]
    write_docs: Option<std::path::PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Markdown,
}

fn say(text: &str) -> std::io::Result<()> {
    std::io::stdout().lock().write_all(text.as_bytes())
}

#[tokio::main]
async fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    let is_wanted =
        |row: &&Row| arguments.rows.is_empty() || arguments.rows.iter().any(|part| row.name.contains(part.as_str()));
    let wanted: Vec<&Row> = ROWS.iter().filter(is_wanted).collect();
    anyhow::ensure!(!wanted.is_empty(), "no row has such a name; `drill --list` has them all");
    if arguments.list {
        let line = |row: &&Row| {
            format!("{:<24} {} -> {} (within {} s)\n", row.name, row.cause, row.promised, row.within.as_secs())
        };
        say(&wanted.iter().map(line).collect::<String>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut outcomes = Vec::new();
    for (row, number) in wanted.iter().zip(1..) {
        eprintln!("{number}/{} {}: {}", wanted.len(), row.name, row.cause);
        let began = Instant::now();
        // An error in a row must not end the others.
        let seen: Result<Seen, String> = match tokio::spawn((row.run)()).await {
            Ok(seen) => Ok(seen),
            Err(error) => Err(report::panicked(error)),
        };
        let outcome = Outcome { row, seen };
        eprintln!("    {} [{:.1} s with everything around it]", outcome.sentence(), began.elapsed().as_secs_f64());
        outcomes.push(outcome);
    }
    say(&match arguments.format {
        Format::Text => report::text(&outcomes),
        Format::Json => serde_json::to_string_pretty(&report::json(&outcomes))? + "\n",
        Format::Markdown => report::markdown(&outcomes),
    })?;
    if let Some(file) = arguments.write_docs {
        report::write(&file, &outcomes)?;
    }
    let all = outcomes.iter().all(Outcome::is_kept);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
