//! Output that streams: the first chunk, and chunks and bytes a second, of one call and of a hundred at once. Every
//! chunk must come, in order.

use std::time::Instant;

use anyhow::ensure;
use proto::v1::run_event::Event;
use serde_json::json;
use tokio::task::JoinSet;

use crate::Effort;
use crate::execute::{self, Yard};
use crate::measure::{self, Latencies, median, rounded};
use crate::results::Results;

/// Calls until their first chunk, in each round.
const FIRST_CHUNKS: u32 = 200;

/// So many calls at once, each of which says so many chunks of so many bytes.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) calls: u32,
    pub(crate) chunks: u32,
    pub(crate) bytes: u32,
}

const SHAPES: [Shape; 4] = [
    Shape { name: "one_call_64_bytes", calls: 1, chunks: 100_000, bytes: 64 },
    Shape { name: "one_call_16_kib", calls: 1, chunks: 3_000, bytes: 16 * 1024 },
    Shape { name: "hundred_calls_64_bytes", calls: 100, chunks: 2_000, bytes: 64 },
    Shape { name: "hundred_calls_16_kib", calls: 100, chunks: 50, bytes: 16 * 1024 },
];

pub(crate) async fn measure(yard: &Yard, effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let mut first_chunks = Latencies::new();
    let mut rates = SHAPES.map(|_| Vec::new());
    for round in 1..=effort.rounds {
        eprintln!("stream: round {round} of {}", effort.rounds);
        measure::one_by_one(effort.count(FIRST_CHUNKS), &mut first_chunks, || yard.first_chunk()).await?;
        for (shape, rates) in SHAPES.iter().zip(&mut rates) {
            rates.push(chunks_per_s(yard, "chunks", shape, effort).await?);
        }
    }
    for (shape, rates) in SHAPES.iter().zip(rates) {
        let chunks_per_s = median(rates);
        let bytes_per_s = rounded(chunks_per_s * f64::from(shape.bytes));
        let result = json!({ "chunks_per_s": rounded(chunks_per_s), "bytes_per_s": bytes_per_s });
        if (shape.calls, shape.bytes) == (1, 64) {
            results.set("execute.chunks_per_s", rounded(chunks_per_s));
        }
        results.set(&format!("stream.{}", shape.name), result);
    }
    results.set("execute.first_chunk_p50_ms", first_chunks.ms(0.5));
    results.set("stream.first_chunk", first_chunks.to_json());
    Ok(())
}

/// From the first submission to the last end.
pub(crate) async fn chunks_per_s(yard: &Yard, tool: &str, shape: &Shape, effort: Effort) -> anyhow::Result<f64> {
    let (began, mut calls) = (Instant::now(), JoinSet::new());
    let chunks = effort.count(shape.chunks);
    for _ in 0..shape.calls {
        let (mut runs, call) = (yard.client(), execute::chunks_of(tool, (chunks, shape.bytes, 0)));
        calls.spawn(async move {
            let mut stream = runs.execute_run(execute::request(call)).await?.into_inner();
            let mut next = 0;
            while let Some(message) = stream.message().await? {
                for event in message.events {
                    if let Some(Event::CallOutput(output)) = event.event {
                        ensure!(output.chunk == next, "chunk {} came for {next}", output.chunk);
                        next += 1;
                    }
                }
            }
            ensure!(next == chunks, "{next} of {chunks} chunks came");
            Ok(())
        });
    }
    while let Some(ended) = calls.join_next().await {
        ended??;
    }
    Ok(f64::from(chunks * shape.calls) / began.elapsed().as_secs_f64())
}
