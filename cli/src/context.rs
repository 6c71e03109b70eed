//! `toolyard context`: named coordinators with the files of their credentials, so that commands need not name them.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::exit::{Exit, Failure};
use crate::json::Object;
use crate::server::Server;
use crate::terminal::Terminal;

const EXAMPLES: &str = "\
Examples:
  toolyard context set prod --url https://toolyard.example.com \\
    --key-file ~/.config/toolyard/prod.key
  toolyard context set dev --url http://127.0.0.1:7420
  toolyard context use prod
  toolyard context ls
  toolyard --use-context dev runs ls

They are in ~/.config/toolyard/contexts.toml, or below XDG_CONFIG_HOME. The
file has the paths of key files, never a key. Options and variables win over
the context. With --url or TOOLYARD_URL no context is used at all, so that its
key goes to no other coordinator.";

/// Name coordinators with their credentials, and choose the one that commands use
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List contexts; `*` marks the current one
    #[command(after_help = EXAMPLES)]
    #[command(alias = "list")]
    Ls,
    /// Make a context the current one, which commands use unless they name another
    #[command(after_help = EXAMPLES)]
    Use {
        /// The context
        name: Name,
    },
    /// Create a context, or replace it: --url, --key-file, --ca, --client-cert and --client-key are stored
    #[command(after_help = EXAMPLES)]
    Set {
        /// The context: letters, digits, `.`, `-` and `_`
        name: Name,
    },
    /// Remove a context
    #[command(after_help = EXAMPLES)]
    Rm {
        /// The context
        name: Name,
    },
    /// Show a context, or the current one
    #[command(after_help = EXAMPLES)]
    Show {
        /// The context
        name: Option<Name>,
    },
}

/// The name of a context.
#[derive(Debug, Clone)]
pub(crate) struct Name(String);

impl std::str::FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '-' | '_');
        if text.is_empty() || !text.chars().all(fits) {
            return Err("a name has letters, digits, `.`, `-` and `_`".to_owned());
        }
        Ok(Self(text.to_owned()))
    }
}

/// A coordinator and the files of the credentials for it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Context {
    pub(crate) url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_file: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ca: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_cert: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) client_key: Option<PathBuf>,
}

/// All contexts of the user.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contexts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    current: Option<String>,
    #[serde(default)]
    contexts: BTreeMap<String, Context>,
}

/// The context of this name, or the current one; `None` if there is no current one.
pub(crate) fn chosen(name: Option<&str>) -> Result<Option<Context>, Failure> {
    let Some(path) = path() else {
        return name
            .map_or(Ok(None), |_| Err(Failure::Usage("there is no home directory, where contexts are".to_owned())));
    };
    let contexts = Contexts::read(&path)?;
    match name.or(contexts.current.as_deref()) {
        Some(name) => Ok(Some(contexts.get(name)?.clone())),
        None => Ok(None),
    }
}

/// Below the directory for settings by the XDG base directory specification.
fn path() -> Option<PathBuf> {
    let of = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let config = of("XDG_CONFIG_HOME").or_else(|| Some(of("HOME")?.join(".config")))?;
    Some(config.join("toolyard/contexts.toml"))
}

impl Contexts {
    fn read(path: &Path) -> Result<Self, Failure> {
        let text = match fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(wrong(path, &error)),
        };
        toml::from_str(&text).map_err(|error| wrong(path, &error))
    }

    /// Writes the file as a whole, so that another command never reads a part of it.
    fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = toml::to_string(self).map_err(|error| wrong(path, &error))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(|error| wrong(folder, &error))?;
        let new = path.with_extension(format!("{}.new", std::process::id()));
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new);
        let written = opened.and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()));
        let placed = written.and_then(|()| fs::rename(&new, path));
        placed.map_err(|error| {
            drop(fs::remove_file(&new));
            wrong(path, &error)
        })
    }

    fn get(&self, name: &str) -> Result<&Context, Failure> {
        self.contexts.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.contexts.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "there is none".to_owned() } else { known.join(", ") };
            Failure::Usage(format!(
                "there is no context {name:?} ({known}): `toolyard context set {name} --url …` makes it"
            ))
        })
    }
}

