//! Operations of an OpenAPI document (3.0 and 3.1, JSON) as tools.

mod schema;

use std::collections::{BTreeMap, BTreeSet};

use ::http::{HeaderName, Method};
use globset::GlobSet;
use serde_json::{Map, Value, json};
use url::Url;

use self::schema::Schemas;
use super::endpoint::{BodyFormat, Place, Several};
use crate::source::Skipped;
use crate::transcript::beginning;

/// Bytes of a document.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Operations of a document.
const OPERATIONS_MAX: usize = 2000;
/// Characters of a tool's name that every vendor's API takes.
const NAME_BYTES_MAX: usize = 64;
const DESCRIPTION_BYTES_MAX: usize = run::limit::DESCRIPTION_BYTES_MAX;
const METHODS: [&str; 6] = ["get", "head", "put", "post", "delete", "patch"];
/// Headers that are described by other parts of a document.
const HEADERS_OF_OTHERS: [&str; 3] = ["accept", "authorization", "content-type"];

/// A document, read and not checked: each operation is checked for itself.
#[derive(Debug)]
pub(crate) struct Document {
    root: Value,
}

/// Which operations are wanted; all of them if nothing is named.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) operations: Option<GlobSet>,
    pub(crate) tags: BTreeSet<String>,
    pub(crate) paths: Option<GlobSet>,
}

/// An operation that can be hosted.
#[derive(Debug)]
pub(crate) struct Operation {
    /// The document's id of it; made of method and path if it has none.
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) title: String,
    pub(crate) description: String,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) input_schema: Value,
    pub(crate) places: BTreeMap<String, Place>,
    pub(crate) body: BodyFormat,
    /// It may answer event by event.
    pub(crate) streaming: bool,
}

