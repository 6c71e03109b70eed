//! Exports tool definitions in the formats of model vendors. No IO.
//!
//! If a vendor does not allow a tool's name, the tool is exported under another name. The model calls it by that name,
//! and the caller of [`export`] must translate it back: [`Exported::name`] is the exported name and [`Exported::tool`]
//! the tool's own name. A dot becomes two underscores. A name that is too long is cut and ends in eight digits of the
//! hash of the tool's name, and so does a name that another tool already has.

mod notes;
mod strict;

use std::collections::{HashMap, HashSet};

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use proto::v1;

pub(crate) use notes::meta;
pub use notes::notes;
pub use strict::make_strict;

/// A vendor's format of tool definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `OpenAI`'s Responses.
    OpenAi,
    /// `OpenAI`'s Chat Completions, and the many APIs that copy them.
    OpenAiChat,
    /// Chat Completions with the types of `OpenAPI` in upper case, for older models of Google and models like them.
    OpenAiUpper,
    /// Anthropic's Messages.
    Anthropic,
    /// Gemini's function declarations.
    Gemini,
    /// The tools of a Model Context Protocol server.
    Mcp,
}

/// Bytes of the hash that is appended to an exported name, two hex digits each.
const MARK_BYTES: usize = 4;

/// A tool in a vendor's format.
#[derive(Debug, Clone, PartialEq)]
pub struct Exported {
    /// The tool's own name.
    pub tool: String,
    /// The name by which the model calls it.
    pub name: String,
    pub definition: Value,
}

impl Format {
    pub const ALL: [(&'static str, Self); 6] = [
        ("openai", Self::OpenAi),
        ("openai-chat", Self::OpenAiChat),
        ("openai-upper", Self::OpenAiUpper),
        ("anthropic", Self::Anthropic),
        ("gemini", Self::Gemini),
        ("mcp", Self::Mcp),
    ];

    /// Whether a definition can be left out of the model's context until the model searches for it.
    const fn defers(self) -> bool {
        match self {
            Self::OpenAi | Self::Anthropic => true,
            Self::OpenAiChat | Self::OpenAiUpper | Self::Gemini | Self::Mcp => false,
        }
    }

    /// Whether the vendor has strict definitions.
    #[must_use]
    pub const fn has_strict(self) -> bool {
        matches!(self, Self::OpenAi | Self::OpenAiChat)
    }

    /// The most characters a name may have.
    fn name_max(self) -> usize {
        match self {
            // MCP allows more, but its clients pass the names on to vendors that do not.
            Self::OpenAi | Self::OpenAiChat | Self::OpenAiUpper | Self::Gemini | Self::Mcp => 64,
            Self::Anthropic => 128,
        }
    }

    fn name(self, tool: &str) -> String {
        let mut name = match self {
            Self::Gemini => tool.to_owned(),
            Self::OpenAi | Self::OpenAiChat | Self::OpenAiUpper | Self::Anthropic | Self::Mcp => {
                tool.replace('.', "__")
            }
        };
        if self == Self::Gemini && !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            name.insert(0, '_');
        }
        if name.len() > self.name_max() { self.marked(&name, tool) } else { name }
    }

    /// Whether the tool may be exported under another name. If this returns false, the name is certainly kept.
    fn may_rename(self, tool: &str) -> bool {
        tool.len() >= self.name_max() || tool.contains('.') || !tool.starts_with(|c: char| c.is_ascii_alphabetic())
    }

    /// The name with a hash of the tool's name appended, cut to the maximum length.
    fn marked(self, name: &str, tool: &str) -> String {
        let mark: String = Sha256::digest(tool)[..MARK_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        let kept: String = name.chars().take(self.name_max() - mark.len() - 1).collect();
        format!("{kept}_{mark}")
    }
}

/// The tool with which a model finds others; its own definition is never deferred.
pub const SEARCH_TOOLS: &str = "search_tools";

/// Bytes of the names of deferred tools.
const DEFERRED_BYTES_MAX: usize = 4096;

/// The names of deferred tools cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidDeferred {
    #[error("the format has no deferred definitions: openai and anthropic have them")]
    NotInFormat,
    #[error("{0} bytes of names, at most {DEFERRED_BYTES_MAX} are allowed: use patterns")]
    TooLong(usize),
    #[error(transparent)]
    Pattern(#[from] globset::Error),
}

/// Tools whose definitions are left out of the model's context until its vendor's tool search finds them.
#[derive(Debug, Clone)]
pub struct Deferred(GlobSet);

impl Deferred {
    /// `names` have commas between them; `*` stands for any characters.
    ///
    /// # Errors
    /// The format has no deferred definitions, or a name is no pattern.
    pub fn new(names: &str, format: Format) -> Result<Self, InvalidDeferred> {
        if !format.defers() {
            return Err(InvalidDeferred::NotInFormat);
        }
        if names.len() > DEFERRED_BYTES_MAX {
            return Err(InvalidDeferred::TooLong(names.len()));
        }
        let mut set = GlobSetBuilder::new();
        for name in names.split(',') {
            set.add(Glob::new(name.trim())?);
        }
        Ok(Self(set.build()?))
    }

