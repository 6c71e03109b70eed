//! Tools as a page for people, generated from their manifests.

use proto::v1;

use crate::manifest::{Property, attempts, effects, permission, properties};
use crate::words::harmless;

/// Markdown: a table of all, then a section for each.
pub(crate) fn page(tools: &[v1::Tool]) -> String {
    let mut page = "# Tools\n\n| tool | category | needs permission to | |\n|---|---|---|---|\n".to_owned();
    for tool in tools {
        let (name, first) = (cell(&tool.name), cell(tool.description.split(". ").next().unwrap_or_default()));
        let (category, needs) = (cell(&tool.category), permission(tool.permission()));
        page.push_str(&format!("| [{name}](#{}) | {category} | {needs} | {first} |\n", anchor(&tool.name)));
    }
    for tool in tools {
        section(tool, &mut page);
    }
    page
}

fn section(tool: &v1::Tool, page: &mut String) {
    page.push_str(&format!("\n## {}\n\n{}\n", cell(&tool.name), cell(&tool.description)));
    let arguments = properties(&tool.input_schema);
    if !arguments.is_empty() {
        page.push_str("\n| argument | type | |\n|---|---|---|\n");
        arguments.iter().for_each(|argument| row(argument, page));
    }
    let results = properties(&tool.output_schema);
    if !results.is_empty() {
        page.push_str("\n| result | type | |\n|---|---|---|\n");
        results.iter().for_each(|result| row(result, page));
    }
    page.push('\n');
    let aliases: Vec<&str> = tool.aliases.iter().map(|alias| alias.name.as_str()).collect();
    let mut fact = |label: &str, told: &str| {
        if !told.is_empty() {
            page.push_str(&format!("- {label}: {}\n", cell(told)));
        }
    };
    fact("Version", &tool.version);
    fact("Tags", &tool.tags.join(", "));
    fact("Also called", &aliases.join(", "));
    fact("Reaches", &tool.side_effect_scope);
    fact("Given of the context", &tool.context_keys.join(", "));
    fact("Approval", if tool.requires_confirmation { "each call is approved by a person" } else { "" });
    if tool.definition_only {
        return fact("Answered by", "the client");
    }
    fact("Effects", &effects(tool.effects.unwrap_or_default()));
    fact("Attempts", &tool.policy.as_ref().map(attempts).unwrap_or_default());
    fact("Output", if tool.streaming { "as it runs" } else { "its result, at the end" });
}

fn row(Property { name, kind, is_required, text }: &Property, page: &mut String) {
    let mark = if *is_required { ", required" } else { "" };
    page.push_str(&format!("| `{}` | {}{mark} | {} |\n", cell(name), cell(kind), cell(text)));
}

/// Text that stays on its line and in its cell.
fn cell(text: &str) -> String {
    harmless(text).replace('\n', " ").replace('|', "\\|").replace('<', "&lt;")
}

/// As the usual renderers name a heading.
fn anchor(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_')).collect::<String>().to_lowercase()
}
