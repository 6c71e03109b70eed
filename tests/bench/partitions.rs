//! A log of one partition beside one of four, each at a cluster of three servers with three copies, in turn within each
//! round. On one machine the processors are the bound, so this shows what partitions cost, and not what they bring.

use std::time::Duration;

use local::Cluster;
use nats::Credentials;
use proto::v1::run_service_client::RunServiceClient;
use tonic::transport::Channel;

use crate::Effort;
use crate::execute::{self, noop};
use crate::measure::{self, median, rounded};
use crate::results::Results;
use crate::roles::{self, Process};

const PARTITIONS: [usize; 2] = [1, 4];
const IN_FLIGHT: [usize; 2] = [16, 128];
const SLOTS: &str = "512";
/// Of each partition: the servers of both clusters share one disk.
const LOG_BYTES: &str = "1073741824";
/// New runs go to a partition when it is 15 s old, and coordinators look every 2 s.
const SPREAD_AFTER: Duration = Duration::from_secs(20);
/// The profile of three copies.
pub(crate) const PROFILE: &str = "standard";

/// A cluster of three servers, with one coordinator and one worker.
pub(crate) struct Yard {
    pub(crate) cluster: Cluster,
    pub(crate) client: RunServiceClient<Channel>,
    _processes: [Process; 2],
}

impl Yard {
    pub(crate) async fn start(partitions: usize) -> anyhow::Result<Self> {
        let cluster = Cluster::start(|_| {}).await?;
        let url = cluster.url();
        let coordinator =
            roles::start(&["coordinator", &url, "--durability", PROFILE, "--log-max-bytes", LOG_BYTES], &[]).await?;
        if partitions > 1 {
            let operator = coordinator::Operator::connect(&url, &Credentials::default()).await?;
            operator.partition(partitions).await?;
        }
        let worker = roles::start(&["workers", &url, SLOTS, "1", "0"], &[]).await?;
        let client = execute::connect(&coordinator.ready).await?;
        execute::until_known(&client).await?;
        Ok(Self { cluster, client, _processes: [coordinator, worker] })
    }

    async fn rate(&self, in_flight: usize, time: Duration) -> anyhow::Result<f64> {
        Ok(measure::rate(in_flight, time, || noop(self.client.clone())).await?.per_s())
    }
}

pub(crate) async fn measure(effort: Effort, results: &mut Results) -> anyhow::Result<()> {
    let mut yards = Vec::new();
    for partitions in PARTITIONS {
        eprintln!("partitions: starting a cluster with {partitions}");
        yards.push(Yard::start(partitions).await?);
    }
    tokio::time::sleep(SPREAD_AFTER).await;
    for yard in &yards {
        yard.rate(IN_FLIGHT[0], effort.time / 3).await?;
    }
    for in_flight in IN_FLIGHT {
        let mut rates = [Vec::new(), Vec::new()];
        for round in 1..=effort.rounds {
            eprintln!("partitions: round {round} of {}, {in_flight} in flight", effort.rounds);
            for (yard, rates) in yards.iter().zip(&mut rates) {
                rates.push(yard.rate(in_flight, effort.time).await?);
            }
        }
        let path = format!("partitions.in_flight_{in_flight}");
        let ratios = rates[1].iter().zip(&rates[0]).map(|(several, one)| several / one).collect();
        results.set(&format!("{path}.of_1_calls_per_s"), rounded(median(rates[0].clone())));
        results.set(&format!("{path}.of_4_calls_per_s"), rounded(median(rates[1].clone())));
        results.set(&format!("{path}.of_4_beside_1"), rounded(median(ratios)));
    }
    for yard in yards {
        yard.cluster.stop().await;
    }
    Ok(())
}
