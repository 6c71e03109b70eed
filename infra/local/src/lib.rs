//! Finds or fetches real `nats-server`, Valkey/Redis and SeaweedFS programs and runs them on free loopback ports, for
//! `toolyard dev`, `toolyard demo` and the tests. A server ends with its parent, however the parent ends.
//! This room knows nothing of subjects, streams or keys: it hands out URLs. Linux and macOS only.

mod broker;
mod buckets;
mod cluster;
mod store;

mod folder;
mod ports;
mod process;
mod ready;
mod server;

mod fetch;
mod find;
mod program;

mod error;

pub use broker::{Broker, BrokerOptions};
pub use buckets::Buckets;
pub use cluster::{Cluster, ClusterOptions, Node};
pub use error::Error;
pub use find::{Lookup, find};
pub use ports::free_port;
pub use program::Program;
pub use store::Store;
