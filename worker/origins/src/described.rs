//! The part of a manifest that HTTP tools and programs have in common.

use std::time::Duration;

use run::Effects;
use serde::Deserialize;
use serde_json::{Map, Value};
use toolyard_tool::{About, Origin};

/// Attempt timeouts beyond it are refused: a run lasts no longer.
const TIMEOUT_S_MAX: u64 = 24 * 3600;

/// The names of the fields of [`Described`].
const FIELDS: [&str; 16] = [
    "title",
    "description",
    "category",
    "tags",
    "version",
    "side_effect_scope",
    "requires_confirmation",
    "max_concurrent",
    "running_max",
    "attempts_max",
    "timeout_s",
    "idle_timeout_s",
    "hidden",
    "streaming",
    "effects",
    "output_schema",
];

/// Sets a property of a manifest.
type Setter = fn(About) -> About;

/// What models, callers and operators read of a tool.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Described {
    pub(crate) title: String,
    pub(crate) description: String,
    category: String,
    tags: Vec<String>,
    version: String,
    side_effect_scope: String,
    requires_confirmation: bool,
    max_concurrent: Option<u32>,
    running_max: Option<u32>,
    attempts_max: Option<u32>,
    timeout_s: Option<u64>,
    idle_timeout_s: Option<u64>,
    hidden: bool,
    pub(crate) streaming: bool,
    effects: GivenEffects,
    output_schema: Option<Value>,
}

/// Effects that the file sets; the others have the default of the tool's origin.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct GivenEffects {
    read_only: Option<bool>,
    idempotent: Option<bool>,
    destructive: Option<bool>,
    open_world: Option<bool>,
    uses_machine: Option<bool>,
}

impl Described {
    /// Takes its fields out of a table, so that the other fields can be checked on their own.
    pub(crate) fn take(from: &mut Map<String, Value>) -> Result<Self, String> {
        Self::read(Self::fields(from))
    }

    /// Takes its fields out of a table, unread.
    pub(crate) fn fields(from: &mut Map<String, Value>) -> Map<String, Value> {
        FIELDS.iter().filter_map(|name| from.remove_entry(*name)).collect()
    }

    /// Reads its fields.
    pub(crate) fn read(fields: Map<String, Value>) -> Result<Self, String> {
        let described: Self = serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())?;
        for (name, seconds) in [("timeout_s", described.timeout_s), ("idle_timeout_s", described.idle_timeout_s)] {
            if seconds.is_some_and(|seconds| !(1..=TIMEOUT_S_MAX).contains(&seconds)) {
                return Err(format!("{name} is {}: write 1 to {TIMEOUT_S_MAX}", seconds.unwrap_or_default()));
            }
        }
        Ok(described)
    }

    /// How long nothing may arrive.
    pub(crate) fn idle_timeout(&self, default: Duration) -> Duration {
        self.idle_timeout_s.map_or(default, Duration::from_secs)
    }

    /// As the file sets it.
    pub(crate) fn given_idle_timeout(&self) -> Option<Duration> {
        self.idle_timeout_s.map(Duration::from_secs)
    }

    /// The effects that it has if `default` are those of its kind.
    fn effects(&self, default: Effects) -> Effects {
        let given = self.effects;
        Effects {
            read_only: given.read_only.unwrap_or(default.read_only),
            idempotent: given.idempotent.unwrap_or(default.idempotent),
            destructive: given.destructive.unwrap_or(default.destructive),
            open_world: given.open_world.unwrap_or(default.open_world),
            uses_machine: given.uses_machine.unwrap_or(default.uses_machine),
        }
    }

    /// Whether a call may be executed again when it is not known how it ended.
    pub(crate) fn is_repeatable(&self, default: Effects) -> bool {
        let effects = self.effects(default);
        effects.read_only || effects.idempotent
    }

    /// Its manifest, except for name and schema.
    pub(crate) fn about(&self, origin: Origin, default: Effects, timeout: Duration) -> About {
        let effects = self.effects(default);
        let mut about = About::new(self.description.clone()).origin(origin).title(self.title.clone());
        let set: [(bool, Setter); 8] = [
            (effects.read_only, About::read_only),
            (effects.idempotent, About::idempotent),
            (effects.destructive, About::destructive),
            (effects.open_world, About::open_world),
            (effects.uses_machine, About::uses_machine),
            (self.requires_confirmation, About::requires_confirmation),
            (self.hidden, About::hidden),
            (self.streaming, About::streaming),
        ];
        for (_, apply) in set.into_iter().filter(|(applies, _)| *applies) {
            about = apply(about);
        }
        about = self.tags.iter().fold(about, |about, tag| about.tag(tag.clone()));
        about = about.category(self.category.clone()).version(self.version.clone());
        about = about.side_effect_scope(self.side_effect_scope.clone());
        about = about.max_concurrent(self.max_concurrent.unwrap_or_default());
        about = about.running_max(self.running_max.unwrap_or_default());
        if let Some(attempts) = self.attempts_max {
            about = about.attempts_max(attempts);
        }
        if let Some(schema) = &self.output_schema {
            about = about.output_schema_text(schema.to_string());
        }
        // The origin watches for silence itself: it sees bytes that are no output.
        about.attempt_timeout(self.timeout_s.map_or(timeout, Duration::from_secs)).idle_timeout(None)
    }
}