fn wrong(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("cannot use {}: {error}", path.display()))
}

pub(crate) fn run(command: Command, door: &Server, terminal: &Terminal) -> Result<Exit, Failure> {
    let path = path().ok_or_else(|| Failure::Usage("there is no home directory for contexts: set HOME".to_owned()))?;
    let mut contexts = Contexts::read(&path)?;
    match command {
        Command::Ls => list(&contexts, terminal)?,
        Command::Show { name } => {
            let name = name.map(|Name(name)| name).or_else(|| contexts.current.clone());
            let name =
                name.ok_or_else(|| Failure::Usage("no context is current: toolyard context use NAME".to_owned()))?;
            show(&name, &contexts, terminal)?;
        }
        Command::Use { name: Name(name) } => {
            contexts.get(&name)?;
            contexts.current = Some(name.clone());
            contexts.write(&path)?;
            if std::env::var_os("TOOLYARD_URL").is_some() {
                terminal.note("TOOLYARD_URL is set, and wins over the context: unset it");
            }
            terminal.note(&format!("commands use {name}"));
        }
        Command::Set { name: Name(name) } => {
            let context = door.stored()?;
            if let Some(file) = context.key_file.as_ref().filter(|file| !file.exists()) {
                terminal.note(&format!("{} does not exist yet", file.display()));
            }
            let is_first = contexts.contexts.is_empty();
            contexts.contexts.insert(name.clone(), context);
            if is_first {
                contexts.current = Some(name.clone());
            }
            contexts.write(&path)?;
            let chosen = if contexts.current.as_ref() == Some(&name) { ", the current context" } else { "" };
            terminal.note(&format!("{name} is stored{chosen}"));
        }
        Command::Rm { name: Name(name) } => {
            contexts.get(&name)?;
            contexts.contexts.remove(&name);
            contexts.current.take_if(|current| *current == name);
            contexts.write(&path)?;
            terminal.note(&format!("{name} is removed"));
        }
    }
    Ok(Exit::Completed)
}

fn described(name: &str, contexts: &Contexts, context: &Context) -> Object {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    Object::default()
        .field("name", name)
        .field("current", contexts.current.as_deref() == Some(name))
        .field("url", &context.url)
        .maybe("key_file", path(&context.key_file))
        .maybe("ca", path(&context.ca))
        .maybe("client_cert", path(&context.client_cert))
        .maybe("client_key", path(&context.client_key))
}

fn list(contexts: &Contexts, terminal: &Terminal) -> Result<(), Failure> {
    if terminal.is_json() {
        let mut all = contexts.contexts.iter();
        return all.try_for_each(|(name, context)| terminal.object(&described(name, contexts, context)));
    }
    if contexts.contexts.is_empty() {
        terminal.note("there is no context: toolyard context set NAME --url URL makes one");
    }
    contexts.contexts.iter().try_for_each(|(name, context)| {
        let mark = if contexts.current.as_ref() == Some(name) { "*" } else { " " };
        terminal.line(&if terminal.is_names() { name.clone() } else { format!("{mark} {name}  {}", context.url) })
    })
}

fn show(name: &str, contexts: &Contexts, terminal: &Terminal) -> Result<(), Failure> {
    let context = contexts.get(name)?;
    if terminal.is_json() {
        return terminal.object(&described(name, contexts, context));
    }
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string()).unwrap_or_default();
    let rows = [
        ("name", name.to_owned()),
        ("url", context.url.clone()),
        ("key file", path(&context.key_file)),
        ("ca", path(&context.ca)),
        ("client cert", path(&context.client_cert)),
        ("client key", path(&context.client_key)),
    ];
    let mut rows = rows.iter().filter(|(_, value)| !value.is_empty());
    rows.try_for_each(|(label, value)| terminal.line(&format!("{label:12} {value}")))
}
