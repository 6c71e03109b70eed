//! Tools that keep things in records: tasks, the agenda, the forum, and the search over them.

use serde_json::{Value, json};
use toolyard_tool::Table;
use toolyard_tool::testkit::Records;

/// A pool with the tools, and its records.
struct Pool(Table, Records);

impl Pool {
    fn new() -> Self {
        Self(
            collaboration::host(Table::new(), collaboration::Options::default()).expect("they can be hosted"),
            Records::default(),
        )
    }

    async fn call(&self, tool: &str, arguments: Value) -> Value {
        serde_json::from_str(&self.1.call(&self.0, tool, arguments).await.answer()).expect("it answers JSON")
    }

    async fn repeat(&self, tool: &str, arguments: Value) -> Value {
        serde_json::from_str(&self.1.repeat(&self.0, tool, arguments).await.answer()).expect("it answers JSON")
    }

    async fn error(&self, tool: &str, arguments: Value) -> String {
        self.1.call(&self.0, tool, arguments).await.error().to_owned()
    }
}

#[tokio::test]
async fn a_task_is_made_assigned_and_completed() {
    let pool = Pool::new();
    let made =
        pool.call("task", json!({ "action": "create", "title": "Write the report", "notes": "by Friday" })).await;
    let id = made["id"].as_str().expect("an id");
    assert_eq!((made["status"].as_str(), made["title"].as_str()), (Some("open"), Some("Write the report")));
    pool.call("task", json!({ "action": "assign", "id": id, "assignee": "ada" })).await;
    pool.call("task", json!({ "action": "update", "id": id, "status": "in_progress" })).await;
    let done = pool.call("task", json!({ "action": "complete", "id": id })).await;
    assert_eq!((done["status"].as_str(), done["assignee"].as_str()), (Some("done"), Some("ada")));
    assert_eq!(pool.call("task", json!({ "action": "get", "id": id })).await["version"], done["version"]);
    pool.call("task", json!({ "action": "delete", "id": id })).await;
    assert!(pool.error("task", json!({ "action": "get", "id": id })).await.contains("there is nothing with the id"));
}

#[tokio::test]
async fn a_repeated_attempt_makes_no_second_task_and_no_second_post() {
    let pool = Pool::new();
    let create = json!({ "action": "create", "title": "Once" });
    let made = pool.call("task", create.clone()).await;
    assert_eq!(pool.repeat("task", create.clone()).await["id"], made["id"]);
    let listed = pool.call("task", json!({ "action": "list" })).await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    let opened = pool.call("forum", json!({ "action": "open", "title": "News", "text": "first" })).await;
    let topic = &opened["topic"]["id"];
    let post = json!({ "action": "post", "topic": topic, "text": "second" });
    let posted = pool.call("forum", post.clone()).await;
    assert_eq!(pool.repeat("forum", post).await, posted);
    let read = pool.call("forum", json!({ "action": "read", "topic": topic })).await;
    assert_eq!(read["posts"].as_array().map(Vec::len), Some(2), "{read}");
}

