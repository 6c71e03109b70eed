//! What the loop of an agent costs beside its model: turns of three parallel calls against a model that answers at
//! once, one agent after another, and 200 at once.

use std::time::{Duration, Instant};

use anyhow::ensure;
use harness::PATIENCE;
use harness::model::{Line, Model};
use proto::v1;
use serde_json::json;
use tokio::task::JoinSet;

use crate::Effort;
use crate::execute::{Fleet, Yard, is_completed, new_call, request};
use crate::measure::{Latencies, rounded};
use crate::results::Results;
use crate::roles;

const AGENT: &str = "
[agent.worker]
OPENAI
description = \"Works.\"
tools = [\"noop\"]
turns_max = 11
";
/// With calls; one more has the answer.
const TURNS: u32 = 10;
const CALLS_EACH: usize = 3;
const AGENTS: u32 = 100;
const AT_ONCE: u32 = 200;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let mut lines: Vec<Line> = (0..TURNS).map(|_| Line::calls(&vec![("noop", json!({})); CALLS_EACH])).collect();
    lines.push(Line::text("Done."));
    let model = Model::start(&[("go", lines)]).await;
    let yard = Yard::start(Fleet::default()).await?;
    let file = model.write(AGENT).display().to_string();
    let url = format!("http://{}", yard.coordinators[0].ready);
    let environment = [("TOOLYARD_AGENTS", file), ("TOOLYARD_API_URL", url)];
    let _worker = roles::start(&["workers", &yard.broker.url(), "64", "1", "0"], &environment).await?;
    let began = Instant::now();
    // The coordinator learns of the tool a moment after the worker is ready.
    while called(&yard).await.is_err() {
        ensure!(began.elapsed() < PATIENCE, "the agent does not answer");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let mut turns = Latencies::new();
    for _ in 0..effort.count(AGENTS) {
        let began = Instant::now();
        called(&yard).await?;
        turns.record(began.elapsed() / (TURNS + 1));
    }
    results.set("agents.turn", turns.to_json());
    let (began, mut agents, count) = (Instant::now(), JoinSet::new(), effort.count(AT_ONCE));
    for _ in 0..count {
        let stream = begun(&yard).await?;
        agents.spawn(ended(stream));
    }
    while let Some(ended) = agents.join_next().await {
        ended??;
    }
    let per_s = f64::from(count * (TURNS + 1)) / began.elapsed().as_secs_f64();
    results.set("agents.at_once", json!({ "agents": count, "turns_per_s": rounded(per_s) }));
    Ok(())
}

type Stream = tonic::Streaming<v1::ExecuteRunResponse>;

async fn called(yard: &Yard) -> anyhow::Result<()> {
    ended(begun(yard).await?).await
}

async fn begun(yard: &Yard) -> anyhow::Result<Stream> {
    let mut request = request(new_call("worker", json!({ "input": "go" }).to_string()));
    if let Some(run) = &mut request.run {
        run.rules = Some(v1::RunRules { confirmation: v1::Confirmation::None.into(), ..v1::RunRules::default() });
    }
    Ok(yard.client().execute_run(request).await?.into_inner())
}

/// Waits until the agent has answered. Its events are without a gap.
async fn ended(mut stream: Stream) -> anyhow::Result<()> {
    let (mut completed, mut next) = (false, 0);
    while let Some(message) = stream.message().await? {
        for event in &message.events {
            ensure!(event.sequence == next, "event {next} is missing");
            next += 1;
            completed |= is_completed(event);
        }
    }
    ensure!(completed, "the agent failed");
    Ok(())
}
