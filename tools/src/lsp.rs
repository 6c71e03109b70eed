//! Asks language servers about code: definitions, references, types, symbols, diagnostics. The servers are real ones,
//! started when they are first needed and kept for later calls.

mod client;
mod place;
mod server;
mod servers;
mod shape;
mod table;
mod wire;

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use self::client::NoAnswer;
use self::place::{Places, uri};
use self::server::Server;
use self::servers::Servers;
pub use self::table::LanguageServer;
use self::table::known;
use super::inside::Inside;
use super::lines::on_thread;
use super::root::Root;
use super::running::find;
use super::scope;
use super::settings::ToolSettings;
use sandbox::{Sandbox, User};
use toolyard_tool::{About, Context, Output, Tool, ToolError};

/// Results that are shown by default, and at most.
const LIMIT: u32 = 100;
const LIMIT_MAX: u32 = 1_000;
/// Bytes of a file that a server is told.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How long a server may take to answer: references in a large workspace take long.
const ANSWER_TIME: Duration = Duration::from_secs(60);
/// How long to wait for diagnostics, and for how long no new ones must come.
const DIAGNOSTICS_TIME: Duration = Duration::from_secs(30);
const DIAGNOSTICS_QUIET: Duration = Duration::from_millis(500);

/// Asks language servers about files below a root.
#[derive(Debug)]
pub struct Lsp {
    files: Files,
    servers: Servers,
    table: Vec<LanguageServer>,
    allow_project_code: bool,
}

/// A question about code.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// What to ask
    action: Topic,
    /// The file, relative to the root. For workspace_symbols: a file or folder of the project
    path: String,
    /// For definition, references, hover: the line, counted from 1
    #[schemars(range(min = 1))]
    line: Option<u32>,
    /// For definition, references, hover: a name in that line; its first occurrence counts
    symbol: Option<String>,
    /// Instead of symbol: the column, counted from 1 in characters
    #[schemars(range(min = 1))]
    column: Option<u32>,
    /// For workspace_symbols: a part of the name
    #[serde(default)]
    query: String,
    /// How many results to show at most
    #[serde(default = "limit")]
    #[schemars(range(min = 1, max = LIMIT_MAX))]
    limit: u32,
}

/// What to ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Topic {
    /// Where something is defined.
    Definition,
    /// Where it is used.
    References,
    /// Its type and documentation.
    Hover,
    /// What a file defines.
    DocumentSymbols,
    /// What the project defines.
    WorkspaceSymbols,
    /// What is wrong with a file.
    Diagnostics,
}

fn limit() -> u32 {
    LIMIT
}

impl Lsp {
    /// Asks about files below `root`, with the known servers and those of the operator, which run in `sandbox`.
    #[must_use]
    pub fn new(root: Root, sandbox: Sandbox, settings: &ToolSettings) -> Self {
        let own = &settings.language_servers;
        let known = known().into_iter().filter(|server| !own.iter().any(|other| other.name == server.name));
        // The operator's first: of those for the same files the first one counts.
        let table = own.iter().cloned().chain(known).collect();
        let user = sandbox.settings().user;
        let (files, servers) = (Files { root, user }, Servers::new(sandbox));
        Self { files, servers, table, allow_project_code: settings.allow_project_code }
    }

    /// The first server for a file that can be started. For a folder, the one for the first file that has one.
    fn server(&self, path: &Path) -> Result<&LanguageServer, ToolError> {
        let fits = |server: &&LanguageServer| match path.is_dir() {
            true => server.roots.iter().any(|mark| path.join(mark).exists()),
            false => server.language(path).is_some(),
        };
        let mut reasons = Vec::new();
        for server in self.table.iter().filter(fits) {
            let name = &server.name;
            if find(&server.program).is_none() {
                let how = server.install.as_deref().map(|how| format!(" ({how})")).unwrap_or_default();
                reasons.push(format!("{name} is not installed on this worker{how}"));
            } else if server.runs_project_code && !self.allow_project_code {
                let why = "runs code of the project, which this worker does not allow (allow_project_code)";
                reasons.push(format!("{name} {why}"));
            } else {
                return Ok(server);
            }
        }
        if reasons.is_empty() {
            return Err(ToolError::bad_input("/path", "no language server is known for it: give a file of code"));
        }
        Err(ToolError::needs(format!("a language server for this file: {}", reasons.join("; "))))
    }