impl Document {
    /// Reads a document.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let root: Value = serde_json::from_slice(bytes)
            .map_err(|error| format!("it is no JSON: {error}. A document in YAML must be converted to JSON first"))?;
        match root["openapi"].as_str() {
            Some(version) if version.starts_with("3.0") || version.starts_with("3.1") => Ok(Self { root }),
            Some(version) => Err(format!("it is OpenAPI {version}: 3.0 and 3.1 are read")),
            None => Err("it is no OpenAPI document: it has no text \"openapi\" at its top".to_owned()),
        }
    }

    /// The address of the first server, relative to that of the document, with the defaults of its variables.
    pub(crate) fn server(&self, document: Option<&Url>) -> Option<Url> {
        let server = self.root["servers"].get(0)?;
        let mut text = server["url"].as_str()?.to_owned();
        for (name, variable) in server["variables"].as_object().into_iter().flatten() {
            text = text.replace(&format!("{{{name}}}"), variable["default"].as_str().unwrap_or_default());
        }
        match document {
            Some(document) => document.join(&text).ok(),
            None => Url::parse(&text).ok(),
        }
    }

    /// The wanted operations. One that cannot be hosted does not hinder the others.
    pub(crate) fn operations(&self, wanted: &Wanted) -> Vec<Result<Operation, Skipped>> {
        let mut all = Vec::new();
        for (path, item) in self.root["paths"].as_object().into_iter().flatten() {
            let item = match self.resolve(item) {
                Ok(item) => item,
                Err(reason) => {
                    all.push(Err(Skipped { place: format!("paths.{path}"), reason }));
                    continue;
                }
            };
            for method in METHODS {
                let Some(operation) = item.get(method) else { continue };
                if !wanted.includes(path, method, operation) {
                    continue;
                }
                if all.len() == OPERATIONS_MAX {
                    let reason = format!("there are more than {OPERATIONS_MAX} operations: choose some");
                    all.push(Err(Skipped { place: "paths".to_owned(), reason }));
                    return all;
                }
                let made = self.operation(path, item, method, operation);
                all.push(made.map_err(|reason| Skipped { place: format!("{} {path}", method.to_uppercase()), reason }));
            }
        }
        all
    }

    fn operation(&self, path: &str, item: &Value, method: &str, operation: &Value) -> Result<Operation, String> {
        let mut schemas = Schemas::new(&self.root);
        let mut made = Arguments::default();
        for parameter in self.parameters(item, operation)? {
            self.add_parameter(&mut made, &mut schemas, parameter)?;
        }
        let body = match operation.get("requestBody") {
            Some(body) => self.add_body(&mut made, &mut schemas, self.resolve(body)?)?,
            None => BodyFormat::default(),
        };
        for hole in holes(path) {
            if !made.places.values().any(|place| *place == Place::Path(hole.to_owned())) {
                return Err(format!("the path has {{{hole}}}, which is no parameter"));
            }
        }
        let mut input_schema = json!({
            "type": "object",
            "properties": made.properties,
            "required": made.required,
            "additionalProperties": false,
        });
        let definitions = schemas.finish()?;
        if !definitions.is_empty() {
            input_schema["$defs"] = Value::Object(definitions);
        }
        let text = |name: &str| operation[name].as_str().unwrap_or_default().trim();
        let label = format!("{} {path}", method.to_uppercase());
        let description = match (text("summary"), text("description")) {
            ("", "") => label,
            (one, "") | ("", one) => one.to_owned(),
            (summary, more) => format!("{summary}\n\n{more}"),
        };
        let id = id(path, method, operation);
        let responses = operation["responses"].as_object().into_iter().flatten();
        let mut contents = responses.filter_map(|(_, response)| self.resolve(response).ok()?.get("content"));
        Ok(Operation {
            name: name(&id),
            id,
            title: beginning(text("summary"), run::limit::TITLE_BYTES_MAX).to_owned(),
            description: beginning(&description, DESCRIPTION_BYTES_MAX).to_owned(),
            method: method.to_uppercase().parse().map_err(|_| format!("{method:?} is no method"))?,
            path: path.to_owned(),
            input_schema,
            places: made.places,
            body,
            streaming: contents.any(|content| content.get("text/event-stream").is_some()),
        })
    }

    /// Those of the path, unless the operation has one of the same name and place.
    fn parameters<'a>(&'a self, item: &'a Value, operation: &'a Value) -> Result<Vec<&'a Value>, String> {
        let mut all: Vec<&Value> = Vec::new();
        for list in [&item["parameters"], &operation["parameters"]] {
            for parameter in list.as_array().into_iter().flatten() {
                let parameter = self.resolve(parameter)?;
                let key = |parameter: &Value| (parameter["name"].clone(), parameter["in"].clone());
                all.retain(|other| key(other) != key(parameter));
                all.push(parameter);
            }
        }
        Ok(all)
    }

    fn add_parameter(&self, made: &mut Arguments, schemas: &mut Schemas<'_>, parameter: &Value) -> Result<(), String> {
        let wire = parameter["name"].as_str().ok_or("a parameter has no name")?;
        let wrong = |reason: &str| format!("parameter {wire}: {reason}");
        let required = parameter["required"].as_bool().unwrap_or(false);
        let content = parameter["content"].as_object().and_then(|content| content.iter().next());
        let several = match (content, parameter["style"].as_str(), parameter["explode"].as_bool()) {
            (Some(_), ..) => Several::Json,
            (None, None | Some("form"), None | Some(true)) => Several::Repeated,
            (None, None | Some("form" | "simple"), _) => Several::Commas,
            (None, Some(other), _) => return Err(wrong(&format!("its style {other} is not supported"))),
        };
        let place = match parameter["in"].as_str() {
            Some("path") => Place::Path(wire.to_owned()),
            Some("query") => Place::Query(wire.to_owned(), several),
            Some("header") if HEADERS_OF_OTHERS.contains(&wire.to_ascii_lowercase().as_str()) => return Ok(()),
            Some("header") => Place::Header(argument_header(wire).map_err(|error| wrong(&error))?),
            Some("cookie") if !required => return Ok(()),
            Some("cookie") => return Err(wrong("it is a required cookie, and cookies are not sent")),
            other => return Err(wrong(&format!("its place {other:?} is none of path, query and header"))),
        };
        let given = content.map_or(&parameter["schema"], |(_, content)| &content["schema"]);
        let given = if given.is_null() { &json!({ "type": "string" }) } else { given };
        let mut schema = schemas.convert(given).map_err(|error| wrong(&error))?;
        if let (Some(fields), Some(text)) = (schema.as_object_mut(), parameter["description"].as_str()) {
            fields.insert("description".to_owned(), json!(text));
        }
        made.add(wire, schema, place, required);
        Ok(())
    }

    fn add_body(&self, made: &mut Arguments, schemas: &mut Schemas<'_>, body: &Value) -> Result<BodyFormat, String> {
        let content = body["content"].as_object().ok_or("its body has no content")?;
        let essence = |media: &str| media.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        let find = |wanted: fn(&str) -> bool| content.iter().find(|(media, _)| wanted(&essence(media)));
        let json = find(|media| media == "application/json" || media.ends_with("+json") || media == "*/*");
        let form = || find(|media| media == "application/x-www-form-urlencoded");
        let (format, (_, content)) = match (json, form()) {
            (Some(json), _) => (BodyFormat::Json, json),
            (None, Some(form)) => (BodyFormat::Form, form),
            (None, None) => {
                let media: Vec<&str> = content.keys().map(String::as_str).collect();
                return Err(format!("its body is {}: JSON and forms are sent", media.join(" or ")));
            }
        };
        let schema = if content["schema"].is_null() { &json!({}) } else { &content["schema"] };
        let mut schema = schemas.convert(schema).map_err(|error| format!("body: {error}"))?;
        if let (Some(fields), Some(text)) = (schema.as_object_mut(), body["description"].as_str()) {
            fields.insert("description".to_owned(), json!(text));
        }
        made.add("body", schema, Place::Body, body["required"].as_bool().unwrap_or(false));
        Ok(format)
    }

    /// The object itself, if it is a reference to one within the document.
    fn resolve<'a>(&'a self, value: &'a Value) -> Result<&'a Value, String> {
        schema::follow(&self.root, value)
    }
}

