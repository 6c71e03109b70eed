//! Advertises the tools of the worker and sends its heartbeats.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use nats::append::AppendFailure;
use proto::convert::worker::{Heartbeat, encode_advertisement};
use proto::names;
use run::{PoolId, ToolSetId};
use tokio_util::sync::CancellationToken;
use toolyard_tool::Table;

use super::Core;

const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often a worker checks that its advertisement is still stored: coordinators delete a set of tools that no worker
/// hosted for a day, and a worker that was disconnected for so long must advertise again.
const LOOK: Duration = Duration::from_secs(60);

/// Advertises the tools of this worker, unless an equal worker did. Retries until it is stored: the bucket exists only
/// after a coordinator started.
pub(super) async fn tools(core: &Core, pool: &PoolId) {
    tools_of(core, pool, &core.table()).await;
}

/// Advertises the tools of a table, and gives their digest.
async fn tools_of(core: &Core, pool: &PoolId, table: &Table) -> ToolSetId {
    loop {
        let error = match try_tools(core, pool, table).await {
            Ok(set) => return set,
            Err(error) => error,
        };
        tracing::warn!(%error, %pool, "cannot advertise the tools yet, trying again: {}", likely(&error));
        tokio::time::sleep(RETRY_PAUSE).await;
    }
}

/// Tools that an operator should check.
fn likely(error: &PublishError) -> &'static str {
    match error.kind() {
        PublishErrorKind::StreamNotFound => "no coordinator has made the bucket of tools yet: start one",
        // The broker does not answer requests that it forbids.
        PublishErrorKind::TimedOut => {
            "the broker does not answer: it has no leader, or the key (--nats-nkey) is not the one of this pool"
        }
        _ => "the broker did not store the advertisement",
    }
}

async fn try_tools(core: &Core, pool: &PoolId, table: &Table) -> Result<ToolSetId, PublishError> {
    // A worker may not read what is stored there, so it does not look first. It never stores twice, because the
    // position in the bucket decides which pool was first.
    let (set, value) = encode_advertisement(table.manifests());
    let subject = format!("$KV.{}.{}", names::TOOLS_BUCKET, names::advertisement(pool, &set));
    let message = PublishMessage::build().payload(value).expected_last_subject_sequence(0);
    let confirmed = match core.context.send_publish(subject, message).await {
        Ok(confirmation) => confirmation.await,
        Err(error) => Err(error),
    };
    match confirmed {
        Err(error) if AppendFailure::of(&error) != AppendFailure::Conflict => Err(error),
        Ok(_) | Err(_) => Ok(set),
    }
}

/// Keeps the advertisement stored, and advertises and hosts other tools when they change.
pub(super) async fn keep(core: Rc<Core>, pool: PoolId, stop: CancellationToken) {
    let (mut tables, mut may_change) = (core.tables.clone(), true);
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {
                if let Err(error) = try_tools(&core, &pool, &core.table()).await {
                    tracing::warn!(%error, "cannot see whether the tools are still advertised, trying again");
                }
            }
            changed = tables.changed(), if may_change => {
                may_change = changed.is_ok();
                if may_change {
                    let table = Arc::clone(&tables.borrow_and_update());
                    tokio::select! {
                        () = change(&core, &pool, table) => {}
                        () = stop.cancelled() => return,
                    }
                }
            }
            () = stop.cancelled() => return,
        }
    }
}

/// Hosts the tools of another table. They are advertised first, so that every heartbeat names a stored set.
async fn change(core: &Core, pool: &PoolId, table: Arc<Table>) {
    if let Err(error) = crate::hooked::check(&core.hooks, &table) {
        tracing::error!(%error, "the tools have changed, and a hook cannot watch the new ones: the old ones stay");
        return;
    }
    let set = tools_of(core, pool, &table).await;
    tracing::info!(tools = table.manifests().count(), "hosting changed tools");
    core.host(table, set);
}

pub(super) async fn heartbeats(core: Rc<Core>, pool: PoolId, slots: u32, stop: CancellationToken) {
    let mut tick = tokio::time::interval(names::WORKER_HEARTBEAT);
    loop {
        let draining = core.stop.is_cancelled();
        tokio::select! {
            _ = tick.tick() => {}
            () = core.reached.notified() => {}
            // The sender of the drain request waits for this heartbeat.
            () = core.stop.cancelled(), if !draining => {}
            () = stop.cancelled() => return,
        }
        send(&core, &pool, slots, false).await;
    }
}

/// The last word: coordinators need not wait for the next heartbeat to miss it.
pub(super) async fn leave(core: &Core, pool: &PoolId) {
    send(core, pool, 0, true).await;
}

async fn send(core: &Core, pool: &PoolId, slots: u32, leaving: bool) {
    let running = u32::try_from(core.running_count()).unwrap_or(u32::MAX);
    let pulling = core.is_pulling(slots);
    let free = slots.saturating_sub(core.busy());
    core.progress.note(pulling && !leaving, running, free);
    core.counts.note(slots, running, free);
    let (worker, tools, draining) = (core.worker.clone(), core.set(), core.stop.is_cancelled());
    let release = env!("CARGO_PKG_VERSION").to_owned();
    let sandbox = core.sandbox.as_ref().map(|sandbox| sandbox.effective.clone());
    let hooks = core.hooks.about_executions().into_iter().map(str::to_owned).collect();
    let heartbeat = Heartbeat { worker, slots, running, leaving, pulling, tools, draining, release, sandbox, hooks };
    if let Err(error) = core.client.publish(names::heartbeat(pool), heartbeat.encode()).await {
        tracing::warn!(%error, "a heartbeat was not sent");
    }
}
