//! Servers that are programs, well-behaved and hostile ones: real processes under the guard of the sandbox.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod hosted;

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use origins::mcp::config::{Patterns, Reach, Secret, ServerConfig};
use origins::mcp::{Host, Programs, Selection};
use run::{Chunk, ErrorKind};
use rustix::process::{Pid, test_kill_process};
use sandbox::{Level, Sandbox, Settings, Wanted};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use toolyard_tool::testkit::{Called, call_in, manifest, start_in};
use toolyard_tool::{Table, tool};

use hosted::{Hosted, SOON, host, host_with, server};

fn names(table: &Table) -> Vec<String> {
    table.manifests().map(|manifest| manifest.name.to_string()).collect()
}

fn lives(pid: i32) -> bool {
    test_kill_process(Pid::from_raw(pid).unwrap()).is_ok()
}

/// Waits for something that takes an unknown time.
async fn becomes(what: &str, holds: impl Fn() -> bool) {
    let waiting = async {
        while !holds() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(timeout(SOON, waiting).await.is_ok(), "{what}");
}

fn kind_of(called: &Called) -> ErrorKind {
    called.result.as_ref().unwrap_err().kind
}

#[tokio::test]
async fn the_tools_of_all_pages_are_hosted_with_their_effects_and_called() {
    let hosted = host(vec![server("well")]).await;
    let table = hosted.table();
    assert_eq!(names(&table).len(), 16);
    let echo = manifest(&table, "echo").unwrap();
    assert_eq!((echo.title.as_str(), echo.description.as_str()), ("Echo", "Gives the text back."));
    assert!(echo.effects.read_only && echo.effects.open_world && echo.policy.repeatable);
    assert!(manifest(&table, "die").unwrap().effects.destructive);
    hosted.is_well().await;
    let called = hosted.call("echo", json!({"text": 7})).await;
    assert_eq!(kind_of(&called), ErrorKind::ArgumentsInvalid);
    hosted.stop().await;
}

#[tokio::test]
async fn errors_of_the_tool_and_of_the_protocol_have_their_kinds() {
    let hosted = host(vec![server("well")]).await;
    let called = hosted.call("fail", json!({})).await;
    assert_eq!((kind_of(&called), called.error()), (ErrorKind::ToolFailed, "the disk is full"));
    let called = hosted.call("invalid", json!({})).await;
    assert_eq!(kind_of(&called), ErrorKind::ArgumentsInvalid);
    assert!(called.error().contains("text is too short"), "{}", called.error());
    let called = hosted.call("nonsense", json!({})).await;
    assert!(called.error().contains("what is no result of a tool"), "{}", called.error());
    hosted.is_well().await;
    hosted.stop().await;
}

#[tokio::test]
async fn progress_reaches_the_call_and_its_cancellation_the_server_within_a_second() {
    let hosted = host(vec![server("well")]).await;
    let mut call = start_in(&hosted.table(), "sleep", json!({"note": hosted.note()}));
    let Some(Chunk::Progress(progress)) = timeout(SOON, call.chunk()).await.unwrap() else { panic!("no progress") };
    assert_eq!(progress.total, Some(600.0));
    let asked = Instant::now();
    call.cancel();
    let called = timeout(SOON, call.end()).await.unwrap();
    assert_eq!(called.error(), "the call was cancelled");
    becomes("the server is told", || hosted.noted().contains("cancelled")).await;
    // The server looks at it every 100 ms.
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    hosted.is_well().await;
    hosted.stop().await;
}

#[tokio::test]
async fn a_server_that_dies_in_the_middle_is_started_again_and_its_call_fails() {
    let hosted = host(vec![server("well")]).await;
    let beside = start_in(&hosted.table(), "sleep", json!({"note": hosted.note()}));
    let called = hosted.call("die", json!({})).await;
    assert_eq!(kind_of(&called), ErrorKind::Interrupted, "{}", called.error());
    assert!(called.error().contains("its effect may have happened"), "{}", called.error());
    let beside = timeout(SOON, beside.end()).await.unwrap().result.unwrap_err();
    assert!(beside.retryable && beside.kind == ErrorKind::ToolFailed, "a tool that may be repeated: {beside:?}");
    // The tools stay, and the next call waits for the server.
    hosted.is_well().await;
    let note = json!({"note": hosted.folder.path().join("died")});
    assert!(hosted.call("die_again", note.clone()).await.result.unwrap_err().retryable);
    assert_eq!(hosted.call("die_again", note).await.answer(), "alive again");
    hosted.stop().await;
}

#[tokio::test]
async fn a_task_whose_server_ends_is_not_called_again_and_its_effect_may_have_happened() {
    let hosted = host(vec![server("well")]).await;
    let called = hosted.call("task_dies", json!({"note": hosted.note()})).await;
    assert_eq!(hosted.noted(), "called\n");
    assert_eq!(kind_of(&called), ErrorKind::Interrupted, "{}", called.error());
    assert!(called.error().contains("its effect may have happened"), "{}", called.error());
    hosted.stop().await;
}

#[tokio::test]
async fn what_a_server_writes_to_its_standard_error_does_not_reach_callers() {
    let quick = ServerConfig { start_timeout: Duration::from_secs(3), ..server("dies_later") };
    let hosted = host(vec![quick]).await;
    let table = hosted.table();
    // It ends now, and does not start again.
    assert!(call_in(&table, "die", json!({})).await.result.is_err());
    let called = call_in(&table, "echo", json!({"text": "hi"})).await;
    assert!(called.error().contains("is not running: its program ended with exit code 1"), "{}", called.error());
    assert!(!called.error().contains("token=abc"), "{}", called.error());
    hosted.stop().await;
}

#[tokio::test]
async fn a_question_that_comes_after_its_call_was_cancelled_is_not_put_to_another_caller() {
    let hosted = host(vec![server("well")]).await;
    let late = hosted.folder.path().join("late");
    let cancelled = start_in(&hosted.table(), "ask_late", json!({"note": late}));
    let read = || std::fs::read_to_string(&late).unwrap_or_default();
    becomes("the server works", || read().contains("started")).await;
    let beside = start_in(&hosted.table(), "sleep", json!({"note": hosted.note()}));
    becomes("the other call runs", || hosted.noted().contains("started")).await;
    cancelled.cancel();
    assert_eq!(timeout(SOON, cancelled.end()).await.unwrap().error(), "the call was cancelled");
    becomes("the question is answered", || read().contains("action")).await;
    assert!(read().contains("\"decline\""), "{}", read());
    beside.cancel();
    drop(timeout(SOON, beside.end()).await.unwrap());
    hosted.stop().await;
}

#[tokio::test]
async fn a_result_of_a_hundred_megabytes_fails_its_call_and_nothing_else() {
    let hosted = host(vec![server("well")]).await;
    let table = hosted.table();
    let beside = start_in(&table, "sleep", json!({"note": hosted.note()}));
    let called = hosted.call("hundred_megabytes", json!({})).await;
    assert_eq!(kind_of(&called), ErrorKind::ResultTooLarge, "{}", called.error());
    hosted.is_well().await;
    beside.cancel();
    assert_eq!(timeout(SOON, beside.end()).await.unwrap().error(), "the call was cancelled");
    hosted.stop().await;
}

#[tokio::test]
async fn a_flood_of_notifications_and_errors_costs_a_few_chunks() {
    let hosted = host(vec![server("well")]).await;
    let called = hosted.call("flood", json!({})).await;
    assert_eq!(called.answer(), "flooded");
    assert!(called.output.len() < 600, "{} reports of progress", called.output.len());
    let reported = called.output.iter().map(|chunk| match chunk {
        Chunk::Progress(progress) => progress.done,
        Chunk::Content { .. } => panic!("no progress: {chunk:?}"),
    });
    let reported: Vec<f64> = reported.collect();
    assert!(reported.is_sorted() && *reported.last().unwrap() > 10_000.0, "newer ones count: {reported:?}");
    hosted.stop().await;
}

#[tokio::test]
async fn a_server_may_change_its_tools_while_calls_run() {
    let mut hosted = host(vec![server("well")]).await;
    let call = start_in(&hosted.table(), "grow", json!({}));
    let grown = hosted.tables.wait_for(|table| table.hosts("grown"));
    assert!(timeout(SOON, grown).await.is_ok());
    assert_eq!(timeout(SOON, call.end()).await.unwrap().answer(), "grown while it ran");
    assert_eq!(hosted.call("grown", json!({})).await.answer(), "I am new");
    hosted.stop().await;
}

#[tokio::test]
async fn of_a_server_that_lies_the_tools_that_can_be_used_are_hosted() {
    let hosted = host(vec![server("liar")]).await;
    let names = names(&hosted.table());
    assert!(names.contains(&"old".to_owned()), "a schema of draft 7 is of use: {names:?}");
    for left_out in ["not_an_object", "foreign", "large", "no_schema"] {
        assert!(!names.contains(&left_out.to_owned()), "{left_out} in {names:?}");
    }
    let table = hosted.table();
    assert_eq!(manifest(&table, "echo").unwrap().title, "Echo", "the first of a name counts");
    hosted.is_well().await;
    hosted.stop().await;
}

#[tokio::test]
async fn servers_that_cannot_start_do_not_stop_the_others() {
    let quick = |mode: &str| ServerConfig { start_timeout: Duration::from_secs(3), ..server(mode) };
    let missing = Reach::Program {
        program: "no-such-program".to_owned(),
        arguments: Vec::new(),
        environment: Vec::new(),
        folder: None,
    };
    let missing = ServerConfig::new("missing", missing).unwrap();
    let bad = ["silent", "no_mcp", "broken", "circle"].map(quick);
    let servers = bad.into_iter().chain([missing, server("well")]).collect();
    let hosted = host(servers).await;
    assert_eq!(names(&hosted.table()).len(), 16);
    hosted.is_well().await;
    hosted.stop().await;
}

#[tokio::test]
async fn nothing_that_a_server_started_outlives_the_host() {
    let hosted = host(vec![server("well")]).await;
    let pids = hosted.call("child", json!({})).await.answer();
    let pids: Vec<i32> = pids.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(pids.iter().all(|pid| lives(*pid)));
    hosted.stop().await;
    for pid in pids {
        becomes("the process ends", || !lives(pid)).await;
    }
}

#[tokio::test]
async fn with_a_process_for_each_slot_no_call_shares_one() {
    let hosted = host(vec![ServerConfig { per_slot: true, ..server("well") }]).await;
    let table = hosted.table();
    let running = start_in(&table, "sleep", json!({"note": hosted.note()}));
    let called = hosted.call("die", json!({})).await;
    assert_eq!(kind_of(&called), ErrorKind::Interrupted);
    for _ in 0..6 {
        hosted.is_well().await;
    }
    running.cancel();
    assert_eq!(timeout(SOON, running.end()).await.unwrap().error(), "the call was cancelled", "it was not harmed");
    hosted.stop().await;
}

#[tokio::test]
async fn without_a_root_a_server_changes_nothing_in_the_folder_of_the_worker() {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-mcp-tests").into());
    // The python3 of this machine may be installed anywhere.
    let script = "import sys; print(sys.executable); print(sys.base_prefix)";
    let asked = Command::new("python3").args(["-c", script]).output().unwrap();
    let asked = String::from_utf8(asked.stdout).unwrap();
    let (python, prefix) = asked.trim().split_once('\n').unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers");
    let (level, readable) = (Wanted::Exactly(Level::Confined), vec![prefix.into(), scripts]);
    let Ok(sandbox) = Sandbox::new(Settings { level, readable, ..Settings::default() }) else {
        eprintln!("NOT TESTED: this machine cannot confine programs");
        return;
    };
    let mut config = server("well");
    if let Reach::Program { program, .. } = &mut config.reach {
        python.clone_into(program);
    }
    let programs = Programs::without_root(sandbox).unwrap();
    let stop = CancellationToken::new();
    let starting = Host::new(vec![config], Table::new(), Some(&programs), 4).start(stop.clone());
    let (tables, tasks) = timeout(SOON, starting).await.unwrap();
    let hosted = Hosted { tables, stop, tasks, folder: tempfile::tempdir().unwrap() };
    let ours = std::env::current_dir().unwrap().join("x");
    let refused = hosted.call("write", json!({"path": ours})).await;
    assert!(refused.error().contains("Permission denied") && !ours.exists(), "{}", refused.error());
    let written = hosted.call("write", json!({"path": "x"})).await.answer();
    assert!(Path::new(&written).exists() && !ours.exists(), "{written}");
    hosted.stop().await;
    drop(programs);
    assert!(!Path::new(&written).exists(), "{written} is left");
}

#[tokio::test]
async fn a_confined_server_of_another_user_writes_its_home() {
    let python = Path::new("/usr/bin/python3");
    if !rustix::process::geteuid().is_root() || !python.exists() {
        eprintln!("NOT TESTED: only root starts programs of another user, which needs the python3 of the system");
        return;
    }
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-mcp-tests").into());
    let scripts = tempfile::tempdir().unwrap();
    std::fs::set_permissions(scripts.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/servers/server.py");
    std::fs::copy(source, scripts.path().join("server.py")).unwrap();
    let level = Wanted::Exactly(Level::Confined);
    let (readable, user) = (vec![scripts.path().to_owned()], Some(sandbox::User::NOBODY));
    let Ok(sandbox) = Sandbox::new(Settings { level, readable, user, ..Settings::default() }) else {
        eprintln!("NOT TESTED: this machine cannot confine programs");
        return;
    };
    let arguments = vec![scripts.path().join("server.py").display().to_string(), "well".to_owned()];
    let program = python.display().to_string();
    let reach = Reach::Program { program, arguments, environment: Vec::new(), folder: None };
    let programs = Programs::without_root(sandbox).unwrap();
    let stop = CancellationToken::new();
    let host = Host::new(vec![ServerConfig::new("well", reach).unwrap()], Table::new(), Some(&programs), 4);
    let (tables, tasks) = timeout(SOON, host.start(stop.clone())).await.unwrap();
    let hosted = Hosted { tables, stop, tasks, folder: tempfile::tempdir().unwrap() };
    let variables: Value = serde_json::from_str(&hosted.call("environment", json!({})).await.answer()).unwrap();
    let cache = Path::new(variables["HOME"].as_str().unwrap()).join("cache");
    assert_eq!(hosted.call("write", json!({"path": cache})).await.answer(), cache.display().to_string());
    hosted.stop().await;
}

#[tokio::test]
async fn a_server_gets_its_own_variables_and_not_those_of_the_worker() {
    let mut config = server("well");
    if let Reach::Program { environment, .. } = &mut config.reach {
        environment.push(("API_KEY".to_owned(), Secret::new("k")));
    }
    let hosted = host(vec![config]).await;
    let variables: Value = serde_json::from_str(&hosted.call("environment", json!({})).await.answer()).unwrap();
    assert_eq!(variables["API_KEY"], "k");
    assert!(variables.get("CARGO_MANIFEST_DIR").is_none(), "{variables}");
    hosted.stop().await;
}

/// Has the name of a server's tool.
#[tool(read_only)]
async fn echo() -> &'static str {
    "mine"
}

#[tokio::test]
async fn names_that_are_taken_are_left_out_and_patterns_choose_over_all() {
    let own = || Table::new().host(Echo).unwrap();
    let hosted = host_with(vec![server("well")], own(), Selection::default()).await;
    assert_eq!(hosted.call("echo", json!({})).await.answer(), "mine");
    hosted.stop().await;

    let prefixed = server("well").with_prefix("s__").unwrap();
    let config = ServerConfig { deny: Patterns::new(&["die*"]).unwrap(), ..prefixed };
    let selection = Selection {
        enable: Patterns::new(&["echo", "s__[de]*"]).unwrap(),
        disable: Patterns::new(&["s__en*"]).unwrap(),
    };
    let hosted = host_with(vec![config], own(), selection).await;
    assert_eq!(names(&hosted.table()), ["echo", "s__echo"]);
    hosted.stop().await;
}

#[tokio::test]
async fn sampling_and_roots_are_declined_as_unknown() {
    let hosted = host(vec![server("well")]).await;
    let answers: Value = serde_json::from_str(&hosted.call("ask", json!({})).await.answer()).unwrap();
    assert_eq!(answers["q1"]["code"], -32601, "{answers}");
    assert_eq!(answers["q2"]["code"], -32601, "{answers}");
    hosted.stop().await;
}
