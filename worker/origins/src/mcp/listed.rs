//! A tool as a server lists it becomes a tool of this worker, or is left out with a reason.

use rmcp::model::{Tool, ToolAnnotations};
use run::{Origin, limit};
use serde_json::Value;
use toolyard_tool::{About, AnyTool, InvalidTool, Table};

use super::config::{Reach, ServerConfig};
use super::schemas;

/// A tool of a server that is not hosted.
#[derive(Debug, thiserror::Error)]
pub(super) enum LeftOut {
    #[error("it is not described as a tool: {0}")]
    NotATool(String),
    #[error("its name is empty")]
    NoName,
    #[error(transparent)]
    Invalid(#[from] InvalidTool),
}

/// What a server says of a tool, as far as it is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hints {
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    open_world: bool,
}

impl Hints {
    /// With the defaults of the protocol. If two of them contradict each other, the worse is believed.
    fn of(annotations: Option<&ToolAnnotations>, trusted: bool) -> Self {
        let hint = |of: fn(&ToolAnnotations) -> Option<bool>| annotations.filter(|_| trusted).and_then(of);
        let destructive = hint(|known| known.destructive_hint);
        let read_only = hint(|known| known.read_only_hint) == Some(true) && destructive != Some(true);
        Self {
            read_only,
            destructive: !read_only && destructive.unwrap_or(true),
            idempotent: hint(|known| known.idempotent_hint).unwrap_or(false),
            open_world: hint(|known| known.open_world_hint).unwrap_or(true),
        }
    }

    /// Whether a call may be executed again when it is not known how it ended.
    pub(super) fn repeatable(self) -> bool {
        self.read_only || self.idempotent
    }
}

/// Reads a tool of a list. `body` makes its implementation, from its own name and whether it may be repeated.
pub(super) fn read<T: AnyTool>(
    listed: Value,
    config: &ServerConfig,
    body: impl FnOnce(String, bool) -> T,
) -> Result<Table, LeftOut> {
    let tool: Tool = serde_json::from_value(listed).map_err(|error| LeftOut::NotATool(error.to_string()))?;
    if tool.name.is_empty() {
        return Err(LeftOut::NoName);
    }
    let hints = Hints::of(tool.annotations.as_ref(), config.trust_hints);
    let name = hosted_name(&config.prefix, &tool.name);
    let input = schemas::modern((*tool.input_schema).clone()).to_string();
    let about = about(&tool, config, hints);
    let (own, again) = (tool.name.to_string(), hints.repeatable());
    Ok(Table::new().host_any(&name, input, about, body(own, again))?)
}

/// The name under which a tool is hosted: with the prefix, and `_` for every character that a name may not have.
pub(super) fn hosted_name(prefix: &str, own: &str) -> String {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let own = own.chars().map(|c| if fits(c) { c } else { '_' });
    prefix.chars().chain(own).take(limit::TOOL_NAME_BYTES_MAX).collect()
}

fn about(tool: &Tool, config: &ServerConfig, hints: Hints) -> About {
    let description = tool.description.as_deref().unwrap_or_default();
    let mut about = About::new(cut(description, limit::DESCRIPTION_BYTES_MAX)).origin(Origin::Mcp);
    let title = tool.title.as_deref().or(tool.annotations.as_ref().and_then(|known| known.title.as_deref()));
    about = about.title(cut(title.unwrap_or_default(), limit::TITLE_BYTES_MAX));
    about =
        about.category(config.name.as_str()).side_effect_scope(format!("the MCP server {}", config.name)).tag("mcp");
    about = about.attempt_timeout(config.timeout);
    for (holds, set) in [
        (hints.read_only, About::read_only as fn(About) -> About),
        (hints.destructive, About::destructive),
        (hints.idempotent, About::idempotent),
        (hints.open_world, About::open_world),
        (matches!(config.reach, Reach::Program { .. }), About::uses_machine),
        (config.confirm.matches(&tool.name), About::requires_confirmation),
    ] {
        if holds {
            about = set(about);
        }
    }
    let output = tool.output_schema.as_deref().cloned().map(|schema| schemas::modern(schema).to_string());
    match output.as_deref().map(|output| (output, schema::Schema::compile(output))) {
        Some((output, Ok(_))) => about.output_schema_text(output),
        Some((_, Err(error))) => {
            let (server, tool) = (&config.name, &tool.name);
            tracing::warn!(server, %tool, %error, "leaving out the output schema of a tool of an MCP server");
            about
        }
        None => about,
    }
}

