//! Running tools ask their client and go on with the answer, whatever is killed meanwhile.

use harness::{Client, Fixture, Run, Stream, Yard, call, client_answer, reason};
use hyper::Method;
use nats::access::Party;
use proto::convert::worker::{UserAnswer, UserQuestion, UserReply, decode_user_answer, encode_user_question};
use proto::v1::{self, CallErrorKind, CallState, FloorPolicy, RunStatus, run_event::Event};
use run::{AskedBy, AttemptId, AttemptNumber, CallIndex, NewQuestion, Nonce, PoolId, RunId};
use serde_json::{Value, json};

use crate::callers::guarded_with;
use crate::webhooks::{File, Receiver};
use crate::{FIXTURE, check, count, counted};

fn asks(tool: &str) -> v1::NewCall {
    call("a", tool, json!({}))
}

pub(crate) fn requires_action(event: &Event) -> bool {
    matches!(event, Event::RunStatusChanged(changed) if changed.status() == RunStatus::RequiresAction)
}

/// The open question of a run that waits for nothing else.
async fn question(run: &Run) -> v1::Call {
    let state = run.get().await;
    assert_eq!(state.status(), RunStatus::RequiresAction, "{state:?}");
    let mut open = state.calls.into_iter().filter(|call| call.state() == CallState::WaitingForClient);
    let question = open.next().expect("a question is open");
    assert!(open.next().is_none() && !question.asked_by_call_id.is_empty(), "{question:?}");
    question
}

async fn asked(yard: &Yard, calls: Vec<v1::NewCall>) -> (Stream, Run, v1::Call) {
    let mut stream = yard.client.execute(calls).await;
    stream.until(requires_action).await;
    let run = stream.run(&yard.client);
    let question = question(&run).await;
    (stream, run, question)
}

fn states(run: &v1::Run) -> Vec<CallState> {
    run.calls.iter().map(v1::Call::state).collect()
}

#[tokio::test]
async fn a_running_tool_asks_its_client_and_goes_on_with_the_answer() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    // The tool has the floor when it asks, and a call behind it has ended.
    let (stream, run, question) = asked(&yard, vec![asks("asks"), count("b", 3, 1)]).await;
    assert_eq!((question.tool.as_str(), question.asked_by_call_id.as_str()), ("elicitation", "a"));
    let arguments: Value = serde_json::from_str(&question.arguments).expect("JSON");
    assert_eq!(arguments["message"], "Which one?");
    assert_eq!(arguments["requestedSchema"]["required"], json!(["answer"]));
    let waiting = check::kinds(&stream.seen).into_iter().find_map(|kind| match kind {
        Event::CallWaiting(waiting) => Some(waiting.clone()),
        _ => None,
    });
    assert_eq!(waiting.expect("readers see it").asked_by_call_id, "a");
    run.submit(vec![client_answer(&question.call_id, "the left one")]).await.expect("it waits");
    let events = stream.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(check::text(&outcomes["a"]), "accepted the left one in attempt 1");
    assert_eq!(check::text(&outcomes[&question.call_id]), r#"{"action":"accept","content":{"answer":"the left one"}}"#);
    let said = check::said(&events);
    assert_eq!((said["a"].as_str(), said["b"].as_str()), ("before after", counted("b", 3).as_str()));
    assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(run.get().await.status(), RunStatus::Completed);
}

