//! Connects to a server: starts its program in the sandbox, or opens its address.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use reqwest::redirect;
use rmcp::RoleClient;
use rmcp::model::ProtocolVersion;
use rmcp::service::{ClientInitializeError, ClientLifecycleMode, Peer, serve_client_with_lifecycle_and_ct};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::transport::{IntoTransport, StreamableHttpClientTransport};
use sandbox::{Exit, Guarded, Level, Report, Request, Sandbox, StartError, TemporaryFolder};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use toolyard_tool::Left;

use super::client::Client;
use super::config::{ConfigError, Reach, Secret, Token};
use super::lines::Lines;

/// Bytes of one message of a server. With images in base64 these are 12 MB of data.
pub(super) const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// How long the connection to an address may take.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// How long a server may take to end after its standard input was closed and SIGTERM was sent.
const STOP_GRACE: Duration = Duration::from_secs(2);
/// How long the end of a connection may take.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);
/// Redirects of one request.
const REDIRECTS_MAX: usize = 10;
/// Lines of a server's standard error that are kept to explain its end, and the bytes of each.
const ERROR_LINES_MAX: usize = 8;
const ERROR_LINE_BYTES_MAX: usize = 500;

/// What the programs of servers are started with.
#[derive(Debug, Clone)]
pub struct Programs {
    sandbox: Sandbox,
    /// Their folder, unless they have their own.
    folder: PathBuf,
    /// That folder, if it is removed with this.
    _temporary: Option<Arc<TemporaryFolder>>,
    /// What their own folders are relative to.
    base: PathBuf,
    /// Their `HOME`, unless it is set for them; `None`: the one that the sandbox gives.
    home: Option<Arc<TemporaryFolder>>,
}

impl Programs {
    /// Programs that are started by `sandbox`, in `folder` unless they have their own. If they run as another user than
    /// the worker and are not confined, they get a new home folder, which is deleted with this. The home of a confined
    /// program is its temporary folder, because it can write no other.
    ///
    /// # Errors
    /// The home folder cannot be made.
    pub fn new(sandbox: Sandbox, folder: PathBuf) -> io::Result<Self> {
        Self::make(sandbox, folder.clone(), folder, None)
    }

    /// As [`Self::new`], in a new folder, which is deleted with this: the folder in which the worker was started is not
    /// for programs to change. Their own folders are relative to that one.
    ///
    /// # Errors
    /// The folders cannot be made, or the worker has none.
    pub fn without_root(sandbox: Sandbox) -> io::Result<Self> {
        let temporary = TemporaryFolder::new("toolyard-mcp-", sandbox.settings().user)?;
        Self::make(sandbox, std::env::current_dir()?, temporary.path().to_owned(), Some(Arc::new(temporary)))
    }

    fn make(
        sandbox: Sandbox,
        base: PathBuf,
        folder: PathBuf,
        temporary: Option<Arc<TemporaryFolder>>,
    ) -> io::Result<Self> {
        let user = sandbox.settings().user;
        let home = user.filter(|_| sandbox.level() == Level::None);
        let home = home.map(|_| TemporaryFolder::new("toolyard-mcp-", user).map(Arc::new)).transpose()?;
        Ok(Self { sandbox, folder, _temporary: temporary, base, home })
    }
}

/// A server cannot be connected.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("its program cannot be started: {0}")]
    Start(#[from] StartError),
    #[error("its program has no pipes")]
    NoPipes,
    #[error("no program can be started here: servers that are programs need a sandbox")]
    NoPrograms,
    #[error(transparent)]
    Token(#[from] super::config::TokenError),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("the client for its address cannot be made: {0}")]
    Client(reqwest::Error),
    #[error("TLS cannot be used: {0}")]
    Tls(#[from] rustls::Error),
    #[error("{0}")]
    Protocol(Box<ClientInitializeError>),
    #[error("{error}{}", ended(.how))]
    Ended { error: Box<ClientInitializeError>, how: End },
}

fn ended(how: &End) -> String {
    if how.is_empty() { String::new() } else { format!("; {how}") }
}

/// How a connection ended. As text it is for the log.
#[derive(Debug, Clone, Default)]
pub(super) struct End {
    /// How the program ended; empty if that is not known.
    pub(super) status: String,
    /// What it wrote last to its standard error, which may be a secret.
    said: String,
}

impl End {
    pub(super) fn of(status: impl Into<String>) -> Self {
        Self { status: status.into(), said: String::new() }
    }

    fn is_empty(&self) -> bool {
        self.status.is_empty() && self.said.is_empty()
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.status.as_str(), self.said.as_str()) {
            (status, "") => f.write_str(status),
            ("", said) => write!(f, "it wrote last: {said}"),
            (status, said) => write!(f, "{status}; it wrote last: {said}"),
        }
    }
}

impl ConnectError {
    /// How the program ended, for callers.
    pub(super) fn status(&self) -> &str {
        match self {
            Self::Ended { how, .. } => &how.status,
            Self::Start(_)
            | Self::NoPipes
            | Self::NoPrograms
            | Self::Token(_)
            | Self::Config(_)
            | Self::Client(_)
            | Self::Tls(_)
            | Self::Protocol(_) => "",
        }
    }
}

/// A connection and what has to be kept for it.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) peer: Peer<RoleClient>,
    /// Ends the connection.
    stop: CancellationToken,
    /// One task, which ends when the connection has.
    service: JoinSet<()>,
    process: Option<Process>,
}