/// A text within a limit of bytes, with a note if something is cut.
fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let note = format!(" … (cut, it has {} bytes)", text.len());
    let mut end = limit.saturating_sub(note.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{note}", &text[..end])
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use toolyard_tool::{Context, Manifest, Output, ToolError};

    use super::*;

    struct Nothing;

    impl AnyTool for Nothing {
        async fn call(&self, _: &Context, _: Value) -> Result<Output, ToolError> {
            Ok(().into())
        }
    }

    fn config() -> ServerConfig {
        ServerConfig::of_command("some-server").unwrap()
    }

    fn manifest(listed: Value, config: &ServerConfig) -> Manifest {
        read(listed, config, |_, _| Nothing).unwrap().manifests().next().unwrap().clone()
    }

    #[test]
    fn hints_become_effects_with_the_defaults_of_the_protocol() {
        let tool = |hints: Value| json!({"name": "t", "inputSchema": {"type": "object"}, "annotations": hints});
        for (hints, [read_only, destructive, idempotent, open_world]) in [
            (json!({}), [false, true, false, true]),
            (json!({"readOnlyHint": true}), [true, false, false, true]),
            (json!({"readOnlyHint": true, "openWorldHint": false}), [true, false, false, false]),
            (json!({"readOnlyHint": true, "destructiveHint": true}), [false, true, false, true]),
            (json!({"destructiveHint": false, "idempotentHint": true}), [false, false, true, true]),
        ] {
            let effects = manifest(tool(hints.clone()), &config()).effects;
            let found = [effects.read_only, effects.destructive, effects.idempotent, effects.open_world];
            assert_eq!(found, [read_only, destructive, idempotent, open_world], "{hints}");
        }
        let distrusted = ServerConfig { trust_hints: false, ..config() };
        let effects = manifest(tool(json!({"readOnlyHint": true, "openWorldHint": false})), &distrusted).effects;
        assert!(effects.destructive && effects.open_world && !effects.repeatable());
    }

    #[test]
    fn names_and_long_texts_are_made_to_fit() {
        let config = config().with_prefix("s__").unwrap();
        let long = "ä".repeat(10_000);
        let tool = json!({"name": "a b/ü", "title": "T", "description": long, "inputSchema": {"type": "object"}});
        let manifest = manifest(tool, &config);
        assert_eq!(manifest.name.as_str(), "s__a_b__");
        assert_eq!((manifest.title.as_str(), manifest.origin), ("T", Origin::Mcp));
        assert!(manifest.description.ends_with("… (cut, it has 20000 bytes)"), "{}", manifest.description.len());
    }

    #[test]
    fn a_tool_that_cannot_be_used_is_left_out_with_the_reason() {
        for (tool, reason) in [
            (json!({"name": "t"}), "not described as a tool"),
            (json!({"name": "t", "inputSchema": []}), "not described as a tool"),
            (json!({"name": "", "inputSchema": {"type": "object"}}), "its name is empty"),
            (json!({"name": "t", "inputSchema": {"type": "string"}}), "not that of an object"),
            (json!({"name": "t", "inputSchema": {"type": "object", "$ref": "https://evil/s"}}), "refers to"),
            (json!({"name": "t", "inputSchema": {"type": "object", "title": "x".repeat(70_000)}}), "bytes, at most"),
        ] {
            let error = read(tool.clone(), &config(), |_, _| Nothing).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn an_output_schema_that_cannot_be_used_is_left_out_and_the_tool_is_hosted() {
        let tool = json!({"name": "t", "inputSchema": {"type": "object"}, "outputSchema": {"$ref": "#/none"}});
        assert_eq!(manifest(tool, &config()).output_schema, "");
    }
}