#[tokio::test]
async fn an_answer_must_fit_and_the_same_answer_twice_is_one() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let schema = json!({ "type": "object", "required": ["name"],
        "properties": { "name": { "type": "string" }, "age": { "type": "integer", "minimum": 0 } } });
    let (stream, run, question) = asked(&yard, vec![call("a", "asks_form", json!({ "schema": schema }))]).await;
    for unfit in ["Ada", "{}", r#"{"name":"Ada","age":-1}"#, r#"{"action":"agree"}"#] {
        let refused = run.submit(vec![client_answer(&question.call_id, unfit)]).await.expect_err(unfit);
        assert_eq!(reason(&refused), "ARGUMENTS_INVALID", "{unfit}");
    }
    assert_eq!(run.get().await.status(), RunStatus::RequiresAction, "a refusal stores nothing");
    for fit in [r#"{"name":"Ada","age":36}"#, r#"{"action":"accept","content":{"age":36,"name":"Ada"}}"#] {
        run.submit(vec![client_answer(&question.call_id, fit)]).await.expect("equal answers are one answer");
    }
    let other = run.submit(vec![client_answer(&question.call_id, r#"{"name":"Eve"}"#)]).await;
    assert_eq!(reason(&other.expect_err("it was answered")), "CALL_ALREADY_ANSWERED");
    let events = stream.to_end().await;
    let result: Value = serde_json::from_str(&check::text(&check::outcomes(&events)["a"])).expect("JSON");
    assert_eq!(result, json!({ "name": "Ada", "age": 36 }));
}

#[tokio::test]
async fn a_question_may_be_declined_dismissed_or_expire() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    for (action, result) in [("decline", "declined"), ("cancel", "cancelled")] {
        let (stream, run, question) = asked(&yard, vec![asks("asks")]).await;
        let answer = json!({ "action": action }).to_string();
        run.submit(vec![client_answer(&question.call_id, &answer)]).await.expect("it waits");
        assert_eq!(check::text(&check::outcomes(&stream.to_end().await)["a"]), result);
    }
    let events = yard.client.execute(vec![call("a", "asks", json!({ "timeout_ms": 300 }))]).await.to_end().await;
    let outcomes = check::outcomes(&events);
    let error = outcomes["a"].error.clone().expect("nobody answered");
    assert_eq!(error.kind(), CallErrorKind::NeedsInput, "{error:?}");
    assert_eq!(outcomes["ask_0_1_1"].state(), CallState::Expired);
}

#[tokio::test]
async fn a_worker_killed_with_an_open_question_ends_it_and_the_next_attempt_asks_anew() {
    let yard = Yard::start(FIXTURE).await;
    let mut first = yard.worker().await;
    let (mut stream, run, question) = asked(&yard, vec![asks("asks")]).await;
    first.kill().await;
    let _second = yard.worker().await;
    let ends = |event: &Event| matches!(event, Event::CallEnded(ended) if ended.call_id == question.call_id);
    stream.until(ends).await;
    stream.until(|event| matches!(event, Event::CallWaiting(waiting) if waiting.call_id == "ask_0_2_1")).await;
    let late = run.submit(vec![client_answer(&question.call_id, "too late")]).await.expect_err("it has ended");
    assert_eq!(reason(&late), "CALL_NOT_WAITING");
    run.submit(vec![client_answer("ask_0_2_1", "again")]).await.expect("it waits");
    let events = stream.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(check::text(&outcomes["a"]), "accepted again in attempt 2");
    assert_eq!(outcomes[&question.call_id].state(), CallState::Cancelled);
}

#[tokio::test]
async fn a_worker_killed_with_an_open_question_of_a_tool_that_is_not_repeated_interrupts_the_call() {
    let yard = Yard::start(FIXTURE).await;
    let mut only = yard.worker().await;
    let (stream, run, question) = asked(&yard, vec![asks("asks_once")]).await;
    only.kill().await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes["a"].error.clone().expect("it failed").kind(), CallErrorKind::Interrupted);
    assert_eq!(outcomes[&question.call_id].state(), CallState::Cancelled);
    assert_eq!(states(&run.get().await), [CallState::Failed, CallState::Cancelled]);
}

#[tokio::test]
async fn an_open_question_is_answered_after_the_coordinator_was_killed() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let (stream, run, question) = asked(&yard, vec![asks("asks_once")]).await;
    drop(stream);
    yard.coordinator.kill().await;
    let address = yard.coordinator.address();
    yard.coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
    let run = run.through(&Client::connect(address).await);
    run.submit(vec![client_answer(&question.call_id, "still here")]).await.expect("it waits");
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(check::text(&outcomes["a"]), "accepted still here in attempt 1");
    assert_eq!(outcomes.len(), 2, "it was asked once");
}

