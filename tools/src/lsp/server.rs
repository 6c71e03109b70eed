//! A language server that runs: its start, the files that it has open, and its end.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::Files;
use super::client::{Client, NoAnswer, WRITES_MAX};
use super::place::{Encoding, uri};
use super::table::LanguageServer;
use crate::running::TERM_GRACE;
use sandbox::{Guarded, Report, Request, Sandbox};
use toolyard_tool::{Context, Left, ToolError};

/// How long a server may take to start: some read a whole project first.
const START_TIME: Duration = Duration::from_secs(90);
/// How long a server is kept without a call.
const IDLE: Duration = Duration::from_secs(10 * 60);
/// Files that a server has open; the one that was used the longest ago is closed first.
const OPEN_MAX: usize = 50;
/// Bytes of a server's stderr that are kept: its latest.
const STDERR_BYTES_MAX: usize = 4 * 1024;
/// How long indexing may take to begin, and to end.
const INDEX_FIRST: Duration = Duration::from_secs(1);
const INDEX_TIME: Duration = Duration::from_secs(120);

/// A server that runs.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) client: Client,
    pub(super) encoding: Mutex<Encoding>,
    /// What it can do.
    pub(super) abilities: Mutex<Value>,
    open: tokio::sync::Mutex<HashMap<PathBuf, Open>>,
    settled: tokio::sync::OnceCell<()>,
    used: Mutex<Instant>,
    calls: AtomicUsize,
    /// Why it ended, and its latest words.
    end: Mutex<(String, String)>,
}

/// A file that the server has open.
#[derive(Debug)]
struct Open {
    version: u64,
    text: Arc<str>,
    used: Instant,
    /// The number of the report before it was changed.
    news: u64,
}

/// Keeps a server from being idle.
pub(super) struct Use(Arc<Server>);

impl Drop for Use {
    fn drop(&mut self) {
        *self.0.used.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    /// Starts a server. The second value runs it until it ends.
    pub(super) async fn start(
        sandbox: &Sandbox,
        of: &LanguageServer,
        workspace: &Path,
    ) -> Result<(Arc<Self>, impl Future<Output = ()> + Send + use<>), ToolError> {
        let mut request = Request::run(&of.program, of.arguments.iter().cloned(), workspace).piped();
        request.environment.clone_from(&of.environment);
        let program = sandbox.start(request, Left::default()).await?;
        let (writes, written) = mpsc::channel(WRITES_MAX);
        let server = Arc::new(Self {
            client: Client::new(writes, of.settings.clone()),
            encoding: Mutex::new(Encoding::Utf16),
            abilities: Mutex::default(),
            open: tokio::sync::Mutex::default(),
            settled: tokio::sync::OnceCell::new(),
            used: Mutex::new(Instant::now()),
            calls: AtomicUsize::new(0),
            end: Mutex::default(),
        });
        let life = live(Arc::clone(&server), program, written);
        Ok((server, life))
    }

    /// The first messages of a conversation.
    pub(super) async fn initialize(
        &self,
        context: &Context,
        of: &LanguageServer,
        workspace: &Path,
    ) -> Result<(), ToolError> {
        let folder = uri(workspace);
        let params = json!({
            // Its guard ends it with the worker, so it need not watch a process.
            "processId": null,
            "rootUri": folder,
            "workspaceFolders": [{ "uri": folder, "name": "workspace" }],
            "initializationOptions": of.options,
            "capabilities": {
                "general": { "positionEncodings": ["utf-8", "utf-16"] },
                "window": { "workDoneProgress": true },
                "workspace": {
                    "configuration": true,
                    "workspaceFolders": true,
                    "symbol": {},
                    "didChangeWatchedFiles": { "dynamicRegistration": true },
                },
                "textDocument": {
                    "synchronization": { "dynamicRegistration": false },
                    "definition": { "linkSupport": true },
                    "references": {},
                    "hover": { "contentFormat": ["markdown", "plaintext"] },
                    "documentSymbol": { "hierarchicalDocumentSymbolSupport": true },
                    "publishDiagnostics": { "versionSupport": false },
                },
            },
        });
        let ready = self.client.request(context, "initialize", params, START_TIME).await;
        let mut ready = ready.map_err(|why| self.explain(why, of))?;
        let encoding = match ready["capabilities"]["positionEncoding"].as_str() {
            Some("utf-8") => Encoding::Utf8,
            _ => Encoding::Utf16,
        };
        *self.encoding.lock().unwrap_or_else(PoisonError::into_inner) = encoding;
        *self.abilities.lock().unwrap_or_else(PoisonError::into_inner) = ready["capabilities"].take();
        Ok(self.client.notify("initialized", json!({})).await?)
    }

    /// Waits once until the server has read the project: many begin when the first file is opened, and answer before
    /// without it. A call that is cancelled meanwhile leaves that to the next.
    pub(super) async fn settle(&self, context: &Context) -> Result<(), NoAnswer> {
        tokio::select! {
            biased;
            () = context.cancelled() => Err(NoAnswer::Cancelled),
            _ = self.settled.get_or_init(|| self.client.settled(INDEX_FIRST, INDEX_TIME)) => Ok(()),
        }
    }

    /// The error of a request, with the reason if the server has ended.
    pub(super) fn explain(&self, why: NoAnswer, of: &LanguageServer) -> ToolError {
        if !matches!(why, NoAnswer::Over) {
            return why.into();
        }
        let (reason, said) = self.end.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let said = if said.is_empty() { String::new() } else { format!("; it wrote: {said}") };
        ToolError::retryable(format!("the language server {} ended: {reason}{said}", of.name))
    }

    pub(super) fn is_over(&self) -> bool {
        self.client.over.is_cancelled()
    }

    /// Since when no call has used it; `None` while one does.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        (self.calls.load(Ordering::Relaxed) == 0).then_some(used)
    }

