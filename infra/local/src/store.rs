//! One Valkey or Redis server that keeps everything in memory, on a free loopback port.

use std::ffi::OsString;
use std::path::Path;

use crate::error::Error;
use crate::find::{Lookup, find};
use crate::folder::Folder;
use crate::ports::free_port;
use crate::program::Program;
use crate::server::Server;

/// Free ports tried before giving up. Losing one to another process is rare; losing five means something else is wrong.
pub(crate) const PORTS_TRIED_MAX: usize = 5;

/// A running Valkey or Redis server. Dropping it ends the server and removes its temporary folder.
#[derive(Debug)]
pub struct Store {
    server: Server,
    port: u16,
}

impl Store {
    /// Finds the program (fetching it when needed, told through `say`), starts it and waits until it answers.
    ///
    /// # Errors
    /// No program and no way to fetch one; no free port; a server that ends or does not answer within 10 s.
    pub async fn start(say: fn(&str)) -> Result<Self, Error> {
        let binary = find(Program::Valkey, &Lookup::from_env(), say).await?;
        let mut server = Server::new(Program::Valkey, binary, Folder::temporary().await?);
        let mut tried = 1;
        loop {
            // Unlike nats-server it cannot pick a port itself, so the port may be taken before it binds.
            let port = free_port().map_err(|source| Error::NoPort { source })?;
            let args = args(server.folder(), port);
            match server.come_up(port, &args).await {
                Ok(port) => return Ok(Self { server, port }),
                Err(Error::PortTaken { .. }) if tried < PORTS_TRIED_MAX => tried += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The address for clients, as `redis://127.0.0.1:6379`.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The loopback port; the same for the whole life of the store.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the server; none after [`Store::kill`].
    pub fn pid(&self) -> Option<u32> {
        self.server.pid()
    }

    /// Sends SIGKILL to the server and waits until it is gone, and with it all it held.
    pub async fn kill(&mut self) {
        self.server.kill().await;
    }

    /// Starts the server again on the same port, empty; one that still runs is stopped first.
    ///
    /// # Errors
    /// As [`Store::start`]; a taken port is tried again for up to 10 s first.
    pub async fn restart(&mut self) -> Result<(), Error> {
        let args = args(self.server.folder(), self.port);
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

fn args(folder: &Path, port: u16) -> Vec<OsString> {
    vec![
        "--port".into(),
        port.to_string().into(),
        "--bind".into(),
        "127.0.0.1".into(),
        "--save".into(),
        "".into(),
        "--appendonly".into(),
        "no".into(),
        "--dir".into(),
        folder.into(),
    ]
}
