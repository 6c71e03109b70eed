//! What becomes of calls about which hooks are asked.

mod asked;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use asked::{Slow, about, asked, by, completed, failed, read, script, service};
use run::{Chunk, Completion, Content, ErrorKind, Fields};
use toolyard_hooks::{Admitted, CallStage, HookPoint, Hooks, Placement, Reply};

fn before(name: &str) -> Placement {
    Placement::new(name, &[HookPoint::PreToolUse])
}

fn after(name: &str) -> Placement {
    Placement::new(name, &[HookPoint::PostToolUse, HookPoint::ToolError])
}

/// Adds this field to the arguments.
fn adding(field: &'static str) -> impl Fn(&toolyard_hooks::HookRequest) -> Result<Reply, toolyard_hooks::HookError> {
    move |question| {
        let mut arguments: serde_json::Value = serde_json::from_slice(&question.arguments).expect("JSON");
        arguments[field] = true.into();
        Ok(Reply::Modify { arguments: arguments.to_string().into() })
    }
}

#[tokio::test]
async fn hooks_that_modify_arguments_see_what_those_before_them_made() {
    let hooks = Hooks::default().with(before("one"), by(adding("one"))).expect("it stands there");
    let hooks = hooks.with(before("two"), by(adding("two"))).expect("it stands there");
    let arguments = hooks.before(asked("pay")).await.expect("it is allowed").arguments.expect("it is changed");
    let arguments: serde_json::Value = serde_json::from_slice(&arguments).expect("JSON");
    assert_eq!((&arguments["one"], &arguments["two"]), (&true.into(), &true.into()));
}

