//! Tools between the wire and the domain, and the validation of manifests. The worker that advertises a manifest and
//! the coordinator that receives it use the same validation.

use std::collections::HashSet;
use std::fmt::Display;
use std::time::Duration;

use run::{Alias, Concurrency, Effects, InvalidId, Manifest, Origin, Permission, Policy, ResultUse, ToolName, limit};

use super::{concurrency, policy_in, policy_out, time_in};
use crate::v1;
use schema::concurrency::ByInput;
use schema::pattern::Budget;
use schema::{InvalidSchema, Schema};

/// A valid manifest and the schema of its arguments.
#[derive(Debug, Clone)]
pub struct Usable {
    pub manifest: Manifest,
    /// Compiled once and used for every call.
    pub schema: Schema,
    pub concurrency: ByInput,
}

/// A manifest that cannot be used, with all its errors.
#[derive(Debug, thiserror::Error)]
#[error("tool {name:?} has a manifest that cannot be used: {}", listed(faults))]
pub struct InvalidManifest {
    /// The given name, cut to 64 characters.
    pub name: String,
    pub faults: Vec<ManifestError>,
}

/// An error in one field of a manifest.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    #[error("{field}: {error}")]
    Malformed { field: &'static str, error: InvalidId },
    #[error("{field} has {bytes} bytes, at most {limit} are allowed")]
    TooLong { field: &'static str, bytes: usize, limit: usize },
    #[error("{field} has {count} entries, at most {limit} are allowed")]
    TooMany { field: &'static str, count: usize, limit: usize },
    #[error("{field} has an entry that is empty or contains a control character: use plain words")]
    NotPlain { field: &'static str },
    #[error("{field} repeats {entry:?}: list it once")]
    Twice { field: &'static str, entry: String },
    #[error("{field} is {given}, but must be {expected}")]
    OutOfRange { field: &'static str, given: String, expected: String },
    #[error("{field} has the unknown value {value}: check whether this program is older than the worker")]
    Unknown { field: &'static str, value: i32 },
    #[error("{field}: {error}")]
    Schema { field: &'static str, error: InvalidSchema },
}

fn listed(faults: &[ManifestError]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// Validates every field and collects all errors.
fn faults_of(manifest: &Manifest, faults: &mut Vec<ManifestError>, patterns: &mut Budget) -> Option<Schema> {
    text(faults, "description", &manifest.description, limit::DESCRIPTION_BYTES_MAX);
    text(faults, "side_effect_scope", &manifest.side_effect_scope, limit::SIDE_EFFECT_SCOPE_BYTES_MAX);
    text(faults, "category", &manifest.category, limit::TAG_BYTES_MAX);
    text(faults, "title", &manifest.title, limit::TITLE_BYTES_MAX);
    if manifest.category.chars().any(char::is_control) {
        faults.push(ManifestError::NotPlain { field: "category" });
    }
    words(faults, "tags", &manifest.tags, (limit::TAGS_MAX, limit::TAG_BYTES_MAX));
    let keys_max = (limit::CONTEXT_KEYS_MAX, limit::CONTEXT_KEY_BYTES_MAX);
    words(faults, "context_keys", &manifest.context_keys, keys_max);
    aliases(faults, &manifest.name, &manifest.aliases);
    policy(faults, &manifest.policy);
    if !manifest.output_schema.is_empty()
        && let Err(error) = Schema::compile_within(&manifest.output_schema, patterns)
    {
        faults.push(ManifestError::Schema { field: "output_schema", error });
    }
    let schema = Schema::of_arguments_within(&manifest.input_schema, patterns);
    schema.map_err(|error| faults.push(ManifestError::Schema { field: "input_schema", error })).ok()
}

fn text(faults: &mut Vec<ManifestError>, field: &'static str, text: &str, limit: usize) {
    if text.len() > limit {
        faults.push(ManifestError::TooLong { field, bytes: text.len(), limit });
    }
}

fn many(faults: &mut Vec<ManifestError>, field: &'static str, count: usize, limit: usize) {
    if count > limit {
        faults.push(ManifestError::TooMany { field, count, limit });
    }
}

/// Validates a list of plain words: their number, the bytes of each, and that none is repeated.
fn words(
    faults: &mut Vec<ManifestError>,
    field: &'static str,
    words: &[String],
    (count_max, bytes_max): (usize, usize),
) {
    many(faults, field, words.len(), count_max);
    if words.iter().any(|word| word.is_empty() || word.chars().any(char::is_control)) {
        faults.push(ManifestError::NotPlain { field });
    }
    if let Some(longest) = words.iter().max_by_key(|word| word.len()) {
        text(faults, field, longest, bytes_max);
    }
    let mut seen = HashSet::new();
    if let Some(twice) = words.iter().find(|word| !seen.insert(word.as_str())) {
        faults.push(ManifestError::Twice { field, entry: twice.chars().take(64).collect() });
    }
}

fn aliases(faults: &mut Vec<ManifestError>, name: &ToolName, aliases: &[Alias]) {
    many(faults, "aliases", aliases.len(), limit::ALIASES_MAX);
    let mut seen = HashSet::from([name]);
    if let Some(twice) = aliases.iter().find(|alias| !seen.insert(&alias.name)) {
        faults.push(ManifestError::Twice { field: "aliases", entry: twice.name.to_string() });
    }
    if let Some(longest) = aliases.iter().max_by_key(|alias| alias.description.len()) {
        text(faults, "aliases.description", &longest.description, limit::DESCRIPTION_BYTES_MAX);
    }
}

fn policy(faults: &mut Vec<ManifestError>, policy: &Policy) {
    let mut range = |field, fits: bool, given: &dyn Display, expected: &dyn Display| {
        if !fits {
            faults.push(ManifestError::OutOfRange { field, given: given.to_string(), expected: expected.to_string() });
        }
    };
    let (attempts, jitter) = (policy.attempts_max, policy.backoff.jitter_percent);
    let expected = format!("1 to {}", limit::ATTEMPTS_MAX);
    range("policy.attempts_max", (1..=limit::ATTEMPTS_MAX).contains(&attempts), &attempts, &expected);
    range("policy.backoff_jitter_percent", jitter <= 100, &jitter, &"at most 100");
    let mut time = |field, time: Duration, least: Duration| {
        let (given, most) = (format!("{time:?}"), limit::EXECUTION_MAX);
        range(field, (least..=most).contains(&time), &given, &format!("{least:?} to {most:?}"));
    };
    let least = Duration::from_millis(1);
    time("policy.attempt_timeout", policy.attempt_timeout, least);
    time("policy.backoff_first", policy.backoff.first, Duration::ZERO);
    time("policy.backoff_longest", policy.backoff.longest, Duration::ZERO);
    if let Some(idle) = policy.idle_timeout {
        time("policy.idle_timeout", idle, least);
    }
}

/// A tool in wire form, without the registry's information about it.
#[must_use]
pub fn manifest_out(manifest: &Manifest) -> v1::Tool {
    let Effects { read_only, idempotent, destructive, open_world, uses_machine } = manifest.effects;
    let aliases = manifest.aliases.iter();
    v1::Tool {
        name: manifest.name.to_string(),
        description: manifest.description.clone(),
        input_schema: manifest.input_schema.clone(),
        output_schema: manifest.output_schema.clone(),
        effects: Some(v1::ToolEffects { read_only, idempotent, destructive, open_world, uses_machine }),
        policy: Some(policy_out(&manifest.policy)),
        definition_only: manifest.definition_only,
        streaming: manifest.streaming,
        pools: Vec::new(),
        category: manifest.category.clone(),
        permission: permission_out(manifest.permission).into(),
        side_effect_scope: manifest.side_effect_scope.clone(),
        requires_confirmation: manifest.requires_confirmation,
        tags: manifest.tags.clone(),
        r#final: manifest.result_use.is_final,
        return_direct: manifest.result_use.return_direct,
        hidden: manifest.result_use.hidden,
        concurrency: concurrency_out(manifest.concurrency).into(),
        version: manifest.version.as_ref().map(ToString::to_string).unwrap_or_default(),
        aliases: aliases
            .map(|alias| v1::ToolAlias { name: alias.name.to_string(), description: alias.description.clone() })
            .collect(),
        alias_of: String::new(),
        available: false,
        max_concurrent: manifest.max_concurrent.unwrap_or(0),
        running_max: manifest.running_max.unwrap_or(0),
        exclusive_when: manifest.exclusive_when.clone(),
        parallel_when: manifest.parallel_when.clone(),
        paused: false,
        context_keys: manifest.context_keys.clone(),
        origin: origin_out(manifest.origin).into(),
        title: manifest.title.clone(),
        needs_approval: false,
    }
}

#[must_use]
pub fn permission_out(permission: Permission) -> v1::ToolPermission {
    match permission {
        Permission::Read => v1::ToolPermission::Read,
        Permission::Write => v1::ToolPermission::Write,
        Permission::External => v1::ToolPermission::External,
    }
}

/// `None` if it is not set.
///
/// # Errors
/// The value comes from a newer program.
pub fn permission_in(wire: i32) -> Result<Option<Permission>, ManifestError> {
    match v1::ToolPermission::try_from(wire) {
        Ok(v1::ToolPermission::Unspecified) => Ok(None),
        Ok(v1::ToolPermission::Read) => Ok(Some(Permission::Read)),
        Ok(v1::ToolPermission::Write) => Ok(Some(Permission::Write)),
        Ok(v1::ToolPermission::External) => Ok(Some(Permission::External)),
        Err(_) => Err(ManifestError::Unknown { field: "permission", value: wire }),
    }
}

#[must_use]
pub fn origin_out(origin: Origin) -> v1::ToolOrigin {
    match origin {
        Origin::BuiltIn => v1::ToolOrigin::BuiltIn,
        Origin::External => v1::ToolOrigin::External,
        Origin::Mcp => v1::ToolOrigin::Mcp,
        Origin::Plugin => v1::ToolOrigin::Plugin,
    }
}

/// `None` if it is not set.
///
/// # Errors
/// The value comes from a newer program.
pub fn origin_in(wire: i32) -> Result<Option<Origin>, ManifestError> {
    match v1::ToolOrigin::try_from(wire) {
        Ok(v1::ToolOrigin::Unspecified) => Ok(None),
        Ok(v1::ToolOrigin::BuiltIn) => Ok(Some(Origin::BuiltIn)),
        Ok(v1::ToolOrigin::External) => Ok(Some(Origin::External)),
        Ok(v1::ToolOrigin::Mcp) => Ok(Some(Origin::Mcp)),
        Ok(v1::ToolOrigin::Plugin) => Ok(Some(Origin::Plugin)),
        Err(_) => Err(ManifestError::Unknown { field: "origin", value: wire }),
    }
}

#[must_use]
pub fn concurrency_out(concurrency: Concurrency) -> v1::ToolConcurrency {
    match concurrency {
        Concurrency::Parallel => v1::ToolConcurrency::Parallel,
        Concurrency::Exclusive => v1::ToolConcurrency::Exclusive,
    }
}

fn concurrency_in(wire: i32) -> Result<Option<Concurrency>, ManifestError> {
    let known = v1::ToolConcurrency::try_from(wire);
    known.map(concurrency).map_err(|_| ManifestError::Unknown { field: "concurrency", value: wire })
}

/// Reads a tool from the wire.
///
/// # Errors
/// The tool cannot be used. The error lists all problems.
pub fn manifest_in(wire: v1::Tool) -> Result<Usable, InvalidManifest> {
    manifest_within(wire, &mut Budget::default())
}

/// Like [`manifest_in`], with a budget for patterns that the tools of a worker share.
///
/// # Errors
/// See [`manifest_in`].
pub fn manifest_within(wire: v1::Tool, patterns: &mut Budget) -> Result<Usable, InvalidManifest> {
    let mut faults = Vec::new();
    let name = wire.name.chars().take(64).collect();
    let read = read(wire, &mut faults);
    let schema = faults_of(&read, &mut faults, patterns);
    let concurrency = ByInput {
        otherwise: read.concurrency,
        exclusive_when: optional(&mut faults, "exclusive_when", &read.exclusive_when, patterns),
        parallel_when: optional(&mut faults, "parallel_when", &read.parallel_when, patterns),
    };
    match schema {
        Some(schema) if faults.is_empty() => Ok(Usable { manifest: read, schema, concurrency }),
        Some(_) | None => Err(InvalidManifest { name, faults }),
    }
}

/// An optional schema.
fn optional(
    faults: &mut Vec<ManifestError>,
    field: &'static str,
    schema: &str,
    patterns: &mut Budget,
) -> Option<Schema> {
    let schema = (!schema.is_empty()).then(|| Schema::compile_within(schema, patterns))?;
    schema.map_err(|error| faults.push(ManifestError::Schema { field, error })).ok()
}

/// Reads the wire form. An invalid value is noted as an error and replaced by a placeholder.
fn read(wire: v1::Tool, faults: &mut Vec<ManifestError>) -> Manifest {
    let mut noted = |fault: ManifestError| faults.push(fault);
    let effects = wire.effects.unwrap_or_default();
    let v1::ToolEffects { read_only, idempotent, destructive, open_world, uses_machine } = effects;
    let effects = Effects { read_only, idempotent, destructive, open_world, uses_machine };
    if let Some(policy) = &wire.policy {
        wire_policy(policy, &mut noted);
    }
    let permission = permission_in(wire.permission).unwrap_or_else(|fault| {
        noted(fault);
        None
    });
    let permission = permission.unwrap_or_else(|| Permission::of(effects));
    let concurrency = concurrency_in(wire.concurrency).unwrap_or_else(|fault| {
        noted(fault);
        None
    });
    let origin = origin_in(wire.origin).unwrap_or_else(|fault| {
        noted(fault);
        None
    });
    let version = (!wire.version.is_empty()).then(|| wire.version.parse()).transpose().unwrap_or_else(|error| {
        noted(ManifestError::Malformed { field: "version", error });
        None
    });
    let mut tool_name = |field: &'static str, name: &str| -> Option<ToolName> {
        name.parse().map_err(|error| noted(ManifestError::Malformed { field, error })).ok()
    };
    let name = tool_name("name", &wire.name).unwrap_or_else(stand_in);
    let aliases = wire.aliases.into_iter();
    let aliases = aliases.filter_map(|alias| {
        Some(Alias { name: tool_name("aliases.name", &alias.name)?, description: alias.description })
    });
    Manifest {
        aliases: aliases.collect(),
        name,
        description: wire.description,
        input_schema: wire.input_schema,
        output_schema: wire.output_schema,
        effects,
        policy: wire.policy.map_or_else(|| Policy::of(effects), policy_in),
        definition_only: wire.definition_only,
        streaming: wire.streaming,
        category: wire.category,
        permission,
        side_effect_scope: wire.side_effect_scope,
        requires_confirmation: wire.requires_confirmation,
        tags: wire.tags,
        result_use: ResultUse { is_final: wire.r#final, return_direct: wire.return_direct, hidden: wire.hidden },
        concurrency: concurrency.unwrap_or_else(|| Concurrency::of(permission)),
        version,
        max_concurrent: (wire.max_concurrent > 0).then_some(wire.max_concurrent),
        running_max: (wire.running_max > 0).then_some(wire.running_max),
        exclusive_when: wire.exclusive_when,
        parallel_when: wire.parallel_when,
        context_keys: wire.context_keys,
        origin: origin.unwrap_or_default(),
        title: wire.title,
    }
}

/// The placeholder name under which the other fields of a tool with an invalid name are validated.
fn stand_in() -> ToolName {
    "unnamed".parse().expect("letters make a name")
}

/// Notes values that the domain cannot represent and would misread.
fn wire_policy(policy: &v1::ToolPolicy, noted: &mut impl FnMut(ManifestError)) {
    let times = [
        ("policy.attempt_timeout", policy.attempt_timeout),
        ("policy.backoff_first", policy.backoff_first),
        ("policy.backoff_longest", policy.backoff_longest),
        ("policy.idle_timeout", policy.idle_timeout),
    ];
    for (field, time) in times {
        if let Some(time) = time
            && time_in(time).is_none()
        {
            let (given, expected) = (format!("{} s {} ns", time.seconds, time.nanos), "a time from now on".to_owned());
            noted(ManifestError::OutOfRange { field, given, expected });
        }
    }
    if let Some(jitter) = policy.backoff_jitter_percent.filter(|jitter| *jitter > 100) {
        let (given, expected) = (jitter.to_string(), "at most 100".to_owned());
        noted(ManifestError::OutOfRange { field: "policy.backoff_jitter_percent", given, expected });
    }
    if v1::AfterPartialOutput::try_from(policy.after_partial_output).is_err() {
        noted(ManifestError::Unknown { field: "policy.after_partial_output", value: policy.after_partial_output });
    }
}
