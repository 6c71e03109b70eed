//! The declaration of a tool as JSON, for libraries that host tools of other languages. The manifest is made of it as
//! of a tool in Rust.

use std::time::{Duration, TryFromFloatSecsError};

use serde::Deserialize;
use serde_json::Value;

use crate::{About, AfterPartialOutput, Concurrency, Permission};

/// A time that is none.
#[derive(Debug, thiserror::Error)]
#[error("{name} is {seconds} seconds: {why}")]
pub struct InvalidTime {
    name: &'static str,
    seconds: f64,
    why: TryFromFloatSecsError,
}

/// What a tool is, with its name and the schema of its arguments. Times are in seconds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Declared {
    pub name: String,
    description: String,
    pub input_schema: Value,
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
    /// 0 is no limit.
    idle_timeout: Option<f64>,
    /// The first pause and the longest one.
    backoff: Option<(f64, f64)>,
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
    waiting: bool,
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
    ///
    /// # Errors
    ///
    /// A time is negative, too long, or no number.
    pub fn about(&self) -> Result<About, InvalidTime> {
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
            let limit = duration("idleTimeout", seconds)?;
            about = about.idle_timeout((!limit.is_zero()).then_some(limit));
        }
        if let Some((first, longest)) = self.backoff {
            about = about.backoff(duration("backoff", first)?, duration("backoff", longest)?);
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
        let set: [(bool, Setter); 11] = [
            (self.read_only, About::read_only),
            (self.idempotent, About::idempotent),
            (self.destructive, About::destructive),
            (self.open_world, About::open_world),
            (self.uses_machine, About::uses_machine),
            (self.streaming, About::streaming),
            (self.waiting, About::waiting),
            (self.needs_approval, About::requires_confirmation),
            (self.is_final, About::final_),
            (self.return_direct, About::return_direct),
            (self.hidden, About::hidden),
        ];
        set.into_iter().filter(|(applies, _)| *applies).fold(about, |about, (_, apply)| apply(about))
    }
}

/// A time in seconds, as declarations have it.
///
/// # Errors
///
/// It is negative, too long, or no number.
pub fn duration(name: &'static str, seconds: f64) -> Result<Duration, InvalidTime> {
    Duration::try_from_secs_f64(seconds).map_err(|why| InvalidTime { name, seconds, why })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Context, Manifest, Output, Table, ToolError};

    struct Nothing;

    impl crate::AnyTool for Nothing {
        async fn call(&self, _: &Context, _: Value) -> Result<Output, ToolError> {
            Ok(().into())
        }
    }

    fn manifest(more: Value) -> Manifest {
        let mut given = json!({ "name": "a", "description": "A tool.", "inputSchema": { "type": "object" } });
        given.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let declared: Declared = serde_json::from_value(given).expect("a declaration");
        let about = declared.about().expect("times");
        let schema = declared.input_schema.to_string();
        let table = Table::new().host_any(&declared.name, schema, about, Nothing).expect("a tool");
        table.manifests().next().expect("one tool").clone()
    }

    #[test]
    fn an_idle_timeout_of_zero_is_no_limit() {
        let idle = |more| manifest(more).policy.idle_timeout;
        assert_eq!(idle(json!({ "streaming": true, "idleTimeout": 0 })), None);
        assert_eq!(idle(json!({ "streaming": true, "idleTimeout": 2.5 })), Some(Duration::from_millis(2500)));
        assert_eq!(idle(json!({ "streaming": true })), Some(Duration::from_secs(60)));
    }
}