    pub(super) fn take(self: &Arc<Self>) -> Use {
        self.calls.fetch_add(1, Ordering::Relaxed);
        Use(Arc::clone(self))
    }

    pub(super) fn can(&self, ability: &str) -> bool {
        let abilities = self.abilities.lock().unwrap_or_else(PoisonError::into_inner);
        !matches!(abilities[ability], Value::Null | Value::Bool(false))
    }

    /// Tells the server the content of a file, and what has changed in the others that it has open. Returns the number
    /// of the report after which diagnostics are about this content.
    pub(super) async fn show(
        &self,
        file: &Path,
        language: &str,
        text: Arc<str>,
        files: &Files,
    ) -> Result<u64, NoAnswer> {
        let mut open = self.open.lock().await;
        let others: Vec<PathBuf> = open.keys().filter(|other| *other != file).cloned().collect();
        for other in others {
            match files.read(&other).await {
                Some(now) => self.change(&other, &mut open, now).await?,
                None => self.close(&other, &mut open).await?,
            }
        }
        if open.contains_key(file) {
            self.change(file, &mut open, text).await?;
        } else {
            let news = self.client.now();
            let item = json!({ "uri": uri(file), "languageId": language, "version": 1, "text": &*text });
            self.client.notify("textDocument/didOpen", json!({ "textDocument": item })).await?;
            open.insert(file.to_owned(), Open { version: 1, text, used: Instant::now(), news });
        }
        while open.len() > OPEN_MAX {
            let oldest = open.iter().min_by_key(|(_, open)| open.used).map(|(file, _)| file.clone());
            let Some(oldest) = oldest else { break };
            self.close(&oldest, &mut open).await?;
        }
        let opened = open.get_mut(file).ok_or(NoAnswer::Over)?;
        opened.used = Instant::now();
        Ok(opened.news)
    }

    async fn change(&self, file: &Path, open: &mut HashMap<PathBuf, Open>, text: Arc<str>) -> Result<(), NoAnswer> {
        let Some(opened) = open.get_mut(file).filter(|opened| opened.text != text) else { return Ok(()) };
        (opened.version, opened.news) = (opened.version + 1, self.client.now());
        opened.text = text;
        let document = json!({ "uri": uri(file), "version": opened.version });
        let changes = json!([{ "text": &*opened.text }]);
        let params = json!({ "textDocument": document, "contentChanges": changes });
        self.client.notify("textDocument/didChange", params).await?;
        self.client.notify("textDocument/didSave", json!({ "textDocument": { "uri": uri(file) } })).await
    }

    async fn close(&self, file: &Path, open: &mut HashMap<PathBuf, Open>) -> Result<(), NoAnswer> {
        open.remove(file);
        self.client.notify("textDocument/didClose", json!({ "textDocument": { "uri": uri(file) } })).await
    }
}

/// The life of a server.
async fn live(server: Arc<Server>, mut program: Guarded, mut written: mpsc::Receiver<Vec<u8>>) {
    let (stdout, stderr) = program.pipes();
    let stdin = program.stdin();
    let said = Mutex::new(Vec::new());
    let reads = async {
        match stdout {
            Some(pipe) => server.client.listen(BufReader::new(pipe)).await,
            None => "it has no pipes".to_owned(),
        }
    };
    let writes = async {
        let Some(mut stdin) = stdin else { return std::future::pending().await };
        while let Some(bytes) = written.recv().await {
            if stdin.write_all(&bytes).await.is_err() {
                break;
            }
        }
        // The end of its output says more.
        std::future::pending::<()>().await;
    };
    let drains = async {
        let mut buffer = vec![0; STDERR_BYTES_MAX];
        if let Some(mut pipe) = stderr {
            while let Ok(count @ 1..) = pipe.read(&mut buffer).await {
                let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
                said.extend_from_slice(&buffer[..count]);
                let over = said.len().saturating_sub(STDERR_BYTES_MAX);
                said.drain(..over);
            }
        }
        std::future::pending::<()>().await;
    };
    let ends = async {
        loop {
            match program.report().await {
                Some(Report::Failed(why)) => return format!("it cannot be started: {why}"),
                // What it wrote before is still read.
                Some(Report::Exited(_)) => {}
                Some(Report::Gone | Report::PerhapsGone) | None => return "it ended".to_owned(),
            }
        }
    };
    let why = tokio::select! {
        why = reads => why,
        why = ends => why,
        () = writes => String::new(),
        () = drains => String::new(),
        () = idle(&server) => "it was idle".to_owned(),
        () = server.client.over.cancelled() => "it was ended".to_owned(),
    };
    let said = String::from_utf8_lossy(&said.into_inner().unwrap_or_else(PoisonError::into_inner)).trim().to_owned();
    *server.end.lock().unwrap_or_else(PoisonError::into_inner) = (why, said);
    server.client.end();
    program.stop(TERM_GRACE).await;
}

/// Resolves when no call has used the server for long.
async fn idle(server: &Server) {
    loop {
        let since = server.idle_since().unwrap_or_else(Instant::now);
        if since.elapsed() >= IDLE {
            return;
        }
        sleep_until(since + IDLE).await;
    }
}
