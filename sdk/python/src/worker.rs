//! A worker: it serves the calls of an app's tools until it is told to stop.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ::worker::{Hooks, Options};
use objects::{Bucket, BucketLocation};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;
use telemetry::otlp::{Exporter, Settings};
use telemetry::{Format, LevelFilter};
use tokio_util::sync::CancellationToken;

use crate::settle::{Failure, Reply, settle};
use crate::table::Table;

/// The settings of a worker, as the Python part writes them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    nats_url: String,
    #[serde(default)]
    nkey: Option<PathBuf>,
    #[serde(default)]
    ca: Option<PathBuf>,
    pool: String,
    slots: u32,
    drain_s: f64,
    #[serde(default)]
    admin: Option<SocketAddr>,
    #[serde(default)]
    host_names: Vec<String>,
    #[serde(default)]
    hooks: Option<PathBuf>,
    #[serde(default)]
    objects: Option<String>,
    #[serde(default)]
    objects_endpoint: Option<String>,
    #[serde(default)]
    objects_region: Option<String>,
    #[serde(default)]
    objects_allow_http: bool,
}

impl Described {
    fn options(self) -> Result<Options, String> {
        let pool = self.pool.parse().map_err(|error| format!("{error}"))?;
        let mut options = Options::new(self.nats_url, pool);
        options.credentials.nkey = self.nkey;
        options.credentials.ca = self.ca;
        options.slots = self.slots;
        options.drain = Duration::try_from_secs_f64(self.drain_s)
            .map_err(|_| format!("drain is {}: use a number of seconds from 0 on", self.drain_s))?;
        options.admin = self.admin;
        options.host_names = self.host_names;
        if let Some(path) = self.hooks {
            options.hooks = Hooks::read(&path).map_err(|error| error.to_string())?;
        }
        if let Some(url) = self.objects {
            let (endpoint, region) = (self.objects_endpoint, self.objects_region);
            let place = BucketLocation::parse(&url, endpoint, region, self.objects_allow_http);
            let bucket = place.and_then(|place| Bucket::new(place, |name| std::env::var(name).ok()));
            options.bucket = Some(bucket.map_err(|error| format!("objects: {error}"))?);
        }
        Ok(options)
    }
}

/// A running worker.
#[pyclass(frozen)]
pub(crate) struct Worker {
    stop: CancellationToken,
}

#[pymethods]
impl Worker {
    /// Starts a worker. `ready` is called with its id when its first pull request is open, and `done` at its end.
    #[staticmethod]
    fn start(table: &Table, options: &str, ready: Py<PyAny>, done: Py<PyAny>) -> PyResult<Self> {
        let options: Described =
            serde_json::from_str(options).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let options = options.options().map_err(PyValueError::new_err)?;
        let (table, stop, stopped) = (table.table(), CancellationToken::new(), CancellationToken::new());
        let worker = Self { stop: stop.clone() };
        settle(done, async move {
            let _stopped = stopped.drop_guard();
            let exporter = exporter().map_err(|error| Failure::new("settings", error))?;
            let is_ready = move |id: &::worker::WorkerId| {
                let id = id.to_string();
                Python::attach(|py| drop(ready.call1(py, (id,))));
            };
            let served = ::worker::serve(options, table, stop, is_ready).await;
            if let Some(exporter) = exporter {
                exporter.finish().await;
            }
            served.map(|()| Reply::Nothing).map_err(|error| Failure::new("worker", error))
        })?;
        Ok(worker)
    }

    /// Takes no more calls, lets running ones end, and ends.
    fn stop(&self) {
        self.stop.cancel();
    }
}

/// The export of telemetry, if a collector is configured in OpenTelemetry's variables.
fn exporter() -> Result<Option<Exporter>, String> {
    let endpoint = std::env::var("OTEL_EXPORTER_OTLP_ENDPOINT").ok();
    let settings = Settings::read(endpoint.as_deref(), "toolyard-worker", |name| std::env::var(name).ok());
    let settings = settings.map_err(|error| error.to_string())?;
    settings.map(|settings| Exporter::start(&settings)).transpose().map_err(|error| error.to_string())
}

pub(crate) fn init_logs(json: bool) -> PyResult<()> {
    let format = if json { Format::Json } else { Format::Human };
    telemetry::init(format, LevelFilter::INFO).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}
