//! `toolyard tools` and `toolyard call` against `toolyard dev`.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Instant;

use rustix::process::Signal;

use crate::process::{Background, Dev, PATIENCE};

const TOOLS: [&str; 22] = [
    "ask_user",
    "bash",
    "edit",
    "forum",
    "get_current_time",
    "git",
    "glob",
    "grep",
    "lint",
    "lsp",
    "powershell",
    "process",
    "process_output",
    "read_file",
    "schedule",
    "schedule_cron",
    "search",
    "search_tools",
    "task",
    "task_broadcast",
    "team_agent",
    "time_reasoning",
];

/// `UPDATE_DOCS=1 cargo test -p toolyard --test program reference` writes it.
#[test]
fn the_reference_of_the_built_in_tools_is_what_the_program_makes_of_them() {
    let dev = Dev::start();
    let page = dev.run(["tools", "ls", "--format", "markdown"]).stdout();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/tools.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, &page).expect("it can be written");
    }
    let kept = std::fs::read_to_string(&path).expect("docs/reference/tools.md is there");
    assert_eq!(
        page, kept,
        "docs/reference/tools.md is old: UPDATE_DOCS=1 cargo test -p toolyard --test program reference"
    );
}

#[test]
fn the_tools_are_listed_and_described() {
    let dev = Dev::start();
    let listed = dev.run(["tools", "ls", "-o", "json"]).json();
    let names: Vec<&str> = listed[0]["tools"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, TOOLS);

    let text = dev.run(["tools", "ls"]).stdout();
    assert!(TOOLS.iter().all(|name| text.contains(name)), "{text}");

    let exported = dev.run(["tools", "ls", "--format", "anthropic", "-o", "json"]).json().remove(0);
    let bash = exported["tools"].as_array().unwrap().iter().find(|tool| tool["name"] == "bash").unwrap();
    assert_eq!(bash["input_schema"]["type"], "object");
    assert_eq!(exported["names"], serde_json::json!({}));
    let text = dev.run(["tools", "ls", "--format", "openai-chat"]).stdout();
    let array: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(array.as_array().unwrap().iter().any(|tool| tool["function"]["name"] == "bash"), "{text}");

    let grep = dev.run(["tools", "get", "grep", "-o", "json"]).json().remove(0);
    let schema: serde_json::Value = serde_json::from_str(grep["input_schema"].as_str().unwrap()).unwrap();
    assert_eq!(schema["required"], serde_json::json!(["pattern"]));
    assert_eq!(grep["effects"]["read_only"], true);
    assert!(dev.run(["tools", "get", "grep"]).stdout().contains("pattern string (required)"));

    let missing = dev.run(["tools", "get", "nope"]);
    assert_eq!(missing.code(), 2);
    assert!(missing.stderr().contains("TOOL_NOT_FOUND") && missing.stderr().contains("toolyard tools ls"));
}

#[test]
fn a_call_is_like_a_program() {
    let dev = Dev::start();
    let time = dev.run(["call", "get_current_time", "time_zone=Asia/Shanghai"]);
    assert_eq!((time.code(), time.stderr().as_str()), (0, ""));
    assert!(time.stdout().contains("Asia/Shanghai"), "{}", time.stdout());

    let bash = dev.run(["call", "bash", "command=printf 'no line end'; echo oops >&2", "timeout_s=5"]);
    assert_eq!((bash.code(), bash.stdout().as_str()), (0, "no line end"));
    assert!(bash.stderr().starts_with("oops\n"), "{}", bash.stderr());
    assert!(bash.stderr().contains("{\"exit_code\":0}"), "{}", bash.stderr());

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "echo from a file\n").unwrap();
    let command = format!("command=@{}", file.path().display());
    assert_eq!(dev.run(["call", "bash", &command]).stdout(), "from a file\n");
    assert_eq!(dev.run(["call", "bash", "--json", "{\"command\":\"echo json\"}"]).stdout(), "json\n");
}

