//! The actions that change a repository, and the lists of what they change.

use serde_json::{Value, json};
use toolyard_tool::{Output, ToolError};

use super::parse::{commits, text};
use super::read::COMMIT;
use super::repository::{OUTPUT_BYTES_MAX, Repository, failed};
use super::{Ask, Operation, needed};

/// Who commits if neither the repository nor the call names somebody.
const NAME: &str = "Toolyard";
const EMAIL: &str = "toolyard@localhost";

impl Repository<'_> {
    pub(super) async fn commit(&self, ask: &Ask) -> Result<Output, ToolError> {
        let message = needed(ask.message.as_ref(), "/message", "the message of the commit")?;
        if !ask.paths.is_empty() {
            let mut arguments = vec!["add", "--all", "--"];
            arguments.extend(ask.paths.iter().map(String::as_str));
            self.output(&arguments).await?;
        }
        let message = format!("--message={message}");
        let mut arguments = vec!["commit", "--quiet", "--no-verify", "--no-gpg-sign", "--no-status", &message];
        arguments.extend(ask.all.then_some("--all"));
        let author = ask.author.as_deref().and_then(|author| author.strip_suffix('>')?.split_once(" <"));
        let mut identity = Vec::new();
        if !self.has_identity {
            identity.extend([("GIT_COMMITTER_NAME", NAME), ("GIT_COMMITTER_EMAIL", EMAIL)]);
            identity.extend([("GIT_AUTHOR_NAME", NAME), ("GIT_AUTHOR_EMAIL", EMAIL)]);
        }
        if let Some((name, email)) = author {
            identity.extend([("GIT_AUTHOR_NAME", name), ("GIT_AUTHOR_EMAIL", email)]);
        }
        let ended = self.run_as(&arguments, OUTPUT_BYTES_MAX, &identity).await?;
        if !ended.succeeded() && ended.stderr.is_empty() {
            return Err(ToolError::bad_input("", "there is nothing to commit: give paths, or all"));
        }
        if !ended.succeeded() {
            return Err(failed(&arguments, &ended));
        }
        let (output, is_cut) = self.output(&["log", "--no-patch", "-z", "--max-count=1", COMMIT, "HEAD", "--"]).await?;
        Output::json(&json!({ "commit": commits(&output, is_cut).pop() }))
    }

    pub(super) async fn branch(&self, ask: &Ask) -> Result<Output, ToolError> {
        let name = || needed(ask.name.as_ref(), "/name", "the name of the branch");
        match ask.operation {
            Operation::List => {}
            Operation::Create => {
                let mut arguments = vec!["branch", "--no-track", name()?];
                arguments.extend(ask.revision.as_deref());
                self.output(&arguments).await?;
            }
            Operation::Switch => {
                self.output(&["switch", "--quiet", "--no-guess", name()?]).await?;
            }
            Operation::Delete => {
                self.output(&["branch", "--quiet", "--delete", name()?]).await?;
            }
        }
        let format = "--format=%(HEAD)%1f%(refname:short)%1f%(objectname)%1f%(upstream:short)%1f%(contents:subject)";
        let (output, is_cut) = self.output(&["for-each-ref", format, "refs/heads"]).await?;
        let branches: Vec<Value> = text(&output).lines().filter_map(branch).collect();
        Output::json(&json!({ "branches": branches, "cut": is_cut }))
    }

    pub(super) async fn worktree(&self, ask: &Ask) -> Result<Output, ToolError> {
        let path = || needed(ask.path.as_ref(), "/path", "the folder of the work tree");
        match ask.operation {
            Operation::List => {}
            Operation::Create => {
                let folder = self.root.file(path()?).map_err(|error| error.at("/path"))?;
                let folder = folder.to_string_lossy();
                let mut arguments = vec!["worktree", "add", "--quiet"];
                if let Some(name) = &ask.name {
                    arguments.extend(["-b", name]);
                }
                arguments.push(&folder);
                arguments.extend(ask.revision.as_deref());
                self.output(&arguments).await?;
            }
            Operation::Delete => {
                let folder = self.root.folder(Some(path()?)).map_err(|error| error.at("/path"))?;
                self.output(&["worktree", "remove", &folder.to_string_lossy()]).await?;
            }
            Operation::Switch => {
                let message = "a work tree cannot be switched to: give its folder to the other actions";
                return Err(ToolError::bad_input("/operation", message));
            }
        }
        let (output, is_cut) = self.output(&["worktree", "list", "--porcelain", "-z"]).await?;
        let output = text(&output);
        // An empty record ends each of them.
        let trees: Vec<Value> = output.split("\0\0").filter_map(|tree| self.tree(tree)).collect();
        Output::json(&json!({ "worktrees": trees, "cut": is_cut }))
    }

    fn tree(&self, record: &str) -> Option<Value> {
        let field = |wanted: &str| {
            let mut lines = record.split('\0').filter_map(|line| line.split_once(' '));
            lines.find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned())
        };
        let path = self.root.relative(field("worktree")?.as_ref());
        let branch = field("branch").map(|name| name.trim_start_matches("refs/heads/").to_owned());
        Some(json!({ "path": path, "head": field("HEAD"), "branch": branch }))
    }
}

fn branch(line: &str) -> Option<Value> {
    let mut fields = line.splitn(5, '\u{1f}');
    let current = fields.next()? == "*";
    let (name, hash, upstream, subject) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let upstream = Some(upstream).filter(|name| !name.is_empty());
    Some(json!({ "name": name, "current": current, "hash": hash, "upstream": upstream, "subject": subject }))
}
