//! Hooks: programs that decide about calls, before they are accepted and after they ran.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use harness::{Fixture, Run, Yard, call, reason};
use proto::v1::run_event::Event;
use proto::v1::{self, CallErrorKind, CallState, Confirmation, FloorPolicy, RunStatus};
use serde_json::json;
use tempfile::TempDir;

use crate::{FIXTURE, check, count};

/// A file of hooks, and the folder that it lies in.
pub(crate) struct File {
    folder: TempDir,
    text: String,
}

impl File {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), text: String::new() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// With a hook that runs a shell script.
    pub(crate) fn hook(mut self, name: &str, on: &str, tools: &str, script: &str) -> Self {
        let command = json!(["sh", "-c", script]);
        writeln!(self.text, "[[hook]]\nname = \"{name}\"\non = [\"{on}\"]\ntools = [\"{tools}\"]\ncommand = {command}")
            .expect("a text takes it");
        self
    }

    pub(crate) fn line(mut self, line: &str) -> Self {
        writeln!(self.text, "{line}").expect("a text takes it");
        self
    }

    /// Coordinators and workers that ask these hooks.
    pub(crate) async fn yard(&self) -> Yard {
        Yard::start_with(self.fixture()).await
    }

    pub(crate) fn fixture(&self) -> Fixture {
        let path = self.path("hooks.toml");
        std::fs::write(&path, &self.text).expect("it can be written");
        Fixture::new(FIXTURE).with("TOOLYARD_HOOKS", path.display())
    }
}

fn echo(id: &str, text: &str) -> v1::NewCall {
    call(id, "echo", json!({ "text": text }))
}

fn writes(id: &str, path: &Path) -> v1::NewCall {
    call(id, "writes", json!({ "path": path, "line": id, "then_wait_ms": 0 }))
}