#[tokio::test]
async fn a_run_that_is_cancelled_ends_its_open_question() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let (stream, run, question) = asked(&yard, vec![asks("asks")]).await;
    run.cancel("enough").await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert_eq!(outcomes[&question.call_id].state(), CallState::Cancelled);
    assert_eq!((outcomes["a"].state(), outcomes["a"].stopped()), (CallState::Cancelled, v1::Stopped::Confirmed));
}

#[tokio::test]
async fn a_question_of_a_zombie_is_refused_and_never_shown() {
    let yard = Yard::start(FIXTURE).await;
    let mut first = yard.worker().await;
    let (mut stream, run, question) = asked(&yard, vec![asks("asks")]).await;
    first.kill().await;
    let _second = yard.worker().await;
    stream.until(|event| matches!(event, Event::CallWaiting(waiting) if waiting.call_id == "ask_0_2_1")).await;
    let run_id: RunId = run.id.parse().expect("an id");
    let pool: PoolId = "main".parse().expect("a pool");
    let options = async_nats::ConnectOptions::new().custom_inbox_prefix(Party::Pool(pool.clone()).inbox());
    let zombie = options.connect(yard.broker.url()).await.expect("the broker is there");
    for number in [1, 2] {
        let attempt = AttemptId { call: CallIndex(0), number: AttemptNumber(number), nonce: Nonce(666) };
        let asked_by = AskedBy { attempt, number: 7 };
        let asked = NewQuestion { asked_by, arguments: "{\"message\":\"boo\"}".into(), timeout: None };
        let asks = encode_user_question(&UserQuestion { run: run_id, sequence: 1, question: asked });
        let answer =
            zombie.request(proto::names::question(&pool, run_id.shard()), asks).await.expect("an owner answers");
        let reply = decode_user_answer(answer.payload).expect("a reply");
        assert!(matches!(reply, UserReply::Known(UserAnswer::Refused(_))), "{reply:?}");
    }
    let calls: Vec<String> = run.get().await.calls.into_iter().map(|call| call.call_id).collect();
    assert_eq!(calls, ["a", &question.call_id, "ask_0_2_1"]);
}

#[tokio::test]
async fn http_shows_a_question_and_answers_it() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let (stream, run, question) = asked(&yard, vec![call("a", "asks", json!({ "options": ["red", "blue"] }))]).await;
    let state = http.get(&format!("/v1/runs/{}", run.id)).await.json()["run"].clone();
    assert_eq!(
        (&state["status"], &state["calls"][1]["asked_by_call_id"]),
        (&json!("RUN_STATUS_REQUIRES_ACTION"), &json!("a"))
    );
    let path = format!("/v1/runs/{}/outputs", run.id);
    let outputs =
        |answer: &str| json!({ "outputs": [{ "call_id": question.call_id, "result": [{ "text": answer }] }] });
    let refused = http.post(&path, &outputs("green")).await;
    assert_eq!(refused.problem(), (400, "ARGUMENTS_INVALID".to_owned()), "{refused:?}");
    assert_eq!(http.post(&path, &outputs("blue")).await.status, 200);
    let events = stream.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["a"]), "accepted blue in attempt 1");
}

#[tokio::test]
async fn a_batch_returns_the_question_and_then_one_message_for_the_call() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    let turn = json!({ "role": "assistant",
        "content": [{ "type": "tool_use", "id": "toolu_1", "name": "asks", "input": {} }] });
    let headers = [("content-type", "application/json"), ("idempotency-key", "a-question")];
    let ask = async || http.ask(Method::POST, "/v1/tool_calls:batch?wait=60s", &headers, turn.to_string()).await.json();
    let open = ask().await;
    assert_eq!((&open["complete"], open["messages"].as_array().map(Vec::len)), (&json!(false), Some(0)), "{open}");
    let question =
        open["open_calls"].as_array().expect("calls").iter().find(|call| call["asked_by_call_id"] == "toolu_1");
    let id = question.expect("the question is open")["call_id"].as_str().expect("an id").to_owned();
    let run = Run { client: yard.client.clone(), id: open["run_id"].as_str().expect("an id").to_owned() };
    run.submit(vec![client_answer(&id, "tea")]).await.expect("it waits");
    run.watch(FloorPolicy::Arrival).await.to_end().await;
    let whole = ask().await;
    let content = &whole["messages"][0]["content"];
    assert_eq!((&whole["complete"], content.as_array().map(Vec::len)), (&json!(true), Some(1)), "{whole}");
    assert!(content.to_string().contains("accepted tea in attempt 1"), "{whole}");
}