    async fn ask(&self, ask: &Asked<'_>, server: &Arc<Server>) -> Result<Value, NoAnswer> {
        let (context, query, file) = (ask.context, ask.query, uri(&ask.path));
        let client = &server.client;
        let mut shown = 0;
        if let Some(text) = &ask.text {
            let language = ask.of.language(&ask.path).unwrap_or("plaintext");
            shown = server.show(&ask.path, language, Arc::clone(text), &self.files).await?;
        }
        server.settle(context).await?;
        let encoding = *server.encoding.lock().unwrap_or_else(PoisonError::into_inner);
        let mut places = Places::new(&self.files.root, encoding, |path: &Path| self.files.text(path));
        let limit = query.limit as usize;
        let document = json!({ "uri": file });
        let mut params = json!({ "textDocument": document });
        if let Some((line, column)) = ask.position {
            let text = ask.text.as_deref().and_then(|text| text.lines().nth(line)).unwrap_or_default();
            params["position"] = json!({ "line": line, "character": encoding.position(text, column) });
        }
        let mut answer = match query.action {
            Topic::Definition => {
                let found = client.request(context, "textDocument/definition", params, ANSWER_TIME).await?;
                shape::locations(&mut places, &found, limit)
            }
            Topic::References => {
                params["context"] = json!({ "includeDeclaration": true });
                let found = client.request(context, "textDocument/references", params, ANSWER_TIME).await?;
                shape::locations(&mut places, &found, limit)
            }
            Topic::Hover => {
                let found = client.request(context, "textDocument/hover", params, ANSWER_TIME).await?;
                shape::hover(&found)
            }
            Topic::DocumentSymbols => {
                let found = client.request(context, "textDocument/documentSymbol", params, ANSWER_TIME).await?;
                shape::symbols(&mut places, &file, &found, limit)
            }
            Topic::WorkspaceSymbols => {
                let params = json!({ "query": query.query });
                let found = client.request(context, "workspace/symbol", params, ANSWER_TIME).await?;
                shape::symbols(&mut places, &file, &found, limit)
            }
            Topic::Diagnostics => {
                let found = diagnostics(context, server, &file, params, shown).await?;
                shape::diagnostics(&mut places, &file, found.as_ref(), limit)
            }
        };
        answer["server"] = json!(ask.of.name);
        Ok(answer)
    }
}

/// The files that the tool may read.
#[derive(Debug, Clone)]
struct Files {
    root: Root,
    user: Option<User>,
}

impl Files {
    async fn resolve(&self, path: &str) -> Result<PathBuf, ToolError> {
        let (root, path) = (self.root.clone(), path.to_owned());
        on_thread(move || root.resolve(Some(&path)).map_err(|error| error.at("/path"))).await
    }

    /// The text of a file, read on a thread that may block.
    async fn read(&self, path: &Path) -> Option<Arc<str>> {
        let (files, path) = (self.clone(), path.to_owned());
        on_thread(move || Ok(files.text(&path))).await.ok().flatten()
    }

    fn text(&self, path: &Path) -> Option<Arc<str>> {
        let (content, _) = Inside::open(&self.root, path, self.user).ok()?.read(FILE_BYTES_MAX).ok()?;
        let is_fine = content.len() as u64 <= FILE_BYTES_MAX;
        String::from_utf8(content).ok().filter(|_| is_fine).map(Into::into)
    }
}

/// What a server has to say about a file: at once if it can be asked, or when it has reported.
async fn diagnostics(
    context: &Context,
    server: &Server,
    file: &str,
    params: Value,
    shown: u64,
) -> Result<Option<Value>, NoAnswer> {
    if server.can("diagnosticProvider") {
        let mut found = server.client.request(context, "textDocument/diagnostic", params, ANSWER_TIME).await?;
        return Ok(Some(found["items"].take()));
    }
    tokio::select! {
        found = server.client.diagnostics(file, shown, DIAGNOSTICS_QUIET, DIAGNOSTICS_TIME) => Ok(found),
        () = context.cancelled() => Err(NoAnswer::Cancelled),
    }
}

