//! The way to an OpenTelemetry collector, by the OpenTelemetry SDK: spans and log records in batches, and metrics every
//! minute.
//!
//! It has its own threads and queues. If the collector is slow or gone, telemetry beyond the queues is dropped and
//! counted, and no call waits for it.

mod instruments;
mod logs;
mod settings;
mod transport;
mod watched;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry::metrics::MeterProvider as _;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::logs::SdkLoggerProvider;
use opentelemetry_sdk::metrics::{Instrument, SdkMeterProvider, Stream};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SpanProcessor as _};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::metrics::{Counter, Family, Metric, SERIES_MAX, export_to, publish};
use crate::process;
use crate::trace::{Tracing, tracing, turn_on};

use self::settings::Signal;
use self::watched::Watched;

pub(crate) use self::instruments::{attributes, register};
pub(crate) use self::logs::ExportedLogs;
pub use self::settings::{Settings, SettingsError};

/// How long the rest may take to be exported when the process ends.
const LAST_WORDS: Duration = Duration::from_secs(3);

pub(crate) static DROPPED: Family<Counter> = Family::new(
    "toolyard_telemetry_dropped_total",
    "Spans, log records, and exports of metrics, that no collector took in time.",
    &["what"],
)
.exported_as("toolyard.telemetry.dropped", "{item}");

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the thread that exports telemetry could not be started: {0}")]
    Thread(#[from] std::io::Error),
    #[error("telemetry cannot be exported: {0}")]
    Exporter(#[from] ExporterBuildError),
    #[error(transparent)]
    Tls(#[from] transport::TlsError),
    #[error("this process exports its telemetry already")]
    Twice,
}

/// The export of a process, until it is finished or dropped.
#[derive(Debug)]
pub struct Exporter {
    metrics: Option<SdkMeterProvider>,
    logs: Option<SdkLoggerProvider>,
    /// The runtime of the connections runs until this is dropped.
    connections: DropGuard,
}

impl Exporter {
    /// Begins to export, and so to trace. The collector need not be there.
    ///
    /// # Errors
    /// If it was begun already, or there is no thread for it, or an endpoint or a file for TLS cannot be used.
    pub fn start(settings: &Settings) -> Result<Self, StartError> {
        publish(&[Metric::Counter(&DROPPED)]);
        let stop = CancellationToken::new();
        let runtime = connections(stop.clone())?;
        let connections = stop.drop_guard();
        // The connections of gRPC are driven by the runtime in which they are made.
        let _entered = runtime.enter();
        if settings.endpoint(Signal::Traces).is_some() {
            start_traces(settings, &runtime)?;
        }
        let metrics = settings.endpoint(Signal::Metrics).is_some().then(|| start_metrics(settings, &runtime));
        let logs = settings.endpoint(Signal::Logs).is_some().then(|| logs::start(settings, &runtime));
        let (metrics, logs) = (metrics.transpose()?, logs.transpose()?);
        tracing::info!(
            traces = settings.endpoint(Signal::Traces),
            metrics = settings.endpoint(Signal::Metrics),
            logs = settings.endpoint(Signal::Logs),
            sampler = ?settings.sampler,
            "exporting telemetry"
        );
        Ok(Self { metrics, logs, connections })
    }

    /// Exports pending telemetry, for 3 s at most.
    pub async fn finish(self) {
        let Self { metrics, logs, connections } = self;
        let (end, done) = oneshot::channel();
        // A thread that is not waited for: a collector that does not answer would hold up the end of the process.
        std::thread::spawn(move || {
            let spans = tracing().map(|tracing| tracing.processor.shutdown_with_timeout(LAST_WORDS));
            let metrics = metrics.map(|metrics| metrics.shutdown_with_timeout(LAST_WORDS));
            let logs = logs.map(|logs| logs.shutdown_with_timeout(LAST_WORDS));
            let is_done = [spans, metrics, logs].iter().flatten().all(Result::is_ok);
            // It may be too late to log this.
            end.send(is_done).ok();
        });
        if !matches!(timeout(LAST_WORDS, done).await, Ok(Ok(true))) {
            tracing::warn!("the last telemetry was lost: the collector does not take it");
        }
        drop(connections);
    }
}

/// A thread with the runtime of the connections.
fn connections(stop: CancellationToken) -> Result<Handle, StartError> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let turn = move || {
        // Logs of libraries about an export are not exported, because that would cause further logs.
        let _silent = Context::enter_telemetry_suppressed_scope();
        runtime.block_on(stop.cancelled());
    };
    std::thread::Builder::new().name("toolyard-otlp".to_owned()).spawn(turn)?;
    Ok(handle)
}

fn start_traces(settings: &Settings, runtime: &Handle) -> Result<(), StartError> {
    let (waiting, dropped) = (Arc::new(AtomicUsize::new(0)), DROPPED.with(&["spans"]));
    let exporter = transport::spans(settings, runtime)?;
    let exporter = Watched::new("spans", exporter, dropped.clone(), Arc::clone(&waiting));
    let config = BatchConfigBuilder::default().with_max_queue_size(settings.queue_max).build();
    let mut processor = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
    processor.set_resource(&settings.resource());
    let (sampler, waiting_max) = (settings.sampler.clone(), settings.queue_max);
    let is_first = turn_on(Tracing { processor, sampler, waiting, waiting_max, dropped });
    if is_first { Ok(()) } else { Err(StartError::Twice) }
}

fn start_metrics(settings: &Settings, runtime: &Handle) -> Result<SdkMeterProvider, StartError> {
    let exporter = transport::metrics(settings, runtime)?;
    let exporter = Watched::new("metrics", exporter, DROPPED.with(&["metrics"]), Arc::default());
    // Our families bound their series; the SDK's own bound of 2,000 would be smaller.
    let bound = |_: &Instrument| Stream::builder().with_cardinality_limit(SERIES_MAX + 1).build().ok();
    let provider = SdkMeterProvider::builder().with_resource(settings.resource());
    let provider = provider.with_periodic_exporter(exporter).with_view(bound).build();
    let meter = provider.meter("toolyard");
    process::export_to(&meter);
    if !export_to(meter) {
        return Err(StartError::Twice);
    }
    Ok(provider)
}
