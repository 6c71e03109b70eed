//! Tools with backends through a cluster: as the native API shows their calls, and as the Responses API does.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use harness::backends::{Backends, FORBIDDEN, image, partial_image};
use harness::http::{Sent, events};
use harness::{Fixture, Pools, Worker, Yard, call};
use hyper::Method;
use proto::v1::content::Body;
use proto::v1::run_event::Event;
use proto::v1::{self, CallState, call_output::Piece};
use serde_json::{Value, json};

use crate::{FIXTURE, check};

const TOOLS: [&str; 4] = ["web_search", "file_search", "code_interpreter", "image_generation"];

fn arguments(tool: &str) -> Value {
    match tool {
        "image_generation" => json!({ "prompt": "a moon", "partial_images": 1 }),
        "code_interpreter" => json!({ "code": "print('one')\nopen('a.txt', 'w').write('two')" }),
        _ => json!({ "query": "moon", "max_results": 2 }),
    }
}

fn item(tool: &str) -> Value {
    json!({ "type": "function_call", "call_id": tool, "name": tool, "arguments": arguments(tool).to_string() })
}

async fn start(backends: &Backends, fixture: Fixture) -> (Yard, Worker) {
    let yard = Yard::start_with(backends.of(&fixture)).await;
    let worker = yard.worker().await;
    for tool in TOOLS {
        yard.client.wait_for_tool(tool).await;
    }
    (yard, worker)
}

fn json_of(outcome: &v1::CallOutcome) -> Value {
    let json = outcome.result.iter().find_map(|part| match &part.body {
        Some(Body::Json(json)) => Some(json),
        _ => None,
    });
    serde_json::from_str(json.expect("a part is JSON")).expect("it is JSON")
}

/// The names of the events of an item, and `added` and `done` of it.
fn names(sent: &[Sent], kind: &str) -> Vec<String> {
    let is_added = |event: &&Value| event["type"] == "response.output_item.added" && event["item"]["type"] == kind;
    let events: Vec<Value> = sent.iter().filter(|event| event.data != "[DONE]").map(Sent::json).collect();
    let place = events.iter().find(is_added).unwrap_or_else(|| panic!("no {kind}: {events:?}"))["output_index"].clone();
    let of = events.iter().filter(|event| event["output_index"] == place);
    of.map(|event| event["type"].as_str().expect("a type").trim_start_matches("response.").to_owned()).collect()
}

#[tokio::test]
async fn tools_with_backends_show_progress_and_results_in_the_native_api() {
    let backends = Backends::start().await;
    let (yard, _worker) = start(&backends, Fixture::new(FIXTURE)).await;
    let calls = TOOLS.map(|tool| call(tool, tool, arguments(tool))).to_vec();
    let mut stream = yard.client.execute(calls).await;
    // The partial image is there before the image is finished.
    let is_last_piece = |event: &Event| match event {
        Event::CallOutput(output) => output.call_id == "image_generation" && output.chunk == 4,
        _ => false,
    };
    stream.until(is_last_piece).await;
    backends.finish_image();
    let events = stream.to_end().await;
    check::whole(&events, true);
    let outcomes = check::outcomes(&events);
    assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{outcomes:?}");
    assert_eq!(json_of(&outcomes["web_search"])["results"][1]["url"], "https://pages.example/2");
    assert_eq!(json_of(&outcomes["file_search"])["results"][0]["filename"], "moon.md");
    assert_eq!(check::said(&events)["file_search"], "It is round.");
    let code = json_of(&outcomes["code_interpreter"]);
    assert_eq!((&code["exit_code"], &code["logs"]), (&json!(0), &json!("one\n")));
    assert_eq!(code["files"][0]["name"], "a.txt");

    let kinds = check::kinds(&events);
    let pieces: Vec<&Piece> = kinds
        .iter()
        .filter_map(|kind| match kind {
            Event::CallOutput(output) if output.call_id == "image_generation" => output.piece.as_ref(),
            _ => None,
        })
        .collect();
    let progress = pieces.iter().filter(|piece| matches!(piece, Piece::Progress(_)));
    let bytes: Vec<u8> = pieces
        .iter()
        .filter_map(|piece| match piece {
            Piece::Content(v1::Content { body: Some(Body::Data(data)), .. }) => Some(data.data.to_vec()),
            _ => None,
        })
        .flatten()
        .collect();
    assert_eq!((progress.count(), bytes == partial_image()), (3, true));
    let [_, v1::Content { body: Some(Body::Object(object)), .. }] = &outcomes["image_generation"].result[..] else {
        panic!("{outcomes:?}")
    };
    let url = json_of(&outcomes["image_generation"])["url"].as_str().expect("it has a url").to_owned();
    assert_eq!(url, format!("/v1/objects/{}", object.object_id));
    let read = yard.http().get(&url).await;
    assert_eq!((read.status, &read.headers["content-type"]), (200, &"image/png".parse().expect("ASCII")));
    assert!(read.body == image(), "{} bytes", read.body.len());
}

