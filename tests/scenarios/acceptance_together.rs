//! Acceptance tests of the tools with which agents work together, each through a broker, a coordinator and a worker.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use harness::acceptance::{TOGETHER, Verdict, record};
use serde_json::json;
use tokio::net::TcpListener;

use crate::acceptance_tools::verdict_of;
use crate::collaboration::{SECRET, Ship, receive};

type Exercise = for<'a> fn(&'a Ship, &'a TcpListener) -> BoxFuture<'a, ()>;

/// How each tool is exercised.
const EXERCISES: &[(&str, Exercise)] = &[
    ("forum", |ship, _| forum(ship).boxed()),
    ("remote_trigger", |ship, listener| remote_trigger(ship, listener).boxed()),
    ("schedule", |ship, _| schedule(ship).boxed()),
    ("schedule_cron", |ship, _| schedule_cron(ship).boxed()),
    ("search", |ship, _| search(ship).boxed()),
    ("search_tools", |ship, _| search_tools(ship).boxed()),
    ("task", |ship, _| task(ship).boxed()),
    ("task_broadcast", |ship, _| task_broadcast(ship).boxed()),
    ("team_agent", |ship, _| team_agent(ship).boxed()),
    ("time_reasoning", |ship, _| time_reasoning(ship).boxed()),
];

async fn forum(ship: &Ship) {
    let opened = ship.call("forum", json!({ "action": "open", "title": "Course", "text": "Due west" })).await;
    let read = ship.call("forum", json!({ "action": "read", "topic": opened["topic"]["id"] })).await;
    assert_eq!(read["posts"][0]["text"], "Due west");
    assert!(ship.error("forum", json!({ "action": "open", "title": "" })).await.contains("/title"));
}

async fn remote_trigger(ship: &Ship, listener: &TcpListener) {
    let asked = ship.call("remote_trigger", json!({ "trigger": "deploy", "payload": { "version": "1.2" } }));
    let (answer, (headers, body)) = tokio::join!(asked, receive(listener, "202 Accepted"));
    assert_eq!((&answer["accepted"], body.as_str()), (&json!(true), r#"{"version":"1.2"}"#), "{answer}");
    assert!(headers.contains_key("webhook-signature"), "{headers:?}");
    let elsewhere = ship.error("remote_trigger", json!({ "trigger": "elsewhere" })).await;
    assert!(elsewhere.contains("there is no trigger"), "{elsewhere}");
}

async fn schedule(ship: &Ship) {
    let watch = json!({
        "action": "add", "title": "Watch", "start": "2026-03-01T20:00:00Z", "end": "2026-03-02T00:00:00Z",
    });
    ship.call("schedule", watch).await;
    let conflicts = json!({
        "action": "conflicts", "start": "2026-03-01T23:00:00Z", "end": "2026-03-02T01:00:00Z",
    });
    let found = ship.call("schedule", conflicts).await;
    assert_eq!((&found["free"], &found["conflicts"][0]["title"]), (&json!(false), &json!("Watch")));
    assert!(ship.error("schedule", json!({ "action": "list", "start": "soon", "end": "x" })).await.contains("/start"));
}

async fn schedule_cron(ship: &Ship) {
    let create =
        json!({ "action": "create", "cron": "0 9 * * 1", "time_zone": "Europe/Berlin", "tool": "crew_answers" });
    let made = ship.call("schedule_cron", create).await;
    let listed = ship.call("schedule_cron", json!({ "action": "list" })).await;
    assert_eq!(listed["schedules"][0]["schedule_id"], made["schedule_id"]);
    ship.call("schedule_cron", json!({ "action": "delete", "schedule_id": made["schedule_id"] })).await;
    let never = json!({ "action": "create", "cron": "0 0 30 2 *", "tool": "crew_answers" });
    assert!(ship.error("schedule_cron", never).await.contains("never fires"));
}

async fn search(ship: &Ship) {
    ship.call("task", json!({ "action": "create", "title": "Caulk the hull" })).await;
    let found = ship.call("search", json!({ "query": "hull" })).await;
    assert_eq!(found["results"][0]["title"], "Caulk the hull", "{found}");
    assert!(ship.error("search", json!({ "query": " - " })).await.contains("/query"));
}

async fn search_tools(ship: &Ship) {
    let found = ship.call("search_tools", json!({ "query": "send one call to all tools" })).await;
    assert_eq!(found["tools"][0]["name"], "task_broadcast", "{found}");
    assert!(ship.error("search_tools", json!({ "query": " " })).await.contains("/query"));
}

async fn task(ship: &Ship) {
    let made = ship.call("task", json!({ "action": "create", "title": "Mend the sail" })).await;
    let done = ship.call("task", json!({ "action": "complete", "id": made["id"], "version": made["version"] })).await;
    assert_eq!(done["status"], "done");
    let stale = json!({ "action": "update", "id": made["id"], "status": "open", "version": made["version"] });
    assert!(ship.error("task", stale).await.contains("was changed"));
}

async fn task_broadcast(ship: &Ship) {
    let broadcast = json!({ "tag": "crew", "tool": "crew_[af]*", "arguments": { "all": "hands" } });
    let heard = ship.call("task_broadcast", broadcast).await;
    assert_eq!((&heard["completed"], &heard["failed"]), (&json!(1), &json!(1)), "{heard}");
    assert!(ship.error("task_broadcast", json!({ "tag": "none" })).await.contains("/tag"));
}

async fn team_agent(ship: &Ship) {
    let members = json!([{ "tool": "crew_fails" }, { "tool": "crew_answers", "arguments": { "course": "west" } }]);
    let team = ship.call("team_agent", json!({ "members": members })).await;
    assert_eq!(team["answers"][1]["result"], json!({ "course": "west" }), "{team}");
    assert!(ship.error("team_agent", json!({ "members": [{}] })).await.contains("/members/0"));
}

async fn time_reasoning(ship: &Ship) {
    let time = json!({ "action": "weekday", "time": "2026-03-01" });
    assert_eq!(ship.call("time_reasoning", time).await["weekday"], "Sunday");
    assert!(!ship.error("time_reasoning", json!({ "action": "weekday", "time": "soon" })).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_of_collaboration() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("triggers.toml");
    let url = format!("http://{}/go", listener.local_addr().expect("it listens"));
    let text =
        format!("[[trigger]]\nname = \"deploy\"\nurl = \"{url}\"\nsecret_files = [\"secret\"]\nallow_private = true\n");
    std::fs::write(folder.path().join("secret"), SECRET).expect("it can be written");
    std::fs::write(&file, text).expect("it can be written");
    let ship = Ship::start(Some(&file)).await;
    for row in TOGETHER {
        assert!(EXERCISES.iter().any(|(tool, _)| *tool == row.tool), "{} has no exercise", row.tool);
    }
    let mut failed = Vec::new();
    for (tool, exercise) in EXERCISES {
        let ended = std::panic::AssertUnwindSafe(exercise(&ship, &listener)).catch_unwind().await;
        let verdict = verdict_of(tool, ended.map(Ok));
        if matches!(verdict, Verdict::Failed(_)) {
            failed.push(*tool);
        }
        record(tool, &verdict);
    }
    assert!(failed.is_empty(), "these do not hold: {failed:?}");
}
