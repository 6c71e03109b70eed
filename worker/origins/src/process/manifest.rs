//! The manifest of a program, from a file or from the program itself.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::run::Effects;
use sandbox::{Exit, Report, Request, Sandbox, Workspaces};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::io::AsyncReadExt as _;
use toolyard_tool::{About, Left, Origin};

use super::program::Program;
use crate::described::Described;
use crate::given::Given;
use crate::source::{self, InvalidFile};

/// How long an attempt may take, unless set.
const TIMEOUT: Duration = Duration::from_secs(300);
/// How long a program may take to describe itself.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of its description.
const DESCRIBE_BYTES_MAX: u64 = 256 * 1024;
/// The argument with which a program prints its manifest.
const DESCRIBE: &str = "--describe";

/// The form of standard output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    #[default]
    Text,
    Ndjson,
}

/// Where standard error goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Stderr {
    /// Into the output of the call, as the channel `stderr`.
    #[default]
    Stream,
    /// Into the log of the worker.
    Log,
}

/// A program as it is written; its description may still come from the program itself.
#[derive(Debug)]
pub(super) struct Manifest {
    command: Vec<String>,
    folder: PathBuf,
    /// The folder is written there. Otherwise calls run in their own, if they have one.
    pub(super) has_folder: bool,
    environment: BTreeMap<String, Given>,
    /// Everything else: name, schema and description.
    fields: Map<String, Value>,
    describes_itself: bool,
}

/// A program that can be hosted.
#[derive(Debug)]
pub(super) struct Complete {
    name: String,
    schema: Value,
    described: Described,
    form: Form,
    stderr: Stderr,
    manifest: Manifest,
}

/// The manifests of a file or folder, with their places.
pub(super) fn read(path: &Path) -> Result<Vec<(String, Manifest)>, InvalidFile> {
    if !path.is_dir() {
        return read_file(path);
    }
    let unreadable = |error| InvalidFile::Unreadable { path: path.to_owned(), error };
    let entries: std::io::Result<Vec<_>> = std::fs::read_dir(path).map_err(unreadable)?.collect();
    let mut files: Vec<PathBuf> = entries.map_err(unreadable)?.into_iter().map(|entry| entry.path()).collect();
    files.sort();
    let mut all = Vec::new();
    for file in files.into_iter().filter(|file| file.is_file()) {
        match file.extension().and_then(std::ffi::OsStr::to_str) {
            Some("toml" | "json") => {
                let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
                all.extend(
                    read_file(&file)?.into_iter().map(|(place, manifest)| (format!("{name}: {place}"), manifest)),
                );
            }
            _ if is_executable(&file) => {
                let command = vec![std::path::absolute(&file).map_err(unreadable)?.display().to_string()];
                let place = file.display().to_string();
                all.push((place, Manifest::of_itself(command, path)));
            }
            _ => {}
        }
    }
    Ok(all)
}

fn read_file(path: &Path) -> Result<Vec<(String, Manifest)>, InvalidFile> {
    let mut top = source::read(path)?;
    let folder = path.parent().unwrap_or(Path::new("")).to_owned();
    let wrong = |place: String, error: String| InvalidFile::Entry { path: path.to_owned(), place, error };
    let entries = source::entries(&mut top, "program").map_err(|error| wrong("program".to_owned(), error))?;
    if let Some(other) = top.keys().next() {
        return Err(wrong("its top".to_owned(), format!("there is no {other:?}: write program")));
    }
    let mut all = Vec::new();
    for (number, table) in entries.into_iter().enumerate() {
        let name = table.get("name").and_then(Value::as_str).map(|name| format!(" ({name})")).unwrap_or_default();
        let place = format!("program {}{name}", number + 1);
        let manifest = Manifest::parse(table, &folder).map_err(|error| wrong(place.clone(), error))?;
        all.push((place, manifest));
    }
    Ok(all)
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0)
}

impl Manifest {
    fn of_itself(command: Vec<String>, folder: &Path) -> Self {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let environment = BTreeMap::new();
        Self { command, folder, has_folder: false, environment, fields: Map::new(), describes_itself: true }
    }

