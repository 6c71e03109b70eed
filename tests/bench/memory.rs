//! The broker in a memory cgroup at the proportions of the chart: small calls until the log is full, then as many
//! messages as it may hold at most, then a restart in the same limit.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use async_nats::jetstream::{self, stream};
use futures::future::join_all;
use harness::reason;
use local::{Lookup, Program};
use proto::names;
use proto::subject::{Subject, SubjectKind};
use proto::v1::{self, run_service_client::RunServiceClient};
use run::{CallIndex, RunId, Shard};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::Effort;
use crate::execute;
use crate::measure::rounded;
use crate::process::{Usage, peak_bytes};
use crate::results::Results;
use crate::roles;

/// As the chart: 4 GiB for a log of 1 GiB, and 85 % of the limit for `GOMEMLIMIT`.
const LIMIT_PER_LOG_BYTE: u64 = 4;
const GO_PERCENT: u64 = 85;
const CGROUPS: &str = "/sys/fs/cgroup/memory";
const IN_FLIGHT: usize = 256;
/// Messages that are on their way at once.
const PUBLISHED: usize = 1000;
const PATIENCE: Duration = Duration::from_secs(60);
const REMOVED_PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
const MIB: f64 = 1024.0 * 1024.0;

/// Whether this process may make a memory cgroup, as the trial needs.
pub(crate) fn is_possible() -> bool {
    Group::of(1 << 30).is_ok()
}

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let log_bytes = effort.memory_log_mib << 20;
    let group = Group::of(log_bytes * LIMIT_PER_LOG_BYTE)?;
    let mut broker = Confined::start(&group).await?;
    results.set("memory.limit_mib", mib(group.number("memory.limit_in_bytes")?));
    let log_max = log_bytes.to_string();
    let coordinator = roles::start(&["coordinator", &broker.url(), "--log-max-bytes", &log_max], &[]).await?;
    let _worker = roles::start(&["workers", &broker.url(), "512", "1", "0"], &[]).await?;
    let client = execute::connect(&coordinator.ready).await?;
    execute::until_known(&client).await?;
    results.set("memory.at_rest", row(&broker, 0).await?);

    eprintln!("memory: calls with request ids, until there is no room for another id");
    let with_ids = fill(&client, true).await?;
    results.set("memory.ids_full", row(&broker, with_ids).await?);
    eprintln!("memory: calls without");
    let calls = with_ids + fill(&client, false).await?;
    results.set("memory.log_full", row(&broker, calls).await?);
    eprintln!("memory: messages until the broker refuses them");
    broker.fill_up().await?;
    results.set("memory.no_message_more", row(&broker, calls).await?);

    let log_before = broker.log().await?.cached_info().state.messages;
    let back = broker.restart().await?;
    results.set("memory.restarted", row(&broker, calls).await?);
    results.set("memory.restarted.back_after_s", rounded(back.as_secs_f64()));
    let log = broker.log().await?;
    let log_after = log.cached_info().state.messages;
    ensure!(log_after >= log_before, "{log_after} messages after the restart, {log_before} before");
    // As age does: the oldest leave.
    let middle = log.cached_info().state.last_sequence / 2;
    log.purge().sequence(middle).await?;
    until_served(&client).await?;
    results.set("memory.drained", row(&broker, calls + 1).await?);
    let killed = group.killed()?;
    results.set("memory.killed_by_the_kernel", killed);
    ensure!(killed == 0, "the kernel killed the broker {killed} times");
    broker.end().await
}

/// A memory cgroup, removed with its processes gone.
pub(crate) struct Group(PathBuf);

impl Group {
    pub(crate) fn of(limit: u64) -> anyhow::Result<Self> {
        let path = Path::new(CGROUPS).join(format!("toolyard-bench-{}", std::process::id()));
        let needs = || format!("{}: needs root, and the memory controller of cgroup v1 at {CGROUPS}", path.display());
        std::fs::create_dir(&path).with_context(needs)?;
        let group = Self(path.clone());
        std::fs::write(path.join("memory.limit_in_bytes"), limit.to_string()).with_context(needs)?;
        Ok(group)
    }

    fn number(&self, file: &str) -> anyhow::Result<u64> {
        Ok(std::fs::read_to_string(self.0.join(file))?.trim().parse()?)
    }