#[tokio::test]
async fn a_question_is_notified_and_listed_with_the_call_that_asks_and_answered_with_a_token() {
    let mut receiver = Receiver::start(|_| 204).await;
    let file = File::new(&receiver.url, "");
    let yard = guarded_with(file.fixture()).await;
    let shop = yard.client("shop");
    let mut stream = shop.execute(vec![asks("asks")]).await;
    stream.until(requires_action).await;
    let (run, id) = (stream.run(&shop), "ask_0_1_1");
    let (notice, expected) = (
        receiver.next().await,
        json!([{ "call_id": id, "tool": "elicitation",
        "state": "CALL_STATE_WAITING_FOR_CLIENT", "asked_by_call_id": "a" }]),
    );
    assert_eq!(notice.what(), (run.id.clone(), "run.requires_action".to_owned()));
    assert_eq!(notice.json()["data"]["calls"], expected);

    let asks_for_a = |id: &str| (id.to_owned(), CallState::WaitingForClient, "a".to_owned());
    until_listed(&shop, true, &[asks_for_a(id)]).await;
    let tokens = v1::CreateAnswerTokenRequest { run_id: run.id.clone(), call_id: id.to_owned(), lifetime: None };
    let token = shop.runs.clone().create_answer_token(tokens).await.expect("it may answer").into_inner().token;
    let browser = run.through(&yard.stranger.with_key(&token));
    let unfit = browser.submit(vec![client_answer(id, r#"{"action":"agree"}"#)]).await.expect_err("it does not fit");
    assert_eq!(reason(&unfit), "ARGUMENTS_INVALID");
    let other = browser.submit(vec![client_answer("a", "tea")]).await.expect_err("the token is of another call");
    assert_eq!(reason(&other), "TOKEN_FOR_ANOTHER_CALL");
    let shown = browser.submit(vec![client_answer(id, "tea")]).await.expect("it waits");
    assert_eq!(shown.calls.iter().map(|call| call.call_id.as_str()).collect::<Vec<_>>(), [id], "and nothing else");

    let events = stream.to_end().await;
    assert_eq!(check::text(&check::outcomes(&events)["a"]), "accepted tea in attempt 1");
    let mut notice = receiver.next().await;
    while notice.what().1 != "run.completed" {
        notice = receiver.next().await;
    }
    let asked_by = notice.json()["data"]["calls"]
        .as_array()
        .expect("calls")
        .iter()
        .map(|call| call["asked_by_call_id"].clone())
        .collect::<Vec<_>>();
    assert_eq!(asked_by, [Value::Null, json!("a")]);
    let ended = |id: &str, asked_by: &str| (id.to_owned(), CallState::Completed, asked_by.to_owned());
    until_listed(&shop, false, &[ended("a", ""), ended(id, "a")]).await;
}

#[tokio::test]
async fn the_token_of_a_question_that_ended_with_its_worker_answers_no_other() {
    let mut yard = guarded_with(Fixture::new(FIXTURE)).await;
    let shop = yard.client("shop");
    let mut stream = shop.execute(vec![asks("asks")]).await;
    stream.until(requires_action).await;
    let run = stream.run(&shop);
    let tokens =
        v1::CreateAnswerTokenRequest { run_id: run.id.clone(), call_id: "ask_0_1_1".to_owned(), lifetime: None };
    let token = shop.runs.clone().create_answer_token(tokens).await.expect("it may answer").into_inner().token;
    yard.worker.kill().await;
    let _second = yard.fixture.worker(&yard.broker.url(), "main", 16).await;
    stream.until(|event| matches!(event, Event::CallWaiting(waiting) if waiting.call_id == "ask_0_2_1")).await;
    let browser = run.through(&yard.stranger.with_key(&token));
    let late = browser.submit(vec![client_answer("ask_0_1_1", "tea")]).await.expect_err("it has ended");
    assert_eq!(reason(&late), "CALL_NOT_WAITING");
    let other = browser.submit(vec![client_answer("ask_0_2_1", "tea")]).await.expect_err("the token is of another");
    assert_eq!(reason(&other), "TOKEN_FOR_ANOTHER_CALL");
    let open = ("ask_0_2_1".to_owned(), CallState::WaitingForClient, "a".to_owned());
    until_listed(&shop, true, &[open]).await;
    run.submit(vec![client_answer("ask_0_2_1", "tea")]).await.expect("it waits");
    assert_eq!(check::text(&check::outcomes(&stream.to_end().await)["a"]), "accepted tea in attempt 2");
}

/// Waits until the index lists these calls and no others, in the inbox or at all: with their states and the calls that
/// ask.
async fn until_listed(client: &Client, inbox: bool, expected: &[(String, CallState, String)]) {
    let listed = async {
        loop {
            let request = v1::ListCallsRequest { inbox, ..v1::ListCallsRequest::default() };
            let page = client.index.clone().list_calls(request).await.expect("the index answers").into_inner();
            let calls = page.calls.into_iter().filter_map(|listed| listed.call);
            let mut calls: Vec<_> =
                calls.map(|call| (call.call_id.clone(), call.state(), call.asked_by_call_id)).collect();
            calls.sort();
            if calls == expected {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(harness::PATIENCE, listed).await.expect("the index follows");
}

#[tokio::test]
async fn openai_clients_answer_a_question_as_a_function_call() {
    let yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let http = yard.http();
    for through in ["responses", "assistants"] {
        let input = json!([{ "type": "function_call", "call_id": "a", "name": "asks", "arguments": "{}" }]);
        let response = http.post("/responses", &json!({ "input": input })).await.json();
        let id = response["id"].as_str().expect("an id").to_owned();
        let items = response["output"].as_array().expect("items");
        let open = items.iter().find(|item| item["type"] == "function_call").expect("the question is an item");
        assert_eq!((&response["status"], &open["name"]), (&json!("completed"), &json!("elicitation")), "{response}");
        let call_id = open["call_id"].clone();
        let run = id.replacen("resp_", "run_", 1);
        let at = |rest: &str| format!("/threads/thread_1/runs/{run}{rest}");
        let required = http.get(&at("")).await.json()["required_action"]["submit_tool_outputs"]["tool_calls"].clone();
        assert_eq!((required.as_array().map(Vec::len), &required[0]["id"]), (Some(1), &call_id), "{required}");
        if through == "responses" {
            let output = json!({ "type": "function_call_output", "call_id": call_id, "output": "tea" });
            let body = json!({ "previous_response_id": id, "input": [output] });
            let answered = http.post("/responses", &body).await.json();
            assert!(answered["output"].to_string().contains("accepted tea in attempt 1"), "{answered}");
        } else {
            let body = json!({ "tool_outputs": [{ "tool_call_id": call_id, "output": "tea" }] });
            assert_eq!(http.post(&at("/submit_tool_outputs"), &body).await.status, 200);
            let whole = Run { client: yard.client.clone(), id: run.clone() };
            let events = whole.watch(FloorPolicy::Arrival).await.to_end().await;
            assert_eq!(check::text(&check::outcomes(&events)["a"]), "accepted tea in attempt 1");
        }
        assert_eq!(http.get(&at("")).await.json()["status"], "completed");
        assert_eq!(http.get(&format!("/responses/{id}")).await.json(), response, "a response never changes");
    }
}
