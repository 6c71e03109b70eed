//! The tools of an app: a table of the Rust SDK whose tools call back into Python.

use std::sync::Mutex;
use std::time::Duration;

use ::worker::{About, AfterPartialOutput, Concurrency, Permission};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde::Deserialize;

use crate::call::PythonTool;

/// The tools of an app.
#[pyclass(frozen)]
pub(crate) struct Table(Mutex<::worker::Table>);

#[pymethods]
impl Table {
    #[new]
    fn new() -> Self {
        Self(Mutex::new(::worker::Table::new()))
    }

    /// Hosts a tool. `start` is called with a `Call` and the arguments as JSON, on any thread; it returns an object
    /// whose method `cancel` is called if the call is to stop.
    fn host(&self, name: &str, schema: &str, about: &str, start: Py<PyAny>) -> PyResult<()> {
        let about: Described = serde_json::from_str(about)
            .map_err(|error| PyValueError::new_err(format!("tool {name} cannot be hosted: {error}")))?;
        let about = about.into_about().map_err(PyValueError::new_err)?;
        let mut table = self.0.lock().expect("no code panics while it holds the table");
        let hosted = table.clone().host_any(name, schema.to_owned(), about, PythonTool::new(start));
        *table = hosted.map_err(|error| PyValueError::new_err(error.to_string()))?;
        Ok(())
    }

    /// The names of the tools.
    fn names(&self) -> Vec<String> {
        self.table().manifests().map(|manifest| manifest.name.to_string()).collect()
    }
}

impl Table {
    /// The table with all tools so far.
    pub(crate) fn table(&self) -> ::worker::Table {
        self.0.lock().expect("no code panics while it holds the table").clone()
    }
}

/// The description of a tool, as the Python part writes it. Times are seconds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
struct Described {
    description: String,
    title: String,
    read_only: bool,
    idempotent: bool,
    destructive: bool,
    open_world: bool,
    uses_machine: bool,
    streaming: bool,
    waiting: bool,
    timeout: Option<f64>,
    /// 0 is no limit.
    idle_timeout: Option<f64>,
    attempts: Option<u32>,
    backoff: Option<(f64, f64)>,
    after_partial_output: Option<String>,
    category: String,
    permission: Option<String>,
    side_effect_scope: String,
    needs_approval: bool,
    tags: Vec<String>,
    r#final: bool,
    return_direct: bool,
    hidden: bool,
    runs_alone: Option<bool>,
    version: String,
    aliases: Vec<(String, String)>,
    exclusive_when: String,
    parallel_when: String,
    concurrency: u32,
    running_max: u32,
    output_schema: String,
    context_keys: Vec<String>,
}

impl Described {
    fn into_about(self) -> Result<About, String> {
        let mut about = About::new(self.description).title(self.title).category(self.category).version(self.version);
        about = about.side_effect_scope(self.side_effect_scope).max_concurrent(self.concurrency);
        about = about.running_max(self.running_max).output_schema_text(self.output_schema);
        about = about.exclusive_when(self.exclusive_when).parallel_when(self.parallel_when);
        type Set = fn(About) -> About;
        let flags: [(bool, Set); 11] = [
            (self.read_only, About::read_only),
            (self.idempotent, About::idempotent),
            (self.destructive, About::destructive),
            (self.open_world, About::open_world),
            (self.uses_machine, About::uses_machine),
            (self.streaming, About::streaming),
            (self.waiting, About::waiting),
            (self.needs_approval, About::requires_confirmation),
            (self.r#final, About::final_),
            (self.return_direct, About::return_direct),
            (self.hidden, About::hidden),
        ];
        about = flags.into_iter().filter(|(is_set, _)| *is_set).fold(about, |about, (_, set)| set(about));
        if let Some(timeout) = self.timeout {
            about = about.attempt_timeout(seconds("timeout", timeout)?);
        }
        if let Some(timeout) = self.idle_timeout {
            let limit = seconds("idle_timeout", timeout)?;
            about = about.idle_timeout((!limit.is_zero()).then_some(limit));
        }
        if let Some(attempts) = self.attempts {
            about = about.attempts_max(attempts);
        }
        if let Some((first, longest)) = self.backoff {
            about = about.backoff(seconds("backoff", first)?, seconds("backoff", longest)?);
        }
        if let Some(mode) = self.after_partial_output {
            about = about.after_partial_output(match mode.as_str() {
                "restart" => AfterPartialOutput::Restart,
                "continue" => AfterPartialOutput::Continue,
                "buffer" => AfterPartialOutput::Buffer,
                _ => return Err(format!("after_partial_output is {mode:?}: use restart, continue or buffer")),
            });
        }
        if let Some(permission) = self.permission {
            about = about.permission(match permission.as_str() {
                "read" => Permission::Read,
                "write" => Permission::Write,
                "external" => Permission::External,
                _ => return Err(format!("permission is {permission:?}: use read, write or external")),
            });
        }
        if let Some(alone) = self.runs_alone {
            about = about.concurrency(if alone { Concurrency::Exclusive } else { Concurrency::Parallel });
        }
        about = self.tags.into_iter().fold(about, About::tag);
        about = self.aliases.into_iter().fold(about, |about, (name, text)| about.alias(name, text));
        Ok(self.context_keys.into_iter().fold(about, About::context_key))
    }
}

fn seconds(name: &str, value: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(value).map_err(|_| format!("{name} is {value}: use a number of seconds from 0 on"))
}
