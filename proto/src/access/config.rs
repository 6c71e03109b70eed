//! The configuration of a broker that holds everybody to what they may: two texts, pure of any input but what they are
//! told. A user is known by a public key, so nothing in them is secret.

use std::fmt::{self, Write as _};

use super::{Party, SETTINGS};

/// The account that everything of ours lives in.
pub const ACCOUNT: &str = "TOOLYARD";
/// The account of the servers themselves, which tells how they write to disk.
const SYSTEM_ACCOUNT: &str = "SYS";
/// Memory for consumers that live as long as a connection, one a coordinator's feed and one a list of keys: kilobytes.
const MEMORY_BYTES: u64 = 64 << 20;
/// Longest message, and so the longest entry of the log.
const PAYLOAD_BYTES: u64 = 1 << 20;

/// A party and the public half of its key.
#[derive(Debug, Clone)]
pub struct User {
    pub party: Party,
    pub public_key: String,
}

/// `accounts.conf`: accounts, users, permissions. The same on every server, and of use beside any other configuration.
#[must_use]
pub fn accounts(users: &[User]) -> String {
    let mut text = String::new();
    write_accounts(&mut text, users).expect("a string takes everything");
    text
}

fn write_accounts(out: &mut String, users: &[User]) -> fmt::Result {
    writeln!(out, "# Made by `toolyard nats-config`: who may say and hear what. Nothing in it is secret.")?;
    writeln!(out, "accounts {{\n  {ACCOUNT} {{\n    jetstream: enabled\n    users = [")?;
    for User { party, public_key } in users {
        writeln!(out, "      {{ # {}\n        nkey: {public_key}\n        permissions {{", party.name())?;
        list(out, "publish", &party.publishes())?;
        list(out, "subscribe", &party.subscribes())?;
        writeln!(out, "        }}\n      }}")?;
    }
    writeln!(out, "    ]")?;
    writeln!(out, "    imports = [ {{ service: {{ account: {SYSTEM_ACCOUNT}, subject: \"{SETTINGS}\" }} }} ]\n  }}")?;
    writeln!(out, "  {SYSTEM_ACCOUNT} {{")?;
    writeln!(out, "    # How each server writes to disk, which durability `strict` is verified by.")?;
    writeln!(
        out,
        "    exports = [ {{ service: \"{SETTINGS}\", response: stream, accounts: [ {ACCOUNT} ] }} ]\n  }}\n}}"
    )?;
    writeln!(out, "system_account: {SYSTEM_ACCOUNT}")
}

fn list(out: &mut String, what: &str, subjects: &[String]) -> fmt::Result {
    writeln!(out, "          {what} {{ allow = [")?;
    for subject in subjects {
        writeln!(out, "            \"{subject}\"")?;
    }
    writeln!(out, "          ] }}")
}

/// What `nats.conf` says.
#[derive(Debug, Clone)]
pub struct Server {
    pub port: u16,
    /// Where it tells of itself over HTTP, without asking who wants to know. `None`: nowhere.
    pub monitor_port: Option<u16>,
    pub store_dir: String,
    /// Bytes of disk for the log and all else that is stored.
    pub store_bytes: u64,
    /// Every write is on disk before it is confirmed.
    pub sync_always: bool,
    pub tls: Option<Tls>,
    pub cluster: Option<Cluster>,
}

/// Files of PEM, as the server sees them.
#[derive(Debug, Clone)]
pub struct Tls {
    pub cert: String,
    pub key: String,
    /// By whom the certificates of the other servers of the cluster are signed.
    pub ca: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Cluster {
    pub name: String,
    pub port: u16,
    /// The servers, itself among them or not, as `nats-route://nats-0.nats:6222`.
    pub routes: Vec<String>,
}

/// `nats.conf`, which includes `accounts.conf` beside it. The same on every server of a cluster: its name comes from the
/// environment (`SERVER_NAME`).
#[must_use]
pub fn server(server: &Server) -> String {
    let mut text = String::new();
    write_server(&mut text, server).expect("a string takes everything");
    text
}

fn write_server(out: &mut String, server: &Server) -> fmt::Result {
    let Server { port, monitor_port, store_dir, store_bytes, sync_always, tls, cluster } = server;
    writeln!(out, "# Made by `toolyard nats-config`. Every server of a cluster has a name of its own in SERVER_NAME.")?;
    writeln!(out, "server_name: $SERVER_NAME\nport: {port}")?;
    if let Some(port) = monitor_port {
        writeln!(out, "http_port: {port}")?;
    }
    writeln!(out, "max_payload: {PAYLOAD_BYTES}")?;
    writeln!(out, "jetstream {{")?;
    writeln!(out, "  store_dir: {}\n  max_file_store: {store_bytes}", quoted(store_dir))?;
    writeln!(out, "  max_memory_store: {MEMORY_BYTES}")?;
    if *sync_always {
        writeln!(out, "  sync_interval: always")?;
    }
    writeln!(out, "}}")?;
    if let Some(tls) = tls {
        write_tls(out, "", tls, false)?;
    }
    if let Some(Cluster { name, port, routes }) = cluster {
        writeln!(out, "cluster {{\n  name: {}\n  port: {port}\n  routes = [", quoted(name))?;
        for route in routes {
            writeln!(out, "    {}", quoted(route))?;
        }
        writeln!(out, "  ]")?;
        if let Some(tls) = tls {
            // Servers show each other their certificates: nobody else joins.
            write_tls(out, "  ", tls, true)?;
        }
        writeln!(out, "}}")?;
    }
    writeln!(out, "include \"accounts.conf\"")
}

fn write_tls(out: &mut String, indent: &str, tls: &Tls, verify: bool) -> fmt::Result {
    let Tls { cert, key, ca } = tls;
    writeln!(out, "{indent}tls {{")?;
    writeln!(out, "{indent}  cert_file: {}\n{indent}  key_file: {}", quoted(cert), quoted(key))?;
    if let Some(ca) = ca {
        writeln!(out, "{indent}  ca_file: {}", quoted(ca))?;
    }
    if verify {
        writeln!(out, "{indent}  verify: true")?;
    }
    writeln!(out, "{indent}}}")
}

/// As the server reads it back.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
