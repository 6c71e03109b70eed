//! Acceptance tests of the built-in tools, each through a broker, a coordinator and a worker. All share one cluster. A
//! tool that a worker lists and that has no exercise here fails the test.

use std::path::Path;
use std::process::Command;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use harness::acceptance::{ROWS, Verdict, record};
use harness::{Client, Run, Worker, Yard, call, client_answer};
use proto::v1::{self, CallState, Confirmation, FloorPolicy};
use serde_json::{Value, json};

use crate::acceptance::with_servers;
use crate::{FIXTURE, bring, check};

/// The outcome of an exercise: `Err` says why it cannot be done on this machine.
pub(crate) type Done = Result<(), String>;
type Exercise = for<'a> fn(&'a Cluster) -> BoxFuture<'a, Done>;

/// How each tool is exercised.
const EXERCISES: &[(&str, Exercise)] = &[
    ("ask_user", |cluster| ask_user(cluster).boxed()),
    ("bash", |cluster| bash(cluster).boxed()),
    ("edit", |cluster| edit(cluster).boxed()),
    ("get_current_time", |cluster| get_current_time(cluster).boxed()),
    ("git", |cluster| git(cluster).boxed()),
    ("glob", |cluster| glob(cluster).boxed()),
    ("grep", |cluster| grep(cluster).boxed()),
    ("lint", |cluster| lint(cluster).boxed()),
    ("lsp", |cluster| lsp(cluster).boxed()),
    ("mcp_client", |cluster| mcp_client(cluster).boxed()),
    ("mcp_tools", |cluster| mcp_tools(cluster).boxed()),
    ("powershell", |cluster| powershell(cluster).boxed()),
    ("process", |cluster| process(cluster).boxed()),
    ("process_output", |cluster| process_output(cluster).boxed()),
    ("read_file", |cluster| read_file(cluster).boxed()),
];

/// A broker, a coordinator and a worker with the built-in tools.
struct Cluster {
    folder: tempfile::TempDir,
    client: Client,
    _yard: Yard,
    _worker: Worker,
}

/// Files for the exercises.
fn prepare(folder: &Path) {
    let write = |path: &str, text: &str| {
        let file = folder.join(path);
        std::fs::create_dir_all(file.parent().expect("it is below")).expect("it can be made");
        std::fs::write(file, text).expect("it can be written");
    };
    write("poem.txt", "an owl\n");
    write("edited.txt", "one\ntwo\n");
    write("ruff.toml", "[lint]\nselect = [\"F\"]\n");
    write("python/shapes.py", "def area(width, height):\n    return width * height\n");
    write("python/main.py", "import os\nfrom shapes import area\n\nprint(area(2, 3))\n");
    write("repository/a.txt", "a\n");
    let git = Command::new("git").args(["init", "--quiet", "repository"]).current_dir(folder).status();
    assert!(git.is_ok_and(|git| git.success()), "git is installed");
}

/// The file that names the linter and the language server of the exercises, as far as they are here.
fn tools_file(folder: &Path) -> std::path::PathBuf {
    let mut text = String::new();
    if let Some(ruff) = bring::from_pypi(&["ruff==0.14.6"], "ruff") {
        text += &format!(
            "[[linter]]\nname = \"ruff\"\nprogram = {:?}\nfiles = [\"*.py\"]\nformat = \"ruff\"\n\
             arguments = [\"check\", \"--no-cache\", \"--quiet\", \"--output-format\", \"json\"]\n",
            ruff.display().to_string()
        );
    }
    if let Some(pylsp) = bring::from_pypi(&["python-lsp-server==1.15.0", "pyflakes"], "pylsp") {
        text += &format!(
            "[[language_server]]\nname = \"pylsp\"\nprogram = {:?}\nfiles = {{ \"*.py\" = \"python\" }}\n\
             environment = {{ PYTHONPATH = {:?} }}\n",
            pylsp.display().to_string(),
            bring::python_path(&pylsp)
        );
    }
    let file = folder.join("tools.toml");
    std::fs::write(&file, text).expect("it can be written");
    file
}

impl Cluster {
    async fn start() -> Self {
        let (folder, outside) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        prepare(folder.path());
        let yard = Yard::start(FIXTURE).await;
        let tools = format!("built_in:{}", folder.path().display());
        let fixture = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", tools);
        let fixture = fixture.with("TOOLYARD_FIXTURE_TOOLS_FILE", tools_file(outside.path()).display());
        let fixture = with_servers(&fixture, outside.path());
        let worker = fixture.worker(&yard.broker.url(), "main", 16).await;
        yard.client.wait_for_tool("bash").await;
        let client = yard.client.clone();
        Self { folder, client, _yard: yard, _worker: worker }
    }

    /// A run of one call that needs no approval.
    async fn run(&self, tool: &str, arguments: Value) -> Run {
        let rules = Some(v1::RunRules { confirmation: Confirmation::None.into(), ..v1::RunRules::default() });
        let calls = vec![call(tool, tool, arguments)];
        let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
        let created = self.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
        Run { client: self.client.clone(), id: created.run.expect("the response has the run").run_id }
    }

