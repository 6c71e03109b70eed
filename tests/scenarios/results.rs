//! The use of results: for the model, for the user, or none because the run fails.

use harness::{Yard, call};
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, ErrorPolicy, FloorPolicy, RunStatus};
use serde_json::json;

use crate::{FIXTURE, check, count};

fn tool(id: &str, tool: &str) -> v1::NewCall {
    call(id, tool, json!({ "text": id }))
}

fn ended(events: &[v1::RunEvent]) -> v1::RunEnded {
    let last = events.last().and_then(|event| event.event.clone());
    let Some(Event::RunEnded(ended)) = last else { panic!("a run ends: {events:#?}") };
    ended
}

/// What is said of each call's result: its tool, whether it is a part of what the assistant says, whether it may be the
/// answer.
fn told(events: &[v1::RunEvent], id: &str) -> (String, bool, bool) {
    let told = check::kinds(events).into_iter().find_map(|kind| match kind {
        Event::CallEnded(ended) if ended.call_id == id => {
            Some((ended.tool.clone(), ended.r#final, ended.return_direct))
        }
        _ => None,
    });
    told.expect("the call ends")
}

#[tokio::test]
async fn results_are_the_answer_where_all_calls_return_directly_and_complete() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let unknown = call("c", "nowhere", json!({}));
    let table = [
        (vec![tool("a", "answers")], true),
        (vec![tool("a", "answers"), tool("b", "answers")], true),
        (vec![tool("a", "answers"), tool("b", "echo")], false),
        (vec![tool("a", "answers"), unknown], false),
        (vec![tool("a", "answers"), call("b", "answers", json!({}))], false),
        (vec![tool("a", "shows")], false),
    ];
    for (calls, expected) in table {
        let run = yard.client.create(calls.clone()).await;
        let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
        assert_eq!(ended(&events).return_direct, expected, "of {calls:?}");
        assert_eq!(run.get().await.return_direct, expected, "of {calls:?}");
        assert_eq!(ended(&events).status(), RunStatus::Completed);
    }
}

#[tokio::test]
async fn a_final_result_is_a_part_of_what_the_assistant_says_and_the_run_goes_on_to_the_model() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![tool("a", "shows"), tool("b", "answers"), call("c", "shows", json!({}))]).await;
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(told(&events, "a"), ("shows".to_owned(), true, false));
    assert_eq!(told(&events, "b"), ("answers".to_owned(), false, true));
    assert_eq!(told(&events, "c"), ("shows".to_owned(), false, false), "one that failed has nothing to show");
    assert!(!ended(&events).return_direct);
    let calls = run.get().await.calls;
    assert_eq!((calls[0].r#final, calls[0].return_direct), (true, false));
    assert_eq!((calls[1].r#final, calls[1].return_direct), (false, true));
}

#[tokio::test]
async fn an_error_is_for_the_model_unless_its_run_is_to_fail_and_the_others_go_on_either_way() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let table = [
        (ErrorPolicy::Unspecified, RunStatus::Completed),
        (ErrorPolicy::ToModel, RunStatus::Completed),
        (ErrorPolicy::FailRun, RunStatus::Failed),
    ];
    for (policy, status) in table {
        let request = v1::CreateRunRequest {
            calls: vec![call("a", "panics", json!({})), count("b", 3, 100)],
            rules: Some(v1::RunRules { error_policy: policy.into(), ..v1::RunRules::default() }),
            ..v1::CreateRunRequest::default()
        };
        let events = yard.client.execute_request(request).await.expect("it is accepted").to_end().await;
        check::whole(&events, true);
        assert_eq!(ended(&events).status(), status, "{policy:?}");
        let outcomes = check::outcomes(&events);
        assert_eq!((outcomes["a"].state(), outcomes["b"].state()), (CallState::Failed, CallState::Completed));
    }
}

#[tokio::test]
async fn the_result_of_a_hidden_tool_is_for_the_model_and_is_not_shown() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let page = yard.client.tools.clone().list_tools(v1::ListToolsRequest::default()).await.expect("a page");
    assert!(page.into_inner().tools.iter().all(|tool| tool.name != "whispers"), "it is not listed");
    let request = v1::CreateRunRequest {
        calls: vec![tool("seen", "echo"), tool("unseen", "whispers")],
        tools: vec!["echo".to_owned(), "whispers".to_owned()],
        ..v1::CreateRunRequest::default()
    };
    let stream = yard.client.execute_request(request).await.expect("it is accepted");
    let events = stream.to_end().await;
    check::whole(&events, true);
    // The model gets both results, and the run, which is the record of what was done, has both calls.
    let outcomes = check::outcomes(&events);
    assert_eq!((check::text(&outcomes["seen"]), check::text(&outcomes["unseen"])), ("seen".into(), "unseen".into()));
    let Some(Event::RunOpened(opened)) = events[0].event.clone() else { panic!("a run begins: {events:#?}") };
    let run = harness::Run { client: yard.client.clone(), id: opened.run_id };
    let hidden: Vec<bool> = run.get().await.calls.iter().map(|call| call.hidden).collect();
    assert_eq!(hidden, [false, true]);
    // A program that shows the run to a user reads it as a response, whose output has the visible call alone. What goes
    // back to the model is apart from it, and has both.
    let id = run.id.replacen("run_", "resp_", 1);
    let response = yard.http().get(&format!("/v1/responses/{id}")).await.json();
    let shown = response["output"].to_string();
    assert!(shown.contains("echo") && !shown.contains("whispers") && !shown.contains("unseen"), "{response}");
    let input = response["toolyard"]["input"].as_array().expect("items for the model");
    assert_eq!(input.iter().map(|item| &item["output"]).collect::<Vec<_>>(), ["seen", "unseen"], "{response}");
    let streamed = yard.http().get(&format!("/v1/responses/{id}?stream=true")).await;
    let streamed = String::from_utf8_lossy(&streamed.body).into_owned();
    let items: Vec<&str> = streamed.lines().filter(|line| line.contains("response.output_item")).collect();
    assert!(!items.is_empty() && items.iter().all(|item| !item.contains("unseen")), "{streamed}");
}

#[tokio::test]
async fn sources_that_a_tool_names_are_beside_its_text_wherever_an_api_has_a_place_for_them() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let run = yard.client.create(vec![call("a", "cites", json!({})), call("b", "reviews", json!({}))]).await;
    let outcomes = check::outcomes(&run.watch(FloorPolicy::Arrival).await.to_end().await);
    let [cited, plain] = &outcomes["a"].result[..] else { panic!("{outcomes:?}") };
    assert_eq!(cited.body, Some(v1::content::Body::Text("Über owls.".to_owned())));
    let source =
        |citation: &v1::Citation| (citation.source.clone(), citation.title.clone(), citation.start..citation.end);
    let url = v1::citation::Source::Url("https://owls.example/night".to_owned());
    let file = v1::citation::Source::FileId("file_1".to_owned());
    let expected = [(Some(url), "Owls".to_owned(), 0..4), (Some(file), "owls.md".to_owned(), 0..0)];
    assert_eq!(cited.citations.iter().map(source).collect::<Vec<_>>(), expected);
    assert!(plain.citations.is_empty(), "{plain:?}");
    assert_eq!(run.get().await.calls[0].outcome.as_ref().map(|outcome| &outcome.result), Some(&outcomes["a"].result));

    let http = yard.http();
    let function =
        |id: &str, name: &str| json!({ "type": "function_call", "call_id": id, "name": name, "arguments": "{}" });
    let input = json!([function("a", "cites"), function("b", "reviews")]);
    let response = http.post("/responses", &json!({ "input": input })).await.json();
    let url = "https://owls.example/night";
    let annotations = json!([
        { "type": "url_citation", "start_index": 0, "end_index": 4, "url": url, "title": "Owls" },
        { "type": "file_citation", "index": 1, "file_id": "file_1", "filename": "owls.md" },
    ]);
    let items = response["output"].as_array().unwrap_or_else(|| panic!("{response}"));
    let message = items.iter().find(|item| item["type"] == "message").unwrap_or_else(|| panic!("{response}"));
    assert_eq!(message["content"][0]["annotations"], annotations);
    assert_eq!(
        (&message["content"][1]["text"], &message["content"][1]["annotations"]),
        (&json!("That is all."), &json!([]))
    );
    let item = items.iter().find(|item| item["name"] == "cites").unwrap_or_else(|| panic!("{response}"));
    assert_eq!(item["toolyard"]["annotations"], annotations);

    // What a model reads is the text.
    let tool_calls = json!([{ "id": "a", "type": "function", "function": { "name": "cites", "arguments": "{}" } }]);
    let turn = json!({ "role": "assistant", "tool_calls": tool_calls });
    let answer = http.post("/v1/tool_calls:batch", &turn).await.json();
    assert_eq!(answer["messages"][0]["content"], "Über owls.\nThat is all.");
}
