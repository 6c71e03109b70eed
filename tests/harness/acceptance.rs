//! The acceptance table of the tools: what must hold, and which tool of the set each row is about. The tests of the
//! rows are in `tests/scenarios/acceptance.rs` and `acceptance_tools.rs`; `acceptance` prints the table.

use std::io::Write as _;

/// The variable that names the file to which verdicts are added.
pub const VERDICTS: &str = "TOOLYARD_ACCEPTANCE";

/// A row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// Its name: that of its test, or of its tool.
    pub name: &'static str,
    /// What is accepted.
    pub title: &'static str,
    /// The tool that it is about; empty for a row about all.
    pub tool: &'static str,
}

const fn tool(tool: &'static str, title: &'static str) -> Row {
    Row { name: tool, title, tool }
}

const fn all(name: &'static str, title: &'static str) -> Row {
    Row { name, title, tool: "" }
}

/// The rows of the tools of a worker. A new tool gets a row here, and its exercise in
/// `tests/scenarios/acceptance_tools.rs`.
pub const ROWS: &[Row] = &[
    all("tool_registration", "工具注册: all tools are registered, with their manifests"),
    all("hook_execution", "Hook 执行: hooks before and after a call really intercept it"),
    all("streaming_execution", "流式执行: tools that are flagged as streaming stream"),
    all("new_tools", "新工具: every tool of the set runs"),
    all("backward_compatibility", "向后兼容: calls that use none of this are unaffected"),
    tool("ask_user", "AskUserQuestionTool: asks the user"),
    tool("bash", "BashTool: runs commands, in the background too"),
    tool("edit", "EditTool: edits files"),
    tool("get_current_time", "the time of a city"),
    tool("git", "GitTool: works with a repository"),
    tool("glob", "GlobTool: matches files by pattern"),
    tool("grep", "GrepTool: searches file contents"),
    tool("lint", "LintTool: checks code"),
    tool("lsp", "LSPTool: Language Server Protocol"),
    tool("mcp_client", "MCPClientTool: calls tools of MCP servers"),
    tool("mcp_tools", "lists the tools of MCP servers, for MCPClientTool"),
    tool("powershell", "PowerShellTool: runs commands of PowerShell"),
    tool("process", "ProcessTool: manages processes"),
    tool("process_output", "lists and reads processes, without an approval"),
    tool("read_file", "reads files, for EditTool"),
];

/// The rows of the tools with which agents work together. Their exercises are in
/// `tests/scenarios/acceptance_together.rs`.
pub const TOGETHER: &[Row] = &[
    tool("forum", "forum: topics and posts"),
    tool("remote_trigger", "RemoteTriggerTool: triggers something elsewhere"),
    tool("schedule", "schedule: an agenda with conflicts"),
    tool("schedule_cron", "ScheduleCronTool: schedules calls"),
    tool("search", "search: over tasks, agenda and forum"),
    tool("search_tools", "finds tools by words"),
    tool("task", "task: creates, assigns, completes"),
    tool("task_broadcast", "TaskBroadcastTool: one call to all tools with a tag"),
    tool("team_agent", "TeamAgentTool: several tools at once"),
    tool("time_reasoning", "time_reasoning: dates and durations"),
];

/// The whole table.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    ROWS.iter().chain(TOGETHER)
}

/// The verdict of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It holds.
    Passed,
    /// It cannot be tested on this machine, and why.
    NotHere(String),
    /// It does not hold, and why.
    Failed(String),
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Passed => f.write_str("passed"),
            Self::NotHere(why) => write!(f, "not here: {why}"),
            Self::Failed(why) => write!(f, "FAILED: {why}"),
        }
    }
}

/// Writes down the verdict of a row, if that is wanted.
///
/// # Panics
/// When the table has no such row, or it cannot be written.
pub fn record(name: &str, verdict: &Verdict) {
    assert!(rows().any(|row| row.name == name), "the table has no row {name}: add it to ROWS or TOGETHER");
    let Some(file) = std::env::var_os(VERDICTS) else { return };
    let line = format!("{name}\t{}\n", verdict.to_string().replace(['\n', '\t'], " "));
    let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the verdict can be written");
}
