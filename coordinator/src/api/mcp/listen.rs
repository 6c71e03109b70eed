//! Notifications beside any request: that the tools of the caller have changed, and the states of tasks.

use std::sync::Arc;
use std::time::Duration;

use axum::response::Response;
use bytes::Bytes;
use futures::Stream;
use run::{Manifest, ToolName};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::client::Client;
use super::message::{Request, RpcError};
use super::{answered, members, stream, tasks};
use crate::admission::error::RequestError;
use crate::api::Api;
use crate::api::http::sse;
use crate::api::output::HEARTBEAT;
use crate::auth::callers::{Reading, Role};
use crate::fleet::registry::Registry;

/// Changes of the tools are reported together: a worker that starts or leaves changes many at once.
const PAUSE: Duration = Duration::from_millis(300);
/// Tasks of one subscription, and how often they are read.
const TASKS_MAX: usize = 32;
const TASKS_EVERY: Duration = Duration::from_secs(1);
const SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

#[derive(Deserialize)]
struct Params {
    notifications: Filter,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Filter {
    #[serde(default)]
    tools_list_changed: bool,
    #[serde(default)]
    task_ids: Vec<String>,
}

/// A stream of notifications.
struct Listening {
    api: Api,
    client: Client,
    /// The request that opened it; `None` for the stream of a session.
    id: Option<Box<RawValue>>,
    registry: watch::Receiver<Arc<Registry>>,
    tools: bool,
    seen: Shown,
    /// When a change of the tools is to be looked at.
    look_at: Option<Instant>,
    tasks: Vec<Task>,
    tasks_at: Instant,
    first: Option<String>,
    ended: bool,
    _place: Option<Reading>,
}

/// A task, and the part of its state that was reported.
struct Task {
    id: String,
    reported: Option<Value>,
}

/// The members of a task's state that change while it is the same.
const PASSING: [&str; 2] = ["statusMessage", "lastUpdatedAt"];

/// The stream of a session.
pub(super) fn of_session(api: Api, client: Client) -> Result<Response, RpcError> {
    api.runs.caller.must(Role::Read).map_err(RequestError::from)?;
    let listening = Listening::new(api, client, None, Filter { tools_list_changed: true, ..Filter::default() })?;
    Ok(sse::response(texts(listening)))
}

/// `subscriptions/listen`.
pub(super) fn listened(api: Api, client: Client, request: &Request) -> Result<Response, RpcError> {
    api.runs.caller.must(Role::Read).map_err(RequestError::from)?;
    let Params { notifications: mut filter } = request.read()?;
    if !client.capabilities.tasks {
        filter.task_ids.clear();
    }
    filter.task_ids.truncate(TASKS_MAX);
    let mut honored = json!({});
    if filter.tools_list_changed {
        honored["toolsListChanged"] = true.into();
    }
    if !filter.task_ids.is_empty() {
        honored["taskIds"] = json!(filter.task_ids);
    }
    let mut listening = Listening::new(api, client, Some(request.id.clone()), filter)?;
    let acknowledged =
        listening.notification("notifications/subscriptions/acknowledged", json!({ "notifications": honored }));
    listening.first = Some(acknowledged);
    Ok(sse::response(texts(listening)))
}

fn texts(listening: Listening) -> impl Stream<Item = Bytes> + Send + 'static {
    futures::stream::unfold(listening, async |mut listening| {
        if listening.ended {
            return None;
        }
        let text = listening.next().await;
        Some((text, listening))
    })
}

impl Listening {
    fn new(api: Api, client: Client, id: Option<Box<RawValue>>, filter: Filter) -> Result<Self, RpcError> {
        let place = api.runs.caller.begin_reading().map_err(RequestError::from)?;
        let registry = api.runs.registry.clone();
        let seen = if filter.tools_list_changed { shown(&api, &registry.borrow()) } else { Shown::new() };
        let tasks = filter.task_ids.into_iter().map(|id| Task { id, reported: None }).collect();
        let (tools, now) = (filter.tools_list_changed, Instant::now());
        let (look_at, first, ended) = (None, None, false);
        Ok(Self { api, client, id, registry, tools, seen, look_at, tasks, tasks_at: now, first, ended, _place: place })
    }

