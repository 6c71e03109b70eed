//! Tools as plain functions: what their arguments, their results and their streams become.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use toolyard_tool::testkit::{self, Called};
use toolyard_tool::{
    Chunk, Citation, CitedText, Content, Context, ErrorKind, Image, Output, Progress, Table, Tool, ToolError, tool,
};

/// Greets a person.
///
/// In their own words.
#[tool(read_only)]
async fn greet(
    context: &Context,
    /// Whom to greet
    name: String,
    /// How loud, from 1 to 3
    #[serde(default)]
    #[schemars(range(min = 0, max = 3))]
    loudness: usize,
    title: Option<String>,
) -> String {
    let title = title.map(|title| format!("{title} ")).unwrap_or_default();
    format!("{}: Hello, {title}{name}{}", context.call_id(), "!".repeat(loudness))
}

async fn called<T: Tool>(tool: T, arguments: Value) -> Called {
    testkit::call(tool, arguments).await
}

fn manifest<T: Tool>(tool: T) -> (String, Value) {
    let table = Table::new().host(tool).expect("it can be hosted");
    let manifest = testkit::manifest(&table, T::NAME).expect("it is there");
    (manifest.description.clone(), serde_json::from_str(&manifest.input_schema).expect("a schema"))
}

#[tokio::test]
async fn arguments_come_by_name_and_the_context_by_its_type() {
    let full = called(Greet, json!({ "name": "Ada", "loudness": 2, "title": "Lady" })).await;
    assert_eq!(full.answer(), "call: Hello, Lady Ada!!");
    assert_eq!(called(Greet, json!({ "name": "Ada" })).await.answer(), "call: Hello, Ada");
}

#[tokio::test]
async fn doc_comments_describe_the_tool_and_its_arguments() {
    let (description, schema) = manifest(Greet);
    assert_eq!(description, "Greets a person.\n\nIn their own words.");
    let properties = schema["properties"].as_object().expect("properties");
    assert_eq!(properties.keys().collect::<Vec<_>>(), ["loudness", "name", "title"], "the context is invisible");
    assert_eq!(schema["properties"]["name"], json!({ "type": "string", "description": "Whom to greet" }));
    assert_eq!(schema["required"], json!(["name"]));
    assert_eq!(schema["properties"]["loudness"]["maximum"], 3);
    assert_eq!(schema.get("title"), None, "a model needs no name of a type");
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused_with_their_place() {
    for (arguments, place) in [
        (json!({ "name": 7 }), "/name"),
        (json!({ "name": "Ada", "loudness": 4 }), "/loudness"),
        (json!({ "name": "Ada", "nmae": "Ada" }), "nmae"),
        (json!({}), "name"),
    ] {
        let error = called(Greet, arguments.clone()).await;
        assert!(error.error().contains(place), "{arguments}: {}", error.error());
    }
}

/// Adds two numbers.
#[tool(name = "sum.of-two", idempotent, description = format!("Adds {} numbers", 2))]
fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[tokio::test]
async fn name_and_description_can_be_given() {
    assert_eq!(Add::NAME, "sum.of-two");
    assert_eq!(manifest(Add).0, "Adds 2 numbers");
    assert_eq!(called(Add, json!({ "a": 2, "b": 40 })).await.answer(), "42");
    assert_eq!(add(1, 1), 2, "the function is still one");
}

#[derive(Debug, Deserialize, JsonSchema)]
struct Point {
    /// To the right
    x: i32,
    y: i32,
}

/// Mirrors a point.
#[tool(read_only)]
async fn mirror(#[input] Point { x, y }: Point, context: Context) -> Vec<i32> {
    assert_eq!(context.attempt(), 1);
    vec![y, x]
}

#[tokio::test]
async fn a_struct_can_hold_all_arguments() {
    assert_eq!(called(Mirror, json!({ "x": 1, "y": 2 })).await.answer(), "[2,1]");
    assert_eq!(manifest(Mirror).1["properties"]["x"]["description"], "To the right");
}

struct Counter(AtomicU32);

/// Counts its calls.
#[tool]
async fn tally(counter: Arc<Counter>, by: u32) -> u32 {
    counter.0.fetch_add(by, Ordering::Relaxed) + by
}

#[tokio::test]
async fn what_calls_share_is_given_to_the_tool_and_no_part_of_the_schema() {
    let tool = Tally(Arc::new(Counter(AtomicU32::new(10))));
    assert_eq!(called(tool.clone(), json!({ "by": 1 })).await.answer(), "11");
    assert_eq!(called(tool.clone(), json!({ "by": 1 })).await.answer(), "12");
    assert_eq!(manifest(tool).1["required"], json!(["by"]));
}

/// Takes nothing and gives nothing.
#[tool]
async fn rest() {}

#[tokio::test]
async fn a_tool_without_arguments_takes_an_empty_object_and_no_output_is_done() {
    for nothing in [json!({}), Value::Null] {
        assert_eq!(called(Rest, nothing).await.answer(), "Done");
    }
    assert!(called(Rest, json!({ "x": 1 })).await.error().contains("do not fit"));
}

// ---- results ----

#[derive(Debug, Serialize)]
struct Weather {
    city: String,
    celsius: f64,
}

/// Gives what is asked for.
#[tool]
async fn forecast(city: String) -> Result<Weather, std::num::ParseFloatError> {
    Ok(Weather { celsius: "21.5".parse()?, city })
}

/// Gives an image.
#[tool]
async fn draw() -> Result<Image, ToolError> {
    Ok(Image::new("image/png", vec![0x89, b'P', b'N', b'G']))
}

/// Gives text.
#[tool]
async fn text() -> &'static str {
    "a \"quoted\" word"
}