/// A script that puts one text in the place of another in the arguments.
fn replacing(this: &str, by: &str) -> String {
    format!(r#"sed 's/{this}/{by}/; s/.*"arguments":\(.*\)}}$/{{"decision":"modify","arguments":\1}}/'"#)
}

pub(crate) fn error(outcome: &v1::CallOutcome) -> (CallErrorKind, String) {
    let error = outcome.error.clone().unwrap_or_else(|| panic!("it has no error: {outcome:?}"));
    (error.kind(), error.message)
}

#[tokio::test]
async fn a_denied_call_is_not_executed_and_the_others_go_on() {
    let deny = r#"cat >/dev/null; echo '{"decision":"deny","reason":"nothing is written here"}'"#;
    let file = File::new().hook("read-only", "pre_tool_use", "wri*", deny);
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let path = file.path("written");
    let stream = yard.client.execute(vec![writes("a", &path), echo("b", "hello")]).await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    let expected = (CallErrorKind::Denied, "the call was denied: nothing is written here".to_owned());
    assert_eq!(error(&outcomes["a"]), expected);
    assert_eq!(check::text(&outcomes["b"]), "hello");
    assert!(!path.exists());
    let started = |event: &v1::RunEvent| matches!(&event.event, Some(Event::AttemptStarted(it)) if it.call_id == "a");
    assert!(!events.iter().any(started));
}

#[tokio::test]
async fn a_program_does_not_see_who_we_are() {
    let seen = r#"cat >/dev/null; seen=$(env | grep -c -e '^AWS_' -e '^OTEL_' -e '^TOOLYARD_')"#;
    let tell = r#"printf '{"decision":"deny","reason":"%s and %s"}' "$seen" "$A_HOOKS_OWN""#;
    let file = File::new().hook("looks", "pre_tool_use", "*", &format!("{seen}; {tell}"));
    let path = file.path("hooks.toml");
    std::fs::write(&path, &file.text).expect("it can be written");
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_HOOKS", path.display()).with("A_HOOKS_OWN", "its own");
    let yard = Yard::start_with(fixture.with("AWS_SECRET_ACCESS_KEY", "ours")).await;
    let _worker = yard.worker().await;
    let events = yard.client.execute(vec![echo("a", "hello")]).await.to_end().await;
    let expected = (CallErrorKind::Denied, "the call was denied: 0 and its own".to_owned());
    assert_eq!(error(&check::outcomes(&events)["a"]), expected);
}

#[tokio::test]
async fn the_arguments_that_hooks_made_are_what_is_stored_and_run() {
    let file = File::new().hook("first", "pre_tool_use", "echo", &replacing("one", "two")).hook(
        "second",
        "pre_tool_use",
        "echo",
        &replacing("two", "three"),
    );
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![echo("a", "one"), echo("b", "four")]).await;
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    let outcomes = check::outcomes(&events);
    assert_eq!((check::text(&outcomes["a"]), check::text(&outcomes["b"])), ("three".to_owned(), "four".to_owned()));
    assert_eq!(run.get().await.calls[0].arguments, r#"{"text":"three"}"#);
}

#[tokio::test]
async fn hooks_that_break_arguments_hang_or_answer_garbage_refuse_their_calls_and_no_other() {
    let file = File::new()
        .hook("breaks", "pre_tool_use", "echo", r#"echo '{"decision":"modify","arguments":{"text":7}}'"#)
        .hook("garbles", "pre_tool_use", "sleep", "echo 'well, yes'")
        .hook("crashes", "pre_tool_use", "fails", "kill -9 $$")
        .hook("hangs", "pre_tool_use", "count", "sleep 600")
        .line("timeout_ms = 500");
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let path = file.path("written");
    let sleep = call("sleep", "sleep", json!({ "ms": 1, "text": "slept" }));
    let fails = call("fails", "fails", json!({ "attempts": 0 }));
    let calls = vec![echo("echo", "hi"), sleep, fails, count("count", 1, 0), writes("well", &path)];
    let began = Instant::now();
    let events = yard.client.execute(calls).await.to_end().await;
    assert!(began.elapsed() < Duration::from_secs(30), "nobody waits for the one that hangs");
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes["well"].state(), CallState::Completed);
    let (kind, message) = error(&outcomes["echo"]);
    assert_eq!(kind, CallErrorKind::ArgumentsInvalid);
    assert!(message.starts_with("a hook changed the arguments: ") && message.contains("/text"), "{message}");
    let table = [
        ("sleep", "hook garbles failed: its answer is not one"),
        ("fails", "hook crashes failed: its program ended with signal: 9"),
        ("count", "hook hangs failed: it did not answer within 500ms"),
    ];
    for (id, why) in table {
        let (kind, message) = error(&outcomes[id]);
        assert_eq!(kind, CallErrorKind::HookFailed, "{message}");
        assert!(message.starts_with("the call was not executed: ") && message.contains(why), "{message}");
    }
}

#[tokio::test]
async fn what_a_hook_redacts_is_nowhere() {
    let redact = r#"sed 's/.*"result":\(.*\)/{"decision":"modify_result","result":\1/; s/s3cret-[0-9]/…/g; s/counted to/made it to/'"#;
    let withhold = r#"cat >/dev/null; echo '{"decision":"deny","reason":"it failed"}'"#;
    let file = File::new().hook("redacts", "post_tool_use", "count", redact).line("output = true").hook(
        "withholds",
        "tool_error",
        "fails",
        withhold,
    );
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let fails = call("fails", "fails", json!({ "attempts": 9 }));
    let count = call("count", "count", json!({ "label": "s3cret", "pieces": 2, "every_ms": 0 }));
    let run = yard.client.create(vec![count, fails]).await;
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::text(&check::outcomes(&events)["count"]), "made it to 2");
    assert_eq!(check::said(&events)["count"], "… … ");
    assert_eq!(error(&check::outcomes(&events)["fails"]), (CallErrorKind::ToolFailed, "it failed".to_owned()));
    let told = format!("{events:?} {:?}", run.get().await);
    let log = String::from_utf8_lossy(&everything_stored(&yard).await).into_owned();
    assert!(log.contains("made it to 2"), "the log was read");
    for secret in ["s3cret-", "counted to", "not yet"] {
        assert!(!told.contains(secret) && !log.contains(secret), "{secret} was told");
    }
}