#[tokio::test]
async fn a_repeated_attempt_gets_its_task_as_another_call_left_it() {
    let (pool, other) = (Pool::new(), json!({ "action": "list" }));
    let create = json!({ "action": "create", "title": "Shared" });
    let made = pool.call("task", create.clone()).await;
    let mut change = json!({ "action": "complete" });
    change["id"] = made["id"].clone();
    pool.call("task", change).await;
    let again = pool.1.repeat_earlier(1, &pool.0, "task", create).await.answer();
    let again: Value = serde_json::from_str(&again).expect("it answers JSON");
    assert_eq!((&again["id"], &again["status"]), (&made["id"], &json!("done")));
    assert_eq!(pool.call("task", other).await["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_task_that_another_call_changed_is_not_overwritten() {
    let pool = Pool::new();
    let made = pool.call("task", json!({ "action": "create", "title": "Shared" })).await;
    let update =
        |notes: &str| json!({ "action": "update", "id": made["id"], "notes": notes, "version": made["version"] });
    pool.call("task", update("first")).await;
    let error = pool.error("task", update("second")).await;
    assert!(error.contains("was changed: it has version"), "{error}");
    assert_eq!(pool.call("task", json!({ "action": "get", "id": made["id"] })).await["notes"], "first");
}

#[tokio::test]
async fn tasks_are_listed_by_page_and_by_status() {
    let pool = Pool::new();
    for number in 0..7 {
        let status = if number % 2 == 0 { "open" } else { "done" };
        pool.call("task", json!({ "action": "create", "title": format!("{number}"), "status": status })).await;
    }
    let (mut after, mut titles) = (Value::Null, Vec::new());
    loop {
        let mut list = json!({ "action": "list", "status": "open", "limit": 3 });
        if !after.is_null() {
            list["after"] = after;
        }
        let page = pool.call("task", list).await;
        titles.extend(page["items"].as_array().expect("a list").iter().map(|task| task["title"].clone()));
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    titles.sort_by_key(ToString::to_string);
    assert_eq!(titles, ["0", "2", "4", "6"]);
}

#[tokio::test]
async fn the_agenda_shows_a_range_and_its_conflicts() {
    let pool = Pool::new();
    let add = |title: &str, start: &str, end: &str, refuse: bool| {
        let (start, end) = (format!("2026-03-01T{start}:00+01:00"), format!("2026-03-01T{end}:00+01:00"));
        json!({
            "action": "add", "title": title, "start": start, "end": end, "owner": "ada", "refuse_conflicts": refuse,
        })
    };
    let first = pool.call("schedule", add("Stand-up", "09:00", "09:15", true)).await;
    assert_eq!(first["conflicts"], json!([]));
    pool.call("schedule", add("Talk", "10:00", "11:00", true)).await;
    let error = pool.error("schedule", add("Lunch", "10:30", "12:00", true)).await;
    assert!(error.contains("it overlaps \"Talk\""), "{error}");
    let lunch = pool.call("schedule", add("Lunch", "10:30", "12:00", false)).await;
    assert_eq!(lunch["conflicts"][0]["title"], "Talk");
    let range = |action: &str, owner: &str| {
        let (start, end) = ("2026-03-01T08:10:00Z", "2026-03-01T09:30:00Z");
        json!({ "action": action, "start": start, "end": end, "owner": owner })
    };
    let listed = pool.call("schedule", range("list", "ada")).await;
    let titles: Vec<_> = listed["items"].as_array().expect("a list").iter().map(|it| it["title"].clone()).collect();
    assert_eq!(titles, ["Stand-up", "Talk"], "08:10 UTC is 09:10 there");
    assert_eq!(pool.call("schedule", range("conflicts", "bob")).await["free"], true);
    pool.call("schedule", json!({ "action": "remove", "id": first["entry"]["id"] })).await;
    assert_eq!(pool.call("schedule", range("list", "ada")).await["items"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_time_is_free_only_if_all_entries_were_looked_at() {
    let pool = Pool::new();
    let add = |owner: &str, minute: usize| {
        let (start, end) = (format!("2026-03-01T09:{:02}:00Z", minute), "2026-03-01T10:00:00Z");
        json!({ "action": "add", "title": "x", "owner": owner, "start": start, "end": end })
    };
    for _ in 0..2_100 {
        pool.call("schedule", add("bob", 0)).await;
    }
    pool.call("schedule", add("ada", 30)).await;
    let conflicts = json!({
        "action": "conflicts", "owner": "ada", "start": "2026-03-01T09:00:00Z", "end": "2026-03-01T10:00:00Z",
    });
    assert_eq!(pool.call("schedule", conflicts).await["free"], false);
    let (mut after, mut read) = (Value::Null, 0);
    loop {
        let mut list = json!({
            "action": "list", "owner": "bob", "start": "2026-03-01T09:00:00Z", "end": "2026-03-01T10:00:00Z",
        });
        if !after.is_null() {
            list["after"] = after;
        }
        let page = pool.call("schedule", list).await;
        read += page["items"].as_array().expect("a list").len();
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    assert_eq!(read, 2_100);
}

#[tokio::test]
async fn topics_have_posts_and_replies_and_can_be_deleted() {
    let pool = Pool::new();
    let open = json!({ "action": "open", "title": "Outage", "text": "The API is slow.", "author": "ada" });
    let opened = pool.call("forum", open).await;
    let (topic, first) = (&opened["topic"]["id"], &opened["post"]["id"]);
    let reply = json!({ "action": "post", "topic": topic, "text": "I look.", "author": "bob", "reply_to": first });
    pool.call("forum", reply).await;
    let read = pool.call("forum", json!({ "action": "read", "topic": topic })).await;
    assert_eq!((&read["topic"]["title"], &read["posts"][1]["reply_to"]), (&json!("Outage"), first));
    let wrong = json!({ "action": "post", "topic": topic, "text": "?", "reply_to": "none" });
    assert!(pool.error("forum", wrong).await.contains("at /reply_to"));
    pool.call("forum", json!({ "action": "delete", "topic": topic })).await;
    assert_eq!(pool.call("forum", json!({ "action": "topics" })).await["items"], json!([]));
    let search = pool.call("search", json!({ "query": "slow" })).await;
    assert_eq!(search["results"], json!([]), "its posts are gone too");
}

#[tokio::test]
async fn the_search_finds_the_best_match_first() {
    let pool = Pool::new();
    pool.call("task", json!({ "action": "create", "title": "Fix the parser", "notes": "the lexer too" })).await;
    pool.call("task", json!({ "action": "create", "title": "Buy tea", "notes": "not for the parser" })).await;
    pool.call("forum", json!({ "action": "open", "title": "Lexers", "text": "How do I write a lexer?" })).await;
    let found = pool.call("search", json!({ "query": "PARSER" })).await;
    let titles: Vec<_> = found["results"].as_array().expect("a list").iter().map(|it| it["title"].clone()).collect();
    assert_eq!(titles, ["Fix the parser", "Buy tea"], "{found}");
    let found = pool.call("search", json!({ "query": "lexer", "kinds": ["forum"] })).await;
    assert_eq!(found["results"].as_array().map(Vec::len), Some(1), "{found}");
    assert_eq!(found["results"][0]["kind"], "forum");
}

#[tokio::test]
async fn input_of_no_use_is_refused_with_its_place() {
    let pool = Pool::new();
    let long = "x".repeat(501);
    for (tool, arguments, expected) in [
        ("task", json!({ "action": "create" }), "at /title: the action create needs it"),
        ("task", json!({ "action": "create", "title": "  " }), "at /title: it is empty"),
        ("task", json!({ "action": "create", "title": long }), "at /title: it has 501 bytes"),
        ("task", json!({ "action": "update", "id": "x" }), "update needs title, notes, assignee or status"),
        ("task", json!({ "action": "get", "id": "../forum" }), "there is nothing with the id"),
        ("task", json!({ "action": "get", "id": "" }), "there is nothing with the id"),
        ("task", json!({ "action": "list", "after": "a/b" }), "at /after"),
        ("task", json!({ "action": "vanish" }), "vanish"),
        ("schedule", json!({ "action": "add", "title": "x" }), "at /start: the action add needs it"),
        ("schedule", json!({ "action": "list", "start": "tomorrow", "end": "x" }), "is not a time with its offset"),
        (
            "schedule",
            json!({ "action": "list", "start": "2026-03-01T09:00:00Z", "end": "2026-03-01T08:00:00Z" }),
            "at /end: it is not after start",
        ),
        (
            "schedule",
            json!({ "action": "add", "title": "x", "start": "2026-01-01T00:00:00Z", "end": "2026-03-01T08:00:00Z" }),
            "lasts 31 days at most",
        ),
        ("forum", json!({ "action": "post", "topic": "none", "text": "x" }), "at /topic"),
        ("forum", json!({ "action": "open", "title": "x" }), "at /text"),
        ("search", json!({ "query": " - " }), "at /query: it has no word"),
        ("search", json!({ "query": "x", "more": 1 }), "more"),
    ] {
        let error = pool.error(tool, arguments.clone()).await;
        assert!(error.contains(expected), "{tool} {arguments}: {error}");
    }
}
