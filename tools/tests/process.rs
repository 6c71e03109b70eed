//! Background jobs of `bash` and `process`, and `process_output`, with real processes.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod tree;

use std::time::Duration;

use run::{Content, ErrorKind};
use rustix::process::{Pid, test_kill_process};
use sandbox::{Sandbox, Settings};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tools::{Bash, Jobs, Process, ProcessOutput};
use toolyard_tool::Table;
use toolyard_tool::testkit::{self, Called};

use tree::Tree;

/// Longer than anything here should take.
const SOON: Duration = Duration::from_secs(20);

struct Yard {
    tree: Tree,
    table: Table,
}

fn yard() -> Yard {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    let tree = Tree::of(&[]);
    let (sandbox, jobs) = (Sandbox::new(Settings::default()).unwrap(), Jobs::default());
    let bash = Bash::new(tree.root(), sandbox.clone()).with_jobs(jobs.clone());
    let process = Process::new(tree.root(), sandbox, jobs.clone());
    let table = Table::new().host(bash).unwrap().host(process).unwrap().host(ProcessOutput::new(jobs)).unwrap();
    Yard { tree, table }
}

impl Yard {
    async fn call(&self, tool: &str, arguments: Value) -> Called {
        timeout(SOON, testkit::call_in(&self.table, tool, arguments)).await.unwrap()
    }

    /// The id of a background command.
    async fn begin(&self, command: &str) -> String {
        let called = self.call("bash", json!({ "command": command, "run_in_background": true })).await;
        let shown: Value = serde_json::from_str(&called.answer()).unwrap();
        assert_eq!((&shown["running"], &shown["command"]), (&json!(true), &json!(command)));
        shown["job"].as_str().unwrap().to_owned()
    }

    async fn process(&self, arguments: Value) -> Value {
        facts(&self.call("process", arguments).await)
    }

    async fn output(&self, arguments: Value) -> Value {
        facts(&self.call("process_output", arguments).await)
    }

    /// New output, and the facts beside it.
    async fn read(&self, job: &str, offset: u64) -> (String, Value) {
        let ask = json!({ "job": job, "offset": offset, "wait_s": 20 });
        let called = self.call("process_output", ask).await;
        match called.result.as_ref().unwrap().first().unwrap() {
            Content::Text(text) => (text.clone(), facts(&called)),
            other => panic!("{other:?}"),
        }
    }

