//! `code_interpreter` with the real Python of this machine, confined as the machine can.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use run::{Content, ErrorKind};
use sandbox::{Network, Sandbox, Settings, Wanted};
use serde_json::{Value, json};
use tools::{CodeInterpreter, PythonSettings};
use toolyard_tool::Table;
use toolyard_tool::testkit::{self, Called};

async fn table_with(settings: PythonSettings) -> Table {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    let wanted = Settings { level: Wanted::Auto, network: Network::Allowed, ..Settings::default() };
    let sandbox = Sandbox::new(wanted).unwrap();
    Table::new().host(CodeInterpreter::new(&sandbox, &settings).await).unwrap()
}

async fn table() -> Table {
    table_with(PythonSettings::default()).await
}

async fn run(code: &str) -> Called {
    testkit::call_in(&table().await, "code_interpreter", json!({ "code": code })).await
}

/// The summary of a result, and its data parts.
#[track_caller]
fn parts(called: &Called) -> (Value, Vec<(String, Vec<u8>)>) {
    let parts = called.result.as_ref().unwrap_or_else(|error| panic!("{error:?}"));
    let Content::Json(summary) = &parts[0] else { panic!("{parts:?}") };
    let data = parts[1..].iter().map(|part| match part {
        Content::Data { media_type, data } => (media_type.clone(), data.to_vec()),
        other => panic!("{other:?}"),
    });
    (serde_json::from_str(summary).unwrap(), data.collect())
}

#[tokio::test]
async fn what_code_prints_is_streamed_and_the_result_has_it() {
    let called = run("import sys\nprint(6 * 7)\nprint('oh', file=sys.stderr)").await;
    assert_eq!((called.text_on("logs").as_str(), called.text_on("logs.stderr").as_str()), ("42\n", "oh\n"));
    let (summary, data) = parts(&called);
    assert_eq!((&summary["exit_code"], data.len()), (&json!(0), 0));
    assert!(summary["logs"].as_str().unwrap().contains("42\n"), "{summary}");
}

#[tokio::test]
async fn an_exception_is_told_with_its_line() {
    let (summary, _) = parts(&run("x = 1\nraise ValueError('no good')").await);
    assert_eq!(summary["exit_code"], 1);
    let logs = summary["logs"].as_str().unwrap();
    assert!(logs.contains("line 2") && logs.contains("ValueError: no good"), "{logs}");
}

#[tokio::test]
async fn files_go_in_and_those_that_are_new_or_changed_come_out() {
    let code = "\
text = open('in.csv').read()\n\
open('same.csv').read()\n\
import os\n\
os.mkdir('deep')\n\
open('deep/plot.png', 'wb').write(b'\\x89PNG')\n\
open('in.csv', 'w').write(text.upper())\n";
    let files: [(&str, &[u8]); 2] = [("in.csv", b"a,b\n"), ("same.csv", b"1\n")];
    let called = testkit::call_with(&table().await, "code_interpreter", json!({ "code": code }), &files).await;
    let (summary, data) = parts(&called);
    let names = json!([
        { "name": "deep/plot.png", "size": 4, "media_type": "image/png" },
        { "name": "in.csv", "size": 4, "media_type": "text/csv" },
    ]);
    assert_eq!(summary["files"], names);
    let expected = [("image/png".to_owned(), b"\x89PNG".to_vec()), ("text/csv".to_owned(), b"A,B\n".to_vec())];
    assert_eq!(data, expected);
}

#[tokio::test]
async fn nothing_of_a_call_is_there_in_the_next() {
    let table = table().await;
    let code = "\
import os, subprocess\n\
open('left', 'w').write('x')\n\
os.makedirs('locked/in')\n\
os.chmod('locked', 0)\n\
child = subprocess.Popen(['sleep', '1000'], start_new_session=True, stdout=subprocess.DEVNULL, stderr=2)\n\
print(os.getcwd())";
    let called = testkit::call_in(&table, "code_interpreter", json!({ "code": code })).await;
    let folder = called.text_on("logs");
    assert!(folder.starts_with('/'), "{called:?}");
    assert!(!Path::new(folder.trim()).parent().unwrap().exists());
    let next = json!({ "code": "import os; print(os.listdir('.'))" });
    assert_eq!(testkit::call_in(&table, "code_interpreter", next).await.text_on("logs"), "[]\n");
}

