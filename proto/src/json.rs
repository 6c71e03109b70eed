//! The JSON form of the API's messages: the protobuf JSON mapping, derived from the descriptors, so there is no second
//! list of fields.
//!
//! The writer uses the names of the `.proto` files, writes 64-bit numbers as numbers, and includes empty fields that
//! have no presence. The reader accepts everything that the mapping allows. Unknown fields are rejected with their
//! place.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::{Message, Name};
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage as _,
    SerializeOptions, Value,
};
use serde::de::DeserializeSeed as _;
use serde_json::Map;

use crate::DESCRIPTORS;

pub(crate) static POOL: LazyLock<DescriptorPool> = LazyLock::new(|| {
    DescriptorPool::decode(DESCRIPTORS).expect("the descriptors were made by the build of this program")
});

/// JSON that is not the expected message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {reason}")]
pub struct Unreadable {
    /// The place, such as `calls[0].tool`; empty for the whole message.
    pub field: String,
    pub reason: String,
}

impl Unreadable {
    fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self { field: field.into(), reason: reason.into() }
    }
}

fn descriptor<M: Name>() -> MessageDescriptor {
    POOL.get_message_by_name(&M::full_name()).expect("every message of ours is among the descriptors")
}

/// A message as JSON on one line, with its fields in the order of their numbers.
///
/// # Panics
/// The message is not one of this crate's.
#[must_use]
pub fn write<M: Message + Name>(message: &M) -> String {
    let mut text = Vec::new();
    write_into(&mut text, message);
    String::from_utf8(text).expect("JSON is text")
}

/// Appends the same JSON to `text`.
///
/// # Panics
/// See [`write`].
pub fn write_into<M: Message + Name>(text: &mut Vec<u8>, message: &M) {
    let mut dynamic = DynamicMessage::new(descriptor::<M>());
    dynamic.transcode_from(message).expect("a message fits its own descriptor");
    let options =
        SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false).skip_default_fields(false);
    let mut serializer = serde_json::Serializer::new(text);
    dynamic.serialize_with_options(&mut serializer, &options).expect("times are in range, and memory does not fail");
}

/// Reads a message. Fields given by the path of the request must not have other values in the text.
///
/// # Errors
/// The text is not the message; the error names the field.
pub fn read<M: Message + Name + Default>(text: &[u8], path: &[(&str, &str)]) -> Result<M, Unreadable> {
    once(&descriptor::<M>(), text)?;
    let mut json = serde_json::Deserializer::from_slice(text);
    let mut message = read_dynamic(&descriptor::<M>(), &mut json)?;
    json.end().map_err(|error| Unreadable::new("", error.to_string()))?;
    for (name, said) in path {
        let Some(field) = message.descriptor().get_field_by_name(name) else { continue };
        if let Some(other) = message.get_field(&field).as_str().filter(|other| !other.is_empty() && other != said) {
            let reason = format!("is {other:?} in the body and {said:?} in the path: send it in the path only");
            return Err(Unreadable::new(*name, reason));
        }
        message.set_field(&field, Value::String((*said).to_owned()));
    }
    typed(&message)
}

/// Reads a message whose fields are separate texts, as in the query of a URL. A repeated name is a list.
///
/// # Errors
/// A field is unknown, invalid, or repeated without being a list; the error names it.
pub fn read_fields<'a, M: Message + Name + Default>(
    fields: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Result<M, Unreadable> {
    let descriptor = descriptor::<M>();
    let mut object = Map::new();
    for (name, text) in fields {
        let field = descriptor.get_field_by_json_name(name).or_else(|| descriptor.get_field_by_name(name));
        let field = field.ok_or_else(|| Unreadable::new(name, unknown(&descriptor)))?;
        let value =
            simple(&field, text).ok_or_else(|| Unreadable::new(name, format!("{text:?} is neither true nor false")))?;
        if field.is_list() {
            let list = object.entry(field.name()).or_insert_with(|| serde_json::Value::Array(Vec::new()));
            list.as_array_mut().expect("the value was created as a list").push(value);
        } else if object.insert(field.name().to_owned(), value).is_some() {
            return Err(Unreadable::new(name, "is repeated: send it once"));
        }
    }
    typed(&read_dynamic(&descriptor, serde_json::Value::Object(object))?)
}

