//! How to see that a server is up, and that it is ours: another one may have taken the port in between.

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::program::Program;

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

/// Reads `{"nats":["nats://127.0.0.1:4222"]}`, written once the broker listens. Half a file is no answer.
fn broker_port(file: &Path) -> Option<u16> {
    let ports: serde_json::Value = serde_json::from_slice(&std::fs::read(file).ok()?).ok()?;
    let (_, port) = ports["nats"][0].as_str()?.rsplit_once(':')?;
    port.parse().ok()
}

/// Whether a node of a cluster has a leader and has caught up, as its monitoring port says.
pub(crate) async fn is_healthy(monitoring: u16) -> bool {
    matches!(timeout(ANSWER_LIMIT, says_ok(monitoring)).await, Ok(Ok(true)))
}

async fn says_ok(monitoring: u16) -> io::Result<bool> {
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, monitoring)).await?;
    socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line).await?;
    Ok(line.contains(" 200 "))
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
