//! Shows a file: text by lines, pictures as they are. Its result has the file's SHA-256, with which `edit` refuses to
//! change a file that has changed since.

use std::fs::File;
use std::io::{self, Read};

use ring::digest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::inside::Inside;
use super::lines::on_thread;
use super::root::{Root, Unreachable};
use super::scope;
use sandbox::User;
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Default of the lines that are shown.
const LIMIT: u32 = 2_000;
/// Most lines that can be requested.
const LIMIT_MAX: u32 = 20_000;
/// Bytes of text that are shown: what stays inline in a result, and more than most models should read at once.
const SHOWN_BYTES_MAX: usize = 128 * 1024;
/// Bytes of a line that are shown.
const LINE_BYTES_MAX: usize = 2_000;
/// Bytes of a file of text: all of it is read for its hash.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;
/// Bytes of a picture: what vendors of models take.
const IMAGE_BYTES_MAX: u64 = 5 * 1024 * 1024;
/// Bytes that are read at once, and between two looks at the call. Those at the start decide whether a file is binary.
const PIECE_BYTES: usize = 64 * 1024;
const HEAD_BYTES: usize = 8 * 1024;

/// Reads files below a root.
#[derive(Debug)]
pub struct ReadFile {
    root: Root,
    user: Option<User>,
}

/// Which file to show, and which lines of it.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Excerpt {
    /// The file, relative to the root
    path: String,
    /// The first line to show, counted from 1
    #[serde(default = "first")]
    #[schemars(range(min = 1))]
    offset: u64,
    /// How many lines to show at most
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    limit: u32,
    /// Each line begins with its number and a tab
    #[serde(default = "yes")]
    line_numbers: bool,
}

fn first() -> u64 {
    1
}

fn limit() -> u32 {
    LIMIT
}

fn yes() -> bool {
    true
}

/// What is known of the file beside its content.
#[derive(Debug, Default, Serialize)]
struct Known {
    path: String,
    sha256: String,
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    lines: Option<u64>,
    /// The first and the last line that are shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    shown: Option<(u64, u64)>,
    /// There are lines after those that are shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    more: bool,
    /// Bytes that are no UTF-8 are shown as replacement characters. `edit` does not change such a file.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    not_utf8: bool,
    /// Lines end with a carriage return too.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    crlf: bool,
}

impl ReadFile {
    /// Reads below `root`. When `user` is given, only what that user may read.
    #[must_use]
    pub fn new(root: Root, user: Option<User>) -> Self {
        Self { root, user }
    }
}

impl Tool for ReadFile {
    const NAME: &'static str = "read_file";
    type Input = Excerpt;

    fn about(&self) -> About {
        let text = "Shows lines of a text file with their numbers, or a picture (PNG, JPEG, GIF, WebP). The result \
                    ends with the file's SHA-256, which edit takes as expected_sha256, and says whether there are \
                    more lines.";
        let about = About::new(text).read_only().uses_machine().idle_timeout(None);
        about.category("filesystem").side_effect_scope(scope::NONE)
    }

    async fn call(&self, context: &Context, input: Excerpt) -> Result<Output, ToolError> {
        let (root, user, context) = (self.root.clone(), self.user, context.clone());
        on_thread(move || read(&root, user, &context, &input)).await
    }
}

fn read(root: &Root, user: Option<User>, context: &Context, input: &Excerpt) -> Result<Output, ToolError> {
    let path = root.resolve(Some(&input.path)).map_err(|error| error.at("/path"))?;
    if path.is_dir() {
        return Err(Unreachable::NotAFile(input.path.clone()).at("/path"));
    }
    let opened = Inside::open(root, &path, user).and_then(|inside| inside.file());
    let (mut file, stat) = opened.map_err(|error| unreadable(&input.path, &error))?;
    let bytes = u64::try_from(stat.st_size).unwrap_or_default();
    let known = Known { path: root.relative(&path), bytes, ..Known::default() };
    let mut head = Vec::new();
    (&mut file).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    if let Some(media_type) = image(&head) {
        return picture(file, head, media_type, known);
    }
    if head.contains(&0) {
        let message = format!("{:?} is binary ({bytes} bytes): only text and pictures are shown", input.path);
        return Err(ToolError::bad_input("/path", message));
    }
    if bytes > FILE_BYTES_MAX {
        let mib = FILE_BYTES_MAX / 1024 / 1024;
        let message = format!("{:?} has {bytes} bytes, at most {mib} MiB are read: use grep or bash", input.path);
        return Err(ToolError::bad_input("/path", message));
    }
    let mut shown = Shown::new(input, known);
    shown.take(&head);
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        if context.is_cancelled() {
            return Err(ToolError::new("the call was cancelled"));
        }
        match file.read(&mut piece)? {
            0 => break,
            count => shown.take(&piece[..count]),
        }
    }
    let (text, known) = shown.end();
    if known.shown.is_none() && input.offset > 1 {
        let message = format!("{:?} has only {} lines", input.path, known.lines.unwrap_or_default());
        return Err(ToolError::bad_input("/offset", message));
    }
    Ok(Output::from(text).and(Output::json(&known)?))
}