#[test]
fn the_exit_code_tells_the_outcome() {
    let dev = Dev::start();
    let unknown = dev.run(["call", "nope", "key=value"]);
    assert_eq!(unknown.code(), 1);
    assert!(TOOLS.iter().all(|name| unknown.stderr().contains(name)), "{}", unknown.stderr());

    let refused = dev.run(["call", "get_current_time", "zone=UTC"]);
    assert_eq!(refused.code(), 1);
    assert!(refused.stderr().contains("arguments_invalid") && refused.stderr().contains("time_zone"));

    let typed = dev.run(["call", "grep", "pattern=x", "limit=many"]);
    assert_eq!(typed.code(), 2);
    assert!(typed.stderr().contains("limit=many"), "{}", typed.stderr());

    let late = dev.run(["call", "ask_user", "question=Anybody?", "--timeout", "0.3"]);
    assert_eq!(late.code(), 4);
    assert!(
        late.stderr().ends_with("error: the call expired: the client did not answer before the call's deadline\n"),
        "{}",
        late.stderr()
    );
}

#[test]
fn events_are_json_for_programs() {
    let dev = Dev::start();
    let ended = dev.run(["call", "-o", "json", "bash", "command=echo hello"]);
    assert_eq!((ended.code(), ended.stderr().as_str()), (0, ""));
    let events = ended.json();
    let of = |kind: &str| events.iter().find_map(|event| event.get(kind)).unwrap();
    assert_eq!(of("run_opened")["calls"][0]["tool"], "bash");
    assert_eq!(of("call_output")["content"]["text"], "hello\n");
    assert_eq!(of("call_output")["channel"], "stdout");
    assert_eq!(of("call_ended")["outcome"]["state"], "CALL_STATE_COMPLETED");
    assert_eq!(of("call_ended")["outcome"]["result"][0]["json"], "{\"exit_code\":0}");
    assert_eq!(of("run_ended")["status"], "RUN_STATUS_COMPLETED");
    assert!(events.iter().all(|event| event["time"].as_str().is_some_and(|time| time.ends_with('Z'))));
}

#[test]
fn a_context_goes_with_the_call_and_is_not_told_again() {
    let dev = Dev::start();
    let given = ["call", "-o", "json", "get_current_time", "time_zone=UTC", "--context", "{\"user\":\"s3cret\"}"];
    let called = dev.run(given);
    assert_eq!((called.code(), called.stdout().contains("s3cret")), (0, false), "{}", called.stdout());
    let ended = called.json().into_iter().find_map(|event| event.get("run_ended").cloned()).unwrap();
    assert_eq!(ended["extra_state"], "");

    let refused = dev.run(["call", "get_current_time", "time_zone=UTC", "--context", "[\"s3cret\"]"]);
    assert_eq!(refused.code(), 2);
    assert!(
        refused.stderr().contains("calls[0].context") && !refused.stderr().contains("s3cret"),
        "{}",
        refused.stderr()
    );
}

#[test]
fn a_call_can_be_delayed_and_left_alone() {
    let dev = Dev::start();
    let waited = dev.run(["call", "bash", "command=echo done", "--delay", "1s"]);
    assert_eq!((waited.code(), waited.stdout().as_str()), (0, "done\n"));
    assert!(waited.stderr().contains("it is delayed until 20"), "{}", waited.stderr());

    let left = dev.run(["call", "-o", "json", "bash", "command=echo done", "--delay", "1h", "--detach"]);
    assert_eq!(left.code(), 0);
    let run = left.json().remove(0);
    assert_eq!(run["calls"][0]["state"], "CALL_STATE_DELAYED");
    let id = run["run_id"].as_str().unwrap();
    let shown = dev.run(["runs", "get", id]).stdout();
    assert!(shown.contains("delayed · until 20"), "{shown}");
    assert_eq!(dev.run(["runs", "cancel", id]).code(), 0);

    let past = dev.run(["call", "bash", "command=echo done", "--not-before", "2020-01-01T00:00:00Z"]);
    assert_eq!((past.code(), past.stdout().as_str()), (0, "done\n"));
    let far = dev.run(["call", "bash", "command=echo done", "--not-before", "2999-01-01T00:00:00Z"]);
    assert!(far.code() == 2 && far.stderr().contains("DELAY_TOO_LONG"), "{}", far.stderr());
    for wrong in [["--not-before", "tomorrow"], ["--delay", "soon"]] {
        let wrong = dev.run(["call", "bash", "command=echo done", wrong[0], wrong[1]]);
        assert_eq!(wrong.code(), 2, "{}", wrong.stderr());
    }
}

