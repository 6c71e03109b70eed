//! Prints the acceptance table of the tools: runs the tests of its rows, each tool through a broker, a coordinator and
//! a worker, and shows what became of each row. `cargo run -p toolyard-tests --bin acceptance`

use std::collections::HashMap;
use std::io::Write as _;
use std::process::{ExitCode, Stdio};

use harness::acceptance::{VERDICTS, rows};
use harness::cargo;

fn main() -> anyhow::Result<ExitCode> {
    let verdicts = tempfile::NamedTempFile::new()?;
    let mut tests = cargo();
    tests.args(["test", "--quiet", "-p", "toolyard-tests", "--test", "scenarios", "--", "acceptance"]);
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
    Ok(if is_green { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
