//! Runs git on a repository that is not trusted: with no configuration but the repository's own, and with all of that
//! overruled which would run a program.
//!
//! What is overruled: hooks, the file system monitor, filters, external diff programs and text conversions, signing,
//! editors, pagers, credential and ssh programs, submodules, and every network protocol. A repository whose `.git` or
//! work tree is outside of the root is refused, and so is one that includes configuration under a condition: names in
//! it could not be overruled before they count.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sandbox::{Request, Sandbox};
use toolyard_tool::{Context, ToolError};

use crate::root::Root;
use crate::running::{Captured, Limits, capture, find};

/// Bytes of output that are taken from git; a diff beyond is cut.
pub(super) const OUTPUT_BYTES_MAX: usize = 192 * 1024;
/// Bytes of the list of configured names.
const CONFIG_BYTES_MAX: usize = 256 * 1024;
/// Names that are overruled one by one; a repository with more is refused.
const OVERRULED_MAX: usize = 500;
/// How long git may run: a blame of a large history takes a minute.
const TIME_MAX: Duration = Duration::from_secs(120);
/// Bytes of git's own words in an error.
const REASON_BYTES_MAX: usize = 2_000;

/// Configuration that holds for every run.
const CONFIGURATION: [(&str, &str); 29] = [
    ("safe.directory", "*"),
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.askPass", "false"),
    ("core.sshCommand", "false"),
    ("core.gitProxy", "false"),
    ("core.attributesFile", "/dev/null"),
    ("core.excludesFile", "/dev/null"),
    ("core.alternateRefsCommand", "false"),
    ("core.quotePath", "false"),
    ("credential.helper", ""),
    ("protocol.allow", "never"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("gpg.program", "false"),
    ("log.showSignature", "false"),
    ("log.mailmap", "false"),
    ("submodule.recurse", "false"),
    ("diff.ignoreSubmodules", "all"),
    ("diff.noprefix", "false"),
    ("diff.mnemonicPrefix", "false"),
    ("color.ui", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("commit.template", "/dev/null"),
    ("commit.cleanup", "strip"),
    ("advice.detachedHead", "false"),
];

/// Variables that hold for every run. Of the user's and the machine's configuration nothing is read.
const VARIABLES: [(&str, &str); 17] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_SYSTEM", "/dev/null"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_ALLOW_PROTOCOL", ""),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_LITERAL_PATHSPECS", "1"),
    ("GIT_PAGER", "cat"),
    ("GIT_EDITOR", "false"),
    ("GIT_SEQUENCE_EDITOR", "false"),
    ("GIT_ASKPASS", "false"),
    ("SSH_ASKPASS", "false"),
    ("GIT_SSH_COMMAND", "false"),
    ("GIT_MERGE_AUTOEDIT", "no"),
    ("LC_ALL", "C.UTF-8"),
];

/// A repository below the root, with the configuration that overrules its own.
#[derive(Debug)]
pub(super) struct Repository<'a> {
    pub(super) context: &'a Context,
    pub(super) root: &'a Root,
    sandbox: &'a Sandbox,
    /// The folder of its files.
    pub(super) files: PathBuf,
    configuration: Vec<(String, String)>,
    /// It configures a name and an address for commits.
    pub(super) has_identity: bool,
}

impl<'a> Repository<'a> {
    /// Finds the repository that `folder` is in.
    pub(super) async fn open(
        context: &'a Context,
        sandbox: &'a Sandbox,
        root: &'a Root,
        folder: &Path,
    ) -> Result<Self, ToolError> {
        if find("git").is_none() {
            return Err(ToolError::needs("git, which is not installed on this worker: install the package git"));
        }
        let configuration = CONFIGURATION.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let files = folder.to_owned();
        let mut repository = Self { context, root, sandbox, files, configuration, has_identity: false };
        let places = ["rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir"];
        let found = repository.run(&places, OUTPUT_BYTES_MAX).await?;
        if !found.succeeded() {
            let message = format!("there is no git repository with files: {}", reason(&found));
            return Err(ToolError::bad_input("/folder", message));
        }
        let text = String::from_utf8_lossy(&found.stdout).into_owned();
        let places: Vec<PathBuf> = text.lines().map(PathBuf::from).collect();
        let is_inside = |place: &PathBuf| place.canonicalize().is_ok_and(|place| place.starts_with(root.path()));
        if places.len() != 3 || !places.iter().all(is_inside) {
            let message = "the repository has its files or its .git outside of the folder that this tool works in";
            return Err(ToolError::bad_input("/folder", message));
        }
        places[0].clone_into(&mut repository.files);
        repository.overrule().await?;
        Ok(repository)
    }