/// Seconds from one time to another, as the JSON of the API has them.
fn seconds_between(from: &serde_json::Value, to: &serde_json::Value) -> i64 {
    let [from, to] = [from, to].map(|time| {
        let time = time.as_str().expect("a time is a text");
        time.parse::<prost_types::Timestamp>().expect("a time").seconds
    });
    to - from
}

#[test]
fn calls_may_wait_for_days_if_their_run_lasts_as_long() {
    const DAY: i64 = 86_400;
    let is_about = |seconds: i64, days: i64| (seconds - days * DAY).abs() < 60;
    let dev = Dev::start();
    let call = |options: &[&str]| {
        let typed = ["--url", dev.url(), "call", "bash", "command=echo done", "--detach", "-o", "json"];
        crate::process::run(typed.iter().chain(options))
    };
    let weekend = call(&["--approval", "--approval-timeout", "2d", "--run-timeout", "3d"]);
    assert_eq!(weekend.code(), 0, "{}", weekend.stderr());
    let run = weekend.json().remove(0);
    let waiting = &run["calls"][0];
    assert!(is_about(seconds_between(&run["create_time"], &run["deadline"]), 3), "{run}");
    assert_eq!(seconds_between(&waiting["approval_deadline"], &run["deadline"]), DAY, "{run}");
    assert_eq!(waiting["deadline"], run["deadline"]);
    let id = run["run_id"].as_str().expect("a run has an id");
    let shown = dev.run(["runs", "get", id]).stdout();
    let deadline = run["deadline"].as_str().expect("a time");
    assert!(shown.contains(&format!("ends by {}", deadline.split('.').next().expect("a part"))), "{shown}");
    assert_eq!(dev.run(["runs", "cancel", id]).code(), 0);

    let delayed = call(&["--delay", "48h", "--run-timeout", "3d"]);
    assert_eq!(delayed.code(), 0, "{}", delayed.stderr());
    let run = delayed.json().remove(0);
    assert_eq!(run["calls"][0]["state"], "CALL_STATE_DELAYED");
    assert!(is_about(seconds_between(&run["create_time"], &run["calls"][0]["not_before"]), 2), "{run}");

    let open = dev.run(["run", "--open", "--run-timeout", "10d", "--detach", "-o", "json"]).json().remove(0);
    assert!(is_about(seconds_between(&open["create_time"], &open["deadline"]), 10), "{open}");

    let refusals: [(&[&str], [&str; 2]); 6] = [
        (&["--run-timeout", "31d"], ["DEADLINE_TOO_FAR", "choose a deadline at most 30 days ahead"]),
        (&["--delay", "48h"], ["DELAY_TOO_LONG", "a later deadline of the run"]),
        (&["--approval-timeout", "2d"], ["--approval", "required"]),
        (&["--approval", "--approval-timeout", "2d"], ["the run would end after 24 h", "--run-timeout"]),
        (
            &["--approval", "--approval-timeout", "2d", "--run-timeout", "3d", "--timeout", "10m"],
            ["the call would end after 10 min", "--timeout"],
        ),
        (&["--run-timeout", "0s"], ["--run-timeout", "above zero"]),
    ];
    for (options, reasons) in refusals {
        let refused = call(options);
        assert_eq!(refused.code(), 2, "{options:?}: {}", refused.stdout());
        assert!(reasons.iter().all(|reason| refused.stderr().contains(reason)), "{options:?}: {}", refused.stderr());
    }
}

