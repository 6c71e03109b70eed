//! The errors of a tool say who may mend them, and when it is worth another attempt.

use std::time::Duration;

use serde_json::json;
use toolyard_tool::{Content, ErrorKind, ToolError, testkit, tool};

/// Fails as it is told.
#[tool(read_only)]
async fn fails(how: String) -> Result<(), ToolError> {
    Err(match how.as_str() {
        "input" => ToolError::bad_input("/how", "that city does not exist"),
        "model" => ToolError::model_retry("ask for one city at a time"),
        "needs" => ToolError::needs("a login at example.org"),
        "limit" => ToolError::rate_limited("too many requests", Duration::from_secs(7)),
        "long" => ToolError::rate_limited("come back tomorrow", Duration::from_secs(1 << 40)),
        "passing" => ToolError::retryable("the line was busy"),
        path => {
            std::fs::read(path)?;
            ToolError::new("that file is there")
        }
    })
}

async fn error(how: &str) -> toolyard_tool::CallError {
    testkit::call(Fails, json!({ "how": how })).await.result.expect_err("it fails")
}

#[tokio::test]
async fn an_error_says_what_it_is_and_whether_another_attempt_may_help() {
    for (how, kind, retryable) in [
        ("input", ErrorKind::ArgumentsInvalid, false),
        ("model", ErrorKind::ModelRetry, false),
        ("needs", ErrorKind::NeedsInput, false),
        ("limit", ErrorKind::RateLimited, true),
        ("passing", ErrorKind::ToolFailed, true),
        ("/nowhere/at/all", ErrorKind::ToolFailed, false),
    ] {
        let error = error(how).await;
        assert_eq!((error.kind, error.retryable), (kind, retryable), "{how}: {error:?}");
        assert!(!error.message.is_empty());
    }
}

#[tokio::test]
async fn bad_input_names_its_place() {
    let error = error("input").await;
    assert_eq!(error.violations.len(), 1);
    assert_eq!((&*error.violations[0].path, &*error.violations[0].message), ("/how", "that city does not exist"));
    assert_eq!(error.message, "the arguments are of no use: at /how: that city does not exist");
}

/// Finds fault at length.
#[tool(read_only)]
async fn complains(bytes: usize) -> Result<(), ToolError> {
    Err(ToolError::bad_input("/é".repeat(bytes / 3), "no ".repeat(bytes / 3)))
}

#[tokio::test]
async fn bad_input_that_is_told_at_length_is_cut() {
    let called = testkit::call(Complains, json!({ "bytes": 3 << 20 })).await;
    let error = called.result.expect_err("it fails");
    let [violation] = &error.violations[..] else { panic!("{error:?}") };
    for text in [&error.message, &violation.path, &violation.message] {
        assert!(text.len() <= 16 * 1024 && text.ends_with("(cut)"), "{} bytes", text.len());
    }
    assert!(violation.path.starts_with("/é/é"), "{}", &violation.path[..20]);
}

#[tokio::test]
async fn a_rate_limit_says_how_long_to_wait_and_that_is_bounded() {
    assert_eq!(error("limit").await.retry_after, Some(Duration::from_secs(7)));
    assert_eq!(error("long").await.retry_after, Some(Duration::from_secs(3600)));
}

/// Gives more than it may.
#[tool]
async fn excessive(bytes: usize, parts: usize) -> Vec<Content> {
    vec![Content::Text("x".repeat(bytes)); parts]
}

/// Gives a part with a long media type.
#[tool]
async fn mislabels(bytes: usize) -> Content {
    Content::Data { media_type: "x".repeat(bytes), data: "x".into() }
}

/// Says more than it may while it runs.
#[tool(streaming)]
async fn babbles(context: &toolyard_tool::Context, pieces: u32, bytes: usize) -> Result<(), ToolError> {
    for _ in 0..pieces {
        context.text("x".repeat(bytes)).await?;
    }
    Ok(())
}

#[tokio::test]
async fn the_test_kit_refuses_what_a_worker_refuses() {
    let kind = |called: testkit::Called| called.result.expect_err("it is too much").kind;
    let result = |bytes: usize, parts: usize| json!({ "bytes": bytes, "parts": parts });
    assert!(testkit::call(Excessive, result(1 << 20, 1)).await.result.is_ok());
    assert_eq!(kind(testkit::call(Excessive, result(1, 257)).await), ErrorKind::ResultTooLarge);
    assert!(testkit::call(Mislabels, json!({ "bytes": 1024 })).await.result.is_ok());
    assert_eq!(kind(testkit::call(Mislabels, json!({ "bytes": 1025 })).await), ErrorKind::ResultTooLarge);
    let said = |pieces: u32| json!({ "pieces": pieces, "bytes": 64 * 1024 });
    assert_eq!(testkit::call(Babbles, said(1024)).await.text().len(), 64 << 20);
    let too_much = testkit::call(Babbles, said(2048)).await;
    assert_eq!(too_much.text().len(), 64 << 20);
    assert_eq!(kind(too_much), ErrorKind::OutputTooLarge);
}