    /// Overrules what the repository configures under names of its own.
    async fn overrule(&mut self) -> Result<(), ToolError> {
        let listed = self.run(&["config", "--list", "--name-only", "-z"], CONFIG_BYTES_MAX).await?;
        let refused = |why: &str| ToolError::bad_input("/folder", format!("the repository's configuration {why}"));
        if listed.is_cut() || !listed.succeeded() {
            return Err(refused("cannot be read"));
        }
        let text = String::from_utf8(listed.stdout).map_err(|_| refused("has names that are no UTF-8"))?;
        let names: Vec<&str> = text.split('\0').filter(|name| !name.is_empty()).collect();
        if names.iter().any(|name| name.starts_with("includeif.")) {
            // It may hold in the work tree that git makes, and for the branch that it switches to, though not yet here.
            let what = "includes files under a condition (includeIf), which is not supported: include them by \
                        include.path";
            return Err(refused(what));
        }
        self.has_identity = ["user.name", "user.email"].iter().all(|name| names.contains(name));
        let mut overruled: Vec<(String, String)> = names.into_iter().filter_map(overruled).collect();
        overruled.dedup();
        if overruled.len() > OVERRULED_MAX {
            return Err(refused(&format!("has more than {OVERRULED_MAX} filters, drivers and hooks")));
        }
        self.configuration.extend(overruled);
        Ok(())
    }

    /// Runs git, and keeps that much of its output.
    pub(super) async fn run(&self, arguments: &[&str], bytes: usize) -> Result<Captured, ToolError> {
        self.run_as(arguments, bytes, &[]).await
    }

    /// As [`Self::run`], with variables.
    pub(super) async fn run_as(
        &self,
        arguments: &[&str],
        bytes: usize,
        variables: &[(&str, &str)],
    ) -> Result<Captured, ToolError> {
        let mut request = Request::run("git", arguments.iter().copied(), &self.files);
        for (name, value) in VARIABLES.iter().chain(variables) {
            request = request.with(*name, *value);
        }
        // A repository above the root is not found.
        let above = self.root.path().parent().unwrap_or(self.root.path());
        request = request.with("GIT_CEILING_DIRECTORIES", above.to_string_lossy());
        request = request.with("GIT_CONFIG_COUNT", self.configuration.len().to_string());
        for ((name, value), number) in self.configuration.iter().zip(0..) {
            request = request.with(format!("GIT_CONFIG_KEY_{number}"), name);
            request = request.with(format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        capture(self.context, self.sandbox, request, Limits { bytes, time: TIME_MAX }).await
    }

    /// The output of a run that must succeed, and whether it was cut.
    pub(super) async fn output(&self, arguments: &[&str]) -> Result<(Vec<u8>, bool), ToolError> {
        let ended = self.run(arguments, OUTPUT_BYTES_MAX).await?;
        if !ended.succeeded() {
            return Err(failed(arguments, &ended));
        }
        let is_cut = ended.is_cut();
        Ok((ended.stdout, is_cut))
    }
}

/// The error of a run.
pub(super) fn failed(arguments: &[&str], ended: &Captured) -> ToolError {
    let action = arguments.first().copied().unwrap_or_default();
    ToolError::new(format!("git {action} failed: {}", reason(ended)))
}

/// Why git failed, in its words.
fn reason(ended: &Captured) -> String {
    let said = if ended.stderr.is_empty() { String::from_utf8_lossy(&ended.stdout) } else { (&ended.stderr).into() };
    said.trim().chars().take(REASON_BYTES_MAX).collect()
}

/// The name and value that make a configured program harmless.
fn overruled(name: &str) -> Option<(String, String)> {
    let (section, rest) = name.split_once('.')?;
    let (part, variable) = rest.rsplit_once('.')?;
    let value = match (section, variable) {
        ("filter", "clean" | "smudge" | "process") => "",
        ("filter", "required") => "false",
        ("hook", "command" | "event") => return Some((format!("hook.{part}.enabled"), "false".to_owned())),
        ("diff", "command" | "textconv") | ("merge", "driver") | ("trailer", _) | ("gpg", "program") => "false",
        _ => return None,
    };
    Some((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_under_names_of_the_repository_are_overruled() {
        let value = |name: &str| overruled(name).map(|(name, value)| format!("{name}={value}"));
        assert_eq!(value("filter.a.b=c.clean").as_deref(), Some("filter.a.b=c.clean="));
        assert_eq!(value("filter.lfs.required").as_deref(), Some("filter.lfs.required=false"));
        assert_eq!(value("hook.x.command").as_deref(), Some("hook.x.enabled=false"));
        assert_eq!(value("diff.x.textconv").as_deref(), Some("diff.x.textconv=false"));
        assert_eq!(value("user.name"), None);
        assert_eq!(value("branch.main.remote"), None);
    }
}