#[test]
fn an_interrupt_cancels_the_call_and_waits_for_its_end() {
    let dev = Dev::start();
    let call = dev.background(["call", "-o", "json", "bash", "command=echo ready; sleep 60"]);
    let run = call.stdout.event("run_opened")["run_id"].as_str().unwrap().to_owned();
    call.stdout.event("call_output");
    call.signal(Signal::INT);
    call.stderr.until(|line| line.contains("cancelling"));
    assert_eq!(call.stdout.event("run_ended")["status"], "RUN_STATUS_CANCELLED");
    assert_eq!(call.code(), 130);
    assert_eq!(dev.run(["runs", "get", &run, "-o", "json"]).json()[0]["status"], "RUN_STATUS_CANCELLED");
}

#[test]
fn a_call_whose_output_nobody_reads_is_cancelled() {
    let dev = Dev::start();
    let mut command = dev.command(["call", "-o", "json", "bash", "command=while sleep 0.02; do echo more; done"]);
    let mut call = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(call.stdout.take().unwrap()).read_line(&mut line).unwrap();
    // The pipe is closed now.
    let ended = call.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), ended.stderr.as_slice()), (Some(141), b"".as_slice()));
    let opened: serde_json::Value = serde_json::from_str(&line).unwrap();
    let watched = dev.run(["runs", "watch", opened["run_opened"]["run_id"].as_str().unwrap(), "-o", "json"]);
    let ended = watched.json().pop().unwrap();
    assert_eq!((watched.code(), &ended["run_ended"]["status"]), (3, &"RUN_STATUS_CANCELLED".into()));
}

/// `toolyard dev`, and a worker beside it with the programs of a file: `secret` is hidden, and `slow` writes down when
/// it begins and ends.
fn with_programs() -> (Dev, Background, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let notes = folder.path().join("notes");
    let slow = format!("echo begin >>'{0}'; sleep 2; echo end >>'{0}'", notes.display());
    let text = format!(
        "[[program]]\nname = \"secret\"\ndescription = \"Is for the model.\"\nhidden = true\n\
         command = [\"/bin/echo\", \"the secret is 42\"]\neffects = {{ read_only = true, open_world = false }}\n\
         [[program]]\nname = \"slow\"\ndescription = \"Takes its time.\"\n\
         command = [\"/bin/sh\", \"-c\", {:?}]\neffects = {{ read_only = true, open_world = false }}\n\
         [[program]]\nname = \"endless\"\ndescription = \"Does not end.\"\n\
         command = [\"/bin/sleep\", \"600\"]\neffects = {{ read_only = true, open_world = false }}\n",
        slow
    );
    let file = folder.path().join("tools.toml");
    std::fs::write(&file, text).expect("a file is written");
    let dev = Dev::start();
    let file = file.to_str().expect("text");
    // The programs write into a folder of ours, so they run as we do.
    let me = rustix::process::getuid().as_raw().to_string();
    let pool = ["worker", "--nats-url", dev.nats_url(), "--pool", "scripts", "--tools-user", &me, "--programs", file];
    let worker = Background::start(pool);
    worker.stderr.until(|line| line.contains("pulling"));
    let deadline = Instant::now() + PATIENCE;
    while dev.run(["tools", "get", "slow"]).code() != 0 {
        assert!(Instant::now() < deadline, "the coordinator hears of the worker's tools");
    }
    (dev, worker, folder)
}

fn calls_file(folder: &tempfile::TempDir, tools: &[&str]) -> String {
    let calls: Vec<String> =
        tools.iter().map(|tool| format!("{{\"call_id\":\"{tool}\",\"tool\":\"{tool}\",\"arguments\":{{}}}}")).collect();
    let path = folder.path().join(format!("{}.json", tools.join("-")));
    std::fs::write(&path, format!("[{}]", calls.join(","))).expect("a file is written");
    path.to_str().expect("text").to_owned()
}