/// The program of a server.
#[derive(Debug)]
struct Process {
    guarded: Guarded,
    /// The last lines of its standard error.
    said: Arc<Mutex<VecDeque<String>>>,
    /// Reads what it writes to standard error. Ends with this.
    reader: JoinSet<()>,
}

/// Both eras: `server/discover` first, and `initialize` if the server does not know it.
fn lifecycle() -> ClientLifecycleMode {
    ClientLifecycleMode::Auto {
        preferred_versions: vec![ProtocolVersion::V_2026_07_28],
        legacy_version: Some(ProtocolVersion::LATEST_WITH_INITIALIZE),
    }
}

pub(super) async fn connect(
    reach: &Reach,
    programs: Option<&Programs>,
    client: Client,
) -> Result<Connected, ConnectError> {
    match reach {
        Reach::Program { .. } => program(reach, programs.ok_or(ConnectError::NoPrograms)?, client).await,
        Reach::Http { url, headers, token } => {
            let transport = address(url, headers, token.as_ref())?;
            Connected::over(transport, client).await.map_err(ConnectError::Protocol)
        }
    }
}

async fn program(reach: &Reach, programs: &Programs, client: Client) -> Result<Connected, ConnectError> {
    let Reach::Program { program, arguments, environment, folder } = reach else {
        return Err(ConnectError::NoPrograms);
    };
    let folder = folder.as_ref().map_or_else(|| programs.folder.clone(), |own| programs.base.join(own));
    let mut request = Request::run(program, arguments.iter().cloned(), folder).piped();
    if let Some(home) = &programs.home {
        request = request.with("HOME", home.path().to_string_lossy());
    }
    for (name, value) in environment {
        request = request.with(name, value.reveal());
    }
    let mut guarded = programs.sandbox.start(request, Left::default()).await?;
    let (Some(stdin), (Some(stdout), Some(stderr))) = (guarded.stdin(), guarded.pipes()) else {
        return Err(ConnectError::NoPipes);
    };
    let said = Arc::new(Mutex::new(VecDeque::new()));
    let mut reader = JoinSet::new();
    reader.spawn(read_errors(stderr, Arc::clone(&client.server), Arc::clone(&said)));
    let mut process = Process { guarded, said, reader };
    // The lines are watched for the limit, behind which the transport drops them.
    let lines = Lines::new(stdout, MESSAGE_BYTES_MAX);
    let transport = AsyncRwTransport::new_client(lines, stdin).with_max_line_length(MESSAGE_BYTES_MAX);
    match Connected::over(transport, client).await {
        Ok(connected) => Ok(Connected { process: Some(process), ..connected }),
        Err(error) => {
            let how = process.how_it_ended().await;
            process.stop().await;
            Err(ConnectError::Ended { error, how })
        }
    }
}

impl Connected {
    /// Opens the protocol on a transport.
    async fn over<T, E, A>(transport: T, client: Client) -> Result<Self, Box<ClientInitializeError>>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let stop = CancellationToken::new();
        let running = serve_client_with_lifecycle_and_ct(client, transport, lifecycle(), stop.clone()).await?;
        let (peer, mut service) = (running.peer().clone(), JoinSet::new());
        service.spawn(async move {
            if let Err(error) = running.waiting().await {
                tracing::warn!(%error, "the client of an MCP server failed");
            }
        });
        Ok(Self { peer, stop, service, process: None })
    }

    /// Waits until the connection ends, and returns why it did, as far as that is known. May be dropped while it waits.
    pub(super) async fn ended(&mut self) -> End {
        let service = &mut self.service;
        let closed = async { while service.join_next().await.is_some() {} };
        match &mut self.process {
            None => {
                closed.await;
                End::of("the connection ended")
            }
            Some(process) => {
                let exited = tokio::select! {
                    () = closed => None,
                    exited = process.exited() => Some(exited),
                };
                let how = match exited {
                    Some(exited) => process.explain(&exited),
                    None => process.how_it_ended().await,
                };
                if how.is_empty() { End::of("it closed its output") } else { how }
            }
        }
    }

    /// Ends the connection, and the program with all that it started.
    pub(super) async fn close(mut self) {
        self.stop.cancel();
        let closed = async { while self.service.join_next().await.is_some() {} };
        if timeout(CLOSE_LIMIT, closed).await.is_err() {
            tracing::debug!("ending a connection to an MCP server took too long");
        }
        if let Some(process) = self.process {
            process.stop().await;
        }
    }
}

impl Process {
    /// Waits until the program itself ends.
    async fn exited(&mut self) -> String {
        match self.guarded.report().await {
            Some(Report::Exited(Exit::ExitCode(code))) => format!("its program ended with exit code {code}"),
            Some(Report::Exited(Exit::Signal(signal))) => format!("its program was ended by signal {signal}"),
            Some(Report::Failed(error)) => format!("its program cannot be run: {error}"),
            Some(Report::Gone | Report::PerhapsGone) | None => "its program is gone".to_owned(),
        }
    }

