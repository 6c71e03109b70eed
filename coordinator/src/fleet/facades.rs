//! Facades: names that the operator gives to tools in the pools file, each with a manifest of its own. Calls of a
//! facade are executed by its tool.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use run::{CallError, ErrorKind, Manifest, Permission, ResultUse, ToolName, limit};
use schema::Schema;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Facades in a pools file.
const FACADES_MAX: usize = 1000;

/// A facade as it is written. What it does not set is as its tool has it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawFacade {
    tool: String,
    description: Option<String>,
    title: Option<String>,
    category: Option<String>,
    tags: Option<Vec<String>>,
    permission: Option<String>,
    #[serde(default)]
    requires_confirmation: bool,
    r#final: Option<bool>,
    return_direct: Option<bool>,
    hidden: Option<bool>,
    /// JSON Schema of its arguments.
    input_schema: Option<Value>,
    /// Arguments that every call passes to the tool; a call cannot set them.
    #[serde(default)]
    arguments: Map<String, Value>,
}

/// A name of a tool with a manifest of its own.
#[derive(Debug)]
pub(crate) struct Facade {
    pub(crate) tool: ToolName,
    description: Option<String>,
    title: Option<String>,
    category: Option<String>,
    tags: Option<Vec<String>>,
    permission: Option<Permission>,
    requires_confirmation: bool,
    is_final: Option<bool>,
    return_direct: Option<bool>,
    hidden: Option<bool>,
    /// The schema that its own arguments have to fit, as text and compiled; the tool's schema applies too.
    input: Option<(String, Schema)>,
    bound: BTreeMap<String, Box<RawValue>>,
}

/// The facades of a file; mistakes are added with their places.
pub(super) fn checked(
    written: BTreeMap<String, RawFacade>,
    mistakes: &mut Vec<String>,
) -> BTreeMap<ToolName, Arc<Facade>> {
    if written.len() > FACADES_MAX {
        mistakes.push(format!("facades: there are {}, at most {FACADES_MAX} are allowed", written.len()));
        return BTreeMap::new();
    }
    let names: Vec<String> = written.keys().cloned().collect();
    let facades = written.into_iter().filter_map(|(name, raw)| {
        let place = format!("facades.{name}");
        if names.contains(&raw.tool) {
            mistakes.push(format!("{place}.tool: {} is a facade itself: name its tool", raw.tool));
        }
        let parsed: Result<ToolName, run::InvalidId> = name.parse();
        let own = parsed.map_err(|error| mistakes.push(format!("facades: {error}"))).ok();
        Some((own?, Arc::new(raw.check(&place, mistakes)?)))
    });
    facades.collect()
}

impl RawFacade {
    fn check(self, place: &str, mistakes: &mut Vec<String>) -> Option<Facade> {
        let before = mistakes.len();
        let tool: Result<ToolName, run::InvalidId> = self.tool.parse();
        let tool = tool.map_err(|error| mistakes.push(format!("{place}.tool: {error}"))).ok();
        let permission = match self.permission.as_deref() {
            None => None,
            Some("read") => Some(Permission::Read),
            Some("write") => Some(Permission::Write),
            Some("external") => Some(Permission::External),
            Some(other) => {
                mistakes.push(format!("{place}.permission: {other:?} is unknown: read, write or external"));
                None
            }
        };
        let limited = [
            ("description", self.description.as_ref(), limit::DESCRIPTION_BYTES_MAX),
            ("title", self.title.as_ref(), limit::TITLE_BYTES_MAX),
            ("category", self.category.as_ref(), limit::TAG_BYTES_MAX),
        ];
        for (field, text, most) in limited {
            if let Some(bytes) = text.map(String::len).filter(|bytes| *bytes > most) {
                mistakes.push(format!("{place}.{field}: {bytes} bytes, at most {most} are allowed"));
            }
        }
        let is_word = |tag: &String| (1..=limit::TAG_BYTES_MAX).contains(&tag.len()) && !tag.contains(char::is_control);
        if self.tags.as_ref().is_some_and(|tags| tags.len() > limit::TAGS_MAX || !tags.iter().all(is_word)) {
            mistakes.push(format!("{place}.tags: at most {} plain words of 1 to 64 bytes each", limit::TAGS_MAX));
        }
        let input = self.input_schema.and_then(|schema| {
            let text = schema.to_string();
            let compiled = Schema::of_arguments(&text);
            let compiled = compiled.map_err(|error| mistakes.push(format!("{place}.input_schema: {error}"))).ok()?;
            Some((text, compiled))
        });
        let bound = self.arguments.into_iter().filter_map(|(name, value)| {
            let raw = RawValue::from_string(value.to_string());
            raw.map_err(|error| mistakes.push(format!("{place}.arguments.{name}: {error}"))).ok().map(|raw| (name, raw))
        });
        let bound = bound.collect();
        let facade = Facade {
            tool: tool?,
            description: self.description,
            title: self.title,
            category: self.category,
            tags: self.tags,
            permission,
            requires_confirmation: self.requires_confirmation,
            is_final: self.r#final,
            return_direct: self.return_direct,
            hidden: self.hidden,
            input,
            bound,
        };
        (mistakes.len() == before).then_some(facade)
    }
}

