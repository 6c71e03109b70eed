//! A file of servers, in the format of other MCP hosts: `{"mcpServers": {"name": {"command": …}}}`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;

use super::{ConfigError, Patterns, Reach, Secret, ServerConfig, Token};

/// Bytes of the file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Servers of one worker: each is a process, or a connection that is kept.
const SERVERS_MAX: usize = 64;

/// A file of servers that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("the file of MCP servers {} cannot be read: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    #[error("the file of MCP servers {} has {bytes} bytes, at most {FILE_BYTES_MAX} are taken", path.display())]
    TooLarge { path: PathBuf, bytes: u64 },
    #[error("the file of MCP servers {} is not valid: {error}", path.display())]
    Invalid { path: PathBuf, error: serde_json::Error },
    #[error("the file of MCP servers {} names {count} servers, at most {SERVERS_MAX} are taken", path.display())]
    TooMany { path: PathBuf, count: usize },
    #[error("server {server:?} of {}: {error}", path.display())]
    Server { path: PathBuf, server: String, error: EntryError },
}

/// A server of the file that cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EntryError {
    #[error("give either command or url")]
    CommandOrUrl,
    #[error("the type {0:?} is not taken: use stdio, or http for Streamable HTTP")]
    Type(String),
    #[error("{field} has a ${{ without its name or its end: {text:?}")]
    Reference { field: String, text: String },
    #[error("{field} has to be 1 to 86400 seconds")]
    Seconds { field: &'static str },
    #[error("per_slot is for servers that are programs: a server at an address has no process here")]
    PerSlot,
    #[error(transparent)]
    Config(#[from] ConfigError),
}

#[derive(Deserialize)]
struct File {
    #[serde(rename = "mcpServers")]
    servers: BTreeMap<String, Entry>,
}

/// Fields that only other hosts know are skipped.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type", alias = "transport")]
    kind: Option<String>,
    command: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    cwd: Option<PathBuf>,
    #[serde(alias = "serverUrl")]
    url: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    disabled: bool,
    #[serde(default)]
    toolyard: Ours,
}

/// What other hosts do not have.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Ours {
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    deny: Vec<String>,
    #[serde(default)]
    confirm: Vec<String>,
    prefix: Option<String>,
    #[serde(default)]
    per_slot: bool,
    timeout: Option<u64>,
    start_timeout: Option<u64>,
    trust_hints: Option<bool>,
    token_file: Option<PathBuf>,
    token_env: Option<String>,
}

