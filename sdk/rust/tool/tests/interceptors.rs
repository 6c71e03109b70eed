//! What stands around executions: in which order, what it sees and may change, and that nothing is said twice.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;
use toolyard_tool::interceptor::{Call, ErrorToMessage, Interceptor, LargeResult, Next, RateLimit, ResultCache, Retry};
use toolyard_tool::testkit::{self, Called};
use toolyard_tool::{Content, Context, ErrorKind, Output, Table, ToolError, tool};

type Trace = Arc<Mutex<Vec<String>>>;

/// Writes down what it sees.
struct Traced(&'static str, Trace);

impl Interceptor for Traced {
    async fn call(&self, call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
        let Self(name, trace) = self;
        trace.lock().expect("nobody panicked").push(format!("{name} {} {}", call.tool(), call.arguments()));
        let outcome = next.run(call).await;
        trace.lock().expect("nobody panicked").push(format!("{name} {}", outcome.is_ok()));
        outcome
    }
}

/// Answers in the tool's place.
struct Refuses;

impl Interceptor for Refuses {
    async fn call(&self, call: Call<'_>, _: Next<'_>) -> Result<Output, ToolError> {
        Err(ToolError::new(format!("attempt {} is refused", call.context().attempt())))
    }
}

/// Changes what comes in and what goes out.
struct Changes(Value);

impl Interceptor for Changes {
    async fn call(&self, mut call: Call<'_>, next: Next<'_>) -> Result<Output, ToolError> {
        call.arguments_mut()["text"] = self.0.clone();
        Ok(next.run(call).await?.and("and more".into()))
    }
}

/// Gives the text back.
#[tool(read_only)]
async fn echo(text: String) -> String {
    text
}

fn echoes() -> Table {
    Table::new().host(Echo).expect("it can be hosted")
}

async fn echoed(table: &Table) -> Called {
    testkit::call_in(table, "echo", json!({ "text": "hi" })).await
}

#[tokio::test]
async fn the_first_is_the_outermost_and_each_sees_the_call_and_its_outcome() {
    let trace = Trace::default();
    let traced = |name: &'static str| Traced(name, Arc::clone(&trace));
    let table = echoes().intercept(traced("a")).intercept(traced("b")).intercept(traced("c"));
    assert_eq!(echoed(&table).await.answer(), "hi");
    let seen = trace.lock().expect("nobody panicked").clone();
    let call = r#"echo {"text":"hi"}"#;
    let calls = ["a", "b", "c"].map(|name| format!("{name} {call}"));
    assert_eq!(seen, [&calls[..], &["c true", "b true", "a true"].map(str::to_owned)].concat());
}

#[tokio::test]
async fn one_that_answers_itself_keeps_the_call_from_everything_inside() {
    let trace = Trace::default();
    let table = echoes().intercept(Traced("a", Arc::clone(&trace))).intercept(Refuses);
    let table = table.intercept(Traced("c", Arc::clone(&trace)));
    assert_eq!(echoed(&table).await.error(), "attempt 1 is refused");
    assert_eq!(trace.lock().expect("nobody panicked").last().expect("a saw it"), "a false");
    assert_eq!(trace.lock().expect("nobody panicked").len(), 2);
}

#[tokio::test]
async fn changed_arguments_are_checked_again() {
    let changed = echoed(&echoes().intercept(Changes(json!("ho")))).await;
    let text = |text: &str| Content::Text(text.to_owned());
    assert_eq!(changed.result, Ok(vec![text("ho"), text("and more")]));
    let error = echoed(&echoes().intercept(Changes(json!(7)))).await.result.expect_err("7 is no text");
    assert_eq!(error.kind, ErrorKind::ArgumentsInvalid);
    assert_eq!(error.violations[0].path, "/text");
}

#[tokio::test]
async fn one_for_some_tools_leaves_the_others_alone() {
    let table = echoes().host(Flaky(Arc::default())).expect("hosted");
    let table = table.intercept_some(&["flaky"], Refuses).expect("it is hosted");
    assert_eq!(echoed(&table).await.answer(), "hi");
    assert!(testkit::call_in(&table, "flaky", flaky_arguments(0, 0)).await.error().contains("refused"));
    let error = table.intercept_some(&["echo", "ehco"], Refuses).expect_err("no such tool");
    assert!(error.to_string().contains("ehco"), "{error}");
}

// ---- those that come with a worker ----

/// Fails some times, after having said as many pieces.
#[tool(idempotent)]
async fn flaky(tries: Arc<AtomicU32>, context: &Context, failures: u32, says: u32) -> Result<String, ToolError> {
    let number = tries.fetch_add(1, Ordering::Relaxed) + 1;
    for _ in 0..says {
        context.text("piece ").await?;
    }
    if number <= failures {
        return Err(ToolError::retryable("the line was busy"));
    }
    Ok(format!("try {number}"))
}

fn flaky_arguments(failures: u32, says: u32) -> Value {
    json!({ "failures": failures, "says": says })
}

/// Fails as [`flaky`], and is not safe to repeat.
#[tool]
async fn flaky_once(tries: Arc<AtomicU32>) -> Result<(), ToolError> {
    tries.fetch_add(1, Ordering::Relaxed);
    Err(ToolError::retryable("the line was busy"))
}

const PAUSE: Duration = Duration::from_millis(100);

async fn retried(failures: u32, says: u32) -> (Called, u32) {
    let tries = Arc::<AtomicU32>::default();
    let table = Table::new().host(Flaky(Arc::clone(&tries))).expect("hosted").intercept(Retry::new(3, PAUSE, PAUSE));
    let called = testkit::call_in(&table, "flaky", flaky_arguments(failures, says)).await;
    (called, tries.load(Ordering::Relaxed))
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_may_pass_is_tried_again_after_a_pause() {
    let began = Instant::now();
    let (called, _) = retried(2, 0).await;
    assert_eq!(called.answer(), "try 3");
    let pauses = began.elapsed();
    assert!(pauses >= 2 * PAUSE && pauses <= 3 * PAUSE, "{pauses:?}");
}

#[tokio::test(start_paused = true)]
async fn when_all_tries_failed_the_error_is_final_and_no_other_layer_tries_again() {
    let (called, tries) = retried(9, 0).await;
    assert_eq!((called.error(), tries), ("the line was busy (tried 3 times)", 3));
    assert!(!called.result.expect_err("it failed").retryable);
}

#[tokio::test(start_paused = true)]
async fn what_was_said_is_not_said_again_by_another_try() {
    let (called, tries) = retried(1, 2).await;
    assert_eq!((called.text().as_str(), tries), ("piece piece ", 1));
    assert!(called.result.expect_err("it failed").retryable, "the log can withdraw it and try again");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_safe_to_repeat_is_not_tried_again() {
    let tries = Arc::<AtomicU32>::default();
    let table =
        Table::new().host(FlakyOnce(Arc::clone(&tries))).expect("hosted").intercept(Retry::new(3, PAUSE, PAUSE));
    assert!(testkit::call_in(&table, "flaky_once", json!({})).await.result.is_err());
    assert_eq!(tries.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_not_tried_again() {
    let tries = Arc::<AtomicU32>::default();
    let minute = Duration::from_secs(60);
    let table = Table::new().host(Flaky(Arc::clone(&tries))).expect("hosted").intercept(Retry::new(3, minute, minute));
    let call = testkit::start_in(&table, "flaky", flaky_arguments(9, 0));
    call.cancel();
    assert!(call.end().await.result.is_err());
    assert_eq!(tries.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_error_becomes_a_message_once_no_attempt_follows() {
    let table = |attempts_left: bool| {
        let table = Table::new().host(Flaky(Arc::default())).expect("hosted").intercept(ErrorToMessage);
        if attempts_left { table } else { table.intercept(Retry::new(1, PAUSE, PAUSE)) }
    };
    let follows = testkit::call_in(&table(true), "flaky", flaky_arguments(1, 0)).await;
    assert_eq!(follows.error(), "the line was busy");
    let last = testkit::call_in(&table(false), "flaky", flaky_arguments(1, 1)).await;
    assert_eq!((last.text().as_str(), last.error()), ("piece ", "the line was busy"), "the log can try again");
    let last = testkit::call_in(&table(false), "flaky", flaky_arguments(1, 0)).await;
    assert_eq!(last.answer(), "The call failed: the line was busy (tried 1 times)");
}

/// Waits to be stopped.
#[tool]
async fn waits(context: &Context) -> Result<(), ToolError> {
    context.cancelled().await;
    Err(ToolError::new("stopped"))
}

#[tokio::test]
async fn a_call_that_was_stopped_does_not_become_a_message() {
    let table = Table::new().host(Waits).expect("hosted").intercept(ErrorToMessage);
    let call = testkit::start_in(&table, "waits", json!({}));
    call.cancel();
    assert_eq!(call.end().await.error(), "stopped");
}

#[tokio::test(start_paused = true)]
async fn too_many_calls_are_refused_with_the_time_to_wait_or_wait_their_turn() {
    let table = echoes().intercept(RateLimit::new(2, Duration::from_secs(10)));
    for _ in 0..2 {
        assert_eq!(echoed(&table).await.answer(), "hi");
    }
    let error = echoed(&table).await.result.expect_err("it is the third");
    assert_eq!((error.kind, error.retryable), (ErrorKind::RateLimited, true));
    assert_eq!(error.retry_after, Some(Duration::from_secs(5)));
    let (patient, began) =
        (RateLimit::new(2, Duration::from_secs(10)).patience(Duration::from_secs(60)), Instant::now());
    let table = echoes().intercept(patient);
    for _ in 0..4 {
        assert_eq!(echoed(&table).await.answer(), "hi");
    }
    assert_eq!(began.elapsed(), Duration::from_secs(10));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_stopped_before_its_turn_leaves_its_turn_to_the_next() {
    let limit = RateLimit::new(1, Duration::from_secs(10)).patience(Duration::from_secs(15));
    let (table, began) = (echoes().intercept(limit), Instant::now());
    assert_eq!(echoed(&table).await.answer(), "hi");
    let waiting = testkit::start_in(&table, "echo", json!({ "text": "hi" }));
    tokio::time::sleep(Duration::from_secs(1)).await;
    waiting.cancel();
    let error = waiting.end().await.result.expect_err("it was stopped");
    assert!(error.message.contains("before its turn"), "{error:?}");
    // One that does not even get to say so.
    tokio::time::timeout(Duration::from_secs(1), echoed(&table)).await.expect_err("it waits for its turn");
    assert_eq!(echoed(&table).await.answer(), "hi");
    assert_eq!(began.elapsed(), Duration::from_secs(10));
}

/// Counts its executions.
#[tool(read_only)]
async fn looks(times: Arc<AtomicU32>, context: &Context, at: String, says: bool) -> Result<String, ToolError> {
    if says {
        context.text("look: ").await?;
    }
    Ok(format!("{at} {}", times.fetch_add(1, Ordering::Relaxed)))
}

/// Counts its executions, and would be safe to repeat.
#[tool(idempotent)]
async fn sets(times: Arc<AtomicU32>) -> u32 {
    times.fetch_add(1, Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn results_of_reading_are_kept_for_a_while_and_of_nothing_else() {
    let table = Table::new().host(Looks(Arc::default())).and_then(|table| table.host(Sets(Arc::default())));
    let table = table.expect("hosted").intercept(ResultCache::new(Duration::from_secs(60), 1 << 20));
    let look = |at: &'static str, says: bool| testkit::call_in(&table, "looks", json!({ "at": at, "says": says }));
    assert_eq!(look("a", false).await.answer(), "a 0");
    assert_eq!(look("a", false).await.answer(), "a 0");
    assert_eq!(look("b", false).await.answer(), "b 1");
    tokio::time::advance(Duration::from_secs(60)).await;
    assert_eq!(look("a", false).await.answer(), "a 2");
    for times in 3..5 {
        let spoken = look("a", true).await;
        assert_eq!((spoken.text().as_str(), spoken.answer()), ("look: ", format!("a {times}")), "output is not kept");
    }
    for times in 0..2 {
        assert_eq!(testkit::call_in(&table, "sets", json!({})).await.answer(), times.to_string());
    }
}

/// Gives much.
#[tool(read_only)]
async fn much(bytes: usize) -> Vec<Content> {
    let data = Content::Data { media_type: "image/png".to_owned(), data: vec![7; 1000].into() };
    vec![Content::Text("é".repeat(bytes / 2)), data, Content::Json("[1]".to_owned())]
}

#[tokio::test]
async fn a_large_result_is_cut_and_says_so() {
    let table = Table::new().host(Much).expect("hosted").intercept(LargeResult::cut(101));
    let called = testkit::call_in(&table, "much", json!({ "bytes": 300_000 })).await;
    let text = called.answer();
    assert!(text.starts_with(&"é".repeat(50)), "{text}");
    assert!(text.contains("[the result was cut here: 100 of 300000 bytes are shown]"), "{text}");
    assert!(text.contains("[the result was cut here: 0 of 1000 bytes are shown]"), "{text}");
    let small = Table::new().host(Much).expect("hosted").intercept(LargeResult::cut(2000));
    let whole = testkit::call_in(&small, "much", json!({ "bytes": 10 })).await.result.expect("it is done");
    assert_eq!((whole.len(), whole[0].clone()), (3, Content::Text("é".repeat(5))));
}

#[tokio::test]
async fn a_large_result_is_kept_whole_in_a_file_whose_path_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let table = Table::new().host(Much).expect("hosted").intercept(LargeResult::to_folder(10, folder.path()));
    let text = testkit::call_in(&table, "much", json!({ "bytes": 100 })).await.answer();
    let paths: Vec<&str> =
        text.split("the whole of it is in ").skip(1).map(|rest| rest.split(']').next().expect("an end")).collect();
    assert_eq!(paths.len(), 3, "nothing fits any more: {text}");
    assert!(paths.iter().all(|path| path.starts_with(&*folder.path().to_string_lossy())), "{paths:?}");
    assert_eq!(std::fs::read_to_string(paths[0]).expect("it is there"), "é".repeat(50));
    assert_eq!(std::fs::read(paths[1]).expect("it is there"), vec![7; 1000]);
    let nowhere = Table::new().host(Much).expect("hosted").intercept(LargeResult::to_folder(10, "/dev/null/x"));
    let text = testkit::call_in(&nowhere, "much", json!({ "bytes": 100 })).await.answer();
    assert!(text.contains("the rest is lost, it could not be stored"), "{text}");
}
