//! `toolyard tools`: the tools that can be called.

use std::collections::BTreeMap;

use clap::builder::PossibleValuesParser;
use formats::tools::{Deferred, Format, export, make_strict, notes};
use proto::v1;
use serde_json::Value;

use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::list::table;
use crate::manifest::{Property, attempts, effects, permission, properties};
use crate::reference;
use crate::server::Server;
use crate::terminal::{Paint, Terminal};
use crate::words::{brief, counted, harmless};

/// The form that is for people and not for a model.
const MARKDOWN: &str = "markdown";

/// List the tools that can be called
#[derive(Debug, clap::Subcommand)]
#[command(
    after_help = "Examples:\n  toolyard tools ls\n  toolyard tools get grep\n  toolyard tools ls -o json | jq -r '.tools[].name'\n  toolyard tools ls --format anthropic\n  toolyard tools ls --format markdown > tools.md"
)]
pub(crate) enum Command {
    /// List the tools that workers advertise, by name
    #[command(alias = "list")]
    Ls(ListArgs),
    /// Show one tool: its description, its arguments, and its retry policy
    #[command(
        after_help = "Examples:\n  toolyard tools get grep\n  toolyard tools get grep -o json | jq -r .input_schema | jq ."
    )]
    Get {
        /// The tool's name
        name: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct ListArgs {
    /// Only tools whose name matches this; `*` stands for any characters
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    /// Those of this category alone
    #[arg(long, value_name = "NAME")]
    category: Option<String>,
    /// Only tools with this tag; may be repeated
    #[arg(long = "tag", value_name = "NAME")]
    tags: Vec<String>,
    /// Those of this class of permission alone
    #[arg(long, value_name = "CLASS", value_parser = ["read", "write", "external"])]
    permission: Option<String>,
    /// Only tools of this origin
    #[arg(long, value_name = "ORIGIN", value_parser = ["built-in", "external", "mcp", "plugin"])]
    origin: Option<String>,
    /// Those that this pool hosts alone
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    /// Also those that no live worker hosts
    #[arg(long)]
    unavailable: bool,
    /// As definitions for a model, in a vendor's form: a JSON array, or with -o json an object with `names`, which maps
    /// changed names to the tools' own, and `notes` on what awaits approval, is the client's or only reads. `markdown`:
    /// as a page for people
    #[arg(long, value_name = "FORM", value_parser = PossibleValuesParser::new(forms()))]
    format: Option<String>,
    /// Words to search for in names, descriptions, tags and arguments: the tools that have one, the best first
    #[arg(long, value_name = "WORDS")]
    query: Option<String>,
    /// With --format openai or anthropic: tools whose definitions a model loads only when its tool search finds them,
    /// by their names with commas between them; `*` stands for any characters
    #[arg(long, value_name = "TOOLS", requires = "format")]
    defer_loading: Option<String>,
    /// With --format openai or openai-chat: definitions that the vendor enforces. Tools whose schemas it cannot express
    /// are named
    #[arg(long, requires = "format")]
    strict: bool,
}

fn forms() -> impl Iterator<Item = &'static str> {
    Format::ALL.into_iter().map(|(name, _)| name).chain([MARKDOWN])
}

impl ListArgs {
    fn request(&self) -> v1::ListToolsRequest {
        let permission = match self.permission.as_deref() {
            Some("read") => v1::ToolPermission::Read,
            Some("write") => v1::ToolPermission::Write,
            Some("external") => v1::ToolPermission::External,
            Some(_) | None => v1::ToolPermission::Unspecified,
        };
        let origin = match self.origin.as_deref() {
            Some("built-in") => v1::ToolOrigin::BuiltIn,
            Some("external") => v1::ToolOrigin::External,
            Some("mcp") => v1::ToolOrigin::Mcp,
            Some("plugin") => v1::ToolOrigin::Plugin,
            Some(_) | None => v1::ToolOrigin::Unspecified,
        };
        v1::ListToolsRequest {
            name: self.name.clone().unwrap_or_default(),
            category: self.category.clone().unwrap_or_default(),
            tags: self.tags.clone(),
            permission: permission.into(),
            origin: origin.into(),
            query: self.query.clone().unwrap_or_default(),
            pool: self.pool.clone().unwrap_or_default(),
            include_unavailable: self.unavailable,
            ..v1::ListToolsRequest::default()
        }
    }
}

