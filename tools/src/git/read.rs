//! The actions that change nothing.

use serde_json::json;
use toolyard_tool::{Output, ToolError};

use super::parse::{blamed, commits, counts, status, text};
use super::repository::{OUTPUT_BYTES_MAX, Repository};
use super::{Ask, needed};

/// Lines that one blame shows.
const BLAMED_MAX: u32 = 1_000;
/// What a diff must not run, and how it is written.
const PLAIN: [&str; 5] = ["--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=all", "--find-renames"];

impl Repository<'_> {
    pub(super) async fn status(&self, ask: &Ask) -> Result<Output, ToolError> {
        let mut arguments = vec!["status", "--porcelain=v2", "--branch", "-z", "--untracked-files=all"];
        arguments.extend(["--ignore-submodules=all", "--"]);
        arguments.extend(ask.paths.iter().map(String::as_str));
        let (output, is_cut) = self.output(&arguments).await?;
        Output::json(&status(&output, is_cut))
    }

    pub(super) async fn diff(&self, ask: &Ask) -> Result<Output, ToolError> {
        if ask.to.is_some() && ask.revision.is_none() {
            return Err(ToolError::bad_input("/revision", "it is missing: `to` is compared with it"));
        }
        let what = |how: &'static str| {
            let mut arguments = vec!["diff"];
            arguments.extend(PLAIN);
            arguments.push(how);
            arguments.extend(ask.staged.then_some("--cached"));
            arguments
        };
        let end = |arguments: &mut Vec<_>| {
            arguments.extend(ask.revision.as_deref());
            arguments.extend(ask.to.as_deref());
            arguments.push("--");
            arguments.extend(ask.paths.iter().map(String::as_str));
        };
        let (mut numbers, mut patch) = (what("--numstat"), what("--patch"));
        let around = format!("--unified={}", ask.context);
        numbers.push("-z");
        patch.push(&around);
        end(&mut numbers);
        end(&mut patch);
        self.changes(&numbers, &patch, ask.summary, json!({})).await
    }

    /// A diff as text, and its files with their numbers of lines.
    async fn changes(
        &self,
        numbers: &[&str],
        patch: &[&str],
        is_summary: bool,
        mut known: serde_json::Value,
    ) -> Result<Output, ToolError> {
        let (files, files_cut) = self.output(numbers).await?;
        known["files"] = json!(counts(&files));
        if is_summary {
            known["cut"] = json!(files_cut);
            return Output::json(&known);
        }
        let (mut shown, is_cut) = self.output(patch).await?;
        if is_cut {
            shown.truncate(shown.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1));
        }
        known["cut"] = json!(is_cut || files_cut);
        let shown = if shown.is_empty() { "No change\n".to_owned() } else { text(&shown) };
        Ok(Output::from(shown).and(Output::json(&known)?))
    }

    pub(super) async fn log(&self, ask: &Ask) -> Result<Output, ToolError> {
        let (limit, offset) = (format!("--max-count={}", ask.limit), format!("--skip={}", ask.offset));
        let mut arguments = vec!["log", "--no-patch", "-z", COMMIT, &limit, &offset];
        arguments.extend(ask.revision.as_deref());
        arguments.push("--");
        arguments.extend(ask.paths.iter().map(String::as_str));
        let (output, is_cut) = self.output(&arguments).await?;
        Output::json(&json!({ "commits": commits(&output, is_cut), "cut": is_cut }))
    }

    pub(super) async fn show(&self, ask: &Ask) -> Result<Output, ToolError> {
        let revision = ask.revision.as_deref().unwrap_or("HEAD");
        if revision.contains(':') || revision.contains("..") {
            let message = format!("{revision:?} is no commit: give one, and the file as path");
            return Err(ToolError::bad_input("/revision", message));
        }
        if let Some(path) = &ask.path {
            return self.file(revision, path).await;
        }
        let (output, is_cut) =
            self.output(&["log", "--no-patch", "-z", "--max-count=1", COMMIT, revision, "--"]).await?;
        let commit = json!({ "commit": commits(&output, is_cut).pop() });
        let around = format!("--unified={}", ask.context);
        let mut numbers = vec!["show", "--format=", "--numstat", "-z"];
        let mut patch = vec!["show", "--format=", "--patch", &around];
        for arguments in [&mut numbers, &mut patch] {
            arguments.extend(PLAIN);
            arguments.extend([revision, "--"]);
            arguments.extend(ask.paths.iter().map(String::as_str));
        }
        self.changes(&numbers, &patch, ask.summary, commit).await
    }

    /// A file as it was.
    async fn file(&self, revision: &str, path: &str) -> Result<Output, ToolError> {
        let name = format!("{revision}:{path}");
        let (output, is_cut) = self.output(&["cat-file", "blob", &name]).await?;
        if output.contains(&0) {
            return Err(ToolError::bad_input("/path", format!("{path:?} is binary at {revision}")));
        }
        let bytes = output.len();
        Ok(Output::from(text(&output)).and(Output::json(&json!({ "path": path, "bytes": bytes, "cut": is_cut }))?))
    }

    pub(super) async fn blame(&self, ask: &Ask) -> Result<Output, ToolError> {
        let path = needed(ask.path.as_ref(), "/path", "the file")?;
        let from = ask.from_line.unwrap_or(1);
        let to = ask.to_line.unwrap_or(from.saturating_add(BLAMED_MAX - 1));
        if to < from || to - from >= BLAMED_MAX {
            let message = format!("lines {from} to {to} are asked for, at most {BLAMED_MAX} are shown at once");
            return Err(ToolError::bad_input("/to_line", message));
        }
        // Without a last line git is content with a shorter file.
        let lines = match ask.to_line {
            Some(to) => format!("-L{from},{to}"),
            None if from > 1 => format!("-L{from},+{BLAMED_MAX}"),
            None => "-L1,".to_owned(),
        };
        let mut arguments = vec!["blame", "--porcelain", "--no-textconv", &lines];
        arguments.extend(ask.revision.as_deref());
        arguments.extend(["--", path]);
        let ended = self.run(&arguments, OUTPUT_BYTES_MAX * 4).await?;
        if !ended.succeeded() {
            return Err(super::repository::failed(&arguments, &ended));
        }
        let lines = blamed(&ended.stdout, BLAMED_MAX as usize);
        Output::json(&json!({ "path": path, "lines": lines, "cut": ended.is_cut() }))
    }
}

/// The fields of a commit, with a separator that no text has, as [`commits`] reads them.
pub(super) const COMMIT: &str = "--format=%H%x1f%an%x1f%ae%x1f%aI%x1f%P%x1f%D%x1f%s%x1f%b";
