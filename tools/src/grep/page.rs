//! The search of one file, and what is shown of its matches.

use std::fs::File;
use std::io::{self, Read};

use grep_searcher::{BinaryDetection, Searcher, SearcherBuilder, Sink, SinkContext, SinkContextKind, SinkMatch};

use super::Mode;
use crate::lines::{Lines, counted};
use crate::matcher;
use crate::walk::CUT;

/// Bytes of a line that are shown. Longer ones are minified code or data, and would fill a model's window.
const SHOWN_BYTES_MAX: usize = 500;
/// Bytes of a line that is searched, or of a file if matches may span lines: it is held in memory.
const SEARCHED_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Bytes at the start of a file that decide whether it is binary, as in git.
const HEAD_BYTES: u64 = 8 * 1024;

/// Why a file could not be searched, in words for a model.
pub(super) fn why(error: &io::Error, spans_lines: bool) -> String {
    let text = error.to_string();
    if text.contains("allocation limit") {
        let mib = SEARCHED_BYTES_MAX / 1024 / 1024;
        let what = if spans_lines { "it has" } else { "it has a line of" };
        return format!("{what} more than {mib} MiB");
    }
    text
}

/// A searcher that shows so many lines before and after each match.
pub(super) fn searcher((before, after): (u32, u32), spans_lines: bool) -> Searcher {
    SearcherBuilder::new()
        .line_number(true)
        .before_context(before as usize)
        .after_context(after as usize)
        .multi_line(spans_lines)
        .heap_limit(Some(SEARCHED_BYTES_MAX))
        .binary_detection(BinaryDetection::quit(0))
        .build()
}

/// The matches so far, in all files.
pub(super) struct Found {
    mode: Mode,
    /// How many are still to be passed over.
    offset: usize,
    limit: usize,
    /// Matches that were shown or counted.
    matches: usize,
    files: usize,
    /// There is another match, beyond the limit.
    pub(super) cut: bool,
}

/// What happens with the next match, or the next file with matches.
enum Next {
    PassOver,
    Show,
    End,
}

impl Found {
    pub(super) fn new(mode: Mode, offset: usize, limit: usize) -> Self {
        Self { mode, offset, limit, matches: 0, files: 0, cut: false }
    }

    /// Called when a further match is certain. The search ends if it is one too many.
    fn next(&mut self) -> Next {
        let shown = if self.mode == Mode::Content { self.matches } else { self.files };
        if self.offset > 0 {
            return Next::PassOver;
        }
        self.cut = shown == self.limit;
        if self.cut { Next::End } else { Next::Show }
    }

    pub(super) fn summary(&self) -> String {
        let files = counted(self.files, "file");
        let text = match self.mode {
            _ if self.files == 0 && self.offset > 0 => "No further line matches".to_owned(),
            _ if self.files == 0 => "No line matches".to_owned(),
            Mode::FilesWithMatches => files,
            Mode::Content | Mode::Count => format!("{} in {files}", counted(self.matches, "matching line")),
        };
        text + if self.cut { CUT } else { "" }
    }
}

/// The search of one file.
pub(super) struct Page<'a> {
    lines: &'a Lines,
    path: String,
    found: &'a mut Found,
    /// Whether groups of lines are separated.
    separates: bool,
    /// Something of this file was shown.
    shown: bool,
    /// The latest match was shown, so its context is too.
    is_shown: bool,
    /// Matches that are only counted.
    counted: usize,
}

impl<'a> Page<'a> {
    pub(super) fn new(lines: &'a Lines, path: String, found: &'a mut Found, separates: bool) -> Self {
        Self { lines, path, found, separates, shown: false, is_shown: false, counted: 0 }
    }

    pub(super) fn search(
        mut self,
        searcher: &mut Searcher,
        matcher: &matcher::Search<'_>,
        mut file: File,
    ) -> io::Result<()> {
        let lines = self.lines;
        let mut head = Vec::new();
        file.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
        if is_binary(&head) {
            return Ok(());
        }
        searcher.search_reader(matcher, head.chain(Heard { file, lines }), &mut self)?;
        if self.counted == 0 {
            return Ok(());
        }
        match self.found.next() {
            Next::PassOver => self.found.offset -= 1,
            Next::End => {}
            Next::Show => {
                self.found.files += 1;
                self.found.matches += self.counted;
                let count = if self.found.mode == Mode::Count { format!(":{}", self.counted) } else { String::new() };
                self.lines.say(format!("{}{count}", self.path)).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }

    fn say(&mut self, mark: char, number: Option<u64>, line: &[u8]) -> io::Result<()> {
        if !self.shown {
            self.shown = true;
            if self.separates && self.found.files > 0 {
                self.separate()?;
            }
            self.found.files += 1;
        }
        let number = number.expect("the searcher counts lines");
        let line = shorten(line);
        self.lines.say(format!("{}{mark}{number}{mark}{line}", self.path)).map_err(io::Error::other)
    }

    fn separate(&self) -> io::Result<()> {
        self.lines.say("--".to_owned()).map_err(io::Error::other)
    }
}

impl Sink for &mut Page<'_> {
    type Error = io::Error;

    fn matched(&mut self, _: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        match self.found.mode {
            Mode::Content => {}
            Mode::FilesWithMatches | Mode::Count => {
                self.counted += 1;
                return Ok(self.found.mode == Mode::Count);
            }
        }
        match self.found.next() {
            Next::End => return Ok(false),
            Next::PassOver => {
                self.found.offset -= 1;
                self.is_shown = false;
                return Ok(true);
            }
            Next::Show => {}
        }
        self.found.matches += 1;
        self.is_shown = true;
        for (line, at) in found.lines().zip(0..) {
            self.say(':', found.line_number().map(|first| first + at), line)?;
        }
        Ok(true)
    }

    fn context(&mut self, _: &Searcher, line: &SinkContext<'_>) -> io::Result<bool> {
        match line.kind() {
            SinkContextKind::Before => match self.found.next() {
                Next::End => return Ok(false),
                Next::PassOver => return Ok(true),
                Next::Show => {}
            },
            SinkContextKind::After | SinkContextKind::Other if !self.is_shown => return Ok(true),
            SinkContextKind::After | SinkContextKind::Other => {}
        }
        self.say('-', line.line_number(), line.bytes())?;
        Ok(true)
    }

    fn context_break(&mut self, _: &Searcher) -> io::Result<bool> {
        match self.found.next() {
            Next::End => return Ok(false),
            Next::Show if self.shown => self.separate()?,
            Next::Show | Next::PassOver => {}
        }
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
