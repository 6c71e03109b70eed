//! How long a server of the broker is missed that is killed, or hangs: the call that takes longest while a few callers
//! go on, one call after the other each. Each of the three servers in turn, so also the one that leads the log, the one
//! that the coordinator is connected to, and the one that sends it the log.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::Effort;
use crate::execute;
use crate::measure::rounded;
use crate::partitions::Yard;
use crate::results::Results;

const CALLERS: usize = 8;
/// How long a server is away. Longer than anybody waits for it.
const AWAY: Duration = Duration::from_secs(20);
/// After a call that failed.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let mut yard = Yard::start(1).await?;
    let (mut killed, mut hung) = (Vec::new(), Vec::new());
    for round in 1..=effort.rounds {
        for node in 0..yard.cluster.nodes().len() {
            eprintln!("servers: round {round} of {}, server {node}", effort.rounds);
            // First what is milder: a server that was killed comes back without its roles.
            yard.cluster.nodes()[node].pause();
            hung.push(longest_s(&yard).await?);
            yard.cluster.nodes()[node].resume();
            yard.cluster.healthy().await?;
            yard.cluster.nodes_mut()[node].kill().await;
            killed.push(longest_s(&yard).await?);
            yard.cluster.nodes_mut()[node].restart().await?;
            yard.cluster.healthy().await?;
        }
    }
    results.set("servers", json!({ "hung_longest_call_s": hung, "killed_longest_call_s": killed }));
    yard.cluster.stop().await;
    Ok(())
}

async fn longest_s(yard: &Yard) -> anyhow::Result<f64> {
    let began = Instant::now();
    let callers = (0..CALLERS).map(|_| async {
        let mut longest = Duration::ZERO;
        while began.elapsed() < AWAY {
            let call = Instant::now();
            // A call may also fail, because the broker was away for too long.
            if let Err(error) = execute::noop(yard.client.clone()).await {
                eprintln!("servers: {error:#}");
                tokio::time::sleep(PAUSE).await;
            }
            longest = longest.max(call.elapsed());
        }
        longest
    });
    let longest = futures::future::join_all(callers).await.into_iter().max().unwrap_or_default();
    Ok(rounded(longest.as_secs_f64()))
}
