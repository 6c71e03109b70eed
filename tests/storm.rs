//! A short storm: the torture command over a few hundred calls, with some faults of every kind, finds nothing broken.

use std::process::Command;

#[test]
fn a_short_storm_breaks_no_promise() {
    let output = Command::new(env!("CARGO_BIN_EXE_torture"))
        .args(["--calls", "600", "--seed", "1", "--brokers", "1", "--json"])
        .output()
        .expect("the torture command starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    let figures: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert!(figures["calls"].as_u64() >= Some(600), "{figures}");
    for kind in [
        "worker/kill",
        "worker/pause",
        "coordinator/",
        "coordinator/pause",
        "broker/kill",
        "broker/stall",
        "store/",
        "coordinatorlink/hold",
        "workerlink/hold",
        "clientlink/hold",
    ] {
        let mut kinds = figures["faults"].as_object().expect("faults by their kinds").keys();
        assert!(kinds.any(|found| found.starts_with(kind)), "{kind} was not among the faults: {figures}");
    }
}
