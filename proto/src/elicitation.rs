//! Questions of running tools and their answers, in the form of MCP's elicitations: a question is a client call whose
//! arguments are those of `elicitation/create`, and its answer is an action and, if the action is to accept, content
//! that fits the requested schema.

use bytes::Bytes;
use run::{Content, Violation};
use schema::{InvalidSchema, Schema};
use serde_json::{Map, Value, json};

/// A question to the client.
#[derive(Debug, Clone, PartialEq)]
pub struct Elicitation {
    /// What is asked, for a person.
    pub message: String,
    pub asks: Asks,
}

/// What the answer must hold.
#[derive(Debug, Clone, PartialEq)]
pub enum Asks {
    /// An object that fits this JSON Schema.
    Form { schema: Value },
    /// Nothing: the person opens a page, and the answer tells only whether they agreed to.
    Url { url: String, id: String },
}

/// The client's answer to a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// With the content that was asked for; empty for a page.
    Accept(Map<String, Value>),
    /// The person refused.
    Decline,
    /// The person dismissed the question without a choice.
    Cancel,
}

impl Elicitation {
    /// The arguments of the question's call.
    #[must_use]
    pub fn to_arguments(&self) -> Bytes {
        let arguments = match &self.asks {
            Asks::Form { schema } => json!({ "message": self.message, "requestedSchema": schema }),
            Asks::Url { url, id } => {
                json!({ "mode": "url", "message": self.message, "url": url, "elicitationId": id })
            }
        };
        arguments.to_string().into()
    }

    /// The question of a call with these arguments; `None` if they are none.
    #[must_use]
    pub fn of_arguments(arguments: &[u8]) -> Option<Self> {
        let mut arguments: Value = serde_json::from_slice(arguments).ok()?;
        let message = arguments["message"].as_str()?.to_owned();
        let asks = match arguments["url"].as_str() {
            Some(url) => Asks::Url {
                url: url.to_owned(),
                id: arguments["elicitationId"].as_str().unwrap_or_default().to_owned(),
            },
            None => Asks::Form { schema: arguments.get_mut("requestedSchema").map_or(json!({}), Value::take) },
        };
        Some(Self { message, asks })
    }

    /// The compiled schema of the answer's content; `None` for a page.
    ///
    /// # Errors
    /// The schema cannot be used.
    pub fn schema(&self) -> Result<Option<Schema>, InvalidSchema> {
        match &self.asks {
            Asks::Form { schema } => {
                let mut schema = schema.clone();
                // MCP servers name older dialects, in which the flat schemas of questions mean the same.
                if let Some(schema) = schema.as_object_mut() {
                    schema.remove("$schema");
                }
                Schema::compile(&schema.to_string()).map(Some)
            }
            Asks::Url { .. } => Ok(None),
        }
    }

    /// Reads an answer: `{"action": …, "content": …}`, whatever other members it has, or content alone, which accepts.
    /// If one value is asked for, the value alone is content too. If the schema has a property `action`, an object
    /// without a member `content` is content.
    ///
    /// # Errors
    /// The places in which the answer does not fit the question.
    pub fn read(&self, output: &[Content]) -> Result<Reply, Vec<Violation>> {
        let text = match output {
            [Content::Text(text) | Content::Json(text)] => text.as_str(),
            _ => return Err(vec![Violation::new("", "one text or one JSON value was expected")]),
        };
        let reply = match serde_json::from_str(text) {
            Ok(Value::Object(fields)) => self.of_fields(fields)?,
            value => self.of_value(value.ok(), text)?,
        };
        self.fits(reply)
    }

    /// Reads the result of an `elicitation/create`: an action, and its content if it accepts.
    ///
    /// # Errors
    /// The places in which it is no such result, or its content does not fit the question.
    pub fn read_result(&self, result: Value) -> Result<Reply, Vec<Violation>> {
        match result {
            Value::Object(fields) => self.fits(of_result(fields)?),
            _ => Err(vec![Violation::new("", "an object with an \"action\" was expected")]),
        }
    }

    /// The reply, if its content fits the schema.
    fn fits(&self, reply: Reply) -> Result<Reply, Vec<Violation>> {
        if let Reply::Accept(content) = &reply
            && let Ok(Some(schema)) = self.schema()
        {
            schema.check(Value::Object(content.clone()).to_string().as_bytes())?;
        }
        Ok(reply)
    }

