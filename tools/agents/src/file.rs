//! The file of agents: a table for each, `[agent.NAME]`, and one with egress rules, as the files of other services have
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use client::agent::{CALLS_MAX, Limits, Template, TemplateError};
use client::v1::Confirmation;
use origins::http::{InvalidFile, ServiceFile};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::model::{Api, Model};
use crate::{Agent, Agents};

/// How long a call may take, unless set.
const TIMEOUT_S: u64 = 600;
/// A run lasts no longer.
const TIMEOUT_S_MAX: u64 = 24 * 3600;
/// How long a model may be silent, unless set. Some think for minutes before they say anything.
const IDLE_TIMEOUT_MS: u64 = 120_000;
/// Tokens of one message of a model, unless set, for APIs that need a number.
const OUTPUT_TOKENS: u64 = 4096;
/// Tools of one agent.
const TOOLS_MAX: usize = 128;
/// Bytes of an instruction.
const INSTRUCTION_BYTES_MAX: usize = 128 * 1024;
/// The version of the API that is requested of Anthropic.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// The fields of an agent that are not those of its service.
const FIELDS: [&str; 18] = [
    "api",
    "model",
    "stream",
    "output_tokens_max",
    "parameters",
    "description",
    "instruction",
    "instruction_template",
    "input_template",
    "tools",
    "turns_max",
    "calls_max",
    "tokens_max",
    "timeout_s",
    "input_schema",
    "output_schema",
    "confirmation",
    "output_key",
];

/// An agent as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    api: Api,
    model: String,
    #[serde(default = "yes")]
    stream: bool,
    output_tokens_max: Option<u64>,
    #[serde(default)]
    parameters: Map<String, Value>,
    description: String,
    #[serde(default)]
    instruction: String,
    instruction_template: Option<String>,
    input_template: Option<String>,
    #[serde(default)]
    tools: Vec<String>,
    turns_max: Option<u32>,
    calls_max: Option<u32>,
    tokens_max: Option<u64>,
    timeout_s: Option<u64>,
    input_schema: Option<Value>,
    output_schema: Option<Value>,
    #[serde(default)]
    confirmation: Confirm,
    output_key: Option<String>,
}

/// Whether calls of dangerous tools need the approval of a person.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Confirm {
    /// As the coordinators have it.
    #[default]
    Default,
    Ask,
    None,
}

/// What an agent is, beside its model.
#[derive(Debug)]
pub(crate) struct Settings {
    pub(crate) description: String,
    pub(crate) instruction: Instruction,
    /// What the user says to the model; `None`: the input as it is.
    pub(crate) input_template: Option<Template>,
    pub(crate) tools: Vec<String>,
    pub(crate) limits: Limits,
    pub(crate) timeout: Duration,
    /// `None`: it takes text.
    pub(crate) input_schema: Option<Value>,
    /// The answer is JSON, as this schema describes it.
    pub(crate) output_schema: Option<Value>,
    pub(crate) confirmation: Confirmation,
    /// The key in the state of the run under which the answer is put.
    pub(crate) output_key: Option<String>,
}

/// Before the name of a value that is one of the call's context, in a template.
pub(crate) const OF_CONTEXT: &str = "context.";

impl Settings {
    /// The keys of the context that the templates name.
    pub(crate) fn context_keys(&self) -> BTreeSet<&str> {
        let instruction = match &self.instruction {
            Instruction::Template(template) => Some(template),
            Instruction::Text(_) => None,
        };
        let templates = instruction.into_iter().chain(&self.input_template);
        templates.flat_map(Template::names).filter_map(|name| name.strip_prefix(OF_CONTEXT)).collect()
    }
}

/// What the model is told before everything else.
#[derive(Debug)]
pub(crate) enum Instruction {
    Text(String),
    Template(Template),
}

const fn yes() -> bool {
    true
}

