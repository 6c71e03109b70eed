//! The tools listed in a request: tools that the client answers itself, attached tools, and approval rules.

use proto::v1;
use serde_json::{Value, json};

use crate::openai::InputError;

/// Looks up hosted tools: maps a name used by the model to the name of a worker's tool. Vendors that forbid dots were
/// given `__` in their place.
pub type Hosted<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The result of reading a list of tools.
#[derive(Debug, Default)]
pub(crate) struct Tools {
    /// Tools that no worker hosts; the client answers them.
    pub(crate) own: Vec<v1::RequestTool>,
    pub(crate) attached: Vec<String>,
    approve: Vec<Approve>,
    /// Whether calls of dangerous tools must be confirmed if no other rule requires it. If unspecified, the
    /// deployment's setting applies.
    confirmation: v1::Confirmation,
}

#[derive(Debug)]
enum Approve {
    All,
    These(Vec<String>),
    AllBut(Vec<String>),
}

impl Tools {
    pub(crate) fn read(tools: Option<&Value>, hosted: Hosted<'_>) -> Result<Self, InputError> {
        let mut read = Self::default();
        let tools = match tools {
            None | Some(Value::Null) => return Ok(read),
            Some(Value::Array(tools)) => tools,
            Some(_) => return Err(InputError::invalid("/tools", "a list of tools was expected")),
        };
        for (nth, tool) in tools.iter().enumerate() {
            read.add(tool, &format!("/tools/{nth}"), hosted)?;
        }
        Ok(read)
    }

