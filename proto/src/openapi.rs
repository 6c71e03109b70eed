//! The API's messages as JSON Schemas, and its methods as OpenAPI operations. Both are derived from the descriptors and
//! their comments, like the messages in [`json`](crate::json).

use std::collections::BTreeMap;

use prost_reflect::{EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor, MethodDescriptor};
use serde_json::{Map, Value, json};

use crate::json::POOL;

/// Schemas by the names of their messages and enums, in alphabetical order.
pub type Schemas = BTreeMap<String, Value>;

/// A method of a service.
#[derive(Debug, Clone)]
pub struct Method(MethodDescriptor);

impl Method {
    /// Finds a method of the API by the names of its service and of the method.
    #[must_use]
    pub fn find(service: &str, name: &str) -> Option<Self> {
        let service = POOL.get_service_by_name(&format!("toolyard.v1.{service}"))?;
        service.methods().find(|method| method.name() == name).map(Self)
    }

    /// Every method of the API, as the names of its service and of the method.
    pub fn all() -> impl Iterator<Item = (String, String)> {
        let services = POOL.services().filter(|service| service.package_name() == "toolyard.v1");
        services.flat_map(|service| {
            let of = service.name().to_owned();
            service.methods().map(|method| (of.clone(), method.name().to_owned())).collect::<Vec<_>>()
        })
    }

    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// The description of the method, from its comment.
    #[must_use]
    pub fn description(&self) -> String {
        comment(&self.0.parent_service().parent_file(), self.0.path())
    }

    /// A reference to the schema of its request; the schema is added to `schemas`.
    pub fn takes(&self, schemas: &mut Schemas) -> Value {
        reference(&self.0.input(), schemas)
    }

    /// A reference to the schema of its response, or of each message if it streams.
    pub fn gives(&self, schemas: &mut Schemas) -> Value {
        reference(&self.0.output(), schemas)
    }

    #[must_use]
    pub fn streams(&self) -> bool {
        self.0.is_server_streaming()
    }

    /// The fields of its request as query parameters, without the fields in the path.
    pub fn parameters(&self, path: &[&str], schemas: &mut Schemas) -> Vec<Value> {
        let input = self.0.input();
        let fields = input.fields().filter(|field| !path.contains(&field.name()));
        let parameter = |field: FieldDescriptor| {
            let schema = of_field(&field, schemas);
            json!({ "name": field.name(), "in": "query", "description": described(&field), "schema": schema })
        };
        fields.map(parameter).collect()
    }

    /// The description of a field of its request.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<String> {
        self.0.input().get_field_by_name(name).map(|field| described(&field))
    }
}

/// A reference to the schema of a message of the API, by its name; the schema is added to `schemas`.
///
/// # Panics
/// There is no such message.
pub fn message(name: &str, schemas: &mut Schemas) -> Value {
    let message = POOL.get_message_by_name(&format!("toolyard.v1.{name}")).expect("the message is one of the API's");
    reference(&message, schemas)
}

