//! The tool's side of a conversation with a language server: requests with their answers, and what the server reports.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::AsyncBufRead;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::wire;
use toolyard_tool::{Context, ToolError};

/// Messages that wait to be written to a server.
pub(super) const WRITES_MAX: usize = 64;
/// Files whose diagnostics are kept: those that were reported last.
const REPORTED_MAX: usize = 2_000;
/// Works in progress that are counted.
const WORKING_MAX: usize = 100;
/// How often a request is repeated that the server broke off because a file changed.
const REPEATS_MAX: usize = 5;
const REPEAT_PAUSE: Duration = Duration::from_millis(200);
/// The server broke a request off: a file changed meanwhile, or it is not ready.
const CHANGED: [i64; 2] = [-32801, -32802];

/// Why a request has no answer.
#[derive(Debug)]
pub(super) enum NoAnswer {
    /// The server has ended.
    Over,
    Cancelled,
    TimedOut(Duration),
    Refused {
        code: i64,
        message: String,
    },
}

impl From<NoAnswer> for ToolError {
    fn from(why: NoAnswer) -> Self {
        match why {
            NoAnswer::Over => Self::retryable("the language server ended"),
            NoAnswer::Cancelled => Self::new("the call was cancelled"),
            NoAnswer::TimedOut(time) => {
                Self::new(format!("the language server did not answer within {} s", time.as_secs()))
            }
            NoAnswer::Refused { code, message } => {
                Self::new(format!("the language server refused the request ({code}): {message}"))
            }
        }
    }
}

type Answer = Result<Value, NoAnswer>;

/// A conversation.
#[derive(Debug)]
pub(super) struct Client {
    writes: mpsc::Sender<Vec<u8>>,
    pending: Mutex<HashMap<u64, oneshot::Sender<Answer>>>,
    next: AtomicU64,
    /// The conversation has ended.
    pub(super) over: CancellationToken,
    reported: Mutex<HashMap<String, (u64, Value)>>,
    working: Mutex<HashSet<String>>,
    /// Its number grows with each report.
    news: watch::Sender<u64>,
    /// What the server gets when it asks for its configuration.
    settings: Value,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    pub(super) fn new(writes: mpsc::Sender<Vec<u8>>, settings: Value) -> Self {
        Self {
            writes,
            pending: Mutex::default(),
            next: AtomicU64::new(1),
            over: CancellationToken::new(),
            reported: Mutex::default(),
            working: Mutex::default(),
            news: watch::Sender::new(0),
            settings,
        }
    }

    /// Reads the server's messages until it ends.
    pub(super) async fn listen(&self, mut pipe: impl AsyncBufRead + Unpin) -> String {
        loop {
            match wire::next(&mut pipe).await {
                Ok(Some(message)) => self.take(message).await,
                Ok(None) => return "it ended".to_owned(),
                Err(error) => return error.to_string(),
            }
        }
    }

    async fn take(&self, mut message: Value) {
        let method = message["method"].as_str().map(str::to_owned);
        match (method, message["id"].clone()) {
            (None, id) => {
                let Some(answered) = id.as_u64().and_then(|id| lock(&self.pending).remove(&id)) else { return };
                let error = message["error"].take();
                let answer = match error.is_null() {
                    true => Ok(message["result"].take()),
                    false => Err(NoAnswer::Refused {
                        code: error["code"].as_i64().unwrap_or_default(),
                        message: error["message"].as_str().unwrap_or_default().chars().take(1_000).collect(),
                    }),
                };
                // The call may have gone.
                drop(answered.send(answer));
            }
            (Some(method), Value::Null) => self.note(&method, message["params"].take()),
            (Some(method), id) => {
                let answer = match method.as_str() {
                    "workspace/configuration" => {
                        let items = message["params"]["items"].as_array().map_or(0, Vec::len);
                        json!({ "result": vec![self.settings.clone(); items.min(WORKING_MAX)] })
                    }
                    "workspace/applyEdit" => json!({ "result": { "applied": false } }),
                    "client/registerCapability"
                    | "client/unregisterCapability"
                    | "window/workDoneProgress/create"
                    | "window/showMessageRequest"
                    | "workspace/workspaceFolders"
                    | "workspace/diagnostic/refresh"
                    | "workspace/semanticTokens/refresh"
                    | "workspace/inlayHint/refresh"
                    | "workspace/codeLens/refresh" => json!({ "result": null }),
                    _ => json!({ "error": { "code": -32601, "message": "not supported" } }),
                };
                let mut answer = answer;
                answer["jsonrpc"] = json!("2.0");
                answer["id"] = id;
                // A server that reads nothing is noticed by the next request.
                drop(self.writes.try_send(wire::frame(&answer)));
            }
        }
    }

