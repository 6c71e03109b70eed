//! `toolyard pause` and `resume`: an operator has something stand still.

use crate::process::{Dev, run};

#[test]
fn what_is_paused_is_listed_explained_and_resumed() {
    let dev = Dev::start();
    assert_eq!(dev.run(["pause", "tool", "bash", "--reason", "it does harm"]).code(), 0);
    assert_eq!(dev.run(["pause", "pool", "local"]).code(), 0);
    let listed = dev.run(["pause", "ls", "-o", "json"]).json();
    assert_eq!((&listed[0]["tool"], &listed[0]["reason"]), (&"bash".into(), &"it does harm".into()));
    assert_eq!(listed[1]["pool"], "local");
    let tools = dev.run(["tools", "ls"]).stdout();
    let bash = tools.lines().find(|line| line.starts_with("bash")).expect("it is listed");
    assert!(bash.contains("paused, local: 1 worker, paused"), "{tools}");
    let doctor = run(["doctor", "--nats-url", dev.nats_url()]);
    assert!(doctor.code() == 0 && doctor.stdout().contains("paused; tools:"), "{}", doctor.stdout());
    // Another process than the yard's, which waits for the call.
    let call = dev.background(["call", "-o", "json", "bash", "command=echo at last"]);
    let opened = call.stdout.event("run_opened");
    let run_id = opened["run"]["run_id"].as_str().expect("a run has an id").to_owned();
    let why = dev.run(["why", &run_id, "call_0"]).stdout();
    assert!(why.contains("tool bash is paused") && why.contains("it does harm"), "{why}");
    assert_eq!(dev.run(["resume", "tool", "bash"]).code(), 0);
    assert_eq!(dev.run(["resume", "pool", "local"]).code(), 0);
    call.stdout.event("run_ended");
    assert_eq!(call.code(), 0);
    assert!(dev.run(["pause", "ls"]).stderr().contains("nothing is paused"));
    let unknown = dev.run(["pause", "tool", "bosh"]);
    assert!(unknown.code() != 0 && unknown.stderr().contains("bosh"), "{}", unknown.stderr());
}