impl Wanted {
    fn includes(&self, path: &str, method: &str, operation: &Value) -> bool {
        if self.operations.is_none() && self.tags.is_empty() && self.paths.is_none() {
            return true;
        }
        let mut tags = operation["tags"].as_array().into_iter().flatten().filter_map(Value::as_str);
        self.operations.as_ref().is_some_and(|globs| globs.is_match(id(path, method, operation)))
            || self.paths.as_ref().is_some_and(|globs| globs.is_match(path))
            || tags.any(|tag| self.tags.contains(tag))
    }
}

/// The arguments of an operation, as they are found.
#[derive(Debug, Default)]
struct Arguments {
    properties: Map<String, Value>,
    required: Vec<String>,
    places: BTreeMap<String, Place>,
}

impl Arguments {
    /// Adds one under its own name, or under a longer one if that is taken.
    fn add(&mut self, wire: &str, schema: Value, place: Place, required: bool) {
        let plain = name(wire);
        let names = std::iter::once(plain.clone()).chain((2..).map(|number| format!("{plain}_{number}")));
        let Some(free) = names.into_iter().find(|name| !self.properties.contains_key(name)) else { return };
        if required || matches!(place, Place::Path(_)) {
            self.required.push(free.clone());
        }
        self.properties.insert(free.clone(), schema);
        self.places.insert(free, place);
    }
}

/// A header that arguments may set.
pub(crate) fn argument_header(name: &str) -> Result<HeaderName, String> {
    let own = [
        "host",
        "content-length",
        "transfer-encoding",
        "connection",
        "te",
        "trailer",
        "upgrade",
        "cookie",
        "authorization",
        "proxy-authorization",
        "expect",
    ];
    match name.parse::<HeaderName>() {
        Ok(header) if own.contains(&header.as_str()) || header.as_str().starts_with("toolyard-") => {
            Err(format!("{name} is no header that an argument may set"))
        }
        Ok(header) => Ok(header),
        Err(_) => Err(format!("{name:?} is no name of a header")),
    }
}

/// The names in braces.
pub(crate) fn holes(text: &str) -> Vec<&str> {
    text.split('{').skip(1).filter_map(|rest| rest.split_once('}')).map(|(name, _)| name).collect()
}

fn id(path: &str, method: &str, operation: &Value) -> String {
    let made = || format!("{method}_{}", path.trim_matches('/'));
    operation["operationId"].as_str().filter(|id| !id.is_empty()).map_or_else(made, str::to_owned)
}

/// A name that every vendor's API takes.
pub(crate) fn name(text: &str) -> String {
    let valid = |letter: char| if letter.is_ascii_alphanumeric() || "_-".contains(letter) { letter } else { '_' };
    let text: String = text.chars().map(valid).collect();
    let text = text.trim_matches('_');
    beginning(if text.is_empty() { "_" } else { text }, NAME_BYTES_MAX).to_owned()
}
