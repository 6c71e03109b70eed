//! The way to an OpenTelemetry collector, over gRPC: spans as they come, and what is counted every now and then.
//!
//! It has a thread and a queue of its own. Where the collector is slow or gone, what does not fit is dropped and counted,
//! and nobody else notices: nothing is sent twice, and nobody waits.

mod settings;
mod wire;

use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Request;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue};
use tonic::transport::{Channel, Endpoint};

use self::wire::Resource;
use crate::metrics::{Counter, Family, Metric, publish};
use crate::trace::{Span, Tracing, WAITING_MAX, turn_on};

pub use self::settings::{Settings, SettingsError};

/// Spans that go together, and how long the first of them waits for others.
const BATCH_MAX: usize = 512;
const LINGER: Duration = Duration::from_millis(500);
/// How long what is left may take to go when the process ends.
const LAST_WORDS: Duration = Duration::from_secs(3);

static DROPPED: Family<Counter> = Family::new(
    "toolyard_telemetry_dropped_total",
    "Spans, and exports of metrics, that no collector took in time.",
    &["what"],
);

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the thread that exports telemetry could not be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("this process exports its telemetry already")]
    Twice,
}

/// The export of a process, until it is finished or dropped.
#[derive(Debug)]
pub struct Exporter {
    stop: CancellationToken,
    done: oneshot::Receiver<()>,
}

impl Exporter {
    /// Begins to export, and so to trace. The collector need not be there. `now` tells the time since 1970, by the clock that
    /// spans are told by.
    ///
    /// # Errors
    /// When there is no thread for it, or it was begun already.
    pub fn start(settings: Settings, now: fn() -> Duration) -> Result<Self, StartError> {
        publish(&[Metric::Counter(&DROPPED)]);
        let (spans, waiting) = mpsc::channel(WAITING_MAX);
        let dropped = DROPPED.with(&["spans"]);
        if !turn_on(Tracing { spans, sampler: settings.sampler, dropped: dropped.clone() }) {
            return Err(StartError::Twice);
        }
        let (stop, (end, done)) = (CancellationToken::new(), oneshot::channel());
        let stopped = stop.clone();
        tracing::info!(endpoint = settings.endpoint, sampler = ?settings.sampler, "exporting telemetry");
        std::thread::Builder::new().name("toolyard-otlp".to_owned()).spawn(move || {
            match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime.block_on(export(settings, now, waiting, dropped, stopped)),
                Err(error) => tracing::error!(%error, "no telemetry is exported"),
            }
            // Whoever waits for the end hears that nobody can tell it any more.
            drop(end);
        })?;
        Ok(Self { stop, done })
    }

    /// Exports what is left, as far as that goes quickly.
    pub async fn finish(self) {
        self.stop.cancel();
        if timeout(LAST_WORDS, self.done).await.is_err() {
            tracing::warn!("the last telemetry was lost: the collector does not take it");
        }
    }
}

async fn export(
    settings: Settings,
    now: fn() -> Duration,
    spans: mpsc::Receiver<Span>,
    dropped: Counter,
    stop: CancellationToken,
) {
    let Settings { endpoint, headers, timeout, resource, interval, .. } = settings;
    let channel = match Endpoint::from_shared(endpoint) {
        Ok(endpoint) => endpoint.connect_timeout(timeout).timeout(timeout).connect_lazy(),
        Err(error) => return tracing::error!(%error, "no telemetry is exported"),
    };
    let way = Way { channel, headers, resource };
    let traces = export_spans(way.clone(), spans, dropped, stop.clone());
    tokio::join!(traces, export_metrics(way, interval, now, stop));
}

#[derive(Debug, Clone)]
struct Way {
    channel: Channel,
    headers: Vec<(AsciiMetadataKey, AsciiMetadataValue)>,
    resource: Resource,
}

impl Way {
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        for (key, value) in &self.headers {
            request.metadata_mut().insert(key.clone(), value.clone());
        }
        request
    }
}

/// Says once that the collector does not take what it should, and once that it does again.
#[derive(Debug, Default)]
struct Complaint {
    said: bool,
}

impl Complaint {
    fn note<T>(&mut self, what: &str, result: &Result<T, tonic::Status>) -> bool {
        match (result, self.said) {
            (Ok(_), true) => tracing::info!(what, "the collector takes telemetry again"),
            (Err(status), false) => {
                let (code, message) = (status.code(), status.message());
                tracing::warn!(
                    what,
                    ?code,
                    message,
                    "the collector does not take telemetry; it is dropped and counted"
                );
            }
            (Ok(_), false) | (Err(_), true) => {}
        }
        self.said = result.is_err();
        !self.said
    }
}

async fn export_spans(way: Way, mut spans: mpsc::Receiver<Span>, dropped: Counter, stop: CancellationToken) {
    let mut client = TraceServiceClient::new(way.channel.clone());
    let (mut batch, mut complaint) = (Vec::with_capacity(BATCH_MAX), Complaint::default());
    loop {
        let stopping = gather(&mut spans, &mut batch, &stop).await;
        if !batch.is_empty() {
            let count = u64::try_from(batch.len()).unwrap_or(u64::MAX);
            let message = wire::spans(&way.resource, batch.drain(..));
            let result = client.export(way.request(message)).await;
            if !complaint.note("spans", &result) {
                dropped.add(count);
            }
        } else if stopping {
            return;
        }
    }
}

/// Gathers spans that go together: many, or those of a short while. `true` when told to stop.
async fn gather(spans: &mut mpsc::Receiver<Span>, batch: &mut Vec<Span>, stop: &CancellationToken) -> bool {
    if stop.is_cancelled() {
        while batch.len() < BATCH_MAX
            && let Ok(span) = spans.try_recv()
        {
            batch.push(span);
        }
        return true;
    }
    let mut until = None;
    while batch.len() < BATCH_MAX {
        let room = BATCH_MAX - batch.len();
        let over = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = spans.recv_many(batch, room) => {
                until.get_or_insert_with(|| Instant::now() + LINGER);
            }
            () = over => return false,
            () = stop.cancelled() => return true,
        }
    }
    false
}

async fn export_metrics(way: Way, interval: Duration, now: fn() -> Duration, stop: CancellationToken) {
    let mut client = MetricsServiceClient::new(way.channel.clone());
    let (dropped, mut complaint) = (DROPPED.with(&["metrics"]), Complaint::default());
    let began = now();
    loop {
        let stopping = tokio::select! {
            () = tokio::time::sleep(interval) => false,
            () = stop.cancelled() => true,
        };
        let result = client.export(way.request(wire::metrics(&way.resource, began, now()))).await;
        if !complaint.note("metrics", &result) {
            dropped.add(1);
        }
        if stopping {
            return;
        }
    }
}
