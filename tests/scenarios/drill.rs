//! The drill still causes the failures of the runbook, and the runbook has its table.

use serde_json::Value;
use tokio::process::Command;

const DRILL: &str = env!("CARGO_BIN_EXE_drill");
const RUNBOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/howto/runbook.md");

async fn drill(arguments: &[&str]) -> (bool, String) {
    let ended = Command::new(DRILL).args(arguments).kill_on_drop(true).output().await.expect("it runs");
    (ended.status.success(), String::from_utf8(ended.stdout).expect("it says text"))
}

#[tokio::test]
async fn failures_are_caused_by_name_and_found_within_their_promise() {
    let (kept, said) = drill(&["call-parked", "pool-paused", "broker-disk", "--format", "json"]).await;
    let rows: Vec<Value> = serde_json::from_str(&said).expect("it is JSON");
    assert!(kept && rows.iter().all(|row| row["kept"] == true), "{said}");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["broker-disk", "call-parked", "pool-paused"]);
}

#[tokio::test]
async fn a_name_that_no_row_has_is_refused() {
    let (kept, said) = drill(&["no-such-row"]).await;
    assert!(!kept && said.is_empty(), "{said}");
}

#[tokio::test]
async fn the_runbook_has_the_rows_of_the_drill() {
    let (_, listed) = drill(&["--list"]).await;
    let listed: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let runbook = std::fs::read_to_string(RUNBOOK).expect("the runbook can be read");
    let table = runbook.split("<!-- drill: begin -->").nth(1).and_then(|rest| rest.split("<!-- drill: end -->").next());
    let rows = table.expect("the table is there").lines().skip(3);
    let written: Vec<&str> = rows.filter_map(|row| row.split("(`").nth(1)?.split('`').next()).collect();
    assert_eq!(written, listed, "write it with drill --write-docs docs/howto/runbook.md");
}
