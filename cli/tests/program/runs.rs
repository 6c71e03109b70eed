//! `toolyard runs` and `toolyard submit` against `toolyard dev`.

use std::time::{Duration, Instant};

use crate::process::{Dev, Ended, PATIENCE, run, toolyard};

#[test]
fn a_call_that_waits_for_its_client_is_answered_by_another_process() {
    let dev = Dev::start();
    let call = dev.background(["call", "ask_user", "question=Which colour?", "options=[\"red\",\"blue\"]"]);
    let told = call.stderr.until(|line| line.contains("toolyard submit"));
    let run = told.split_whitespace().find(|word| word.starts_with("run_")).unwrap();

    let waits = dev.run(["runs", "get", run]).stdout();
    assert!(waits.contains("requires_action") && waits.contains("ask_user · call_0 · waiting_for_client"), "{waits}");
    let submitted = dev.run(["submit", run, "call_0", "blue", "-o", "json"]);
    assert_eq!((submitted.code(), &submitted.json()[0]["status"]), (0, &"RUN_STATUS_COMPLETED".into()));
    assert_eq!(call.stdout.rest(), ["blue"]);
    assert_eq!(call.code(), 0);

    assert_eq!(dev.run(["submit", run, "call_0", "blue"]).code(), 0, "the same answer twice does no harm");
    let other = dev.run(["submit", run, "call_0", "red"]);
    assert_eq!(other.code(), 2);
    assert!(other.stderr().contains("CALL_ALREADY_ANSWERED"), "{}", other.stderr());
}

#[test]
fn an_answer_may_be_json_or_the_reason_why_there_is_none() {
    let dev = Dev::start();
    for (answer, code) in [(["--json", "{\"n\": 1.50}"], 0), (["--error", "nobody is there"], 1)] {
        let call = dev.background(["call", "-o", "json", "ask_user", "question=Which?"]);
        let run = call.stdout.event("run_opened")["run_id"].as_str().unwrap().to_owned();
        call.stdout.event("call_waiting");
        assert_eq!(dev.run(["submit", &run, "call_0", answer[0], answer[1]]).code(), 0);
        let outcome = call.stdout.event("call_ended")["outcome"].take();
        match code {
            0 => assert_eq!(outcome["result"][0]["json"], "{\"n\": 1.50}"),
            _ => assert_eq!(outcome["error"]["kind"], "CALL_ERROR_KIND_CLIENT_FAILED"),
        }
        assert_eq!(call.code(), code);
    }
}

