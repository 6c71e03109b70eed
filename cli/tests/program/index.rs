//! `toolyard runs ls`, `toolyard calls ls` and `toolyard index` against `toolyard dev`.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Dev, PATIENCE};

/// The index follows a moment later.
fn until<const N: usize>(dev: &Dev, arguments: [&str; N], wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    let give_up = Instant::now() + PATIENCE;
    loop {
        let listed = dev.run(arguments).json();
        if wanted(&listed) {
            return listed;
        }
        assert!(Instant::now() < give_up, "{arguments:?}: {listed:#?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn runs_and_calls_are_listed_and_counted() {
    let dev = Dev::start();
    let called = dev.run(["call", "-o", "json", "bash", "command=echo one"]).json();
    let done = called[0]["run_opened"]["run_id"].as_str().unwrap().to_owned();
    let asks = dev.background(["call", "-o", "json", "ask_user", "question=Which?"]);
    let waits = asks.stdout.event("run_opened")["run_id"].as_str().unwrap().to_owned();

    let runs = until(&dev, ["runs", "ls", "-o", "json"], |runs| {
        runs.len() == 2 && runs[1]["status"] == "RUN_STATUS_COMPLETED"
    });
    assert_eq!((&runs[0]["run_id"], &runs[1]["run_id"]), (&waits.clone().into(), &done.clone().into()));
    assert_eq!(runs[1]["calls"][0]["tool"], "bash");
    let waiting = until(&dev, ["calls", "ls", "--waiting", "-o", "json"], |calls| calls.len() == 1);
    assert_eq!(
        (&waiting[0]["run_id"], &waiting[0]["call"]["state"]),
        (&waits.as_str().into(), &"CALL_STATE_WAITING_FOR_CLIENT".into())
    );
    assert!(dev.run(["calls", "ls", "--parked", "-o", "json"]).json().is_empty());
    assert_eq!(dev.run(["runs", "ls", "--since", "1h", "--limit", "1", "-o", "json"]).json().len(), 1);

    let text = dev.run(["runs", "ls", "--status", "completed"]).stdout();
    assert!(text.contains(&done) && text.contains("1 call of bash") && !text.contains(&waits), "{text}");
    let text = dev.run(["calls", "ls", "--tool", "bash"]).stdout();
    assert!(text.contains("call_0") && text.contains("completed"), "{text}");
    let counts = until(&dev, ["index", "count", "-o", "json"], |counts| counts[0]["coverage"]["complete"] == true);
    let completed = serde_json::json!({ "status": "RUN_STATUS_COMPLETED", "count": 1 });
    assert!(counts[0]["runs"].as_array().unwrap().contains(&completed), "{counts:?}");
    assert_eq!(counts[0]["waiting_for_client"], 1);
    let text = dev.run(["index", "count"]).stdout();
    assert!(text.contains("requires_action") && text.contains("ask_user"), "{text}");
}

#[test]
fn the_index_is_compared_with_the_log_and_made_anew() {
    let dev = Dev::start();
    dev.run(["call", "bash", "command=echo one"]);
    until(&dev, ["index", "count", "-o", "json"], |counts| counts[0]["coverage"]["complete"] == true);
    for _ in 0..2 {
        let verified = dev.run(["index", "verify", "-o", "json"]);
        assert_eq!(verified.code(), 0, "{}", verified.stderr());
        let last = verified.json().pop().unwrap();
        assert_eq!((&last["runs"], &last["end"]["differences"]), (&1.into(), &0.into()));
        assert_eq!(dev.run(["index", "rebuild"]).code(), 0);
        until(&dev, ["index", "count", "-o", "json"], |counts| counts[0]["coverage"]["complete"] == true);
    }
    assert!(dev.run(["index", "verify"]).stdout().contains("index and log agree"));
}
