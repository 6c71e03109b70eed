//! Runs the linters that fit a project and are installed, and shows what they found in one form.

mod formats;
mod table;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::table::known;
pub use self::table::{Format, Linter, Targets};
use super::lines::on_thread;
use super::root::Root;
use super::running::{Limits, capture, find};
use super::scope;
use super::settings::ToolSettings;
use ignore::WalkBuilder;
use sandbox::{Request, Sandbox};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Findings that are shown by default, and at most.
const LIMIT: u32 = 200;
const LIMIT_MAX: u32 = 2_000;
/// Linters of one call.
const LINTERS_MAX: u32 = 16;
/// Files of a project that are looked at to choose linters, and files that are named to one linter.
const WALKED_MAX: usize = 20_000;
const NAMED_MAX: usize = 500;
/// Bytes of one linter's output.
const OUTPUT_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long one linter may take: the first run of clippy builds the project.
const TIME_MAX: Duration = Duration::from_secs(540);
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(600);
/// Bytes of a linter's own words in a result.
const REASON_BYTES_MAX: usize = 2_000;
/// Bytes of a finding's text.
const MESSAGE_BYTES_MAX: usize = 1_000;

/// Runs linters below a root.
#[derive(Debug)]
pub struct Lint {
    root: Root,
    sandbox: Sandbox,
    linters: Vec<Linter>,
    allow_project_code: bool,
}

/// What to check.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// The file or folder to check, relative to the root; all of it unless given
    path: Option<String>,
    /// Only these linters, such as ruff, eslint, biome, clippy, shellcheck; those that fit the files unless given
    #[serde(default)]
    #[schemars(length(max = LINTERS_MAX))]
    linters: Vec<String>,
    /// How many findings to show at most
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    limit: u32,
}

fn limit() -> u32 {
    LIMIT
}

/// Something that a linter found.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Finding {
    /// Relative to the root.
    file: String,
    line: u64,
    column: u64,
    severity: Severity,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    message: String,
    /// The linter could mend it.
    fixable: bool,
    linter: String,
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
enum Severity {
    Error,
    Warning,
    Info,
}

/// What a linter did.
#[derive(Debug, Serialize)]
struct Ran {
    linter: String,
    findings: usize,
    /// Why it found nothing: it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// The result of a call.
#[derive(Debug, Serialize)]
struct Report {
    linters: Vec<Ran>,
    findings: Vec<Finding>,
    /// There are more findings than are shown.
    cut: bool,
    /// Linters that fit the files and did not run, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
}

impl Lint {
    /// Checks files below `root` with the known linters and those of the operator.
    #[must_use]
    pub fn new(root: Root, sandbox: Sandbox, settings: &ToolSettings) -> Self {
        let is_replaced = |linter: &Linter| settings.linters.iter().any(|other| other.name == linter.name);
        let known = known().into_iter().filter(|linter| !is_replaced(linter));
        let linters = known.chain(settings.linters.iter().cloned()).collect();
        Self { root, sandbox, linters, allow_project_code: settings.allow_project_code }
    }

    /// The linters that were named, or all.
    fn chosen(&self, names: &[String]) -> Result<Vec<&Linter>, ToolError> {
        if names.is_empty() {
            return Ok(self.linters.iter().collect());
        }
        let find = |(name, number): (&String, u32)| {
            self.linters.iter().find(|linter| linter.name == *name).ok_or_else(|| {
                let known: Vec<&str> = self.linters.iter().map(|linter| linter.name.as_str()).collect();
                let message = format!("there is no linter {name:?}; there are: {}", known.join(", "));
                ToolError::bad_input(format!("/linters/{number}"), message)
            })
        };
        names.iter().zip(0..).map(find).collect()
    }

    /// Why a linter that fits does not run.
    fn refused(&self, linter: &Linter) -> Option<String> {
        let name = &linter.name;
        if find(&linter.program).is_none() {
            let how = linter.install.as_deref().map(|how| format!(": {how}")).unwrap_or_default();
            return Some(format!("{name} is not installed on this worker{how}"));
        }
        (linter.runs_project_code && !self.allow_project_code)
            .then(|| format!("{name} runs code of the project, which this worker does not allow (allow_project_code)"))
    }

    async fn run(&self, context: &Context, place: &Place, linter: &Linter) -> Result<(Ran, Vec<Finding>), ToolError> {
        let mut arguments = linter.arguments.clone();
        match linter.targets {
            Targets::Project => {}
            Targets::Path => arguments.push(place.name.clone()),
            Targets::Files => {
                let files = place.files.iter().filter(|file| linter.fits(file)).take(NAMED_MAX);
                arguments.extend(files.map(|file| format!("./{}", relative(&place.folder, file))));
            }
        }
        let mut request = Request::run(&linter.program, arguments, &place.folder);
        for (name, value) in &linter.environment {
            request = request.with(name, value);
        }
        let limits = Limits { bytes: OUTPUT_BYTES_MAX, time: TIME_MAX };
        let ended = capture(context, &self.sandbox, request, limits).await?;
        let (format, root, place, name) = (linter.format, self.root.clone(), place.clone(), linter.name.clone());
        on_thread(move || {
            let said = formats::Said { stdout: &ended.stdout, stderr: &ended.stderr, is_cut: ended.is_cut() };
            let read = formats::read(format, &said);
            let mut findings: Vec<Finding> = Vec::new();
            let count = read.as_ref().map_or(0, Vec::len);
            for found in read.unwrap_or_default() {
                findings.extend(place.shown(&root, &name, found));
            }
            // Linters that found something end as if they had failed, so only one that found nothing has.
            let has_failed = count == 0 && !ended.succeeded();
            let reason: String = ended.stderr.chars().take(REASON_BYTES_MAX).collect();
            let error = has_failed.then(|| if reason.is_empty() { format!("{:?}", ended.exit) } else { reason });
            Ok((Ran { linter: name, findings: findings.len(), error }, findings))
        })
        .await
    }
}

impl Tool for Lint {
    const NAME: &'static str = "lint";
    type Input = Check;

