//! Questions to a client's user, as elicitation: a call that only its client can answer, and a call that awaits
//! approval. The schema of an elicitation is flat, so an answer of another form is asked for as text.

use proto::v1;
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
    pub message: String,
    /// The requested schema.
    pub schema: Value,
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

/// Why a reply was not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidReply(pub String);

impl Question {
    /// The question of a running tool. `arguments`: the parameters of `elicitation/create`.
    #[must_use]
    pub fn of_tool(arguments: &str) -> Self {
        let mut given: Value = serde_json::from_str(arguments).unwrap_or_default();
        let message = given["message"].as_str().unwrap_or_default().to_owned();
        // The protocol does not know a name for a question; it is the key of the question instead.
        if let Some(schema) = given.get_mut("requestedSchema").and_then(Value::as_object_mut) {
            schema.remove("title");
        }
        Self { message, schema: given["requestedSchema"].clone(), kind: Kind::Elicitation, given: Some(given) }
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

    /// Whether the user is asked to open a page.
    #[must_use]
    pub fn is_page(&self) -> bool {
        self.given.as_ref().is_some_and(|given| given["mode"] == "url")
    }

    /// The question of a call that waits for its client. `output_schema`: the form of its result; may be empty.
    #[must_use]
    pub fn of_client_call((tool, description): (&str, &str), arguments: &str, output_schema: &str) -> Self {
        let arguments: Value = serde_json::from_str(arguments).unwrap_or_default();
        let own = ["message", "question", "prompt"].into_iter().find_map(|name| arguments[name].as_str());
        let message = own.map_or_else(|| described(tool, description, &arguments), str::to_owned);
        let output = serde_json::from_str(output_schema).unwrap_or_default();
        // A tool whose purpose is to ask has the schema in its arguments.
        let (schema, kind) = match flat(&arguments["requestedSchema"]).or_else(|| flat(&output)) {
            Some(schema) => (schema, Kind::Form),
            None => {
                let answer = json!({ "type": "string", "title": "Answer", "description": "The result of the call." });
                (json!({ "type": "object", "properties": { ANSWER: answer }, "required": [ANSWER] }), Kind::Text)
            }
        };
        Self { message, schema, kind, given: None }
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
        Self { message, schema, kind: Kind::Approval, given: None }
    }

    /// The parameters of `elicitation/create`.
    #[must_use]
    pub fn params(&self) -> Value {
        if let Some(given) = &self.given {
            return given.clone();
        }
        json!({ "mode": "form", "message": self.message, "requestedSchema": self.schema })
    }

    /// Reads the result of `elicitation/create`.
    ///
    /// # Errors
    /// If it is not such a result, or does not have the requested form.
    pub fn reply(&self, result: &Value) -> Result<Reply, InvalidReply> {
        let invalid = |what: &str| InvalidReply(what.to_owned());
        let action =
            result["action"].as_str().ok_or_else(|| invalid("an elicitation result with an action is needed"))?;
        let refused = |what: &str| match self.kind {
            Kind::Elicitation => Reply::Answer(json_content(result.to_string())),
            Kind::Form | Kind::Text => Reply::Declined(what.to_owned()),
            Kind::Approval => Reply::Rejected(what.to_owned()),
        };
        match action {
            "accept" => {}
            "decline" => return Ok(refused("the user declined")),
            "cancel" => return Ok(refused("the user dismissed the question")),
            other => return Err(InvalidReply(format!("the action {other:?} is not accept, decline or cancel"))),
        }
        if self.is_page() {
            return Ok(Reply::Answer(json_content(result.to_string())));
        }
        let content = result["content"].as_object().ok_or_else(|| invalid("an accepted answer needs content"))?;
        self.check(content)?;
        Ok(match self.kind {
            Kind::Elicitation => Reply::Answer(json_content(result.to_string())),
            Kind::Form => Reply::Answer(json_content(result["content"].to_string())),
            Kind::Text => Reply::Answer(text_content(content[ANSWER].as_str().unwrap_or_default())),
            Kind::Approval if content[APPROVE] == true => Reply::Approved,
            Kind::Approval => {
                let why = content.get(REASON).and_then(Value::as_str).filter(|why| !why.is_empty());
                Reply::Rejected(why.unwrap_or("the user did not approve").to_owned())
            }
        })
    }

    /// Required members must be there, and known ones of their type.
    fn check(&self, content: &Map<String, Value>) -> Result<(), InvalidReply> {
        let required = self.schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
        if let Some(missing) = required.into_iter().find(|name| !content.contains_key(*name)) {
            return Err(InvalidReply(format!("the answer lacks {missing:?}")));
        }
        let wrong = content.iter().find(|(name, value)| {
            let kind = self.schema["properties"][name.as_str()]["type"].as_str();
            kind.is_some_and(|kind| !is_of(value, kind))
        });
        match wrong {
            Some((name, _)) => Err(InvalidReply(format!("the answer's {name:?} does not have the requested type"))),
            None => Ok(()),
        }
    }
}

fn text_content(text: &str) -> v1::Content {
    v1::Content { body: Some(v1::content::Body::Text(text.to_owned())) }
}

fn json_content(json: String) -> v1::Content {
    v1::Content { body: Some(v1::content::Body::Json(json)) }
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "array" => value.is_array(),
        _ => true,
    }
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