/// Reads a file of servers. References to variables, `${NAME}` and `${NAME:-default}`, are replaced by what `variable`
/// gives for them.
///
/// # Errors
/// The file cannot be read, or an entry cannot be used.
pub fn read(path: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<Vec<ServerConfig>, FileError> {
    let failed = |error| FileError::Read { path: path.to_owned(), error };
    let bytes = std::fs::metadata(path).map_err(failed)?.len();
    if bytes > FILE_BYTES_MAX {
        return Err(FileError::TooLarge { path: path.to_owned(), bytes });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let file: File =
        serde_json::from_str(&text).map_err(|error| FileError::Invalid { path: path.to_owned(), error })?;
    if file.servers.len() > SERVERS_MAX {
        return Err(FileError::TooMany { path: path.to_owned(), count: file.servers.len() });
    }
    let enabled = file.servers.into_iter().filter(|(_, entry)| !entry.disabled);
    let read = enabled.map(|(name, entry)| {
        let at = |error| FileError::Server { path: path.to_owned(), server: name.clone(), error };
        entry.read(&name, &variable).map_err(at)
    });
    read.collect()
}

impl Entry {
    fn read(self, name: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<ServerConfig, EntryError> {
        let text = |field: &str, text: &str| expand(field, text, variable);
        let texts = |field: &str, map: BTreeMap<String, String>| {
            let pairs = map.into_iter();
            let secret = |(key, value): (String, String)| {
                let value = Secret::new(text(&format!("{field}.{key}"), &value)?);
                Ok::<_, EntryError>((key, value))
            };
            pairs.map(secret).collect::<Result<Vec<_>, _>>()
        };
        let kind = self.kind.as_deref().map(str::to_ascii_lowercase);
        let is_http = match kind.as_deref() {
            None => self.url.is_some(),
            Some("stdio") => false,
            Some("http" | "streamable-http" | "streamablehttp" | "streamable_http") => true,
            Some(other) => return Err(EntryError::Type(other.to_owned())),
        };
        let reach = match (self.command, self.url) {
            (Some(command), None) if !is_http => Reach::Program {
                program: text("command", &command)?,
                arguments: self.args.iter().map(|arg| text("args", arg)).collect::<Result<_, _>>()?,
                environment: texts("env", self.env)?,
                folder: self.cwd,
            },
            (None, Some(url)) if is_http => {
                let token = self.toolyard.token_file.map(Token::File);
                let token = token.or(self.toolyard.token_env.map(Token::Variable));
                Reach::Http { url: text("url", &url)?, headers: texts("headers", self.headers)?, token }
            }
            _ => return Err(EntryError::CommandOrUrl),
        };
        if self.toolyard.per_slot && is_http {
            return Err(EntryError::PerSlot);
        }
        let prefix = self.toolyard.prefix.unwrap_or_else(|| format!("{name}__"));
        let config = ServerConfig::new(name, reach)?.with_prefix(prefix)?;
        Ok(ServerConfig {
            allow: Patterns::new(&self.toolyard.allow)?,
            deny: Patterns::new(&self.toolyard.deny)?,
            confirm: Patterns::new(&self.toolyard.confirm)?,
            trust_hints: self.toolyard.trust_hints.unwrap_or(true),
            per_slot: self.toolyard.per_slot,
            timeout: seconds("timeout", self.toolyard.timeout, config.timeout)?,
            start_timeout: seconds("start_timeout", self.toolyard.start_timeout, config.start_timeout)?,
            ..config
        })
    }
}

fn seconds(field: &'static str, given: Option<u64>, otherwise: Duration) -> Result<Duration, EntryError> {
    match given {
        None => Ok(otherwise),
        Some(seconds @ 1..=86_400) => Ok(Duration::from_secs(seconds)),
        Some(_) => Err(EntryError::Seconds { field }),
    }
}

/// Replaces the references to variables in a text.
fn expand(field: &str, text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, EntryError> {
    let (mut expanded, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("${") {
        let unfit = || EntryError::Reference { field: field.to_owned(), text: text.chars().take(100).collect() };
        let (reference, behind) = after.split_once('}').ok_or_else(unfit)?;
        let (name, default) = match reference.split_once(":-") {
            Some((name, default)) => (name, Some(default.to_owned())),
            None => (reference, None),
        };
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
            return Err(unfit());
        }
        let value = variable(name).or(default);
        expanded.push_str(before);
        expanded.push_str(&value.ok_or_else(|| ConfigError::Unset { variable: name.to_owned() })?);
        rest = behind;
    }
    expanded.push_str(rest);
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> Result<Vec<ServerConfig>, FileError> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        read(file.path(), |name| (name == "KEY").then(|| "s3cret".to_owned()))
    }

    #[test]
    fn a_file_of_another_host_is_read_and_its_secrets_are_not_shown() {
        let servers = read_text(
            r#"{"mcpServers": {
                "git": {"command": "uvx", "args": ["mcp-server-git"], "env": {"TOKEN": "${KEY}", "A": "${B:-c}"}},
                "off": {"command": "x", "disabled": true},
                "web": {"type": "http", "url": "https://h/mcp", "headers": {"Authorization": "Bearer ${KEY}"},
                        "autoApprove": [], "toolyard": {"prefix": "", "deny": ["x*"], "timeout": 7}}}}"#,
        )
        .unwrap();
        let [git, web] = &servers[..] else { panic!("{servers:?}") };
        assert_eq!((git.prefix.as_str(), web.prefix.as_str()), ("git__", ""));
        assert!(!web.wants("xy") && web.wants("y"));
        assert_eq!(web.timeout, Duration::from_secs(7));
        let Reach::Program { environment, .. } = &git.reach else { panic!("{git:?}") };
        assert_eq!(environment[0].1.reveal(), "c");
        assert_eq!(environment[1].1.reveal(), "s3cret");
        assert!(!format!("{servers:?}").contains("s3cret"));
    }

    #[test]
    fn an_entry_that_cannot_be_used_is_refused_with_its_name_and_the_reason() {
        for (entry, reason) in [
            (r#"{"command": "x", "url": "https://h"}"#, "give either command or url"),
            ("{}", "give either command or url"),
            (r#"{"type": "sse", "url": "https://h"}"#, "\"sse\" is not taken"),
            (r#"{"command": "x", "env": {"A": "${NONE}"}}"#, "NONE is named"),
            (r#"{"command": "x", "args": ["${"]}"#, "args has a ${"),
            (r#"{"url": "https://me:pw@h"}"#, "contains a user or a password"),
            (r#"{"url": "https://h", "toolyard": {"per_slot": true}}"#, "per_slot is for"),
            (r#"{"command": "x", "toolyard": {"timeout": 0}}"#, "timeout has to be"),
            (r#"{"command": "x", "toolyard": {"allow": ["[a"]}}"#, "is no pattern"),
        ] {
            let error = read_text(&format!(r#"{{"mcpServers": {{"bad": {entry}}}}}"#)).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("\"bad\""), "{entry}: {error}");
        }
        for text in ["", "{}", r#"{"mcpServers": {"a": {"command": "x", "toolyard": {"typo": 1}}}}"#] {
            assert!(matches!(read_text(text), Err(FileError::Invalid { .. })), "{text}");
        }
    }
}
