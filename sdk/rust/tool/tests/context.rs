//! What a tool is given beside its arguments, and what it gives beside its result, without a broker.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::FutureExt as _;
use serde::Deserialize;
use serde_json::{Value, json};
use toolyard_tool::interceptor::{LargeResult, ResultCache};
use toolyard_tool::runtime::Fields;
use toolyard_tool::{
    Context, ErrorKind, Output, PastCall, PastOutcome, Role, Roles, TOOL_CALL_CONVERSATION, TOOL_CALL_HISTORY, Table,
    ToolError, testkit, tool,
};

#[derive(Debug, Deserialize)]
struct User {
    name: String,
    id: u64,
}

/// Greets the user.
#[tool(read_only, context_key = "salutation")]
async fn greet(
    context: &Context,
    #[context] user: User,
    #[context] r#type: Option<String>,
    /// How often
    times: u32,
) -> Result<Output, ToolError> {
    let salutation: Option<String> = context.given("salutation")?;
    let hello = format!("{} {}", salutation.unwrap_or_else(|| "Hello".to_owned()), r#type.unwrap_or_default());
    Output::from(format!("{} {}! ", hello.trim_end(), user.name).repeat(times as usize)).with_state("greeted", &user.id)
}

/// Counts what the run did.
#[tool(read_only, context_key = TOOL_CALL_HISTORY)]
fn look_back(context: &Context) -> Result<usize, ToolError> {
    let failed = |past: &PastCall| matches!(past.outcome, PastOutcome::Failed { .. });
    Ok(context.history()?.iter().filter(|past| failed(past)).count())
}

/// Fills the room for output, waits for room once, and counts what it sends then without waiting.
#[tool(read_only, streaming)]
async fn pour(context: &Context) -> usize {
    let sent = || tokio::task::unconstrained(context.text("x")).now_or_never().is_some();
    while sent() {}
    context.room().await;
    std::iter::repeat_with(sent).take_while(|was_sent| *was_sent).count()
}

fn table() -> Table {
    Table::new().host(Greet).and_then(|table| table.host(LookBack)).expect("they can be hosted")
}

async fn greeted(table: &Table, context: Value) -> testkit::Called {
    testkit::call_given(table, "greet", json!({ "times": 1 }), context).await
}

#[tokio::test]
async fn what_is_declared_is_given_and_no_part_of_the_schema() {
    let table = table();
    let manifest = testkit::manifest(&table, "greet").expect("it is there");
    assert_eq!(manifest.context_keys, ["salutation", "user", "type"]);
    let schema: Value = serde_json::from_str(&manifest.input_schema).expect("it is JSON");
    assert_eq!(schema["properties"].as_object().expect("an object").keys().collect::<Vec<_>>(), ["times"]);

    let called = greeted(&table, json!({ "user": { "name": "Ada", "id": 7 }, "type": "dear", "other": 1 })).await;
    assert_eq!(called.answer(), "Hello dear Ada! ");
    assert_eq!((called.state("greeted"), called.state("other")), (Some(json!(7)), None));
}

#[tokio::test]
async fn a_call_has_context_and_files_at_once_and_all_its_state_is_seen() {
    /// Reads the file that the user names.
    #[tool(read_only)]
    async fn read(context: &Context, #[context] user: String) -> Result<Output, ToolError> {
        let bytes = context.read_all(context.file("notes")?, 100).await?;
        Output::from(format!("{user}: {}", String::from_utf8_lossy(&bytes))).with_state("bytes", &bytes.len())
    }
    let table = Table::new().host(Read).expect("it can be hosted");
    let mut context = Fields::default();
    context.set("user", "\"Ada\"");
    context.set("other", "1");
    let files = vec![("notes".to_owned(), "some text".into())];
    let beside = testkit::Beside { context, files, ..testkit::Beside::default() };
    let called = testkit::start_with(&table, "read", json!({}), beside).end().await;
    assert_eq!(called.answer(), "Ada: some text");
    assert_eq!(called.states().collect::<Vec<_>>(), [("bytes", "9")]);
}

#[tokio::test]
async fn what_is_missing_or_something_else_is_told_without_being_repeated() {
    let table = table();
    for context in
        [json!({}), json!({ "user": null }), json!({ "user": "s3cret" }), json!({ "user": { "name": "s3cret" } })]
    {
        let called = greeted(&table, context.clone()).await;
        let error = called.result.as_ref().expect_err("it failed");
        assert_eq!(error.kind, ErrorKind::NeedsInput);
        assert!(
            error.message.contains("\"user\"") && !error.message.contains("s3cret"),
            "{context}: {}",
            error.message
        );
        assert_eq!(called.state("greeted"), None);
    }
}

#[tokio::test]
async fn a_history_is_read_where_it_was_asked_for() {
    let table = table();
    let past = |state: &str| {
        let outcome = json!({ "state": state, "kind": "TOOL_FAILED", "message": "no", "result": [] });
        json!({ "call_id": "a", "tool": "grep", "arguments": {}, "outcome": outcome })
    };
    let context = json!({ TOOL_CALL_HISTORY: [past("failed"), past("completed"), past("failed")] });
    assert_eq!(testkit::call_given(&table, "look_back", json!({}), context).await.answer(), "2");
    assert_eq!(testkit::call_in(&table, "look_back", json!({})).await.answer(), "0");
}

#[tokio::test]
async fn interceptors_keep_the_state_and_a_cache_keeps_contexts_apart() {
    static ASKED: AtomicU32 = AtomicU32::new(0);

    /// Tells at length whose call it is.
    #[tool(read_only)]
    async fn whose(#[context] user: String) -> Result<Output, ToolError> {
        ASKED.fetch_add(1, Ordering::Relaxed);
        Output::from(user.repeat(100)).with_state("user", &user)
    }
    let table = Table::new().host(Whose).expect("it can be hosted");
    let table = table.intercept(ResultCache::new(Duration::from_secs(60), 1 << 20)).intercept(LargeResult::cut(3));
    for (turn, user) in ["Ada", "Bob", "Ada", "Bob"].into_iter().enumerate() {
        let context = json!({ "user": user, "what it does not declare": turn });
        let called = testkit::call_given(&table, "whose", json!({}), context).await;
        assert!(called.answer().starts_with(user) && called.answer().contains("was cut here"), "{}", called.answer());
        assert_eq!(called.state("user"), Some(json!(user)));
    }
    assert_eq!(ASKED.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn state_has_a_limit() {
    /// Remembers much.
    #[tool(read_only)]
    async fn hoard(bytes: usize) -> Result<Output, ToolError> {
        Output::from("Kept.").and(Output::from("All.")).with_state("k", &"x".repeat(bytes))
    }
    let fits = testkit::call(Hoard, json!({ "bytes": 8 * 1024 - 3 })).await;
    assert_eq!(fits.answer(), "Kept.All.");
    let large = testkit::call(Hoard, json!({ "bytes": 8 * 1024 - 2 })).await;
    assert_eq!(large.result.expect_err("it failed").kind, ErrorKind::ResultTooLarge);
}

/// Tells for whom it runs.
#[tool(read_only, context_key = "tenant")]
fn who(context: &Context) -> String {
    let (tenant, caller) = (context.tenant().map(ToString::to_string), context.caller().map(ToString::to_string));
    format!("{tenant:?} {caller:?} {}", context.roles().has(Role::Submit))
}

#[tokio::test]
async fn a_tool_knows_its_tenant_and_caller_and_a_context_cannot_pretend_to_be_one() {
    let table = Table::new().host(Who).expect("it can be hosted");
    let table = table.intercept(ResultCache::new(Duration::from_secs(60), 1 << 20));
    let of = |tenant: &str| testkit::Requester {
        tenant: Some(tenant.parse().expect("a tenant")),
        caller: Some("shop/ada".parse().expect("a caller")),
        roles: Roles::from_iter([Role::Submit]),
    };
    for tenant in ["acme", "other", "acme"] {
        let called = testkit::call_for(&table, "who", json!({}), of(tenant)).await;
        assert_eq!(called.answer(), format!("Some({tenant:?}) Some(\"shop/ada\") true"), "a result kept for another");
    }
    let called = testkit::call_given(&table, "who", json!({}), json!({ "tenant": "acme" })).await;
    assert_eq!(called.answer(), "None None false");
}

/// Returns who wrote the messages, and how many calls the last one has.
#[tool(read_only, context_key = TOOL_CALL_CONVERSATION)]
async fn converse(context: &Context) -> Result<String, ToolError> {
    let Some(messages) = context.conversation().await? else { return Ok("nothing".to_owned()) };
    let roles: Vec<String> = messages.iter().map(|message| format!("{:?}", message.role)).collect();
    let calls = messages.last().map_or(0, |message| message.calls.len());
    Ok(format!("{} {calls} {}", roles.join(" "), context.files().len()))
}

#[tokio::test]
async fn a_conversation_is_read_from_the_context_or_from_a_file_that_is_none_of_the_calls() {
    let table = Table::new().host(Converse).expect("it can be hosted");
    let call = json!({ "call_id": "a", "tool": "converse", "arguments": {} });
    let messages = json!([{ "role": "user", "text": "Hi" }, { "role": "assistant", "calls": [call] }]);
    let given = testkit::call_given(&table, "converse", json!({}), json!({ TOOL_CALL_CONVERSATION: messages })).await;
    assert_eq!(given.answer(), "User Assistant 1 0");
    let text = messages.to_string();
    let files: [(&str, &[u8]); 2] = [("f", b"a file"), (TOOL_CALL_CONVERSATION, text.as_bytes())];
    let large = testkit::call_with(&table, "converse", json!({}), &files).await;
    assert_eq!(large.answer(), "User Assistant 1 1");
    assert_eq!(testkit::call_given(&table, "converse", json!({}), json!({})).await.answer(), "nothing");
    let bad = testkit::call_given(&table, "converse", json!({}), json!({ TOOL_CALL_CONVERSATION: ["s3cret"] })).await;
    assert!(!bad.error().contains("s3cret"), "{}", bad.error());
}

#[tokio::test]
async fn a_tool_waits_once_for_the_room_of_many_pieces() {
    let table = Table::new().host(Pour).expect("it can be hosted");
    let sent: usize = testkit::call_in(&table, "pour", json!({})).await.answer().parse().expect("a number");
    assert!(sent >= 128, "{sent} pieces were sent without waiting");
}
