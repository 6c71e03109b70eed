//! Prints the table of behaviours (`tests/rows.toml`) with the result of each: runs the tests that the rows name.
//! `cargo run -p toolyard-tests --bin acceptance`

mod run;
mod tools;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use harness::rows::{Row, rows};

use crate::run::{Outcomes, Verdict};

/// Checks from outside what Toolyard owes to the systems that it follows
#[derive(Debug, Parser)]
#[command(name = "acceptance")]
struct Args {
    /// Run only this row; may be repeated
    #[arg(long, value_name = "ROW", conflicts_with = "tools")]
    row: Vec<String>,
    /// Print the table of the built-in tools instead, which is the detail of row D52
    #[arg(long)]
    tools: bool,
    /// The form of the output
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Text,
    Json,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if args.tools {
        return Ok(code(tools::run()?));
    }
    let all = rows();
    for id in &args.row {
        anyhow::ensure!(all.iter().any(|row| row.id == *id), "there is no row {id}: the first is D01, the last is D73");
    }
    let chosen: Vec<Row> = all.into_iter().filter(|row| args.row.is_empty() || args.row.contains(&row.id)).collect();
    let outcomes = Outcomes::of(&chosen)?;
    let text = match args.output {
        Output::Text => table(&chosen, &outcomes),
        Output::Json => json(&chosen, &outcomes)?,
    };
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(code(chosen.iter().all(|row| outcomes.verdict(row).is_success())))
}

fn code(is_green: bool) -> ExitCode {
    if is_green { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn table(rows: &[Row], outcomes: &Outcomes) -> String {
    let mut table = String::new();
    let mut counts = [0_usize; 4];
    for row in rows {
        let verdict = outcomes.verdict(row);
        let place = match &verdict {
            Verdict::Ok => 0,
            Verdict::Open(_) => 1,
            Verdict::NotRun(_) => 2,
            Verdict::Failed(_) => 3,
        };
        counts[place] += 1;
        table += &format!("{}  {}\n     check: {}\n     {verdict}\n", row.id, row.title, row.check);
    }
    let [ok, open, not_run, failed] = counts;
    table + &format!("{ok} ok, {open} open, {not_run} not run, {failed} FAILED\n")
}

fn json(rows: &[Row], outcomes: &Outcomes) -> anyhow::Result<String> {
    let rows: Vec<serde_json::Value> = rows
        .iter()
        .map(|row| {
            let verdict = outcomes.verdict(row);
            let tests: Vec<serde_json::Value> = row
                .tests
                .iter()
                .map(|test| serde_json::json!({ "test": test, "result": outcomes.of_test(test).to_string() }))
                .collect();
            serde_json::json!({
                "row": row.id, "title": row.title, "behaviour": row.behaviour, "check": row.check,
                "result": verdict.name(), "detail": verdict.to_string(), "tests": tests,
            })
        })
        .collect();
    Ok(serde_json::to_string_pretty(&rows)? + "\n")
}
