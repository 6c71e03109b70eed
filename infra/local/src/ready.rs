//! How to see that a server is up, and that it is ours: another one may have taken the port in between.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::program::Program;

/// Longest answer of a monitoring port; that about a broker's own state has some kilobytes.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;
/// A server that is up answers in well under a millisecond; one that does not is asked again.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// The port on which the process `pid` serves; none while it does not yet.
pub(crate) async fn port(program: Program, folder: &Path, port: u16, pid: u32) -> Option<u16> {
    match program {
        Program::NatsServer => broker_port(&ports_file(folder, pid)),
        Program::Valkey => {
            let answer = timeout(ANSWER_LIMIT, store_answers(port, pid)).await;
            matches!(answer, Ok(Ok(true))).then_some(port)
        }
        // It does not tell its process id; who lost a port to another ends.
        Program::Weed => is_healthy(port).await.then_some(port),
    }
}

/// Removes the ports files of earlier brokers: a killed one leaves its file, and process ids come round again.
pub(crate) fn forget(folder: &Path) {
    let Ok(entries) = folder.read_dir() else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == "ports")
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(%error, path = %path.display(), "cannot remove an old ports file");
        }
    }
}

fn ports_file(folder: &Path, pid: u32) -> PathBuf {
    folder.join(format!("nats-server_{pid}.ports"))
}

/// The monitoring address of a running broker; none if it does not run.
pub(crate) fn monitoring_url(folder: &Path, pid: u32) -> Option<String> {
    let ports = ports(&ports_file(folder, pid))?;
    ports["monitoring"][0].as_str().map(str::to_owned)
}

/// Reads `{"nats":["nats://127.0.0.1:4222"]}`, written once the broker listens. Half a file is no answer.
fn ports(file: &Path) -> Option<serde_json::Value> {
    serde_json::from_slice(&std::fs::read(file).ok()?).ok()
}

fn broker_port(file: &Path) -> Option<u16> {
    let ports = ports(file)?;
    let (_, port) = ports["nats"][0].as_str()?.rsplit_once(':')?;
    port.parse().ok()
}

/// Whether what serves there is well: a node of a cluster that has a leader and has caught up, a store of buckets.
pub(crate) async fn is_healthy(monitoring: u16) -> bool {
    matches!(timeout(ANSWER_LIMIT, says_ok(monitoring)).await, Ok(Ok(true)))
}

async fn says_ok(monitoring: u16) -> io::Result<bool> {
    let mut line = String::new();
    get(monitoring, "/healthz").await?.read_line(&mut line).await?;
    Ok(line.contains(" 200 "))
}

/// How many others the node of this name has heard of, if it leads the cluster, and are where it is.
pub(crate) async fn peers_heard(monitoring: u16, name: &str) -> Option<usize> {
    let answer = timeout(ANSWER_LIMIT, jetstream(monitoring)).await.ok()?.ok()?;
    let (_, body) = answer.split_once("\r\n\r\n")?;
    let answer: serde_json::Value = serde_json::from_str(body).ok()?;
    let cluster = Some(&answer["meta_cluster"]).filter(|cluster| cluster["leader"] == name)?;
    let is_current = |peer: &&serde_json::Value| peer["current"] == true;
    Some(cluster["replicas"].as_array()?.iter().filter(is_current).count())
}

async fn jetstream(monitoring: u16) -> io::Result<String> {
    let mut answer = String::new();
    get(monitoring, "/jsz").await?.take(ANSWER_BYTES_MAX).read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Version 1.0, so that the answer comes in one piece and ends with the connection.
async fn get(monitoring: u16, path: &str) -> io::Result<BufReader<TcpStream>> {
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, monitoring)).await?;
    socket.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await?;
    Ok(BufReader::new(socket))
}

async fn store_answers(port: u16, pid: u32) -> io::Result<bool> {
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    socket.write_all(b"PING\r\nINFO server\r\n").await?;
    let mut lines = BufReader::new(socket).lines();
    if lines.next_line().await?.as_deref() != Some("+PONG") {
        return Ok(false);
    }
    while let Some(line) = lines.next_line().await? {
        if let Some(id) = line.strip_prefix("process_id:") {
            return Ok(id.parse() == Ok(pid));
        }
    }
    Ok(false)
}