#[test]
fn a_run_is_created_from_a_file_added_to_and_closed() {
    let dev = Dev::start();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let calls = file(
        "calls.json",
        r#"[{"call_id":"one","tool":"bash","arguments":{"command":"echo one"}},
            {"call_id":"two","tool":"get_current_time","arguments":"{\"time_zone\":\"UTC\"}"}]"#,
    );
    let called = dev.run(["call", "--calls", &calls, "--approve", "-o", "json"]);
    assert_eq!((called.code(), &called.json()[0]["run_opened"]["calls"][1]["call_id"]), (0, &"two".into()));
    let unexecuted = dev.run(["call", "--calls", &calls, "--no-execute", "--detach", "-o", "json"]);
    assert_eq!(unexecuted.json()[0]["calls"][0]["state"], "CALL_STATE_WAITING_FOR_CLIENT");
    let named = file("named.json", r#"{"request_id":"mine","calls":[{"tool":"get_current_time"}],"execute":false}"#);
    let again = || dev.run(["call", "--calls", &named, "--detach", "-o", "json"]);
    let other = dev.run(["call", "--calls", &named, "--request-id", "other", "--detach", "-o", "json"]);
    let ids = [again(), again(), other].map(|ended| ended.json()[0]["run_id"].clone());
    assert!(ids[0] == ids[1] && ids[0] != ids[2], "{ids:?}");

    let run = file("run.json", r#"{"rules":{"confirmation":"CONFIRMATION_NONE"},"keep_open":true}"#);
    let created = dev.run(["runs", "create", "-f", &run, "--detach", "-o", "json"]).json().remove(0);
    let id = created["run_id"].as_str().unwrap();
    assert_eq!((created["open"].as_bool(), &created["calls"]), (Some(true), &serde_json::json!([])));
    let added = dev.run(["runs", "append", id, "-f", &calls]);
    assert!(added.code() == 0 && added.stdout().contains("2 calls, open to more calls"), "{}", added.stdout());
    let twice = dev.run(["runs", "append", id, "-f", &calls]);
    assert!(twice.code() == 2 && twice.stderr().contains("DUPLICATE_CALL_ID"), "{}", twice.stderr());
    assert_eq!(dev.run(["runs", "close", id]).code(), 0);
    let watched = dev.run(["runs", "watch", id]);
    assert!(watched.code() == 0 && watched.stdout().contains("│ one"), "{}", watched.stdout());

    let failing = file("failing.json", r#"[{"tool":"bash","arguments":{"comand":"x"}},{"tool":"get_current_time"}]"#);
    assert_eq!(dev.run(["runs", "create", "-f", &failing]).code(), 1);
    assert_eq!(dev.run(["runs", "create"]).code(), 2);
    assert_eq!(dev.run(["call"]).code(), 2);
    assert_eq!(dev.run(["call", "--calls", &calls, "bash"]).code(), 2);
}

#[test]
fn a_run_is_read_again_from_any_place() {
    let dev = Dev::start();
    let called = dev.run(["call", "-o", "json", "bash", "command=echo one; echo two"]).json();
    let run = called[0]["run_opened"]["run_id"].as_str().unwrap();
    assert_eq!(dev.run(["runs", "watch", run, "-o", "json"]).json(), called);
    let rest = dev.run(["runs", "watch", run, "-o", "json", "--after", "1"]).json();
    assert_eq!(rest, called[2..]);
    for floor in ["arrival", "submission", "interleaved"] {
        let text = dev.run(["runs", "watch", run, "--floor", floor]).stdout();
        assert!(text.contains("● bash · call_0\n│ one\n│ two\n✓"), "{text}");
    }
}

#[test]
fn a_run_and_a_call_can_be_cancelled() {
    let dev = Dev::start();
    for of_call in [false, true] {
        let call = dev.background(["call", "-o", "json", "bash", "command=echo ready; sleep 60"]);
        let run = call.stdout.event("run_opened")["run_id"].as_str().unwrap().to_owned();
        call.stdout.event("call_output");
        let cancelled = match of_call {
            false => dev.run(["runs", "cancel", &run, "--reason", "changed my mind"]),
            true => dev.run(["runs", "cancel", &run, "--call", "call_0", "--reason", "changed my mind"]),
        };
        assert_eq!(cancelled.code(), 0, "{}", cancelled.stderr());
        assert_eq!(call.stdout.event("call_ended")["outcome"]["reason"], "changed my mind");
        assert_eq!(call.code(), 3);
    }
}

#[test]
fn a_run_that_cannot_be_is_refused() {
    let dev = Dev::start();
    for arguments in [["runs", "get"], ["runs", "watch"], ["runs", "cancel"]] {
        let ended = dev.run([arguments[0], arguments[1], "run_x"]);
        assert_eq!(ended.code(), 2);
        assert!(ended.stderr().contains("MALFORMED"), "{}", ended.stderr());
    }
}

#[test]
fn an_erased_run_is_counted_first_confirmed_and_gone() {
    let dev = Dev::start();
    let ran = || dev.run(["call", "-o", "json", "get_current_time", "time_zone=UTC"]);
    let id = |ended: &crate::process::Ended| ended.json()[0]["run_opened"]["run_id"].as_str().map(str::to_owned);
    let (first, second) = (ran(), ran());
    let (first, second) = (id(&first).expect("a run has an id"), id(&second).expect("a run has an id"));
    let counted = dev.run(["runs", "erase", "--run", &first, "--dry-run"]);
    assert_eq!((counted.code(), counted.stdout().trim()), (0, "1 run would be erased"), "{}", counted.stderr());
    // There is nobody to ask.
    let unconfirmed = dev.run(["runs", "erase", "--run", &first]);
    assert!(unconfirmed.code() == 2 && unconfirmed.stderr().contains("--yes"), "{}", unconfirmed.stderr());
    assert_eq!(dev.run(["runs", "get", &first]).code(), 0);
    let erased = dev.run(["runs", "erase", "--run", &first, "--yes", "--wait", "-o", "json"]);
    let told = &erased.json()[0];
    assert_eq!((&told["matched"], &told["requested"], &told["erased"]), (&1.into(), &1.into(), &true.into()), "{told}");
    let gone = dev.run(["runs", "get", &first]);
    assert!(gone.code() == 2 && gone.stderr().contains("RUN_NOT_FOUND"), "{}", gone.stderr());
    assert_eq!(dev.run(["runs", "get", &second]).code(), 0);
    let wrong = dev.run(["runs", "erase", "--tenant", "not a tenant", "--yes"]);
    assert!(wrong.code() == 2 && wrong.stderr().contains("MALFORMED"), "{}", wrong.stderr());
}

#[test]
fn who_asks_for_tls_where_none_is_spoken_is_told_so() {
    let dev = Dev::start();
    let url = dev.url().replace("http://", "https://");
    let refused = run(["runs", "ls", "--url", &url]);
    assert!(refused.code() != 0 && refused.stderr().contains("no TLS is spoken there"), "{}", refused.stderr());
}

#[test]
fn last_is_the_run_that_the_user_created_last_although_others_created_runs_meanwhile() {
    let dev = Dev::start();
    let state = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| {
        let arguments = arguments.iter().copied().chain(["--url", dev.url()]);
        Ended::of(toolyard(arguments).env("XDG_STATE_HOME", state.path()))
    };
    let before = run(&["runs", "get", "last"]);
    assert_eq!(before.code(), 2);
    assert!(before.stderr().contains("no run was created with this program yet"), "{}", before.stderr());

    let own = run(&["call", "bash", "command=echo mine", "-o", "json"]).json();
    let own = own[0]["run_opened"]["run_id"].as_str().expect("a run").to_owned();
    assert_eq!(dev.run(["call", "bash", "command=echo theirs"]).code(), 0);
    assert_eq!(run(&["runs", "get", "last", "-o", "json"]).json()[0]["run_id"], *own);
    assert!(run(&["runs", "watch", "last"]).stdout().contains("mine"));

    assert_eq!(run(&["call", "bash", "command=sleep 100", "--detach"]).code(), 0);
    assert_eq!(run(&["runs", "cancel", "last"]).code(), 0);
}

/// Whether a file in the folder or below it contains the text.
fn holds(folder: &std::path::Path, text: &str) -> bool {
    let found = |entry: std::fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => holds(&entry.path(), text),
        // Files that are merged meanwhile disappear.
        _ => std::fs::read(entry.path())
            .is_ok_and(|bytes| bytes.windows(text.len()).any(|piece| piece == text.as_bytes())),
    };
    std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().any(found))
}

