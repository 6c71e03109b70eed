//! The tools that come with a worker. Each is an ordinary [`Tool`](trait@toolyard_tool::Tool): host them all, some, or none.
//!
//! Those that work on files are confined to one folder. That keeps a model from straying; it is no sandbox, and `bash`
//! may do whatever its user may.

mod ask_user;
mod backends;
mod bash;
mod code;
mod edit;
mod file_search;
mod git;
mod glob;
mod grep;
mod image_generation;
mod inside;
mod jobs;
mod lines;
mod lint;
mod lsp;
mod matcher;
mod placed;
mod powershell;
mod process;
mod process_output;
mod read_file;
mod root;
mod running;
mod scope;
mod settings;
mod shell;
mod time;
mod walk;
mod web_search;

use std::io;
use std::path::PathBuf;

use sandbox::{Sandbox, Workspaces};
use toolyard_tool::{InvalidTool, Table, Tool};

use self::placed::{Access, Placed};

pub use ask_user::{ASK_USER, Question, ask_user};
pub use backends::Backends;
pub use bash::{Bash, Script};
pub use code::{Code, CodeInterpreter, PythonSettings};
pub use edit::{Change, Edit, Replacement};
pub use file_search::{FileSearch, Passages};
pub use git::{Action, Ask, Git, Operation};
pub use glob::{Glob, Paths};
pub use grep::{Grep, Mode, Search};
pub use image_generation::{ImageFormat, ImageGeneration, Picture, Quality};
pub use jobs::Jobs;
pub use lint::{Check, Format, Lint, Linter, Targets};
pub use lsp::{LanguageServer, Lsp, Query, Topic};
pub use powershell::{PowerShell, PowerShellScript};
pub use process::{Deed, Process, Wish};
pub use process_output::{ProcessOutput, Read};
pub use read_file::{Excerpt, ReadFile};
pub use root::Root;
pub use settings::{InvalidSettings, ToolSettings};
pub use time::{CurrentTime, Place};
pub use web_search::{WebQuery, WebSearch};

