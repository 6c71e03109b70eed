//! Programs under a guard, with real processes.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};
use sandbox::{Exit, Guarded, Order, Report, Request, Sandbox, Settings, Signal, StartError};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;
use toolyard_tool::Left;

/// Longer than anything here should take.
const SOON: Duration = Duration::from_secs(30);
const NONE: [&str; 0] = [];

fn sandbox() -> Sandbox {
    sandbox::use_program(env!("CARGO_BIN_EXE_toolyard-guard").into());
    Sandbox::new(Settings::default()).unwrap()
}

async fn start(request: Request) -> Guarded {
    sandbox().start(request, Left::default()).await.unwrap()
}

/// The output of a program, and how it ends.
async fn end(mut guarded: Guarded) -> (String, String, Option<Exit>) {
    let (stdout, stderr) = guarded.pipes();
    let (mut out, mut err) = (String::new(), String::new());
    let (mut stdout, mut stderr) = (stdout.unwrap(), stderr.unwrap());
    let reading = async { tokio::try_join!(stdout.read_to_string(&mut out), stderr.read_to_string(&mut err)) };
    timeout(SOON, reading).await.unwrap().unwrap();
    let exit = exit(&mut guarded).await;
    (out, err, exit)
}

/// How the program ends; nothing of it lives then.
async fn exit(guarded: &mut Guarded) -> Option<Exit> {
    let mut exit = None;
    let reports = async {
        while let Some(report) = guarded.report().await {
            match report {
                Report::Exited(how) => exit = Some(how),
                Report::Gone | Report::PerhapsGone => {}
                Report::Failed(error) => panic!("{error}"),
            }
        }
    };
    timeout(SOON, reports).await.unwrap();
    exit
}

/// The first line that a program writes. Its pipes stay open as long as what is returned with it.
async fn first_line(guarded: &mut Guarded) -> (String, impl Sized + use<>) {
    let mut line = String::new();
    let (stdout, stderr) = guarded.pipes();
    let mut stdout = BufReader::new(stdout.unwrap());
    timeout(SOON, stdout.read_line(&mut line)).await.unwrap().unwrap();
    (line, (stdout, stderr))
}

async fn until_gone(pid: &str) {
    let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
    let deadline = Instant::now() + SOON;
    while test_kill_process(pid).is_ok() {
        assert!(Instant::now() < deadline, "{pid:?} is still running");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_program_gets_its_arguments_as_they_are() {
    let odd = ["%s|", "a b", "$HOME", "'\"", "", "-x", "\n"];
    let (out, err, exit) = end(start(Request::run("printf", odd, "/")).await).await;
    assert_eq!((out.as_str(), err.as_str(), exit), ("a b|$HOME|'\"||-x|\n|", "", Some(Exit::ExitCode(0))));
}

#[tokio::test]
async fn a_program_gets_the_variables_of_its_request_and_no_others_of_the_worker() {
    let request = Request::run("env", NONE, "/").with("TOKEN", "for this one").with("LANG", "xx");
    let (out, ..) = end(start(request).await).await;
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.contains(&"TOKEN=for this one") && lines.contains(&"LANG=xx"), "{lines:?}");
    // Cargo gives its tests dozens.
    assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some() && !out.contains("CARGO"), "{lines:?}");
}

#[tokio::test]
async fn a_program_reads_all_input_of_the_worker_and_then_the_end() {
    let mut guarded = start(Request::run("tr", ["a-z", "A-Z"], "/").piped()).await;
    let mut stdin = guarded.stdin().unwrap();
    let input = "hello ".repeat(100_000);
    let expected = input.to_uppercase();
    let writing = async move { stdin.write_all(input.as_bytes()).await.unwrap() };
    let ((), (out, _, exit)) = tokio::join!(writing, end(guarded));
    assert!(out == expected, "{} bytes", out.len());
    assert_eq!(exit, Some(Exit::ExitCode(0)));
}

#[tokio::test]
async fn a_server_on_standard_input_answers_one_request_after_another() {
    let mut guarded = start(Request::shell("while read -r line; do echo \"got $line\"; done", "/").piped()).await;
    let mut stdin = guarded.stdin().unwrap();
    let mut answers = BufReader::new(guarded.pipes().0.unwrap()).lines();
    for number in 0..3 {
        stdin.write_all(format!("{number}\n").as_bytes()).await.unwrap();
        let answer = timeout(SOON, answers.next_line()).await.unwrap().unwrap();
        assert_eq!(answer, Some(format!("got {number}")));
    }
    drop(stdin);
    assert_eq!(exit(&mut guarded).await, Some(Exit::ExitCode(0)));
}