/// The agents of a file.
pub(crate) fn agents(mut file: ServiceFile) -> Result<Agents, InvalidFile> {
    let tables = file.take_all("agent")?;
    if tables.is_empty() {
        return Err(file.wrong("agent", "there is none: write a table [agent.NAME] for each".to_owned()));
    }
    let (mut services, mut read) = (Vec::new(), BTreeMap::new());
    for (name, table) in tables {
        let wrong = |error: String| file.wrong(&format!("agent.{name}"), error);
        let (written, service) = parsed(table).map_err(wrong)?;
        services.push((name.clone(), service));
        read.insert(name, written);
    }
    let tables = services.iter().map(|(name, table)| (name.as_str(), table.clone())).collect();
    let mut services = file.services(tables)?;
    let secret_files = services.secret_files().to_vec();
    let agent = |(name, written): (String, Written)| {
        let service = services.take(&name)?;
        let settings = written.settings().ok()?;
        Some((name, Agent { settings, model: written.model(service) }))
    };
    Ok(Agents { all: read.into_iter().filter_map(agent).collect(), secret_files })
}

/// The fields of an agent, checked, and the table of its service.
fn parsed(mut table: Map<String, Value>) -> Result<(Written, Map<String, Value>), String> {
    let own = FIELDS.iter().filter_map(|field| table.remove_entry(*field)).collect();
    let written: Written = serde_json::from_value(Value::Object(own)).map_err(|error| error.to_string())?;
    written.check()?;
    if let Some(key) = table.remove("key") {
        if !key.is_object() {
            return Err("key stands in the file: write { env = \"NAME\" } or { file = \"PATH\" }".to_owned());
        }
        let (header, prefix) = match written.api {
            Api::OpenAi => ("authorization", "Bearer "),
            Api::Anthropic => ("x-api-key", ""),
        };
        let mut key = key;
        if let Some(key) = key.as_object_mut() {
            key.entry("prefix").or_insert_with(|| prefix.into());
        }
        header_of(&mut table, header, key)?;
    }
    if written.api == Api::Anthropic {
        header_of(&mut table, "anthropic-version", json!(ANTHROPIC_VERSION))?;
    }
    table.entry("idle_timeout_ms").or_insert_with(|| IDLE_TIMEOUT_MS.into());
    Ok((written, table))
}

/// Sets a header, unless the file does.
fn header_of(table: &mut Map<String, Value>, name: &str, value: Value) -> Result<(), String> {
    let headers = table.entry("headers").or_insert_with(|| json!({}));
    let headers = headers.as_object_mut().ok_or("headers is no table")?;
    if !headers.keys().any(|header| header.eq_ignore_ascii_case(name)) {
        headers.insert(name.to_owned(), value);
    }
    Ok(())
}

impl Written {
    fn check(&self) -> Result<(), String> {
        let Limits { turns, calls, .. } = self.limits();
        if turns == 0 || turns.saturating_add(calls) > CALLS_MAX {
            return Err(format!(
                "turns_max is {turns} and calls_max is {calls}: write at least 1 turn, and at most {CALLS_MAX} in all"
            ));
        }
        let timeout = self.timeout_s.unwrap_or(TIMEOUT_S);
        if !(1..=TIMEOUT_S_MAX).contains(&timeout) {
            return Err(format!("timeout_s is {timeout}: write 1 to {TIMEOUT_S_MAX}"));
        }
        if self.tools.len() > TOOLS_MAX {
            return Err(format!("there are {} tools, at most {TOOLS_MAX} are allowed", self.tools.len()));
        }
        if !self.instruction.is_empty() && self.instruction_template.is_some() {
            return Err("instruction and instruction_template are both there: write one of them".to_owned());
        }
        for (name, text) in [
            ("instruction", Some(&self.instruction)),
            ("instruction_template", self.instruction_template.as_ref()),
            ("input_template", self.input_template.as_ref()),
        ] {
            let bytes = text.map_or(0, String::len);
            if bytes > INSTRUCTION_BYTES_MAX {
                return Err(format!("{name} has {bytes} bytes, at most {INSTRUCTION_BYTES_MAX} are allowed"));
            }
        }
        self.settings()?;
        if self.output_tokens_max == Some(0) || self.tokens_max == Some(0) {
            return Err("a limit of 0 tokens lets the model say nothing".to_owned());
        }
        match self
            .parameters
            .keys()
            .find(|key| ["model", "messages", "system", "tools", "stream"].contains(&key.as_str()))
        {
            Some(key) => Err(format!("parameters has {key:?}, which is set by other fields")),
            None => Ok(()),
        }
    }

