//! The MCP servers that a worker hosts: from the command line, or from a file in the format of other MCP hosts.

mod file;
mod secret;

use std::path::PathBuf;
use std::time::Duration;

use globset::{Glob, GlobSet, GlobSetBuilder};
use run::Policy;

pub use self::file::{FileError, read};
pub use self::secret::{Secret, Token, TokenError, variable_of_worker};

/// Bytes of a server's name: it is a category and a part of names of tools.
const NAME_BYTES_MAX: usize = 48;
/// How long a server may take to start and list its tools: `npx` may have to download it first.
pub const START_TIMEOUT: Duration = Duration::from_secs(60);

/// An MCP server and how it is hosted.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Its name in logs, metrics and errors.
    pub name: String,
    /// How it is reached.
    pub reach: Reach,
    /// Stands in front of the names of its tools.
    pub prefix: String,
    /// The tools to host, by the names that the server gives them; all if it is empty.
    pub allow: Patterns,
    /// The tools to leave out.
    pub deny: Patterns,
    /// The tools whose calls a person must approve.
    pub confirm: Patterns,
    /// Whether the server's word on what its tools do counts. If not, each of them is destructive, reaches the world,
    /// and is never repeated.
    pub trust_hints: bool,
    /// A process for each call that runs at once, instead of one for all.
    pub per_slot: bool,
    /// How long one attempt of a call may take.
    pub timeout: Duration,
    /// How long the server may take to start and list its tools.
    pub start_timeout: Duration,
}

/// How an MCP server is reached.
#[derive(Debug, Clone)]
pub enum Reach {
    /// A program that is started, and speaks on its standard input and output.
    Program {
        program: String,
        arguments: Vec<String>,
        /// Variables beside the few that every program receives.
        environment: Vec<(String, Secret)>,
        /// Its folder; `None`: the worker's root, or a new one if it has none.
        folder: Option<PathBuf>,
    },
    /// An address of the Streamable HTTP transport.
    Http {
        url: String,
        headers: Vec<(String, Secret)>,
        /// The bearer token.
        token: Option<Token>,
    },
}

/// An option that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigError {
    #[error("{0:?} is no command: give a program and its arguments, or an address that begins with https://")]
    NotACommand(String),
    #[error("the address {0} contains a user or a password: give a token by --mcp-token-file or --mcp-token-env")]
    SecretInUrl(String),
    #[error("{0:?} is no name of a server: use 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 _ -")]
    Name(String),
    #[error("{0:?} is no prefix: use at most {NAME_BYTES_MAX} of A-Z a-z 0-9 _ . -")]
    Prefix(String),
    #[error("{pattern:?} is no pattern of names: {reason}")]
    Pattern { pattern: String, reason: String },
    #[error("{variable} is named, but this worker has no such environment variable: set it")]
    Unset { variable: String },
    #[error("the name {0:?} of a header, or its value, has characters that no header may have")]
    Header(String),
    #[error("two servers have the name {0}: give each its own")]
    Twice(String),
    #[error("no MCP server of this worker has the name {name:?}; there are: {}", known.join(", "))]
    NoServer { name: String, known: Vec<String> },
}

impl ServerConfig {
    /// A server with the default options.
    ///
    /// # Errors
    /// The name cannot be used, or an address contains a secret.
    pub fn new(name: impl Into<String>, reach: Reach) -> Result<Self, ConfigError> {
        let name = name.into();
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(|b| is_word(b) && b != b'.') {
            return Err(ConfigError::Name(name));
        }
        if let Reach::Http { url, .. } = &reach {
            check_url(url)?;
        }
        Ok(Self {
            name,
            reach,
            prefix: String::new(),
            allow: Patterns::default(),
            deny: Patterns::default(),
            confirm: Patterns::default(),
            trust_hints: true,
            per_slot: false,
            timeout: Policy::ATTEMPT_TIMEOUT,
            start_timeout: START_TIMEOUT,
        })
    }

    /// A server as it is named on the command line: a command with its arguments, or an address. Its name is that of
    /// the package, the program or the host.
    ///
    /// # Errors
    /// It is neither, or contains a secret.
    pub fn of_command(text: &str) -> Result<Self, ConfigError> {
        if text.starts_with("http://") || text.starts_with("https://") {
            check_url(text)?;
            let host = text.split("://").nth(1).and_then(|rest| rest.split(['/', ':', '?']).next()).unwrap_or("server");
            let reach = Reach::Http { url: text.to_owned(), headers: Vec::new(), token: None };
            return Self::new(name_of(host), reach);
        }
        let words = shlex::split(text).filter(|words| !words.is_empty() && !text.contains("://"));
        let mut words = words.ok_or_else(|| ConfigError::NotACommand(text.to_owned()))?.into_iter();
        let program = words.next().ok_or_else(|| ConfigError::NotACommand(text.to_owned()))?;
        let arguments: Vec<String> = words.collect();
        let name = name_of(subject_of(&program, &arguments));
        Self::new(name, Reach::Program { program, arguments, environment: Vec::new(), folder: None })
    }