fn reference(message: &MessageDescriptor, schemas: &mut Schemas) -> Value {
    let name = message.name().to_owned();
    if !schemas.contains_key(&name) {
        // Inserted before its fields are read, because messages may contain each other.
        schemas.insert(name.clone(), Value::Null);
        let schema = of_message(message, schemas);
        schemas.insert(name.clone(), schema);
    }
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn of_message(message: &MessageDescriptor, schemas: &mut Schemas) -> Value {
    let mut properties = Map::new();
    for field in message.fields() {
        let mut schema = of_field(&field, schemas);
        schema["description"] = described(&field).into();
        properties.insert(field.name().to_owned(), schema);
    }
    let mut description = comment(&message.parent_file(), message.path());
    for oneof in message.oneofs().filter(|oneof| !oneof.is_synthetic()) {
        let names: Vec<String> = oneof.fields().map(|field| format!("`{}`", field.name())).collect();
        description.push_str(&format!("\n\nOnly one of these is there: {}.", names.join(", ")));
    }
    // A union for generated clients, of the message that is all of a stream.
    if message.full_name() == EVENT {
        let kinds = message.oneofs().flat_map(|oneof| oneof.fields().collect::<Vec<_>>());
        let variants: Vec<Value> = kinds
            .map(|field| {
                let name = field.name();
                let only: Map<_, _> = properties.remove_entry(name).into_iter().collect();
                json!({ "type": "object", "required": [name], "properties": only })
            })
            .collect();
        let required: Vec<&String> = properties.keys().collect();
        return json!({ "type": "object", "description": description, "required": required, "properties": properties,
            "oneOf": variants });
    }
    let mut schema = json!({ "type": "object", "description": description, "properties": properties });
    // Requests with unknown fields are rejected. Responses of a newer release may have more fields.
    if message.name().ends_with("Request") {
        schema["additionalProperties"] = false.into();
    }
    schema
}

const EVENT: &str = "toolyard.v1.RunEvent";

/// The pattern of a run's id; empty in a response without one.
const RUN_ID: &str = "^(run_[0-9a-f]{2}_[0-9a-f]{32})?$";

fn of_field(field: &FieldDescriptor, schemas: &mut Schemas) -> Value {
    if let Kind::Message(entry) = field.kind()
        && field.is_map()
    {
        let of_value = of_kind(&entry.map_entry_value_field().kind(), schemas);
        return json!({ "type": "object", "additionalProperties": of_value });
    }
    let mut schema = of_kind(&field.kind(), schemas);
    match field.name() {
        "page_size" => schema["minimum"] = 0.into(),
        "run_id" => schema["pattern"] = RUN_ID.into(),
        _ => {}
    }
    if field.is_list() { json!({ "type": "array", "items": schema }) } else { schema }
}

fn of_kind(kind: &Kind, schemas: &mut Schemas) -> Value {
    match kind {
        Kind::Double | Kind::Float => json!({ "type": "number" }),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => json!({ "type": "integer", "format": "int32" }),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => json!({ "type": "integer", "format": "int64" }),
        Kind::Uint32 | Kind::Fixed32 => json!({ "type": "integer", "format": "uint32", "minimum": 0 }),
        Kind::Uint64 | Kind::Fixed64 => json!({ "type": "integer", "format": "uint64", "minimum": 0 }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::String => json!({ "type": "string" }),
        Kind::Bytes => json!({ "type": "string", "contentEncoding": "base64" }),
        Kind::Enum(names) => of_enum(names, schemas),
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Timestamp" => json!({ "type": "string", "format": "date-time" }),
            "google.protobuf.Duration" => {
                json!({ "type": "string", "pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$", "examples": ["1.5s"] })
            }
            _ => reference(message, schemas),
        },
    }
}

fn of_enum(of: &EnumDescriptor, schemas: &mut Schemas) -> Value {
    let name = of.name().to_owned();
    schemas.entry(name.clone()).or_insert_with(|| {
        let file = of.parent_file();
        let mut description = comment(&file, of.path());
        for value in of.values() {
            description.push_str(&format!("\n- `{}`: {}", value.name(), comment(&file, value.path())));
        }
        let names: Vec<String> = of.values().map(|value| value.name().to_owned()).collect();
        json!({ "type": "string", "description": description, "enum": names })
    });
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

fn described(field: &FieldDescriptor) -> String {
    comment(&field.parent_message().parent_file(), field.path())
}

/// The comment before a declaration in its file.
fn comment(file: &FileDescriptor, path: &[i32]) -> String {
    let info = file.file_descriptor_proto().source_code_info.as_ref();
    let found = info.and_then(|info| info.location.iter().find(|location| location.path == path));
    let text = found.map(|location| location.leading_comments()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    // Lines of a comment are wrapped; an empty line ends a paragraph.
    let paragraphs = lines.split(|line| line.is_empty()).map(|lines| lines.join(" ")).filter(|text| !text.is_empty());
    paragraphs.collect::<Vec<_>>().join("\n\n")
}
