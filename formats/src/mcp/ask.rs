//! Questions to a client's user, as elicitation: a call that only its client can answer, and a call that awaits
//! approval. The schema of an elicitation is flat, so an answer of another form is asked for as text.

use proto::choice::{ASK_USER, Choice};
use proto::elicitation::{self, Asks, Elicitation};
use proto::v1;
use run::Violation;
use serde_json::{Map, Value, json};

/// Bytes of arguments that a question shows.
const SHOWN_MAX: usize = 2048;
/// Bytes of a question's name.
const NAME_MAX: usize = 64;
/// The member of an answer whose form is not given.
const ANSWER: &str = "answer";
/// The member of a decision.
const APPROVE: &str = "approve";
const REASON: &str = "reason";

/// A question about an open call.
#[derive(Debug, Clone, PartialEq)]
pub struct Question {
    elicitation: Elicitation,
    kind: Kind,
    /// The parameters as a running tool gave them.
    given: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The answer is the whole result, a refusal included, because a running tool asked for it.
    Elicitation,
    /// The answer is the content as a whole.
    Form,
    /// The answer is the text in the content.
    Text,
    /// The answer is the array in the content.
    Several,
    Approval,
}

/// The user's reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// The answer to a client call.
    Answer(v1::Content),
    /// The client call is not answered, and why.
    Declined(String),
    Approved,
    Rejected(String),
}

impl Question {
    /// The question of a running tool. `arguments`: the parameters of `elicitation/create`.
    #[must_use]
    pub fn of_tool(arguments: &str) -> Self {
        let elicitation = Elicitation::of_arguments(arguments.as_bytes());
        let mut given: Value = serde_json::from_str(arguments).unwrap_or_default();
        // The protocol does not know a name for a question; it is the key of the question instead.
        if let Some(schema) = given.get_mut("requestedSchema").and_then(Value::as_object_mut) {
            schema.remove("title");
        }
        let elicitation = elicitation.unwrap_or_else(|| form(String::new(), json!({})));
        Self { elicitation, kind: Kind::Elicitation, given: Some(given) }
    }

    /// The name that a running tool gave its question: the title of the schema, if it can be a key.
    #[must_use]
    pub fn name(arguments: &str) -> Option<String> {
        let arguments: Value = serde_json::from_str(arguments).ok()?;
        let title = arguments["requestedSchema"]["title"].as_str()?;
        let is_key = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        let fits = (1..=NAME_MAX).contains(&title.len()) && title.chars().all(is_key);
        fits.then(|| title.to_owned())
    }

    /// Whether a running tool asks it.
    #[must_use]
    pub fn is_of_tool(&self) -> bool {
        self.kind == Kind::Elicitation
    }

    /// Whether the user is asked to open a page.
    #[must_use]
    pub fn is_page(&self) -> bool {
        matches!(self.elicitation.asks, Asks::Url { .. })
    }

    /// The question of a call that waits for its client. `output_schema`: the form of its result; may be empty.
    #[must_use]
    pub fn of_client_call((tool, description): (&str, &str), arguments: &str, output_schema: &str) -> Self {
        let choice = (tool == ASK_USER).then(|| Choice::of_arguments(arguments.as_bytes())).flatten();
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        let own = ["message", "question", "prompt"].into_iter().find_map(|name| arguments[name].as_str());
        let message = own.map_or_else(|| described(tool, description, &arguments), str::to_owned);
        let output = serde_json::from_str(output_schema).unwrap_or_default();
        // A tool whose purpose is to ask has the schema in its arguments.
        let (schema, kind) = match flat(&arguments["requestedSchema"]).or_else(|| flat(&output)) {
            Some(schema) => (schema, Kind::Form),
            None => {
                let (answer, kind) = choice.map_or_else(free_text, |choice| chosen(&choice));
                (json!({ "type": "object", "properties": { ANSWER: answer }, "required": [ANSWER] }), kind)
            }
        };
        Self { elicitation: form(message, schema), kind, given: None }
    }

    /// The question whether a call may be executed.
    #[must_use]
    pub fn of_approval((tool, description): (&str, &str), arguments: &str) -> Self {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        let approve = json!({ "type": "boolean", "title": "Approve", "description": "Execute the call." });
        let reason = json!({ "type": "string", "title": "Reason", "description": "Why not, for the model." });
        let schema = json!({
            "type": "object", "properties": { APPROVE: approve, REASON: reason }, "required": [APPROVE],
        });
        let message = format!("May this call be executed? {}", described(tool, description, &arguments));
        Self { elicitation: form(message, schema), kind: Kind::Approval, given: None }
    }

    /// The parameters of `elicitation/create`.
    #[must_use]
    pub fn params(&self) -> Value {
        if let Some(given) = &self.given {
            return given.clone();
        }
        let mut params: Value = serde_json::from_slice(&self.elicitation.to_arguments()).unwrap_or_default();
        params["mode"] = "form".into();
        params
    }

