//! Executed calls of tools for which the Responses API has item types: searches, code and images.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use formats::openai::{assistants, responses};
use run::{
    AttemptOutcome, CallIndex, CallSpec, Chunk, ChunkIndex, Citation, CitedText, Content, Event, Nonce, Object,
    ObjectId, ResultUse,
};
use serde_json::{Value, json};

use crate::story::{Story, attempt, dispatched, ended_as, failed, repeatable, run_cancel_requested, run_id, started};
use crate::told::tell;

fn tool(name: &str, arguments: &Value, spec: CallSpec) -> CallSpec {
    CallSpec { tool: name.parse().expect("a name"), arguments: Bytes::from(arguments.to_string()), ..spec }
}

fn last_word(spec: CallSpec) -> CallSpec {
    CallSpec { result_use: ResultUse { is_final: true, ..spec.result_use }, ..spec }
}

fn says(chunks: impl IntoIterator<Item = (&'static str, Content)>) -> Event {
    let piece = |(channel, content): (&str, Content)| Chunk::Content { channel: channel.to_owned(), content };
    let chunks = chunks.into_iter().map(piece).collect();
    Event::Output { attempt: attempt(0, 1), pool: "alpha".parse().expect("a pool"), first: ChunkIndex(0), chunks }
}

fn ends(chunks: u32, result: Vec<Content>) -> Event {
    ended_as(attempt(0, 1), "alpha", chunks, AttemptOutcome::Completed(result.into()))
}

fn told(events: impl IntoIterator<Item = Event>, call: CallSpec) -> Vec<responses::Event> {
    let mut story = Story::of([call]);
    story.tell_all([dispatched(0), started(0, 1)]);
    story.tell_all(events);
    let mut stream = responses::Stream::new(run_id(), responses::Items::OneByOne);
    tell(&story.log).iter().flat_map(|told| stream.take(&told.event, &told.run)).collect()
}

/// The events of the first item, without `response.` before their names.
fn names(events: &[responses::Event]) -> Vec<&str> {
    let first = events.iter().filter(|event| event.is_documented() && event.data["output_index"] == 0);
    first.map(|event| event.kind.trim_start_matches("response.")).collect()
}

fn output(events: &[responses::Event]) -> Vec<Value> {
    let last = events.last().expect("something is said");
    assert!(last.is_last(), "{last:?}");
    last.data["response"]["output"].as_array().expect("items").clone()
}

fn json_part(value: &Value) -> Content {
    Content::Json(value.to_string())
}

fn data(media_type: &str, bytes: &'static [u8]) -> Content {
    Content::Data { media_type: media_type.to_owned(), data: Bytes::from_static(bytes) }
}

/// An object that holds a part of the call's result.
fn object(media_type: &str) -> (Content, String) {
    let pool = "alpha".parse().expect("a pool");
    let id = ObjectId::Result { run: run_id(), call: CallIndex(0), pool, nonce: Nonce(7) };
    let path = format!("/v1/objects/{id}");
    let preview = "[the result was cut here]".to_owned();
    let object = Object { id, media_type: media_type.to_owned(), size: 9, sha256: [7; 32], preview };
    (Content::Object(Box::new(object)), path)
}

fn search() -> (Vec<Content>, Value) {
    let page = |index: u64| {
        let url = format!("https://x.example/{index}");
        json!({ "index": index, "title": format!("Page {index}"), "url": url, "snippet": "…" })
    };
    let found = json!({ "query": "moon", "results": [page(1), page(2)] });
    (vec![json_part(&found), Content::Text("Ü: so it is [2], and so [1].".to_owned())], found)
}

#[test]
fn code_is_shown_with_its_logs_and_images() {
    let logs = |channel, text: &str| (channel, Content::Text(text.to_owned()));
    let files = json!([{ "name": "a.png", "size": 3 }, { "name": "b.csv", "size": 2 }]);
    let summary = json!({ "logs": "one\n", "exit_code": 3, "files": files });
    let (stored, path) = object("image/jpeg");
    let result = vec![json_part(&summary), data("image/png", b"png"), data("text/csv", b"a,"), stored];
    let call = tool("code_interpreter", &json!({ "code": "print('one')" }), repeatable("a"));
    let events = told([says([logs("logs", "one\n"), logs("logs.stderr", "oh\n")]), ends(2, result)], call);
    let expected = [
        "output_item.added",
        "code_interpreter_call.in_progress",
        "code_interpreter_call_code.delta",
        "code_interpreter_call_code.done",
        "code_interpreter_call.interpreting",
        "code_interpreter_call.completed",
        "output_item.done",
    ];
    assert_eq!(names(&events), expected);
    let added = events.iter().find(|event| event.kind == "response.output_item.added").expect("it is added");
    assert_eq!((&added.data["item"]["code"], &added.data["item"]["outputs"]), (&json!(""), &Value::Null));
    let items = output(&events);
    assert_eq!((&items[0]["type"], &items[0]["code"]), (&json!("code_interpreter_call"), &json!("print('one')")));
    assert!(items[0]["container_id"].as_str().is_some_and(|id| id.starts_with("cntr_")), "{items:?}");
    let image = |url: &str| json!({ "type": "image", "url": url });
    let logs = json!({ "type": "logs", "logs": "one\noh\n" });
    assert_eq!(items[0]["outputs"], json!([logs, image("data:image/png;base64,cG5n"), image(&path)]));
    assert_eq!(
        (&items[0]["toolyard"]["exit_code"], &items[0]["toolyard"]["files"][1]["name"]),
        (&json!(3), &json!("b.csv"))
    );

    let call = tool("code_interpreter", &json!({ "code": "1" }), repeatable("a"));
    let failed = output(&told([says([("logs", Content::Text("one\n".to_owned()))]), failed(0, 1)], call));
    assert_eq!((&failed[0]["status"], &failed[0]["outputs"][0]["logs"]), (&json!("failed"), &json!("one\n")));
}

#[test]
fn a_web_search_names_its_sources_and_a_final_one_cites_them() {
    let (result, _) = search();
    let call = tool("web_search", &json!({ "query": "moon" }), last_word(repeatable("a")));
    let events = told([ends(0, result)], call);
    let expected = [
        "output_item.added",
        "web_search_call.in_progress",
        "web_search_call.searching",
        "web_search_call.completed",
        "output_item.done",
    ];
    assert_eq!(names(&events), expected);
    let items = output(&events);
    let source = |number: u32| json!({ "type": "url", "url": format!("https://x.example/{number}") });
    let action = json!({ "type": "search", "query": "moon", "queries": ["moon"], "sources": [source(1), source(2)] });
    assert_eq!((&items[0]["action"], &items[0]["status"]), (&action, &json!("completed")));
    let content = items[1]["content"].as_array().expect("parts");
    assert_eq!((content.len(), &content[0]["text"]), (1, &json!("Ü: so it is [2], and so [1].")));
    let cites = |number: u32, start: u32| {
        json!({ "type": "url_citation", "start_index": start, "end_index": start + 3,
        "url": format!("https://x.example/{number}"), "title": format!("Page {number}") })
    };
    let citations = [cites(2, 12), cites(1, 24)];
    assert_eq!(content[0]["annotations"], json!(citations));
    let added: Vec<&Value> = events
        .iter()
        .filter(|event| event.kind == "response.output_text.annotation.added")
        .map(|event| &event.data["annotation"])
        .collect();
    assert_eq!(added, citations.iter().collect::<Vec<_>>());
}

#[test]
fn an_answer_about_files_cites_each_file_once() {
    let passage = |id: &str| {
        let name = format!("{id}.md");
        json!({ "file_id": id, "filename": name, "score": 0.5, "text": "…", "attributes": {} })
    };
    let found = json!({ "query": "moon", "results": [passage("f1"), passage("f2"), passage("f1")] });
    let result = vec![Content::Text("It is so.".to_owned()), json_part(&found)];
    let call = tool("file_search", &json!({ "query": "moon", "final": true }), last_word(repeatable("a")));
    let items = output(&told([ends(0, result)], call));
    assert_eq!((&items[0]["queries"], &items[0]["results"]), (&json!(["moon"]), &found["results"]));
    let cites = |index: u32, id: &str| {
        let name = format!("{id}.md");
        json!({ "type": "file_citation", "index": index, "file_id": id, "filename": name })
    };
    let cited = [cites(0, "f1"), cites(1, "f2")];
    let content = json!({ "type": "output_text", "text": "It is so.", "annotations": cited, "logprobs": [] });
    assert_eq!(items[1]["content"], json!([content]));
}

#[test]
fn a_final_result_with_sources_of_its_own_cites_these() {
    let page = Citation::url("https://a.example", "").at(3..3);
    let sources = vec![page, Citation::file("f1", "a.md").at(4..99)];
    let cited = || Content::Cited(Box::new(CitedText { text: "Über a [1]".to_owned(), citations: sources.clone() }));
    let found = json!({ "results": [{ "url": "https://b.example" }] });
    let call = tool("web_search", &json!({ "query": "a" }), last_word(repeatable("a")));
    let items = output(&told([ends(0, vec![cited(), json_part(&found)])], call.clone()));
    let url = "https://a.example";
    let annotations = json!([
        { "type": "url_citation", "start_index": 0, "end_index": 10, "url": url, "title": url },
        { "type": "file_citation", "index": 1, "file_id": "f1", "filename": "a.md" },
    ]);
    assert_eq!(items[0]["toolyard"]["annotations"], annotations);
    let content = json!({ "type": "output_text", "text": "Über a [1]", "annotations": annotations, "logprobs": [] });
    assert_eq!(items[1]["content"], json!([content]));

    let mut story = Story::of([call]);
    story.tell_all([dispatched(0), started(0, 1), ends(0, vec![cited()])]);
    let mut stream = assistants::Stream::new(run_id(), "thread_1");
    tell(&story.log).iter().for_each(|told| drop(stream.take(&told.event, &told.run)));
    let annotation = json!({ "type": "file_citation", "text": " a [1]", "start_index": 4, "end_index": 10,
        "file_citation": { "file_id": "f1" } });
    assert_eq!(stream.messages()[0]["content"][0]["text"]["annotations"], json!([annotation]));
}

#[test]
fn partial_images_are_shown_when_they_are_complete() {
    let announced = |index: u32, bytes: usize| {
        let image = json!({ "index": index, "media_type": "image/webp", "size_bytes": bytes });
        ("partial_image", json_part(&json!({ "partial_image": image })))
    };
    let piece = |bytes| ("partial_image", data("image/webp", bytes));
    let large = 64 << 20;
    let chunks = [
        announced(0, 6),
        piece(b"one"),
        piece(b"two"),
        // It does not arrive as a whole.
        announced(1, 6),
        piece(b"one"),
        announced(2, large),
        piece(b"one"),
        announced(3, 3),
        piece(b"end"),
        // An image in one piece, as other tools send it.
        ("", data("image/png", b"own")),
    ];
    let events = told(
        [says(chunks), ends(10, vec![data("image/png", b"png")])],
        tool("image_generation", &json!({}), repeatable("a")),
    );
    let partial: Vec<(Value, Value, Value)> = events
        .iter()
        .filter(|event| event.kind == "response.image_generation_call.partial_image")
        .map(|event| {
            ["partial_image_index", "partial_image_b64", "output_format"].map(|name| event.data[name].clone()).into()
        })
        .collect();
    let image = |index: u32, bytes, format: &str| (json!(index), json!(BASE64_STANDARD.encode(bytes)), json!(format));
    assert_eq!(partial, [image(0, "onetwo", "webp"), image(3, "end", "webp"), image(4, "own", "png")]);
    assert_eq!(output(&events)[0]["result"], "cG5n");
}

#[test]
fn a_stored_image_has_a_url_in_place_of_its_bytes() {
    let (stored, path) = object("image/png");
    let summary =
        json!({ "media_type": "image/png", "url": path, "revised_prompt": "a cat", "size": "1024x1024", "usage": {} });
    let call = tool("image_generation", &json!({ "prompt": "cat" }), repeatable("a"));
    let item = output(&told([ends(0, vec![json_part(&summary), stored])], call)).remove(0);
    assert_eq!(
        (&item["status"], &item["result"], &item["toolyard"]["url"]),
        (&json!("completed"), &json!(path), &json!(path))
    );
    assert_eq!((&item["revised_prompt"], &item["size"]), (&json!("a cat"), &json!("1024x1024")));
}

#[test]
fn a_stored_image_is_shown_inline_if_its_bytes_are_kept() {
    let (stored, path) = object("image/png");
    let call = tool("image_generation", &json!({ "prompt": "cat" }), repeatable("a"));
    let mut story = Story::of([call]);
    story.tell_all([dispatched(0), started(0, 1), ends(0, vec![stored])]);
    let mut stream = responses::Stream::new(run_id(), responses::Items::OneByOne);
    stream.keep(path.trim_start_matches("/v1/objects/").to_owned(), Bytes::from_static(b"png"));
    let events: Vec<_> = tell(&story.log).iter().flat_map(|told| stream.take(&told.event, &told.run)).collect();
    let item = output(&events).remove(0);
    assert_eq!((&item["result"], &item["toolyard"]["url"]), (&json!("cG5n"), &json!(path)));
    let response = &events.last().expect("the last event").data["response"];
    assert_eq!(response["toolyard"]["input"][0]["output"][0]["image_url"], "data:image/png;base64,cG5n");
}

#[test]
fn a_link_of_a_final_tool_is_markdown_in_its_message() {
    let link = json!({ "type": "link", "url": "https://x.example/a", "title": "The [page]" });
    let image = json!({ "type": "image_url", "image_url": { "url": "https://x.example/b.png" } });
    let call = tool("find", &json!({}), last_word(repeatable("a")));
    let items = output(&told([ends(0, vec![json_part(&link), json_part(&image)])], call));
    let texts: Vec<&Value> = items[1]["content"].as_array().expect("parts").iter().map(|part| &part["text"]).collect();
    assert_eq!(texts, ["[The  page ](https://x.example/a)", "![image](https://x.example/b.png)"]);
}

#[test]
fn the_name_that_the_client_used_decides_and_then_the_tools_own() {
    let named = |tool_name: &str, called_as: &str| {
        let mut spec = tool(tool_name, &json!({ "query": "moon" }), repeatable("a"));
        if !called_as.is_empty() {
            spec.metadata.insert(proto::names::CALLED_AS.to_owned(), called_as.to_owned());
        }
        output(&told([ends(0, search().0)], spec)).remove(0)["type"].clone()
    };
    assert_eq!(named("tavily_search", "web_search"), "web_search_call");
    assert_eq!(named("tavily_search", "corp.web_search"), "web_search_call");
    assert_eq!(named("web_search", "ask_the_web"), "web_search_call");
    assert_eq!(named("tavily_search", "ask_the_web"), "mcp_call");
    assert_eq!(named("tavily_search", ""), "mcp_call");
}

#[test]
fn a_cancelled_call_has_a_status_that_its_item_type_knows() {
    for (name, status) in [
        ("web_search", "failed"),
        ("image_generation", "failed"),
        ("file_search", "incomplete"),
        ("code_interpreter", "incomplete"),
    ] {
        let cancelled = ended_as(attempt(0, 1), "alpha", 0, AttemptOutcome::Cancelled);
        let items = output(&told([run_cancel_requested(), cancelled], tool(name, &json!({}), repeatable("a"))));
        assert_eq!(
            (&items[0]["status"], &items[0]["toolyard"]["state"]),
            (&json!(status), &json!("CANCELLED")),
            "{name}"
        );
    }
}