    fn add(&mut self, tool: &Value, at: &str, hosted: Hosted<'_>) -> Result<(), InputError> {
        use v1::request_tool::Format;
        let own = |name: &str, format| v1::RequestTool { name: name.to_owned(), format: Some(format) };
        let any_object = || Format::InputSchema(r#"{"type":"object"}"#.to_owned());
        match tool["type"].as_str().unwrap_or_default() {
            "function" => {
                // Assistants nest the function in a member.
                let function = if tool["function"].is_object() { &tool["function"] } else { tool };
                let name = named(function, at)?;
                if hosted(name).is_none() {
                    let schema = Some(&function["parameters"]).filter(|schema| schema.is_object());
                    let schema = schema.map_or_else(|| json!({ "type": "object" }), Clone::clone);
                    self.own.push(own(name, Format::InputSchema(schema.to_string())));
                }
            }
            "custom" => {
                let name = named(tool, at)?;
                let grammar = &tool["format"]["definition"];
                let format = match (tool["format"]["type"].as_str(), tool["format"]["syntax"].as_str()) {
                    (None | Some("text"), _) => Format::Text(v1::TextFormat {}),
                    (Some("grammar"), Some("regex")) => Format::Regex(grammar.as_str().unwrap_or_default().to_owned()),
                    (Some("grammar"), Some("lark")) => Format::Lark(grammar.as_str().unwrap_or_default().to_owned()),
                    _ => {
                        let message = "custom tools may have the format text, or a grammar in the syntax regex or lark";
                        return Err(InputError::unsupported(format!("{at}/format"), message));
                    }
                };
                self.own.push(own(name, format));
            }
            kind @ ("local_shell" | "apply_patch") => self.own.push(own(kind, any_object())),
            "shell" => match tool["environment"]["type"].as_str() {
                None | Some("local") => self.own.push(own("shell", any_object())),
                Some(_) => {
                    let message = "only local shells, which the client runs, are supported: leave the tool out to let \
                                   a worker's bash run shell calls";
                    return Err(InputError::unsupported(format!("{at}/environment"), message));
                }
            },
            "mcp" => self.attach(tool, at, hosted)?,
            "" => return Err(InputError::invalid(format!("{at}/type"), "the type of the tool is missing")),
            kind => {
                let message = format!(
                    "tools of type {:?} are not supported: leave workers' tools out, and list others as functions; with \
                     ?foreign_tools=ignore they are passed over",
                    kind.chars().take(64).collect::<String>()
                );
                return Err(InputError::unsupported(format!("{at}/type"), message));
            }
        }
        Ok(())
    }

    /// Workers' tools are presented as the only MCP server.
    fn attach(&mut self, tool: &Value, at: &str, hosted: Hosted<'_>) -> Result<(), InputError> {
        for member in ["server_url", "connector_id", "authorization", "headers"] {
            if !tool[member].is_null() {
                let message = "connections to MCP servers are not supported: the tools are those of the workers; with \
                               ?foreign_tools=ignore the tool is passed over";
                return Err(InputError::unsupported(format!("{at}/{member}"), message));
            }
        }
        // A tool may be named by any of its names.
        let named = |value: &Value, at: String| -> Result<Vec<String>, InputError> {
            Ok(names(value, &at)?.into_iter().map(|name| hosted(&name).unwrap_or(name)).collect())
        };
        self.attached.extend(named(&tool["allowed_tools"], format!("{at}/allowed_tools"))?);
        let approve = &tool["require_approval"];
        let of = |which: &str| named(&approve[which], format!("{at}/require_approval/{which}"));
        match approve {
            Value::Null => {}
            Value::String(when) if when == "never" => self.confirmation = v1::Confirmation::None,
            Value::String(when) if when == "always" => self.approve.push(Approve::All),
            Value::Object(_) if !approve["always"].is_null() || !approve["never"].is_null() => {
                if !approve["never"].is_null() {
                    self.confirmation = v1::Confirmation::None;
                }
                let these = (of("always")?, of("never")?);
                self.approve.push(if approve["always"].is_null() {
                    Approve::AllBut(these.1)
                } else {
                    Approve::These(these.0)
                });
            }
            _ => {
                let message = "\"always\", \"never\" or an object with the names of tools was expected";
                return Err(InputError::invalid(format!("{at}/require_approval"), message));
            }
        }
        Ok(())
    }

    /// With tools that the request defines elsewhere.
    pub(crate) fn with(mut self, others: &[v1::RequestTool]) -> Self {
        self.own.extend_from_slice(others);
        self
    }

    /// The client's own tool of this name, if there is one.
    pub(crate) fn own(&self, name: &str) -> Option<&v1::RequestTool> {
        self.own.iter().find(|tool| tool.name == name)
    }

    /// The rules of a run with these tools.
    pub(crate) fn rules(&self, is_serial: bool, calls_max: u32) -> Option<v1::RunRules> {
        let running_max = u32::from(is_serial);
        let confirmation = self.confirmation.into();
        let rules = v1::RunRules { confirmation, running_max, calls_max, ..v1::RunRules::default() };
        (rules != v1::RunRules::default()).then_some(rules)
    }

    /// The approval that a call of this tool needs before it is executed.
    pub(crate) fn approval(&self, name: &str) -> Option<v1::ApprovalRequest> {
        let is_meant = |approve: &Approve| match approve {
            Approve::All => true,
            Approve::These(names) => names.iter().any(|other| other == name),
            Approve::AllBut(names) => names.iter().all(|other| other != name),
        };
        self.approve.iter().any(is_meant).then(<v1::ApprovalRequest as Default>::default)
    }
}

fn named<'a>(tool: &'a Value, at: &str) -> Result<&'a str, InputError> {
    tool["name"].as_str().ok_or_else(|| InputError::invalid(format!("{at}/name"), "the name of the tool is missing"))
}

/// A list of names, or an object that contains one.
fn names(value: &Value, at: &str) -> Result<Vec<String>, InputError> {
    let list = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Object(object) if object.keys().all(|key| key == "tool_names") => &value["tool_names"],
        Value::Object(_) => {
            return Err(InputError::unsupported(at, "only `tool_names` is taken here: name the tools"));
        }
        list => list,
    };
    let names = list.as_array().and_then(|list| list.iter().map(|name| name.as_str().map(str::to_owned)).collect());
    names.ok_or_else(|| InputError::invalid(at, "a list of names was expected"))
}