    /// How the program ended, if it did just now.
    async fn how_it_ended(&mut self) -> End {
        match timeout(Duration::from_millis(300), self.exited()).await {
            Ok(exited) => self.explain(&exited),
            Err(_) => self.explain(""),
        }
    }

    /// With what it wrote last.
    fn explain(&self, status: &str) -> End {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let said = said.iter().map(String::as_str).collect::<Vec<_>>().join(" | ");
        End { status: status.to_owned(), said }
    }

    async fn stop(mut self) {
        self.guarded.stop(STOP_GRACE).await;
        self.reader.abort_all();
    }
}

/// Reads standard error to its end, so that the server never waits for it, and keeps the last lines.
async fn read_errors(mut stderr: impl AsyncRead + Unpin, server: Arc<str>, said: Arc<Mutex<VecDeque<String>>>) {
    let (mut line, mut buffer) = (Vec::new(), vec![0; 8 * 1024]);
    while let Ok(count @ 1..) = stderr.read(&mut buffer).await {
        for byte in &buffer[..count] {
            if *byte != b'\n' {
                if line.len() < ERROR_LINE_BYTES_MAX {
                    line.push(*byte);
                }
                continue;
            }
            let text = String::from_utf8_lossy(&line).trim().to_owned();
            line.clear();
            if text.is_empty() {
                continue;
            }
            tracing::debug!(server = &*server, text, "an MCP server wrote to standard error");
            let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
            if said.len() == ERROR_LINES_MAX {
                said.pop_front();
            }
            said.push_back(text);
        }
    }
}

fn address(
    url: &str,
    headers: &[(String, Secret)],
    token: Option<&Token>,
) -> Result<StreamableHttpClientTransport<reqwest::Client>, ConnectError> {
    let mut custom = HashMap::new();
    for (name, value) in headers {
        let unfit = || ConfigError::Header(name.clone());
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| unfit())?;
        let mut value = HeaderValue::from_str(value.reveal()).map_err(|_| unfit())?;
        value.set_sensitive(true);
        custom.insert(header, value);
    }
    let mut config = StreamableHttpClientTransportConfig::with_uri(url)
        .custom_headers(custom)
        .max_sse_event_size(MESSAGE_BYTES_MAX)
        .max_json_response_size(MESSAGE_BYTES_MAX)
        .max_concurrent_requests(REQUESTS_MAX);
    if let Some(token) = token {
        config = config.auth_header(token.read()?.reveal());
    }
    let mut roots = rustls::RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let tls = rustls::ClientConfig::builder_with_provider(ring).with_safe_default_protocol_versions()?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls.with_root_certificates(roots).with_no_client_auth())
        .connect_timeout(CONNECT_LIMIT)
        .redirect(redirect::Policy::custom(same_origin))
        .build()
        .map_err(ConnectError::Client)?;
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

/// Requests of one connection that may wait for the beginning of their answer: as many as a worker may have slots.
const REQUESTS_MAX: usize = 10_000;

/// Follows only redirects that keep the method, to the same server: no other may see the headers.
fn same_origin(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let keeps_method = matches!(attempt.status().as_u16(), 307 | 308);
    let origin = attempt.previous().first().map(reqwest::Url::origin);
    let stays = origin == Some(attempt.url().origin()) && attempt.previous().len() <= REDIRECTS_MAX;
    if keeps_method && stays { attempt.follow() } else { attempt.error("an MCP server redirects to another server") }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
    use tokio::time::Instant;

    use super::*;

    /// Answers `initialize` on its end of a pipe, and refuses everything else.
    async fn greet(server: &mut BufReader<DuplexStream>) {
        loop {
            let mut line = String::new();
            server.read_line(&mut line).await.unwrap();
            let message: Value = serde_json::from_str(&line).unwrap();
            let id = &message["id"];
            let answer = match message["method"].as_str() {
                Some("notifications/initialized") => return,
                Some("initialize") => {
                    let info = json!({ "name": "t", "version": "1" });
                    let result = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": info });
                    json!({ "jsonrpc": "2.0", "id": id, "result": result })
                }
                _ => json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "unknown" } }),
            };
            server.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_connection_is_noticed_without_a_timer() {
        let (ours, theirs) = tokio::io::duplex(64 * 1024);
        let (read, write) = tokio::io::split(ours);
        let client = Client { server: "t".into(), calls: Arc::default(), changed: Arc::default() };
        let mut server = BufReader::new(theirs);
        let transport = AsyncRwTransport::new_client(read, write);
        let (connected, ()) = tokio::join!(Connected::over(transport, client), greet(&mut server));
        let mut connected = connected.unwrap();
        let (began, waiting) = (Instant::now(), async { connected.ended().await });
        let ((), why) = tokio::join!(async { drop(server) }, waiting);
        // The clock of the test only goes on when everything waits for a timer.
        assert_eq!((why.status.as_str(), began.elapsed()), ("the connection ended", Duration::ZERO));
        connected.close().await;
    }
}