    fn of_fields(&self, fields: Map<String, Value>) -> Result<Reply, Vec<Violation>> {
        // A refusal must never be read as content, because content accepts.
        let has_action = match &self.asks {
            Asks::Form { .. } => fields.contains_key("action"),
            Asks::Url { .. } => true,
        };
        let asks_for_action = self.properties().is_some_and(|properties| properties.contains_key("action"));
        if has_action && (!asks_for_action || fields.contains_key("content")) {
            return of_result(fields);
        }
        Ok(Reply::Accept(fields))
    }

    /// An answer that is no object. `text` is what was written.
    fn of_value(&self, value: Option<Value>, text: &str) -> Result<Reply, Vec<Violation>> {
        let mut properties = self.properties().into_iter().flatten();
        let (Some((name, schema)), None) = (properties.next(), properties.next()) else {
            return match text.trim() {
                "accept" => Ok(Reply::Accept(Map::new())),
                "decline" => Ok(Reply::Decline),
                "cancel" => Ok(Reply::Cancel),
                _ => Err(vec![Violation::new(
                    "",
                    "a JSON object with the requested values was expected, or one with an \"action\"",
                )]),
            };
        };
        let own = match (schema["type"].as_str(), value) {
            (Some("string"), Some(Value::String(own))) => Value::String(own),
            (Some("string"), _) | (_, None) => Value::String(text.to_owned()),
            (_, Some(value)) => value,
        };
        Ok(Reply::Accept([(name.clone(), own)].into_iter().collect()))
    }

    fn properties(&self) -> Option<&Map<String, Value>> {
        match &self.asks {
            Asks::Form { schema } => schema["properties"].as_object(),
            Asks::Url { .. } => None,
        }
    }
}

fn of_result(mut fields: Map<String, Value>) -> Result<Reply, Vec<Violation>> {
    match fields.get("action").and_then(Value::as_str) {
        Some("accept") => match fields.remove("content") {
            Some(Value::Object(content)) => Ok(Reply::Accept(content)),
            None | Some(Value::Null) => Ok(Reply::Accept(Map::new())),
            Some(_) => Err(vec![Violation::new("/content", "an object was expected")]),
        },
        Some("decline") => Ok(Reply::Decline),
        Some("cancel") => Ok(Reply::Cancel),
        Some(_) | None => Err(vec![Violation::new("/action", "\"accept\", \"decline\" or \"cancel\" was expected")]),
    }
}

impl Reply {
    /// The answer in the one form that is stored. It always has content, so that the action is never taken for a
    /// property of that name.
    #[must_use]
    pub fn to_content(&self) -> Content {
        Content::Json(self.to_json())
    }

