//! Tools of MCP servers are called through the queue as any other tool.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use harness::{PATIENCE, Yard, call, check, peers};
use proto::v1::{self, CallErrorKind, CallState, run_event::Event};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::{FIXTURE, count, counted};

/// A yard whose workers host servers beside the tools of most scenarios.
pub(crate) struct Hosting {
    pub(crate) yard: Yard,
    pub(crate) folder: tempfile::TempDir,
}

impl Hosting {
    async fn start(servers: impl FnOnce(&Path) -> Value) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("servers.json");
        let servers = json!({ "mcpServers": servers(folder.path()) });
        std::fs::write(&file, servers.to_string()).expect("a file can be written");
        let yard = Yard::start(FIXTURE).await;
        let fixture = yard.fixture.with("TOOLYARD_MCP_CONFIG", file.display());
        Self { yard: Yard { fixture, ..yard }, folder }
    }

    /// With the small server of the tests.
    async fn of_tests() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../worker/origins/tests/servers/server.py");
        let names = ["sleep", "die", "child", "environment"];
        let ours = json!({ "allow": names });
        Self::start(|_| json!({ "test": { "command": "python3", "args": [script, "well"], "toolyard": ours } })).await
    }

    /// With the servers of others, which have a folder and a repository.
    pub(crate) async fn of_others() -> Self {
        let npm = peers::npm_servers();
        let python = peers::python_servers();
        Self::start(|folder| {
            let repository = folder.join("repository");
            std::fs::create_dir(&repository).expect("a folder can be made");
            git(&repository, &["init", "-q"]);
            git(&repository, &["commit", "-q", "--allow-empty", "-m", "the first commit"]);
            json!({
                "everything": { "command": npm.join("mcp-server-everything"), "args": ["stdio"] },
                "files": { "command": npm.join("mcp-server-filesystem"), "args": [folder] },
                "git": { "command": python.join("mcp-server-git"), "args": ["--repository", repository] },
                "time": { "command": python.join("mcp-server-time"), "args": ["--local-timezone", "Europe/Berlin"] },
            })
        })
        .await
    }

    fn note(&self) -> PathBuf {
        self.folder.path().join("note")
    }

    fn sleep(&self) -> v1::NewCall {
        call("s", "test__sleep", json!({ "note": self.note() }))
    }

    /// Waits until the note has so many lines that begin with a word, and returns their last words.
    async fn noted(&self, word: &str, lines: usize) -> Vec<String> {
        let waiting = async {
            loop {
                let text = std::fs::read_to_string(self.note()).unwrap_or_default();
                let found = text.lines().filter(|line| line.starts_with(word));
                let found: Vec<String> = found.map(|line| line.rsplit(' ').next().unwrap_or_default().into()).collect();
                if found.len() >= lines {
                    return found;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(PATIENCE, waiting).await.expect("the server notes it in time")
    }
}

async fn outcome(yard: &Yard, tool: &str, arguments: Value) -> v1::CallOutcome {
    let events = yard.client.execute(vec![call("c", tool, arguments)]).await.to_end().await;
    check::whole(&events, true);
    check::outcomes(&events)["c"].clone()
}

pub(crate) async fn answer(yard: &Yard, tool: &str, arguments: Value) -> String {
    // Its server may start slowly.
    yard.client.wait_for_tool(tool).await;
    let outcome = outcome(yard, tool, arguments).await;
    assert_eq!(outcome.state(), CallState::Completed, "{tool}: {outcome:?}");
    check::text(&outcome)
}

fn git(folder: &Path, arguments: &[&str]) {
    let names = ["-c", "user.name=t", "-c", "user.email=t@example.com"];
    let done = Command::new("git").arg("-C").arg(folder).args(names).args(arguments).output().expect("git is there");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[tokio::test]
async fn the_servers_of_others_are_hosted_and_called_in_both_eras() {
    let hosting = Hosting::of_others().await;
    let (yard, folder) = (&hosting.yard, hosting.folder.path().canonicalize().expect("it is there"));
    let _worker = yard.worker().await;

    let echoed = answer(yard, "everything__echo", json!({ "message": "hi" })).await;
    assert!(echoed.contains("hi"), "{echoed}");
    let image = outcome(yard, "everything__get-tiny-image", json!({})).await;
    let bodies = image.result.iter().filter_map(|content| content.body.as_ref());
    assert!(bodies.into_iter().any(|body| matches!(body, v1::content::Body::Data(_))), "{image:?}");
    let weather = answer(yard, "everything__get-structured-content", json!({ "location": "Chicago" })).await;
    assert!(serde_json::from_str::<Value>(&weather).is_ok_and(|value| value.is_object()), "once: {weather}");
    // A task of 2025-11-25.
    let report = answer(yard, "everything__simulate-research-query", json!({ "topic": "tea" })).await;
    assert!(report.contains("tea"), "{report}");

    let (path, content) = (folder.join("a.txt"), "from a call");
    answer(yard, "files__write_file", json!({ "path": path, "content": content })).await;
    assert_eq!(std::fs::read_to_string(&path).expect("the server wrote it"), content);
    let refused = outcome(yard, "files__read_text_file", json!({ "path": "/etc/passwd" })).await;
    assert_eq!(refused.error.expect("an error").kind(), CallErrorKind::ToolFailed);

    let log = answer(yard, "git__git_log", json!({ "repo_path": folder.join("repository") })).await;
    assert!(log.contains("the first commit"), "{log}");
    let time = answer(yard, "time__get_current_time", json!({ "timezone": "Asia/Shanghai" })).await;
    assert!(time.contains("Asia/Shanghai"), "{time}");
}

#[tokio::test]
async fn one_batch_has_a_tool_of_a_server_and_a_tool_of_the_worker() {
    let hosting = Hosting::of_tests().await;
    let _worker = hosting.yard.worker().await;
    let calls = vec![count("c", 3, 1), call("m", "test__environment", json!({}))];
    let events = hosting.yard.client.execute(calls).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 3));
    let outcomes = check::outcomes(&events);
    assert!(check::text(&outcomes["m"]).contains("PATH"));
}

#[tokio::test]
async fn a_cancellation_reaches_the_server_within_a_second() {
    let hosting = Hosting::of_tests().await;
    let _worker = hosting.yard.worker().await;
    let mut stream = hosting.yard.client.execute(vec![hosting.sleep()]).await;
    stream.until(|event| matches!(event, Event::RunOpened(_))).await;
    hosting.noted("started", 1).await;
    let run = stream.run(&hosting.yard.client);
    let asked = Instant::now();
    run.cancel("not needed").await;
    hosting.noted("cancelled", 1).await;
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
    let outcomes = check::outcomes(&stream.to_end().await);
    assert_eq!(outcomes["s"].state(), CallState::Cancelled);
}

#[tokio::test]
async fn a_server_that_is_killed_in_mid_call_is_started_again_and_the_call_repeated() {
    let hosting = Hosting::of_tests().await;
    let _worker = hosting.yard.worker().await;
    let mut stream = hosting.yard.client.execute(vec![hosting.sleep()]).await;
    stream.until(|event| matches!(event, Event::RunOpened(_))).await;
    let pid = hosting.noted("started", 1).await[0].parse().expect("a process id");
    kill_process(Pid::from_raw(pid).expect("a process id"), Signal::KILL).expect("it was running");
    let pids = hosting.noted("started", 2).await;
    assert_ne!(pids[0], pids[1], "the second attempt is executed by another process");
    let run = stream.run(&hosting.yard.client);
    run.cancel("seen").await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    // What is not safe to repeat ends, and its caller is told.
    let died = outcome(&hosting.yard, "test__die", json!({})).await.error.expect("an error");
    assert_eq!(died.kind(), CallErrorKind::Interrupted);
    assert!(died.message.contains("may have happened"), "{}", died.message);
    assert!(answer(&hosting.yard, "test__environment", json!({})).await.contains("PATH"), "it is running again");
}

#[tokio::test]
async fn a_worker_that_is_killed_in_mid_call_takes_its_server_with_it_and_another_repeats_the_call() {
    let hosting = Hosting::of_tests().await;
    let mut first = hosting.yard.worker().await;
    let mut stream = hosting.yard.client.execute(vec![hosting.sleep()]).await;
    // The tool is called before its start is stored, because it may be repeated.
    stream.until(|event| matches!(event, Event::AttemptStarted(_))).await;
    let pid: i32 = hosting.noted("started", 1).await[0].parse().expect("a process id");
    first.kill().await;
    let gone = async {
        while rustix::process::test_kill_process(Pid::from_raw(pid).expect("a process id")).is_ok() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the server ends with its worker");
    let _second = hosting.yard.worker().await;
    hosting.noted("started", 2).await;
    let run = stream.run(&hosting.yard.client);
    run.cancel("seen").await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    let attempts = check::kinds(&events).into_iter().filter(|kind| matches!(kind, Event::AttemptStarted(_)));
    assert_eq!(attempts.count(), 2);
}
