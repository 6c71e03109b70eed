//! Output: whole pieces through a locked writer, with colours only if they are wanted. A closed pipe is an error like
//! any other here, and ends the program without a message.

use std::io::{self, IsTerminal as _, Write as _};

use clap::ValueEnum;

use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::yaml;

/// The form of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[default]
    Human,
    /// As human, with more columns and their names
    Wide,
    /// Only the ids or names of what is listed, one a line
    Name,
    /// A JSON object a line
    Json,
    /// The same objects as YAML documents
    Yaml,
}

/// When output has colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Debug)]
pub(crate) struct Terminal {
    output: Output,
    stdout: Paint,
    stderr: Paint,
    stdout_is_terminal: bool,
    stderr_is_terminal: bool,
    stdin_is_terminal: bool,
}

impl Terminal {
    pub(crate) fn new(output: Output, color: Color) -> Self {
        let (stdout_is_terminal, stderr_is_terminal) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let paint = |is_terminal: bool| {
            Paint(match color {
                Color::Auto => is_terminal && !refused,
                Color::Always => true,
                Color::Never => false,
            })
        };
        Self {
            output,
            stdout: paint(stdout_is_terminal),
            stderr: paint(stderr_is_terminal),
            stdout_is_terminal,
            stderr_is_terminal,
            stdin_is_terminal: io::stdin().is_terminal(),
        }
    }

    /// Whether objects are written, for programs.
    pub(crate) fn is_json(&self) -> bool {
        matches!(self.output, Output::Json | Output::Yaml)
    }

    /// Whether lists have all of their columns, and the names of these.
    pub(crate) fn is_wide(&self) -> bool {
        self.output == Output::Wide
    }

    /// Whether only ids or names are written.
    pub(crate) fn is_names(&self) -> bool {
        self.output == Output::Name
    }

    pub(crate) fn stdout_is_terminal(&self) -> bool {
        self.stdout_is_terminal
    }

    pub(crate) fn stderr_is_terminal(&self) -> bool {
        self.stderr_is_terminal
    }

    /// Whether a user can be asked.
    pub(crate) fn has_person(&self) -> bool {
        self.stdin_is_terminal && self.stderr_is_terminal
    }

    /// The colours of standard output.
    pub(crate) fn paint(&self) -> Paint {
        self.stdout
    }

    /// The colours of standard error.
    pub(crate) fn paint_notes(&self) -> Paint {
        self.stderr
    }

    /// Writes as it is, and at once.
    pub(crate) fn write(&self, bytes: &[u8]) -> Result<(), Failure> {
        if bytes.is_empty() {
            return Ok(());
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::Output)
    }

    pub(crate) fn line(&self, line: &str) -> Result<(), Failure> {
        self.write(format!("{line}\n").as_bytes())
    }

    pub(crate) fn object(&self, object: &Object) -> Result<(), Failure> {
        self.json(&object.to_string())
    }

    /// JSON, on a line or as YAML.
    pub(crate) fn json(&self, json: &str) -> Result<(), Failure> {
        match self.output {
            Output::Yaml => self.write(yaml::document(json).as_bytes()),
            Output::Json | Output::Human | Output::Wide | Output::Name => self.line(json),
        }
    }

    /// A message of the API, on a line of its own.
    pub(crate) fn message<M: prost::Message + prost::Name>(&self, message: &M) -> Result<(), Failure> {
        self.json(&proto::json::write(message))
    }

    /// Writes over the last line of standard error, if a person reads it there.
    pub(crate) fn progress(&self, line: &str) {
        if self.stderr_is_terminal && !self.is_json() {
            self.aside(&format!("\r\x1b[K{}", self.stderr.dim(line)));
        }
    }

    /// Removes the line of progress.
    pub(crate) fn end_progress(&self) {
        self.progress("");
    }

    /// Writes to standard error, unchanged. Failures are ignored, because they cannot be reported.
    pub(crate) fn aside(&self, text: &(impl AsRef<[u8]> + ?Sized)) {
        let mut stderr = io::stderr().lock();
        drop(stderr.write_all(text.as_ref()).and_then(|()| stderr.flush()));
    }

    /// A line for the person, beside the output.
    pub(crate) fn note(&self, line: &str) {
        self.aside(&format!("{}\n", self.stderr.dim(line)));
    }

    /// Prints why the command failed, unless its output shows that.
    pub(crate) fn failure(&self, failure: &Failure) {
        match failure.exit() {
            Exit::PipeClosed | Exit::Interrupted => {}
            exit if self.is_json() => {
                let error = Object::default()
                    .field("reason", failure.reason())
                    .field("message", failure.to_string())
                    .field("exit_code", exit.code());
                let object = Object::default().field("error", error).to_string();
                let is_yaml = self.output == Output::Yaml;
                self.aside(&if is_yaml { yaml::document(&object) } else { format!("{object}\n") });
            }
            _ => self.problem(&failure.to_string()),
        }
    }

    /// An error message for people.
    pub(crate) fn problem(&self, line: &str) {
        self.aside(&format!("{} {line}\n", self.stderr.bad("error:")));
    }
}

/// Colours, or none.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Paint(pub(crate) bool);

/// Colours that distinguish calls: cyan, magenta, blue, yellow, and the bright ones of the first three.
const HUES: [u8; 7] = [36, 35, 34, 33, 96, 95, 94];

impl Paint {
    fn code(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    pub(crate) fn bold(self, text: &str) -> String {
        self.code("1", text)
    }

    pub(crate) fn dim(self, text: &str) -> String {
        self.code("2", text)
    }

    pub(crate) fn good(self, text: &str) -> String {
        self.code("32", text)
    }

    pub(crate) fn bad(self, text: &str) -> String {
        self.code("31", text)
    }

    pub(crate) fn asking(self, text: &str) -> String {
        self.code("1;33", text)
    }

    /// The colour of one speaker among several.
    pub(crate) fn hue(self, speaker: usize, text: &str) -> String {
        self.code(&HUES[speaker % HUES.len()].to_string(), text)
    }
}