/// The error for an unknown field, with the names of the message's fields.
fn unknown(descriptor: &MessageDescriptor) -> String {
    let names: Vec<String> = descriptor.fields().map(|field| field.name().to_owned()).collect();
    format!("is unknown; known fields: {}", names.join(", "))
}

/// The mapping reads numbers, enums and times from texts, but not booleans.
fn simple(field: &FieldDescriptor, text: &str) -> Option<serde_json::Value> {
    match field.kind() {
        Kind::Bool => text.parse().ok().map(serde_json::Value::Bool),
        _ => Some(serde_json::Value::String(text.to_owned())),
    }
}

fn read_dynamic<'de, D>(descriptor: &MessageDescriptor, json: D) -> Result<DynamicMessage, Unreadable>
where
    D: serde::Deserializer<'de>,
{
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(json, &mut track);
    let read = DynamicMessage::deserialize_with_options(descriptor.clone(), tracked, &DeserializeOptions::new());
    read.map_err(|error| {
        let place = track.path().to_string();
        let place = if place == "." { "" } else { place.as_str() };
        Unreadable::new(place, explained(field_at(descriptor, place).as_ref(), error.to_string()))
    })
}

/// The field at a place such as `calls[0].tool`.
fn field_at(descriptor: &MessageDescriptor, place: &str) -> Option<FieldDescriptor> {
    let mut steps = place.split('.').map(|step| step.split('[').next().unwrap_or_default());
    let find = |message: &MessageDescriptor, name: &str| {
        message.get_field_by_name(name).or_else(|| message.get_field_by_json_name(name))
    };
    let mut field = find(descriptor, steps.next()?)?;
    for step in steps {
        let message = field.kind().as_message().cloned()?;
        field = find(&message, step)?;
    }
    Some(field)
}

/// The error in a field, in terms of the JSON form.
fn explained(field: Option<&FieldDescriptor>, error: String) -> String {
    let is_another_type = error.starts_with("invalid type");
    match field.map(FieldDescriptor::kind) {
        Some(Kind::String) if error.starts_with("invalid type: map") || error.starts_with("invalid type: sequence") => {
            r#"must be a string: write the JSON into it as text, as in "{\"a\":1}""#.to_owned()
        }
        Some(Kind::Enum(names)) if error.contains("enum value") => {
            let names: Vec<String> = names.values().map(|value| value.name().to_owned()).collect();
            format!("{error}: the values are {}", names.join(", "))
        }
        Some(
            Kind::Int32
            | Kind::Int64
            | Kind::Uint32
            | Kind::Uint64
            | Kind::Sint32
            | Kind::Sint64
            | Kind::Fixed32
            | Kind::Fixed64
            | Kind::Sfixed32
            | Kind::Sfixed64,
        ) if !is_another_type => format!("must be a whole number within its range: {error}"),
        _ => error,
    }
}

/// Rejects an object with a repeated member, because it would be ambiguous which value counts. A field of a message has
/// two names, which count as one.
fn once(descriptor: &MessageDescriptor, text: &[u8]) -> Result<(), Unreadable> {
    let mut track = serde_path_to_error::Track::new();
    let mut json = serde_json::Deserializer::from_slice(text);
    let seed = Once::Message(descriptor.clone());
    let read = seed.deserialize(serde_path_to_error::Deserializer::new(&mut json, &mut track));
    let error = match read {
        Err(error) if error.to_string().starts_with(TWICE) => error,
        // Other errors are reported when the message is read.
        Ok(()) | Err(_) => return Ok(()),
    };
    let place = track.path().to_string();
    Err(Unreadable::new(if place == "." { "" } else { place.as_str() }, error.to_string()))
}

const TWICE: &str = "is repeated";

