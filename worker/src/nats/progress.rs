//! The state that the admin port reports. It is that of the last heartbeat, because nothing else leaves the worker's
//! thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

use run::{PoolId, WorkerId};
use serde_json::json;
use telemetry::admin::Process;
use tokio_util::sync::CancellationToken;

use crate::{SandboxReport, WorkerSandbox};

#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The broker answers its requests for jobs, or all its slots are taken.
    pulling: AtomicBool,
    running: AtomicU32,
    /// Slots that no call takes.
    free: AtomicU32,
}

impl Progress {
    pub(super) fn note(&self, pulling: bool, running: u32, free: u32) {
        self.pulling.store(pulling, Relaxed);
        self.running.store(running, Relaxed);
        self.free.store(free, Relaxed);
    }

    /// A worker is ready while jobs reach it, so a rollout can wait for that.
    pub(super) fn process(
        self: &Arc<Self>,
        worker: &WorkerId,
        pool: &PoolId,
        slots: u32,
        sandbox: Option<&SandboxReport>,
        stop: CancellationToken,
    ) -> Process {
        let (progress, worker, pool) = (Arc::clone(self), worker.to_string(), pool.to_string());
        let pulls = Arc::clone(self);
        let sandbox = sandbox.map(|SandboxReport { effective, gaps }| {
            let WorkerSandbox { level, workspace, network } = effective;
            json!({ "level": level, "workspace": workspace, "network": network, "gaps": gaps })
        });
        Process {
            is_ready: Box::new(move || pulls.pulling.load(Relaxed) && !stop.is_cancelled()),
            stats: Box::new(move || {
                let running = progress.running.load(Relaxed);
                let free = progress.free.load(Relaxed);
                let stats = json!({
                    "worker": worker, "pool": pool, "slots": slots, "running": running, "free_slots": free,
                    "sandbox": sandbox,
                });
                Box::pin(async { Ok(stats) })
            }),
        }
    }
}
