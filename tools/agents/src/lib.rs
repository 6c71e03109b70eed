//! Agents as tools (docs/howto/agents.md). A call of an agent is a loop: a model is asked, the tools that it calls are
//! executed, until it answers. The loop is a run of its own below the call, and its messages are in the log, so another
//! worker goes on with it when this one is lost.

mod call;
mod file;
mod message;
mod model;
pub mod scripted;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use collaboration::Fleet;
use origins::http::{InvalidFile, ServiceFile};
use schemars::JsonSchema;
use serde_json::{Map, Value};
use toolyard_tool::{About, Concurrency, InvalidTool, Permission, Table};

use self::call::AgentTool;
use self::file::Settings;
use self::model::Model;

/// Attempts of a call. Each goes on after the last stored message, so they cost little, and services of models limit
/// their rates often.
const ATTEMPTS_MAX: u32 = 10;
/// The property of the input of an agent that takes text.
const INPUT: &str = "input";

/// The agents of a file, by their names.
#[derive(Debug)]
pub struct Agents {
    all: BTreeMap<String, Agent>,
    secret_files: Vec<PathBuf>,
}

#[derive(Debug)]
struct Agent {
    settings: Settings,
    model: Model,
}

/// There is no agent of this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no agent {0:?}")]
pub struct UnknownAgentError(pub String);

impl Agents {
    /// Reads a file. Nothing is sent yet.
    ///
    /// # Errors
    /// If it cannot be read or is not valid, with the place.
    pub fn read(path: &Path) -> Result<Self, InvalidFile> {
        file::agents(ServiceFile::read(path)?)
    }

    /// As [`Self::read`], for a program that writes its agents itself, in the same form. Paths in it begin in `folder`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn of(top: Map<String, Value>, folder: &Path) -> Result<Self, InvalidFile> {
        file::agents(ServiceFile::of(top, folder))
    }

    /// The input of an agent is of this type. The doc comments of its fields are the descriptions for the model that
    /// calls the agent.
    ///
    /// # Errors
    /// There is no such agent.
    pub fn typed<T: JsonSchema>(mut self, name: &str) -> Result<Self, UnknownAgentError> {
        let agent = self.all.get_mut(name).ok_or_else(|| UnknownAgentError(name.to_owned()))?;
        agent.settings.input_schema = Some(schemars::schema_for!(T).to_value());
        Ok(self)
    }

    /// The files of the models' keys, which other tools of the worker must not read.
    #[must_use]
    pub fn secret_files(&self) -> &[PathBuf] {
        &self.secret_files
    }

    /// Hosts the agents beside the tools of a table. Their calls take no slot of the worker.
    ///
    /// # Errors
    /// If the table has a tool of the same name, or a name or a schema is invalid.
    pub fn host(self, mut table: Table, fleet: &Fleet) -> Result<Table, InvalidTool> {
        for (name, Agent { settings, model }) in self.all {
            let (about, schema) = (about(&settings), schema(settings.input_schema.as_ref()));
            let takes_text = settings.input_schema.is_none();
            let tool = AgentTool { name: name.clone(), settings, model, takes_text, fleet: fleet.clone() };
            table = table.host_any(&name, schema, about, tool)?;
        }
        Ok(table)
    }
}

fn schema(given: Option<&Value>) -> String {
    let text = || {
        let input = serde_json::json!({ "type": "string", "description": "What the agent is to do, in words" });
        serde_json::json!({
            "type": "object", "properties": { INPUT: input }, "required": [INPUT], "additionalProperties": false,
        })
    };
    given.cloned().unwrap_or_else(text).to_string()
}

fn about(settings: &Settings) -> About {
    let about = About::new(settings.description.clone());
    let about = match &settings.output_schema {
        Some(schema) => about.output_schema_text(schema.to_string()),
        None => about,
    };
    about
        // A repeated attempt goes on with the run of the one before.
        .idempotent()
        .open_world()
        .streaming()
        .waiting()
        .idle_timeout(None)
        .attempt_timeout(settings.timeout)
        .attempts_max(ATTEMPTS_MAX)
        .backoff(Duration::from_secs(1), Duration::from_secs(30))
        .category("agents")
        .permission(Permission::External)
        .side_effect_scope("fleet")
        .concurrency(Concurrency::Parallel)
}
