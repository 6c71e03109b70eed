//! One server: its connections are made, watched and made again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rmcp::model::SubscriptionFilter;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use toolyard_tool::{Context, Table, ToolError, ToolName};

use super::call::McpTool;
use super::client::{Calls, Client};
use super::config::{Reach, ServerConfig};
use super::connect::{self, ConnectError, Connected, End, Programs};
use super::listed;
use super::metrics::OfServer;
use super::session::Session;

/// The pauses before a server is started again: the first, doubling up to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_LAST: Duration = Duration::from_secs(30);
/// A server that ran for so long starts again after the first pause.
const STEADY: Duration = Duration::from_secs(60);
/// How long a call waits for a server that is not running.
const DOWN_WAIT: Duration = Duration::from_secs(10);
/// How long the tools of a server that is not running stay advertised.
const DOWN_ADVERTISED: Duration = Duration::from_secs(120);
/// Changes of the tools that come so close together are read once.
const CHANGES_PAUSE: Duration = Duration::from_millis(300);

/// A server and its connections: one for all calls, or one for each slot.
#[derive(Debug)]
pub(super) struct Server {
    config: ServerConfig,
    programs: Option<Programs>,
    links: Vec<Link>,
    /// With one connection for each slot: those that no call has.
    free: Option<Free>,
    /// The tools; `None` until the server has been tried.
    tools: watch::Sender<Option<Arc<Vec<Table>>>>,
    metrics: OfServer,
}

#[derive(Debug)]
struct Link {
    state: watch::Sender<State>,
    /// Cancelled when the connection is wanted: those after the first are made when a call needs them.
    wanted: CancellationToken,
}

#[derive(Debug, Clone)]
enum State {
    Starting,
    Up(Arc<Session>),
    /// With how its program ended, as callers may know it; the log has the reason.
    Down(Arc<str>),
}

/// A server did not start.
struct StartError {
    /// How its program ended, for callers; empty if that is not known.
    status: String,
    /// For the log.
    why: String,
}

impl StartError {
    const fn of(why: String) -> Self {
        Self { status: String::new(), why }
    }
}

#[derive(Debug)]
struct Free {
    places: Arc<Semaphore>,
    indices: Mutex<Vec<usize>>,
}

/// A connection that a call uses.
pub(super) struct Held<'a> {
    pub(super) session: Arc<Session>,
    _own: Option<Own<'a>>,
}

/// A connection that no other call may use meanwhile.
struct Own<'a> {
    free: &'a Free,
    index: usize,
    _place: OwnedSemaphorePermit,
}

impl Drop for Own<'_> {
    fn drop(&mut self) {
        self.free.indices.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}

impl Server {
    pub(super) fn new(config: ServerConfig, programs: Option<Programs>, slots: usize) -> Arc<Self> {
        let count = if config.per_slot { slots.max(1) } else { 1 };
        let link = || Link { state: watch::Sender::new(State::Starting), wanted: CancellationToken::new() };
        let free = config.per_slot.then(|| Free {
            places: Arc::new(Semaphore::new(count)),
            // The last is taken first.
            indices: Mutex::new((0..count).rev().collect()),
        });
        let links: Vec<Link> = (0..count).map(|_| link()).collect();
        links[0].wanted.cancel();
        let metrics = OfServer::new(&config.name);
        Arc::new(Self { config, programs, links, free, tools: watch::Sender::new(None), metrics })
    }

    pub(super) fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether it is a program of the worker's machine.
    pub(super) fn is_program(&self) -> bool {
        matches!(self.config.reach, Reach::Program { .. })
    }

    /// How long one attempt of a call may take.
    pub(super) fn call_timeout(&self) -> Duration {
        self.config.timeout
    }

    /// The name under which a tool of this name, as the server gives it, is hosted.
    pub(super) fn hosted_name(&self, own: &str) -> String {
        listed::hosted_name(&self.config.prefix, own)
    }

