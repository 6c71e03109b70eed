//! Agents whose messages have named values, which come from the arguments and the context of their call.

use harness::call;
use harness::model::{Asked, Line};
use proto::v1::{self, CallErrorKind, CallState};
use serde_json::{Value, json};

use crate::agents::Office;
use crate::check;

#[tokio::test]
async fn templates_put_arguments_and_context_into_the_messages_and_a_missing_value_is_named() {
    let agents = r#"
[agent.finder]
OPENAI
description = "Finds."
instruction_template = "You work for {context.team}."
input_template = "Find {topic} in {{{places}}}."
input_schema = { type = "object", properties = { topic = { type = "string" } } }
output_schema = { type = "integer" }
[agent.teller]
OPENAI
description = "Tells."
input_template = "Tell {input}"
"#;
    let script = [("owls", vec![Line::text("7")]), ("tales", vec![Line::text("Once.")])];
    let office = Office::start(agents, &script, 16).await;
    let tool = v1::GetToolRequest { name: "finder".to_owned() };
    let tool = office.yard.client.tools.clone().get_tool(tool).await.expect("it is there").into_inner().tool;
    assert_eq!(tool.expect("the response has the tool").context_keys, ["team"]);
    let given = |id: &str, arguments: Value| {
        let context = r#"{"team":"night","note":"s3cret"}"#.to_owned();
        v1::NewCall { context, ..call(id, "finder", arguments) }
    };
    let calls = vec![
        given("good", json!({ "topic": "owls {context.team}", "places": ["Rome", 7] })),
        given("no_places", json!({ "topic": "owls" })),
        call("no_team", "finder", json!({ "topic": "owls", "places": 1 })),
        call("text", "teller", json!({ "input": "tales" })),
    ];
    let outcomes = check::outcomes(&office.begin(calls).await.to_end().await);
    assert_eq!(outcomes["good"].result, [v1::Content::from(v1::content::Body::Json("7".to_owned()))]);
    assert_eq!(outcomes["text"].state(), CallState::Completed);
    for (id, name) in [("no_places", "\"places\""), ("no_team", "\"context.team\"")] {
        let error = outcomes[id].error.as_ref().expect("a value is missing");
        assert_eq!(error.kind(), CallErrorKind::NeedsInput, "{}", error.message);
        assert!(error.message.contains(name) && !error.message.contains("s3cret"), "{}", error.message);
    }
    let asked = office.model.asked();
    let texts = |asked: &Asked| -> Vec<String> {
        let messages = asked.body["messages"].as_array().expect("messages").iter();
        messages.map(|message| message["content"].as_str().expect("text").to_owned()).collect()
    };
    let told: Vec<Vec<String>> = asked.iter().map(texts).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    let of_finder = told.iter().find(|texts| texts.len() == 2).expect("the finder has an instruction");
    assert_eq!(of_finder[0], "You work for night.");
    let begin = r#"Find owls {context.team} in {["Rome",7]}."#;
    assert!(of_finder[1].starts_with(begin) && of_finder[1].ends_with(r#"{"type":"integer"}"#), "{of_finder:?}");
    assert!(told.contains(&vec!["Tell tales".to_owned()]), "{told:?}");
}
