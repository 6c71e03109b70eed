//! Times at the rim, as the product has them: `coordinator/src/nats/leases.rs`, `coordinator/src/ledger.rs` and its
//! folder, `worker/src/nats.rs`, `worker/src/nats/job.rs`.

use std::time::Duration;

pub(crate) use proto::names::{JOB_FRESH, JOB_LEASE, JOB_LEASE_EXTENSION, WORKER_HEARTBEAT, WORKER_LOST};

pub(crate) const SOLELY_OURS: Duration = Duration::from_secs(2);
pub(crate) const SHARD_LEASE: Duration = Duration::from_secs(6);
pub(crate) const SHARD_LEASE_RENEWAL: Duration = Duration::from_secs(2);
pub(crate) const SHARD_LEASE_MARGIN: Duration = Duration::from_secs(1);
pub(crate) const EFFECT_REPEAT: Duration = Duration::from_secs(1);
pub(crate) const HAND_BACK_REPEAT: Duration = Duration::from_secs(10);
pub(crate) const OVERDUE: Duration = Duration::from_millis(500);
pub(crate) const QUEUE_LOOK: Duration = Duration::from_secs(1);
pub(crate) const QUEUE_PATIENCE: Duration = Duration::from_secs(2);
pub(crate) const QUEUE_SILENT: Duration = Duration::from_secs(3);
pub(crate) const QUEUE_GAP_MAX: Duration = Duration::from_secs(3);
pub(crate) const NOT_NOW: Duration = Duration::from_secs(1);
pub(crate) const ASK_PATIENCE: Duration = Duration::from_secs(10);
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(2);
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
