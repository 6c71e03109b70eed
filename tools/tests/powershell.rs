//! `powershell` with the real program where there is one.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod bring;
mod tree;

use run::ErrorKind;
use sandbox::{Sandbox, Settings};
use serde_json::json;
use tools::PowerShell;
use toolyard_tool::testkit::{self, Called};

use tree::Tree;

async fn powershell(command: &str) -> Called {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    let tree = Tree::of(&[]);
    let tool = PowerShell::new(tree.root(), Sandbox::new(Settings::default()).unwrap());
    testkit::call(tool, json!({ "command": command })).await
}

fn is_here() -> bool {
    std::process::Command::new("pwsh").arg("-Version").output().is_ok_and(|output| output.status.success())
}

#[tokio::test]
async fn a_command_of_powershell_streams_its_output_where_it_is_installed() {
    if !is_here() {
        return bring::not_here("pwsh is not installed");
    }
    let called = powershell("Write-Output ('a' * 3); exit 4").await;
    assert_eq!((called.text_on("stdout").as_str(), called.answer().as_str()), ("aaa\n", r#"{"exit_code":4}"#));
}

#[tokio::test]
async fn where_powershell_is_missing_the_call_says_what_to_install() {
    if is_here() {
        return bring::not_here("pwsh is installed, so that its absence cannot be tested");
    }
    let called = powershell("Get-Date").await;
    assert_eq!(called.result.as_ref().unwrap_err().kind, ErrorKind::NeedsInput);
    assert!(called.error().contains("install the package powershell"), "{}", called.error());
}
