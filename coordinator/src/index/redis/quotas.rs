//! What coordinators tell each other of the tenants that have quotas: a word each, in one hash.

use std::collections::HashMap;

use ::redis::pipe;

use super::RedisStore;
use crate::index::Unavailable;

/// Not among the index's keys: what empties the index must not admit more than a quota.
const COUNTS: &str = "tyq:counts";
/// The hash is gone when nobody has said anything for so long.
const EXPIRY_S: u64 = 60;
/// Coordinators come and go, each under a name of its own: with more words than this the old ones are forgotten.
const WORDS_MAX: usize = 64;

impl RedisStore {
    /// Says a member's word, and hears those of all others.
    pub(crate) async fn exchange(&self, member: &str, word: &str) -> Result<Vec<String>, Unavailable> {
        let mut pipeline = pipe();
        pipeline.cmd("HSET").arg(COUNTS).arg(member).arg(word).ignore();
        pipeline.cmd("EXPIRE").arg(COUNTS).arg(EXPIRY_S).ignore();
        pipeline.cmd("HGETALL").arg(COUNTS);
        let (mut words,): (HashMap<String, String>,) = self.one(&pipeline).await?;
        if words.len() > WORDS_MAX {
            // Who lives says it again within a second.
            self.one::<()>(pipe().cmd("UNLINK").arg(COUNTS).ignore()).await?;
        }
        words.remove(member);
        Ok(words.into_values().collect())
    }
}
