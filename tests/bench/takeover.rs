//! How long a coordinator is missed that was killed: until a reader that turns to another reads on, and until all of
//! its shards have an owner again.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use harness::Shards;
use proto::v1;
use proto::v1::run_event::Event;
use serde_json::json;

use crate::Effort;
use crate::execute::{self, Fleet, Yard};
use crate::measure::{median, rounded};
use crate::results::Results;

/// A call that speaks for longer than a takeover takes.
const CHUNKS: u32 = 3_000;
const EVERY_MS: u32 = 10;
/// Chunks that are read before the coordinator is killed.
const READ_BEFORE: usize = 50;

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let (mut missed_ms, mut owned_s) = (Vec::new(), Vec::new());
    for round in 1..=effort.rounds {
        eprintln!("takeover: round {round} of {}", effort.rounds);
        let mut yard = Yard::start(Fleet { coordinators: 2, ..Fleet::default() }).await?;
        let shards = Shards::at(&yard.broker.url()).await;
        shards.until(&[8, 8]).await;
        let (mut first, mut second) = (
            execute::connect(&yard.coordinators[0].ready).await?,
            execute::connect(&yard.coordinators[1].ready).await?,
        );

        let call = execute::chunks(CHUNKS, 64, EVERY_MS);
        let mut stream = first.execute_run(execute::request(call)).await?.into_inner();
        let (mut run_id, mut last, mut chunks) = (None, 0, 0);
        while chunks < READ_BEFORE {
            let message = stream.message().await?.context("the call speaks")?;
            for event in message.events {
                last = event.sequence;
                match event.event {
                    Some(Event::RunOpened(opened)) => run_id = Some(opened.run_id),
                    Some(Event::CallOutput(_)) => chunks += 1,
                    _ => {}
                }
            }
        }
        yard.coordinators[0].kill().await?;
        let killed = Instant::now();
        let run_id = run_id.context("the run was opened")?;
        let request = v1::WatchRunRequest { run_id, after_sequence: Some(last), ..v1::WatchRunRequest::default() };
        let mut stream = second.watch_run(request).await?.into_inner();
        let read_on = async {
            stream.message().await?.context("the call speaks on")?;
            anyhow::Ok(killed.elapsed())
        };
        let (read_on, ()) = tokio::try_join!(read_on, async {
            shards.until(&[16]).await;
            Ok(())
        })?;
        missed_ms.push(read_on.as_secs_f64() * 1e3);
        owned_s.push(killed.elapsed().as_secs_f64());
        // The next round must not find what this one left.
        drop(yard);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let result =
        json!({ "reader_missed_ms": rounded(median(missed_ms)), "all_shards_owned_s": rounded(median(owned_s)) });
    results.set("takeover", result);
    Ok(())
}