impl Facade {
    /// The manifest of the facade. Rights are never fewer than those that the tool needs.
    pub(super) fn manifest(&self, name: &ToolName, of: &Manifest) -> Manifest {
        let own = |own: &Option<String>, of: &String| own.as_ref().unwrap_or(of).clone();
        let input_schema = match &self.input {
            Some((text, _)) => text.clone(),
            None => without_bound(&of.input_schema, &self.bound),
        };
        Manifest {
            name: name.clone(),
            description: own(&self.description, &of.description),
            title: own(&self.title, &of.title),
            category: own(&self.category, &of.category),
            tags: self.tags.as_ref().unwrap_or(&of.tags).clone(),
            permission: self.permission.map_or(of.permission, |own| own.max(of.permission)),
            requires_confirmation: self.requires_confirmation || of.requires_confirmation,
            result_use: ResultUse {
                is_final: self.is_final.unwrap_or(of.result_use.is_final),
                return_direct: self.return_direct.unwrap_or(of.result_use.return_direct),
                // A tool is hidden so that models reach it through a facade.
                hidden: self.hidden.unwrap_or(false),
            },
            input_schema,
            aliases: Vec::new(),
            ..of.clone()
        }
    }

    /// The arguments for the tool.
    ///
    /// # Errors
    /// The call's own arguments do not fit the facade's schema, or all together are too large.
    pub(crate) fn arguments(&self, name: &ToolName, given: &Bytes) -> Result<Bytes, CallError> {
        let own = without(given, &self.bound);
        if let Some(Err(violations)) = self.input.as_ref().map(|(_, schema)| schema.check(&own)) {
            let error = CallError::new(ErrorKind::ArgumentsInvalid, schema::describe(&violations));
            return Err(CallError { violations, ..error });
        }
        bind(name, &own, &self.bound)
    }
}

/// The arguments without bound ones that have their values: hooks and approvers see them, and give them back.
fn without(given: &Bytes, bound: &BTreeMap<String, Box<RawValue>>) -> Bytes {
    let Ok(mut own) = serde_json::from_slice::<BTreeMap<String, Box<RawValue>>>(given) else { return given.clone() };
    let all = own.len();
    let is_same = |own: &RawValue, bound: &RawValue| {
        let value = |raw: &RawValue| serde_json::from_str::<Value>(raw.get()).ok();
        value(own) == value(bound)
    };
    own.retain(|name, own| bound.get(name).is_none_or(|bound| !is_same(own, bound)));
    if own.len() == all {
        return given.clone();
    }
    serde_json::to_vec(&own).map_or_else(|_| given.clone(), Bytes::from)
}