    /// Marks the definitions of these tools (`defer_loading`).
    pub fn mark(&self, exported: &mut [Exported]) {
        for exported in exported.iter_mut().filter(|it| it.tool != SEARCH_TOOLS && self.0.is_match(&it.tool)) {
            exported.definition["defer_loading"] = Value::Bool(true);
        }
    }
}

/// Exports tools in the given order.
#[must_use]
pub fn export(tools: &[v1::Tool], format: Format) -> Vec<Exported> {
    let own: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
    let exported = tools.iter().zip(names(&own, format)).map(|(tool, name)| {
        let definition = definition(tool, &name, format);
        Exported { tool: tool.name.clone(), name, definition }
    });
    exported.collect()
}

/// The names under which tools are exported, in the order of their own.
#[must_use]
pub fn names(tools: &[&str], format: Format) -> Vec<String> {
    // A name that needs no change keeps priority over changed names, at any position in the list.
    let own = tools.iter().filter(|name| format.name(name) == **name);
    let mut taken: HashSet<String> = own.map(|name| (*name).to_owned()).collect();
    let names = tools.iter().map(|tool| {
        let mut name = format.name(tool);
        if name != *tool && !taken.insert(name.clone()) {
            name = format.marked(&name, tool);
            taken.insert(name.clone());
        }
        name
    });
    names.collect()
}

/// The tools of a list that are exported under other names than their own, so that a name which a model called is found
/// without reading the list again. No definition is built for that.
#[derive(Debug, Default)]
pub struct Renamed {
    /// Positions in the list, by the exported name.
    changed: HashMap<String, Vec<usize>>,
    /// The same by the name that has a hash, which a tool has if the shorter one is taken.
    marked: HashMap<String, Vec<usize>>,
}

impl Renamed {
    #[must_use]
    pub fn new<'a>(tools: impl IntoIterator<Item = &'a str>, format: Format) -> Self {
        let mut all = Self::default();
        for (place, tool) in tools.into_iter().enumerate().filter(|(_, tool)| format.may_rename(tool)) {
            let name = format.name(tool);
            if name != tool {
                all.marked.entry(format.marked(&name, tool)).or_default().push(place);
                all.changed.entry(name).or_default().push(place);
            }
        }
        all
    }

    /// The positions of the tools that a model may have called by an exported name which is no tool's own name: the
    /// likeliest first.
    pub fn meant(&self, called: &str) -> impl Iterator<Item = usize> {
        let places = [&self.changed, &self.marked].into_iter().filter_map(move |names| names.get(called));
        places.flatten().copied()
    }
}

fn definition(tool: &v1::Tool, name: &str, format: Format) -> Value {
    let description = match tool.description.trim() {
        "" => words(&tool.name),
        description => description.to_owned(),
    };
    let schema = schema(&tool.input_schema);
    match format {
        // By default the vendor treats schemas as strict, and strict schemas allow little of JSON Schema.
        Format::OpenAi => json!({
            "type": "function", "name": name, "description": description, "parameters": schema, "strict": false,
        }),
        Format::OpenAiChat => json!({
            "type": "function", "function": { "name": name, "description": description, "parameters": schema },
        }),
        Format::OpenAiUpper => json!({
            "type": "function", "function": { "name": name, "description": description, "parameters": upper(&schema) },
        }),
        Format::Anthropic => json!({ "name": name, "description": description, "input_schema": schema }),
        Format::Gemini => json!({ "name": name, "description": description, "parametersJsonSchema": schema }),
        Format::Mcp => mcp(tool, name, &description, &schema),
    }
}

