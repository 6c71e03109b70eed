//! An exporter of the OpenTelemetry SDK whose failures are counted, and logged once.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::logs::{LogBatch, LogExporter};
use opentelemetry_sdk::metrics::Temporality;
use opentelemetry_sdk::metrics::data::ResourceMetrics;
use opentelemetry_sdk::metrics::exporter::PushMetricExporter;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};

use crate::metrics::Counter;

#[derive(Debug)]
pub(super) struct Watched<E> {
    what: &'static str,
    exporter: E,
    dropped: Counter,
    /// Spans or log records in the queue before it.
    waiting: Arc<AtomicUsize>,
    /// Whether the last export failed.
    fails: AtomicBool,
}

impl<E> Watched<E> {
    pub(super) fn new(what: &'static str, exporter: E, dropped: Counter, waiting: Arc<AtomicUsize>) -> Self {
        Self { what, exporter, dropped, waiting, fails: AtomicBool::new(false) }
    }

    fn note(&self, result: OTelSdkResult, count: usize) -> OTelSdkResult {
        let what = self.what;
        match (&result, self.fails.swap(result.is_err(), Relaxed)) {
            (Ok(()), true) => tracing::info!(what, "the collector takes telemetry again"),
            (Err(error), false) => {
                tracing::warn!(what, %error, "exporting telemetry failed; what fails is dropped and counted");
            }
            (Ok(()), false) | (Err(_), true) => {}
        }
        if result.is_err() {
            self.dropped.add(u64::try_from(count).unwrap_or(u64::MAX));
        }
        result
    }
}

impl<E: SpanExporter + Debug> SpanExporter for Watched<E> {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        self.waiting.fetch_sub(count, Relaxed);
        self.note(self.exporter.export(batch).await, count)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: LogExporter> LogExporter for Watched<E> {
    async fn export(&self, batch: LogBatch<'_>) -> OTelSdkResult {
        let count = batch.iter().count();
        self.waiting.fetch_sub(count, Relaxed);
        self.note(self.exporter.export(batch).await, count)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

impl<E: PushMetricExporter> PushMetricExporter for Watched<E> {
    async fn export(&self, metrics: &ResourceMetrics) -> OTelSdkResult {
        self.note(self.exporter.export(metrics).await, 1)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn temporality(&self) -> Temporality {
        self.exporter.temporality()
    }
}
