//! `toolyard inbox`, `calls approve` and `calls reject`: what waits for somebody, and what comes of it.

use crate::process::Dev;

const ASK: [&str; 6] = ["call", "-o", "json", "--approval", "get_current_time", "time_zone=UTC"];

#[test]
fn one_call_is_approved_with_other_arguments_and_one_is_rejected() {
    let dev = Dev::start();
    let (first, second) = (dev.background(ASK), dev.background(ASK));
    let run_of = |opened: serde_json::Value| opened["run_id"].as_str().expect("a run").to_owned();
    let runs = [&first, &second].map(|call| run_of(call.stdout.event("run_opened")));
    let asked = first.stdout.event("call_awaiting_approval");
    assert_eq!(asked["arguments"], "{\"time_zone\":\"UTC\"}");
    assert_eq!(asked["default"], "APPROVAL_DEFAULT_REJECT");
    second.stdout.event("call_awaiting_approval");
    let waiting = loop {
        let waiting = dev.run(["inbox", "-o", "json"]).json();
        if waiting.len() == 2 {
            break waiting;
        }
    };
    assert!(waiting.iter().all(|call| call["call"]["state"] == "CALL_STATE_AWAITING_APPROVAL"), "{waiting:?}");
    assert!(dev.run(["why", &runs[0], "call_0"]).stdout().contains("awaiting approval"));

    let wrong = dev.run(["calls", "approve", &runs[0], "call_0", "--json", "{\"time_zone\": 1}"]);
    assert!(wrong.code() != 0 && wrong.stderr().contains("/time_zone"), "{}", wrong.stderr());
    let other = "{\"time_zone\": \"Asia/Shanghai\"}";
    assert_eq!(dev.run(["calls", "approve", &runs[0], "call_0", "--json", other]).code(), 0);
    let ended = first.stdout.event("call_ended");
    assert!(ended.to_string().contains("zone is Asia/Shanghai"), "{ended}");

    assert_eq!(dev.run(["calls", "reject", &runs[1], "call_0", "--reason", "not today"]).code(), 0);
    let ended = second.stdout.event("call_ended");
    assert!(ended.to_string().contains("the call was rejected: not today"), "{ended}");
    let again = dev.run(["calls", "approve", &runs[1], "call_0"]);
    assert!(again.code() != 0 && again.stderr().contains("already rejected"), "{}", again.stderr());
}