    /// Reads the result of `elicitation/create`.
    ///
    /// # Errors
    /// The places in which it is no such result, or does not have the requested form.
    pub fn reply(&self, result: Value) -> Result<Reply, Vec<Violation>> {
        let reply = self.elicitation.read_result(result)?;
        let why = match &reply {
            _ if self.kind == Kind::Elicitation => return Ok(Reply::Answer(json_content(reply.to_json()))),
            elicitation::Reply::Accept(content) => return Ok(self.accepted(content)),
            elicitation::Reply::Decline => "the user declined",
            elicitation::Reply::Cancel => "the user dismissed the question",
        };
        Ok(if self.kind == Kind::Approval { Reply::Rejected(why.to_owned()) } else { Reply::Declined(why.to_owned()) })
    }

    fn accepted(&self, content: &Map<String, Value>) -> Reply {
        let text = |name: &str| content.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        match self.kind {
            Kind::Elicitation | Kind::Form => Reply::Answer(json_content(Value::Object(content.clone()).to_string())),
            Kind::Several => {
                Reply::Answer(json_content(content.get(ANSWER).map_or_else(String::new, Value::to_string)))
            }
            Kind::Text => Reply::Answer(text_content(text(ANSWER).unwrap_or_default())),
            Kind::Approval if content.get(APPROVE) == Some(&Value::Bool(true)) => Reply::Approved,
            Kind::Approval => Reply::Rejected(text(REASON).unwrap_or("the user did not approve").to_owned()),
        }
    }
}

fn free_text() -> (Value, Kind) {
    (json!({ "type": "string", "title": "Answer", "description": "The result of the call." }), Kind::Text)
}

/// The schema of a choice. A schema cannot offer options beside free text, so its description names them.
fn chosen(choice: &Choice) -> (Value, Kind) {
    let Choice { options, is_multiple, is_free } = choice;
    let one = json!({ "type": "string", "enum": options });
    match (is_free, is_multiple) {
        (true, _) => {
            let description = format!("One of these, or another text: {}", options.join(", "));
            (json!({ "type": "string", "title": "Answer", "description": description }), Kind::Text)
        }
        (false, true) => (json!({ "type": "array", "title": "Answer", "items": one }), Kind::Several),
        (false, false) => (json!({ "type": "string", "title": "Answer", "enum": options }), Kind::Text),
    }
}

fn form(message: String, schema: Value) -> Elicitation {
    Elicitation { message, asks: Asks::Form { schema } }
}

fn text_content(text: &str) -> v1::Content {
    v1::Content::from(v1::content::Body::Text(text.to_owned()))
}

fn json_content(json: String) -> v1::Content {
    v1::Content::from(v1::content::Body::Json(json))
}

fn described(tool: &str, description: &str, arguments: &Value) -> String {
    let mut shown = arguments.to_string();
    if shown.len() > SHOWN_MAX {
        let end = (0..=SHOWN_MAX).rev().find(|end| shown.is_char_boundary(*end)).unwrap_or_default();
        shown.truncate(end);
        shown.push_str(" …");
    }
    let described = description.lines().next().unwrap_or_default();
    match (described, arguments.as_object().is_none_or(Map::is_empty)) {
        ("", true) => tool.to_owned(),
        ("", false) => format!("{tool} {shown}"),
        (_, true) => format!("{tool}: {described}"),
        (_, false) => format!("{tool}: {described}\n{shown}"),
    }
}

/// The schema with the members that an elicitation may have, if all its properties are of primitive types or choices.
fn flat(schema: &Value) -> Option<Value> {
    let properties = schema["properties"].as_object().filter(|all| !all.is_empty())?;
    if schema["type"] != "object" || !properties.values().all(is_primitive) {
        return None;
    }
    let mut flat = json!({ "type": "object", "properties": properties });
    if schema["required"].is_array() {
        flat["required"] = schema["required"].clone();
    }
    Some(flat)
}