#[tokio::test]
async fn nobody_is_asked_after_a_hook_denied() {
    let times = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&times);
    let hooks = Hooks::default()
        .with(before("no"), by(|_| Ok(Reply::Deny { reason: "not on Sundays".to_owned() })))
        .and_then(|hooks| {
            hooks.with(
                before("never"),
                by(move |_| {
                    count.fetch_add(1, Ordering::Relaxed);
                    Ok(Reply::Allow)
                }),
            )
        })
        .expect("they stand there");
    let error = hooks.before(asked("pay")).await.expect_err("it is denied");
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Denied, "the call was denied: not on Sundays"));
    assert_eq!(times.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_call_that_a_hook_leaves_to_the_client_may_be_changed_or_denied_by_those_behind_it() {
    let client = || by(|_| Ok(Reply::LeaveToClient));
    let hooks = Hooks::default().with(before("theirs"), client()).expect("it stands there");
    let answered = script(r#"echo '{"decision":"leave_to_client"}'"#, 5000).before(asked("pay")).await;
    let left = Admitted { left_to_client: true, ..Admitted::default() };
    assert_eq!((hooks.before(asked("pay")).await, answered), (Ok(left.clone()), Ok(left)));
    let changed = hooks.clone().with(before("changes"), by(adding("one"))).expect("it stands there");
    let changed = changed.before(asked("pay")).await.expect("it is allowed");
    assert!(changed.left_to_client && changed.arguments.is_some(), "{changed:?}");
    let denies = by(|_| Ok(Reply::Deny { reason: "no".to_owned() }));
    let denied = hooks.with(before("no"), denies).expect("it stands there").before(asked("pay")).await;
    assert_eq!(denied.expect_err("it is denied").kind, ErrorKind::Denied);
    // There is nothing to leave when the call has run.
    let late = Hooks::default().with(after("late"), client()).expect("it stands there");
    for question in [completed("secret"), failed("secret")] {
        let error = late.after(question).await.outcome.expect_err("the hook failed");
        assert!(error.message.contains("leave_to_client, which cannot be done now"), "{error:?}");
        assert!(!error.message.contains("secret"), "{error:?}");
    }
}

/// Three hooks that note when they are called. `b` answers calls of `cached` itself.
fn around(trace: &Arc<Mutex<Vec<String>>>) -> Hooks {
    ["a", "b", "c"].into_iter().fold(Hooks::default(), |hooks, name| {
        let trace = Arc::clone(trace);
        let hook = by(move |question: &toolyard_hooks::HookRequest| {
            trace.lock().expect("no thread panicked").push(format!("{} {name}", question.moment().name()));
            match &question.happened {
                CallStage::Asked if name == "b" && question.tool.as_str() == "cached" => {
                    Ok(Reply::Answer { result: vec![Content::Text("kept".to_owned())] })
                }
                CallStage::Completed { result, .. } => {
                    let mut result = result.clone();
                    result.push(Content::Text(name.to_owned()));
                    Ok(Reply::ModifyResult { result: Some(result), extra_state: None, output: None })
                }
                _ => Ok(Reply::Allow),
            }
        });
        let points = [HookPoint::PreToolUse, HookPoint::PostToolUse, HookPoint::ToolError];
        hooks.with(Placement::new(name, &points), hook).expect("it stands there")
    })
}

#[tokio::test]
async fn the_first_hook_is_the_outermost_and_one_that_answers_keeps_the_call_from_everything_inside() {
    let texts = |texts: &[&str]| -> Vec<Content> { texts.iter().map(|&text| Content::Text(text.to_owned())).collect() };
    let trace = Arc::<Mutex<Vec<String>>>::default();
    let hooks = around(&trace);
    let seen = || std::mem::take(&mut *trace.lock().expect("no thread panicked")).join(", ");
    let admitted = hooks.before(asked("pay")).await.expect("it is allowed");
    assert_eq!((admitted, seen().as_str()), (Admitted::default(), "pre_tool_use a, pre_tool_use b, pre_tool_use c"));
    let ended = hooks.after(completed("done")).await.outcome.expect("a result");
    assert_eq!(ended.result, texts(&["done", "c", "b", "a"]));
    assert_eq!(seen(), "post_tool_use c, post_tool_use b, post_tool_use a");
    hooks.after(failed("why")).await.outcome.expect_err("it stays an error");
    assert_eq!(seen(), "tool_error c, tool_error b, tool_error a");
    let answer = hooks.before(asked("cached")).await.expect("it is allowed").answer.expect("it is answered");
    assert_eq!((answer.hook.as_str(), answer.result), ("b", texts(&["kept", "a"])));
    assert_eq!(seen(), "pre_tool_use a, pre_tool_use b, post_tool_use a");
}

#[tokio::test]
async fn an_answer_of_a_hook_that_one_outside_it_denies_is_withheld() {
    let denies = |question: &toolyard_hooks::HookRequest| match question.happened {
        CallStage::Asked => Ok(Reply::Allow),
        _ => Ok(Reply::Deny { reason: "no".to_owned() }),
    };
    let outside = Placement::new("outside", &[HookPoint::PreToolUse, HookPoint::PostToolUse]);
    let hooks = Hooks::default().with(outside, by(denies)).expect("it stands there");
    let answers = by(|_| Ok(Reply::Answer { result: vec![Content::Text("secret".to_owned())] }));
    let hooks = hooks.with(before("answers"), answers).expect("it stands there");
    let error = hooks.before(asked("pay")).await.expect_err("it is withheld");
    assert_eq!((error.kind, error.message.as_str()), (ErrorKind::Denied, "the answer of a hook was withheld: no"));
}

#[tokio::test]
async fn a_program_answers_a_call_with_a_result_alone() {
    let answers = r#"echo '{"decision":"answer","result":[{"json":{"degrees":1.10}}]}'"#;
    let answer =
        script(answers, 5000).before(asked("pay")).await.expect("it is allowed").answer.expect("it is answered");
    assert_eq!(answer.result, [Content::Json(r#"{"degrees":1.10}"#.to_owned())]);
    for wrong in ["", r#","arguments":{}"#, r#","result":[],"extra_state":{}"#, r#","result":[],"arguments":{}"#] {
        let answers = format!(r#"echo '{{"decision":"answer"{wrong}}}'"#);
        let error = script(&answers, 5000).before(asked("pay")).await.expect_err("it is no answer");
        assert_eq!(error.kind, ErrorKind::HookFailed, "{wrong}");
        assert!(error.message.contains("it decided answer, and gave not a result alone"), "{wrong}: {error:?}");
    }
}

#[tokio::test]
async fn a_hook_is_asked_about_its_tools_alone_by_any_of_their_names() {
    let no = || by(|_| Ok(Reply::Deny { reason: "no".to_owned() }));
    let hooks = Hooks::default().with(before("no").tools(&["bash", "payments.*"]), no()).expect("it stands there");
    for (tool, is_asked) in [("bash", true), ("payments.refund", true), ("payments", false), ("glob", false)] {
        assert_eq!(hooks.before(asked(tool)).await.is_err(), is_asked, "{tool}");
    }
    let alias = toolyard_hooks::HookRequest { alias_of: Some("bash".parse().expect("a name")), ..asked("shell") };
    assert!(hooks.before(alias).await.is_err(), "another name is no way around it");
}

#[tokio::test]
async fn a_hook_that_does_not_answer_as_it_should_denies() {
    let broken = "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    let garbage = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\nconnection: close\r\n\r\noops";
    let url = |url: &str| {
        read(&format!("[[hook]]\nname = \"service\"\non = [\"pre_tool_use\"]\nurl = \"{url}\"")).expect("well formed")
    };
    let in_process = |hook| Hooks::default().with(before("inside"), hook).expect("it stands there");
    let panics: fn(&toolyard_hooks::HookRequest) -> _ = |_| panic!("as it was asked to");
    let misplaced: fn(&toolyard_hooks::HookRequest) -> _ =
        |_| Ok(Reply::ModifyResult { result: None, extra_state: None, output: None });
    let slow = Placement { timeout: Duration::from_millis(50), ..before("slow") };
    let table = [
        (script("exit 3", 5000), "its program ended with exit status: 3"),
        (script("echo nonsense", 5000), "its answer is not one"),
        (script("true", 5000), "its answer is not one"),
        (script(r#"echo '{"decision":"modify"}'"#, 5000), "gave not arguments alone"),
        (script(r#"echo '{"decision":"allow","arguments":{}}'"#, 5000), "with a decision that takes none"),
        (script(r#"echo '{"decision":"allow","why":"because"}'"#, 5000), "its answer is not one"),
        (script("kill -9 $$", 5000), "signal"),
        (script("sleep 60", 100), "it did not answer within 100ms"),
        (script("head -c 6000000 /dev/zero", 5000), "its answer is longer than"),
        (url(&service(broken).await), "its service answered 500"),
        (url(&service(garbage).await), "its answer is not one"),
        (url("http://127.0.0.1:1/hook"), "its service cannot be reached"),
        (in_process(by(panics)), "it panicked"),
        (in_process(by(misplaced)), "modify_result, which cannot be done now"),
        (
            Hooks::default().with(slow, Slow(Duration::from_secs(60))).expect("it stands there"),
            "it did not answer within",
        ),
    ];
    for (hooks, why) in table {
        let error = hooks.before(asked("pay")).await.expect_err(why);
        assert_eq!(error.kind, ErrorKind::HookFailed, "{error:?}");
        assert!(
            error.message.contains(why) && error.message.starts_with("the call was not executed: hook "),
            "{error:?}"
        );
    }
}

#[tokio::test]
async fn what_a_slow_program_started_ends_with_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let (begun, late) = (folder.path().join("begun"), folder.path().join("late"));
    let hooks = script(&format!("(touch {}; sleep 1; touch {}) & sleep 60", begun.display(), late.display()), 500);
    hooks.before(asked("pay")).await.expect_err("it is too slow");
    assert!(begun.exists(), "it started something");
    tokio::time::sleep(Duration::from_millis(1500)).await;
    assert!(!late.exists(), "which ended with it");
}

#[tokio::test]
async fn a_program_reads_all_of_its_question_and_digits_are_kept() {
    let hooks = script(r#"sed 's/.*"arguments":\(.*\)}$/{"decision":"modify","arguments":\1}/'"#, 5000);
    let arguments = hooks.before(asked("pay")).await.expect("it is allowed").arguments.expect("it is changed");
    assert_eq!(arguments, asked("pay").arguments);
    let shows =
        r#"q=$(cat); printf '{"decision":"deny","reason":%s}' "$(printf %s "$q" | sed 's/"/\\"/g; s/^/"/; s/$/"/')""#;
    let error = script(shows, 5000).before(asked("pay")).await.expect_err("it shows its question");
    let question = r#"{"event":"pre_tool_use","run_id":"run_00_01890000000070008000000000000000","call_id":"call","tool":"pay","tenant":"acme","metadata":{"whom":"Ada"},"arguments":{"amount":1.10000000000000000001}}"#;
    assert_eq!(error.message, format!("the call was denied: {question}"));
}

#[tokio::test]
async fn a_service_answers_for_a_program() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 41\r\nconnection: close\r\n\r\n{\"decision\":\"deny\",\"reason\":\"too costly\"}\n";
    let url = service(answer).await;
    let hooks = read(&format!("[[hook]]\nname = \"service\"\non = [\"pre_tool_use\"]\nurl = \"{url}\""));
    let error = hooks.expect("well formed").before(asked("pay")).await.expect_err("it is denied");
    assert_eq!(error.message, "the call was denied: too costly");
}

#[tokio::test]
async fn a_result_is_changed_or_withheld_before_anybody_sees_it() {
    let shortens = by(|question: &toolyard_hooks::HookRequest| {
        let CallStage::Completed { result, .. } = &question.happened else { return Ok(Reply::Allow) };
        let shorter = |part: &Content| match part {
            Content::Text(text) => Content::Text(text.replace("secret", "…")),
            other => other.clone(),
        };
        Ok(Reply::ModifyResult { result: Some(result.iter().map(shorter).collect()), extra_state: None, output: None })
    });
    let hooks = Hooks::default().with(after("shortens"), shortens).expect("it stands there");
    let ended = hooks.after(completed("the secret is out")).await;
    assert_eq!(ended.outcome, Ok(vec![Content::Text("the … is out".to_owned())].into()));

    let no = by(|_| Ok(Reply::Deny { reason: "it names a customer".to_owned() }));
    let hooks = hooks.with(after("no"), no).expect("it stands there");
    let error = hooks.after(completed("Ada")).await.outcome.expect_err("it is withheld");
    assert_eq!(error.kind, ErrorKind::Denied);
    assert_eq!(error.message, "the call ran, and its result was withheld: it names a customer");

    let crashes =
        Hooks::default().with(after("crashes"), by(|_| panic!("as it was asked to"))).expect("it stands there");
    let error = crashes.after(completed("Ada")).await.outcome.expect_err("it is withheld");
    assert_eq!((error.kind, error.message.contains("Ada")), (ErrorKind::HookFailed, false));
}

#[tokio::test]
async fn an_error_says_what_a_hook_lets_it_say_and_is_tried_again_all_the_same() {
    let no = by(|_| Ok(Reply::Deny { reason: "the database is down".to_owned() }));
    let hooks = Hooks::default().with(after("no"), no).expect("it stands there");
    let error = hooks.after(failed("cannot log in as root:swordfish")).await.outcome.expect_err("it failed");
    assert_eq!((error.kind, error.retryable), (ErrorKind::ToolFailed, true));
    assert_eq!(error.message, "the database is down");

    let mends = by(|_| {
        let result = Some(vec![Content::Text("0".to_owned())]);
        Ok(Reply::ModifyResult { result, extra_state: None, output: None })
    });
    let hooks = Hooks::default().with(after("mends"), mends).expect("it stands there");
    assert_eq!(hooks.after(failed("no rows")).await.outcome, Ok(vec![Content::Text("0".to_owned())].into()));

    let crashes =
        Hooks::default().with(after("crashes"), by(|_| panic!("as it was asked to"))).expect("it stands there");
    let error = crashes.after(failed("root:swordfish")).await.outcome.expect_err("it failed");
    assert_eq!(
        (error.kind, error.retryable, error.message.contains("swordfish")),
        (ErrorKind::ToolFailed, true, false)
    );
}

#[tokio::test]
async fn a_hook_sees_what_a_call_said_where_that_is_held_back_for_it() {
    let piece = |text: &str| Chunk::Content { channel: "stdout".to_owned(), content: Content::Text(text.to_owned()) };
    let silences = by(|question: &toolyard_hooks::HookRequest| match &question.happened {
        CallStage::Completed { output: Some(output), .. } if output.len() == 2 => {
            Ok(Reply::ModifyResult { result: None, extra_state: None, output: Some(output[..1].to_vec()) })
        }
        _ => Ok(Reply::Allow),
    });
    let sees_nothing = by(|question: &toolyard_hooks::HookRequest| {
        let sees = matches!(&question.happened, CallStage::Completed { output: Some(_), .. });
        if sees { Ok(Reply::Deny { reason: "it should not".to_owned() }) } else { Ok(Reply::Allow) }
    });
    let hooks = Hooks::default()
        .with(after("sees nothing"), sees_nothing)
        .and_then(|hooks| hooks.with(after("silences").holding_output(), silences))
        .expect("they stand there");
    let output = Some(vec![piece("public"), piece("secret")]);
    let question = about("pay", CallStage::Completed { result: Vec::new(), extra_state: Fields::default(), output });
    let ended = hooks.after(question).await;
    assert_eq!((ended.outcome, ended.output), (Ok(Completion::default()), Some(vec![piece("public")])));
}

#[tokio::test]
async fn a_program_sees_the_state_beside_a_result_and_changes_it() {
    let question = |state: &[(&str, &str)]| {
        let extra_state: Fields = state.iter().map(|(key, json)| ((*key).to_owned(), (*json).to_owned())).collect();
        about("pay", CallStage::Completed { result: Vec::new(), extra_state, output: None })
    };
    let changed = r#"{"decision":"modify_result","extra_state":{"total":1.10}}"#;
    let body = format!(r#"grep -q '"extra_state":{{"card":"4111","total":1.10}}' && echo '{changed}'"#);
    let hooks = read(&format!(
        "[[hook]]\nname = \"hides\"\non = [\"post_tool_use\"]\ncommand = [\"sh\", \"-c\", '''{body} ''']"
    ));
    let hooks = hooks.expect("well formed");
    let ended = hooks.after(question(&[("card", "\"4111\""), ("total", "1.10")])).await;
    let left: Fields = [("total".to_owned(), "1.10".to_owned())].into_iter().collect();
    assert_eq!(ended.outcome, Ok(Completion { result: Vec::new(), extra_state: left }));

    let error = hooks.after(question(&[])).await.outcome.expect_err("it finds nothing and says nothing");
    assert_eq!(error.kind, ErrorKind::HookFailed);
}
