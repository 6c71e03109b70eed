//! A worker with tools of JavaScript.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use hooks::Hooks;
use napi::bindgen_prelude::PromiseRaw;
use napi::threadsafe_function::{ThreadsafeFunction, ThreadsafeFunctionCallMode};
use napi::{Env, Result, Status};
use napi_derive::napi;
use objects::{Bucket, BucketLocation};
use serde::Deserialize;
use telemetry::Format;
use tokio_util::sync::CancellationToken;
use toolyard_tool::declared::duration;
use tracing::level_filters::LevelFilter;
use worker::{Credentials, Options, PoolId, Table};

use crate::error::invalid;
use crate::tools::NativeTools;
use crate::watch::{Beat, Running, watch};

/// The options of a worker, as JavaScript has them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Given {
    nats_url: String,
    pool: String,
    slots: Option<u32>,
    /// Seconds.
    drain: Option<f64>,
    nats_nkey: Option<PathBuf>,
    nats_ca: Option<PathBuf>,
    admin_listen: Option<SocketAddr>,
    #[serde(default)]
    host_names: Vec<String>,
    #[serde(default)]
    include_content: bool,
    hooks: Option<PathBuf>,
    objects: Option<GivenBucket>,
    #[serde(default)]
    json_logs: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct GivenBucket {
    url: String,
    endpoint: Option<String>,
    region: Option<String>,
    #[serde(default)]
    allow_http: bool,
}

impl Given {
    fn options(self) -> Result<Options> {
        let pool: PoolId = self.pool.parse().map_err(|error| invalid(format!("pool {:?}: {error}", self.pool)))?;
        let hooks = match &self.hooks {
            Some(file) => Hooks::read(Path::new(file)).map_err(invalid)?,
            None => Hooks::default(),
        };
        let mut options = Options::new(self.nats_url, pool);
        options.credentials = Credentials { nkey: self.nats_nkey, ca: self.nats_ca };
        options.bucket = self.objects.map(GivenBucket::open).transpose()?;
        options.slots = self.slots.unwrap_or(options.slots);
        options.drain = self.drain.map_or(Ok(options.drain), |drain| duration("drain", drain)).map_err(invalid)?;
        options.hooks = hooks;
        options.admin = self.admin_listen;
        options.host_names = self.host_names;
        options.include_content = self.include_content;
        Ok(options)
    }
}

impl GivenBucket {
    fn open(self) -> Result<Bucket> {
        let location = BucketLocation::parse(&self.url, self.endpoint, self.region, self.allow_http);
        let bucket = location.and_then(|location| Bucket::new(location, |name| std::env::var(name).ok()));
        bucket.map_err(|error| invalid(format!("objects: {error}")))
    }
}

/// A worker that was not started, or runs.
#[derive(Debug)]
#[napi]
pub struct NativeWorker {
    options: Options,
    table: Table,
    running: Vec<Running>,
    stop: CancellationToken,
}

#[napi]
impl NativeWorker {
    /// `options` is a JSON object.
    #[napi(constructor)]
    pub fn new(options: String, tools: &NativeTools) -> Result<Self> {
        let given: Given = serde_json::from_str(&options).map_err(invalid)?;
        let format = if given.json_logs { Format::Json } else { Format::Human };
        // A process has one log. A second worker of the process writes to that of the first.
        if let Err(error @ (telemetry::Error::Malformed { .. } | telemetry::Error::NotText)) =
            telemetry::init(format, LevelFilter::INFO)
        {
            return Err(invalid(error));
        }
        let (table, running) = (tools.table.clone(), tools.running.clone());
        Ok(Self { options: given.options()?, table, running, stop: CancellationToken::new() })
    }

    /// Serves calls until [`Self::stop`]; then running calls may end. `ready` is called once with the worker's id, and
    /// `beat`, which does nothing, again and again: if it is late, the event loop is blocked.
    #[napi]
    pub fn run<'env>(
        &self,
        env: &'env Env,
        ready: ThreadsafeFunction<String, (), String, Status, false, true>,
        beat: Beat,
    ) -> Result<PromiseRaw<'env, ()>> {
        let (options, table, stop) = (self.options.clone(), self.table.clone(), self.stop.clone());
        let running = self.running.clone();
        env.spawn_future(async move {
            let ready = move |worker: &worker::WorkerId| {
                ready.call(worker.to_string(), ThreadsafeFunctionCallMode::NonBlocking);
            };
            let served = tokio::select! {
                served = worker::serve(options, table, stop, ready) => served,
                never = watch(beat, running) => match never {},
            };
            served.map_err(|error| napi::Error::new(Status::GenericFailure, error.to_string()))
        })
    }

    /// Takes no more calls.
    #[napi]
    pub fn stop(&self) {
        self.stop.cancel();
    }
}
