//! Runs of a history of any size, read through a coordinator that has just been started: one that did not write them,
//! and whose log does not have them. Half of them are in shards that it owns, and half in shards of another one.

mod fill;

use std::path::Path;
use std::time::{Duration, Instant};

use ::history::{History, HistoryLocation};
use anyhow::{Context as _, ensure};
use proto::v1::run_service_client::RunServiceClient;
use proto::v1::{GetRunRequest, RunStatus, WatchRunRequest};
use rustix::fs::{Advice, fadvise};
use serde_json::json;
use tonic::transport::Channel;

use self::fill::{Filled, run_id};
use crate::Effort;
use crate::execute::{self, Fleet, Looked, Yard};
use crate::measure::{self, Latencies, rounded};
use crate::process::{Usage, forget_peak, peak_bytes};
use crate::results::Results;

/// Reads one after the other, with files that are in no cache at the beginning.
const COLD: u32 = 500;
const GETS: u32 = 5_000;
const WATCHES: u32 = 2_000;
/// Reads of several at once.
const AT_ONCE: (usize, u32) = (16, 10_000);
const MIB: f64 = 1024.0 * 1024.0;
const RETENTION: Duration = Duration::from_secs(30 * 86_400);

pub(crate) async fn measure(effort: Effort, runs: u64, results: &mut Results) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    let looked = Looked { history: Some(folder.path().to_owned()), ..Looked::default() };
    eprintln!("history: one run as an example");
    let example = fill::example(&looked, &open(folder.path())?).await?;
    eprintln!("history: writing {runs} runs");
    let filled = fill::fill(open(folder.path())?, example, runs).await?;
    let files = Files::of(folder.path())?;
    results.set("history.written", filled.to_json());
    results.set("history.files", files.to_json());
    files.forget()?;
    eprintln!("history: reading some of them");
    let fleet = Fleet { coordinators: 2, ..Fleet::default() };
    let yard = Yard::start_looked_at(fleet, &looked).await?;
    let read = Reading { client: execute::connect(&yard.coordinators[0].ready).await?, filled };
    let pid = yard.coordinators[0].pid;
    let at_start = Usage::of(pid)?.memory_mib();
    forget_peak(pid)?;
    results.set("history.cold", read.one_by_one(effort.count(COLD), 0, Reading::get).await?.to_json());
    results.set("history.get", read.one_by_one(effort.count(GETS), 1, Reading::get).await?.to_json());
    results.set("history.watch", read.one_by_one(effort.count(WATCHES), 2, Reading::watch).await?.to_json());
    let (in_flight, gets) = AT_ONCE;
    let numbers = (0..effort.count(gets)).map(|number| read.pick(number, 3));
    let per_s = measure::each(in_flight, numbers, |number| read.clone().get(number)).await?;
    results.set("history.at_once", json!({ "in_flight": in_flight, "gets_per_s": rounded(per_s) }));
    let (after, peak) = (Usage::of(pid)?.memory_mib(), rounded(peak_bytes(pid)? / MIB));
    results.set("history.coordinator_mib", json!({ "at_start": at_start, "after": after, "peak": peak }));
    Ok(())
}

pub(crate) fn open(folder: &Path) -> anyhow::Result<History> {
    Ok(History::new(&HistoryLocation::Folder(folder.to_owned()), RETENTION)?)
}

/// A client that reads random runs.
#[derive(Clone)]
struct Reading {
    client: RunServiceClient<Channel>,
    filled: Filled,
}

impl Reading {
    async fn one_by_one<F, R>(&self, reads: u32, series: u64, read: F) -> anyhow::Result<Latencies>
    where
        F: Fn(Self, u64) -> R,
        R: Future<Output = anyhow::Result<()>>,
    {
        let mut latencies = Latencies::new();
        for number in 0..reads.max(1) {
            let began = Instant::now();
            read(self.clone(), self.pick(number, series)).await?;
            latencies.record(began.elapsed());
        }
        Ok(latencies)
    }

    /// The number of a run that looks random, the same in each measurement.
    fn pick(&self, number: u32, series: u64) -> u64 {
        fill::mixed((series << 32) | u64::from(number)) % self.filled.runs.max(1)
    }

    async fn get(mut self, number: u64) -> anyhow::Result<()> {
        let run_id = run_id(&self.filled, number).to_string();
        let request = GetRunRequest { run_id: run_id.clone() };
        let found = self.client.get_run(request).await?.into_inner().run.context("the run")?;
        ensure!(found.run_id == run_id && found.status() == RunStatus::Completed, "{found:?} is not run {number}");
        Ok(())
    }

    async fn watch(mut self, number: u64) -> anyhow::Result<()> {
        let run_id = run_id(&self.filled, number).to_string();
        let request = WatchRunRequest { run_id, ..WatchRunRequest::default() };
        let (mut stream, mut is_completed) = (self.client.watch_run(request).await?.into_inner(), false);
        while let Some(message) = stream.message().await? {
            is_completed |= message.events.iter().any(execute::is_completed);
        }
        ensure!(is_completed, "the call of run {number} did not complete");
        Ok(())
    }
}

/// The files of the history.
struct Files(Vec<(std::path::PathBuf, u64)>);

impl Files {
    fn of(folder: &Path) -> anyhow::Result<Self> {
        let (mut files, mut folders) = (Vec::new(), vec![folder.to_owned()]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder)? {
                let entry = entry?;
                let about = entry.metadata()?;
                if about.is_dir() {
                    folders.push(entry.path());
                } else {
                    files.push((entry.path(), about.len()));
                }
            }
        }
        Ok(Self(files))
    }

    fn to_json(&self) -> serde_json::Value {
        let bytes: u64 = self.0.iter().map(|(_, bytes)| bytes).sum();
        json!({ "files": self.0.len(), "mib": rounded(bytes as f64 / MIB) })
    }

    /// Takes them out of the cache of the system.
    fn forget(&self) -> anyhow::Result<()> {
        for (path, _) in &self.0 {
            fadvise(&std::fs::File::open(path)?, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }
}
