//! Tools that keep records.

use serde_json::json;
use toolyard_tool::testkit::Records;
use toolyard_tool::{Context, RecordError, Table, ToolError, tool};

/// Counts up.
#[tool(idempotent)]
async fn count(context: &Context, name: String) -> Result<u64, ToolError> {
    let found = context.records().get(&format!("count/{name}")).await?;
    let (revision, value) = found.as_ref().map_or((0, 0), |it| (it.revision, it.value.first().copied().unwrap_or(0)));
    if found.is_some_and(|found| found.is_own) {
        return Ok(u64::from(value));
    }
    context.records().put(&format!("count/{name}"), vec![value + 1], revision).await?;
    Ok(u64::from(value) + 1)
}

/// Lists the names.
#[tool(read_only)]
async fn names(context: &Context, after: String) -> Result<Vec<String>, ToolError> {
    let page = context.records().list("count/", &after, 2).await?;
    Ok(page.records.iter().map(|record| record.key.to_string()).collect())
}

/// Writes what it is told.
#[tool(idempotent)]
async fn write(context: &Context, key: String, bytes: usize, revision: u64) -> Result<u64, ToolError> {
    Ok(context.records().put(&key, vec![b'x'; bytes], revision).await?)
}

fn table() -> Table {
    Table::new().host(Count).and_then(|it| it.host(Names)).and_then(|it| it.host(Write)).expect("they can be hosted")
}

#[tokio::test]
async fn a_record_outlives_its_call_and_a_repeated_attempt_changes_it_once() {
    let (table, records) = (table(), Records::default());
    let ada = json!({ "name": "ada" });
    assert_eq!(records.call(&table, "count", ada.clone()).await.answer(), "1");
    assert_eq!(records.repeat(&table, "count", ada.clone()).await.answer(), "1", "the same call");
    assert_eq!(records.call(&table, "count", ada).await.answer(), "2");
    for name in ["bob", "cleo"] {
        records.call(&table, "count", json!({ "name": name })).await;
    }
    let page = records.call(&table, "names", json!({ "after": "" })).await.answer();
    assert_eq!(page, r#"["count/ada","count/bob"]"#);
    let page = records.call(&table, "names", json!({ "after": "count/bob" })).await.answer();
    assert_eq!(page, r#"["count/cleo"]"#);
}

#[tokio::test]
async fn a_write_that_cannot_be_made_says_why() {
    let (table, records) = (table(), Records::default());
    let write = async |key: &str, bytes: usize, revision: u64| {
        records.call(&table, "write", json!({ "key": key, "bytes": bytes, "revision": revision })).await
    };
    assert_eq!(write("a", 1, 0).await.answer(), "1");
    for (key, bytes, revision, expected, retryable) in [
        ("a", 2, 0, "another call changed the record: its revision is 1", true),
        ("b", 2, 7, "there is no such record any more", true),
        ("a b", 1, 0, "\"a b\" is not a key of a record", false),
        ("", 1, 0, "\"\" is not a key of a record", false),
        ("c", 65_537, 0, "record c has 65537 bytes, at most 65536 are kept", false),
    ] {
        let called = write(key, bytes, revision).await;
        assert!(called.error().contains(expected), "{}", called.error());
        assert_eq!(called.result.expect_err("it failed").retryable, retryable, "{expected}");
    }
}

#[test]
fn an_error_of_records_becomes_one_of_the_tool() {
    let unavailable = ToolError::from(RecordError::Unavailable("no owner".to_owned()));
    assert!(unavailable.is_retryable());
    assert!(!ToolError::from(RecordError::Full("full".to_owned())).is_retryable());
}