    /// As [`Self::to_content`], as JSON.
    #[must_use]
    pub fn to_json(&self) -> String {
        let reply = match self {
            Self::Accept(content) => json!({ "action": "accept", "content": content }),
            Self::Decline => json!({ "action": "decline", "content": null }),
            Self::Cancel => json!({ "action": "cancel", "content": null }),
        };
        reply.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks(schema: Value) -> Elicitation {
        Elicitation { message: "Which?".to_owned(), asks: Asks::Form { schema } }
    }

    fn one() -> Elicitation {
        asks(json!({ "type": "object", "properties": { "colour": { "type": "string", "enum": ["red", "blue"] } } }))
    }

    fn two() -> Elicitation {
        let properties = json!({ "name": { "type": "string" }, "age": { "type": "integer", "minimum": 0 } });
        asks(json!({ "type": "object", "properties": properties, "required": ["name"] }))
    }

    fn read(question: &Elicitation, answer: &str) -> Result<Reply, Vec<Violation>> {
        question.read(&[Content::Text(answer.to_owned())])
    }

    fn accepted(content: Value) -> Reply {
        let Value::Object(content) = content else { panic!("it is an object") };
        Reply::Accept(content)
    }

    #[test]
    fn a_question_is_read_back_from_its_arguments() {
        let url = Asks::Url { url: "https://login.example".to_owned(), id: "e1".to_owned() };
        let page = Elicitation { message: "Log in".to_owned(), asks: url };
        for question in [one(), two(), page] {
            assert_eq!(Elicitation::of_arguments(&question.to_arguments()), Some(question));
        }
        assert_eq!(Elicitation::of_arguments(b"{}"), None);
    }

    #[test]
    fn an_answer_is_an_action_with_content_or_content_alone() {
        let whole = r#"{"action":"accept","content":{"name":"Ada","age":36}}"#;
        let expected = accepted(json!({ "name": "Ada", "age": 36 }));
        assert_eq!(read(&two(), whole), Ok(expected.clone()));
        assert_eq!(read(&two(), r#"{"name":"Ada","age":36}"#), Ok(expected));
        assert_eq!(read(&two(), r#"{"action":"decline"}"#), Ok(Reply::Decline));
        assert_eq!(read(&two(), r#"{"action":"cancel","content":{}}"#), Ok(Reply::Cancel));
    }

    #[test]
    fn a_value_alone_answers_a_question_for_one_value() {
        assert_eq!(read(&one(), "red"), Ok(accepted(json!({ "colour": "red" }))));
        assert_eq!(read(&one(), "\"red\""), Ok(accepted(json!({ "colour": "red" }))));
        let count = asks(json!({ "type": "object", "properties": { "count": { "type": "integer" } } }));
        assert_eq!(read(&count, "7"), Ok(accepted(json!({ "count": 7 }))));
        assert!(read(&count, "seven").is_err());
        assert!(read(&two(), "Ada").is_err(), "there are two");
    }

    #[test]
    fn an_answer_that_does_not_fit_is_refused_with_its_places() {
        let paths = |question: &Elicitation, answer: &str| {
            let violations = read(question, answer).expect_err(answer);
            violations.into_iter().map(|violation| violation.path).collect::<Vec<_>>()
        };
        assert_eq!(paths(&two(), r#"{"name":"Ada","age":-1}"#), ["/age"]);
        assert_eq!(paths(&two(), "{}"), [""]);
        assert_eq!(paths(&one(), "green"), ["/colour"]);
        assert_eq!(paths(&one(), r#"{"action":"agree"}"#), ["/action"]);
        assert_eq!(paths(&one(), r#"{"action":"accept","content":7}"#), ["/content"]);
        assert!(one().read(&[]).is_err());
    }

    #[test]
    fn a_page_is_answered_with_an_action() {
        let url = Asks::Url { url: "https://login.example".to_owned(), id: String::new() };
        let page = Elicitation { message: "Log in".to_owned(), asks: url };
        assert_eq!(read(&page, "accept"), Ok(Reply::Accept(Map::new())));
        assert_eq!(read(&page, r#"{"action":"decline"}"#), Ok(Reply::Decline));
        assert!(read(&page, "yes").is_err());
    }

    #[test]
    fn a_property_that_is_called_action_is_no_action() {
        let question = asks(json!({ "type": "object", "properties": { "action": { "type": "string" } } }));
        assert_eq!(read(&question, r#"{"action":"decline"}"#), Ok(accepted(json!({ "action": "decline" }))));
        assert_eq!(read(&question, r#"{"action":"decline","content":null}"#), Ok(Reply::Decline));
    }

    #[test]
    fn an_action_is_one_whatever_stands_beside_it() {
        let open = asks(json!({ "type": "object", "properties": { "name": { "type": "string" } } }));
        let url = Asks::Url { url: "https://login.example".to_owned(), id: String::new() };
        let page = Elicitation { message: "Log in".to_owned(), asks: url };
        for question in [&open, &page] {
            assert_eq!(read(question, r#"{"action":"decline","reason":"no"}"#), Ok(Reply::Decline));
            assert_eq!(read(question, r#"{"action":"cancel","x":1}"#), Ok(Reply::Cancel));
            assert!(read(question, r#"{"action":"no","reason":"no"}"#).is_err(), "it is no consent");
        }
        let whole = r#"{"action":"accept","content":{"name":"Ada"},"x":1}"#;
        assert_eq!(read(&open, whole), Ok(accepted(json!({ "name": "Ada" }))));
        assert!(read(&page, r#"{"agreed":false}"#).is_err(), "a page has no content that could accept");
    }

    #[test]
    fn the_stored_form_means_the_same() {
        let named = asks(json!({ "type": "object", "properties": { "action": { "type": "string" } } }));
        for question in [one(), named] {
            for reply in [accepted(json!({ "colour": "red" })), Reply::Decline, Reply::Cancel] {
                assert_eq!(question.read(&[reply.to_content()]), Ok(reply));
            }
        }
    }
}