/// JSON in which no object has a repeated member.
#[derive(Clone)]
enum Once {
    /// A message, or a list of them.
    Message(MessageDescriptor),
    /// An object whose values are such messages, and whose keys are chosen by the caller.
    Map(MessageDescriptor),
    /// Any other value: each member has one name.
    Plain,
}

impl Once {
    fn of(field: &FieldDescriptor) -> Self {
        let kind = field.kind();
        let Some(message) = kind.as_message() else { return Self::Plain };
        if field.is_map() {
            return message.map_entry_value_field().kind().as_message().map_or(Self::Plain, |of| Self::Map(of.clone()));
        }
        // The messages of protobuf itself have JSON forms of their own.
        match message.package_name() {
            "google.protobuf" => Self::Plain,
            _ => Self::Message(message.clone()),
        }
    }

    /// The field of a member, and the kind of its value.
    fn member(&self, name: &str) -> (Option<FieldDescriptor>, Self) {
        match self {
            Self::Message(message) => {
                let field = message.get_field_by_json_name(name).or_else(|| message.get_field_by_name(name));
                let value = field.as_ref().map_or(Self::Plain, Self::of);
                (field, value)
            }
            Self::Map(message) => (None, Self::Message(message.clone())),
            Self::Plain => (None, Self::Plain),
        }
    }
}

impl<'de> serde::de::DeserializeSeed<'de> for Once {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> serde::de::Visitor<'de> for Once {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(self.clone())?.is_some() {}
        Ok(())
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let mut names: HashMap<String, String> = HashMap::new();
        while let Some(name) = object.next_key::<String>()? {
            let (field, value) = self.member(&name);
            object.next_value_seed(value)?;
            let own = field.map_or_else(|| name.clone(), |field| field.name().to_owned());
            match names.insert(own, name.clone()) {
                Some(before) if before == name => {
                    return Err(serde::de::Error::custom(format!("{TWICE}: the member {name:?}")));
                }
                Some(before) => {
                    let both = format!("{TWICE}: the members {before:?} and {name:?} are one field");
                    return Err(serde::de::Error::custom(both));
                }
                None => {}
            }
        }
        Ok(())
    }
}

