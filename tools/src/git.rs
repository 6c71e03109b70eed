//! Works with a git repository below the root. A repository comes from anywhere, so nothing that it configures is run:
//! see `git/repository.rs`. There is no action that needs the network.

mod parse;
mod read;
mod repository;
mod write;

use schemars::JsonSchema;
use serde::Deserialize;

use self::repository::Repository;
use super::root::Root;
use super::scope;
use sandbox::Sandbox;
use toolyard_tool::{About, Context, Output, Permission, Tool, ToolError};

/// Commits that are listed by default, and at most.
const LIMIT: u32 = 20;
const LIMIT_MAX: u32 = 500;
/// Paths of one call.
const PATHS_MAX: u32 = 100;
/// Lines of context in a diff.
const CONTEXT_MAX: u32 = 50;
/// Bytes of a commit's message.
const MESSAGE_BYTES_MAX: u32 = 16 * 1024;

/// The calls that change nothing.
const READS: &str = r#"{"anyOf": [
    {"properties": {"action": {"enum": ["status", "diff", "log", "show", "blame"]}}},
    {"properties": {"action": {"enum": ["branch", "worktree"]}, "operation": {"const": "list"}}}
]}"#;

/// Works with repositories below a root.
#[derive(Debug)]
pub struct Git {
    root: Root,
    sandbox: Sandbox,
}

/// An action, and what it needs.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// What to do
    action: Action,
    /// A folder of the repository, relative to the root; the root unless given
    folder: Option<String>,
    /// For status, diff, log: only these files or folders of the repository. For commit: add them first
    #[serde(default)]
    #[schemars(length(max = PATHS_MAX))]
    paths: Vec<String>,
    /// For diff: compare with it. For log, show, blame: what to look at. For branch and worktree: where to begin
    revision: Option<String>,
    /// For diff: compare `revision` with this one, not with the files
    to: Option<String>,
    /// For diff: what would be committed
    #[serde(default)]
    staged: bool,
    /// For diff and show: only the files and how many lines changed
    #[serde(default)]
    summary: bool,
    /// For diff and show: lines around a change
    #[serde(default = "around")]
    #[schemars(range(max = CONTEXT_MAX))]
    context: u32,
    /// For blame: the file. For show: a file as it was at the revision. For worktree: its folder, relative to the root
    path: Option<String>,
    /// For blame: the first line
    #[schemars(range(min = 1))]
    from_line: Option<u32>,
    /// For blame: the last line
    #[schemars(range(min = 1))]
    to_line: Option<u32>,
    /// For log: how many commits
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    limit: u32,
    /// For log: how many commits to pass over first
    #[serde(default)]
    offset: u32,
    /// For branch and worktree: what to do; list unless given
    #[serde(default)]
    operation: Operation,
    /// For branch: its name. For worktree: a new branch for it
    name: Option<String>,
    /// For commit: the message
    #[schemars(length(min = 1, max = MESSAGE_BYTES_MAX))]
    message: Option<String>,
    /// For commit: with all changes of files that git knows
    #[serde(default)]
    all: bool,
    /// For commit: the author, as `Ada <ada@example.com>`
    #[schemars(regex(pattern = r"^[^<>\n]+ <[^<>\n]+>$"))]
    author: Option<String>,
}

/// What to do with a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "they are named as git names them")]
pub enum Action {
    Status,
    Diff,
    Log,
    Show,
    Blame,
    Branch,
    Commit,
    Worktree,
}

/// What to do with branches or work trees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Operation {
    #[default]
    List,
    Create,
    Switch,
    Delete,
}

fn around() -> u32 {
    3
}

fn limit() -> u32 {
    LIMIT
}

impl Git {
    /// Works below `root`, and runs git in `sandbox`.
    #[must_use]
    pub const fn new(root: Root, sandbox: Sandbox) -> Self {
        Self { root, sandbox }
    }
}

impl Tool for Git {
    const NAME: &'static str = "git";
    type Input = Ask;

    fn about(&self) -> About {
        let text = "Works with a git repository: status, diff, log, show, blame; branch and worktree (list, create, \
                    switch, delete); commit. The result is JSON, and a diff is text. Hooks, filters and programs \
                    that the repository configures are not run, and the network is not used.";
        let about = About::new(text).destructive().uses_machine().idle_timeout(None).permission(Permission::Write);
        about.parallel_when(READS).category("development").side_effect_scope(scope::LOCAL_STATE)
    }

    async fn call(&self, context: &Context, ask: Ask) -> Result<Output, ToolError> {
        check(&ask)?;
        let folder = self.root.folder(ask.folder.as_deref()).map_err(|error| error.at("/folder"))?;
        let git = Repository::open(context, &self.sandbox, &self.root, &folder).await?;
        match ask.action {
            Action::Status => git.status(&ask).await,
            Action::Diff => git.diff(&ask).await,
            Action::Log => git.log(&ask).await,
            Action::Show => git.show(&ask).await,
            Action::Blame => git.blame(&ask).await,
            Action::Branch => git.branch(&ask).await,
            Action::Commit => git.commit(&ask).await,
            Action::Worktree => git.worktree(&ask).await,
        }
    }
}

/// Refuses what git would take for an option, or for several names.
fn check(ask: &Ask) -> Result<(), ToolError> {
    let names = [("/revision", &ask.revision), ("/to", &ask.to), ("/name", &ask.name), ("/path", &ask.path)];
    for (pointer, name) in names {
        let Some(name) = name else { continue };
        let is_range = name.contains("..") && matches!(pointer, "/to" | "/name");
        if name.is_empty() || name.starts_with('-') || name.contains(char::is_control) || is_range {
            return Err(ToolError::bad_input(pointer, format!("{name:?} cannot be the name of anything in git")));
        }
    }
    for (path, number) in ask.paths.iter().zip(0..) {
        let leads_out = path.starts_with('/') || path.split('/').any(|part| part == "..");
        if path.is_empty() || path.contains('\0') || leads_out {
            let message = format!("{path:?} is no path in the repository: give it relative to the repository's folder");
            return Err(ToolError::bad_input(format!("/paths/{number}"), message));
        }
    }
    Ok(())
}

/// An argument that the action cannot do without.
fn needed<'a>(value: Option<&'a String>, pointer: &str, what: &str) -> Result<&'a str, ToolError> {
    value.map(String::as_str).ok_or_else(|| ToolError::bad_input(pointer, format!("it is missing: give {what}")))
}