pub(crate) async fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let client = door.connect().await?;
    match command {
        Command::Ls(args) => {
            let listed = client.tools(args.request()).await?;
            if args.format.as_deref() == Some(MARKDOWN) {
                terminal.write(reference::page(&listed.tools).as_bytes())?;
                return Ok(Exit::Completed);
            }
            match Format::ALL.into_iter().find(|(name, _)| args.format.as_deref() == Some(*name)) {
                Some((_, format)) => args.definitions(&listed.tools, format, terminal)?,
                None => list(&listed, terminal)?,
            }
        }
        Command::Get { name } => {
            let tool = client.tool(&name).await?;
            if terminal.is_json() {
                terminal.message(&tool)?;
            } else {
                terminal.write(described(&tool, terminal.paint()).as_bytes())?;
            }
        }
    }
    Ok(Exit::Completed)
}

impl ListArgs {
    fn definitions(&self, tools: &[v1::Tool], format: Format, terminal: &Terminal) -> Result<(), Failure> {
        let mut exported = export(tools, format);
        let notes = notes(tools, &exported);
        let not_strict: BTreeMap<String, String> = match (self.strict, format.has_strict()) {
            (false, _) => BTreeMap::new(),
            (true, true) => make_strict(&mut exported, format).into_iter().collect(),
            (true, false) => {
                let why = "--strict: only the formats openai and openai-chat have strict definitions";
                return Err(Failure::Usage(why.to_owned()));
            }
        };
        if let Some(names) = &self.defer_loading {
            let deferred = Deferred::new(names, format);
            deferred.map_err(|error| Failure::Usage(format!("--defer-loading: {error}")))?.mark(&mut exported);
        }
        let (tools, renamed): (Vec<_>, Vec<_>) =
            exported.into_iter().map(|it| (it.definition, (it.name, it.tool))).unzip();
        if terminal.is_json() {
            let names: BTreeMap<String, String> = renamed.into_iter().filter(|(name, tool)| name != tool).collect();
            let object = Object::default().field("tools", tools).field("names", names).field("notes", notes);
            return terminal.object(&object.field("not_strict", not_strict));
        }
        for (name, why) in not_strict {
            terminal.note(&format!("{name} is not strict: {why}"));
        }
        terminal.line(&format!("{:#}", Value::Array(tools)))
    }
}

fn list(listed: &v1::ListToolsResponse, terminal: &Terminal) -> Result<(), Failure> {
    let tools = &listed.tools;
    if terminal.is_json() {
        return terminal.message(listed);
    }
    if tools.is_empty() {
        terminal.note("no live worker hosts such a tool");
    }
    for refused in &listed.refused {
        terminal.note(&refusal(refused));
    }
    if terminal.is_names() {
        return tools.iter().try_for_each(|tool| terminal.line(&harmless(&tool.name)));
    }
    if terminal.is_wide() {
        let row = |tool: &v1::Tool| {
            let needs = permission(tool.permission()).to_owned();
            let cells =
                [tool.name.clone(), place(tool), tool.category.clone(), tool.version.clone(), needs, sentence(tool)];
            cells.iter().map(|cell| harmless(cell)).collect()
        };
        let names = ["TOOL", "POOLS", "CATEGORY", "VERSION", "NEEDS", "DESCRIPTION"];
        return table(&names, 1, tools.iter().map(row).collect(), terminal);
    }
    let paint = terminal.paint();
    let lines: Vec<[String; 3]> = tools.iter().map(|tool| [tool.name.clone(), place(tool), sentence(tool)]).collect();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or_default();
    let (names, places) = (width(0), width(1));
    lines.iter().try_for_each(|[name, place, sentence]| {
        let (name, place) = (paint.bold(&format!("{name:names$}")), paint.dim(&format!("{place:places$}")));
        terminal.line(&format!("{name}  {place}  {sentence}"))
    })
}

