//! One broker, or three that are one log.

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;

use crate::process::memory_kib;
use crate::schedule::Blow;

#[derive(Debug)]
pub(crate) enum Brokers {
    One(Box<local::Broker>),
    Three(local::Cluster),
}

impl Brokers {
    pub(crate) async fn start(nodes: usize) -> anyhow::Result<Self> {
        Ok(match nodes {
            1 => {
                let broker = local::Broker::start(local::BrokerOptions::default(), |line| eprintln!("{line}")).await?;
                Self::One(Box::new(broker))
            }
            _ => Self::Three(local::Cluster::start(|line| eprintln!("{line}")).await?),
        })
    }

    /// The URL of each node.
    pub(crate) fn urls(&self) -> Vec<String> {
        match self {
            Self::One(broker) => vec![broker.url()],
            Self::Three(cluster) => cluster.nodes().iter().map(local::Node::url).collect(),
        }
    }

    /// How durable the log can be here, as coordinators call it.
    pub(crate) fn durability(&self) -> &'static str {
        match self {
            Self::One(_) => "dev",
            Self::Three(_) => "standard",
        }
    }

    /// Strikes a node, waits, brings it back, and waits until it has caught up with the others. Says which node it was.
    pub(crate) async fn strike(&mut self, blow: Blow, pick: usize, lasts: Duration) -> anyhow::Result<usize> {
        if blow == Blow::Stall {
            self.stall(lasts).await?;
            return Ok(0);
        }
        let index = match self {
            Self::One(broker) => {
                broker.kill().await;
                tokio::time::sleep(lasts).await;
                broker.restart().await.context("the broker does not come back")?;
                0
            }
            Self::Three(cluster) => {
                let index = pick % cluster.nodes().len();
                let node = cluster.nodes_mut().get_mut(index).context("there is no such node")?;
                if blow == Blow::Pause {
                    node.pause();
                    tokio::time::sleep(lasts).await;
                    node.resume();
                } else {
                    node.kill().await;
                    tokio::time::sleep(lasts).await;
                    node.restart().await.context("a node of the broker does not come back")?;
                }
                cluster.healthy().await.context("the brokers do not find together again")?;
                index
            }
        };
        Ok(index)
    }

    /// Stops all nodes at once, and lets all of them go on.
    async fn stall(&self, lasts: Duration) -> anyhow::Result<()> {
        match self {
            Self::One(broker) => {
                broker.pause();
                tokio::time::sleep(lasts).await;
                broker.resume();
            }
            Self::Three(cluster) => {
                cluster.nodes().iter().for_each(local::Node::pause);
                tokio::time::sleep(lasts).await;
                cluster.nodes().iter().for_each(local::Node::resume);
                cluster.healthy().await.context("the brokers do not find together again")?;
            }
        }
        Ok(())
    }

    /// The most that one node ever held.
    pub(crate) fn memory_kib(&self) -> Option<u64> {
        let pids: Vec<Option<u32>> = match self {
            Self::One(broker) => vec![broker.pid()],
            Self::Three(cluster) => cluster.nodes().iter().map(local::Node::pid).collect(),
        };
        pids.into_iter().flatten().filter_map(memory_kib).map(|(_, most)| most).max()
    }

    /// Ends them, the log of a single one kept in `folder`.
    pub(crate) async fn stop(self, folder: &Path) {
        match self {
            Self::One(broker) => {
                drop(std::fs::copy(broker.data_dir().join("server.log"), folder.join("broker.log")));
                broker.stop().await;
            }
            Self::Three(cluster) => cluster.stop().await,
        }
    }
}