fn typed<M: Message + Name + Default>(message: &DynamicMessage) -> Result<M, Unreadable> {
    message.transcode_to().map_err(|error| Unreadable::new("", error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::v1;

    #[test]
    fn a_message_is_written_with_its_own_names_and_numbers_and_read_again() {
        let output = v1::CallOutput {
            call_id: "a".to_owned(),
            piece: Some(v1::call_output::Piece::Content(v1::Content {
                body: Some(v1::content::Body::Data(v1::Data { media_type: "x/y".to_owned(), data: vec![1, 2].into() })),
                citations: Vec::new(),
            })),
            ..v1::CallOutput::default()
        };
        let event = v1::RunEvent {
            sequence: 0,
            time: Some(prost_types::Timestamp { seconds: 1, nanos: 5_000_000 }),
            event: Some(v1::run_event::Event::CallOutput(output)),
        };
        let text = write(&event);
        assert_eq!(
            text,
            r#"{"sequence":0,"time":"1970-01-01T00:00:01.005Z","call_output":{"call_id":"a","attempt":0,"chunk":0,"channel":"","content":{"data":{"media_type":"x/y","data":"AQI="},"citations":[]}}}"#
        );
        assert_eq!(read(text.as_bytes(), &[]), Ok(event));
    }

    #[test]
    fn times_beyond_all_calendars_are_written_too() {
        let error = v1::CallError {
            retry_after: Some(crate::convert::duration(std::time::Duration::MAX)),
            ..v1::CallError::default()
        };
        assert!(write(&error).contains("\"315576000000."), "{}", write(&error));
        let created = Some(crate::convert::api::timestamp(run::Timestamp(u64::MAX)));
        let run = v1::Run { create_time: created, ..v1::Run::default() };
        assert!(write(&run).contains("9999-12-31T23:59:59"), "{}", write(&run));
    }

    fn refused(text: &str) -> (String, String) {
        let refused = read::<v1::CreateRunRequest>(text.as_bytes(), &[]).expect_err(text);
        (refused.field, refused.reason)
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        assert_eq!(refused(r#"{"calls":[{"tool":"a"},{"tool":7}]}"#).0, "calls[1].tool");
        let (field, reason) = refused(r#"{"calls":[{"tol":"a"}]}"#);
        assert!(field.starts_with("calls[0]") && reason.contains("tol"), "{field}: {reason}");
        assert!(refused("{\n\"calls\": [").1.contains("line 2"));
        assert!(refused("{} {}").1.contains("trailing"));
        assert_eq!(refused(r#"{"timeout":"soon"}"#).0, "timeout");
        let (field, reason) = refused(r#"{"calls":[{"tool":"a","arguments":{"a":1}}]}"#);
        assert!(field == "calls[0].arguments" && reason.contains("as text"), "{field}: {reason}");
    }

    #[test]
    fn a_member_that_is_there_twice_is_refused_wherever_it_stands() {
        let (_, reason) = refused(r#"{"tenant":"a","calls":[],"tenant":"b"}"#);
        assert!(reason.starts_with(r#"is repeated: the member "tenant""#), "{reason}");
        let (field, reason) = refused(r#"{"calls":[{},{"tool":"a","tool":"a"}]}"#);
        assert!(field.starts_with("calls[1]") && reason.starts_with("is repeated"), "{field}: {reason}");
    }

    #[test]
    fn a_field_that_is_there_under_both_of_its_names_is_refused() {
        let (_, reason) = refused(r#"{"request_id":"a","requestId":"a"}"#);
        assert!(
            reason.starts_with(r#"is repeated: the members "request_id" and "requestId" are one field"#),
            "{reason}"
        );
        let (field, reason) = refused(r#"{"calls":[{},{"queueTimeout":"1s","tool":"a","queue_timeout":"1s"}]}"#);
        assert!(field.starts_with("calls[1]"), "{field}");
        assert!(reason.contains(r#""queueTimeout" and "queue_timeout""#), "{reason}");
    }

    #[test]
    fn the_path_says_what_the_text_leaves_out_and_both_must_agree() {
        let read = |text: &str| read::<v1::CancelRunRequest>(text.as_bytes(), &[("run_id", "r")]);
        assert_eq!(read("{}").map(|request| request.run_id), Ok("r".to_owned()));
        assert_eq!(read(r#"{"run_id":"r"}"#).map(|request| request.run_id), Ok("r".to_owned()));
        assert_eq!(read(r#"{"runId":"other"}"#).map_err(|error| error.field), Err("run_id".to_owned()));
    }

    #[test]
    fn a_query_is_read_as_the_message_that_it_describes() {
        let query = [
            ("page_size", "7"),
            ("parked", "true"),
            ("state", "CALL_STATE_FAILED"),
            ("createdFrom", "1970-01-01T00:00:02Z"),
        ];
        let request: v1::ListCallsRequest = read_fields(query).expect("it is one");
        assert_eq!((request.page_size, request.parked, request.state()), (7, true, v1::CallState::Failed));
        assert_eq!(request.created_from, Some(prost_types::Timestamp { seconds: 2, nanos: 0 }));
        let tools: v1::ListToolsRequest = read_fields([("tags", "a"), ("tags", "b")]).expect("it is one");
        assert_eq!(tools.tags, ["a", "b"]);
        for (query, wrong) in [
            ([("page_size", "many"), ("tool", "a")], "page_size"),
            ([("tool", "a"), ("tool", "b")], "tool"),
            ([("parked", "yes"), ("tool", "b")], "parked"),
            ([("tol", "a"), ("tool", "b")], "tol"),
        ] {
            let refused = read_fields::<v1::ListCallsRequest>(query).expect_err(wrong);
            assert_eq!(refused.field, wrong, "{refused}");
        }
        let refused = |query| read_fields::<v1::ListCallsRequest>([query]).expect_err("it is refused").reason;
        assert!(refused(("state", "failed")).contains("CALL_STATE_FAILED"), "{}", refused(("state", "failed")));
        assert!(refused(("page_size", "abc")).contains("whole number"), "{}", refused(("page_size", "abc")));
    }
}
