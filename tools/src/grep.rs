//! Finds lines in files.

mod page;

use ignore::types::{Types, TypesBuilder};
use schemars::JsonSchema;
use serde::Deserialize;

use self::page::{Found, Page, searcher, why};
use super::inside::Inside;
use super::lines::streamed;
use super::matcher::{Steady, Wanted};
use super::root::Root;
use super::scope;
use super::walk::{Files, Filter};
use sandbox::User;
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Default of the matching lines that are shown: about as many as a model can use.
const LIMIT: u32 = 500;
/// Most matching lines that can be requested: some megabytes at most, more than any model reads.
const LIMIT_MAX: u32 = 10_000;
/// Most matches that can be passed over: those before are searched each time.
const OFFSET_MAX: u32 = 1_000_000;
/// Most lines around a match that can be requested; for more, read the file.
const CONTEXT_MAX: u32 = 10;
/// Types of files proposed for an unknown one.
const PROPOSALS_MAX: usize = 8;

/// Searches files below a root.
#[derive(Debug)]
pub struct Grep {
    root: Root,
    user: Option<User>,
}

/// What to search for, and what to show of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// The regular expression that a line must match (Rust syntax, no look-around, no back-references)
    #[schemars(length(min = 1))]
    pattern: String,
    /// The file or folder to look in, relative to the root; all of it unless given
    path: Option<String>,
    /// Look only in files that match this glob, such as `*.rs`; relative to `path`
    glob: Option<String>,
    /// Look only in files of this type, as ripgrep names them: rust, py, js, ts, go, md ...
    #[serde(rename = "type")]
    file_type: Option<String>,
    /// What to show: the matching lines, only the paths of files that have some, or how many each file has
    #[serde(default)]
    output_mode: Mode,
    /// Upper and lower case are the same
    #[serde(default)]
    ignore_case: bool,
    /// The pattern is plain text, not a regular expression
    #[serde(default)]
    fixed_strings: bool,
    /// A match may span lines, and `.` matches the end of a line too
    #[serde(default)]
    multiline: bool,
    /// How many lines to show before and after each match
    #[serde(default)]
    #[schemars(range(max = CONTEXT_MAX))]
    context: u32,
    /// How many lines to show before each match; as many as `context` unless given
    #[schemars(range(max = CONTEXT_MAX))]
    before: Option<u32>,
    /// How many lines to show after each match; as many as `context` unless given
    #[schemars(range(max = CONTEXT_MAX))]
    after: Option<u32>,
    /// How many matching lines to pass over first; files in the other modes
    #[serde(default)]
    #[schemars(range(max = OFFSET_MAX))]
    offset: u32,
    /// How many matching lines to show at most; files in the other modes
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    limit: u32,
}

/// What is shown of the matches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The matching lines, with context.
    #[default]
    Content,
    /// The paths of files with a match.
    FilesWithMatches,
    /// The number of matching lines of each file.
    Count,
}

fn limit() -> u32 {
    LIMIT
}

impl Grep {
    /// Searches below `root`. When `user` is given, only what that user may read.
    #[must_use]
    pub fn new(root: Root, user: Option<User>) -> Self {
        Self { root, user }
    }
}

impl Tool for Grep {
    const NAME: &'static str = "grep";
    type Input = Search;

    fn about(&self) -> About {
        let text = "Searches files for lines that match a regular expression and shows them as path:line:text, sorted \
                    by path; lines of context as path-line-text. With output_mode it shows only paths, or counts as \
                    path:count. Hidden and binary files and what gitignore files exclude are left out.";
        let about = About::new(text).read_only().uses_machine().streaming().idle_timeout(None);
        about.category("filesystem").tag("search").side_effect_scope(scope::NONE)
    }

    async fn call(&self, context: &Context, input: Search) -> Result<Output, ToolError> {
        let folder = self.root.resolve(input.path.as_deref()).map_err(|error| error.at("/path"))?;
        let filter = input.glob.as_deref().map(|glob| Filter::new(glob, &folder, "/glob")).transpose()?;
        let types = input.file_type.as_deref().map(file_type).transpose()?;
        let wanted = Wanted {
            pattern: &input.pattern,
            ignore_case: input.ignore_case,
            is_fixed: input.fixed_strings,
            spans_lines: input.multiline,
        };
        let pattern = Steady::new(&wanted)?;
        let (root, user) = (self.root.clone(), self.user);
        streamed(context, move |lines| {
            let mut files = Files::below(root.path(), &folder, user, lines);
            let matcher = pattern.search(lines);
            let (before, after) = (input.before.unwrap_or(input.context), input.after.unwrap_or(input.context));
            let around = if input.output_mode == Mode::Content { (before, after) } else { (0, 0) };
            let mut searcher = searcher(around, input.multiline);
            let mut found = Found::new(input.output_mode, input.offset as usize, input.limit as usize);
            while let Some(file) = files.next() {
                let is_wanted = filter.as_ref().is_none_or(|filter| filter.wants(&file))
                    && types.as_ref().is_none_or(|types| types.matched(&file, false).is_whitelist());
                if !is_wanted {
                    continue;
                }
                let path = root.relative(&file);
                let page = Page::new(lines, path.clone(), &mut found, around != (0, 0));
                // It may be a link or a pipe by now.
                let opened = Inside::open(&root, &file, user).and_then(|inside| inside.file());
                if let Err(error) = opened.and_then(|(file, _)| page.search(&mut searcher, &matcher, file)) {
                    files.pass_over(&path, &why(&error, input.multiline));
                }
                if found.cut {
                    break;
                }
            }
            Ok(found.summary() + &files.passed_over())
        })
        .await
    }
}

/// The files of a type.
fn file_type(name: &str) -> Result<Types, ToolError> {
    let mut builder = TypesBuilder::new();
    builder.add_defaults();
    // `all` would take every file that has a type, which a model does not mean.
    let built = builder.select(name).build();
    built.map_err(|_| {
        let known = builder.definitions();
        let alike = |known: &&str| known.contains(name) || name.contains(*known) && known.len() > 1;
        let near: Vec<&str> = known.iter().map(|known| known.name()).filter(alike).take(PROPOSALS_MAX).collect();
        let hint = match near.as_slice() {
            [] => "use one such as rust, py, js, ts, go, java, md, json, or a glob instead".to_owned(),
            near => format!("did you mean {}?", near.join(", ")),
        };
        ToolError::bad_input("/type", format!("there is no type of files {name:?}: {hint}"))
    })
}