    /// Waits for the end of a job.
    async fn end(&self, job: &str) -> Value {
        timeout(SOON, async {
            loop {
                let facts = self.output(json!({ "job": job })).await;
                if facts["running"] == false {
                    return facts;
                }
                sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .unwrap()
    }
}

fn facts(called: &Called) -> Value {
    match called.result.as_ref().unwrap_or_else(|error| panic!("{error:?}")).last().unwrap() {
        Content::Json(text) => serde_json::from_str(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_background_command_goes_on_after_its_call_and_is_read_part_by_part() {
    let yard = yard();
    let job = yard.begin("echo one; until test -e go; do sleep 0.05; done; echo two >&2; exit 3").await;
    let (text, facts) = yard.read(&job, 0).await;
    assert_eq!((text.as_str(), &facts["running"]), ("one\n", &json!(true)));
    // A read that waits receives what comes while it waits.
    let (read, written) = tokio::join!(yard.read(&job, 4), async {
        sleep(Duration::from_millis(100)).await;
        yard.tree.write("go", b"");
    });
    let ((text, facts), ()) = (read, written);
    assert_eq!((text.as_str(), &facts["next_offset"]), ("two\n", &json!(8)));
    assert_eq!(yard.end(&job).await["end"], json!({ "exit_code": 3 }));
    assert_eq!(yard.read(&job, 8).await.0, "No new output\n");
}

#[tokio::test]
async fn a_program_is_started_with_its_arguments_listed_and_signalled() {
    let yard = yard();
    yard.tree.write("sub/file", b"");
    let script = "trap 'echo stopped; exit 5' INT; echo $GREETING $0 $1; pwd; while :; do sleep 0.05; done";
    let start = json!({
        "action": "start", "program": "bash", "arguments": ["-c", script, "a b", "$HOME"],
        "environment": { "GREETING": "hello" }, "working_directory": "sub",
    });
    let job = yard.process(start).await["job"].as_str().unwrap().to_owned();
    let listed = yard.output(json!({})).await;
    assert_eq!((listed[0]["job"].as_str(), listed.as_array().unwrap().len()), (Some(job.as_str()), 1));
    let mut text = String::new();
    while !text.ends_with("sub\n") {
        text += &yard.read(&job, text.len() as u64).await.0;
    }
    assert!(text.starts_with("hello a b $HOME\n"), "{text}");
    yard.process(json!({ "action": "signal", "job": job, "signal": "int" })).await;
    assert_eq!(yard.end(&job).await["end"], json!({ "exit_code": 5 }));
    let late = yard.call("process", json!({ "action": "signal", "job": job, "signal": "SIGTERM" })).await;
    assert!(late.error().contains("has ended already"), "{}", late.error());
}

#[tokio::test]
async fn a_job_is_stopped_with_everything_that_it_started() {
    let yard = yard();
    let job = yard.begin("trap '' TERM; setsid sleep 600 & echo $!; wait").await;
    let (text, _) = yard.read(&job, 0).await;
    let child = Pid::from_raw(text.trim().parse().unwrap()).unwrap();
    assert!(test_kill_process(child).is_ok());
    let stopped = yard.process(json!({ "action": "stop", "job": job })).await;
    assert_eq!((&stopped["running"], &stopped["end"]), (&json!(false), &json!({ "failed": "it was stopped" })));
    assert!(test_kill_process(child).is_err(), "nothing of it lives");
}

#[tokio::test]
async fn a_job_ends_at_its_timeout() {
    let yard = yard();
    let arguments = json!({ "command": "sleep 600", "run_in_background": true, "timeout_s": 1 });
    let job = facts(&yard.call("bash", arguments).await)["job"].as_str().unwrap().to_owned();
    assert_eq!(yard.end(&job).await["end"], json!({ "failed": "it ran longer than 1 s and was ended" }));
}

#[tokio::test]
async fn only_the_latest_output_is_kept_and_the_rest_is_counted() {
    let yard = yard();
    let job = yard.begin("head -c 3000000 /dev/zero | tr '\\0' x; echo end").await;
    let end = yard.end(&job).await;
    assert_eq!(end["bytes"], 3_000_004);
    let facts = yard.output(json!({ "job": job, "offset": 10 })).await;
    assert_eq!(facts["forgotten"], 3_000_004 - 1024 * 1024 - 10);
    let (tail, _) = yard.read(&job, 3_000_000).await;
    assert_eq!(tail, "end\n");
}

#[tokio::test]
async fn jobs_are_limited_in_number_and_end_with_their_worker() {
    let yard = yard();
    let mut children = Vec::new();
    for _ in 0..16 {
        let job = yard.begin("echo $$; sleep 600").await;
        children.push(Pid::from_raw(yard.read(&job, 0).await.0.trim().parse().unwrap()).unwrap());
    }
    let refused = yard.call("bash", json!({ "command": "true", "run_in_background": true })).await;
    assert_eq!(refused.result.as_ref().unwrap_err().kind, ErrorKind::NeedsInput);
    assert!(refused.error().contains("16 background jobs"), "{}", refused.error());
    drop(yard);
    let gone = async {
        while children.iter().any(|child| test_kill_process(*child).is_ok()) {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, gone).await.expect("they end");
}

#[tokio::test]
async fn a_job_of_another_worker_is_answered_with_the_reason() {
    let (one, other) = (yard(), yard());
    let job = one.begin("sleep 600").await;
    let called = other.call("process_output", json!({ "job": job })).await;
    assert_eq!(called.result.as_ref().unwrap_err().kind, ErrorKind::NeedsInput);
    assert!(called.error().contains("need a pool with one worker"), "{}", called.error());
}

#[tokio::test]
async fn arguments_that_are_of_no_use_are_refused_by_their_place() {
    let yard = yard();
    let job = yard.begin("echo hi").await;
    for (tool, arguments, pointer) in [
        ("process_output", json!({ "job": "job_x" }), "/job"),
        ("process_output", json!({ "job": job, "offset": 1000 }), "/offset"),
        ("process", json!({ "action": "stop" }), "/job"),
        ("process", json!({ "action": "read", "job": job }), "/action"),
        ("process", json!({ "action": "start" }), "/program"),
        ("process", json!({ "action": "start", "program": "no-such-program" }), "/program"),
        ("process", json!({ "action": "start", "program": "true", "working_directory": ".." }), "/working_directory"),
        ("process", json!({ "action": "signal", "job": job, "signal": "SIGSEGV" }), "/signal"),
        ("process", json!({ "action": "fly" }), "/action"),
        ("bash", json!({ "command": "true", "timeout_s": 601 }), "/timeout_s"),
    ] {
        let error = yard.call(tool, arguments.clone()).await.result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ArgumentsInvalid, "{arguments}: {error:?}");
        assert_eq!(error.violations[0].path, pointer, "{arguments}: {error:?}");
    }
}

#[tokio::test]
async fn a_read_that_waits_ends_with_its_call() {
    let yard = yard();
    let job = yard.begin("sleep 600").await;
    let ask = json!({ "job": job, "wait_s": 240 });
    let call = testkit::start_in(&yard.table, "process_output", ask);
    sleep(Duration::from_millis(50)).await;
    call.cancel();
    let called = timeout(SOON, call.end()).await.unwrap();
    assert_eq!(called.error(), "the call was cancelled");
}