    fn note(&self, method: &str, mut params: Value) {
        match method {
            "textDocument/publishDiagnostics" => {
                let Some(uri) = params["uri"].as_str().map(str::to_owned) else { return };
                let mut reported = lock(&self.reported);
                if reported.len() == REPORTED_MAX && !reported.contains_key(&uri) {
                    let oldest = reported.iter().min_by_key(|(_, (number, _))| *number).map(|(uri, _)| uri.clone());
                    oldest.map(|oldest| reported.remove(&oldest));
                }
                let number = *self.news.borrow() + 1;
                reported.insert(uri, (number, params["diagnostics"].take()));
            }
            "$/progress" => {
                let (token, mut working) = (params["token"].to_string(), lock(&self.working));
                match params["value"]["kind"].as_str() {
                    Some("begin") if working.len() < WORKING_MAX => drop(working.insert(token)),
                    Some("end") => drop(working.remove(&token)),
                    _ => {}
                }
            }
            _ => return,
        }
        self.news.send_modify(|number| *number += 1);
    }

    /// Ends the conversation: all requests that wait fail.
    pub(super) fn end(&self) {
        self.over.cancel();
        lock(&self.pending).clear();
    }

    pub(super) async fn notify(&self, method: &str, params: Value) -> Result<(), NoAnswer> {
        self.write(&json!({ "jsonrpc": "2.0", "method": method, "params": params })).await
    }

    async fn write(&self, message: &Value) -> Result<(), NoAnswer> {
        tokio::select! {
            written = self.writes.send(wire::frame(message)) => written.map_err(|_| NoAnswer::Over),
            () = self.over.cancelled() => Err(NoAnswer::Over),
        }
    }

    /// Asks the server, and repeats that while it is not ready. The request is cancelled at the server if the call is.
    pub(super) async fn request(&self, context: &Context, method: &str, params: Value, time: Duration) -> Answer {
        for _ in 0..REPEATS_MAX {
            match self.ask(context, method, params.clone(), time).await {
                Err(NoAnswer::Refused { code, .. }) if CHANGED.contains(&code) => sleep(REPEAT_PAUSE).await,
                answer => return answer,
            }
        }
        self.ask(context, method, params, time).await
    }

    async fn ask(&self, context: &Context, method: &str, params: Value, time: Duration) -> Answer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answered, answer) = oneshot::channel();
        lock(&self.pending).insert(id, answered);
        let asked = async {
            self.write(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })).await?;
            tokio::select! {
                answer = answer => answer.unwrap_or(Err(NoAnswer::Over)),
                () = self.over.cancelled() => Err(NoAnswer::Over),
            }
        };
        let why = tokio::select! {
            answer = timeout(time, asked) => match answer {
                Ok(answer) => {
                    lock(&self.pending).remove(&id);
                    return answer;
                }
                Err(_) => NoAnswer::TimedOut(time),
            },
            () = context.cancelled() => NoAnswer::Cancelled,
        };
        lock(&self.pending).remove(&id);
        let cancel = json!({ "jsonrpc": "2.0", "method": "$/cancelRequest", "params": { "id": id } });
        // If it takes no more messages it works on nothing new either.
        drop(self.writes.try_send(wire::frame(&cancel)));
        Err(why)
    }

    /// The number of the latest report.
    pub(super) fn now(&self) -> u64 {
        *self.news.borrow()
    }

    /// The diagnostics of a file that were reported after a number, once nothing newer has come for a while; `None` if
    /// none came in time.
    pub(super) async fn diagnostics(&self, uri: &str, after: u64, quiet: Duration, time: Duration) -> Option<Value> {
        let mut news = self.news.subscribe();
        let known = || lock(&self.reported).get(uri).filter(|(number, _)| *number > after).cloned();
        let settled = async {
            while known().is_none() {
                if news.changed().await.is_err() {
                    return;
                }
            }
            let mut number = known().map(|(number, _)| number);
            loop {
                sleep(quiet).await;
                let latest = known().map(|(number, _)| number);
                if latest == number {
                    return;
                }
                number = latest;
            }
        };
        tokio::select! {
            _ = timeout(time, settled) => {}
            () = self.over.cancelled() => {}
        }
        known().map(|(_, diagnostics)| diagnostics)
    }

    /// Waits until the server has done what it began, such as indexing a workspace. `first` is how long that may take
    /// to begin.
    pub(super) async fn settled(&self, first: Duration, time: Duration) {
        let mut news = self.news.subscribe();
        let is_working = || !lock(&self.working).is_empty();
        let began = async { while !is_working() && news.changed().await.is_ok() {} };
        let waits = async {
            if timeout(first, began).await.is_err() {
                return;
            }
            let mut news = self.news.subscribe();
            loop {
                while is_working() && news.changed().await.is_ok() {}
                // One work follows another.
                sleep(first / 4).await;
                if !is_working() {
                    return;
                }
            }
        };
        tokio::select! {
            _ = timeout(time, waits) => {}
            () = self.over.cancelled() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn of_many_files_the_diagnostics_that_were_reported_last_are_kept() {
        let client = Client::new(mpsc::channel(1).0, Value::Null);
        for number in 0..REPORTED_MAX + 10 {
            let params = json!({ "uri": number.to_string(), "diagnostics": [number] });
            client.note("textDocument/publishDiagnostics", params);
        }
        let found = async |number: usize| {
            client.diagnostics(&number.to_string(), 0, Duration::ZERO, Duration::from_millis(10)).await
        };
        assert_eq!(found(REPORTED_MAX + 9).await, Some(json!([REPORTED_MAX + 9])));
        assert_eq!(found(0).await, None);
        assert_eq!(lock(&client.reported).len(), REPORTED_MAX);
    }
}
