//! The same call through Toolyard: gRPC in, an ordered stream out.

use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use proto::v1::run_event::Event;
use proto::v1::{self, run_service_client::RunServiceClient};
use tokio::process::Child;
use tonic::transport::Channel;

use crate::roles;

pub(crate) struct Yard {
    runs: RunServiceClient<Channel>,
    _processes: [Child; 2],
}

impl Yard {
    pub(crate) async fn start(url: &str, slots: usize) -> anyhow::Result<Self> {
        let (coordinator, address) = roles::start(&["coordinator", url]).await?;
        let (worker, _) = roles::start(&["worker", url, &slots.to_string()]).await?;
        let runs = RunServiceClient::connect(format!("http://{address}")).await?;
        let yard = Self { runs, _processes: [coordinator, worker] };
        // The tools may take a moment to be known.
        for _ in 0..100 {
            if yard.call().await.is_ok() {
                return Ok(yard);
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        yard.call().await.context("the tools do not become known")?;
        Ok(yard)
    }

    pub(crate) fn call(&self) -> impl Future<Output = anyhow::Result<()>> + Send + 'static {
        let mut runs = self.runs.clone();
        async move {
            let mut stream = runs.execute_run(request("noop", "{}".to_owned())).await?.into_inner();
            let mut completed = false;
            while let Some(message) = stream.message().await? {
                completed |= message.events.iter().any(is_completed);
            }
            ensure!(completed, "the call did not complete");
            Ok(())
        }
    }

    /// A call until its first chunk is here.
    pub(crate) fn first_chunk(&self) -> impl Future<Output = anyhow::Result<()>> + Send + 'static {
        let mut runs = self.runs.clone();
        async move {
            let arguments = serde_json::json!({ "count": 1, "bytes": 64 }).to_string();
            let mut stream = runs.execute_run(request("chunks", arguments)).await?.into_inner();
            while let Some(message) = stream.message().await? {
                if message.events.iter().any(|event| matches!(event.event, Some(Event::CallOutput(_)))) {
                    return Ok(());
                }
            }
            bail!("the stream ended without a chunk")
        }
    }

    /// Chunks a second of one streaming call, from its submission to its end; every chunk must come, in order.
    pub(crate) async fn chunks_per_s(&self, count: u32) -> anyhow::Result<f64> {
        let began = Instant::now();
        let arguments = serde_json::json!({ "count": count, "bytes": 64 }).to_string();
        let mut stream = self.runs.clone().execute_run(request("chunks", arguments)).await?.into_inner();
        let mut next = 0;
        while let Some(message) = stream.message().await? {
            for event in message.events {
                if let Some(Event::CallOutput(output)) = event.event {
                    ensure!(output.chunk == next, "chunk {} came for {next}", output.chunk);
                    next += 1;
                }
            }
        }
        ensure!(next == count, "{next} of {count} chunks came");
        Ok(f64::from(count) / began.elapsed().as_secs_f64())
    }
}

fn request(tool: &str, arguments: String) -> v1::ExecuteRunRequest {
    let call = v1::NewCall { tool: tool.to_owned(), arguments, ..v1::NewCall::default() };
    v1::ExecuteRunRequest { calls: vec![call], ..v1::ExecuteRunRequest::default() }
}

fn is_completed(event: &v1::RunEvent) -> bool {
    let Some(Event::CallEnded(ended)) = &event.event else { return false };
    ended.outcome.as_ref().is_some_and(|outcome| outcome.state() == v1::CallState::Completed)
}
