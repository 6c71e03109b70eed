//! One `nats-server` with JetStream on a loopback port, for `toolyard dev` and the tests.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::find::{Lookup, find};
use crate::folder::Folder;
use crate::program::Program;
use crate::ready;
use crate::server::Server;

/// The data folder and the address of a broker.
#[derive(Debug, Clone, Default)]
pub struct BrokerOptions {
    /// The folder of JetStream and the log, created when missing. None: a temporary one, removed with the broker.
    /// (A SIGKILL of this process ends the server but leaves a temporary folder to the system's own cleaning.)
    pub data_dir: Option<PathBuf>,
    /// The loopback port. None: a free one that the server picks.
    pub port: Option<u16>,
    /// Whether it serves monitoring pages over HTTP, on a free loopback port.
    pub monitored: bool,
    /// A file of further configuration, as with accounts. None: none, and everybody may do everything.
    pub config: Option<PathBuf>,
}

/// A running `nats-server`. Dropping it ends the server: one with a temporary folder at once, one with a folder of its
/// own gently and a moment later; use [`Broker::stop`] to wait for that.
#[derive(Debug)]
pub struct Broker {
    server: Server,
    port: u16,
    /// With which it starts again.
    options: BrokerOptions,
}

impl Broker {
    /// Finds `nats-server` (fetching it when needed, told through `say`), starts it and waits until it listens.
    ///
    /// # Errors
    /// No program and no way to fetch one; a folder that cannot be used or is in use; a port that is taken; a server
    /// that ends or is not up within 10 s.
    pub async fn start(options: BrokerOptions, say: fn(&str)) -> Result<Self, Error> {
        let binary = find(Program::NatsServer, &Lookup::from_env(), say).await?;
        let folder = match &options.data_dir {
            Some(path) => Folder::at(path).await?,
            None => Folder::temporary().await?,
        };
        let args = args(folder.path(), options.port, &options);
        let mut server = Server::new(Program::NatsServer, binary, folder);
        let port = server.come_up(options.port.unwrap_or(0), &args).await?;
        Ok(Self { server, port, options })
    }

    /// The address for clients, as `nats://127.0.0.1:4222`.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// The loopback port; the same for the whole life of the broker.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where it tells of itself over HTTP, as `http://127.0.0.1:8222`, if it was started so; another one after a
    /// restart.
    pub fn monitoring_url(&self) -> Option<String> {
        ready::monitoring_url(self.server.folder(), self.pid()?)
    }

    /// The folder of JetStream and of `server.log`.
    pub fn data_dir(&self) -> &Path {
        self.server.folder()
    }

    /// The process id of `nats-server`; none after [`Broker::kill`].
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Sends SIGKILL to the server and waits until it is gone. The folder stays; [`Broker::restart`] brings it back.
    pub async fn kill(&mut self) {
        self.server.kill().await;
    }

    /// Starts the server again on the same port and folder; one that still runs is stopped first.
    ///
    /// # Errors
    /// As [`Broker::start`]; a taken port is tried again for up to 10 s first.
    pub async fn restart(&mut self) -> Result<(), Error> {
        let args = args(self.server.folder(), Some(self.port), &self.options);
        self.server.come_back(self.port, &args).await
    }

    /// SIGSTOP: it stops, and no client is notified.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.server.resume();
    }

    /// Ends the server gently and waits until it is gone: some milliseconds, 3 s when it has to be killed.
    pub async fn stop(mut self) {
        self.server.end().await;
    }
}

fn args(folder: &Path, port: Option<u16>, options: &BrokerOptions) -> Vec<OsString> {
    // -1 lets the server pick the port, so no other process can take it between the choice and the binding.
    let port = port.map_or("-1".to_owned(), |port| port.to_string());
    let mut args: Vec<OsString> = vec![
        "--addr".into(),
        "127.0.0.1".into(),
        "--port".into(),
        port.into(),
        "--server_name".into(),
        "toolyard-local".into(),
        "--jetstream".into(),
        "--store_dir".into(),
        folder.into(),
        "--ports_file_dir".into(),
        folder.into(),
    ];
    if options.monitored {
        args.extend(["--http_port".into(), "-1".into()]);
    }
    if let Some(config) = &options.config {
        args.extend(["--config".into(), config.into()]);
    }
    args
}