#[tokio::test]
async fn a_stored_image_is_inline_in_a_response_and_in_the_answer_of_a_batch() {
    let backends = Backends::start().await;
    let (yard, _worker) = start(&backends, Fixture::new(FIXTURE)).await;
    let http = yard.http();
    backends.finish_image();
    let response = http.post("/v1/responses", &json!({ "input": [item("image_generation")] })).await.json();
    let (shown, inline) = (&response["output"][0], BASE64_STANDARD.encode(image()));
    assert_eq!(shown["result"], inline);
    let url = shown["toolyard"]["url"].as_str().expect("its object");
    assert!(http.get(url).await.body == image());
    let id = response["id"].as_str().expect("an id");
    assert_eq!(http.get(&format!("/v1/responses/{id}")).await.json(), response);
    let given = response["toolyard"]["input"][0]["output"].as_array().expect("parts");
    let data_url = format!("data:image/png;base64,{inline}");
    assert!(given.iter().any(|part| part["image_url"] == data_url), "{given:?}");

    backends.finish_image();
    let turn = json!([item("image_generation")]);
    let answered = http.post("/v1/tool_calls:batch?format=openai-responses", &turn).await.json();
    let output = answered["messages"][0]["output"].as_array().expect("parts").clone();
    assert!(output.iter().any(|part| part["image_url"] == data_url), "{output:?}");
}

#[tokio::test]
async fn an_image_of_a_run_that_is_not_stored_is_inline_in_both_apis() {
    let backends = Backends::start().await;
    let (yard, _worker) = start(&backends, Fixture::new(FIXTURE)).await;
    let http = yard.http();
    // One call is opened and dispatched by one entry, two by several.
    for others in [vec![], vec![item("web_search")]] {
        backends.finish_image();
        let input = [vec![item("image_generation")], others].concat();
        let response = http.post("/v1/responses", &json!({ "input": input, "store": false })).await.json();
        let items = response["output"].as_array().expect("items");
        let item = items.iter().find(|item| item["type"] == "image_generation_call").expect("the image");
        assert_eq!(response["store"], false, "{response}");
        assert_eq!(item["result"], BASE64_STANDARD.encode(image()));
    }
    backends.finish_image();
    let calls = vec![call("a", "image_generation", arguments("image_generation"))];
    let run = v1::CreateRunRequest { calls, store: Some(false), ..v1::CreateRunRequest::default() };
    let created = yard.client.runs.clone().create_run(run).await.expect("it is accepted").into_inner();
    let id = created.run.expect("the response has the run").run_id;
    let run = harness::Run { client: yard.client.clone(), id };
    let outcomes = check::outcomes(&run.watch(v1::FloorPolicy::Arrival).await.to_end().await);
    let [_, v1::Content { body: Some(Body::Data(data)), .. }] = &outcomes["a"].result[..] else {
        panic!("{outcomes:?}")
    };
    assert!(data.data == image() && json_of(&outcomes["a"])["url"].is_null());
}