/// A tool that is hosted and cannot be called.
fn refusal(refused: &v1::RefusedTool) -> String {
    let hosts = |hosts: &v1::ToolHosts| format!("pool {} ({})", hosts.pool, hosts.worker_ids.join(", "));
    let of = refused.hosts.as_ref().map_or_else(String::new, |of| format!(" of {}", hosts(of)));
    let holder = refused.holder.as_ref().map_or_else(String::new, |of| format!(", the one of {} is called", hosts(of)));
    harmless(&format!("refused: {}{of}{holder}: {}", refused.tool, refused.reason))
}

/// The first sentence of a tool's description.
fn sentence(tool: &v1::Tool) -> String {
    let text = harmless(&tool.description);
    brief(text.split(". ").next().unwrap_or_default().trim_end_matches('.'))
}

/// The pools that execute a tool's calls.
fn place(tool: &v1::Tool) -> String {
    if tool.definition_only {
        return "client".to_owned();
    }
    let pools = tool.pools.iter().map(|pool| {
        let workers = match pool.live_workers {
            0 => "no worker lives".to_owned(),
            live => counted(live as usize, "worker"),
        };
        let paused = if pool.paused { ", paused" } else { "" };
        let rollout = if pool.replaces.is_empty() {
            String::new()
        } else {
            let version = if pool.version.is_empty() { String::new() } else { format!("version {}, ", pool.version) };
            format!(" ({version}{} % of the calls of {})", pool.share, pool.replaces)
        };
        format!("{}: {workers}{paused}{rollout}", pool.pool)
    });
    let paused = tool.paused.then(|| "paused".to_owned());
    paused.into_iter().chain(pools).collect::<Vec<_>>().join(", ")
}

/// What executes its calls; empty for code of the worker, as in most tools.
fn origin(origin: v1::ToolOrigin) -> &'static str {
    match origin {
        v1::ToolOrigin::Unspecified | v1::ToolOrigin::BuiltIn => "",
        v1::ToolOrigin::External => "an HTTP endpoint",
        v1::ToolOrigin::Mcp => "an MCP server",
        v1::ToolOrigin::Plugin => "a program",
    }
}

fn described(tool: &v1::Tool, paint: Paint) -> String {
    let mut text = format!("{}\n{}\n", paint.bold(&tool.name), harmless(&tool.description));
    let arguments = arguments(&tool.input_schema, paint);
    if !arguments.is_empty() {
        text.push_str(&format!("\nArguments:\n{arguments}"));
    }
    text.push('\n');
    let aliases: Vec<String> = tool.aliases.iter().map(|alias| harmless(&alias.name)).collect();
    let confirmed = if tool.requires_confirmation { ", each call approved by a person" } else { "" };
    let told = [
        ("Title:     ", harmless(&tool.title)),
        ("Origin:    ", origin(tool.origin()).to_owned()),
        ("Version:   ", harmless(&tool.version)),
        ("Category:  ", harmless(&tool.category)),
        ("Tags:      ", harmless(&tool.tags.join(", "))),
        ("Aliases:   ", aliases.join(", ")),
        ("Needs:     ", format!("permission to {}{confirmed}", permission(tool.permission()))),
        ("Reaches:   ", harmless(&tool.side_effect_scope)),
        ("Context:   ", harmless(&tool.context_keys.join(", "))),
    ];
    for (label, told) in told.iter().filter(|(_, told)| !told.is_empty()) {
        text.push_str(&format!("{label}{}\n", brief(told)));
    }
    if tool.definition_only {
        text.push_str("Answered by the client: `toolyard submit`\n");
        return text;
    }
    text.push_str(&format!("Effects:   {}\n", effects(tool.effects.unwrap_or_default())));
    if let Some(policy) = &tool.policy {
        text.push_str(&format!("Attempts:  {}\n", attempts(policy)));
    }
    text.push_str(&format!("Output:    {}\n", if tool.streaming { "as it runs" } else { "its result, at the end" }));
    text.push_str(&format!("Hosted by: {}\n", place(tool)));
    text
}

/// Each argument on a line, the required ones marked.
fn arguments(schema: &str, paint: Paint) -> String {
    let lines = properties(schema).into_iter().map(|Property { name, kind, is_required, text }| {
        let mark = if is_required { " (required)" } else { "" };
        format!("  {} {}\n      {text}\n", paint.bold(&name), paint.dim(&format!("{kind}{mark}")))
    });
    lines.collect()
}