#[test]
fn dev_keeps_runs_that_have_ended_in_its_folder_and_shows_them_when_the_log_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let data = folder.path().join("data");
    let options = ["--data-dir", data.to_str().expect("a path that is text")];
    let dev = Dev::with(&options);
    let created = dev.run(["call", "bash", "command=echo kept-for-later", "-o", "json"]);
    assert_eq!(created.code(), 0, "{}", created.stderr());
    let began = Instant::now();
    let run = loop {
        // The list may be a moment behind.
        let listed = dev.run(["runs", "ls", "-o", "json"]).json();
        if let Some(run) = listed.first().and_then(|run| run["run_id"].as_str()) {
            break run.to_owned();
        }
        assert!(began.elapsed() < PATIENCE, "it is never listed");
    };
    while !holds(&data.join("runs"), "kept-for-later") {
        assert!(began.elapsed() < PATIENCE, "it is never written");
        std::thread::sleep(Duration::from_millis(100));
    }
    drop(dev);
    std::fs::remove_dir_all(data.join("jetstream")).expect("the log is there");
    let dev = Dev::with(&options);
    let shown = dev.run(["runs", "watch", &run]);
    assert_eq!(shown.code(), 0, "{}", shown.stderr());
    assert!(shown.stdout().contains("kept-for-later"), "{}", shown.stdout());
}