#[tokio::test]
async fn a_hook_that_fails_after_an_execution_withholds_what_it_gave_and_says_no_other_calls_business() {
    let long = |before: &str, after: &str| {
        format!("cat >/dev/null; printf '%s' '{before}'; head -c 300000 /dev/zero | tr '\\0' x; printf '%s' '{after}'")
    };
    let file = File::new()
        .hook("hangs", "post_tool_use", "count", "sleep 600")
        .line("timeout_ms = 500")
        .hook("crashes", "post_tool_use", "speech", "kill -9 $$")
        .hook("garbles", "post_tool_use", "remembers", "echo 'well, yes'")
        .hook("misplaces", "post_tool_use", "shows", r#"echo '{"decision":"modify","arguments":{}}'"#)
        .hook(
            "swells",
            "post_tool_use",
            "makes",
            &long(r#"{"decision":"modify_result","result":[{"text":""#, r#""}]}"#),
        )
        .hook("labels", "post_tool_use", "annotates", &{
            let before = r#"{"decision":"modify_result","result":[{"data":"","media_type":""#;
            long(before, r#""}]}"#).replace("300000", "2000000")
        })
        .hook("bloats", "pre_tool_use", "sleep", &long(r#"{"decision":"modify","arguments":{"text":""#, r#""}}"#));
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let speech = json!({ "label": "s", "pieces": 1, "every_ms": 0 });
    let calls = vec![
        count("hangs", 1, 0),
        call("crashes", "speech", speech),
        call("garbles", "remembers", json!({ "state": { "key": 1 }, "after_ms": 0 })),
        call("misplaces", "shows", json!({ "text": "shown" })),
        call("swells", "makes", json!({ "bytes": 1 })),
        call("labels", "annotates", json!({ "note": "short" })),
        call("bloats", "sleep", json!({ "ms": 0, "text": "slept" })),
        echo("well", "heard"),
    ];
    let run = yard.client.create(calls).await;
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(check::text(&outcomes["well"]), "heard");
    let table = [
        ("hangs", CallErrorKind::HookFailed, "hook hangs failed: it did not answer within 500ms"),
        ("crashes", CallErrorKind::HookFailed, "hook crashes failed: its program ended with signal: 9"),
        ("garbles", CallErrorKind::HookFailed, "hook garbles failed: its answer is not one"),
        ("misplaces", CallErrorKind::HookFailed, "modify, which cannot be done now"),
        ("swells", CallErrorKind::ResultTooLarge, "the result is 300000 bytes"),
        ("labels", CallErrorKind::ResultTooLarge, "is 2000000 bytes, at most 1024 are kept"),
        ("bloats", CallErrorKind::HookFailed, "a hook changed the arguments to 300011 bytes"),
    ];
    for (id, expected, why) in table {
        let (kind, message) = error(&outcomes[id]);
        assert!(kind == expected && message.contains(why), "{id}: {kind:?} {message}");
        assert!(outcomes[id].result.is_empty() && outcomes[id].extra_state.is_empty(), "{id}");
    }
    assert_eq!(run.get().await.extra_state, "", "what a call gave beside a result that is withheld is, too");
    let log = String::from_utf8_lossy(&everything_stored(&yard).await).into_owned();
    assert!(log.contains("heard"), "the log was read");
    for withheld in ["counted to", "went from", "Remembered", "that is all"] {
        assert!(!log.contains(withheld), "{withheld} was told");
    }
}

/// The bytes of all that any stream of the broker holds.
pub(crate) async fn everything_stored(yard: &Yard) -> Vec<u8> {
    let client = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let context = async_nats::jetstream::new(client);
    let mut bytes = Vec::new();
    let mut names = context.stream_names();
    while let Some(name) = names.next().await {
        let stream = context.get_stream(name.expect("a name")).await.expect("the stream is there");
        for sequence in 1..=stream.cached_info().state.last_sequence {
            if let Ok(message) = stream.get_raw_message(sequence).await {
                bytes.extend_from_slice(&message.payload);
            }
        }
    }
    bytes
}

#[tokio::test]
async fn hooks_are_told_of_calls_that_are_not_executed() {
    let folder = tempfile::tempdir().expect("a folder");
    let told = folder.path().join("told");
    let note = format!(r#"(cat; echo) >> {}; echo '{{"decision":"allow"}}'"#, told.display());
    let file = File::new().hook("notes", "tool_skip", "*", &note);
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let run =
        yard.client.create(vec![call("a", "nowhere", json!({})), call("b", "confirms", json!({ "text": "x" }))]).await;
    let rejection = v1::CallRejection { reason: "no".to_owned() };
    let decision = v1::call_decision::Decision::Reject(rejection);
    let decisions = vec![v1::CallDecision { call_id: "b".to_owned(), decision: Some(decision) }];
    let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
    yard.client.runs.clone().decide_calls(request).await.expect("it awaits approval");
    let both = async {
        loop {
            let text = std::fs::read_to_string(&told).unwrap_or_default();
            if text.lines().count() == 2 {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let text = tokio::time::timeout(harness::PATIENCE, both).await.expect("the hook is told of both");
    assert!(text.contains(r#""kind":"UNKNOWN_TOOL""#) && text.contains(r#""kind":"REJECTED""#), "{text}");
}

async fn awaits_approval(yard: &Yard, confirmation: Confirmation) -> bool {
    let rules = Some(v1::RunRules { confirmation: confirmation.into(), ..v1::RunRules::default() });
    let calls = vec![call("a", "described", json!({}))];
    let request = v1::CreateRunRequest { calls, rules, ..v1::CreateRunRequest::default() };
    let run = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    run.run.expect("the response has the run").calls[0].state() == CallState::AwaitingApproval
}

#[tokio::test]
async fn calls_of_dangerous_tools_await_approval_unless_their_run_or_their_deployment_wants_otherwise() {
    let table = [
        ("", [true, true, false]),
        ("[confirm]\ndangerous = \"always\"", [true, true, true]),
        ("[confirm]\ndangerous = \"never\"", [false, true, false]),
        ("[confirm]\nexcept = [\"desc*\"]", [false, false, false]),
    ];
    for (line, expected) in table {
        let file = File::new().line(line);
        let yard = file.yard().await;
        let worker = yard.fixture.with("TOOLYARD_FIXTURE_TOOLS", "external");
        let _worker = worker.worker(&yard.broker.url(), "main", 1).await;
        yard.client.wait_for_tool("described").await;
        let wishes = [Confirmation::Unspecified, Confirmation::Ask, Confirmation::None];
        for (wish, expected) in wishes.into_iter().zip(expected) {
            assert_eq!(awaits_approval(&yard, wish).await, expected, "{line:?} and {wish:?}");
        }
    }
}

#[tokio::test]
async fn arguments_that_a_person_changes_are_asked_about_too() {
    let deny =
        r#"grep -q '"text":"bad"' && echo '{"decision":"deny","reason":"that is bad"}' || echo '{"decision":"allow"}'"#;
    let file = File::new().hook("no-bad", "pre_tool_use", "confirms", deny);
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![call("a", "confirms", json!({ "text": "good" }))]).await;
    let refusal = approve_with(&run, &json!({ "text": "bad" })).await.expect_err("the hook denies it");
    assert_eq!(reason(&refusal), "DENIED_BY_HOOK", "{refusal}");
    assert!(refusal.message().contains("that is bad"), "{refusal}");
    assert_eq!(run.get().await.status(), RunStatus::RequiresAction, "nothing was decided");
    approve_with(&run, &json!({ "text": "better" })).await.expect("the hook allows it");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["a"]), "better");
}

async fn approve_with(run: &Run, arguments: &serde_json::Value) -> Result<(), tonic::Status> {
    let approval = v1::CallApproval { arguments: Some(arguments.to_string()) };
    let decision = v1::call_decision::Decision::Approve(approval);
    let decisions = vec![v1::CallDecision { call_id: "a".to_owned(), decision: Some(decision) }];
    let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
    run.client.runs.clone().decide_calls(request).await.map(|_| ())
}

/// A resolver and three hooks that note in the file `trace` when they are called. `b` answers calls of `notes` itself.
fn around() -> File {
    let file = File::new();
    let trace = file.path("trace");
    let note = |name: &str, answer: &str| {
        let event = r#"asked=$(cat); event=$(printf %s "$asked" | sed 's/.*"event":"\([a-z_]*\)".*/\1/')"#;
        let answers = r#"case "$asked" in *'"tool":"notes"'*) decision=$answer;; *) decision='"allow"';; esac"#;
        let tell = r#"echo "{\"decision\":$decision}""#;
        format!("{event}; echo {name} $event >> {}; answer='{answer}'; {answers}; {tell}", trace.display())
    };
    let says =
        format!("echo r resolve_tool >> {}; {}", trace.display(), r#"echo '{"decision":"alias","tool":"echo"}'"#);
    let resolver = json!(["sh", "-c", format!("cat >/dev/null; {says}")]);
    let mut file = file.line("[[resolver]]\nname = \"r\"\ntools = [\"say\"]").line(&format!("command = {resolver}"));
    for (name, answer) in [
        ("a", r#""allow""#),
        ("b", r#""answer","result":[{"text":"kept"}]"#),
        ("c", r#""deny","reason":"c is never asked""#),
    ] {
        let command = json!(["sh", "-c", note(name, answer)]);
        file = file
            .line(&format!("[[hook]]\nname = \"{name}\"\non = [\"pre_tool_use\", \"post_tool_use\"]"))
            .line(&format!("command = {command}"));
    }
    file
}

#[tokio::test]
async fn resolvers_and_hooks_stand_around_a_call_and_the_first_of_the_file_is_the_outermost() {
    let file = around();
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let events = yard.client.execute(vec![call("it", "say", json!({ "text": "hello" }))]).await.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["it"]), "hello, say", "the tool is told its name");
    let expected = "r resolve_tool\na pre_tool_use\nb pre_tool_use\nc pre_tool_use\n\
        c post_tool_use\nb post_tool_use\na post_tool_use\n";
    assert_eq!(std::fs::read_to_string(file.path("trace")).expect("they noted"), expected);
}

#[tokio::test]
async fn a_call_that_a_hook_answers_is_not_executed_and_only_the_hooks_outside_it_see_the_result() {
    let file = around();
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let path = file.path("written");
    let mut noted = writes("it", &path);
    noted.tool = "notes".to_owned();
    let request =
        v1::CreateRunRequest { calls: vec![noted.clone()], keep_open: true, ..v1::CreateRunRequest::default() };
    let mut stream = yard.client.execute_request(request).await.expect("accepted");
    stream.until(|event| matches!(event, Event::CallEnded(_))).await;
    let run = stream.run(&yard.client);
    let expected = "a pre_tool_use\nb pre_tool_use\na post_tool_use\n";
    assert_eq!(std::fs::read_to_string(file.path("trace")).expect("they noted"), expected);
    // An added call is answered too.
    let added = v1::NewCall { call_id: "added".to_owned(), ..noted };
    let append = v1::AppendCallsRequest { run_id: run.id.clone(), calls: vec![added], ..Default::default() };
    yard.client.runs.clone().append_calls(append).await.expect("it is open");
    let close = v1::CloseRunRequest { run_id: run.id.clone() };
    yard.client.runs.clone().close_run(close).await.expect("it is open");
    let events = stream.to_end().await;
    check::whole(&events, true);
    let calls = run.get().await.calls;
    for (call, id) in calls.iter().zip(["it", "added"]) {
        assert_eq!((call.call_id.as_str(), call.state(), call.attempts), (id, CallState::Completed, 0));
        assert_eq!((call.answered_by_hook.as_str(), call.pool.as_str()), ("b", ""));
        assert_eq!(check::text(&check::outcomes(&events)[id]), "kept");
        let request = v1::ExplainCallRequest { run_id: run.id.clone(), call_id: id.to_owned() };
        let why = yard.client.runs.clone().explain_call(request).await.expect("it is there").into_inner().why;
        assert!(why.starts_with("completed ") && why.ends_with(", without an attempt: hook b answered it"), "{why}");
    }
    assert!(!path.exists());
}

#[tokio::test]
async fn answers_of_hooks_that_are_too_large_together_fail_their_calls_and_no_other() {
    let large = r#"cat >/dev/null; text=$(head -c 200000 /dev/zero | tr '\0' x)"#;
    let answer = r#"echo "{\"decision\":\"answer\",\"result\":[{\"text\":\"$text\"}]}""#;
    let file = File::new().hook("cache", "pre_tool_use", "notes", &format!("{large}; {answer}"));
    let yard = file.yard().await;
    let _worker = yard.worker().await;
    let notes = |id: &str| v1::NewCall { tool: "notes".to_owned(), ..writes(id, &file.path("written")) };
    let calls = vec![notes("a"), notes("b"), notes("c"), notes("d"), notes("e"), echo("f", "hello")];
    let events = yard.client.execute(calls).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    for id in ["a", "b", "c"] {
        assert_eq!(outcomes[id].state(), CallState::Completed, "{id}");
    }
    for id in ["d", "e"] {
        let (kind, message) = error(&outcomes[id]);
        assert_eq!(kind, CallErrorKind::HookFailed, "{id}");
        assert!(message.contains("for which the request has no room left"), "{message}");
    }
    assert_eq!(check::text(&outcomes["f"]), "hello");
}
