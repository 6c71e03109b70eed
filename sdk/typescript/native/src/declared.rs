//! The declaration of a tool, as JavaScript writes it. The manifest is made of it as of a tool in Rust.

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use toolyard_tool::{About, AfterPartialOutput, Concurrency, Permission};

/// The options of `tool` in JavaScript. Times are in seconds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Declared {
    pub(crate) name: String,
    description: String,
    pub(crate) input_schema: Value,
    output_schema: Option<Value>,
    title: Option<String>,
    category: Option<String>,
    permission: Option<GivenPermission>,
    side_effect_scope: Option<String>,
    version: Option<String>,
    concurrency: Option<GivenConcurrency>,
    after_partial_output: Option<GivenMode>,
    exclusive_when: Option<Value>,
    parallel_when: Option<Value>,
    timeout: Option<f64>,
    idle_timeout: Option<f64>,
    attempts: Option<u32>,
    max_concurrent: Option<u32>,
    running_max: Option<u32>,
    #[serde(default)]
    tags: Vec<String>,
    #[serde(default)]
    context_keys: Vec<String>,
    #[serde(default)]
    aliases: Vec<GivenAlias>,
    #[serde(flatten)]
    flags: Flags,
}

/// The options that are on or off.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Flags {
    read_only: bool,
    idempotent: bool,
    destructive: bool,
    open_world: bool,
    uses_machine: bool,
    streaming: bool,
    needs_approval: bool,
    #[serde(rename = "final")]
    is_final: bool,
    return_direct: bool,
    hidden: bool,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GivenPermission {
    Read,
    Write,
    External,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GivenConcurrency {
    Parallel,
    Exclusive,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GivenMode {
    Restart,
    Continue,
    Buffer,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenAlias {
    name: String,
    #[serde(default)]
    description: String,
}

impl Declared {
    /// The manifest, except for name and schema of the arguments.
    pub(crate) fn about(&self) -> Result<About, String> {
        let about = self.flags.apply(About::new(self.description.clone()));
        let about = self.texts(about);
        let mut about = about
            .max_concurrent(self.max_concurrent.unwrap_or_default())
            .running_max(self.running_max.unwrap_or_default());
        if let Some(permission) = self.permission {
            about = about.permission(match permission {
                GivenPermission::Read => Permission::Read,
                GivenPermission::Write => Permission::Write,
                GivenPermission::External => Permission::External,
            });
        }
        if let Some(concurrency) = self.concurrency {
            about = about.concurrency(match concurrency {
                GivenConcurrency::Parallel => Concurrency::Parallel,
                GivenConcurrency::Exclusive => Concurrency::Exclusive,
            });
        }
        if let Some(mode) = self.after_partial_output {
            about = about.after_partial_output(match mode {
                GivenMode::Restart => AfterPartialOutput::Restart,
                GivenMode::Continue => AfterPartialOutput::Continue,
                GivenMode::Buffer => AfterPartialOutput::Buffer,
            });
        }
        if let Some(seconds) = self.timeout {
            about = about.attempt_timeout(duration("timeout", seconds)?);
        }
        if let Some(seconds) = self.idle_timeout {
            about = about.idle_timeout(Some(duration("idleTimeout", seconds)?));
        }
        Ok(match self.attempts {
            Some(attempts) => about.attempts_max(attempts),
            None => about,
        })
    }

    /// Texts, lists and schemas, which have no defaults of their own.
    fn texts(&self, about: About) -> About {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        let schema = |schema: &Option<Value>| schema.as_ref().map(ToString::to_string).unwrap_or_default();
        let about = about
            .title(text(&self.title))
            .category(text(&self.category))
            .side_effect_scope(text(&self.side_effect_scope))
            .version(text(&self.version))
            .output_schema_text(schema(&self.output_schema))
            .exclusive_when(schema(&self.exclusive_when))
            .parallel_when(schema(&self.parallel_when));
        let about = self.tags.iter().fold(about, |about, tag| about.tag(tag.clone()));
        let about = self.context_keys.iter().fold(about, |about, key| about.context_key(key.clone()));
        self.aliases.iter().fold(about, |about, alias| about.alias(alias.name.clone(), alias.description.clone()))
    }
}

impl Flags {
    fn apply(&self, about: About) -> About {
        type Setter = fn(About) -> About;
        let set: [(bool, Setter); 10] = [
            (self.read_only, About::read_only),
            (self.idempotent, About::idempotent),
            (self.destructive, About::destructive),
            (self.open_world, About::open_world),
            (self.uses_machine, About::uses_machine),
            (self.streaming, About::streaming),
            (self.needs_approval, About::requires_confirmation),
            (self.is_final, About::final_),
            (self.return_direct, About::return_direct),
            (self.hidden, About::hidden),
        ];
        set.into_iter().filter(|(applies, _)| *applies).fold(about, |about, (_, apply)| apply(about))
    }
}

pub(crate) fn duration(name: &str, seconds: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(seconds).map_err(|error| format!("{name} is {seconds} seconds: {error}"))
}