    async fn next(&mut self) -> Bytes {
        if let Some(first) = self.first.take() {
            return event(&first);
        }
        let silent_until = Instant::now() + HEARTBEAT;
        loop {
            let now = Instant::now();
            if self.look_at.is_some_and(|at| at <= now) {
                self.look_at = None;
                if let Some(changed) = self.look() {
                    return event(&changed);
                }
            }
            if !self.tasks.is_empty() && self.tasks_at <= now {
                self.tasks_at = now + TASKS_EVERY;
                if let Some(text) = self.read_tasks().await {
                    return text;
                }
            }
            let tasks_at = (!self.tasks.is_empty()).then_some(self.tasks_at);
            let wake = [self.look_at, tasks_at].into_iter().flatten().fold(silent_until, Instant::min);
            tokio::select! {
                biased;
                () = self.api.stop.cancelled() => return self.end(),
                changed = self.registry.changed(), if self.tools => {
                    if changed.is_err() {
                        return self.end();
                    }
                    self.registry.borrow_and_update();
                    self.look_at.get_or_insert(Instant::now() + PAUSE);
                }
                () = tokio::time::sleep_until(wake) => {
                    if silent_until <= Instant::now() {
                        return Bytes::from_static(sse::HEARTBEAT);
                    }
                }
            }
        }
    }

    /// The notification that the caller's tools have changed, if they have.
    fn look(&mut self) -> Option<String> {
        // The caller may have other rights by now.
        self.api.runs.caller = self.api.runs.callers.renewed(&self.api.runs.caller);
        let before = std::mem::replace(&mut self.seen, shown(&self.api, &self.registry.borrow()));
        (!are_equal(&before, &self.seen)).then(|| self.notification("notifications/tools/list_changed", json!({})))
    }

    /// The notifications about tasks whose states have changed. One that has ended is not read again.
    async fn read_tasks(&mut self) -> Option<Bytes> {
        let mut text = String::new();
        let mut open = Vec::new();
        for mut task in std::mem::take(&mut self.tasks) {
            let state = tasks::reported(&self.api, &self.client, &task.id).await;
            let Some(state) = state.and_then(|state| serde_json::from_str::<Value>(&format!("{{{state}}}")).ok())
            else {
                open.push(task);
                continue;
            };
            let has_ended = tasks::has_ended(&state);
            let mut lasting = state.clone();
            if let Some(lasting) = lasting.as_object_mut() {
                lasting.retain(|name, _| !PASSING.contains(&name.as_str()));
            }
            if task.reported.as_ref() != Some(&lasting) {
                text.push_str(&stream::event(None, &self.notification("notifications/tasks", state)));
            }
            if !has_ended {
                task.reported = Some(lasting);
                open.push(task);
            }
        }
        self.tasks = open;
        (!text.is_empty()).then(|| text.into())
    }

    fn notification(&self, method: &str, mut params: Value) -> String {
        if let Some(id) = &self.id {
            let id: Value = serde_json::from_str(id.get()).unwrap_or_default();
            params["_meta"] = json!({ SUBSCRIPTION: id });
        }
        json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
    }

    /// The end of the stream, because the coordinator shuts down.
    fn end(&mut self) -> Bytes {
        self.ended = true;
        let Some(id) = &self.id else { return Bytes::new() };
        let subscription: Value = serde_json::from_str(id.get()).unwrap_or_default();
        let answer = answered(id, &self.client, "complete", "");
        // The answer has a `_meta` of its own, to which the subscription is added.
        let mut answer: Value = serde_json::from_str(&answer).unwrap_or_default();
        answer["result"]["_meta"][SUBSCRIPTION] = subscription;
        event(&format!("{{{}}}", members(&answer)))
    }
}

fn event(message: &str) -> Bytes {
    stream::event(None, message).into()
}

/// The tools of a caller: their names and manifests.
type Shown = Vec<(ToolName, Arc<Manifest>)>;

fn shown(api: &Api, registry: &Registry) -> Shown {
    let shows = api.runs.callers.shows(&api.runs.caller);
    let entries = registry.catalog_of(api.runs.caller.tenant()).after(None);
    let shown = entries
        .iter()
        .filter(|entry| !entry.hosted.manifest.result_use.hidden && shows(entry) && registry.is_available(entry));
    shown.map(|entry| (entry.name.clone(), Arc::clone(&entry.hosted.manifest))).collect()
}

/// Whether two lists have the same content. Manifests of aliases are made again whenever any worker starts or leaves.
fn are_equal(one: &Shown, other: &Shown) -> bool {
    let same = |one: &Arc<Manifest>, other: &Arc<Manifest>| Arc::ptr_eq(one, other) || one == other;
    let pairs = || one.iter().zip(other);
    one.len() == other.len() && pairs().all(|(one, other)| one.0 == other.0 && same(&one.1, &other.1))
}
