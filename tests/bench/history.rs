//! Random runs of a history, read by a coordinator that did not write them: from the store alone, without the API.

use std::time::{Duration, Instant};

use ::history::{EndedRun, History, HistoryLocation};
use bytes::Bytes;
use proto::convert::history::{HistoryMessage, HistoryPosition};
use run::{RunId, Shard, Timestamp};

use crate::Effort;
use crate::measure::{Latencies, rounded};
use crate::results::Results;

const LOG: u64 = 1;
/// Runs that are written together, as in a round of a busy shard.
const TOGETHER: u64 = 1000;
const READS: u32 = 5_000;
const RETENTION: Duration = Duration::from_secs(30 * 86_400);
/// The approximate size of the two entries of a small call.
const PAYLOADS: [usize; 2] = [350, 250];

pub(crate) async fn measure(effort: Effort, runs: u64, results: &mut Results) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let location = HistoryLocation::Folder(folder.path().to_owned());
    let (writer, reader) = (History::new(&location, RETENTION)?, History::new(&location, RETENTION)?);
    eprintln!("history: writing {runs} runs of one call");
    let began = Instant::now();
    let ids = fill(&writer, runs).await?;
    let written_per_s = rounded(ids.len() as f64 / began.elapsed().as_secs_f64());
    eprintln!("history: reading some of them");
    let mut latencies = Latencies::new();
    let reads = effort.count(READS);
    for number in 0..reads {
        let at = rand_index(u64::from(number), ids.len() as u64);
        let id = ids[usize::try_from(at)?];
        let began = Instant::now();
        let found = reader.run(id, now()).await?;
        latencies.record(began.elapsed());
        anyhow::ensure!(found.is_some_and(|run| run.messages.len() == PAYLOADS.len()), "run {id} is not there");
    }
    results.set("history", latencies.to_json());
    results.set("history.runs", ids.len());
    results.set("history.written_per_s", written_per_s);
    Ok(())
}

/// Writes runs to all shards in turn, and returns their ids.
async fn fill(history: &History, runs: u64) -> anyhow::Result<Vec<RunId>> {
    let (mut ids, mut sequence) = (Vec::new(), 0);
    while (ids.len() as u64) < runs {
        for shard in run::Partition::FIRST.shards() {
            history.begin(shard, LOG, u64::MAX).await?;
            let mut batch = Vec::new();
            for _ in 0..TOGETHER.min(runs - ids.len() as u64) {
                let id = RunId::new(shard, uuid::Uuid::now_v7());
                batch.push(run(id, &mut sequence));
                ids.push(id);
            }
            history.put(shard, batch, HistoryPosition { log: LOG, through: sequence }).await?;
        }
    }
    Ok(ids)
}

fn run(id: RunId, sequence: &mut u64) -> EndedRun {
    let mut message = |size: usize| {
        *sequence += 1;
        let noise = sequence.to_be_bytes();
        let payload = Bytes::from(noise.into_iter().cycle().take(size).collect::<Vec<u8>>());
        HistoryMessage { place: "0.out.main".to_owned(), sequence: *sequence, at: now(), payload }
    };
    let messages = PAYLOADS.map(&mut message).to_vec();
    EndedRun { id, tenant: None, ended_at: now(), last: *sequence, messages, parts: 0 }
}

fn now() -> Timestamp {
    RunId::new(Shard(0), uuid::Uuid::now_v7()).created_at()
}

/// A number below `end` that looks random, the same in each round.
fn rand_index(number: u64, end: u64) -> u64 {
    number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) % end.max(1)
}
