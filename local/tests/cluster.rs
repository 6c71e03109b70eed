//! Three real `nats-server`: they form a cluster, lose a node, and get it back.

use anyhow::{Context, Result};
use toolyard_local::Cluster;

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
