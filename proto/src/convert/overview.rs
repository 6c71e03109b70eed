//! Messages between coordinators: each one's share of the overview.

use bytes::Bytes;
use prost::Message as _;
use run::Timestamp;

use super::{InvalidMessage, VERSION, check_version};
use crate::wire::v1 as wire;

/// Figures of the calls of one coordinator's shards.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OverviewShare {
    /// A name that the coordinator made when it started.
    pub coordinator: String,
    /// It shuts down, and its shards go to others.
    pub leaving: bool,
    pub shards: u32,
    pub runs_open: u64,
    pub waiting_for_client: u64,
    pub awaiting_approval: u64,
    /// Age of the newest entry of the log when it arrived, in milliseconds.
    pub lag_ms: u64,
    /// The newest part of `ended_each`, counted from 1970.
    pub newest_part: u64,
    pub tools: Vec<ToolShare>,
}

/// Calls of a tool in a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolShare {
    /// Empty for calls that no worker executes.
    pub pool: String,
    pub tool: String,
    pub standing: Standing,
    /// Ends in the window: completed, failed, cancelled, expired.
    pub ended: [u32; 4],
    /// All ends by parts of the window, the oldest first.
    pub ended_each: Vec<u32>,
    /// How many calls began after about the same time: a bucket and its count.
    pub to_start: Vec<(u32, u32)>,
    /// The same for their ends.
    pub to_end: Vec<(u32, u32)>,
}

/// Calls of a tool that have not ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    pub waiting: u32,
    pub runnable: u32,
    pub without_worker: u32,
    pub running: u32,
    /// Since when the oldest runnable call has been in the queue.
    pub oldest: Option<Timestamp>,
}

impl OverviewShare {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        wire::OverviewShare {
            version: VERSION,
            coordinator: self.coordinator.clone(),
            leaving: self.leaving,
            shards: self.shards,
            runs_open: self.runs_open,
            waiting_for_client: self.waiting_for_client,
            awaiting_approval: self.awaiting_approval,
            lag_ms: self.lag_ms,
            newest_part: self.newest_part,
            tools: self.tools.iter().map(tool_out).collect(),
        }
        .encode_to_vec()
        .into()
    }

    /// Decodes a share.
    ///
    /// # Errors
    /// When the message is not one.
    pub fn decode(payload: Bytes) -> Result<Self, InvalidMessage> {
        let wire = wire::OverviewShare::decode(payload)?;
        check_version(wire.version)?;
        let wire::OverviewShare { coordinator, leaving, shards, runs_open, .. } = wire;
        let wire::OverviewShare { waiting_for_client, awaiting_approval, lag_ms, newest_part, tools, .. } = wire;
        let tools = tools.into_iter().map(tool_in).collect();
        Ok(Self {
            coordinator,
            leaving,
            shards,
            runs_open,
            waiting_for_client,
            awaiting_approval,
            lag_ms,
            newest_part,
            tools,
        })
    }
}

fn tool_out(share: &ToolShare) -> wire::ToolShare {
    let Standing { waiting, runnable, without_worker, running, oldest } = share.standing;
    wire::ToolShare {
        pool: share.pool.clone(),
        tool: share.tool.clone(),
        waiting,
        runnable,
        without_worker,
        running,
        oldest_ms: oldest.map_or(0, |oldest| oldest.0),
        ended: share.ended.to_vec(),
        ended_each: share.ended_each.clone(),
        to_start: buckets_out(&share.to_start),
        to_end: buckets_out(&share.to_end),
    }
}

fn tool_in(wire: wire::ToolShare) -> ToolShare {
    let wire::ToolShare { pool, tool, waiting, runnable, without_worker, running, oldest_ms, .. } = wire;
    let oldest = (oldest_ms > 0).then_some(Timestamp(oldest_ms));
    let mut ended = [0; 4];
    ended.iter_mut().zip(&wire.ended).for_each(|(ended, count)| *ended = *count);
    ToolShare {
        pool,
        tool,
        standing: Standing { waiting, runnable, without_worker, running, oldest },
        ended,
        ended_each: wire.ended_each,
        to_start: buckets_in(&wire.to_start),
        to_end: buckets_in(&wire.to_end),
    }
}

fn buckets_out(buckets: &[(u32, u32)]) -> Vec<wire::Bucket> {
    buckets.iter().map(|(index, count)| wire::Bucket { index: *index, count: *count }).collect()
}

fn buckets_in(buckets: &[wire::Bucket]) -> Vec<(u32, u32)> {
    buckets.iter().map(|bucket| (bucket.index, bucket.count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_read_as_it_was_written() {
        let tool = ToolShare {
            pool: "main".to_owned(),
            tool: "bash".to_owned(),
            standing: Standing {
                waiting: 5,
                runnable: 4,
                without_worker: 1,
                running: 3,
                oldest: Some(Timestamp(1_700_000_000_000)),
            },
            ended: [1, 2, 3, 4],
            ended_each: vec![0, 10, 0],
            to_start: vec![(3, 2), (90, 1)],
            to_end: vec![(7, 4)],
        };
        let share = OverviewShare {
            coordinator: "c-1".to_owned(),
            leaving: true,
            shards: 8,
            runs_open: 7,
            waiting_for_client: 6,
            awaiting_approval: 5,
            lag_ms: 4,
            newest_part: 340_000_000,
            tools: vec![tool, ToolShare::default()],
        };
        assert_eq!(OverviewShare::decode(share.encode()).expect("a share"), share);
        assert!(OverviewShare::decode(Bytes::new()).is_err(), "its version is missing");
    }
}
