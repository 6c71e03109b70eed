//! Starts a broker, prints its process id and port, and waits to be killed: `nats-server` ends with it. Takes the
//! broker's folder as its argument; without one it uses a temporary folder.

use std::io::Write;

use toolyard_local::{Broker, BrokerOptions};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let data_dir = std::env::args_os().nth(1).map(Into::into);
    let options = BrokerOptions { data_dir, ..BrokerOptions::default() };
    let broker = Broker::start(options, |line| eprintln!("{line}")).await?;
    let pid = broker.pid().unwrap_or_default();
    writeln!(std::io::stdout(), "{pid} {}", broker.port())?;
    std::future::pending::<()>().await;
    Ok(())
}
