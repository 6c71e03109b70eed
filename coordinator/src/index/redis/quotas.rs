//! Exchange of quota counts among coordinators: one report per coordinator, in one hash.

use std::collections::HashMap;

use ::redis::pipe;

use super::RedisStore;
use crate::index::Unavailable;

/// Not among the index's keys, because emptying the index must not admit more than a quota.
const COUNTS: &str = "tyq:counts";
/// The hash expires when no coordinator has reported for so long.
const EXPIRY_S: u64 = 60;
/// Coordinators come and go, each under a name of its own: with more reports than this the old ones are removed.
const REPORTS_MAX: usize = 64;

impl RedisStore {
    /// Writes a member's report, and returns those of all others.
    pub(crate) async fn exchange(&self, member: &str, report: &str) -> Result<Vec<String>, Unavailable> {
        let mut pipeline = pipe();
        pipeline.cmd("HSET").arg(COUNTS).arg(member).arg(report).ignore();
        pipeline.cmd("EXPIRE").arg(COUNTS).arg(EXPIRY_S).ignore();
        pipeline.cmd("HGETALL").arg(COUNTS);
        let (mut words,): (HashMap<String, String>,) = self.one(&pipeline).await?;
        if words.len() > REPORTS_MAX {
            // Live coordinators report again within a second.
            self.one::<()>(pipe().cmd("UNLINK").arg(COUNTS).ignore()).await?;
        }
        words.remove(member);
        Ok(words.into_values().collect())
    }
}
