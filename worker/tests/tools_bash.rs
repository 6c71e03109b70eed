//! `bash` with real processes.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod tools_tree;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use run::{Chunk, Content, ErrorKind};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use tokio::time::timeout;
use toolyard_worker::testkit::{self, Call, Called};
use toolyard_worker::tools::Bash;

use tools_tree::Tree;

/// Longer than anything here should take, shorter than the commands that have to be ended.
const SOON: Duration = Duration::from_secs(10);

async fn bash(command: &str) -> Called {
    bash_in(&Tree::of(&[]), json!({ "command": command })).await
}

async fn bash_in(tree: &Tree, arguments: Value) -> Called {
    timeout(SOON, testkit::call(Bash::new(tree.root()), arguments)).await.unwrap()
}

fn start(tree: &Tree, command: &str) -> Call {
    testkit::start(Bash::new(tree.root()), json!({ "command": command }))
}

async fn end(call: Call) -> Called {
    timeout(SOON, call.end()).await.unwrap()
}

/// The channel and text of the next piece of output.
async fn said(call: &mut Call) -> (String, String) {
    match timeout(SOON, call.chunk()).await.unwrap() {
        Some(Chunk::Content { channel, content: Content::Text(text) }) => (channel, text),
        other => panic!("{other:?} is no text"),
    }
}

/// The process id that the command says next.
async fn pid(call: &mut Call) -> Pid {
    parse_pid(&said(call).await.1)
}

fn parse_pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// A zombie is gone: whoever has to reap it is none of ours.
fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let zombie = stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().trim_start().starts_with(['Z', 'X']));
    test_kill_process(pid).is_ok() && !zombie
}