    /// The name of a hosted tool without the prefix.
    pub(super) fn own_name<'a>(&self, hosted: &'a ToolName) -> &'a str {
        hosted.as_str().strip_prefix(&self.config.prefix).unwrap_or(hosted.as_str())
    }

    /// The tools of a server that is running, or was a short while ago.
    ///
    /// # Errors
    /// The server is not running, and was not started again in time.
    pub(super) async fn listed(&self, context: &Context) -> Result<Arc<Vec<Table>>, ToolError> {
        let now = || self.tools.borrow().clone().unwrap_or_default();
        let tools = now();
        if !tools.is_empty() {
            return Ok(tools);
        }
        drop(self.connection(0, context).await?);
        Ok(now())
    }

    /// The tools, each as a table of its own.
    pub(super) fn tools(&self) -> watch::Receiver<Option<Arc<Vec<Table>>>> {
        self.tools.subscribe()
    }

    /// Keeps all connections until `stop`.
    pub(super) async fn keep(self: Arc<Self>, stop: CancellationToken) {
        let mut links = tokio::task::JoinSet::new();
        for index in 0..self.links.len() {
            links.spawn(Arc::clone(&self).keep_link(index, stop.clone()));
        }
        while links.join_next().await.is_some() {}
        // They keep the server, and with it the folders of its programs.
        self.tools.send_replace(Some(Arc::default()));
    }

    /// A connection for a call.
    ///
    /// # Errors
    /// The server is not running, and was not started again in time.
    pub(super) async fn session(&self, context: &Context) -> Result<Held<'_>, ToolError> {
        let own = match &self.free {
            None => None,
            Some(free) => Some(free.take(context).await?),
        };
        let session = self.connection(own.as_ref().map_or(0, |own| own.index), context).await?;
        Ok(Held { session, _own: own })
    }

    /// One of its connections, when the server answers on it.
    async fn connection(&self, index: usize, context: &Context) -> Result<Arc<Session>, ToolError> {
        let link = &self.links[index];
        link.wanted.cancel();
        let mut state = link.state.subscribe();
        let is_up = |state: &State| matches!(state, State::Up(session) if !session.peer.is_transport_closed());
        let up = async { state.wait_for(is_up).await.map(|state| state.clone()) };
        tokio::select! {
            biased;
            up = timeout(DOWN_WAIT, up) => {
                if let Ok(Ok(State::Up(session))) = up {
                    return Ok(session);
                }
            }
            () = context.cancelled() => return Err(ToolError::new("the call was cancelled")),
        }
        let status = match &*link.state.borrow() {
            State::Down(status) if !status.is_empty() => format!(": {status}"),
            State::Down(_) | State::Starting | State::Up(_) => String::new(),
        };
        let message = format!("the MCP server {} is not running{status}; the worker's log has more", self.config.name);
        Err(ToolError::retryable(message))
    }

    /// Makes one connection again whenever it ends.
    async fn keep_link(self: Arc<Self>, index: usize, stop: CancellationToken) {
        tokio::select! {
            () = self.links[index].wanted.cancelled() => {}
            () = stop.cancelled() => return,
        }
        let mut pause = PAUSE_FIRST;
        let mut down_since = Instant::now();
        while !stop.is_cancelled() {
            let started = Instant::now();
            let (status, why) = match self.start(index, &stop).await {
                Ok(Some((connected, session, changed))) => {
                    let end = self.serve(index, connected, session, &changed, &stop).await;
                    down_since = Instant::now();
                    (end.status.clone(), end.to_string())
                }
                Ok(None) => return,
                Err(StartError { status, why }) => (status, why),
            };
            if stop.is_cancelled() {
                return;
            }
            if started.elapsed() >= STEADY {
                pause = PAUSE_FIRST;
            }
            let server = self.name();
            tracing::warn!(server, %why, pause_ms = pause.as_millis(), "an MCP server ended, starting it again");
            self.links[index].state.send_replace(State::Down(status.into()));
            if index == 0 {
                self.metrics.failed();
            }
            self.settle(index, down_since);
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => return,
            }
            pause = (pause * 2).min(PAUSE_LAST);
            self.settle(index, down_since);
        }
    }

    /// Tells that a server has been tried, and takes back its tools when it has not been running for long.
    fn settle(&self, index: usize, down_since: Instant) {
        if index == 0 && (self.tools.borrow().is_none() || down_since.elapsed() > DOWN_ADVERTISED) {
            self.tools.send_if_modified(|tools| {
                let changes = tools.as_ref().is_none_or(|tools| !tools.is_empty());
                *tools = Some(Arc::default());
                changes
            });
        }
    }

    /// Connects, and reads the tools. `None` if `stop` came first.
    async fn start(
        self: &Arc<Self>,
        index: usize,
        stop: &CancellationToken,
    ) -> Result<Option<(Connected, Arc<Session>, Arc<Notify>)>, StartError> {
        let (calls, changed) = (Arc::new(Calls::default()), Arc::new(Notify::new()));
        let client = Client { server: self.name().into(), calls: Arc::clone(&calls), changed: Arc::clone(&changed) };
        let connecting =
            timeout(self.config.start_timeout, connect::connect(&self.config.reach, self.programs.as_ref(), client));
        let connected = tokio::select! {
            connected = connecting => connected,
            () = stop.cancelled() => return Ok(None),
        };
        let late = |_| StartError::of(format!("it did not start within {:?}", self.config.start_timeout));
        let failed = |error: ConnectError| StartError { status: error.status().to_owned(), why: error.to_string() };
        let connected = connected.map_err(late)?.map_err(failed)?;
        let session = Arc::new(Session { peer: connected.peer.clone(), calls });
        if index == 0
            && let Err(why) = self.read_tools(&session).await
        {
            connected.close().await;
            return Err(StartError::of(why));
        }
        Ok(Some((connected, session, changed)))
    }

    /// Serves calls until the connection ends, and returns why it did.
    async fn serve(
        self: &Arc<Self>,
        index: usize,
        mut connected: Connected,
        session: Arc<Session>,
        changed: &Notify,
        stop: &CancellationToken,
    ) -> End {
        tracing::info!(server = self.name(), legacy = session.is_legacy(), "an MCP server is running");
        self.links[index].state.send_replace(State::Up(Arc::clone(&session)));
        if index == 0 {
            self.metrics.runs();
        }
        let changes = async {
            match index {
                0 => self.follow_changes(&session, changed).await,
                _ => std::future::pending().await,
            }
        };
        let why = tokio::select! {
            why = connected.ended() => why,
            () = changes => End::of("it stopped"),
            () = stop.cancelled() => End::of("the worker stops"),
        };
        connected.close().await;
        why
    }

    /// Reads the tools again whenever they change. Does not return.
    async fn follow_changes(self: &Arc<Self>, session: &Session, changed: &Notify) {
        let listening = async {
            if session.tells_changes() && !session.is_legacy() {
                listen(session, changed).await;
            }
            std::future::pending::<()>().await;
        };
        let reading = async {
            loop {
                changed.notified().await;
                sleep(CHANGES_PAUSE).await;
                if let Err(why) = self.read_tools(session).await {
                    tracing::warn!(server = self.name(), why, "reading the changed tools of an MCP server failed");
                }
            }
        };
        tokio::select! {
            () = listening => {}
            () = reading => {}
        }
    }

    async fn read_tools(self: &Arc<Self>, session: &Session) -> Result<(), String> {
        let late = |_| format!("it did not list its tools within {:?}", self.config.start_timeout);
        let listed = timeout(self.config.start_timeout, session.tools()).await.map_err(late)?;
        let listed = listed.map_err(|error| error.to_string())?;
        let mut tools = Vec::new();
        for tool in listed {
            let name = tool.get("name").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
            if !self.config.wants(&name) {
                continue;
            }
            let body = |own, repeatable| McpTool::new(Arc::clone(self), own, repeatable);
            match listed::read(tool, &self.config, body) {
                Ok(table) => tools.push(table),
                Err(reason) => {
                    let server = self.name();
                    tracing::warn!(server, tool = name, %reason, "leaving out a tool of an MCP server");
                }
            }
        }
        self.tools.send_replace(Some(Arc::new(tools)));
        Ok(())
    }
}

impl Free {
    /// A connection that no other call has.
    async fn take(&self, context: &Context) -> Result<Own<'_>, ToolError> {
        let place = tokio::select! {
            place = Arc::clone(&self.places).acquire_owned() => place,
            () = context.cancelled() => return Err(ToolError::new("the call was cancelled")),
        };
        let place = place.map_err(|_| ToolError::new("the worker stops"))?;
        let index = self.indices.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let index = index.ok_or_else(|| ToolError::retryable("no connection to the MCP server is free"))?;
        Ok(Own { free: self, index, _place: place })
    }
}

/// Follows the changes of a server of 2026-07-28, which tells them only on request.
async fn listen(session: &Session, changed: &Notify) {
    let filter = SubscriptionFilter::builder().tools_list_changed().build();
    loop {
        match session.peer.listen(filter.clone()).await {
            Ok(mut subscription) => {
                while let Ok(Some(_)) = subscription.next().await {
                    changed.notify_one();
                }
                // What changed meanwhile is not told again.
                changed.notify_one();
            }
            Err(error) => {
                tracing::debug!(%error, "following the changes of an MCP server failed, trying again");
            }
        }
        sleep(PAUSE_LAST).await;
    }
}
