//! Lines of the log as OpenTelemetry's log records, with the trace that they were written in.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use opentelemetry::InstrumentationScope;
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{
    BatchConfigBuilder, BatchLogProcessor, LogProcessor, SdkLogRecord, SdkLogger, SdkLoggerProvider,
};
use tokio::runtime::Handle;
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::settings::Settings;
use super::watched::Watched;
use super::{DROPPED, StartError, transport};
use crate::metrics::Counter;

/// Converts log events to log records, if logs are exported.
static BRIDGE: OnceLock<OpenTelemetryTracingBridge<SdkLoggerProvider, SdkLogger>> = OnceLock::new();

/// The exported part of a process's logs: events that pass the filter.
pub(crate) struct ExportedLogs;

impl<S> Layer<S> for ExportedLogs
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        if let Some(bridge) = BRIDGE.get() {
            bridge.on_event(event, context);
        }
    }
}

pub(super) fn start(settings: &Settings, runtime: &Handle) -> Result<SdkLoggerProvider, StartError> {
    let (waiting, dropped) = (Arc::new(AtomicUsize::new(0)), DROPPED.with(&["logs"]));
    let exporter = transport::logs(settings, runtime)?;
    let exporter = Watched::new("logs", exporter, dropped.clone(), Arc::clone(&waiting));
    let waiting_max = settings.records_max;
    let config = BatchConfigBuilder::default().with_max_queue_size(waiting_max).build();
    let processor = BatchLogProcessor::builder(exporter).with_batch_config(config).build();
    let bounded = Bounded { processor, waiting, waiting_max, dropped };
    let provider = SdkLoggerProvider::builder().with_resource(settings.resource()).with_log_processor(bounded).build();
    let is_first = BRIDGE.set(OpenTelemetryTracingBridge::new(&provider)).is_ok();
    if is_first { Ok(provider) } else { Err(StartError::Twice) }
}

/// Counts the records that the SDK's processor would drop uncounted, because its queue is full.
#[derive(Debug)]
struct Bounded {
    processor: BatchLogProcessor,
    waiting: Arc<AtomicUsize>,
    waiting_max: usize,
    dropped: Counter,
}

impl LogProcessor for Bounded {
    fn emit(&self, record: &mut SdkLogRecord, scope: &InstrumentationScope) {
        if self.waiting.fetch_add(1, Relaxed) < self.waiting_max {
            self.processor.emit(record, scope);
        } else {
            self.waiting.fetch_sub(1, Relaxed);
            self.dropped.add(1);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.processor.set_resource(resource);
    }
}
