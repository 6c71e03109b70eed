//! Quotas of tenants and callers, from the file of callers, and the error when one is reached.

use std::time::Duration;

use owner::turns::WEIGHT_MAX;
use serde::Deserialize;

/// Default limit of the bytes of a tenant's uploads: one of the largest uploads, and half of the default size of the
/// broker's object store, so that no tenant fills it alone.
pub(crate) const UPLOAD_BYTES: u64 = 256 * 1024 * 1024;

/// Limits of a tenant; `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quota {
    /// Runs that have not ended.
    pub(crate) open_runs: Option<u32>,
    /// Calls that have not ended.
    pub(crate) calls_at_once: Option<u32>,
    /// Accepted calls per second, averaged over some seconds.
    pub(crate) calls_per_second: Option<u32>,
    /// Calls that are queued or running; further calls wait.
    pub(crate) running_calls: Option<u32>,
    /// Bytes of uploads; [`UPLOAD_BYTES`] if not set.
    pub(crate) upload_bytes: Option<u64>,
    /// Bytes of runs in the log; a part of the log if not set, see [`LOG_PARTS`].
    pub(crate) log_bytes: Option<u64>,
    /// The tenant's part of the slots of a pool, beside those of other tenants with waiting calls; 1 if not set.
    pub(crate) weight: Option<u32>,
}

impl Quota {
    /// The weight, if it is out of range.
    pub(crate) fn invalid_weight(&self) -> Option<u32> {
        self.weight.filter(|weight| !(1..=WEIGHT_MAX).contains(weight))
    }

    pub(crate) fn allows_nothing(&self) -> bool {
        self.log_bytes == Some(0)
            || [self.open_runs, self.calls_at_once, self.calls_per_second, self.running_calls].contains(&Some(0))
    }
}

/// A tenant or caller has reached a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the tenant or caller has reached its limit of {limit} {what}{remedy}")]
pub(crate) struct Exceeded {
    pub(crate) what: &'static str,
    pub(crate) limit: u64,
    /// The remedy besides retrying later; empty if there is none.
    pub(crate) remedy: &'static str,
    /// When a retry may succeed.
    pub(crate) retry_after: Duration,
}