fn is_primitive(schema: &Value) -> bool {
    match schema["type"].as_str() {
        Some("string" | "number" | "integer" | "boolean") => true,
        Some("array") => schema["items"]["enum"].is_array() || schema["items"]["anyOf"].is_array(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accepted(content: Value) -> Value {
        json!({ "action": "accept", "content": content })
    }

    fn message(question: &Question) -> String {
        question.params()["message"].as_str().expect("a text").to_owned()
    }

    #[test]
    fn a_client_call_is_asked_for_in_the_form_of_its_result() {
        let output = r#"{"$schema":"x","type":"object","properties":{"age":{"type":"integer"}},"required":["age"]}"#;
        let question = Question::of_client_call(("ask_age", "Asks."), r#"{"message":"How old?"}"#, output);
        assert_eq!(question.params()["message"], "How old?");
        let schema = json!({ "type": "object", "properties": { "age": { "type": "integer" } }, "required": ["age"] });
        assert_eq!(question.params()["requestedSchema"], schema);
        let reply = question.reply(accepted(json!({ "age": 7 })));
        assert_eq!(reply, Ok(Reply::Answer(json_content(r#"{"age":7}"#.to_owned()))));
        for wrong in [accepted(json!({ "age": "7" })), accepted(json!({})), json!(12345), json!({ "action": "maybe" })]
        {
            assert!(question.reply(wrong.clone()).is_err(), "{wrong}");
        }
        assert_eq!(question.reply(json!({ "action": "decline" })), Ok(Reply::Declined("the user declined".to_owned())));
    }

    #[test]
    fn a_running_tool_gets_the_whole_result_of_its_question_a_refusal_included() {
        let given = json!({ "message": "Sure?", "requestedSchema": { "type": "object", "properties": {} } });
        let mut named = given.clone();
        named["requestedSchema"]["title"] = "sure".into();
        assert_eq!(Question::name(&named.to_string()).as_deref(), Some("sure"));
        named["requestedSchema"]["title"] = "not a key".into();
        assert_eq!(Question::name(&named.to_string()), None);
        let question = Question::of_tool(&named.to_string());
        assert_eq!(question.params(), given);
        let refused = json!({ "action": "decline", "content": null });
        let given = [
            (json!({ "action": "decline" }), refused.clone()),
            (json!({ "action": "decline", "reason": "no", "_meta": {} }), refused),
            (accepted(json!({})), accepted(json!({}))),
        ];
        for (result, stored) in given {
            assert_eq!(question.reply(result), Ok(Reply::Answer(json_content(stored.to_string()))));
        }
    }

    #[test]
    fn a_refusal_is_no_property_of_that_name() {
        let schema = json!({ "type": "object", "properties": { "action": { "type": "string" } } });
        let question = Question::of_tool(&json!({ "message": "What?", "requestedSchema": schema }).to_string());
        let refused = json!({ "action": "decline", "content": null });
        let stored = question.reply(json!({ "action": "decline" }));
        assert_eq!(stored, Ok(Reply::Answer(json_content(refused.to_string()))));
    }

    #[test]
    fn a_page_is_refused_too() {
        let page = json!({ "mode": "url", "message": "Log in", "url": "https://login.example", "elicitationId": "1" });
        let question = Question::of_tool(&page.to_string());
        assert!(question.is_page() && question.params() == page);
        let refused = json!({ "action": "cancel", "content": null });
        let stored = question.reply(json!({ "action": "cancel", "why": "not now" }));
        assert_eq!(stored, Ok(Reply::Answer(json_content(refused.to_string()))));
        assert!(question.reply(json!({ "why": "not now" })).is_err());
    }

    #[test]
    fn an_answer_of_another_form_is_text() {
        let question = Question::of_client_call(("locate", "Finds the user."), r#"{"exact":true}"#, "");
        assert_eq!(question.params()["message"], "locate: Finds the user.\n{\"exact\":true}");
        let reply = question.reply(accepted(json!({ "answer": "here" })));
        assert_eq!(reply, Ok(Reply::Answer(text_content("here"))));
    }

    #[test]
    fn a_user_is_shown_the_options() {
        let asked = |more: Value| {
            let mut arguments = json!({ "question": "Which?", "options": ["tea", { "label": "coffee" }] });
            arguments.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            let question = Question::of_client_call((ASK_USER, "Asks."), &arguments.to_string(), "");
            let schema = question.params()["requestedSchema"]["properties"]["answer"].clone();
            (question, schema)
        };
        let (free, schema) = asked(json!({}));
        assert!(schema["description"].as_str().is_some_and(|text| text.contains("tea, coffee")), "{schema}");
        assert!(free.reply(accepted(json!({ "answer": "water" }))).is_ok());
        let (one, schema) = asked(json!({ "free_text": false }));
        assert_eq!(schema["enum"], json!(["tea", "coffee"]));
        assert_eq!(one.reply(accepted(json!({ "answer": "tea" }))), Ok(Reply::Answer(text_content("tea"))));
        assert!(one.reply(accepted(json!({ "answer": "water" }))).is_err());
        let (several, schema) = asked(json!({ "free_text": false, "multi_select": true }));
        assert_eq!((&schema["type"], &schema["items"]["enum"]), (&json!("array"), &json!(["tea", "coffee"])));
        let both = several.reply(accepted(json!({ "answer": ["tea", "coffee"] })));
        assert_eq!(both, Ok(Reply::Answer(json_content(r#"["tea","coffee"]"#.to_owned()))));
    }

    #[test]
    fn an_approval_is_given_by_yes_alone() {
        let question = Question::of_approval(("rm", "Deletes."), r#"{"path":"/x"}"#);
        assert!(message(&question).contains("/x"), "{}", message(&question));
        assert_eq!(question.reply(accepted(json!({ "approve": true }))), Ok(Reply::Approved));
        let no = question.reply(accepted(json!({ "approve": false, "reason": "not that one" })));
        assert_eq!(no, Ok(Reply::Rejected("not that one".to_owned())));
        assert_eq!(question.reply(json!({ "action": "decline" })), Ok(Reply::Rejected("the user declined".to_owned())));
        assert!(question.reply(accepted(json!({}))).is_err());
    }

    #[test]
    fn long_arguments_are_cut_where_a_character_ends() {
        let arguments = json!({ "text": "ä".repeat(SHOWN_MAX) }).to_string();
        let question = Question::of_approval(("say", ""), &arguments);
        assert!(message(&question).ends_with(" …") && message(&question).len() < SHOWN_MAX + 100);
    }
}