    /// # Errors
    /// The prefix has characters that a name of a tool may not have.
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Result<Self, ConfigError> {
        self.prefix = prefix.into();
        match self.prefix.len() <= NAME_BYTES_MAX && self.prefix.bytes().all(is_word) {
            true => Ok(self),
            false => Err(ConfigError::Prefix(self.prefix)),
        }
    }

    /// Whether the tool of this name, as the server gives it, is to be hosted.
    pub(super) fn wants(&self, tool: &str) -> bool {
        (self.allow.is_empty() || self.allow.matches(tool)) && !self.deny.matches(tool)
    }
}

/// Gives the servers names that differ: those of one name get numbers.
pub fn number_names(servers: &mut [ServerConfig]) {
    for index in 1..servers.len() {
        let base = servers[index].name.clone();
        let mut number = 1;
        while servers[..index].iter().any(|other| other.name == servers[index].name) {
            number += 1;
            servers[index].name = format!("{base}-{number}");
        }
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)
}

fn check_url(url: &str) -> Result<(), ConfigError> {
    let parsed = reqwest::Url::parse(url).map_err(|_| ConfigError::NotACommand(url.to_owned()))?;
    match parsed.username().is_empty() && parsed.password().is_none() {
        true => Ok(()),
        false => Err(ConfigError::SecretInUrl(format!("of {}", parsed.host_str().unwrap_or("a server")))),
    }
}

/// The word of a command that names the server: the package that a launcher starts, or the program itself.
fn subject_of<'a>(program: &'a str, arguments: &'a [String]) -> &'a str {
    const LAUNCHERS: [&str; 12] =
        ["npx", "bunx", "uvx", "pipx", "uv", "node", "deno", "bun", "python", "python3", "docker", "podman"];
    let program = program.rsplit('/').next().unwrap_or(program);
    let is_subject =
        |word: &&String| !word.starts_with('-') && !["run", "dlx", "exec", "tool"].contains(&word.as_str());
    match LAUNCHERS.contains(&program) {
        true => arguments.iter().find(is_subject).map_or(program, String::as_str),
        false => program,
    }
}

/// A name of a server out of that of a package or file: without scope, version and ending.
fn name_of(subject: &str) -> String {
    let last = subject.trim_end_matches('/').rsplit('/').next().unwrap_or(subject);
    let last = last.split('@').find(|part| !part.is_empty()).unwrap_or(last);
    let last = [".js", ".mjs", ".py", ".ts"].iter().find_map(|end| last.strip_suffix(end)).unwrap_or(last);
    let name: String = last.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' }).collect();
    match name.trim_matches('-') {
        "" => "server".to_owned(),
        name => name.chars().take(NAME_BYTES_MAX).collect(),
    }
}

/// Patterns of names; `*` stands for any characters.
#[derive(Debug, Clone, Default)]
pub struct Patterns(GlobSet);

impl Patterns {
    /// # Errors
    /// A pattern cannot be read.
    pub fn new<S: AsRef<str>>(patterns: &[S]) -> Result<Self, ConfigError> {
        let unfit = |pattern: &str, error: globset::Error| {
            let reason = error.kind().to_string();
            ConfigError::Pattern { pattern: pattern.to_owned(), reason }
        };
        let mut set = GlobSetBuilder::new();
        for pattern in patterns.iter().map(AsRef::as_ref) {
            set.add(Glob::new(pattern).map_err(|error| unfit(pattern, error))?);
        }
        set.build().map(Self).map_err(|error| unfit("", error))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a pattern matches the name.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_has_the_name_of_its_package_program_or_host() {
        for (command, name) in [
            ("npx -y @modelcontextprotocol/server-everything", "server-everything"),
            ("npx -y @modelcontextprotocol/server-everything@2026.8.31 stdio", "server-everything"),
            ("uvx mcp-server-git --repository /srv", "mcp-server-git"),
            ("/opt/bin/my_server --fast", "my_server"),
            ("python3 -u 'my folder/weather.py'", "weather"),
            ("https://mcp.example.com:8443/mcp", "mcp-example-com"),
        ] {
            assert_eq!(ServerConfig::of_command(command).unwrap().name, name, "{command}");
        }
    }

    #[test]
    fn what_is_no_command_and_secrets_are_refused() {
        for (text, error) in [
            ("", "is no command"),
            ("npx 'open", "is no command"),
            ("ftp://x/y", "is no command"),
            ("https://me:secret@host/mcp", "contains a user or a password"),
        ] {
            let refused = ServerConfig::of_command(text).unwrap_err().to_string();
            assert!(refused.contains(error), "{text}: {refused}");
            assert!(!refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn servers_of_one_name_get_numbers() {
        let mut servers = vec![ServerConfig::of_command("x").unwrap(); 3];
        number_names(&mut servers);
        assert_eq!(servers.iter().map(|server| server.name.as_str()).collect::<Vec<_>>(), ["x", "x-2", "x-3"]);
    }
}
