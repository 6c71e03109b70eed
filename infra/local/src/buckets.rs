//! One SeaweedFS on free loopback ports: a store that speaks S3, with keys, conditions and all.

use std::ffi::OsString;
use std::path::Path;

use crate::error::Error;
use crate::find::{Lookup, find};
use crate::folder::Folder;
use crate::ports::free_port;
use crate::program::Program;
use crate::server::Server;
use crate::store::PORTS_TRIED_MAX;

/// The ports of its parts: master, volumes, filer and S3, each with one for gRPC. The first is S3's.
const PORTS: [&str; 8] = [
    "-s3.port",
    "-s3.port.grpc",
    "-master.port",
    "-master.port.grpc",
    "-volume.port",
    "-volume.port.grpc",
    "-filer.port",
    "-filer.port.grpc",
];
/// Unneeded parts are off, and no usage data is sent.
const ARGUMENTS: [&str; 15] = [
    "-logtostderr=true",
    "server",
    "-ip=127.0.0.1",
    "-ip.bind=127.0.0.1",
    "-filer",
    "-s3",
    "-s3.iam=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-master.telemetry=false",
    "-master.volumeSizeLimitMB=256",
    "-master.electionTimeout=1s",
    "-master.heartbeatInterval=100ms",
    "-volume.max=16",
    "-volume.preStopSeconds=0",
];

/// A running store of buckets. Dropping it ends the server and removes its temporary folder.
#[derive(Debug)]
pub struct Buckets {
    server: Server,
    ports: [u16; PORTS.len()],
}

impl Buckets {
    /// Finds the program (fetching it when needed, told through `say`), starts it and waits until it serves. `config`
    /// says who may what, in its own words: `{"identities": […]}`. A bucket is made by the first who writes to it and
    /// may make buckets.
    ///
    /// # Errors
    /// No program and no way to fetch one; no free ports; a server that ends or does not answer within 60 s.
    pub async fn start(config: &str, say: fn(&str)) -> Result<Self, Error> {
        let binary = find(Program::Weed, &Lookup::from_env(), say).await?;
        let folder = Folder::temporary().await?;
        let wrong = |source| Error::Folder { path: folder.path().to_owned(), source };
        std::fs::write(config_file(folder.path()), config).map_err(wrong)?;
        let mut server = Server::new(Program::Weed, binary, folder);
        let mut tried = 1;
        loop {
            // It cannot pick ports itself, so one may be taken before it binds.
            let ports = free_ports()?;
            let args = args(server.folder(), ports);
            match server.come_up(ports[0], &args).await {
                Ok(_) => return Ok(Self { server, ports }),
                Err(Error::PortTaken { .. }) if tried < PORTS_TRIED_MAX => tried += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// The address of S3, as `http://127.0.0.1:8333`.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.ports[0])
    }

    /// Sends SIGKILL to the server and waits until it is gone. Confirmed data is in its folder.
    pub async fn kill(&mut self) {
        self.server.kill().await;
    }

    /// Starts the server again on the same ports and folder.
    ///
    /// # Errors
    /// As [`Buckets::start`]; a taken port is tried again for up to 10 s first.
    pub async fn restart(&mut self) -> Result<(), Error> {
        let args = args(self.server.folder(), self.ports);
        self.server.come_back(self.ports[0], &args).await
    }

    /// As [`Buckets::restart`], but as if its disk were full: it is read as before, and refuses to store anything.
    ///
    /// # Errors
    /// As [`Buckets::restart`].
    pub async fn restart_full(&mut self) -> Result<(), Error> {
        let mut args = args(self.server.folder(), self.ports);
        // It stores nothing if less than this percentage of the disk is free.
        args.push("-volume.minFreeSpace=100".into());
        self.server.come_back(self.ports[0], &args).await
    }

    /// SIGSTOP: it stands still, and nobody is told.
    pub fn pause(&self) {
        self.server.pause();
    }

    /// SIGCONT.
    pub fn resume(&self) {
        self.server.resume();
    }
}

impl Drop for Buckets {
    /// It leaves unused sockets behind.
    fn drop(&mut self) {
        for (name, port) in PORTS.iter().zip(self.ports) {
            let Some(part) = name.strip_suffix(".port.grpc") else { continue };
            let socket = format!("/tmp/seaweedfs{part}-grpc-{port}.sock");
            if let Err(error) = std::fs::remove_file(&socket) {
                tracing::debug!(%error, socket, "a socket stays behind");
            }
        }
    }
}

fn config_file(folder: &Path) -> std::path::PathBuf {
    folder.join("who-may-what.json")
}

fn args(folder: &Path, ports: [u16; PORTS.len()]) -> Vec<OsString> {
    let mut args: Vec<OsString> = ARGUMENTS.iter().map(OsString::from).collect();
    args.extend(PORTS.iter().zip(ports).map(|(name, port)| format!("{name}={port}").into()));
    let mut path = |name: &str, path: &Path| {
        let mut arg = OsString::from(name);
        arg.push(path);
        args.push(arg);
    };
    path("-dir=", folder);
    path("-s3.config=", &config_file(folder));
    path("-s3.localSocket=", &folder.join("s3.sock"));
    path("-filer.localSocket=", &folder.join("filer.sock"));
    args
}

fn free_ports() -> Result<[u16; PORTS.len()], Error> {
    let mut ports = [0; PORTS.len()];
    for port in &mut ports {
        *port = free_port().map_err(|source| Error::NoPort { source })?;
    }
    Ok(ports)
}
