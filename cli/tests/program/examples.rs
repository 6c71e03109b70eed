//! The examples in `--help`, run as they stand. Examples that change something, wait for ever or need a broker with
//! keys are only parsed, by the program's own tests.

use std::process::{Command, Stdio};

use crate::docs::Reader;
use crate::process::{Ended, run};

/// The run of the examples.
const RUN: &str = "run_0b_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f";
/// Commands whose examples are run.
const RUNNABLE: [&[&str]; 13] = [
    &["tools", "get"],
    &["call"],
    &["runs", "ls"],
    &["schedules", "ls"],
    &["calls", "ls"],
    &["inbox"],
    &["why"],
    &["parked", "ls"],
    &["index", "count"],
    &["index", "verify"],
    &["workers", "ls"],
    &["pause", "ls"],
    &["doctor"],
];
/// Examples that are passed over: they need files, a broker or a pool that is not here.
const PASSED_OVER: [&str; 4] = ["@build.sh", "make 2>&1", "nats://", "pause pool"];
/// Examples that must print something, since what they look for is here.
const PRINTING: [&str; 6] = [
    ".input_schema",
    ".call_output",
    "AWAITING_APPROVAL",
    "--state failed",
    ".call.failed_attempts",
    ".waiting_for_client",
];

/// The examples of a command, each with its continuation lines.
fn examples(command: &[&str]) -> Vec<String> {
    let help = run(command.iter().chain([&"--help"])).stdout();
    let Some((_, rest)) = help.split_once("Examples:\n") else { return Vec::new() };
    let block = rest.split("\n\n").next().unwrap_or_default();
    let block = block.replace("\\\n    ", "").replace("|\n    ", "| ");
    // Three spaces begin an explanation.
    let lines = block.lines().filter_map(|line| line.trim_start().split("   ").next()).map(str::to_owned);
    lines.filter(|line| line.starts_with("toolyard ")).collect()
}

fn has_jq() -> bool {
    let found = Command::new("jq").arg("--version").stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success())
}

#[test]
fn the_examples_of_the_help_do_what_they_say() {
    let reader = Reader::start();
    // What the examples look for: a call that failed, and one that awaits approval.
    assert_eq!(reader.dev.run(["call", "no_such_tool"]).code(), 1);
    let waiting = reader.waits_for_approval();
    let folder = tempfile::tempdir().expect("a folder");
    let calls = r#"[{"tool": "glob", "arguments": "{\"pattern\": \"*.none\"}"}]"#;
    std::fs::write(folder.path().join("calls.json"), calls).expect("it can be written");
    let (jq, mut ran) = (has_jq(), 0);
    if !jq {
        eprintln!("NOT TESTED: there is no jq here, so the examples with it are passed over");
    }
    for example in RUNNABLE.into_iter().flat_map(examples) {
        let is_passed_over = PASSED_OVER.iter().any(|part| example.contains(part)) || (!jq && example.contains("jq"));
        if is_passed_over {
            continue;
        }
        let script = example.replace(RUN, &waiting).replace("fetch_page", "bash");
        let mut shell = reader.command("bash");
        let ended = Ended::of(shell.current_dir(&folder).args(["-eu", "-o", "pipefail", "-c", &script]));
        assert_eq!(ended.code(), 0, "{example}:\n{}{}", ended.stdout(), ended.stderr());
        let must_print = PRINTING.iter().any(|part| example.contains(part));
        assert!(!must_print || !["", "null\n"].contains(&&*ended.stdout()), "{example} prints nothing");
        ran += 1;
    }
    assert!(ran >= 15, "the examples were found: {ran}");
}