    fn limits(&self) -> Limits {
        let turns = self.turns_max.unwrap_or(Limits::TURNS);
        let calls = self.calls_max.unwrap_or(CALLS_MAX.saturating_sub(turns));
        Limits { turns, calls, tokens: self.tokens_max }
    }

    fn settings(&self) -> Result<Settings, String> {
        let template = |name: &str, text: Option<&String>| {
            let parsed = text.map(|text| text.parse()).transpose();
            parsed.map_err(|error: TemplateError| format!("{name}: {error}"))
        };
        let instruction = match template("instruction_template", self.instruction_template.as_ref())? {
            Some(template) => Instruction::Template(template),
            None => Instruction::Text(self.instruction.clone()),
        };
        Ok(Settings {
            description: self.description.clone(),
            instruction,
            input_template: template("input_template", self.input_template.as_ref())?,
            tools: self.tools.clone(),
            limits: self.limits(),
            timeout: Duration::from_secs(self.timeout_s.unwrap_or(TIMEOUT_S)),
            input_schema: self.input_schema.clone(),
            output_schema: self.output_schema.clone(),
            confirmation: match self.confirmation {
                Confirm::Default => Confirmation::Unspecified,
                Confirm::Ask => Confirmation::Ask,
                Confirm::None => Confirmation::None,
            },
            output_key: self.output_key.clone(),
        })
    }

    fn model(self, service: origins::http::Service) -> Model {
        let mut parameters = self.parameters;
        match (self.api, self.output_tokens_max) {
            (Api::Anthropic, max) => {
                parameters.entry("max_tokens").or_insert_with(|| max.unwrap_or(OUTPUT_TOKENS).into());
            }
            (Api::OpenAi, Some(max)) => {
                parameters.entry("max_completion_tokens").or_insert_with(|| max.into());
            }
            (Api::OpenAi, None) => {}
        }
        Model { service, api: self.api, name: self.model, stream: self.stream, parameters }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(agent: Value) -> Result<Agents, String> {
        let Value::Object(top) = json!({ "agent": { "scout": agent } }) else { unreachable!() };
        Agents::of(top, Path::new("")).map_err(|error| error.to_string())
    }

    fn agent(extra: Value) -> Value {
        let mut agent = json!({
            "api": "openai", "url": "https://models.example/v1/chat/completions", "model": "m", "description": "Looks.",
        });
        agent.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        agent
    }

    #[test]
    fn an_agent_has_defaults() {
        let agents = read(agent(json!({}))).unwrap();
        let Agent { settings, model } = &agents.all["scout"];
        assert_eq!(settings.limits, Limits { turns: 10, calls: 118, tokens: None });
        assert_eq!((settings.timeout, model.stream), (Duration::from_secs(600), true));
    }

    #[test]
    fn a_key_in_the_file_is_refused_and_not_repeated() {
        let error = read(agent(json!({ "key": "sk-secret" }))).unwrap_err();
        assert!(error.contains("agent.scout") && error.contains("env"), "{error}");
        assert!(!error.contains("sk-secret"), "{error}");
    }

    #[test]
    fn mistakes_are_named() {
        for (extra, expected) in [
            (json!({ "input_template": "Find {topic" }), "input_template: the brace at character 5"),
            (json!({ "instruction_template": "{a b}" }), "instruction_template: \"a b\" is no name"),
            (json!({ "instruction": "x", "instruction_template": "y" }), "both there"),
            (json!({ "turns_max": 100, "calls_max": 29 }), "turns_max is 100 and calls_max is 29"),
            (json!({ "turns_max": 0 }), "at least 1 turn"),
            (json!({ "timeout_s": 0 }), "timeout_s is 0"),
            (json!({ "api": "other" }), "unknown variant `other`"),
            (json!({ "parameters": { "model": "n" } }), "parameters has \"model\""),
            (json!({ "url": "nowhere" }), "is no address"),
            (json!({ "colour": "red" }), "colour"),
            (json!({ "key": { "env": "TOOLYARD_NO_SUCH_KEY" } }), "TOOLYARD_NO_SUCH_KEY cannot be read"),
        ] {
            let error = read(agent(extra)).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
