//! A call on its way through JavaScript.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures::FutureExt as _;
use napi::Env;
use napi::bindgen_prelude::{PromiseRaw, Uint8Array};
use napi_derive::napi;
use serde::Serialize;
use serde_json::{Value, value::RawValue};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use toolyard_tool::{Context, Output, Role, ToolError};

use crate::content::{Part, output};
use crate::error::{Failure, invalid, thrown};
use crate::file::NativeFile;

type Outcome = Result<Output, ToolError>;
type Sending = Pin<Box<dyn Future<Output = Result<(), ToolError>> + Send>>;

/// One call, as JavaScript has it until it settles it.
#[derive(Debug)]
#[napi]
pub struct NativeCall {
    index: u32,
    arguments: String,
    /// `None` when the call is settled: the sender in it would keep the call's output open.
    open: Mutex<Option<Open>>,
    /// The worker waits for the call no more.
    over: CancellationToken,
    /// JavaScript is done with the call.
    done: CancellationToken,
}

#[derive(Debug)]
struct Open {
    context: Arc<Context>,
    settle: oneshot::Sender<Outcome>,
}

/// The side of the tool's future, which the worker may drop.
pub(crate) struct Settled {
    outcome: oneshot::Receiver<Outcome>,
    context: Context,
    runtime: Handle,
    over: CancellationToken,
    done: CancellationToken,
}

impl Settled {
    pub(crate) async fn outcome(mut self) -> Outcome {
        let outcome = (&mut self.outcome).await;
        outcome.unwrap_or_else(|_| Err(ToolError::retryable("JavaScript dropped the call without a result")))
    }
}

impl Drop for Settled {
    /// A function of JavaScript cannot be stopped from outside. While it runs, its call is not over.
    fn drop(&mut self) {
        self.over.cancel();
        if !self.done.is_cancelled() {
            self.context.left().keep(self.done.clone().cancelled_owned(), &self.runtime);
        }
    }
}

/// What a call knows of itself.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Info<'a> {
    tool: &'a str,
    run_id: String,
    call_id: &'a str,
    attempt: u32,
    tenant: Option<&'a str>,
    caller: Option<&'a str>,
    roles: Vec<&'static str>,
    metadata: &'a BTreeMap<String, String>,
    deadline_in_ms: u64,
    call_deadline_in_ms: u64,
    continue_from: u32,
    is_stored: bool,
    files: Vec<FileInfo<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FileInfo<'a> {
    name: &'a str,
    media_type: &'a str,
    size: u64,
}

impl NativeCall {
    pub(crate) fn new(index: u32, context: &Context, arguments: &Value) -> (Self, Settled) {
        let (settle, outcome) = oneshot::channel();
        let (over, done) = (CancellationToken::new(), CancellationToken::new());
        let runtime = Handle::current();
        let settled = Settled { outcome, context: context.clone(), runtime, over: over.clone(), done: done.clone() };
        let open = Mutex::new(Some(Open { context: Arc::new(context.clone()), settle }));
        (Self { index, arguments: arguments.to_string(), open, over, done }, settled)
    }

    pub(crate) fn context(&self) -> napi::Result<Arc<Context>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.as_ref().map(|open| Arc::clone(&open.context)).ok_or_else(|| thrown(&ToolError::new("the call is over")))
    }

    fn settle(&self, outcome: Outcome) {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Before the outcome, whose receiver would take the function for one that still runs.
        self.done.cancel();
        if let Some(Open { context, settle }) = open {
            drop(context);
            // The worker may have dropped the call.
            drop(settle.send(outcome));
        }
    }

    /// Sends at once if there is room. If not, the promise resolves when it was sent and there is room for many more: a
    /// tool that is faster than the broker does not wait for each piece.
    fn send<'env>(
        &self,
        env: &'env Env,
        sending: impl FnOnce(Arc<Context>) -> Sending,
    ) -> napi::Result<Option<PromiseRaw<'env, ()>>> {
        let context = self.context()?;
        let mut sending = sending(Arc::clone(&context));
        if let Some(sent) = (&mut sending).now_or_never() {
            return sent.map(|()| None).map_err(|error| thrown(&error));
        }
        let sent = async move {
            sending.await.map_err(|error| thrown(&error))?;
            context.room().await;
            Ok(())
        };
        env.spawn_future(sent).map(Some)
    }
}

#[napi]
impl NativeCall {
    /// Which of the tools is called.
    #[napi(getter)]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// The arguments as JSON. They fit the schema.
    #[napi(getter)]
    pub fn arguments(&self) -> &str {
        &self.arguments
    }