    /// Processes that the kernel killed because of the limit.
    pub(crate) fn killed(&self) -> anyhow::Result<u64> {
        let control = std::fs::read_to_string(self.0.join("memory.oom_control"))?;
        let killed = control.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(killed.context("the kernel counts what it kills")?.trim().parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A server that was just killed is in it for a moment longer.
        let give_up = Instant::now() + REMOVED_PATIENCE;
        while let Err(error) = std::fs::remove_dir(&self.0) {
            if Instant::now() >= give_up {
                eprintln!("{} stays: {error}", self.0.display());
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// A `nats-server` in a group.
pub(crate) struct Confined {
    /// Starts it: the shell joins the group, then becomes the server.
    command: Command,
    port: u16,
    child: Child,
    folder: TempDir,
}

impl Confined {
    pub(crate) async fn start(group: &Group) -> anyhow::Result<Self> {
        let program = local::find(Program::NatsServer, &Lookup::from_env(), |line| eprintln!("{line}")).await?;
        let (folder, port) = (tempfile::tempdir()?, local::free_port()?);
        let memory = group.number("memory.limit_in_bytes")? / 100 * GO_PERCENT;
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(group.0.join("cgroup.procs"))
            .arg(program)
            .args(["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream", "--store_dir"])
            .arg(folder.path())
            .env("GOMEMLIMIT", memory.to_string())
            .stderr(Stdio::null())
            .kill_on_drop(true);
        let child = command.spawn()?;
        let mut broker = Self { command, port, child, folder };
        broker.until(async |broker| async_nats::connect(broker.url()).await.is_ok()).await?;
        Ok(broker)
    }

    pub(crate) fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub(crate) fn pid(&self) -> anyhow::Result<u32> {
        self.child.id().context("the broker runs")
    }

    /// Where it stores everything.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until it does something. Fails if it ends, as when the kernel kills it.
    async fn until(&mut self, is_so: impl AsyncFn(&Self) -> bool) -> anyhow::Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while !is_so(self).await {
            if let Some(status) = self.child.try_wait()? {
                bail!("the broker ended: {status}");
            }
            ensure!(Instant::now() < give_up, "the broker does not serve");
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }

    pub(crate) async fn log(&self) -> anyhow::Result<stream::Stream> {
        let context = jetstream::new(async_nats::connect(self.url()).await?);
        Ok(context.get_stream(names::STREAM).await?)
    }

    /// Stores messages on subjects of their own until the log holds as many as it may: ends of as many calls may come.
    async fn fill_up(&self) -> anyhow::Result<()> {
        let context = jetstream::new(async_nats::connect(self.url()).await?);
        loop {
            let mut stored = Vec::new();
            for _ in 0..PUBLISHED {
                let run = RunId::new(Shard(0), uuid::Uuid::now_v7());
                let subject = Subject { run, place: SubjectKind::Control { call: CallIndex(0) } }.to_string();
                stored.push(context.publish(subject, vec![0; 120].into()).await?.into_future());
            }
            if let Some(refused) = join_all(stored).await.into_iter().find_map(Result::err) {
                let full = "maximum messages exceeded";
                ensure!(format!("{refused:?}").contains(full), "not the bound of messages: {refused:?}");
                return Ok(());
            }
        }
    }

    /// Kills it and starts it again in the same group. Gives the time until it has the log.
    async fn restart(&mut self) -> anyhow::Result<Duration> {
        self.child.kill().await?;
        let began = Instant::now();
        self.child = self.command.spawn()?;
        self.until(async |broker| broker.log().await.is_ok()).await?;
        Ok(began.elapsed())
    }

    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        Ok(self.child.kill().await?)
    }
}

/// Makes calls until one is refused because the log is full. Gives how many were made.
async fn fill(client: &RunServiceClient<Channel>, with_ids: bool) -> anyhow::Result<u64> {
    let (mut calls, mut tasks, mut is_full) = (0, JoinSet::new(), false);
    for _ in 0..IN_FLIGHT {
        tasks.spawn(call(client.clone(), with_ids));
    }
    while let Some(ended) = tasks.join_next().await {
        if ended?? {
            calls += 1;
        } else {
            is_full = true;
        }
        if !is_full {
            tasks.spawn(call(client.clone(), with_ids));
        }
    }
    Ok(calls)
}

/// Whether a call was made, and not refused for want of room.
async fn call(mut client: RunServiceClient<Channel>, with_id: bool) -> anyhow::Result<bool> {
    let request_id = if with_id { uuid::Uuid::now_v7().to_string() } else { String::new() };
    let calls = vec![execute::new_call("noop", "{}".to_owned())];
    let run = v1::CreateRunRequest { calls, request_id, ..v1::CreateRunRequest::default() };
    let mut stream = match client.execute_run(v1::ExecuteRunRequest::from(run)).await {
        Ok(stream) => stream.into_inner(),
        Err(refusal) if reason(&refusal) == "LOG_FULL" => return Ok(false),
        Err(refusal) => return Err(refusal.into()),
    };
    let mut completed = false;
    while let Some(message) = stream.message().await? {
        completed |= message.events.iter().any(execute::is_completed);
    }
    ensure!(completed, "an accepted call did not complete");
    Ok(true)
}

/// Waits until a call is accepted and completes.
async fn until_served(client: &RunServiceClient<Channel>) -> anyhow::Result<()> {
    let give_up = Instant::now() + PATIENCE;
    while !matches!(call(client.clone(), false).await, Ok(true)) {
        ensure!(Instant::now() < give_up, "no call is made after the restart");
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// The broker's stored data and memory.
async fn row(broker: &Confined, calls: u64) -> anyhow::Result<Value> {
    let context = jetstream::new(async_nats::connect(broker.url()).await?);
    let log = context.get_stream(names::STREAM).await?;
    let ids = context.get_stream(format!("KV_{}", names::REQUESTS_BUCKET)).await?;
    let (state, ids) = (&log.cached_info().state, ids.cached_info().state.subjects_count);
    let pid = broker.pid()?;
    Ok(json!({
        "calls": calls,
        "log_messages": state.messages,
        "log_subjects": state.subjects_count,
        "log_mib": mib(state.bytes),
        "request_ids": ids,
        "rss_mib": rounded(Usage::of(pid)?.memory_bytes / MIB),
        "rss_peak_mib": rounded(peak_bytes(pid)? / MIB),
    }))
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^52")]
pub(crate) fn mib(bytes: u64) -> f64 {
    rounded(bytes as f64 / MIB)
}