    #[test]
    fn a_client_call_is_asked_for_in_the_form_of_its_result() {
        let output = r#"{"$schema":"x","type":"object","properties":{"age":{"type":"integer"}},"required":["age"]}"#;
        let question = Question::of_client_call(("ask_age", "Asks."), r#"{"message":"How old?"}"#, output);
        assert_eq!(question.message, "How old?");
        let schema = json!({ "type": "object", "properties": { "age": { "type": "integer" } }, "required": ["age"] });
        assert_eq!(question.params()["requestedSchema"], schema);
        let reply = question.reply(&accepted(json!({ "age": 7 })));
        assert_eq!(reply, Ok(Reply::Answer(json_content(r#"{"age":7}"#.to_owned()))));
        for wrong in [accepted(json!({ "age": "7" })), accepted(json!({})), json!(12345), json!({ "action": "maybe" })]
        {
            assert!(question.reply(&wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            question.reply(&json!({ "action": "decline" })),
            Ok(Reply::Declined("the user declined".to_owned()))
        );
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
        for result in [json!({ "action": "decline" }), accepted(json!({}))] {
            assert_eq!(question.reply(&result), Ok(Reply::Answer(json_content(result.to_string()))));
        }
    }

    #[test]
    fn an_answer_of_another_form_is_text() {
        let question = Question::of_client_call(("locate", "Finds the user."), r#"{"exact":true}"#, "");
        assert_eq!(question.message, "locate: Finds the user.\n{\"exact\":true}");
        let reply = question.reply(&accepted(json!({ "answer": "here" })));
        assert_eq!(reply, Ok(Reply::Answer(text_content("here"))));
    }

    #[test]
    fn an_approval_is_given_by_yes_alone() {
        let question = Question::of_approval(("rm", "Deletes."), r#"{"path":"/x"}"#);
        assert!(question.message.contains("/x"), "{}", question.message);
        assert_eq!(question.reply(&accepted(json!({ "approve": true }))), Ok(Reply::Approved));
        let no = question.reply(&accepted(json!({ "approve": false, "reason": "not that one" })));
        assert_eq!(no, Ok(Reply::Rejected("not that one".to_owned())));
        assert_eq!(
            question.reply(&json!({ "action": "decline" })),
            Ok(Reply::Rejected("the user declined".to_owned()))
        );
        assert!(question.reply(&accepted(json!({}))).is_err());
    }

    #[test]
    fn long_arguments_are_cut_where_a_character_ends() {
        let arguments = json!({ "text": "ä".repeat(SHOWN_MAX) }).to_string();
        let question = Question::of_approval(("say", ""), &arguments);
        assert!(question.message.ends_with(" …") && question.message.len() < SHOWN_MAX + 100);
    }
}
