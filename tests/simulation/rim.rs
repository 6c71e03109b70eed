//! Times of the drivers, as the product has them: `coordinator/src/owner.rs` and its folder, `worker/src/nats.rs`.

use std::time::Duration;

pub(crate) use proto::names::{JOB_LEASE, JOB_LEASE_EXTENSION, WORKER_HEARTBEAT, WORKER_LOST};

/// How often the workers of all calls are checked.
pub(crate) const CHECK_WORKERS: Duration = Duration::from_secs(1);
/// How often snapshots are written, where there is news: more often than the product's.
pub(crate) const WRITE_SNAPSHOTS: Duration = Duration::from_secs(2);
/// How long the queues are waited for, and the confirmation of an effect: shorter than the product's.
pub(crate) const QUEUES_PATIENCE: Duration = Duration::from_secs(2);
pub(crate) const EFFECT_PATIENCE: Duration = Duration::from_secs(1);
pub(crate) const APPEND_PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const DECISIONS_MAX: u32 = 16;
/// How long a coordinator waits for the confirmation of what it appends.
pub(crate) const ORDER_PATIENCE: Duration = Duration::from_secs(15);
/// By how much clocks of this world differ, which the product's do not.
pub(crate) const CLOCKS_APART: Duration = Duration::from_secs(1);

/// Shorter than the product's, so that a step is not waited for longer than a fault lasts.
pub(crate) const APPEND_TIMEOUT: Duration = Duration::from_millis(800);
/// Fewer than the product's, so that windows fill.
pub(crate) const WINDOW: usize = 4;
