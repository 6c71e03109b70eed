//! `toolyard why`, and the options of `toolyard call` that say how long to wait and how often to send.

use crate::process::Dev;

#[test]
fn why_tells_what_a_call_waits_for_and_why_it_ended() {
    let dev = Dev::start();
    let call = dev.background(["call", "-o", "json", "ask_user", "question=Which?"]);
    let run = call.stdout.event("run_opened")["run_id"].as_str().unwrap().to_owned();
    call.stdout.event("call_waiting");
    let waits = dev.run(["why", &run, "call_0"]);
    assert!(waits.code() == 0 && waits.stdout().contains("waiting for its client"), "{}", waits.stdout());
    assert_eq!(dev.run(["submit", &run, "call_0", "blue"]).code(), 0);
    let ended = dev.run(["why", &run, "call_0", "-o", "json"]).json();
    assert!(ended[0]["why"].as_str().unwrap().starts_with("completed"), "{ended:?}");
    assert_eq!(ended[0]["call"]["parked"], false);
    let unknown = dev.run(["why", &run, "call_7"]);
    assert!(unknown.code() == 2 && unknown.stderr().contains("CALL_NOT_FOUND"), "{}", unknown.stderr());
}

#[test]
fn a_call_under_a_request_id_is_executed_once() {
    let dev = Dev::start();
    let twice: Vec<_> = (0..2)
        .map(|_| dev.run(["call", "-o", "json", "bash", "command=date +%N", "--request-id", "now", "--no-wait"]).json())
        .collect();
    assert_eq!(twice[0], twice[1]);
    let other = dev.run(["call", "bash", "command=date", "--request-id", "now"]);
    assert!(other.code() == 2 && other.stderr().contains("REQUEST_ID_TAKEN"), "{}", other.stderr());
}

#[test]
fn a_call_that_no_worker_takes_up_in_time_expires() {
    let dev = Dev::start();
    // As many as there are slots keep the worker busy.
    let busy: Vec<_> = (0..16).map(|_| dev.background(["call", "-o", "json", "bash", "command=sleep 5"])).collect();
    busy.iter().for_each(|call| drop(call.stdout.event("attempt_started")));
    let late = dev.run(["call", "get_current_time", "time_zone=UTC", "--queue-timeout", "0.5"]);
    assert_eq!(late.code(), 4, "{}", late.stderr());
    assert!(late.stderr().contains("queue"), "{}", late.stderr());
}
