//! A real `nats-server`: it comes up, is killed, comes back, and ends with its parent.

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, test_kill_process};
use toolyard_local::{Broker, BrokerOptions, Error};

const LIMIT: Duration = Duration::from_secs(20);

async fn broker() -> Result<Broker, Error> {
    Broker::start(BrokerOptions::default(), |line| eprintln!("{line}")).await
}

/// The first line that the broker says to a client.
fn greeting(port: u16) -> Result<String> {
    let socket = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    socket.set_read_timeout(Some(LIMIT))?;
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line)?;
    Ok(line)
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

fn wait_until_gone(pid: u32) -> Result<()> {
    let deadline = Instant::now() + LIMIT;
    while is_alive(pid) {
        ensure!(Instant::now() < deadline, "process {pid} is still alive");
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

#[tokio::test]
async fn a_broker_comes_up_with_jetstream_and_answers_info() -> Result<()> {
    let broker = broker().await?;
    assert_eq!(broker.url(), format!("nats://127.0.0.1:{}", broker.port()));
    let info = greeting(broker.port())?;
    assert!(info.starts_with("INFO {"), "{info}");
    assert!(info.contains(r#""jetstream":true"#), "{info}");
    broker.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_killed_broker_comes_back_on_its_port_with_its_folder() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data_dir = folder.path().join("made/when/missing");
    let options = BrokerOptions { data_dir: Some(data_dir), ..BrokerOptions::default() };
    let mut broker = Broker::start(options, |line| eprintln!("{line}")).await?;
    let (port, pid) = (broker.port(), broker.pid().context("a running broker")?);
    std::fs::write(broker.data_dir().join("mark"), "kept")?;

    broker.kill().await;
    assert!(!is_alive(pid));
    assert_eq!(broker.pid(), None);
    assert!(greeting(port).is_err(), "nobody listens");

    broker.restart().await?;
    assert_eq!(broker.port(), port);
    assert_ne!(broker.pid(), Some(pid));
    assert!(greeting(port)?.starts_with("INFO {"));
    assert_eq!(std::fs::read_to_string(broker.data_dir().join("mark"))?, "kept");

    let data_dir = broker.data_dir().to_owned();
    broker.stop().await;
    assert!(data_dir.join("jetstream").is_dir(), "a folder of one's own is not removed");
    Ok(())
}

#[tokio::test]
async fn a_running_broker_can_be_restarted() -> Result<()> {
    let mut broker = broker().await?;
    let pid = broker.pid().context("a running broker")?;
    broker.restart().await?;
    assert!(!is_alive(pid));
    assert!(greeting(broker.port())?.starts_with("INFO {"));
    Ok(())
}

#[tokio::test]
async fn a_stopped_broker_is_gone() -> Result<()> {
    let broker = broker().await?;
    let pid = broker.pid().context("a running broker")?;
    broker.stop().await;
    assert!(!is_alive(pid));
    Ok(())
}

#[tokio::test]
async fn a_dropped_broker_is_gone_with_its_temporary_folder() -> Result<()> {
    let broker = broker().await?;
    let pid = broker.pid().context("a running broker")?;
    let folder = broker.data_dir().to_owned();
    assert!(folder.is_dir());
    drop(broker);
    assert!(!is_alive(pid));
    assert!(!folder.exists());
    Ok(())
}

#[tokio::test]
async fn a_dropped_broker_with_a_folder_of_its_own_ends_soon() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let options = BrokerOptions { data_dir: Some(folder.path().to_owned()), ..BrokerOptions::default() };
    let broker = Broker::start(options.clone(), |line| eprintln!("{line}")).await?;
    let pid = broker.pid().context("a running broker")?;
    drop(broker);
    // The next one waits for the folder, so both never write it at once.
    let next = Broker::start(options, |line| eprintln!("{line}")).await?;
    assert!(!is_alive(pid));
    next.stop().await;
    Ok(())
}

#[tokio::test]
async fn two_brokers_never_share_a_folder() -> Result<()> {
    let first = broker().await?;
    let options = BrokerOptions { data_dir: Some(first.data_dir().to_owned()), ..BrokerOptions::default() };
    let second = Broker::start(options, |line| eprintln!("{line}")).await;
    assert!(matches!(second, Err(Error::FolderInUse { .. })), "{second:?}");
    assert!(greeting(first.port())?.starts_with("INFO {"), "the first one is unharmed");
    Ok(())
}

#[tokio::test]
async fn a_taken_port_is_named_in_the_error() -> Result<()> {
    let first = broker().await?;
    let options = BrokerOptions { port: Some(first.port()), ..BrokerOptions::default() };
    let error = Broker::start(options, |line| eprintln!("{line}")).await.expect_err("it is taken");
    assert!(error.to_string().contains(&format!("port {}", first.port())), "{error}");
    Ok(())
}

#[test]
fn a_broker_ends_when_its_parent_is_killed() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut parent = Command::new(example("hold_broker")?).arg(folder.path()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(parent.stdout.take().context("a pipe")?).read_line(&mut line)?;
    let (pid, port) = line.trim().split_once(' ').context("a process id and a port")?;
    let (pid, port) = (pid.parse()?, port.parse()?);
    assert!(greeting(port)?.starts_with("INFO {"));

    parent.kill()?;
    parent.wait()?;
    wait_until_gone(pid)?;
    assert!(greeting(port).is_err(), "nobody listens");
    Ok(())
}

/// Cargo tells tests the path of a package's binaries but not of its examples, which lie beside the tests' folder.
fn example(name: &str) -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let target = test.ancestors().nth(2).context("a target folder")?;
    let file = target.join("examples").join(name);
    ensure!(file.is_file(), "build {} first: cargo build -p toolyard-local --examples", file.display());
    Ok(file)
}
