//! Three real `nats-server`: they form a cluster, lose a node, and get it back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, test_kill_process};
use toolyard_local::{Broker, BrokerOptions, Cluster, ClusterOptions, Node};

/// Longer than an answer takes on a busy machine; a test waits for it in vain, so not much longer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// What a server answers to one request to its API, over its own protocol.
fn ask(url: &str, subject: &str, payload: &str) -> Result<String> {
    let mut socket = TcpStream::connect(url.trim_start_matches("nats://"))?;
    socket.set_read_timeout(Some(ANSWER_LIMIT))?;
    let request = format!("PUB {subject} inbox {}\r\n{payload}\r\n", payload.len());
    socket.write_all(format!("CONNECT {{\"verbose\":false}}\r\nSUB inbox 1\r\n{request}").as_bytes())?;
    let (mut lines, mut line) = (BufReader::new(socket), String::new());
    while !line.starts_with("MSG ") {
        line.clear();
        ensure!(lines.read_line(&mut line)? > 0, "the connection was closed");
    }
    line.clear();
    lines.read_line(&mut line)?;
    Ok(line)
}

fn make_stream(node: &Node) -> Result<String> {
    let config = r#"{"name":"three","subjects":["three.>"],"storage":"file","num_replicas":3}"#;
    ask(&node.url(), "$JS.API.STREAM.CREATE.three", config)
}

/// What a node says of its JetStream.
fn settings(node: &Node) -> Result<serde_json::Value> {
    let url = node.monitoring_url();
    let mut socket = TcpStream::connect(url.trim_start_matches("http://"))?;
    socket.write_all(b"GET /jsz HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(serde_json::from_str(answer.split_once("\r\n\r\n").context("a body")?.1)?)
}

fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

#[tokio::test]
async fn a_cluster_comes_up_loses_a_node_and_gets_it_back() -> Result<()> {
    let mut cluster = Cluster::start(|line| eprintln!("{line}")).await?;
    assert_eq!(cluster.url().split(',').count(), 3);
    let names: Vec<String> = cluster.nodes().iter().map(|node| node.name()).collect();
    assert_eq!(names, ["toolyard-local-0", "toolyard-local-1", "toolyard-local-2"]);
    let before = cluster.nodes()[1].pid().context("it runs")?;
    cluster.nodes_mut()[1].kill().await;
    assert_eq!(cluster.nodes()[1].pid(), None);
    cluster.healthy().await.context("two of three are enough")?;
    let url = cluster.nodes()[1].url();
    cluster.nodes_mut()[1].restart().await?;
    cluster.healthy().await?;
    assert_eq!(cluster.nodes()[1].url(), url);
    assert_ne!(cluster.nodes()[1].pid(), Some(before));
    cluster.nodes()[2].pause();
    cluster.nodes()[2].resume();
    cluster.healthy().await?;
    cluster.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_started_holds_three_replicas_at_once() -> Result<()> {
    let cluster = Cluster::start(|line| eprintln!("{line}")).await?;
    let made = make_stream(&cluster.nodes()[0])?;
    assert!(made.contains(r#""num_replicas":3"#), "{made}");
    assert_eq!(settings(&cluster.nodes()[0])?["config"].get("sync_always"), None);
    cluster.stop().await;
    Ok(())
}

#[tokio::test]
async fn a_cluster_writes_at_once_where_it_is_asked_to() -> Result<()> {
    let options = ClusterOptions { sync_always: true, ..ClusterOptions::default() };
    let cluster = Cluster::start_with(options, |line| eprintln!("{line}")).await?;
    for node in cluster.nodes() {
        assert_eq!(settings(node)?["config"]["sync_always"], true, "{}", node.name());
    }
    Ok(())
}

#[tokio::test]
async fn two_clusters_do_not_know_each_other() -> Result<()> {
    let one = Cluster::start(|line| eprintln!("{line}")).await?;
    let other = Cluster::start(|line| eprintln!("{line}")).await?;
    make_stream(&one.nodes()[0])?;
    let info = ask(&other.nodes()[0].url(), "$JS.API.STREAM.INFO.three", "")?;
    assert!(info.contains("stream not found"), "{info}");
    let names =
        [&one, &other].map(|cluster| settings(&cluster.nodes()[0]).map(|it| it["meta_cluster"]["name"].clone()));
    let [one, other] = names;
    assert_ne!(one?, other?, "servers of one name would join where a port changes hands");
    Ok(())
}

#[tokio::test]
async fn a_dropped_cluster_is_gone_even_with_a_paused_node() -> Result<()> {
    let cluster = Cluster::start(|line| eprintln!("{line}")).await?;
    cluster.nodes()[2].pause();
    assert!(ask(&cluster.nodes()[2].url(), "$JS.API.INFO", "").is_err(), "it answers nothing");
    let pids: Vec<u32> = cluster.nodes().iter().filter_map(Node::pid).collect();
    drop(cluster);
    assert_eq!(pids.len(), 3);
    assert!(!pids.into_iter().any(is_alive));
    Ok(())
}

#[tokio::test]
async fn a_paused_broker_is_silent_until_it_is_resumed() -> Result<()> {
    let broker = Broker::start(BrokerOptions::default(), |line| eprintln!("{line}")).await?;
    broker.pause();
    assert!(ask(&broker.url(), "$JS.API.INFO", "").is_err(), "it answers nothing");
    broker.resume();
    assert!(ask(&broker.url(), "$JS.API.INFO", "")?.contains("limits"));
    Ok(())
}
