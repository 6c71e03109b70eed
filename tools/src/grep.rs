//! Finds lines in files.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch};
use schemars::JsonSchema;
use serde::Deserialize;

use super::lines::{Lines, counted, streamed};
use super::matcher::{self, Steady, Wanted};
use super::root::Root;
use super::walk::{CUT, Files, Filter};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Default of the matching lines that are shown: about as many as a model can use.
const LIMIT: u32 = 500;
/// Most matching lines that can be requested: some megabytes at most, more than any model reads.
const LIMIT_MAX: u32 = 10_000;
/// Most lines around a match that can be requested; for more, read the file.
const CONTEXT_MAX: u32 = 10;
/// Bytes of a line that are shown. Longer ones are minified code or data, and would fill a model's window.
const SHOWN_BYTES_MAX: usize = 500;
/// Bytes of a line that is searched: it is held in memory. A file with a longer one is no text.
const SEARCHED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes at the start of a file that decide whether it is binary, as in git.
const HEAD_BYTES: u64 = 8 * 1024;

#[derive(Debug)]
pub struct Grep {
    root: Root,
}

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
    /// Upper and lower case are the same
    #[serde(default)]
    ignore_case: bool,
    /// The pattern is plain text, not a regular expression
    #[serde(default)]
    fixed_strings: bool,
    /// How many lines to show before and after each match
    #[serde(default)]
    #[schemars(range(max = CONTEXT_MAX))]
    context: u32,
    /// How many matching lines to show at most
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    limit: u32,
}

fn limit() -> u32 {
    LIMIT
}

impl Grep {
    #[must_use]
    pub fn new(root: Root) -> Self {
        Self { root }
    }
}

impl Tool for Grep {
    const NAME: &'static str = "grep";
    type Input = Search;

    fn about(&self) -> About {
        let text = "Searches files for lines that match a regular expression and shows them as path:line:text, sorted by \
                    path; lines of context as path-line-text. Hidden and binary files and what gitignore files exclude \
                    are left out.";
        About::new(text).read_only().uses_machine().streaming().idle_timeout(None).category("filesystem").tag("search")
    }

    async fn call(&self, context: &Context, input: Search) -> Result<Output, ToolError> {
        let folder = self.root.resolve(input.path.as_deref())?;
        let filter = input.glob.as_deref().map(|glob| Filter::new(glob, &folder)).transpose()?;
        let wanted = Wanted { pattern: &input.pattern, ignore_case: input.ignore_case, is_fixed: input.fixed_strings };
        let pattern = Steady::new(&wanted)?;
        let root = self.root.clone();
        streamed(context, move |lines| {
            let mut files = Files::below(root.path(), &folder, lines);
            let matcher = pattern.search(lines);
            let mut searcher = searcher(input.context as usize);
            let mut found = Found::new(input.limit as usize);
            while let Some(file) = files.next() {
                if filter.as_ref().is_some_and(|filter| !filter.wants(&file)) {
                    continue;
                }
                let page = Page {
                    lines,
                    path: root.relative(&file),
                    found: &mut found,
                    context: input.context > 0,
                    shown: false,
                };
                let path = page.path.clone();
                if let Err(error) = page.search(&mut searcher, &matcher, &file) {
                    files.pass_over(&path, &why(&error));
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

/// Why a file could not be searched, in words for a model.
fn why(error: &io::Error) -> String {
    let text = error.to_string();
    if text.contains("allocation limit") {
        return format!("it has a line of more than {} MiB", SEARCHED_BYTES_MAX / 1024 / 1024);
    }
    text
}

fn searcher(context: usize) -> Searcher {
    SearcherBuilder::new()
        .line_number(true)
        .before_context(context)
        .after_context(context)
        .heap_limit(Some(SEARCHED_BYTES_MAX))
        .binary_detection(BinaryDetection::quit(0))
        .build()
}

/// The matches so far, in all files.
struct Found {
    limit: usize,
    matches: usize,
    files: usize,
    /// There is another match, beyond the limit.
    cut: bool,
}

impl Found {
    fn new(limit: usize) -> Self {
        Self { limit, matches: 0, files: 0, cut: false }
    }

    /// Called when a further match is certain. The search ends if it is one too many.
    fn has_room(&mut self) -> bool {
        self.cut = self.matches == self.limit;
        !self.cut
    }

    fn summary(&self) -> String {
        if self.matches == 0 {
            return "No line matches".to_owned();
        }
        let text = format!("{} in {}", counted(self.matches, "matching line"), counted(self.files, "file"));
        text + if self.cut { CUT } else { "" }
    }
}

/// The search of one file.
struct Page<'a> {
    lines: &'a Lines,
    path: String,
    found: &'a mut Found,
    /// Whether groups of lines are separated.
    context: bool,
    /// Something of this file was shown.
    shown: bool,
}

impl Page<'_> {
    fn search(self, searcher: &mut Searcher, matcher: &matcher::Search<'_>, file: &Path) -> io::Result<()> {
        let lines = self.lines;
        let mut file = File::open(file)?;
        let mut head = Vec::new();
        file.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
        if is_binary(&head) {
            return Ok(());
        }
        searcher.search_reader(matcher, head.chain(Heard { file, lines }), self)
    }

    fn say(&mut self, mark: char, number: Option<u64>, line: &[u8]) -> io::Result<bool> {
        if !self.shown {
            self.shown = true;
            if self.context && self.found.files > 0 {
                self.separate()?;
            }
            self.found.files += 1;
        }
        let number = number.expect("the searcher counts lines");
        let line = shorten(line);
        self.lines.say(format!("{}{mark}{number}{mark}{line}", self.path)).map_err(io::Error::other)?;
        Ok(true)
    }

    fn separate(&self) -> io::Result<()> {
        self.lines.say("--".to_owned()).map_err(io::Error::other)
    }
}

impl Sink for Page<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, line: &SinkMatch<'_>) -> io::Result<bool> {
        if !self.found.has_room() {
            return Ok(false);
        }
        self.found.matches += 1;
        self.say(':', line.line_number(), line.bytes())
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> io::Result<bool> {
        if *line.kind() == SinkContextKind::Before && !self.found.has_room() {
            return Ok(false);
        }
        self.say('-', line.line_number(), line.bytes())
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        if !self.found.has_room() {
            return Ok(false);
        }
        self.separate()?;
        Ok(true)
    }
}

/// A file whose reads fail when the call is over; otherwise a large file without a match would be read to its end.
struct Heard<'a> {
    file: File,
    lines: &'a Lines,
}

impl Read for Heard<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.lines.is_over() {
            return Err(io::Error::other("the call is over"));
        }
        self.file.read(buffer)
    }
}

/// UTF-16 is full of zeros and still text; the searcher reads it by its byte order mark.
fn is_binary(head: &[u8]) -> bool {
    let utf16 = head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]);
    !utf16 && head.contains(&0)
}

fn shorten(line: &[u8]) -> String {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut text = String::from_utf8_lossy(line).into_owned();
    if text.len() > SHOWN_BYTES_MAX {
        let mut end = SHOWN_BYTES_MAX;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mark = format!(" [cut: {} bytes more]", text.len() - end);
        text.truncate(end);
        text.push_str(&mark);
    }
    text
}