#[test]
fn what_a_hidden_tool_says_is_shown_to_those_alone_who_ask_for_it() {
    let (dev, _worker, folder) = with_programs();
    let alone = dev.run(["call", "secret", "--attach", "secret"]);
    assert_eq!((alone.code(), alone.stdout().as_str()), (0, ""), "{}", alone.stderr());
    assert!(alone.stderr().contains("its tool is hidden: --hidden shows"), "{}", alone.stderr());
    let asked = dev.run(["call", "secret", "--attach", "secret", "--hidden"]);
    assert_eq!((asked.code(), asked.stdout().as_str()), (0, "the secret is 42\n"));
    let calls = calls_file(&folder, &["secret", "slow"]);
    let both = dev.run(["call", "--calls", &calls, "--attach", "secret", "--attach", "slow", "-o", "json"]);
    assert!(both.stdout().contains("the secret is 42"), "a program gets every event: {}", both.stdout());
    let run = both.json()[0]["run_opened"]["run_id"].as_str().expect("a run").to_owned();
    let shown = dev.run(["runs", "watch", &run]).stdout();
    assert!(shown.contains("slow") && !shown.contains("the secret is 42"), "{shown}");
    assert!(dev.run(["runs", "watch", &run, "--hidden"]).stdout().contains("the secret is 42"));
}

#[test]
fn every_option_of_a_run_has_its_effect() {
    let (dev, _worker, folder) = with_programs();
    let file = |tools: &[&str]| calls_file(&folder, tools);
    let events = |options: &[&str]| {
        let arguments = ["--url", dev.url(), "call", "-o", "json"].into_iter().chain(options.iter().copied());
        crate::process::run(arguments).json()
    };
    let outcome = |events: &[serde_json::Value], call: &str| {
        let ended = events.iter().find(|event| event["call_ended"]["call_id"] == call).expect("it ended");
        ended["call_ended"]["outcome"].clone()
    };
    let run_of = |events: &[serde_json::Value]| {
        let id = events[0]["run_opened"]["run_id"].as_str().expect("a run").to_owned();
        dev.run(["runs", "get", &id, "-o", "json"]).json().remove(0)
    };
    let attached = events(&["--calls", &file(&["slow", "get_current_time"]), "--attach", "slow"]);
    assert_eq!(outcome(&attached, "slow")["state"], "CALL_STATE_COMPLETED");
    assert_eq!(outcome(&attached, "get_current_time")["error"]["kind"], "CALL_ERROR_KIND_UNKNOWN_TOOL");

    let kept = run_of(&events(&["slow"]));
    assert!(kept.get("erase_time").is_none() && kept.get("tenant").is_none_or(|tenant| tenant == ""), "{kept}");
    let other = run_of(&events(&["slow", "--tenant", "acme", "--no-store"]));
    assert_eq!(other["tenant"], "acme");
    assert!(other["erase_time"].is_string(), "{other}");

    let failing = events(&["--calls", &file(&["endless", "nowhere"]), "--fail-fast"]);
    assert_eq!(outcome(&failing, "endless")["state"], "CALL_STATE_CANCELLED");

    std::fs::write(folder.path().join("notes"), "").expect("a file is written");
    let twice = folder.path().join("twice.json");
    std::fs::write(&twice, r#"[{"tool":"slow","arguments":{}},{"tool":"slow","arguments":{}}]"#).expect("written");
    events(&["--calls", twice.to_str().expect("text"), "--running-max", "1"]);
    let notes = std::fs::read_to_string(folder.path().join("notes")).expect("it is there");
    assert_eq!(notes.lines().collect::<Vec<_>>(), ["begin", "end", "begin", "end"]);

    std::fs::write(folder.path().join("upload"), "a file").expect("a file is written");
    let upload = dev.run(["objects", "put", folder.path().join("upload").to_str().expect("text"), "-o", "json"]);
    let object = upload.json()[0]["object"]["object_id"].as_str().expect("an id").to_owned();
    assert_eq!(dev.run(["call", "slow", "--file", &format!("notes={object}")]).code(), 0);
    let refused = dev.run(["call", "slow", "--file", "notes=obj_unknown"]);
    assert!(refused.code() == 2 && refused.stderr().contains("files[0]"), "{}", refused.stderr());
}
