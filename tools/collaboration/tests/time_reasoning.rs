//! Calculations with times.

use serde_json::{Value, json};
use toolyard_tool::testkit::{Called, call};

async fn calculated(arguments: Value) -> Called {
    call(collaboration::TimeReasoning, arguments).await
}

async fn field(arguments: Value, field: &str) -> Value {
    let called = calculated(arguments).await;
    serde_json::from_str::<Value>(&called.answer()).expect("it answers JSON")[field].clone()
}

#[tokio::test]
async fn times_are_parsed_converted_and_added_across_clock_changes() {
    let berlin = "Europe/Berlin";
    for (arguments, name, expected) in [
        (json!({ "action": "parse", "time": "2026-03-01" }), "time", json!("2026-03-01T00:00:00+00:00")),
        (
            json!({ "action": "parse", "time": "2026-03-01T09:00:00", "zone": berlin }),
            "unix_seconds",
            json!(1_772_352_000),
        ),
        (
            json!({ "action": "convert", "time": "2026-07-01T12:00:00Z", "to_zone": "Asia/Tokyo" }),
            "time",
            json!("2026-07-01T21:00:00+09:00"),
        ),
        // The clock goes forward on 29 March, at 02:00.
        (
            json!({ "action": "add", "time": "2026-03-28T12:00:00", "zone": berlin, "duration": "P1D" }),
            "time",
            json!("2026-03-29T12:00:00+02:00"),
        ),
        (
            json!({ "action": "add", "time": "2026-03-28T12:00:00", "zone": berlin, "duration": "PT24H" }),
            "time",
            json!("2026-03-29T13:00:00+02:00"),
        ),
        (
            json!({ "action": "add", "time": "2024-01-31", "duration": "1 month" }),
            "time",
            json!("2024-02-29T00:00:00+00:00"),
        ),
        (json!({ "action": "weekday", "time": "2026-11-24" }), "weekday", json!("Tuesday")),
        (json!({ "action": "difference", "time": "2024-02-28", "until": "2024-03-01" }), "total_days", json!(2)),
        (
            json!({ "action": "difference", "time": "2026-01-01", "until": "2027-03-04T05:00:00Z" }),
            "duration",
            json!("P1Y2M3DT5H"),
        ),
        (json!({ "action": "business_days", "time": "2026-12-21", "until": "2026-12-28" }), "business_days", json!(5)),
        (
            json!({ "action": "business_days", "time": "2026-12-21", "until": "2026-12-28",
                "holidays": ["2026-12-25"] }),
            "business_days",
            json!(4),
        ),
        (json!({ "action": "add_business_days", "time": "2026-11-27", "days": 1 }), "date", json!("2026-11-30")),
        (json!({ "action": "add_business_days", "time": "2026-11-30", "days": -1 }), "date", json!("2026-11-27")),
    ] {
        assert_eq!(field(arguments.clone(), name).await, expected, "{arguments}");
    }
    assert!(field(json!({ "action": "now" }), "unix_seconds").await.as_i64().expect("a number") > 1_700_000_000);
}

#[tokio::test]
async fn times_of_no_use_are_refused_with_their_place() {
    for (arguments, expected) in [
        (json!({ "action": "parse" }), "at /time: the action parse needs it"),
        (json!({ "action": "parse", "time": "yesterday" }), "at /time: \"yesterday\" is no time"),
        (json!({ "action": "parse", "time": "2026-02-30" }), "at /time"),
        (json!({ "action": "now", "zone": "Mars/Base" }), "there is no time zone \"Mars/Base\""),
        (json!({ "action": "add", "time": "2026-01-01", "duration": "soon" }), "at /duration"),
        (json!({ "action": "add", "time": "2026-01-01", "duration": "P20000Y" }), "at /duration"),
        (json!({ "action": "business_days", "time": "2026-01-02", "until": "2026-01-01" }), "at /until"),
        (json!({ "action": "business_days", "time": "1000-01-02", "until": "9000-01-01" }), "at /until"),
        (json!({ "action": "add_business_days", "time": "2026-01-02", "days": i32::MIN }), "at /days"),
        (
            json!({ "action": "business_days", "time": "2026-01-02", "until": "2026-01-03", "holidays": ["x"] }),
            "at /holidays/0",
        ),
    ] {
        let called = calculated(arguments.clone()).await;
        assert!(called.error().contains(expected), "{arguments}: {}", called.error());
    }
}