fn mcp(tool: &v1::Tool, name: &str, description: &str, input: &Value) -> Value {
    let effects = tool.effects.unwrap_or_default();
    let mut definition = json!({
        "name": name,
        "description": description,
        "inputSchema": input,
        "annotations": {
            "readOnlyHint": effects.read_only,
            "idempotentHint": effects.idempotent,
            "destructiveHint": effects.destructive,
            "openWorldHint": effects.open_world,
        },
    });
    // The protocol only allows results that are objects.
    let output = schema(&tool.output_schema);
    if !tool.output_schema.is_empty() && output["type"] == "object" {
        definition["outputSchema"] = output;
    }
    if let Some(meta) = meta(tool) {
        definition["_meta"] = meta;
    }
    definition
}

/// A schema without its `$schema` keyword, which some vendors do not know.
fn schema(text: &str) -> Value {
    let mut schema = serde_json::from_str(text).unwrap_or_else(|_| json!({ "type": "object" }));
    if let Some(schema) = schema.as_object_mut() {
        schema.remove("$schema");
    }
    schema
}

/// The schema with its types in upper case. A property that is named `type` and the like are unchanged.
fn upper(schema: &Value) -> Value {
    let Some(schema) = schema.as_object() else { return schema.clone() };
    let each = |schemas: &Map<String, Value>| -> Value {
        schemas.iter().map(|(name, schema)| (name.clone(), upper(schema))).collect::<Map<_, _>>().into()
    };
    let shout = |kind: &Value| kind.as_str().map_or_else(|| kind.clone(), |kind| kind.to_uppercase().into());
    let turned = schema.iter().map(|(keyword, value)| {
        let value = match (keyword.as_str(), value) {
            ("type", Value::Array(kinds)) => kinds.iter().map(shout).collect(),
            ("type", kind) => shout(kind),
            ("properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas", Value::Object(all)) => {
                each(all)
            }
            ("const" | "enum" | "default" | "examples" | "required", value) => value.clone(),
            (_, Value::Array(schemas)) => schemas.iter().map(upper).collect(),
            (_, value) => upper(value),
        };
        (keyword.clone(), value)
    });
    turned.collect::<Map<_, _>>().into()
}

