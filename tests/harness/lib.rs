//! The harness of the scenarios: a broker, coordinators and workers as processes that can be killed, and a client.

pub mod acceptance;
mod admin;
pub mod backends;
mod bucket;
mod callers;
mod certificates;
pub mod check;
mod client;
mod collector;
mod costly;
pub mod http;
mod keys;
pub mod model;
mod patient;
pub mod peers;
mod process;
mod prometheus;
mod proxy;
pub mod rows;
mod shards;
mod traffic;

pub use self::http::Http;
pub use admin::Admin;
pub use bucket::Bucket;
pub use callers::{Callers, Guarded, Pools};
pub use certificates::{Authority, Certified};
pub use client::{Client, Key, Run, Stream, Transport, call, client_answer, reason, unlike};
pub use collector::{Collector, Data, LogRecord, Metric, Span, SpanKind, hex, said};
pub use costly::Costly;
pub use keys::{Intruder, Keys};
pub use patient::carried_through;
pub use process::{Coordinator, Fixture, Worker, cargo};
pub use prometheus::{Prometheus, Sample, alert_names, dashboard_panels};
pub use proxy::{Direction, Proxy};
pub use shards::Shards;
pub use traffic::Traffic;

use std::time::Duration;

/// How long anything may take before a test gives up: far longer than it does, on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// A broker, one coordinator and a client of it; workers are added by the test.
#[derive(Debug)]
pub struct Yard {
    pub fixture: Fixture,
    pub broker: local::Broker,
    pub coordinator: Coordinator,
    pub client: Client,
}

impl Yard {
    /// # Panics
    /// When something does not start: the test cannot go on.
    pub async fn start(fixture: &str) -> Self {
        Self::start_with(Fixture::new(fixture)).await
    }

    /// A yard whose coordinator and workers have other settings.
    ///
    /// # Panics
    /// As [`Yard::start`].
    pub async fn start_with(fixture: Fixture) -> Self {
        let broker = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
        let coordinator = fixture.coordinator(&broker.url()).await;
        let client = Client::connect(coordinator.address()).await;
        Self { fixture, broker, coordinator, client }
    }

    /// A yard whose objects are in a bucket. Its coordinator and its workers have their own keys.
    ///
    /// # Panics
    /// As [`Yard::start`].
    pub async fn beside(bucket: &Bucket, fixture: Fixture) -> Self {
        let yard = Self::start_with(bucket.coordinators(&fixture)).await;
        Self { fixture: bucket.workers(&fixture, "main"), ..yard }
    }

    /// A client of the same coordinator over HTTP.
    #[must_use]
    pub fn http(&self) -> Http {
        Http::new(self.coordinator.address())
    }

    /// A yard whose broker has least permissions.
    ///
    /// # Panics
    /// As [`Yard::start`].
    pub async fn guarded(fixture: &str, keys: &Keys) -> Self {
        let options = local::BrokerOptions { config: Some(keys.accounts()), ..local::BrokerOptions::default() };
        let broker = local::Broker::start(options, |_| {}).await.expect("a broker starts");
        let fixture = Fixture::new(fixture);
        let coordinator = keys.coordinators(&fixture).coordinator(&broker.url()).await;
        let client = Client::connect(coordinator.address()).await;
        Self { fixture, broker, coordinator, client }
    }

    /// A worker of pool `main`, once its tools are known to the coordinator.
    pub async fn worker(&self) -> Worker {
        self.worker_with_slots(16).await
    }

    pub async fn worker_with_slots(&self, slots: u32) -> Worker {
        let worker = self.fixture.worker(&self.broker.url(), "main", slots).await;
        self.client.wait_for_tool("echo").await;
        worker
    }
}