    /// How a call ended, and what it said before.
    async fn call(&self, tool: &str, arguments: Value) -> (String, v1::CallOutcome) {
        let events = self.run(tool, arguments).await.watch(FloorPolicy::Arrival).await.to_end().await;
        check::whole(&events, true);
        let said = check::said(&events).remove(tool).unwrap_or_default();
        (said, check::outcomes(&events).remove(tool).expect("it ended"))
    }

    /// What a call that must complete said and answered.
    async fn answer(&self, tool: &str, arguments: Value) -> String {
        let (said, outcome) = self.call(tool, arguments.clone()).await;
        assert_eq!(outcome.state(), CallState::Completed, "{tool} {arguments}: {outcome:?}");
        said + &check::text(&outcome)
    }

    /// The last part of the answer, which is JSON.
    async fn facts(&self, tool: &str, arguments: Value) -> Value {
        let (_, outcome) = self.call(tool, arguments.clone()).await;
        assert_eq!(outcome.state(), CallState::Completed, "{tool} {arguments}: {outcome:?}");
        match outcome.result.last().and_then(|content| content.body.clone()) {
            Some(v1::content::Body::Json(text)) => serde_json::from_str(&text).expect("it is JSON"),
            other => panic!("{tool}: {other:?}"),
        }
    }

    /// The call of a tool with arguments that it must refuse.
    async fn refused(&self, tool: &str, arguments: Value) {
        let (_, outcome) = self.call(tool, arguments.clone()).await;
        let error = outcome.error.unwrap_or_else(|| panic!("{tool} {arguments} is refused"));
        assert_eq!(error.kind(), v1::CallErrorKind::ArgumentsInvalid, "{tool} {arguments}: {error:?}");
    }
}

async fn ask_user(cluster: &Cluster) -> Done {
    let run = cluster.run("ask_user", json!({ "question": "Which one?", "options": ["left", "right"] })).await;
    run.submit(vec![client_answer("ask_user", "right")]).await.expect("it waits for the client");
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(check::text(&outcomes["ask_user"]), "right");
    Ok(())
}

async fn bash(cluster: &Cluster) -> Done {
    assert_eq!(cluster.answer("bash", json!({ "command": "cat poem.txt" })).await, "an owl\n{\"exit_code\":0}");
    let job = cluster.facts("bash", json!({ "command": "echo behind", "run_in_background": true })).await;
    let read = json!({ "job": job["job"], "wait_s": 30 });
    assert!(cluster.answer("process_output", read).await.starts_with("behind\n"));
    cluster.refused("bash", json!({ "command": "" })).await;
    Ok(())
}

async fn edit(cluster: &Cluster) -> Done {
    let edits = json!([{ "old_text": "two", "new_text": "2" }]);
    let answer = cluster.answer("edit", json!({ "path": "edited.txt", "edits": edits })).await;
    assert!(answer.contains("-two\n+2\n"), "{answer}");
    let now = std::fs::read_to_string(cluster.folder.path().join("edited.txt")).expect("it is there");
    assert_eq!(now, "one\n2\n");
    cluster.refused("edit", json!({ "path": "../edited.txt", "content": "" })).await;
    Ok(())
}

async fn get_current_time(cluster: &Cluster) -> Done {
    let answer = cluster.answer("get_current_time", json!({ "time_zone": "Asia/Shanghai" })).await;
    assert!(answer.starts_with("The current time zone is Asia/Shanghai"), "{answer}");
    Ok(())
}

async fn git(cluster: &Cluster) -> Done {
    let ask = json!({ "action": "commit", "folder": "repository", "paths": ["a.txt"], "message": "first" });
    assert_eq!(cluster.facts("git", ask).await["commit"]["subject"], "first");
    let log = cluster.facts("git", json!({ "action": "log", "folder": "repository" })).await;
    assert_eq!(log["commits"].as_array().map(Vec::len), Some(1));
    cluster.refused("git", json!({ "action": "log", "folder": "repository", "revision": "--all" })).await;
    Ok(())
}

async fn glob(cluster: &Cluster) -> Done {
    assert!(cluster.answer("glob", json!({ "pattern": "poem.*" })).await.starts_with("poem.txt\n"));
    cluster.refused("glob", json!({ "pattern": "*", "path": ".." })).await;
    Ok(())
}

async fn grep(cluster: &Cluster) -> Done {
    assert!(cluster.answer("grep", json!({ "pattern": "o[vw]l" })).await.starts_with("poem.txt:1:an owl\n"));
    let counts = cluster.answer("grep", json!({ "pattern": "import", "type": "py", "output_mode": "count" })).await;
    assert!(counts.starts_with("python/main.py:2\n"), "{counts}");
    cluster.refused("grep", json!({ "pattern": "(" })).await;
    Ok(())
}