async fn until_gone(pid: Pid) {
    let deadline = Instant::now() + SOON;
    while is_running(pid) {
        assert!(Instant::now() < deadline, "{pid:?} is still running");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn output_comes_on_two_channels_and_the_exit_code_is_the_result() {
    let called = bash("echo out; echo err >&2").await;
    assert_eq!(called.text_on("stdout"), "out\n");
    assert_eq!(called.text_on("stderr"), "err\n");
    assert_eq!(called.answer(), r#"{"exit_code":0}"#);
}

#[tokio::test]
async fn a_command_that_fails_completes_its_call() {
    assert_eq!(bash("exit 3").await.answer(), r#"{"exit_code":3}"#);
    assert_eq!(bash("no-such-program").await.answer(), r#"{"exit_code":127}"#);
}

#[tokio::test]
async fn a_command_that_is_killed_says_by_what() {
    assert_eq!(bash("kill -9 $$").await.answer(), r#"{"signal":9}"#);
    assert_eq!(bash("kill 0; sleep 60").await.answer(), r#"{"signal":15}"#);
}

#[tokio::test]
async fn output_comes_while_the_command_runs() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "echo one; sleep 60; echo two");
    assert_eq!(said(&mut call).await, ("stdout".to_owned(), "one\n".to_owned()));
    call.cancel();
    let called = end(call).await;
    assert_eq!(called.error(), "the call was cancelled");
    assert!(called.output.is_empty());
}

#[tokio::test]
async fn what_a_command_says_as_it_is_ended_is_heard() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.05; done");
    assert_eq!(said(&mut call).await.1, "ready\n");
    call.cancel();
    assert_eq!(end(call).await.text_on("stdout"), "bye\n");
}

#[tokio::test]
async fn characters_that_are_written_in_pieces_arrive_whole() {
    let called = bash(r"printf 'a\xe6\xbc'; sleep 0.2; printf '\xa2\xff'").await;
    assert_eq!(called.text_on("stdout"), "a漢\u{fffd}");
}

#[tokio::test]
async fn standard_input_is_empty() {
    assert_eq!(bash("cat; echo done").await.text_on("stdout"), "done\n");
}

#[tokio::test]
async fn a_background_process_does_not_hold_the_call_and_ends_with_it() {
    let called = bash("sleep 60 & echo $!").await;
    assert_eq!(called.answer(), r#"{"exit_code":0}"#);
    until_gone(parse_pid(&called.text_on("stdout"))).await;
    let silent = bash("sleep 60 >/dev/null 2>&1 & echo $!").await;
    until_gone(parse_pid(&silent.text_on("stdout"))).await;
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_process_that_left_the_group_does_not_hold_the_call() {
    let called = bash("setsid sleep 60 & echo $!").await;
    assert_eq!(called.answer(), r#"{"exit_code":0}"#);
    let escaped = parse_pid(&called.text_on("stdout"));
    assert!(is_running(escaped));
    kill_process(escaped, Signal::KILL).unwrap();
}

#[tokio::test]
async fn everything_is_said_also_when_it_is_heard_after_the_end() {
    let tree = Tree::of(&[]);
    let many = "for i in $(seq 600); do echo line $i; sleep 0.001; done";
    let mut call = start(&tree, &format!("sleep 60 & echo $!; {many}; printf %060000d 0"));
    let (_, text) = said(&mut call).await;
    let (background, first) = text.split_once('\n').unwrap();
    // From here on nobody listens, more is said than may wait, and in the end the pipes are let go.
    until_gone(parse_pid(background)).await;
    let said = first.to_owned() + &end(call).await.text_on("stdout");
    let (lines, last) = said.rsplit_once('\n').unwrap();
    assert_eq!((lines.lines().count(), last.len()), (600, 60_000));
}

#[tokio::test]
async fn a_cancelled_command_ends_with_its_grandchildren() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "sh -c 'sleep 60 & echo $!; wait'; true");
    let grandchild = pid(&mut call).await;
    call.cancel();
    assert_eq!(end(call).await.error(), "the call was cancelled");
    until_gone(grandchild).await;
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_killed() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "trap '' TERM; echo $$; while :; do sleep 0.05; done");
    let deaf = pid(&mut call).await;
    let asked = Instant::now();
    call.cancel();
    end(call).await;
    assert!(asked.elapsed() >= Duration::from_secs(2), "it was given its time");
    until_gone(deaf).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_kills_the_group() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "trap '' TERM; sh -c 'sleep 60 & echo $!; wait'; true");
    let grandchild = pid(&mut call).await;
    let dropped = Instant::now();
    drop(call);
    until_gone(grandchild).await;
    assert!(dropped.elapsed() < Duration::from_secs(2), "it was killed, not left to the leader of its group");
}

#[tokio::test]
async fn a_command_ends_when_its_time_is_over() {
    let called = bash_in(&Tree::of(&[]), json!({ "command": "sleep 60 & echo $!; wait", "timeout_s": 1 })).await;
    assert_eq!(called.error(), "the command took longer than timeout_s, 1 s, and was ended");
    until_gone(parse_pid(&called.text_on("stdout"))).await;
}

#[tokio::test]
async fn nothing_of_the_environment_but_a_few_names_is_passed_on() {
    let kept = ["PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ", "USER", "TMPDIR"];
    let of_the_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
    let secret = |name: &str| !kept.contains(&name) && !of_the_shell.contains(&name);
    assert!(std::env::vars().any(|(name, _)| secret(&name)), "there is something that must not be seen");
    for line in bash("env").await.text_on("stdout").lines() {
        let (name, _) = line.split_once('=').unwrap();
        assert!(!secret(name), "{line}");
    }
}

#[tokio::test]
async fn a_command_runs_below_the_root() {
    let tree = Tree::of(&[("src/lib.rs", "")]);
    assert_eq!(bash_in(&tree, json!({ "command": "ls" })).await.text_on("stdout"), "src\n");
    let below = bash_in(&tree, json!({ "command": "ls", "working_directory": "src" })).await;
    assert_eq!(below.text_on("stdout"), "lib.rs\n");
    for (folder, reason) in
        [("..", "leads out"), ("/", "leads out"), ("lib", "there is no"), ("src/lib.rs", "not a folder")]
    {
        let called = bash_in(&tree, json!({ "command": "ls", "working_directory": folder })).await;
        assert!(called.error().contains(reason), "{folder}: {}", called.error());
    }
}

#[tokio::test]
async fn a_command_that_begins_with_a_dash_is_no_option() {
    assert_eq!(bash("-x").await.answer(), r#"{"exit_code":127}"#);
}

#[tokio::test]
async fn a_command_that_never_stops_talking_is_ended() {
    let called = bash("yes").await;
    assert_eq!(called.result.as_ref().unwrap_err().kind, ErrorKind::OutputTooLarge);
    assert!(called.error().contains("write to a file"));
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused() {
    let tree = Tree::of(&[]);
    for arguments in [
        json!({}),
        json!({ "command": "" }),
        json!({ "command": "true", "timeout_s": 0 }),
        json!({ "command": "true", "timeout_s": 601 }),
        json!({ "command": "true", "env": {} }),
    ] {
        let called = bash_in(&tree, arguments.clone()).await;
        assert_eq!(called.result.unwrap_err().kind, ErrorKind::ArgumentsInvalid, "{arguments}");
    }
    let long = bash_in(&tree, json!({ "command": format!(": {}", "x".repeat(128 * 1024)) })).await;
    assert!(long.error().contains("write a file and run that"));
    let longest = format!(": {}", "x".repeat(128 * 1024 - 3));
    assert_eq!(bash_in(&tree, json!({ "command": longest })).await.answer(), r#"{"exit_code":0}"#);
}

#[tokio::test]
async fn a_group_does_not_outlive_a_worker_that_is_killed() {
    let mut worker = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker_to_be_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines();
    let grandchild = lines.find_map(|line| line.unwrap().strip_prefix("grandchild ").map(parse_pid)).unwrap();
    assert!(is_running(grandchild));
    worker.kill().unwrap();
    worker.wait().unwrap();
    until_gone(grandchild).await;
}

#[tokio::test]
#[ignore = "a process that another test starts and kills"]
async fn worker_to_be_killed() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "trap '' TERM; sh -c 'sleep 60 & echo $!; wait'; true");
    eprintln!("grandchild {}", pid(&mut call).await.as_raw_nonzero());
    end(call).await;
}
