//! `toolyard parked` and `toolyard calls cancel`: what matches a filter is asked for once more, put aside, or
//! cancelled.

use std::time::{Duration, Instant};

use crate::process::{Dev, PATIENCE};

/// Waits until the index, which follows the log by a moment, lists as many calls.
fn listed<const N: usize>(dev: &Dev, arguments: [&str; N], count: usize) -> Vec<serde_json::Value> {
    let give_up = Instant::now() + Duration::from_secs(30);
    loop {
        let calls = dev.run(arguments).json();
        if calls.len() == count {
            return calls;
        }
        assert!(Instant::now() < give_up, "{calls:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A system whose index has every run. Until then, commands for many calls end with exit code 1.
fn indexed() -> Dev {
    let (dev, give_up) = (Dev::start(), Instant::now() + PATIENCE);
    while dev.run(["index", "count", "-o", "json"]).json()[0]["coverage"]["complete"] != true {
        assert!(Instant::now() < give_up, "the index is never complete");
        std::thread::sleep(Duration::from_millis(50));
    }
    dev
}

#[test]
fn a_call_that_no_worker_took_up_is_parked_redriven_and_dropped() {
    let dev = indexed();
    let busy: Vec<_> = (0..16).map(|_| dev.background(["call", "-o", "json", "bash", "command=sleep 4"])).collect();
    busy.iter().for_each(|call| drop(call.stdout.event("attempt_started")));
    for _ in 0..2 {
        let late = dev.run(["call", "get_current_time", "time_zone=UTC", "--queue-timeout", "0.3"]);
        assert_eq!(late.code(), 4, "{}", late.stderr());
    }
    let parked = listed(&dev, ["parked", "ls", "--tool", "get_current_time", "-o", "json"], 2);
    let (run, call) = (parked[0]["run_id"].as_str().unwrap(), parked[0]["call"]["call_id"].as_str().unwrap());
    let shown = dev.run(["parked", "show", run, call]);
    assert!(shown.stdout().contains("queue deadline"), "{}", shown.stdout());
    busy.iter().for_each(|call| drop(call.stdout.event("run_ended")));

    let redriven = dev.run(["parked", "redrive", run, call, "-o", "json"]).json();
    let again = redriven[0]["run_id"].as_str().unwrap();
    assert_ne!(again, run);
    let ended = dev.run(["runs", "watch", again, "-o", "json"]).json();
    assert_eq!(ended.last().unwrap()["run_ended"]["status"], "RUN_STATUS_COMPLETED");
    listed(&dev, ["parked", "ls", "-o", "json"], 1);
    assert_eq!(dev.run(["parked", "drop", "--all"]).code(), 2, "a program says that it means it");
    assert_eq!(dev.run(["parked", "drop", "--all", "--dry-run", "-o", "json"]).json().len(), 1);
    listed(&dev, ["parked", "ls", "-o", "json"], 1);
    assert_eq!(dev.run(["parked", "drop", "--tool", "get_current_time"]).code(), 0);
    listed(&dev, ["parked", "ls", "-o", "json"], 0);
    assert_eq!(dev.run(["parked", "redrive"]).code(), 2, "which ones?");
}

#[test]
fn calls_are_cancelled_by_what_they_are() {
    let dev = indexed();
    let sleeps: Vec<_> = (0..3).map(|_| dev.background(["call", "-o", "json", "bash", "command=sleep 60"])).collect();
    sleeps.iter().for_each(|call| drop(call.stdout.event("attempt_started")));
    let asks = dev.background(["call", "-o", "json", "ask_user", "question=Which?"]);
    asks.stdout.event("call_waiting");
    listed(&dev, ["calls", "ls", "--tool", "bash", "--state", "running", "-o", "json"], 3);
    let cancelled = dev.run(["calls", "cancel", "--tool", "bash", "--reason", "enough", "-o", "json"]).json();
    assert_eq!(cancelled.len(), 3);
    assert_eq!(dev.run(["calls", "cancel", "--tool", "bash"]).code(), 0, "the index is complete");
    for call in &sleeps {
        assert_eq!(call.stdout.event("call_ended")["outcome"]["reason"], "enough");
    }
    listed(&dev, ["calls", "ls", "--waiting", "-o", "json"], 1);
    assert_eq!(dev.run(["calls", "cancel"]).code(), 2, "which ones?");
    assert_eq!(dev.run(["calls", "cancel", "--reason", "a reason selects nothing"]).code(), 2, "which ones?");
    listed(&dev, ["calls", "ls", "--waiting", "-o", "json"], 1);
    assert_eq!(dev.run(["calls", "cancel", "--all"]).code(), 2, "a program says that it means it");
    let would = dev.run(["calls", "cancel", "--all", "--dry-run", "-o", "json"]).json();
    assert_eq!(would.len(), 1, "those that ended are not listed");
    listed(&dev, ["calls", "ls", "--waiting", "-o", "json"], 1);
    assert_eq!(dev.run(["calls", "cancel", "--all", "--yes", "-o", "json"]).json(), would);
}
