//! Writes many runs straight to a history, as a coordinator would: copies of a real one, created over 25 days, which
//! ended 26 hours ago. The log can hold younger ones; where it never did, a coordinator proves that first, and this
//! proof is made four times a second at most.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ::history::{EndedRun, History, HistoryError};
use anyhow::Context as _;
use futures::{StreamExt as _, TryStreamExt as _};
use proto::convert::history::{HistoryMessage, HistoryPosition, HistoryRun};
use proto::v1::run_event::Event;
use run::{Partition, RunId, Shard, Timestamp};
use serde_json::{Value, json};
use uuid::Builder;

use crate::execute::{self, Fleet, Looked, Yard};
use crate::measure::rounded;

const LOG: u64 = 1;
const SHARDS: u64 = 16;
/// Runs of a shard that are written together.
const TOGETHER: u64 = 2_000;
/// Of the output of each run.
const OUTPUT_BYTES: u32 = 300;
const SPAN: Duration = Duration::from_secs(25 * 86_400);
/// The youngest run is a little older than what the log holds at most.
const SINCE: Duration = Duration::from_secs(26 * 3_600);
/// How often a write is repeated that had to wait for merges for too long.
const TRIES: u32 = 30;
/// The history writes every few seconds.
const EXAMPLE_PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);
/// Runs after which progress is reported.
const REPORT: u64 = 500_000;

/// What is in the history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Filled {
    pub(crate) runs: u64,
    /// When the first one was created.
    begin: Timestamp,
    bytes_each: usize,
    time: Duration,
    /// Writes that were repeated.
    repeated: u64,
}

impl Filled {
    pub(crate) fn to_json(self) -> Value {
        let (s, runs) = (self.time.as_secs_f64(), self.runs);
        let per_s = rounded(runs as f64 / s);
        json!({
            "runs": runs, "bytes_each": self.bytes_each, "s": rounded(s), "runs_per_s": per_s, "repeated": self.repeated
        })
    }
}

/// A number that looks random.
pub(crate) fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 29)
}

/// Runs are created one after the other, in each shard in turn.
pub(crate) fn run_id(filled: &Filled, number: u64) -> RunId {
    let shard = Shard(u8::try_from(number % SHARDS).unwrap_or_default());
    let millis = u128::from(number) * SPAN.as_millis() / u128::from(filled.runs.max(1));
    let created = filled.begin.0 + u64::try_from(millis).unwrap_or_default();
    let mut random = [0; 10];
    random[2..].copy_from_slice(&mixed(number).to_be_bytes());
    RunId::new(shard, Builder::from_unix_timestamp_millis(created, &random).into_uuid())
}

/// A run of one call, as a coordinator wrote it to the history.
pub(crate) async fn example(looked: &Looked, history: &History) -> anyhow::Result<(RunId, HistoryRun)> {
    let yard = Yard::start_looked_at(Fleet::default(), looked).await?;
    let call = execute::request(execute::chunks(1, OUTPUT_BYTES, 0));
    let (mut stream, mut id) = (yard.client().execute_run(call).await?.into_inner(), None);
    while let Some(message) = stream.message().await? {
        for event in message.events {
            if let Some(Event::RunOpened(opened)) = event.event {
                id = Some(opened.run_id);
            }
        }
    }
    let (id, began): (RunId, _) = (id.context("the run was opened")?.parse()?, Instant::now());
    loop {
        if let Some(found) = history.run(id, nats::time::now()).await? {
            return Ok((id, found));
        }
        anyhow::ensure!(began.elapsed() < EXAMPLE_PATIENCE, "the run is not in the history");
        tokio::time::sleep(LOOK).await;
    }
}

struct Fill {
    history: History,
    example: (RunId, HistoryRun),
    filled: Filled,
    written: AtomicU64,
    repeated: AtomicU64,
    began: Instant,
}

/// Writes copies of the example, to all shards at once.
pub(crate) async fn fill(history: History, example: (RunId, HistoryRun), runs: u64) -> anyhow::Result<Filled> {
    let began = Instant::now();
    let bytes_each = example.1.messages.iter().map(|message| message.payload.len()).sum();
    let filled =
        Filled { runs, begin: nats::time::now().before(SPAN + SINCE), bytes_each, time: Duration::ZERO, repeated: 0 };
    let (written, repeated) = (AtomicU64::new(0), AtomicU64::new(0));
    let fill = Arc::new(Fill { history, example, filled, written, repeated, began });
    let shards = Partition::FIRST.shards().map(|shard| {
        let fill = Arc::clone(&fill);
        async move { tokio::spawn(async move { fill.shard(shard).await }).await? }
    });
    futures::stream::iter(shards).buffer_unordered(usize::try_from(SHARDS)?).try_collect::<Vec<()>>().await?;
    let repeated = fill.repeated.load(Ordering::Relaxed);
    Ok(Filled { time: began.elapsed(), repeated, ..filled })
}

impl Fill {
    async fn shard(&self, shard: Shard) -> anyhow::Result<()> {
        let mut number = u64::from(shard.0);
        while number < self.filled.runs {
            let end = (number + TOGETHER * SHARDS).min(self.filled.runs);
            let numbers = || (number..end).step_by(usize::try_from(SHARDS).unwrap_or(1));
            let mut tries = 0;
            while let Err(error) = self.put(shard, numbers().map(|number| self.run(number)).collect(), end).await {
                tries += 1;
                anyhow::ensure!(tries < TRIES, "writing shard {shard}: {error}");
                self.repeated.fetch_add(1, Ordering::Relaxed);
            }
            self.report(numbers().count() as u64);
            number += TOGETHER * SHARDS;
        }
        self.history.end(shard).await;
        Ok(())
    }

    async fn put(&self, shard: Shard, runs: Vec<EndedRun>, through: u64) -> Result<(), HistoryError> {
        self.history.begin((shard, 0), LOG, u64::MAX).await?;
        self.history.put(shard, runs, HistoryPosition { log: LOG, through }).await
    }

    fn report(&self, runs: u64) {
        let before = self.written.fetch_add(runs, Ordering::Relaxed);
        let after = before + runs;
        if before / REPORT != after / REPORT {
            eprintln!("history: {after} runs after {} s", self.began.elapsed().as_secs());
        }
    }

    /// A copy of the example, as if it had been made at another time.
    fn run(&self, number: u64) -> EndedRun {
        let (example, run) = &self.example;
        let id = run_id(&self.filled, number);
        let (was, is) = (example.created_at(), id.created_at());
        let first = run.messages.first().map_or(0, |message| message.sequence);
        let moved = |message: &HistoryMessage| HistoryMessage {
            sequence: message.sequence - first + 1 + number * 16,
            at: is.after(message.at.since(was)),
            ..message.clone()
        };
        let messages: Vec<HistoryMessage> = run.messages.iter().map(moved).collect();
        let (last, ended_at) = messages.last().map_or((0, is), |message| (message.sequence, message.at));
        EndedRun { id, tenant: None, ended_at, last, messages, parts: 0 }
    }
}
