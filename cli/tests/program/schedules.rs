//! `toolyard schedules`: a schedule is created, listed, fired, paused and deleted.

use crate::process::{Dev, run};

#[test]
fn a_schedule_is_created_shown_fired_paused_and_deleted() {
    let dev = Dev::start();
    let created = dev.run([
        "schedules",
        "create",
        "--cron",
        "0 9 * * mon-fri",
        "--time-zone",
        "Europe/Berlin",
        "--name",
        "daily",
        "get_current_time",
        "time_zone=UTC",
    ]);
    assert_eq!(created.code(), 0, "{}", created.stderr());
    let text = created.stdout();
    for part in [" · active · 0 9 * * mon-fri Europe/Berlin · get_current_time · daily", "next 20"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let id = text.split(' ').next().expect("the id comes first").to_owned();
    let fired = dev.run(["schedules", "run-now", &id, "-o", "json"]).json();
    let run = fired[0]["run_id"].as_str().expect("a run has an id").to_owned();
    assert_eq!(dev.run(["runs", "watch", &run]).code(), 0);
    let shown = dev.run(["schedules", "get", &id]).stdout();
    assert!(shown.contains(&run) && shown.contains("by request") && shown.contains("1 fired"), "{shown}");
    let listed = std::iter::repeat_with(|| dev.run(["runs", "ls", "--schedule", &id, "-o", "json"]).json());
    let listed = listed.take(100).find(|listed| !listed.is_empty()).expect("the index follows the log");
    assert_eq!(listed[0]["run_id"], run.as_str());

    let paused = dev.run(["schedules", "pause", &id, "--reason", "moving house"]).stdout();
    assert!(paused.contains("paused") && paused.contains("moving house") && !paused.contains("next"), "{paused}");
    assert!(dev.run(["schedules", "ls", "--status", "active"]).stderr().contains("no such schedule"));
    assert!(dev.run(["schedules", "resume", &id]).stdout().contains("active"));
    assert!(dev.run(["schedules", "ls"]).stdout().starts_with(&id));
    assert_eq!(dev.run(["schedules", "delete", &id]).code(), 0);
    let gone = dev.run(["schedules", "get", &id]);
    assert!(gone.code() != 0 && gone.stderr().contains("there is no schedule"), "{}", gone.stderr());

    let never = dev.run(["schedules", "create", "--cron", "0 0 30 2 *", "get_current_time"]);
    assert!(never.code() != 0 && never.stderr().contains("never fires"), "{}", never.stderr());
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.json");
    std::fs::write(&file, r#"{"calls":[{"tool":"get_current_time","arguments":"{\"time_zone\":\"UTC\"}"}]}"#)
        .expect("it can be written");
    let file = file.to_str().expect("a path of text");
    let from_file = dev.run(["schedules", "create", "--every", "1h", "--run", file, "-o", "json"]).json();
    assert_eq!(from_file[0]["spec"]["every"], "3600s");
    std::fs::write(file, "{\"cals\":[]}").expect("it can be written");
    let wrong = dev.run(["schedules", "create", "--every", "1h", "--run", file]);
    assert!(wrong.code() != 0 && wrong.stderr().contains("cals"), "{}", wrong.stderr());
}

#[test]
fn the_calls_of_a_schedule_may_await_approval_for_days() {
    let dev = Dev::start();
    let create = |options: &[&str]| {
        let typed = ["--url", dev.url(), "schedules", "create", "--every", "7d", "-o", "json"];
        run(typed.iter().chain(options))
    };
    let call = ["bash", "command=date", "--approval", "--approval-timeout", "2d"];
    let created = create(&[&call[..], &["--run-timeout", "3d"]].concat());
    assert_eq!(created.code(), 0, "{}", created.stderr());
    let run = &created.json()[0]["spec"]["run"];
    assert_eq!((&run["timeout"], &run["calls"][0]["approval"]["timeout"]), (&"259200s".into(), &"172800s".into()));

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("run.json");
    std::fs::write(&file, r#"{"calls":[{"tool":"bash","arguments":{"command":"date"}}]}"#).expect("it can be written");
    let of_file = create(&["--run", file.to_str().expect("a path of text"), "--run-timeout", "3d"]);
    assert_eq!(of_file.json()[0]["spec"]["run"]["timeout"], "259200s", "{}", of_file.stderr());

    let short = create(&call);
    assert!(short.code() == 2 && short.stderr().contains("--run-timeout"), "{}", short.stderr());
    let long = create(&[&call[..], &["--run-timeout", "31d"]].concat());
    assert!(long.code() == 2 && long.stderr().contains("DEADLINE_TOO_FAR"), "{}", long.stderr());
}
