//! `toolyard webhooks`: what nobody takes is listed, and tried again.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::process::{Background, run, toolyard};

#[test]
fn a_webhook_that_nobody_takes_is_listed_and_tried_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("webhooks.toml");
    // Nobody listens there.
    let text = "[[endpoint]]\nname = \"agents\"\nurl = \"http://127.0.0.1:9/\"\nsecret_env = [\"AGENTS_SECRET\"]\ngive_up_after_s = 1\n";
    std::fs::write(&file, text).expect("it can be written");
    let mut dev = toolyard(["dev", "--listen", "127.0.0.1:0", "-o", "json", "--webhooks"]);
    let dev = Background::of(dev.arg(&file).env("AGENTS_SECRET", "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"));
    let up: Value = serde_json::from_str(&dev.stdout.until(|_| true)).expect("it says where it is");
    let url = up["url"].as_str().expect("it has a URL");
    assert_eq!(run(["--url", url, "call", "get_current_time", "time_zone=UTC"]).code(), 0);
    let give_up = Instant::now() + Duration::from_secs(60);
    let parked = loop {
        let parked = run(["--url", url, "webhooks", "parked", "--endpoint", "agents", "-o", "json"]).json();
        if let [parked] = &parked[..] {
            break parked.clone();
        }
        assert!(Instant::now() < give_up, "nothing is parked");
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(parked["body"].as_str().is_some_and(|body| body.contains("run.completed")), "{parked}");
    let listed = run(["--url", url, "webhooks", "parked"]).stdout();
    assert!(listed.contains("agents  run.completed  "), "{listed}");
    let id = parked["webhook_id"].as_str().expect("it has an id");
    let redriven = run(["--url", url, "webhooks", "redrive", id, "-o", "json"]).json();
    assert_eq!(redriven, [serde_json::json!({ "count": 1 })]);
    assert_eq!(run(["--url", url, "webhooks", "redrive"]).code(), 2, "which ones?");
}

#[test]
fn a_coordinator_with_a_bad_file_does_not_start_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("webhooks.toml");
    std::fs::write(&file, "[[endpoint]]\nname = \"a\"\nurl = \"http://localhost/\"\n").expect("it can be written");
    let ended = run(["coordinator", "--webhooks", file.to_str().expect("a path that is text")]);
    assert_eq!(ended.code(), 1);
    assert!(ended.stderr().contains("endpoint \"a\": secret_files: 0 secrets"), "{}", ended.stderr());
}