/// The arguments with bound ones in the place of the call's own. Arguments that are not an object stay as they are,
/// because no tool takes them.
///
/// # Errors
/// All together are too large.
pub(crate) fn bind(name: &ToolName, own: &Bytes, bound: &BTreeMap<String, Box<RawValue>>) -> Result<Bytes, CallError> {
    let Ok(mut all) = serde_json::from_slice::<BTreeMap<String, Box<RawValue>>>(own) else {
        return Ok(own.clone());
    };
    all.extend(bound.iter().map(|(name, value)| (name.clone(), value.clone())));
    let Ok(all) = serde_json::to_vec(&all).map(Bytes::from) else { return Ok(own.clone()) };
    let (size, most) = (all.len(), limit::ARGUMENTS_BYTES_MAX);
    if size > most {
        let message = format!("the arguments are {size} bytes with those bound to {name}; the limit is {most} bytes");
        return Err(CallError::new(ErrorKind::ArgumentsInvalid, message));
    }
    Ok(all)
}

/// A schema of arguments without those that are bound: models must not set them.
fn without_bound(schema: &str, bound: &BTreeMap<String, Box<RawValue>>) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(schema) else { return schema.to_owned() };
    if let Some(properties) = value.get_mut("properties").and_then(Value::as_object_mut) {
        properties.retain(|name, _| !bound.contains_key(name));
    }
    if let Some(required) = value.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name.as_str().is_none_or(|name| !bound.contains_key(name)));
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use crate::fleet::pools::rules;

    use super::*;

    fn facade(text: &str) -> Arc<Facade> {
        let rules = rules(&format!("[facades.web_search]\ntool = \"tavily\"\n{text}"));
        Arc::clone(rules.facades().values().next().unwrap())
    }

    fn name() -> ToolName {
        "web_search".parse().unwrap()
    }

    #[test]
    fn bound_arguments_take_the_place_of_the_calls_own() {
        let facade = facade("arguments = { depth = \"basic\", max = 5 }");
        for (own, all) in [
            ("{}", r#"{"depth":"basic","max":5}"#),
            (r#"{"query":"x","depth":"deep"}"#, r#"{"depth":"basic","max":5,"query":"x"}"#),
            // Not an object: no tool takes it.
            ("[]", "[]"),
        ] {
            assert_eq!(facade.arguments(&name(), &own.into()).unwrap(), all, "{own}");
        }
        let large = format!(r#"{{"query":"{}"}}"#, "x".repeat(limit::ARGUMENTS_BYTES_MAX - 20));
        let error = facade.arguments(&name(), &large.into()).unwrap_err();
        assert!(error.message.contains("bound to web_search"), "{error:?}");
    }

    #[test]
    fn arguments_must_fit_the_schema_of_the_facade() {
        let facade = facade("input_schema = { type = \"object\", required = [\"query\"] }");
        let error = facade.arguments(&name(), &"{}".into()).unwrap_err();
        assert_eq!((error.kind, error.violations.len()), (ErrorKind::ArgumentsInvalid, 1));
    }

    #[test]
    fn bound_arguments_may_come_back_from_hooks_and_approvers_and_no_others_may_be_set() {
        let facade = facade(
            "arguments = { depth = { max = 1 } }\ninput_schema = { type = \"object\", properties = { query = {} }, \
             additionalProperties = false }",
        );
        let all = r#"{"depth":{"max":1},"query":"x"}"#;
        assert_eq!(facade.arguments(&name(), &r#"{"query":"x"}"#.into()).unwrap(), all);
        assert_eq!(facade.arguments(&name(), &r#"{"query":"x","depth":{"max": 1}}"#.into()).unwrap(), all);
        assert!(facade.arguments(&name(), &r#"{"query":"x","depth":{"max":2}}"#.into()).is_err());
    }

    #[test]
    fn models_do_not_see_bound_arguments() {
        let bound = facade("arguments = { depth = \"basic\" }");
        let schema = r#"{"properties":{"depth":{},"query":{}},"required":["depth","query"],"type":"object"}"#;
        let own = without_bound(schema, &bound.bound);
        assert_eq!(own, r#"{"properties":{"query":{}},"required":["query"],"type":"object"}"#);
    }
}