#[tokio::test]
async fn the_responses_api_shows_each_tool_with_the_item_and_the_events_of_its_own() {
    let backends = Backends::start().await;
    let (yard, _worker) = start(&backends, Fixture::new(FIXTURE)).await;
    let headers = [("content-type", "application/json")];
    let body = json!({ "input": TOOLS.map(item), "stream": true });
    let mut answering = yard.http().begin(Method::POST, "/v1/responses", &headers, body.to_string()).await;
    let is_partial = |sent: &Sent| sent.name.as_deref() == Some("response.image_generation_call.partial_image");
    answering.until(|bytes| events(bytes).iter().any(is_partial)).await;
    backends.finish_image();
    answering.to_end().await.expect("the stream is whole");
    let sent = answering.sent();
    let partial = sent.iter().find(|sent| is_partial(sent)).expect("it is there").json();
    assert_eq!(partial["partial_image_b64"], BASE64_STANDARD.encode(partial_image()));
    let named = |kind: &str, stages: &[&str]| {
        let stages = stages.iter().map(|stage| format!("{kind}{stage}"));
        let own = ["output_item.added".to_owned()].into_iter().chain(stages);
        own.chain(["output_item.done".to_owned()]).collect::<Vec<_>>()
    };
    for (kind, stages) in [
        ("web_search_call", &[".in_progress", ".searching", ".completed"][..]),
        ("file_search_call", &[".in_progress", ".searching", ".completed"]),
        ("code_interpreter_call", &[".in_progress", "_code.delta", "_code.done", ".interpreting", ".completed"]),
        ("image_generation_call", &[".in_progress", ".generating", ".partial_image", ".completed"]),
    ] {
        assert_eq!(names(&sent, kind), named(kind, stages));
    }
    let response = sent[sent.len() - 2].json()["response"].clone();
    let output = response["output"].as_array().expect("items");
    let item = |kind: &str| output.iter().find(|item| item["type"] == kind).expect(kind);
    let source = |number: u32| json!({ "type": "url", "url": format!("https://pages.example/{number}") });
    assert_eq!(item("web_search_call")["action"]["sources"], json!([source(1), source(2)]));
    let files = item("file_search_call");
    assert_eq!((&files["queries"], &files["results"][0]["file_id"]), (&json!(["moon"]), &json!("f1")));
    let code = item("code_interpreter_call");
    assert_eq!(code["outputs"], json!([{ "type": "logs", "logs": "one\n" }]));
    let url = item("image_generation_call")["toolyard"]["url"].as_str().expect("a url").to_owned();
    assert!(yard.http().get(&url).await.body == image());
    let retrieved = yard.http().get(&format!("/v1/responses/{}", response["id"].as_str().expect("an id"))).await;
    assert_eq!(retrieved.json(), response);
}

#[tokio::test]
async fn a_facade_is_shown_as_its_name_or_its_tool_says_and_cites_what_it_found() {
    let backends = Backends::start().await;
    let pools = Pools::new(
        "[facades.web_search]\ntool = \"tavily_search\"\n\
         [facades.ask_the_files]\ntool = \"file_search\"\nfinal = true\narguments = { final = true }\n",
    );
    let (yard, _worker) = start(&backends, pools.of(&Fixture::new(FIXTURE))).await;
    yard.client.wait_for_tool("ask_the_files").await;
    let calls = ["web_search", "ask_the_files"].map(
        |name| json!({ "type": "function_call", "call_id": name, "name": name, "arguments": "{\"query\":\"moon\"}" }),
    );
    // One after another: otherwise whichever ends first is shown first.
    let request = json!({ "input": calls, "parallel_tool_calls": false });
    let response = yard.http().post("/v1/responses", &request).await.json();
    let output = response["output"].as_array().expect("items");
    let types: Vec<&str> = output.iter().filter_map(|item| item["type"].as_str()).collect();
    assert_eq!(types, ["web_search_call", "file_search_call", "message"], "{response}");
    assert_eq!(output[0]["action"]["sources"][0]["url"], "https://pages.example/1");
    let cites = json!({ "type": "file_citation", "index": 0, "file_id": "f1", "filename": "moon.md" });
    let content = &output[2]["content"];
    assert_eq!((&content[0]["text"], &content[0]["annotations"]), (&json!("It is round."), &json!([cites])));
}

