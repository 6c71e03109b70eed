//! Programs that try to get out of their sandbox, in the ways of one table.

#![allow(clippy::unwrap_used, reason = "it is all tests")]
#![cfg(target_os = "linux")]

mod cases;
#[path = "../programs_of_tests/mod.rs"]
mod programs_of_tests;
mod world;

use cases::{BOUNDED, CASES, Case};
use sandbox::{Level, Sandbox, SandboxError, Settings, Wanted};
use world::World;

/// What this machine cannot give is written out and fails the test, unless it was said that this is known.
fn can_give(level: Level) -> bool {
    sandbox::use_program(env!("CARGO_BIN_EXE_toolyard-guard").into());
    let user = sandbox::choose_user(None).unwrap();
    match Sandbox::new(Settings { level: Wanted::Exactly(level), user, ..Settings::default() }) {
        Ok(_) => true,
        Err(SandboxError::Missing { gaps, .. }) if std::env::var_os("TOOLYARD_TEST_NO_SANDBOX").is_some() => {
            eprintln!("NOT TESTED: {level}, {gaps:?}");
            false
        }
        Err(error) => panic!("{error} (TOOLYARD_TEST_NO_SANDBOX=1 runs the tests without it)"),
    }
}

async fn try_all(level: Level) {
    if !can_give(level) {
        return;
    }
    let world = World::new(level).await;
    let mut escaped = Vec::new();
    for Case { name, .. } in CASES.iter().chain(&BOUNDED).filter(|case| case.only_isolated && level < Level::Isolated) {
        eprintln!("{level} does not prevent: {name}");
    }
    for case in CASES.iter().chain(&BOUNDED).filter(|case| !case.only_isolated || level == Level::Isolated) {
        let output = world.run(case).await;
        let traces = world.traces();
        eprintln!("{level}, {}: {}", case.name, output.trim().replace('\n', "; "));
        if output.contains("ESCAPED") || !traces.is_empty() {
            escaped.push(format!("{}: {traces:?}, {output:?}", case.name));
        }
    }
    assert!(escaped.is_empty(), "{escaped:#?}");
}

#[tokio::test]
async fn nothing_gets_out_of_a_confined_program() {
    try_all(Level::Confined).await;
}

#[tokio::test]
async fn nothing_gets_out_of_an_isolated_program() {
    try_all(Level::Isolated).await;
}

#[tokio::test]
async fn the_ways_out_are_ways_out_without_a_sandbox() {
    let mut failed = Vec::new();
    for case in CASES.iter().filter(|case| case.works_unconfined) {
        let output = World::new(Level::None).await.run(case).await;
        if !output.contains("ESCAPED") {
            failed.push(format!("{}: {output:?}", case.name));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