#[tokio::test]
async fn a_program_without_a_pipe_finds_its_input_empty() {
    let mut guarded = start(Request::run("cat", NONE, "/")).await;
    assert!(guarded.stdin().is_none());
    assert_eq!(end(guarded).await, (String::new(), String::new(), Some(Exit::ExitCode(0))));
}

#[tokio::test]
async fn programs_of_one_sandbox_do_not_hold_each_others_pipes() {
    let sandbox = sandbox();
    let mut first = sandbox.start(Request::run("cat", NONE, "/").piped(), Left::default()).await.unwrap();
    let second = sandbox.start(Request::run("cat", NONE, "/").piped(), Left::default()).await.unwrap();
    drop(first.stdin());
    assert_eq!(end(first).await.2, Some(Exit::ExitCode(0)));
    drop(second);
}

#[tokio::test]
async fn a_program_that_is_not_there_is_reported_by_its_name() {
    let mut guarded = start(Request::run("no-such-program", NONE, "/")).await;
    let report = timeout(SOON, guarded.report()).await.unwrap();
    assert!(matches!(&report, Some(Report::Failed(error)) if error.contains("no-such-program")), "{report:?}");
    assert!(guarded.report().await.is_none());
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    let request = Request::run("true", ["x".repeat(2 * 1024 * 1024)], "/");
    let error = sandbox().start(request, Left::default()).await.unwrap_err();
    assert!(matches!(error, StartError::TooLarge { bytes } if bytes > 2 * 1024 * 1024), "{error}");
}

#[tokio::test]
async fn a_signal_reaches_the_program_and_its_group() {
    // The shell runs its trap when the sleep has ended: the group gets the signal, so both do. The inner shell says
    // that it is ready, because a signal between fork and exec could be lost in it.
    let script = "trap 'echo got it; exit 7' INT; while :; do sh -c 'echo ready; exec sleep 60'; done";
    let mut guarded = start(Request::shell(script, "/")).await;
    let mut lines = BufReader::new(guarded.pipes().0.unwrap()).lines();
    assert_eq!(timeout(SOON, lines.next_line()).await.unwrap().unwrap().as_deref(), Some("ready"));
    guarded.order(Order::Signal(Signal::Interrupt));
    assert_eq!(timeout(SOON, lines.next_line()).await.unwrap().unwrap().as_deref(), Some("got it"));
    assert_eq!(exit(&mut guarded).await, Some(Exit::ExitCode(7)));
}

#[tokio::test]
async fn a_stopped_program_continues() {
    let mut guarded = start(Request::run("cat", NONE, "/").piped()).await;
    guarded.order(Order::Signal(Signal::Stop));
    guarded.order(Order::Signal(Signal::Continue));
    drop(guarded.stdin());
    assert_eq!(exit(&mut guarded).await, Some(Exit::ExitCode(0)));
}

#[tokio::test]
async fn a_program_that_is_held_lives_until_it_is_dropped() {
    let left = Left::default();
    let request = Request::shell("setsid sh -c 'echo $$; exec sleep 600' & wait", "/");
    let mut guarded = sandbox().start(request, left.clone()).await.unwrap();
    let (pid, _pipes) = first_line(&mut guarded).await;
    assert!(Path::new(&format!("/proc/{}", pid.trim())).exists());
    drop(guarded);
    timeout(SOON, left.gone()).await.unwrap();
    assert!(!left.may_live());
    until_gone(&pid).await;
}

#[tokio::test]
async fn a_program_is_stopped_gently_and_then_by_force() {
    let script = "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let mut gentle = start(Request::shell(script, "/")).await;
    let (line, _pipes) = first_line(&mut gentle).await;
    assert_eq!(line, "ready\n");
    assert_eq!(timeout(SOON, gentle.stop(SOON)).await.unwrap(), Some(Exit::ExitCode(3)));
    let mut stubborn = start(Request::shell("trap '' TERM; echo ready; while :; do sleep 0.01; done", "/")).await;
    let (line, _pipes) = first_line(&mut stubborn).await;
    assert_eq!(line, "ready\n");
    let exit = timeout(SOON, stubborn.stop(Duration::from_millis(50))).await.unwrap();
    assert_eq!(exit, Some(Exit::Signal(9)));
}