fn unreadable(path: &str, error: &io::Error) -> ToolError {
    ToolError::new(format!("{path:?} cannot be read: {error}"))
}

fn picture(file: File, head: Vec<u8>, media_type: &str, mut known: Known) -> Result<Output, ToolError> {
    let mut bytes = head;
    file.take(IMAGE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > IMAGE_BYTES_MAX {
        let mib = IMAGE_BYTES_MAX / 1024 / 1024;
        let message = format!("{:?} is a picture of more than {mib} MiB: make it smaller first", known.path);
        return Err(ToolError::bad_input("/path", message));
    }
    known.sha256 = hex(digest::digest(&digest::SHA256, &bytes).as_ref());
    Ok(Output::data(media_type, bytes).and(Output::json(&known)?))
}

/// The media type of a picture, by its first bytes.
fn image(head: &[u8]) -> Option<&'static str> {
    match head {
        [0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

/// The SHA-256 of bytes, as hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, bytes).as_ref())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The lines that are shown, collected while the file is read.
struct Shown<'a> {
    input: &'a Excerpt,
    known: Known,
    digest: digest::Context,
    text: String,
    /// The line that is being read: at most one byte more than is shown of it.
    line: Vec<u8>,
    /// Bytes of that line, of those too that are not held.
    line_bytes: usize,
    /// The number of that line.
    number: u64,
    full: bool,
}

impl<'a> Shown<'a> {
    fn new(input: &'a Excerpt, known: Known) -> Self {
        let (text, line) = (String::new(), Vec::new());
        let digest = digest::Context::new(&digest::SHA256);
        Self { input, known, digest, text, line, line_bytes: 0, number: 1, full: false }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.digest.update(bytes);
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            let (text, is_end) = line.strip_suffix(b"\n").map_or((line, false), |text| (text, true));
            let room = (LINE_BYTES_MAX + 1).saturating_sub(self.line.len());
            self.line.extend_from_slice(&text[..text.len().min(room)]);
            self.line_bytes += text.len();
            if is_end {
                self.show();
                self.number += 1;
            }
        }
    }

    fn show(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        let bytes = std::mem::take(&mut self.line_bytes);
        if line.len() == bytes && line.last() == Some(&b'\r') {
            line.pop();
            self.known.crlf = true;
        }
        let from = self.input.offset;
        if self.number < from {
            return;
        }
        self.full |= self.number - from >= u64::from(self.input.limit);
        if self.full {
            self.known.more = true;
            return;
        }
        let cut = bytes > LINE_BYTES_MAX;
        line.truncate(LINE_BYTES_MAX);
        let text = String::from_utf8_lossy(&line);
        // A character that was cut is no sign of bytes that are not UTF-8.
        self.known.not_utf8 |= matches!(text, std::borrow::Cow::Owned(_)) && !cut;
        let number = if self.input.line_numbers { format!("{}\t", self.number) } else { String::new() };
        let mark = if cut { format!(" [cut: {} bytes more]", bytes - LINE_BYTES_MAX) } else { String::new() };
        let shown = format!("{number}{text}{mark}\n");
        if self.text.len() + shown.len() > SHOWN_BYTES_MAX {
            (self.full, self.known.more) = (true, true);
            return;
        }
        self.text.push_str(&shown);
        self.known.shown = Some((self.known.shown.map_or(self.number, |(first, _)| first), self.number));
    }

    fn end(mut self) -> (String, Known) {
        if self.line_bytes > 0 {
            self.show();
            self.number += 1;
        }
        self.known.lines = Some(self.number - 1);
        self.known.sha256 = hex(self.digest.finish().as_ref());
        (self.text, self.known)
    }
}
