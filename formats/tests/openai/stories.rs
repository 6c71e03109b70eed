//! The exact events of both APIs for single runs.

use bytes::Bytes;
use formats::openai::{assistants, responses};
use run::{AttemptOutcome, CallSpec, Content, ResultUse};
use serde_json::{Value, json};

use crate::story::{
    Story, answered, approved, attempt, client, completed, dispatched, ended_as, expired, failed, failed_for_now, once,
    output, refused, rejected, repeatable, run_cancel_requested, run_id, shared, started, unapproved,
};
use crate::told::tell;

fn tool(name: &str, arguments: &'static str, spec: CallSpec) -> CallSpec {
    CallSpec { tool: name.parse().expect("a name"), arguments: Bytes::from_static(arguments.as_bytes()), ..spec }
}

fn bash(name: &str) -> CallSpec {
    tool("bash", r#"{"command":"ls"}"#, once(name))
}

fn exited(call: u16, number: u32, chunks: u32, code: i64) -> run::Event {
    let result = vec![Content::Json(format!(r#"{{"exit_code":{code}}}"#))];
    ended_as(attempt(call, number), "alpha", chunks, AttemptOutcome::Completed(result.into()))
}

fn events(story: &Story) -> Vec<responses::Event> {
    let mut stream = responses::Stream::new(run_id(), responses::Items::OneByOne);
    tell(&story.log).iter().flat_map(|told| stream.take(&told.event, &told.run)).collect()
}

/// The run's stream in the Assistants API, and its events.
fn thread(story: &Story) -> (assistants::Stream, Vec<assistants::Event>) {
    let mut stream = assistants::Stream::new(run_id(), "thread_1");
    let told = tell(&story.log).iter().flat_map(|told| stream.take(&told.event, &told.run)).collect();
    (stream, told)
}

/// The documented events, each as its name and the position of its item.
fn words(story: &Story) -> Vec<String> {
    let shown = events(story).into_iter().filter(responses::Event::is_documented);
    let word = |event: responses::Event| {
        let name = event.kind.trim_start_matches("response.").to_owned();
        match event.data["output_index"].as_u64() {
            Some(place) => format!("{} {name} {place}", event.part),
            None => format!("{} {name}", event.part),
        }
    };
    shown.map(word).collect()
}

fn last(story: &Story) -> Value {
    let events = events(story);
    let last = events.last().expect("something is said");
    assert!(last.is_last(), "{last:?}");
    last.data["response"].clone()
}

fn types(response: &Value) -> Vec<&str> {
    response["output"].as_array().into_iter().flatten().filter_map(|item| item["type"].as_str()).collect()
}

#[test]
fn a_shell_another_tool_and_a_question_are_told_in_the_events_that_the_sdks_know() {
    let add = tool("add", r#"{"a":1}"#, repeatable("b"));
    let ask = tool("ask_user", r#"{"question":"?"}"#, client("c"));
    let mut story = Story::of([bash("a"), add, ask]);
    story.tell_all([
        dispatched(0),
        started(0, 1),
        output(0, 1, 0..2),
        dispatched(1),
        started(1, 1),
        completed(1, 1, 0),
        exited(0, 1, 2, 3),
    ]);
    let told = [
        "0 created",
        "0 in_progress",
        "0 output_item.added 0",
        "0 function_call_arguments.delta 0",
        "0 function_call_arguments.done 0",
        "0 output_item.done 0",
        "0 output_item.added 1",
        "0 shell_call_command.added 1",
        "0 shell_call_command.delta 1",
        "0 shell_call_command.done 1",
        "0 output_item.done 1",
        "0 output_item.added 2",
        "0 shell_call_output_content.delta 2",
        "0 shell_call_output_content.delta 2",
        "0 shell_call_output_content.done 2",
        "0 output_item.done 2",
        "0 output_item.added 3",
        "0 mcp_call.in_progress 3",
        "0 mcp_call_arguments.delta 3",
        "0 mcp_call_arguments.done 3",
        "0 mcp_call.completed 3",
        "0 output_item.done 3",
        "0 completed",
    ];
    assert_eq!(words(&story), told);
    let response = last(&story);
    assert_eq!(types(&response), ["function_call", "shell_call", "shell_call_output", "mcp_call"]);
    assert_eq!(response["id"], format!("resp_{}", run_id().to_string().trim_start_matches("run_")));
    assert_eq!(response["status"], "completed");
    let output = &response["output"];
    assert_eq!(output[1]["action"]["commands"], json!(["ls"]));
    assert_eq!((&output[3]["output"], &output[3]["server_label"]), (&json!("done"), &json!("alpha")));
    assert_eq!((&output[0]["call_id"], &output[0]["arguments"]), (&json!("c"), &json!(r#"{"question":"?"}"#)));
    let outcome = json!({ "type": "exit", "exit_code": 3 });
    assert_eq!(output[2]["output"], json!([{ "stdout": "0/1/1/00/1/1/1", "stderr": "", "outcome": outcome }]));
    let answers = |id: &str, text: &str| json!({ "type": "function_call_output", "call_id": id, "output": text });
    let input = json!([answers("a", "0/1/1/00/1/1/1\n{\"exit_code\":3}"), answers("b", "done")]);
    assert_eq!(response["toolyard"]["input"], input, "the model is given the calls that have ended");
    story.tell(answered(2, "blue"));
    let all = last(&story)["toolyard"]["input"].as_array().expect("a list").len();
    assert_eq!(all, 3, "the next response has all of them");
}

#[test]
fn a_request_to_the_client_waits_until_no_item_is_open() {
    let mut story = Story::of([bash("a"), unapproved("b", std::time::Duration::from_secs(60))]);
    story.tell_all([dispatched(0), started(0, 1), output(0, 1, 0..1), exited(0, 1, 1, 0)]);
    assert_eq!(types(&last(&story)), ["mcp_approval_request", "shell_call", "shell_call_output"]);
    let mut story = Story::of([bash("a"), tool("add", "{}", repeatable("b"))]);
    story.tell_all([
        dispatched(0),
        started(0, 1),
        output(0, 1, 0..1),
        dispatched(1),
        started(1, 1),
        completed(1, 1, 0),
        exited(0, 1, 1, 0),
    ]);
    assert_eq!(types(&last(&story)), ["shell_call", "shell_call_output", "mcp_call"], "not while the shell speaks");
}

#[test]
fn a_shell_that_is_cancelled_before_it_began_is_not_complete_and_has_no_output() {
    let mut story = Story::of([bash("a")]);
    story.tell(run_cancel_requested());
    let response = last(&story);
    assert_eq!(types(&response), ["shell_call"]);
    let item = &response["output"][0];
    assert_eq!((&item["status"], &item["toolyard"]["state"]), (&json!("incomplete"), &json!("CANCELLED")));
    let output = &response["toolyard"]["input"][0]["output"];
    assert!(output.as_str().is_some_and(|output| output.contains("cancelled")), "{output}");
}

#[test]
fn what_a_call_said_before_it_failed_is_kept() {
    let mut story = Story::of([once("a")]);
    story.tell_all([dispatched(0), started(0, 1), output(0, 1, 0..2), failed(0, 1)]);
    let response = last(&story);
    let item = &response["output"][0];
    assert_eq!((&item["status"], &item["output"]), (&json!("failed"), &json!("0/1/1/00/1/1/1")));
    let output = response["toolyard"]["input"][0]["output"].as_str().expect("a text");
    assert!(output.starts_with("Error: 0/1/1/00/1/1/1\n"), "{output}");
}

#[test]
fn of_a_hidden_tool_nothing_is_told_but_what_the_client_must_do() {
    let hidden = |spec: CallSpec| CallSpec { result_use: ResultUse { hidden: true, ..spec.result_use }, ..spec };
    let shown = tool("add", r#"{"a":1}"#, repeatable("b"));
    let mut story = Story::of([hidden(bash("a")), shown, hidden(client("c"))]);
    story.tell_all([
        dispatched(0),
        started(0, 1),
        output(0, 1, 0..2),
        exited(0, 1, 2, 0),
        dispatched(1),
        started(1, 1),
        completed(1, 1, 0),
    ]);
    let response = last(&story);
    assert_eq!((types(&response), &response["status"]), (vec!["function_call", "mcp_call"], &json!("completed")));
    let given: Vec<_> =
        response["toolyard"]["input"].as_array().into_iter().flatten().map(|it| &it["call_id"]).collect();
    assert_eq!(given, ["a", "b"], "the model waits for the results of hidden tools too");
    let items: Vec<_> = events(&story).into_iter().filter(|event| event.data.get("response").is_none()).collect();
    let said = format!("{items:?}");
    assert!(!said.contains(r#""call_id": String("a")"#), "{said}");
    let (stream, told) = thread(&story);
    assert!(!format!("{told:?}").contains("bash"), "{told:?}");
    assert_eq!(stream.steps().len(), 2);
    assert_eq!(stream.run()["required_action"]["submit_tool_outputs"]["tool_calls"][0]["id"], "c");
}

#[test]
fn what_a_final_tool_gives_back_is_a_message_of_the_assistant_besides() {
    let last_word = |spec: CallSpec| CallSpec { result_use: ResultUse { is_final: true, ..spec.result_use }, ..spec };
    let draw = |name| last_word(tool("draw", "{}", repeatable(name)));
    let mut story = Story::of([draw("a"), draw("b")]);
    let image = Content::Data { media_type: "image/png".into(), data: Bytes::from_static(b"not one") };
    let result = vec![Content::Text("Here it is:".into()), image];
    story.tell_all([
        dispatched(0),
        started(0, 1),
        ended_as(attempt(0, 1), "alpha", 0, AttemptOutcome::Completed(result.into())),
        dispatched(1),
        started(1, 1),
        failed(1, 1),
    ]);
    let response = last(&story);
    assert_eq!(types(&response), ["mcp_call", "message", "mcp_call"], "and none of what gives nothing back");
    let message = &response["output"][1];
    let texts: Vec<_> = message["content"].as_array().into_iter().flatten().map(|part| &part["text"]).collect();
    assert_eq!(texts[0], "Here it is:");
    assert_eq!(texts[1], "![image/png](data:image/png;base64,bm90IG9uZQ==)");
    let attached = &response["output"][0]["toolyard"]["attachments"][0];
    assert_eq!(attached, &json!({ "media_type": "image/png", "url": "data:image/png;base64,bm90IG9uZQ==" }));
    let given = &response["toolyard"]["input"][0]["output"];
    assert_eq!((&given[0]["text"], &given[1]["type"]), (&json!("Here it is:"), &json!("input_image")));
    assert_eq!((&message["role"], &message["toolyard"]["call_id"]), (&json!("assistant"), &json!("a")));
    let said: Vec<String> = words(&story).into_iter().filter(|word| word.ends_with(" 1")).collect();
    let part = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done"];
    let expected = ["output_item.added"].into_iter().chain(part).chain(part).chain(["output_item.done"]);
    assert_eq!(said, expected.map(|word| format!("0 {word} 1")).collect::<Vec<_>>());
    // The tool's output goes to the model as well.
    assert!(response["output"][0]["output"].as_str().is_some_and(|output| output.starts_with("Here it is:")));

    // The exit code of a shell is not shown to the user, and nothing of a hidden tool is.
    let mut story = Story::of([last_word(bash("a")), last_word(bash("b"))]);
    let said = |text: &str| vec![Content::Text(text.into()), Content::Json(r#"{"exit_code":0}"#.into())];
    let ends =
        |call, result: Vec<Content>| ended_as(attempt(call, 1), "alpha", 0, AttemptOutcome::Completed(result.into()));
    story.tell_all([
        dispatched(0),
        started(0, 1),
        ends(0, said("listed")),
        dispatched(1),
        started(1, 1),
        exited(1, 1, 0, 0),
    ]);
    let messages: Vec<Value> = last(&story)["output"].as_array().expect("items").clone();
    let messages: Vec<&Value> = messages.iter().filter(|item| item["type"] == "message").collect();
    assert_eq!((messages.len(), &messages[0]["content"].as_array().expect("parts").len()), (1, &1), "{messages:?}");
    let hidden = |spec: CallSpec| CallSpec { result_use: ResultUse { hidden: true, ..spec.result_use }, ..spec };
    let mut story = Story::of([hidden(last_word(unapproved("a", std::time::Duration::from_secs(60))))]);
    story.tell_all([approved(0), dispatched(0), started(0, 1), completed(0, 1, 0)]);
    assert!(!events(&story).iter().any(|event| event.data["item"]["type"] == "message"));
}

#[test]
fn an_answer_begins_the_next_response_in_which_the_approved_call_runs() {
    let mut story = Story::of([unapproved("a", std::time::Duration::from_secs(60)), client("b")]);
    let asked = last(&story);
    assert_eq!(types(&asked), ["mcp_approval_request", "function_call"]);
    story.tell_all([approved(0), answered(1, "blue"), dispatched(0), started(0, 1), completed(0, 1, 0)]);
    let response = last(&story);
    assert_eq!(response["previous_response_id"], asked["id"]);
    assert_eq!(types(&response), ["mcp_call"]);
    assert_eq!(response["output"][0]["approval_request_id"], asked["output"][0]["id"]);
    assert_eq!(response["output"][0]["output"], "done");
    let inputs = responses::input_items(run_id().into(), &story.run, Some(&asked));
    assert_eq!((&inputs[0]["type"], &inputs[0]["approve"]), (&json!("mcp_approval_response"), &json!(true)));
    assert_eq!((&inputs[1]["type"], &inputs[1]["output"]), (&json!("function_call_output"), &json!("blue")));
    let first = responses::input_items(run_id().into(), &story.run, None);
    assert_eq!(first.iter().map(|item| item["call_id"].as_str().expect("an id")).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_call_that_was_not_approved_is_seen_to_fail() {
    let mut story = Story::of([unapproved("a", std::time::Duration::from_secs(60))]);
    story.tell(rejected(0, "too dear"));
    let response = last(&story);
    assert_eq!((&response["status"], types(&response)), (&json!("completed"), vec!["mcp_call"]));
    assert_eq!(response["output"][0]["status"], "failed");
    assert!(
        response["output"][0]["error"]["content"][0]["text"].as_str().is_some_and(|text| text.contains("too dear"))
    );
}

#[test]
fn what_may_be_withdrawn_is_shown_when_it_cannot_be_any_more() {
    let mut story = Story::of([tool("bash", r#"{"command":"ls"}"#, repeatable("a"))]);
    story.tell_all([dispatched(0), started(0, 1), output(0, 1, 0..2), failed_for_now(0, 1)]);
    let says = |story: &Story| words(story).iter().filter(|word| word.contains("content.delta")).count();
    assert_eq!(says(&story), 0);
    story.tell_all([started(0, 2), output(0, 2, 0..2)]);
    assert_eq!(says(&story), 0);
    story.tell(exited(0, 2, 2, 0));
    assert_eq!(says(&story), 1);
    assert_eq!(last(&story)["output"][1]["output"][0]["stdout"], "0/2/2/00/2/2/1");
}

#[test]
fn who_asks_for_it_hears_what_the_api_has_no_words_for_under_the_same_numbers() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([
        dispatched(0),
        started(0, 1),
        output(0, 1, 0..1),
        failed_for_now(0, 1),
        started(0, 2),
        completed(0, 2, 0),
    ]);
    let events = events(&story);
    let ours: Vec<&str> = events.iter().filter(|event| !event.is_documented()).map(|event| event.kind).collect();
    let expected = [
        "toolyard:attempt.started",
        "toolyard:tool_output.delta",
        "toolyard:attempt.ended",
        "toolyard:attempt.started",
        "toolyard:tool_output.withdrawn",
    ];
    assert_eq!(ours, expected);
    let numbers: Vec<u64> = events.iter().map(|event| event.sequence).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert_eq!(last(&story)["output"][0]["output"], "done", "nothing of the attempt that was withdrawn");
}

#[test]
fn a_run_that_is_cancelled_ends_as_incomplete_and_a_tool_that_fails_fails_its_item_alone() {
    let mut cancelled = Story::of([client("a")]);
    cancelled.tell(run_cancel_requested());
    let response = last(&cancelled);
    assert_eq!((&response["status"], types(&response)), (&json!("cancelled"), vec![]));

    let mut story = Story::of([once("a"), refused("b")]);
    story.tell_all([dispatched(0), started(0, 1), failed(0, 1)]);
    let response = last(&story);
    assert_eq!((&response["status"], &response["error"]), (&json!("completed"), &Value::Null));
    let of = |nth: usize, name: &str| response["output"][nth][name].clone();
    assert_eq!((of(1, "status"), of(1, "error")["type"].clone()), (json!("failed"), json!("mcp_tool_execution_error")));
    assert_eq!(of(0, "error")["type"], "mcp_protocol_error");
    assert_eq!(of(1, "toolyard")["error"]["kind"], "TOOL_FAILED");

    let mut fast = Story::failing_fast([once("a"), client("b")], false);
    fast.tell_all([dispatched(0), started(0, 1), failed(0, 1)]);
    let response = last(&fast);
    assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
}

#[test]
fn calls_that_are_not_answered_are_required_by_the_next_response_too() {
    let approval = || std::time::Duration::from_secs(60);
    let mut story = Story::of([unapproved("a", approval()), client("b"), unapproved("c", approval()), client("d")]);
    let parts = |story: &Story| {
        let lasts = events(story).into_iter().filter(responses::Event::is_last);
        lasts.map(|event| types(&event.data["response"]).join(" ")).collect::<Vec<_>>()
    };
    let both = "mcp_approval_request function_call";
    assert_eq!(parts(&story), [format!("{both} {both}")]);
    story.tell(answered(1, "blue"));
    assert_eq!(parts(&story).len(), 1, "the next response is in progress until nothing or something else is required");
    story.tell_all([approved(0), dispatched(0), started(0, 1), completed(0, 1, 0)]);
    assert_eq!(parts(&story)[1..], ["mcp_call mcp_approval_request function_call"], "one of two approvals");
    story.tell_all([rejected(2, "no"), answered(3, "red")]);
    assert_eq!(parts(&story)[2..], ["mcp_call"]);
    assert_eq!(last(&story)["toolyard"]["input"].as_array().map(Vec::len), Some(4));
}

#[test]
fn results_that_are_the_answer_are_messages_and_name_their_tools() {
    let direct = |spec: CallSpec| CallSpec { result_use: ResultUse { return_direct: true, ..spec.result_use }, ..spec };
    let mut story = Story::of([direct(tool("add", "{}", repeatable("a"))), direct(repeatable("b"))]);
    story.tell_all([
        dispatched(0),
        started(0, 1),
        completed(0, 1, 0),
        dispatched(1),
        started(1, 1),
        completed(1, 1, 0),
    ]);
    let response = last(&story);
    assert_eq!(types(&response), ["mcp_call", "mcp_call", "message", "message"]);
    assert_eq!(response["toolyard"]["finish_reason"], "returnDirect");
    let of = |id: &str, name: &str| json!({ "toolId": id, "toolName": name });
    assert_eq!(response["toolyard"]["returned"], json!([of("a", "add"), of("b", "tool")]));
    let mut story = Story::of([direct(repeatable("a")), repeatable("b")]);
    story.tell_all([
        dispatched(0),
        started(0, 1),
        completed(0, 1, 0),
        dispatched(1),
        started(1, 1),
        completed(1, 1, 0),
    ]);
    let response = last(&story);
    assert_eq!(
        (types(&response), &response["toolyard"]["finish_reason"]),
        (vec!["mcp_call", "mcp_call"], &Value::Null)
    );
}

#[test]
fn what_a_search_found_and_an_image_go_where_their_items_have_room() {
    let search = tool("file_search", r#"{"query":"moon"}"#, repeatable("a"));
    let paint = tool("image_generation", "{}", repeatable("b"));
    let mut story = Story::of([search, paint]);
    let found = vec![Content::Json(r#"{"results":[{"file_id":"f","filename":"moon.md","score":0.5}]}"#.into())];
    let image = vec![Content::Data { media_type: "image/png".into(), data: Bytes::from_static(b"png") }];
    story.tell_all([
        dispatched(0),
        started(0, 1),
        ended_as(attempt(0, 1), "alpha", 0, AttemptOutcome::Completed(found.into())),
    ]);
    story.tell_all([
        dispatched(1),
        started(1, 1),
        ended_as(attempt(1, 1), "alpha", 0, AttemptOutcome::Completed(image.into())),
    ]);
    let stages: Vec<String> = words(&story).into_iter().filter(|word| word.contains("_call.")).collect();
    let expected = [
        "0 file_search_call.in_progress 0",
        "0 file_search_call.searching 0",
        "0 file_search_call.completed 0",
        "0 image_generation_call.in_progress 1",
        "0 image_generation_call.generating 1",
        "0 image_generation_call.completed 1",
    ];
    assert_eq!(stages, expected);
    let response = last(&story);
    assert_eq!(response["output"][0]["queries"], json!(["moon"]));
    assert_eq!(response["output"][0]["results"][0]["filename"], "moon.md");
    assert_eq!(response["output"][1]["result"], "cG5n");
}

#[test]
fn what_a_final_tool_gives_back_is_a_message_of_the_thread() {
    let last_word = |spec: CallSpec| CallSpec { result_use: ResultUse { is_final: true, ..spec.result_use }, ..spec };
    let mut story = Story::of([last_word(tool("draw", "{}", repeatable("a")))]);
    let image = Content::Data { media_type: "image/png".into(), data: Bytes::from_static(b"png") };
    let result = vec![Content::Text("Here it is:".into()), image];
    story.tell_all([
        dispatched(0),
        started(0, 1),
        ended_as(attempt(0, 1), "alpha", 0, AttemptOutcome::Completed(result.into())),
    ]);
    let (stream, told) = thread(&story);
    let names: Vec<&str> = told.iter().map(|event| event.kind).filter(|kind| kind.contains("message")).collect();
    let expected =
        ["created", "in_progress", "delta", "delta", "completed"].map(|name| format!("thread.message.{name}"));
    assert_eq!(names, expected);
    let message = stream.messages().remove(0);
    let image = json!({ "type": "image_url", "image_url": { "url": "data:image/png;base64,cG5n", "detail": "auto" } });
    assert_eq!((&message["content"][0]["text"]["value"], &message["content"][1]), (&json!("Here it is:"), &image));
    assert_eq!(told.last().map(|event| event.kind), Some("thread.run.completed"));
}

#[test]
fn a_run_all_of_whose_calls_are_being_cancelled_is_cancelling() {
    let mut story = Story::of([once("a"), once("b")]);
    story.tell_all([dispatched(0), started(0, 1), dispatched(1), started(1, 1), run_cancel_requested()]);
    let cancelled = |call| ended_as(attempt(call, 1), "alpha", 0, AttemptOutcome::Cancelled);
    story.tell_all([cancelled(0), cancelled(1)]);
    let (_, told) = thread(&story);
    let of_run: Vec<&str> =
        told.iter().filter(|event| event.data["object"] == "thread.run").map(|event| event.kind).collect();
    let expected =
        ["created", "queued", "in_progress", "cancelling", "cancelled"].map(|name| format!("thread.run.{name}"));
    assert_eq!(of_run, expected);
}

#[test]
fn the_same_run_requires_action_as_assistants_tell_it() {
    let mut story = Story::of([bash("a"), client("b")]);
    story.tell_all([dispatched(0), started(0, 1), output(0, 1, 0..1), exited(0, 1, 1, 0), answered(1, "blue")]);
    let (stream, told) = thread(&story);
    let names: Vec<String> =
        told.iter().map(|event| format!("{} {}", event.part, event.kind.trim_start_matches("thread.run."))).collect();
    let expected = [
        "0 created",
        "0 queued",
        "0 in_progress",
        "0 step.created",
        "0 step.in_progress",
        "0 step.delta",
        "0 step.delta",
        "0 step.delta",
        "0 step.completed",
        "0 requires_action",
        "1 step.completed",
        "1 queued",
        "1 in_progress",
        "1 completed",
    ];
    assert_eq!(names, expected);
    let parked = &told[9].data;
    let asked = &parked["required_action"]["submit_tool_outputs"]["tool_calls"];
    assert_eq!(asked, &json!([{ "id": "b", "type": "function", "function": { "name": "tool", "arguments": "{}" } }]));
    let steps = stream.steps();
    let output = |nth: usize| steps[nth]["step_details"]["tool_calls"][0]["function"]["output"].clone();
    assert_eq!((output(0), output(1)), (json!("0/1/1/0\n{\"exit_code\":0}"), json!("blue")));
    assert_eq!(stream.run()["status"], "completed");
}

/// The events of the run itself, each with its part.
fn of_run(told: &[assistants::Event]) -> Vec<String> {
    let own = told.iter().filter(|event| event.data["object"] == "thread.run");
    own.map(|event| format!("{} {}", event.part, event.kind.trim_start_matches("thread.run."))).collect()
}

#[test]
fn a_run_requires_action_again_if_an_answer_leaves_calls_that_await_approval() {
    let hour = std::time::Duration::from_secs(3600);
    let mut story = Story::of([client("a"), client("b"), unapproved("c", hour), unapproved("d", hour)]);
    // The status does not change, so no event of the run reports it.
    story.tell(answered(0, "blue"));
    let (stream, told) = thread(&story);
    assert_eq!(of_run(&told)[3..], ["0 requires_action", "1 queued", "1 in_progress"], "the client answers both");
    let (run, asked) = (stream.run(), json!("b"));
    let required = &run["required_action"]["submit_tool_outputs"]["tool_calls"];
    assert_eq!((&run["status"], &required[0]["id"], &required[1]), (&json!("requires_action"), &asked, &Value::Null));
    story.tell(answered(1, "red"));
    let (stream, told) = thread(&story);
    assert_eq!(of_run(&told)[4..], ["1 queued", "1 in_progress", "1 requires_action"]);
    assert_eq!(stream.run()["toolyard"]["awaiting_approval"], json!(["c", "d"]));
    story.tell(rejected(2, "no"));
    story.tell_all([approved(3), dispatched(3)]);
    let told = of_run(&thread(&story).1);
    assert_eq!(told[7..], ["2 queued", "2 in_progress", "2 requires_action", "3 queued", "3 in_progress"]);
}

#[test]
fn a_run_requires_action_when_one_of_two_client_calls_expires_or_another_is_added() {
    let mut story = Story::open([client("a"), client("b")]);
    story.tell(expired(0));
    let run = thread(&story).0.run();
    let required = &run["required_action"]["submit_tool_outputs"]["tool_calls"];
    assert_eq!((&run["status"], &required[0]["id"]), (&json!("requires_action"), &json!("b")), "{run}");
    story.tell(run::Event::CallsAppended { calls: shared([client("c")]) });
    let (stream, told) = thread(&story);
    assert_eq!(of_run(&told)[4..], ["1 queued", "1 in_progress", "1 requires_action"]);
    let run = stream.run();
    let required = run["required_action"]["submit_tool_outputs"]["tool_calls"].as_array().map(Vec::len);
    assert_eq!((&run["status"], required), (&json!("requires_action"), Some(2)), "{run}");
}