/// The words of a name: `get_current_time` and `getCurrentTime` become "get current time".
pub(crate) fn words(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let mut words = String::new();
    for (at, c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| chars.get(before)).copied().unwrap_or(' ');
        let next_is_small = chars.get(at + 1).is_some_and(char::is_ascii_lowercase);
        let begins = c.is_ascii_uppercase() && (!before.is_ascii_uppercase() || next_is_small);
        if begins {
            words.push(' ');
        }
        words.push(if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { ' ' });
    }
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(name: &str) -> v1::Tool {
        let input_schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": { "city": { "type": "string", "description": "Which" }, "type": { "type": ["integer", "null"] } },
            "required": ["city"],
        });
        v1::Tool {
            name: name.to_owned(),
            description: "Tells the weather.".to_owned(),
            input_schema: input_schema.to_string(),
            effects: Some(v1::ToolEffects { read_only: true, open_world: true, ..v1::ToolEffects::default() }),
            ..v1::Tool::default()
        }
    }

    fn one(tool: v1::Tool, format: Format) -> String {
        export(&[tool], format)[0].definition.to_string()
    }

    const SCHEMA: &str = r#"{"properties":{"city":{"description":"Which","type":"string"},"type":{"type":["integer","null"]}},"required":["city"],"type":"object"}"#;
    const UPPER: &str = r#"{"properties":{"city":{"description":"Which","type":"STRING"},"type":{"type":["INTEGER","NULL"]}},"required":["city"],"type":"OBJECT"}"#;

    #[test]
    fn each_vendor_gets_the_very_json_that_it_wants() {
        let head = r#""description":"Tells the weather.","name":"weather""#;
        let cases = [
            (Format::OpenAi, format!(r#"{{{head},"parameters":{SCHEMA},"strict":false,"type":"function"}}"#)),
            (Format::OpenAiChat, format!(r#"{{"function":{{{head},"parameters":{SCHEMA}}},"type":"function"}}"#)),
            (Format::OpenAiUpper, format!(r#"{{"function":{{{head},"parameters":{UPPER}}},"type":"function"}}"#)),
            (
                Format::Anthropic,
                format!(r#"{{"description":"Tells the weather.","input_schema":{SCHEMA},"name":"weather"}}"#),
            ),
            (Format::Gemini, format!(r#"{{{head},"parametersJsonSchema":{SCHEMA}}}"#)),
            (
                Format::Mcp,
                format!(
                    r#"{{"annotations":{{"destructiveHint":false,"idempotentHint":false,"openWorldHint":true,"readOnlyHint":true}},"description":"Tells the weather.","inputSchema":{SCHEMA},"name":"weather"}}"#
                ),
            ),
        ];
        for (format, expected) in cases {
            assert_eq!(one(tool("weather"), format), expected, "{format:?}");
        }
    }

    #[test]
    fn the_schema_of_a_result_is_told_where_the_protocol_knows_it() {
        let with = |output: &str| v1::Tool { output_schema: output.to_owned(), ..tool("weather") };
        assert!(one(with(r#"{"type":"object"}"#), Format::Mcp).contains(r#""outputSchema":{"type":"object"}"#));
        assert!(!one(with(r#"{"type":"string"}"#), Format::Mcp).contains("outputSchema"));
    }

    #[test]
    fn a_tool_that_says_nothing_is_described_by_its_name() {
        let cases = [
            ("get_current_time", "get current time"),
            ("getCityTime", "get city time"),
            ("HTTPGet", "http get"),
            ("fetchURL", "fetch url"),
            ("web.search-v2", "web search v2"),
            ("bash", "bash"),
        ];
        for (name, expected) in cases {
            let described = v1::Tool { description: " ".to_owned(), ..tool(name) };
            assert_eq!(export(&[described], Format::Mcp)[0].definition["description"], expected);
        }
    }

    #[test]
    fn a_name_that_a_vendor_does_not_allow_is_replaced_by_one_of_its_own() {
        let long = "l".repeat(128);
        let names = ["web__search", "web.search", "9.lives", &long, "plain"];
        let tools: Vec<v1::Tool> = names.iter().map(|name| tool(name)).collect();
        for (_, format) in Format::ALL {
            let exported = export(&tools, format);
            let renamed = Renamed::new(names, format);
            let meant = |called: &str| renamed.meant(called).map(|place| names[place]).next();
            let distinct: HashSet<&str> = exported.iter().map(|tool| tool.name.as_str()).collect();
            assert_eq!(distinct.len(), names.len(), "{format:?}: {distinct:?}");
            for (tool, own) in exported.iter().zip(names) {
                assert_eq!(tool.tool, own);
                assert!(tool.name.len() <= format.name_max(), "{format:?}: {}", tool.name);
                let dots = format == Format::Gemini;
                assert!(dots || !tool.name.contains('.'), "{format:?}: {}", tool.name);
                assert!(tool.definition.to_string().contains(&tool.name));
                let is_renamed = tool.name != own;
                assert!(!is_renamed || meant(&tool.name) == Some(own), "{format:?}: {}", tool.name);
            }
            assert_eq!(meant("web__find"), None);
            assert_eq!((exported[0].name.as_str(), exported[4].name.as_str()), ("web__search", "plain"));
        }
        assert!(export(&tools, Format::OpenAi)[1].name.starts_with("web__search_"));
        assert!(export(&tools, Format::Mcp)[1].name.starts_with("web__search_"));
        assert_eq!(export(&tools, Format::Gemini)[2].name, "_9.lives");
    }

    #[test]
    fn named_definitions_are_deferred_and_the_search_never_is() {
        let tools = ["files_read", "files_write", "bash", SEARCH_TOOLS].map(tool);
        let mut exported = export(&tools, Format::Anthropic);
        Deferred::new("files_*, search_tools", Format::Anthropic).unwrap().mark(&mut exported);
        let deferred = exported.iter().filter(|it| it.definition["defer_loading"] == true);
        assert_eq!(deferred.map(|it| it.tool.as_str()).collect::<Vec<_>>(), ["files_read", "files_write"]);
    }

    #[test]
    fn names_of_deferred_tools_that_cannot_be_used_are_refused() {
        assert!(matches!(Deferred::new("*", Format::Gemini), Err(InvalidDeferred::NotInFormat)));
        assert!(matches!(Deferred::new("[", Format::OpenAi), Err(InvalidDeferred::Pattern(_))));
        assert!(matches!(Deferred::new(&"a".repeat(4097), Format::OpenAi), Err(InvalidDeferred::TooLong(4097))));
    }
}