async fn lint(cluster: &Cluster) -> Done {
    bring::from_pypi(&["ruff==0.14.6"], "ruff").ok_or("ruff cannot be installed")?;
    let report = cluster.facts("lint", json!({ "path": "python", "linters": ["ruff"] })).await;
    assert_eq!(report["findings"][0]["rule"], "F401", "{report}");
    cluster.refused("lint", json!({ "linters": ["nothing"] })).await;
    Ok(())
}

async fn lsp(cluster: &Cluster) -> Done {
    bring::from_pypi(&["python-lsp-server==1.15.0", "pyflakes"], "pylsp").ok_or("pylsp cannot be installed")?;
    let ask = json!({ "action": "definition", "path": "python/main.py", "line": 4, "symbol": "area" });
    let found = cluster.facts("lsp", ask).await;
    assert_eq!(found["locations"][0]["file"], "python/shapes.py", "{found}");
    cluster.refused("lsp", json!({ "action": "hover", "path": "python/main.py" })).await;
    Ok(())
}

async fn mcp_client(cluster: &Cluster) -> Done {
    let echo = json!({ "server": "test", "tool": "echo", "arguments": { "text": "hi" } });
    assert_eq!(cluster.answer("mcp_client", echo).await, "hi");
    cluster.refused("mcp_client", json!({ "server": "other", "tool": "echo" })).await;
    cluster.refused("mcp_client", json!({ "server": "test", "tool": "other" })).await;
    Ok(())
}

async fn mcp_tools(cluster: &Cluster) -> Done {
    let listed = cluster.facts("mcp_tools", json!({ "server": "test", "tool": "ec*" })).await;
    assert_eq!(listed["tools"][0]["name"], "echo", "{listed}");
    cluster.refused("mcp_tools", json!({ "server": "other" })).await;
    Ok(())
}

async fn powershell(cluster: &Cluster) -> Done {
    let (said, outcome) = cluster.call("powershell", json!({ "command": "Write-Output hi" })).await;
    match outcome.error {
        None => assert_eq!(said, "hi\n"),
        Some(error) => {
            assert_eq!(error.kind(), v1::CallErrorKind::NeedsInput, "{error:?}");
            return Err("pwsh is not installed; the call was refused with what to install".to_owned());
        }
    }
    Ok(())
}

async fn process(cluster: &Cluster) -> Done {
    let start = json!({ "action": "start", "program": "sleep", "arguments": ["600"] });
    let job = cluster.facts("process", start).await["job"].clone();
    let stopped = cluster.facts("process", json!({ "action": "stop", "job": job })).await;
    assert_eq!(stopped["running"], false);
    cluster.refused("process", json!({ "action": "stop", "job": "job_x" })).await;
    Ok(())
}

/// Reading needs no approval under the rules that hold by default.
async fn process_output(cluster: &Cluster) -> Done {
    let run = cluster.client.create(vec![call("read", "process_output", json!({}))]).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(check::text(&outcomes["read"]), "[]");
    cluster.refused("process_output", json!({ "job": "job_x" })).await;
    Ok(())
}

async fn read_file(cluster: &Cluster) -> Done {
    assert!(cluster.answer("read_file", json!({ "path": "poem.txt" })).await.starts_with("1\tan owl\n"));
    cluster.refused("read_file", json!({ "path": "/etc/passwd" })).await;
    Ok(())
}

/// The verdict of a tool whose exercise came to its end, or panicked.
pub(crate) fn verdict_of(tool: &str, ended: std::thread::Result<Done>) -> Verdict {
    match ended {
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(why)) => {
            bring::not_here(&format!("{tool}: {why}"));
            Verdict::NotHere(why)
        }
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Verdict::Failed(text.unwrap_or_default())
        }
    }
}

/// 新工具: every tool of the set runs, through the whole cluster.
#[tokio::test(flavor = "multi_thread")]
async fn new_tools() {
    let cluster = Cluster::start().await;
    let page = cluster.client.tools.clone().list_tools(v1::ListToolsRequest::default()).await.expect("a page");
    let listed: Vec<String> = page.into_inner().tools.into_iter().map(|tool| tool.name).collect();
    for tool in &listed {
        assert!(EXERCISES.iter().any(|(name, _)| name == tool), "{tool} is hosted: say here how it is exercised");
    }
    let mut failed = Vec::new();
    for (tool, exercise) in EXERCISES {
        assert!(listed.iter().any(|name| name == tool), "{tool} is not listed: {listed:?}");
        let ended = std::panic::AssertUnwindSafe(exercise(&cluster)).catch_unwind().await;
        let verdict = verdict_of(tool, ended);
        if matches!(verdict, Verdict::Failed(_)) {
            failed.push(*tool);
        }
        record(tool, &verdict);
    }
    assert!(failed.is_empty(), "these do not hold: {failed:?}");
    record("new_tools", &Verdict::Passed);
}

#[test]
fn every_tool_of_the_table_is_exercised() {
    for row in ROWS.iter().filter(|row| !row.tool.is_empty()) {
        assert!(EXERCISES.iter().any(|(name, _)| *name == row.tool), "{} has no exercise", row.tool);
    }
}
