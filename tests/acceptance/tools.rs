//! The table of the built-in tools: each runs through a broker, a coordinator and a worker.

use std::collections::HashMap;
use std::io::Write as _;
use std::process::Stdio;

use harness::acceptance::{VERDICTS, rows};
use harness::cargo;

/// Runs the tests of the tools, prints what became of each row, and returns whether all hold.
///
/// # Errors
/// When the tests cannot be started, or the table cannot be printed.
pub(crate) fn run() -> anyhow::Result<bool> {
    let verdicts = tempfile::NamedTempFile::new()?;
    let mut tests = cargo();
    tests.args(["test", "--quiet", "--workspace", "--test", "scenarios", "--", "acceptance"]);
    tests.env(VERDICTS, verdicts.path()).env("RUST_BACKTRACE", "0").stdout(Stdio::null());
    let ended = tests.status()?;
    let text = std::fs::read_to_string(verdicts.path())?;
    let verdicts: HashMap<&str, &str> = text.lines().filter_map(|line| line.split_once('\t')).collect();
    let mut table = String::new();
    let mut is_green = ended.success();
    for (row, number) in rows().zip(1..) {
        let verdict = verdicts.get(row.name).copied().unwrap_or("FAILED: its test did not come to its end");
        is_green &= !verdict.starts_with("FAILED");
        table += &format!("{number:>3}  {:<24} {:<18} {verdict}\n     {}\n", row.name, row.tool, row.title);
    }
    std::io::stdout().lock().write_all(table.as_bytes())?;
    Ok(is_green)
}