/// A question whose arguments were checked.
struct Asked<'a> {
    context: &'a Context,
    query: &'a Query,
    of: &'a LanguageServer,
    path: PathBuf,
    /// The content of the file; none for a folder.
    text: Option<Arc<str>>,
    /// Line and column, counted from 0.
    position: Option<(usize, usize)>,
}

impl Tool for Lsp {
    const NAME: &'static str = "lsp";
    type Input = Query;

    fn about(&self) -> About {
        let text = "Asks a language server about code: definition, references, hover (type and documentation), \
                    document_symbols, workspace_symbols, diagnostics. Name the place by line and symbol. Lines and \
                    columns are counted from 1. The first call for a project starts the server, which takes some \
                    seconds.";
        let about = About::new(text).read_only().uses_machine().idle_timeout(None);
        about.category("development").side_effect_scope(scope::NONE)
    }

    async fn call(&self, context: &Context, query: Query) -> Result<Output, ToolError> {
        let path = self.files.resolve(&query.path).await?;
        if path.is_dir() && query.action != Topic::WorkspaceSymbols {
            return Err(ToolError::bad_input("/path", format!("{:?} is a folder: give a file", query.path)));
        }
        let of = self.server(&path)?;
        let text = match path.is_dir() {
            true => None,
            false => Some(self.files.read(&path).await.ok_or_else(|| {
                let mib = FILE_BYTES_MAX / 1024 / 1024;
                let message = format!("{:?} is no UTF-8 text of at most {mib} MiB that can be read", query.path);
                ToolError::bad_input("/path", message)
            })?),
        };
        let position = match query.action {
            Topic::Definition | Topic::References | Topic::Hover => {
                Some(position(&query, text.as_deref().unwrap_or_default())?)
            }
            Topic::DocumentSymbols | Topic::WorkspaceSymbols | Topic::Diagnostics => None,
        };
        let workspace = of.workspace(&self.files.root, &path);
        let asked = Asked { context, query: &query, of, path, text, position };
        // A server that ended meanwhile is started once more.
        let (server, _using) = self.servers.get(context, of, &workspace).await?;
        match self.ask(&asked, &server).await {
            Err(NoAnswer::Over) => {}
            answer => return Output::json(&answer?),
        }
        let (server, _using) = self.servers.get(context, of, &workspace).await?;
        Output::json(&self.ask(&asked, &server).await.map_err(|why| server.explain(why, of))?)
    }
}

/// The line and the column, counted from 0.
fn position(query: &Query, text: &str) -> Result<(usize, usize), ToolError> {
    let Some(number) = query.line else {
        return Err(ToolError::bad_input("/line", "it is missing: give the line, and a symbol in it"));
    };
    let line = number as usize - 1;
    let Some(found) = text.lines().nth(line) else {
        let count = text.lines().count();
        return Err(ToolError::bad_input("/line", format!("the file has only {count} lines")));
    };
    match (&query.symbol, query.column) {
        (Some(symbol), None) => match occurrence(found, symbol) {
            Some(at) => Ok((line, found[..at].chars().count())),
            None => Err(ToolError::bad_input("/symbol", format!("line {number} has no {symbol:?}: it is {found:?}"))),
        },
        (None, Some(column)) => Ok((line, column as usize - 1)),
        (Some(_), Some(_)) => Err(ToolError::bad_input("/column", "give symbol or column, not both")),
        (None, None) => Err(ToolError::bad_input("/symbol", "it is missing: name something in the line")),
    }
}

/// Where a name stands in a line, best as a whole word.
fn occurrence(line: &str, symbol: &str) -> Option<usize> {
    let is_word = |char: Option<char>| char.is_some_and(|char| char.is_alphanumeric() || char == '_');
    let is_whole =
        |at: &usize| !is_word(line[..*at].chars().next_back()) && !is_word(line[*at + symbol.len()..].chars().next());
    if symbol.is_empty() {
        return None;
    }
    let all = || line.match_indices(symbol).map(|(at, _)| at);
    all().find(is_whole).or_else(|| all().next())
}