/// The built-in tools cannot be hosted.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} cannot be the root folder of the built-in tools", path.display())]
    Root { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Host(#[from] InvalidTool),
    #[error(transparent)]
    Settings(#[from] InvalidSettings),
    #[error("the root folder {} contains {}, which tools must not read: give them a folder without it (--root)", root.display(), file.display())]
    SecretInside { root: PathBuf, file: PathBuf },
}

/// How the built-in tools work.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder that they work in.
    pub root: PathBuf,
    /// Where those that start programs do it.
    pub sandbox: Sandbox,
    /// The folders of calls, runs or tenants, which take the place of the root for each call; `None`: all calls work in
    /// the root.
    pub workspaces: Option<Workspaces>,
    /// What the operator sets of linters and language servers.
    pub settings: ToolSettings,
}

impl Options {
    /// All tools below `root`, with the known linters and language servers.
    pub fn new(root: impl Into<PathBuf>, sandbox: Sandbox) -> Self {
        Self { root: root.into(), sandbox, workspaces: None, settings: ToolSettings::default() }
    }
}

/// All of them.
///
/// # Errors
/// When the root is no folder that can be read, or contains a file that is hidden from programs.
pub fn built_in(options: Options) -> Result<Table, Error> {
    let Options { root, sandbox, workspaces, settings } = options;
    let root = Root::new(&root).map_err(|source| Error::Root { path: root, source })?;
    let inside = |file: &&PathBuf| file.canonicalize().is_ok_and(|file| file.starts_with(root.path()));
    if let Some(file) = sandbox.settings().hidden.iter().find(inside) {
        return Err(Error::SecretInside { root: root.path().to_owned(), file: file.clone() });
    }
    let (user, jobs) = (sandbox.settings().user, Jobs::in_folders(workspaces.clone()));
    let place = Hosting { root, sandbox, workspaces };
    let table = Table::new().host(CurrentTime)?.define::<Question>(ASK_USER, &ask_user())?;
    let table = place.host(table, Access::Read, move |root, _| Glob::new(root, user))?;
    let table = place.host(table, Access::Read, move |root, _| Grep::new(root, user))?;
    let table = place.host(table, Access::Read, move |root, _| ReadFile::new(root, user))?;
    let table = place.host(table, Access::Write, move |root, _| Edit::new(root, user))?;
    let table = place.host(table, Access::Write, Git::new)?;
    let of_lint = settings.clone();
    let table = place.host(table, Access::Read, move |root, sandbox| Lint::new(root, sandbox, &of_lint))?;
    let table = place.host(table, Access::Read, move |root, sandbox| Lsp::new(root, sandbox, &settings))?;
    let [of_process, of_powershell] = [jobs.clone(), jobs.clone()];
    let process = move |root, sandbox| Process::new(root, sandbox, of_process.clone());
    let table = place.host(table, Access::Write, process)?;
    let table = table.host(ProcessOutput::new(jobs.clone()))?;
    let powershell = move |root, sandbox| PowerShell::new(root, sandbox).with_jobs(of_powershell.clone());
    let table = place.host(table, Access::Write, powershell)?;
    let bash = move |root, sandbox| Bash::new(root, sandbox).with_jobs(jobs.clone());
    Ok(place.host(table, Access::Write, bash)?)
}

/// Where tools work.
struct Hosting {
    root: Root,
    sandbox: Sandbox,
    workspaces: Option<Workspaces>,
}

impl Hosting {
    /// Hosts a tool that works in the root, or in the folder of each call.
    fn host<T: Tool>(
        &self,
        table: Table,
        access: Access,
        make: impl Fn(Root, Sandbox) -> T + Send + Sync + 'static,
    ) -> Result<Table, InvalidTool> {
        let (root, sandbox) = (self.root.clone(), self.sandbox.clone());
        match &self.workspaces {
            None => table.host(make(root, sandbox)),
            Some(workspaces) => table.host(Placed::new((root, sandbox), workspaces.clone(), access, Box::new(make))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use run::Manifest;
    use sandbox::Settings;
    use serde_json::Value;

    use super::*;

    fn built_in_below(root: &Path) -> Result<Table, Error> {
        built_in_hiding(root, Vec::new())
    }

    fn built_in_hiding(root: &Path, hidden: Vec<PathBuf>) -> Result<Table, Error> {
        // No command is run here.
        sandbox::use_program("/nowhere".into());
        built_in(Options::new(root, Sandbox::new(Settings { hidden, ..Settings::default() }).unwrap()))
    }

    fn manifests() -> Vec<Manifest> {
        let folder = tempfile::tempdir().unwrap();
        built_in_below(folder.path()).unwrap().manifests().cloned().collect()
    }

    fn manifest(name: &str) -> Manifest {
        manifests().into_iter().find(|manifest| manifest.name.as_str() == name).unwrap()
    }

    #[test]
    fn every_tool_refuses_unknown_fields_and_describes_the_known_ones() {
        for manifest in manifests() {
            let schema: Value = serde_json::from_str(&manifest.input_schema).unwrap();
            assert_eq!(schema["additionalProperties"], false, "{}", manifest.name);
            for (name, field) in schema["properties"].as_object().unwrap() {
                assert!(field["description"].is_string(), "{}: {name}", manifest.name);
            }
        }
    }

    #[test]
    fn only_tools_that_change_something_are_not_repeatable() {
        let once = manifests().into_iter().filter(|manifest| !manifest.policy.repeatable);
        assert_eq!(
            once.map(|manifest| manifest.name.to_string()).collect::<Vec<_>>(),
            ["bash", "edit", "git", "powershell", "process"]
        );
    }

    #[test]
    fn every_tool_says_what_it_belongs_with() {
        for manifest in manifests() {
            assert!(!manifest.category.is_empty(), "{}", manifest.name);
        }
    }

    #[test]
    fn ask_user_is_left_to_the_client() {
        assert!(manifest("ask_user").definition_only);
        assert!(!manifest("bash").definition_only);
    }

    #[test]
    fn the_time_is_described_as_models_know_it() {
        let time = manifest("get_current_time");
        assert_eq!(time.description, "Get the time of a specified city.");
        let schema: Value = serde_json::from_str(&time.input_schema).unwrap();
        assert_eq!(schema["properties"]["time_zone"]["description"], "Time zone id, such as Asia/Shanghai");
        assert_eq!(schema["required"], serde_json::json!(["time_zone"]));
    }

    #[test]
    fn a_root_with_a_secret_in_it_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("broker/keys")).unwrap();
        let key = folder.path().join("broker/keys/pool.nk");
        std::fs::write(&key, "").unwrap();
        let error = built_in_hiding(folder.path(), vec![key.clone()]).unwrap_err();
        assert!(error.to_string().contains("pool.nk"), "{error}");
        std::fs::create_dir(folder.path().join("work")).unwrap();
        assert!(built_in_hiding(&folder.path().join("work"), vec![key]).is_ok());
    }

    #[test]
    fn a_root_that_is_no_folder_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(matches!(built_in_below(file.path()), Err(Error::Root { .. })));
        assert!(matches!(built_in_below(Path::new("/nowhere/at/all")), Err(Error::Root { .. })));
    }
}