#[tokio::test]
async fn folders_that_are_nested_deeper_than_a_path_is_long_go_with_their_call() {
    let table = table().await;
    let code = "\
import os\n\
print(os.path.dirname(os.getcwd()), flush=True)\n\
for _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')";
    let called = testkit::call_in(&table, "code_interpreter", json!({ "code": code })).await;
    let folder = called.text_on("logs");
    assert!(folder.starts_with('/'), "{called:?}");
    assert!(called.error().contains("nested deeper than"), "{}", called.error());
    assert!(!Path::new(folder.trim()).exists());
    let next = json!({ "code": "print(1)" });
    assert_eq!(testkit::call_in(&table, "code_interpreter", next).await.text_on("logs"), "1\n");
}

#[tokio::test]
async fn links_lead_to_no_file_of_the_machine() {
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "secret").unwrap();
    let code = format!("import os\nos.symlink('{}', 'x.png')\nos.mkfifo('pipe')", secret.path().display());
    let (summary, data) = parts(&run(&code).await);
    assert_eq!((&summary["files"], data.len()), (&json!([]), 0));
}

#[tokio::test]
async fn code_reaches_no_network_and_no_file_that_is_not_its_own() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (summary, _) = parts(&run(&format!("import socket\nsocket.create_connection(('127.0.0.1', {port}), 5)")).await);
    assert_eq!(summary["exit_code"], 1, "{summary}");
    let secret = tempfile::NamedTempFile::new().unwrap();
    let (summary, _) = parts(&run(&format!("open('{}').read()", secret.path().display())).await);
    assert_eq!(summary["exit_code"], 1, "{summary}");
}

#[tokio::test]
async fn code_that_takes_too_long_is_ended() {
    let arguments = json!({ "code": "print('on', flush=True)\nwhile True: pass", "timeout_s": 1 });
    let called = testkit::call_in(&table().await, "code_interpreter", arguments).await;
    assert!(called.error().contains("longer than timeout_s, 1 s"), "{called:?}");
}

#[tokio::test]
async fn code_is_ended_when_its_call_is_cancelled() {
    let arguments = json!({ "code": "import time\nprint('on', flush=True)\ntime.sleep(1000)" });
    let mut call = testkit::start_in(&table().await, "code_interpreter", arguments);
    assert!(call.chunk().await.is_some());
    call.cancel();
    assert_eq!(call.end().await.error(), "the call was cancelled");
}

#[tokio::test]
async fn code_has_only_so_much_memory() {
    let table = table_with(PythonSettings { memory: Some(256 << 20), ..PythonSettings::default() }).await;
    let called = testkit::call_in(&table, "code_interpreter", json!({ "code": "x = bytearray(1 << 30)" })).await;
    let (summary, _) = parts(&called);
    assert!(summary["logs"].as_str().unwrap().contains("MemoryError"), "{summary}");
}

#[tokio::test]
async fn a_file_that_is_too_large_is_named_and_left_out() {
    let (summary, data) = parts(&run("open('big', 'wb').truncate(20 << 20)").await);
    let left_out = summary["files"][0]["left_out"].as_str().unwrap();
    assert!(data.is_empty() && left_out.contains("16777216"), "{summary}");
}

#[tokio::test]
async fn a_program_that_may_be_a_python_gets_no_variable_of_the_worker() {
    let folder = tempfile::tempdir().unwrap();
    let (program, seen) = (folder.path().join("python3"), folder.path().join("seen"));
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let script = format!("#!/bin/sh\nenv > {}\necho /nowhere/python3\necho /nowhere\n", seen.display());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some(), "the worker has a variable that could be seen");
    let table = table_with(PythonSettings { python: Some(program), ..PythonSettings::default() }).await;
    assert!(!seen.exists(), "{}", std::fs::read_to_string(seen).unwrap_or_default());
    let called = testkit::call_in(&table, "code_interpreter", json!({ "code": "print(2)" })).await;
    assert!(called.error().contains("python3: it does not"), "{called:?}");
}

#[tokio::test]
async fn without_python_calls_are_refused_with_the_reason() {
    let python = Some("/nowhere/python3".into());
    let table = table_with(PythonSettings { python, ..PythonSettings::default() }).await;
    let called = testkit::call_in(&table, "code_interpreter", json!({ "code": "1" })).await;
    assert_eq!(called.result.as_ref().unwrap_err().kind, ErrorKind::NeedsInput);
    assert!(called.error().contains("/nowhere/python3"), "{}", called.error());
}
