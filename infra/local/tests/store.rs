//! A real Valkey or Redis server: it answers, is killed, comes back empty, and ends when dropped.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};

use anyhow::{Context, Result};
use rustix::process::{Pid, test_kill_process};
use toolyard_local::Store;

/// The first line of the answer to one command.
fn ask(port: u16, command: &str) -> Result<String> {
    let mut socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    socket.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line)?;
    Ok(line.trim_end().to_owned())
}

#[tokio::test]
async fn a_store_answers_ping() -> Result<()> {
    let store = Store::start(|line| eprintln!("{line}")).await?;
    assert_eq!(store.url(), format!("redis://127.0.0.1:{}", store.port()));
    assert_eq!(ask(store.port(), "PING")?, "+PONG");
    store.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_killed_store_comes_back_empty_on_its_port() -> Result<()> {
    let mut store = Store::start(|line| eprintln!("{line}")).await?;
    let port = store.port();
    assert_eq!(ask(port, "SET color red")?, "+OK");

    store.kill().await;
    assert_eq!(store.pid(), None);
    assert!(ask(port, "PING").is_err(), "nobody listens");

    store.restart().await?;
    assert_eq!(store.port(), port);
    assert_eq!(ask(port, "EXISTS color")?, ":0");
    Ok(())
}

#[tokio::test]
async fn a_dropped_store_is_gone() -> Result<()> {
    let store = Store::start(|line| eprintln!("{line}")).await?;
    let pid = i32::try_from(store.pid().context("a running store")?)?;
    drop(store);
    let pid = Pid::from_raw(pid).context("a process id")?;
    assert!(test_kill_process(pid).is_err(), "the process is gone");
    Ok(())
}