#[tokio::test]
async fn the_image_of_a_final_tool_is_a_message_for_the_user_and_the_model_gets_the_result() {
    let backends = Backends::start().await;
    let pools = Pools::new("[facades.paint]\ntool = \"image_generation\"\nfinal = true\n");
    let (yard, _worker) = start(&backends, pools.of(&Fixture::new(FIXTURE))).await;
    yard.client.wait_for_tool("paint").await;
    let http = yard.http();
    backends.finish_image();
    let arguments = arguments("image_generation").to_string();
    let paint = json!({ "type": "function_call", "call_id": "p", "name": "paint", "arguments": arguments });
    let response = http.post("/v1/responses", &json!({ "input": [paint] })).await.json();
    let output = response["output"].as_array().expect("items");
    let message = output.iter().find(|item| item["type"] == "message").unwrap_or_else(|| panic!("{response}"));
    let text = message["content"][0]["text"].as_str().expect("text");
    let link = text.split_once("](").and_then(|(_, rest)| rest.strip_suffix(')')).unwrap_or_else(|| panic!("{text}"));
    assert!(text.starts_with("![") && http.get(link).await.body == image(), "{text}");
    let given = response["toolyard"]["input"][0]["output"].as_array().unwrap_or_else(|| panic!("{response}"));
    let data_url = format!("data:image/png;base64,{}", BASE64_STANDARD.encode(image()));
    assert!(given.iter().any(|part| part["image_url"] == data_url), "{given:?}");
    // The native API says of the call that its result is final.
    let id = response["id"].as_str().expect("an id").replacen("resp_", "run_", 1);
    let run = http.get(&format!("/v1/runs/{id}")).await.json();
    assert_eq!(run["run"]["calls"][0]["final"], true, "{run}");
}

#[tokio::test]
async fn an_image_that_fails_is_a_failed_item_without_completed_and_its_call_has_a_typed_error() {
    let backends = Backends::start().await;
    let (yard, _worker) = start(&backends, Fixture::new(FIXTURE)).await;
    let arguments = json!({ "prompt": FORBIDDEN }).to_string();
    let draw = json!({ "type": "function_call", "call_id": "d", "name": "image_generation", "arguments": arguments });
    let body = json!({ "input": [draw, item("web_search")], "stream": true }).to_string();
    let headers = [("content-type", "application/json")];
    let answer = yard.http().ask(Method::POST, "/v1/responses", &headers, body).await;
    let sent = events(&answer.body);
    let told = names(&sent, "image_generation_call");
    assert!(told.last().is_some_and(|last| last == "output_item.done"), "{told:?}");
    assert!(!told.iter().any(|name| name.ends_with(".completed")), "{told:?}");
    let response = sent[sent.len() - 2].json()["response"].clone();
    let of = |kind: &str| {
        let items = response["output"].as_array().into_iter().flatten();
        items.clone().find(|item| item["type"] == kind).unwrap_or_else(|| panic!("no {kind}: {response}"))
    };
    assert_eq!((&of("image_generation_call")["status"], &response["status"]), (&json!("failed"), &json!("completed")));
    assert_eq!(of("web_search_call")["status"], "completed", "the other one goes on");
    let id = response["id"].as_str().expect("an id").replacen("resp_", "run_", 1);
    let run = yard.http().get(&format!("/v1/runs/{id}")).await.json();
    let error = &run["run"]["calls"][0]["outcome"]["error"];
    assert_eq!(error["kind"], "CALL_ERROR_KIND_TOOL_FAILED", "{run}");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("this is not drawn")), "{error}");
}