    /// What the call knows of itself, as JSON.
    #[napi]
    pub fn info(&self) -> napi::Result<String> {
        let context = self.context()?;
        let milliseconds = |at: Instant| {
            let left = at.saturating_duration_since(Instant::now());
            u64::try_from(left.as_millis()).unwrap_or(u64::MAX)
        };
        let files = context.files().iter();
        let files = files.map(|file| FileInfo {
            name: &file.name,
            media_type: &file.object.media_type,
            size: file.object.size,
        });
        let info = Info {
            tool: context.tool().as_str(),
            run_id: context.run_id().to_string(),
            call_id: context.call_id().as_str(),
            attempt: context.attempt(),
            tenant: context.tenant().map(|tenant| tenant.as_str()),
            caller: context.caller().map(|caller| caller.as_str()),
            roles: context.roles().iter().map(Role::name).collect(),
            metadata: context.metadata(),
            deadline_in_ms: milliseconds(context.deadline()),
            call_deadline_in_ms: milliseconds(context.call_deadline()),
            continue_from: context.continue_from(),
            is_stored: context.is_stored(),
            files: files.collect(),
        };
        serde_json::to_string(&info).map_err(invalid)
    }

    /// What the caller gave under a key that the tool declares, as JSON; `null` if nothing.
    #[napi]
    pub fn given(&self, key: String) -> napi::Result<String> {
        let value: Box<RawValue> = self.context()?.given(&key).map_err(|error| thrown(&error))?;
        Ok(value.get().to_owned())
    }

    #[napi]
    pub fn send_text<'env>(
        &self,
        env: &'env Env,
        channel: String,
        text: String,
    ) -> napi::Result<Option<PromiseRaw<'env, ()>>> {
        self.send(env, |context| Box::pin(async move { context.text_on(&channel, text).await }))
    }

    #[napi]
    pub fn send_json<'env>(
        &self,
        env: &'env Env,
        channel: String,
        json: String,
    ) -> napi::Result<Option<PromiseRaw<'env, ()>>> {
        let json: Box<RawValue> = RawValue::from_string(json).map_err(invalid)?;
        self.send(env, |context| Box::pin(async move { context.json_on(&channel, &json).await }))
    }

    #[napi]
    pub fn send_data<'env>(
        &self,
        env: &'env Env,
        channel: String,
        media_type: String,
        data: Uint8Array,
    ) -> napi::Result<Option<PromiseRaw<'env, ()>>> {
        let data = Bytes::copy_from_slice(&data);
        self.send(env, |context| Box::pin(async move { context.data_on(&channel, &media_type, data).await }))
    }

    #[napi]
    pub fn progress<'env>(
        &self,
        env: &'env Env,
        done: f64,
        total: Option<f64>,
        message: String,
    ) -> napi::Result<Option<PromiseRaw<'env, ()>>> {
        self.send(env, |context| Box::pin(async move { context.progress(done, total, message).await }))
    }

    /// Whether the call should stop. Asking is an acknowledgement.
    #[napi]
    pub fn is_stopped(&self) -> bool {
        self.over.is_cancelled() || self.context().is_ok_and(|context| context.is_cancelled())
    }

    /// Resolves with `true` when the call should stop, and with `false` when it has ended.
    #[napi]
    pub fn stopped<'env>(&self, env: &'env Env) -> napi::Result<PromiseRaw<'env, bool>> {
        let (context, over, done) = (self.context()?, self.over.clone(), self.done.clone());
        env.spawn_future(async move {
            Ok(tokio::select! {
                biased;
                () = done.cancelled() => false,
                () = context.cancelled() => true,
                () = over.cancelled() => true,
            })
        })
    }

    /// Asks the client a question, which is JSON. The answer is JSON too: an action, and a value if it accepts.
    #[napi]
    pub fn ask<'env>(&self, env: &'env Env, question: String) -> napi::Result<PromiseRaw<'env, String>> {
        let context = self.context()?;
        env.spawn_future(async move { crate::ask::ask(&context, &question).await })
    }

    /// Opens a file of the call.
    #[napi]
    pub fn open_file(&self, name: String) -> napi::Result<NativeFile> {
        let context = self.context()?;
        NativeFile::open(&context, &name).map_err(|error| thrown(&error))
    }

    /// Writes a line to the log of the process, with the ids of the call.
    #[napi]
    pub fn log(&self, level: String, message: String) -> napi::Result<()> {
        let context = self.context()?;
        let (run, call, tool) = (context.run_id(), context.call_id().as_str(), context.tool().as_str());
        match level.as_str() {
            "debug" => tracing::debug!(run.id = %run, call.id = call, tool, "{message}"),
            "info" => tracing::info!(run.id = %run, call.id = call, tool, "{message}"),
            "warn" => tracing::warn!(run.id = %run, call.id = call, tool, "{message}"),
            "error" => tracing::error!(run.id = %run, call.id = call, tool, "{message}"),
            level => return Err(invalid(format!("level {level:?}: write debug, info, warn or error"))),
        }
        Ok(())
    }

    /// Ends the call with a result, and a JSON object with state for the run.
    #[napi]
    pub fn complete(&self, parts: Vec<Part>, state: Option<String>) -> napi::Result<()> {
        self.settle(Ok(output(parts, state.as_deref())?));
        Ok(())
    }

    /// Ends the call with an error, which is JSON.
    #[napi]
    pub fn fail(&self, error: String) -> napi::Result<()> {
        let failure: Failure = serde_json::from_str(&error).map_err(invalid)?;
        self.settle(Err(failure.into()));
        Ok(())
    }
}

impl Drop for NativeCall {
    /// JavaScript has forgotten the call, or its process ends.
    fn drop(&mut self) {
        self.done.cancel();
    }
}
