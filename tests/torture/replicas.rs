//! A correct client of several coordinators: it uses another one if one does not answer, and resumes broken streams.

use std::net::SocketAddr;
use std::time::Duration;

use proto::v1::{self, FloorPolicy, RunEvent, run_service_client::RunServiceClient};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Response, Status, Streaming};

use crate::seed::Seed;

/// Connections to each coordinator, so that no single one is the bottleneck: a coordinator allows 256 streams on each.
const CHANNELS: usize = 24;
/// How long one request may take before another coordinator is asked: some are paused for many seconds.
pub(crate) const REQUEST_LIMIT: Duration = Duration::from_secs(4);
/// A stream sends something every 15 s.
const SILENCE_LIMIT: Duration = Duration::from_secs(20);
/// A connection whose other end is paused is noticed by its unanswered pings.
const PING: Duration = Duration::from_secs(2);
const PING_LIMIT: Duration = Duration::from_secs(3);
/// The waits between two tries.
const WAIT_FIRST: Duration = Duration::from_millis(20);
const WAIT_LONGEST: Duration = Duration::from_millis(500);
/// As in the harness: the transport takes many small unread frames for an attack.
const WINDOW: u32 = 16 * 1024 * 1024;

type Runs = RunServiceClient<Channel>;

#[derive(Debug, Clone)]
pub(crate) struct Replicas {
    replicas: Vec<Vec<Runs>>,
}

/// The next message of a stream.
#[derive(Debug)]
pub(crate) enum Next {
    Events(Vec<RunEvent>),
    /// The output is complete.
    RunEnded,
    /// Read on elsewhere; why.
    Broken(Status),
}

#[derive(Debug)]
pub(crate) enum Messages {
    Execute(Box<Streaming<v1::ExecuteRunResponse>>),
    Watch(Box<Streaming<v1::WatchRunResponse>>),
}

impl Replicas {
    pub(crate) fn new(addresses: &[SocketAddr]) -> anyhow::Result<Self> {
        let replica = |address: &SocketAddr| {
            let channels = (0..CHANNELS).map(|_| {
                let endpoint = Endpoint::from_shared(format!("http://{address}"))?
                    .initial_connection_window_size(WINDOW)
                    .http2_keep_alive_interval(PING)
                    .keep_alive_timeout(PING_LIMIT)
                    .connect_timeout(REQUEST_LIMIT);
                Ok(RunServiceClient::new(endpoint.connect_lazy()))
            });
            channels.collect::<anyhow::Result<Vec<Runs>>>()
        };
        Ok(Self { replicas: addresses.iter().map(replica).collect::<anyhow::Result<_>>()? })
    }

    pub(crate) fn replicas(&self) -> usize {
        self.replicas.len()
    }

    /// A connection to the replica `at`, modulo as many as there are.
    fn runs(&self, seed: &mut Seed, at: usize) -> Runs {
        let channels = &self.replicas[at % self.replicas.len()];
        channels[seed.index(channels.len())].clone()
    }

    /// Asks one replica after the other, beginning with any, until one answers or time is up.
    pub(crate) async fn ask<T, F>(
        &self,
        seed: &mut Seed,
        until: Instant,
        request: impl Fn(Runs) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let mut at = seed.index(self.replicas.len());
        let mut wait = WAIT_FIRST;
        loop {
            let answer = self.ask_once(seed, at, REQUEST_LIMIT, &request).await;
            match answer {
                Err(status) if passes(&status) && Instant::now() < until => {}
                answer => return answer,
            }
            at += 1;
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(WAIT_LONGEST);
        }
    }

    pub(crate) async fn ask_once<T, F>(
        &self,
        seed: &mut Seed,
        at: usize,
        limit: Duration,
        request: impl Fn(Runs) -> F,
    ) -> Result<T, Status>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let asked = tokio::time::timeout(limit, request(self.runs(seed, at))).await;
        asked.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer came"))).map(Response::into_inner)
    }

    /// Whether a run is not found, now or soon.
    pub(crate) async fn is_gone(&self, seed: &mut Seed, run_id: &str, until: Instant) -> bool {
        let request = v1::GetRunRequest { run_id: run_id.to_owned() };
        loop {
            let got = self.ask(seed, until, |mut runs| {
                let request = request.clone();
                async move { runs.get_run(request).await }
            });
            // Of a run that is older than the log it is not known whether it was erased or left the log.
            let is_gone = |status: &Status| matches!(status.code(), Code::NotFound | Code::OutOfRange);
            let is_found = !matches!(got.await, Err(status) if is_gone(&status));
            if !is_found || Instant::now() >= until {
                return !is_found;
            }
            tokio::time::sleep(WAIT_LONGEST).await;
        }
    }

    pub(crate) async fn watch(
        &self,
        seed: &mut Seed,
        run_id: &str,
        policy: FloorPolicy,
        after: Option<u64>,
    ) -> Result<Messages, Status> {
        let request = v1::WatchRunRequest {
            run_id: run_id.to_owned(),
            after_sequence: after,
            floor_policy: policy.into(),
            ..Default::default()
        };
        let at = seed.index(self.replicas.len());
        let stream = self.ask_once(seed, at, REQUEST_LIMIT, |mut runs| {
            let request = request.clone();
            async move { runs.watch_run(request).await }
        });
        Ok(Messages::Watch(Box::new(stream.await?)))
    }
}

impl Messages {
    pub(crate) async fn next(&mut self) -> Next {
        let message = async {
            match self {
                Self::Execute(stream) => stream.message().await.map(|m| m.map(|m| (m.events, m.end))),
                Self::Watch(stream) => stream.message().await.map(|m| m.map(|m| (m.events, m.end))),
            }
        };
        match tokio::time::timeout(SILENCE_LIMIT, message).await {
            Ok(Ok(Some((events, _)))) if !events.is_empty() => Next::Events(events),
            Ok(Ok(Some((_, Some(end))))) if end.reason() == v1::StreamEndReason::RunEnded => Next::RunEnded,
            Ok(Ok(Some((_, None)))) => Next::Events(Vec::new()),
            Ok(Ok(Some((_, Some(end))))) => Next::Broken(Status::unavailable(end.reason().as_str_name())),
            Ok(Ok(None)) => Next::Broken(Status::unavailable("it ended without a last word")),
            Ok(Err(status)) => Next::Broken(status),
            Err(_) => Next::Broken(Status::deadline_exceeded("it was silent for too long")),
        }
    }
}

/// Whether another try, or another replica, may do better.
pub(crate) fn passes(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable
            | Code::Unknown
            | Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Internal
            | Code::Aborted
            | Code::ResourceExhausted
    )
}
