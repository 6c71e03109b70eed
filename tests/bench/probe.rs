//! Calls of another client, one after another, while something else goes on.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::execute::{self, Yard};
use crate::measure::Latencies;

const PAUSE: Duration = Duration::from_millis(5);

/// Until it is ended.
pub(crate) struct Probe {
    calling: JoinHandle<anyhow::Result<Latencies>>,
    stop: CancellationToken,
}

impl Probe {
    pub(crate) fn start(yard: &Yard) -> Self {
        let stop = CancellationToken::new();
        let (client, stopped) = (yard.client(), stop.clone());
        let calling = tokio::spawn(async move {
            let mut latencies = Latencies::new();
            while !stopped.is_cancelled() {
                let began = Instant::now();
                execute::noop(client.clone()).await?;
                latencies.record(began.elapsed());
                tokio::time::sleep(PAUSE).await;
            }
            Ok(latencies)
        });
        Self { calling, stop }
    }

    pub(crate) async fn end(self) -> anyhow::Result<Latencies> {
        self.stop.cancel();
        self.calling.await?
    }
}