/// Gives parts.
#[tool]
async fn parts() -> Vec<Content> {
    vec![Content::Text("one".to_owned()), Content::Json("[2]".to_owned())]
}

/// Gives nothing, or fails.
#[tool]
async fn fallible(fails: bool) -> anyhow::Result<()> {
    anyhow::ensure!(!fails, std::io::Error::other("no paper"));
    Ok(())
}

/// Fails with a text.
#[tool]
async fn refuses() -> Result<(), String> {
    Err("not today".to_owned())
}

/// Gives an output of its own making.
#[tool]
async fn made() -> Output {
    Output::from("two").and(Output::data("image/gif", &b"GIF"[..]))
}

#[tokio::test]
async fn results_become_what_a_model_reads() {
    let text_part = |text: &str| vec![Content::Text(text.to_owned())];
    let json_part = |json: &str| vec![Content::Json(json.to_owned())];
    assert_eq!(called(Text, json!({})).await.result, Ok(text_part("a \"quoted\" word")));
    assert_eq!(called(Fallible, json!({ "fails": false })).await.result, Ok(text_part("Done")));
    let weather = called(Forecast, json!({ "city": "Oslo" })).await.result;
    assert_eq!(weather, Ok(json_part(r#"{"city":"Oslo","celsius":21.5}"#)));
    let drawn = called(Draw, json!({})).await.result;
    assert_eq!(drawn, Ok(json_part(r#"{"data":"iVBORw==","mimeType":"image/png"}"#)));
    let parts = vec![Content::Text("one".to_owned()), Content::Json("[2]".to_owned())];
    assert_eq!(called(Parts, json!({})).await.result, Ok(parts));
    assert_eq!(called(Made, json!({})).await.result.expect("it is done").len(), 2);
}

/// A text with sources.
#[tool(read_only)]
async fn cite(sources: usize, title: String) -> CitedText {
    let citations = (0..sources).map(|_| Citation::url("https://a.example", title.clone()).at(2..5));
    CitedText { text: "a b c".to_owned(), citations: citations.collect() }
}

#[tokio::test]
async fn sources_stand_beside_a_text_and_too_many_or_too_long_ones_fail_the_call() {
    let one = called(Cite, json!({ "sources": 1, "title": "A" })).await;
    assert_eq!(one.answer(), "a b c");
    let Ok([Content::Cited(cited)]) = one.result.as_deref() else { panic!("{one:?}") };
    assert_eq!(cited.citations, [Citation::url("https://a.example", "A").at(2..5)]);
    let output = Output::cited("a b c", cited.citations.clone()).and("d".into());
    assert_ne!(output, Output::from("a b c").and("d".into()));
    for (sources, title, expected) in [(257, "A".to_owned(), "257 citations"), (1, "A".repeat(1025), "1025 bytes")] {
        let failed = called(Cite, json!({ "sources": sources, "title": title })).await;
        let error = failed.result.as_ref().expect_err(expected);
        assert!(error.kind == ErrorKind::ResultTooLarge && error.message.contains(expected), "{error:?}");
    }
}

#[tokio::test]
async fn any_error_becomes_the_calls() {
    assert_eq!(called(Fallible, json!({ "fails": true })).await.error(), "no paper");
    assert_eq!(called(Refuses, json!({})).await.error(), "not today");
}

// ---- the four shapes, with progress and cancellation in each ----

/// Async, by the context.
#[tool(streaming)]
async fn speak(context: &Context, pieces: u32) -> Result<String, ToolError> {
    for piece in 0..pieces {
        context.text(format!("{piece} ")).await?;
        context.progress(f64::from(piece), None, "").await?;
    }
    if pieces == 0 {
        context.cancelled().await;
        return Err(ToolError::new("stopped"));
    }
    Ok(format!("said {pieces}"))
}

/// On a thread of its own.
#[tool(streaming)]
fn speak_blocking(context: &Context, pieces: u32) -> Result<String, ToolError> {
    for piece in 0..pieces {
        context.block_on(context.text(format!("{piece} ")))?;
        context.block_on(context.progress(f64::from(piece), None, ""))?;
    }
    if pieces == 0 {
        while !context.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        return Err(ToolError::new("stopped"));
    }
    Ok(format!("said {pieces}"))
}

/// As a stream.
#[tool]
fn speak_stream(pieces: u32) -> impl Stream<Item = Chunk> {
    let said = (0..pieces).flat_map(|piece| {
        let text = Chunk::Content { channel: String::new(), content: Content::Text(format!("{piece} ")) };
        [text, Chunk::Progress(Progress { done: f64::from(piece), total: None, message: String::new() })]
    });
    let rest = if pieces == 0 { stream::pending().left_stream() } else { stream::empty().right_stream() };
    stream::iter(said).chain(rest)
}

/// As a stream that is made when the arguments were looked at, and borrows the context.
#[tool]
async fn speak_fallible(
    context: &Context,
    pieces: i32,
) -> Result<impl Stream<Item = Result<String, ToolError>>, String> {
    let pieces = u32::try_from(pieces).map_err(|_| format!("{pieces} pieces cannot be said"))?;
    Ok(stream::iter(0..pieces).map(move |piece| match piece {
        3 => Err(ToolError::new("lost the thread")),
        piece => Ok(format!("{piece} of {} ", context.tool())),
    }))
}

/// What was said, how much progress there was, and how it ended.
async fn spoken<T: Tool>(tool: T, pieces: u32) -> (String, usize, String) {
    let called = called(tool, json!({ "pieces": pieces })).await;
    let progress = called.output.iter().filter(|chunk| matches!(chunk, Chunk::Progress(_))).count();
    (called.text(), progress, called.answer())
}

async fn cancelled<T: Tool>(tool: T) -> String {
    let call = testkit::start(tool, json!({ "pieces": 0 }));
    call.cancel();
    call.end().await.error().to_owned()
}

#[tokio::test]
async fn output_and_progress_come_in_order_from_every_shape() {
    let said = |result: &str| ("0 1 2 ".to_owned(), 3, result.to_owned());
    assert_eq!(spoken(Speak, 3).await, said("said 3"));
    assert_eq!(spoken(SpeakBlocking, 3).await, said("said 3"));
    assert_eq!(spoken(SpeakStream, 3).await, said("Done"));
}

#[tokio::test]
async fn a_cancelled_call_stops_in_every_shape() {
    assert_eq!(cancelled(Speak).await, "stopped");
    assert_eq!(cancelled(SpeakBlocking).await, "stopped");
    assert_eq!(cancelled(SpeakStream).await, "the call was stopped");
}

#[tokio::test]
async fn an_error_in_a_stream_ends_the_call_after_what_was_said() {
    let two = called(SpeakFallible, json!({ "pieces": 2 })).await;
    assert_eq!((two.text(), two.answer()), ("0 of speak_fallible 1 of speak_fallible ".to_owned(), "Done".to_owned()));
    let broken = called(SpeakFallible, json!({ "pieces": 5 })).await;
    assert_eq!(broken.error(), "lost the thread");
    assert!(broken.text().ends_with("2 of speak_fallible "), "{}", broken.text());
    let refused = called(SpeakFallible, json!({ "pieces": -1 })).await;
    assert_eq!((refused.error(), refused.output.len()), ("-1 pieces cannot be said", 0));
}

#[tokio::test]
async fn a_function_that_gives_a_stream_is_a_streaming_tool_and_others_are_as_they_say() {
    let streaming = |table: Table, name: &str| testkit::manifest(&table, name).expect("it is there").streaming;
    let table = || Table::new().host(SpeakStream).and_then(|table| table.host(SpeakFallible)).expect("hosted");
    assert!(streaming(table(), "speak_stream") && streaming(table(), "speak_fallible"));
    assert!(!streaming(Table::new().host(Rest).expect("hosted"), "rest"));
}

/// Blocks its thread.
#[tool]
fn block(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

#[tokio::test]
async fn tools_that_block_do_not_hold_each_other_up() {
    let began = std::time::Instant::now();
    let calls: Vec<_> = (0..8).map(|_| testkit::start(Block, json!({ "ms": 300 }))).collect();
    for call in calls {
        assert_eq!(call.end().await.answer(), "Done");
    }
    assert!(began.elapsed() < Duration::from_millis(8 * 300), "one after another: {:?}", began.elapsed());
}