    fn about(&self) -> About {
        let text = "Checks code with the linters that fit the project and are installed (ruff, eslint, biome, \
                    clippy, shellcheck and others), and shows what they found as file, line, column, severity, rule \
                    and message. It changes nothing: make the changes with edit.";
        let about = About::new(text).read_only().uses_machine().idle_timeout(None).attempt_timeout(ATTEMPT_TIMEOUT);
        about.category("development").side_effect_scope(scope::NONE)
    }

    async fn call(&self, context: &Context, check: Check) -> Result<Output, ToolError> {
        let chosen = self.chosen(&check.linters)?;
        let path = self.root.resolve(check.path.as_deref()).map_err(|error| error.at("/path"))?;
        let walk = (context.clone(), path.clone());
        let place = on_thread(move || Place::of(&walk.0, &walk.1)).await?;
        let fitting: Vec<&Linter> =
            chosen.into_iter().filter(|linter| place.files.iter().any(|file| linter.fits(file))).collect();
        let (able, left_out): (Vec<&Linter>, Vec<String>) =
            fitting.into_iter().fold((Vec::new(), Vec::new()), |(mut able, mut left_out), linter| {
                match self.refused(linter) {
                    None => able.push(linter),
                    Some(why) => left_out.push(why),
                }
                (able, left_out)
            });
        if able.is_empty() && left_out.is_empty() {
            return Err(ToolError::bad_input("/path", "no linter knows files of the kinds that are there"));
        }
        if able.is_empty() {
            return Err(ToolError::needs(format!("a linter for these files: {}", left_out.join("; "))));
        }
        let (mut linters, mut findings) = (Vec::new(), Vec::new());
        for linter in able {
            let (ran, found) = self.run(context, &place, linter).await?;
            linters.push(ran);
            findings.extend(found);
        }
        if linters.iter().all(|ran| ran.error.is_some()) {
            let errors = linters.iter().map(|ran| format!("{}: {}", ran.linter, ran.error.as_deref().unwrap_or("")));
            return Err(ToolError::new(format!("no linter could run: {}", errors.collect::<Vec<_>>().join("; "))));
        }
        findings.sort();
        findings.dedup();
        let cut = findings.len() > check.limit as usize;
        findings.truncate(check.limit as usize);
        Output::json(&Report { linters, findings, cut, left_out })
    }
}

/// What is checked.
#[derive(Debug, Clone)]
struct Place {
    /// Where linters are run: the folder, or that of the file.
    folder: PathBuf,
    /// The file or folder that is checked.
    path: PathBuf,
    /// Its name for linters, relative to the folder.
    name: String,
    /// The files that are there, as far as they were looked at.
    files: BTreeSet<PathBuf>,
}

impl Place {
    fn of(context: &Context, path: &Path) -> Result<Self, ToolError> {
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        let name = match path == folder {
            true => ".".to_owned(),
            false => format!("./{}", relative(folder, path)),
        };
        let mut files = BTreeSet::new();
        for entry in WalkBuilder::new(path).parents(false).require_git(false).git_global(false).build().flatten() {
            if context.is_cancelled() {
                return Err(ToolError::new("the call was cancelled"));
            }
            if entry.file_type().is_some_and(|kind| kind.is_file()) {
                files.insert(entry.into_path());
            }
            if files.len() == WALKED_MAX {
                break;
            }
        }
        Ok(Self { folder: folder.to_owned(), path: path.to_owned(), name, files })
    }

    /// A finding as it is shown; `None` if it is about a file that is not checked.
    fn shown(&self, root: &Root, linter: &str, found: formats::Found) -> Option<Finding> {
        // Some linters name files from the folder of the whole project.
        let folders = self.folder.ancestors().take_while(|folder| folder.starts_with(root.path()));
        let places = folders.map(|folder| folder.join(&found.file));
        let file = places.filter_map(|place| place.canonicalize().ok()).find(|place| place.is_file())?;
        if !file.starts_with(&self.path) {
            return None;
        }
        let formats::Found { line, column, severity, rule, mut message, fixable, .. } = found;
        if message.len() > MESSAGE_BYTES_MAX {
            message = message.chars().take(MESSAGE_BYTES_MAX / 4).collect::<String>() + " …";
        }
        let linter = linter.to_owned();
        Some(Finding { file: root.relative(&file), line, column, severity, rule, message, fixable, linter })
    }
}

fn relative(folder: &Path, file: &Path) -> String {
    file.strip_prefix(folder).unwrap_or(file).to_string_lossy().into_owned()
}