    fn parse(mut table: Map<String, Value>, folder: &Path) -> Result<Self, String> {
        let command = table.remove("command").ok_or("it has no command")?;
        let mut command: Vec<String> = serde_json::from_value(command).map_err(|error| format!("command: {error}"))?;
        let program = command.first_mut().filter(|program| !program.is_empty()).ok_or("its command is empty")?;
        let base = std::path::absolute(if folder.as_os_str().is_empty() { Path::new(".") } else { folder });
        let base = base.map_err(|error| error.to_string())?;
        if program.contains('/') {
            *program = base.join(&program).display().to_string();
        }
        let cwd = source::text(&mut table, "cwd")?;
        let has_folder = cwd.is_some();
        let cwd = cwd.map_or_else(|| base.clone(), |cwd| base.join(cwd));
        if !cwd.is_dir() {
            return Err(format!("cwd {} is no folder", cwd.display()));
        }
        let environment: BTreeMap<String, Value> = match table.remove("env") {
            Some(env) => serde_json::from_value(env).map_err(|error| format!("env: {error}"))?,
            None => BTreeMap::new(),
        };
        let given = |(name, value): (String, Value)| match Given::parse(&value, &base) {
            Ok(given) => Ok((name, given)),
            Err(error) => Err(format!("env.{name}: {error}")),
        };
        let environment = environment.into_iter().map(given).collect::<Result<_, _>>()?;
        let describes_itself = match table.remove("describe") {
            None => false,
            Some(Value::Bool(describe)) => describe,
            Some(other) => return Err(format!("describe is {other}: write true or false")),
        };
        let manifest = Self { command, folder: cwd, has_folder, environment, fields: table, describes_itself };
        if !describes_itself {
            // What is wrong is reported at once.
            Fields::parse(manifest.fields.clone())?;
        }
        Ok(manifest)
    }

    /// The folder of its calls, and that of its program.
    pub(super) fn folders(&self) -> impl Iterator<Item = PathBuf> {
        let program = self.command.first().filter(|program| program.contains('/')).map(Path::new);
        let home = program.and_then(Path::parent).map(Path::to_owned);
        std::iter::once(self.folder.clone()).chain(home)
    }

    pub(super) fn secret_files(&self) -> impl Iterator<Item = PathBuf> {
        self.environment.values().filter_map(|given| Some(given.file()?.to_owned()))
    }

    /// The request that starts the program, with further arguments.
    pub(super) fn request(&self, more: &[&str]) -> Result<Request, String> {
        let (program, arguments) = self.command.split_first().ok_or("its command is empty")?;
        let arguments = arguments.iter().map(String::as_str).chain(more.iter().copied());
        let mut request = Request::run(program.as_str(), arguments, &self.folder);
        for (name, given) in &self.environment {
            request = request.with(name, given.read()?);
        }
        Ok(request)
    }

    /// Asks the program to describe itself, if it is to. Fields of the file count more.
    pub(super) async fn complete(self, sandbox: &Sandbox) -> Result<Complete, String> {
        let mut fields = match self.describes_itself {
            true => tokio::time::timeout(DESCRIBE_TIMEOUT, self.describe(sandbox))
                .await
                .map_err(|_| format!("it took longer than {DESCRIBE_TIMEOUT:?} to describe itself"))??,
            false => Map::new(),
        };
        fields.extend(self.fields.clone());
        let Fields { name, schema, described, form, stderr } = Fields::parse(fields)?;
        Ok(Complete { name, schema, described, form, stderr, manifest: self })
    }

    async fn describe(&self, sandbox: &Sandbox) -> Result<Map<String, Value>, String> {
        let request = self.request(&[DESCRIBE])?;
        let mut guarded = sandbox.start(request, Left::default()).await.map_err(|error| error.to_string())?;
        let mut text = Vec::new();
        if let (Some(stdout), _) = guarded.pipes() {
            stdout.take(DESCRIBE_BYTES_MAX).read_to_end(&mut text).await.map_err(|error| error.to_string())?;
        }
        match guarded.report().await {
            Some(Report::Exited(Exit::ExitCode(0))) => serde_json::from_slice(&text)
                .map_err(|error| format!("what it printed with {DESCRIBE} is no JSON object: {error}")),
            Some(Report::Failed(error)) => Err(format!("it cannot be started: {error}")),
            other => {
                Err(format!("with {DESCRIBE} it ended with {other:?}: it must print its manifest and exit with 0"))
            }
        }
    }
}

/// The fields that a program can give itself.
struct Fields {
    name: String,
    schema: Value,
    described: Described,
    form: Form,
    stderr: Stderr,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Forms {
    output: Form,
    stderr: Stderr,
}

impl Fields {
    fn parse(mut table: Map<String, Value>) -> Result<Self, String> {
        let name = source::text(&mut table, "name")?.ok_or("it has no name")?;
        let schema = source::schema(&mut table, "input_schema")?;
        let described = Described::take(&mut table)?;
        let Forms { output: form, stderr } =
            serde_json::from_value(Value::Object(table)).map_err(|error| error.to_string())?;
        Ok(Self { name, schema, described, form, stderr })
    }
}

impl Complete {
    /// Name, schema and manifest.
    pub(super) fn described(&self) -> (String, String, About) {
        // Nothing is known of a program unless its manifest says so.
        let unknown = Effects { open_world: true, uses_machine: true, ..Effects::default() };
        let about = self.described.about(Origin::Plugin, unknown, TIMEOUT);
        let about = about.idle_timeout(self.described.given_idle_timeout());
        (self.name.clone(), self.schema.to_string(), about)
    }

    pub(super) fn program(self, sandbox: Sandbox, workspaces: Option<Workspaces>) -> Program {
        Program { sandbox, workspaces, manifest: self.manifest, form: self.form, stderr: self.stderr, name: self.name }
    }
}
