//! The configuration of a broker that enforces permissions: two texts that depend only on their arguments. Users are
//! identified by public keys, so nothing in the texts is secret.

use std::fmt::{self, Write as _};

use super::{ACCOUNT, Answers, Party, SETTINGS, Service};
use proto::names::{self, STREAM};

/// The system account of the servers, which reports how they write to disk.
const SYSTEM_ACCOUNT: &str = "SYS";
/// After how much silence the broker forgets where the answers to another account's request go; the server would keep
/// it for two minutes. A worker waits 5 s at most for an answer. Its request for jobs ends after 4 s, and says every 2
/// s that it is open.
const ANSWERS_SILENCE: &str = "10s";
/// Memory for consumers that live as long as a connection, one a coordinator's feed and one a list of keys: kilobytes.
const MEMORY_BYTES: u64 = 64 << 20;
/// Longest message, and so the longest entry of the log.
const PAYLOAD_BYTES: u64 = 1 << 20;

/// The line on which a user begins, up to the name of its party.
const USER: &str = "      { # ";
/// The next line, up to the public half of the user's key.
const NKEY: &str = "        nkey: ";

/// A party and the public half of a key of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub party: Party,
    pub public_key: String,
}

/// `accounts.conf`: accounts, users, permissions. The same on every server, and of use beside any other configuration.
/// All keys of a party open the same account with the same permissions.
#[must_use]
pub fn accounts(users: &[User]) -> String {
    let mut text = String::new();
    write_accounts(&mut text, users).expect("a string takes everything");
    text
}

/// The users of an `accounts.conf`, in an order in which [`accounts`] writes the same text. `None` if it would write
/// another one: another release wrote the text, or somebody edited it.
#[must_use]
pub fn users(text: &str) -> Option<Vec<User>> {
    let pairs = text.lines().zip(text.lines().skip(1));
    let mut users = Vec::new();
    for (user, key) in pairs.filter(|(user, _)| user.starts_with(USER)) {
        let party = Party::named(user.strip_prefix(USER)?)?;
        let key = key.strip_prefix(NKEY)?;
        if !key.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return None;
        }
        users.push(User { party, public_key: key.to_owned() });
    }
    (accounts(&users) == text).then_some(users)
}

fn write_accounts(out: &mut String, users: &[User]) -> fmt::Result {
    // While a key is replaced, a party has two.
    let mut parties: Vec<&Party> = Vec::new();
    for User { party, .. } in users {
        if !parties.contains(&party) {
            parties.push(party);
        }
    }
    writeln!(out, "# Made by `toolyard nats-config`: who may publish and subscribe to what. Nothing in it is secret.")?;
    writeln!(out, "accounts {{")?;
    // The operator lives in the account of the coordinators.
    for party in parties.iter().filter(|party| ***party != Party::Operator) {
        write_account(out, party, &parties, users)?;
    }
    let asks = parties.iter().filter(|party| asks_for_settings(party)).map(|party| quoted(&party.account()));
    let asks = asks.collect::<Vec<_>>().join(", ");
    writeln!(out, "  {SYSTEM_ACCOUNT} {{")?;
    writeln!(out, "    # How each server writes to disk, by which durability `strict` is verified.")?;
    writeln!(out, "    exports = [ {{ service: \"{SETTINGS}\", response: stream, accounts: [ {asks} ] }} ]\n  }}\n}}")?;
    writeln!(out, "system_account: {SYSTEM_ACCOUNT}")
}

fn write_account(out: &mut String, party: &Party, parties: &[&Party], users: &[User]) -> fmt::Result {
    writeln!(out, "  {} {{", quoted(&party.account()))?;
    if *party == Party::Coordinator {
        writeln!(out, "    jetstream: enabled")?;
    }
    writeln!(out, "    users = [")?;
    users.iter().filter(|user| user.party.account() == party.account()).try_for_each(|user| write_user(out, user))?;
    writeln!(out, "    ]\n    exports = [")?;
    for other in parties {
        match party {
            Party::Coordinator => write_exports(out, other)?,
            Party::Observer => {
                if let Some(heartbeat) = heartbeat(other) {
                    service(out, &heartbeat, Answers::One, other)?;
                }
            }
            Party::Operator | Party::Pool(_) => {}
        }
    }
    writeln!(out, "    ]\n    imports = [")?;
    for Service { subject, .. } in party.services() {
        import(out, "service", ACCOUNT, &subject)?;
    }
    if asks_for_settings(party) {
        import(out, "service", SYSTEM_ACCOUNT, SETTINGS)?;
    }
    if let Party::Pool(pool) = party {
        import(out, "stream", ACCOUNT, &names::stop(pool))?;
        if parties.contains(&&Party::Observer) {
            import(out, "service", &Party::Observer.account(), &names::heartbeat(pool))?;
        }
        // Else the server would import all of `$JS.API` from its own account, to answer that this one has no streams,
        // and each request above would be answered twice.
        let (info, account) = (format!("$JS.API.CONSUMER.INFO.{STREAM}.{}", party.name()), ACCOUNT);
        writeln!(out, "      {{ service: {{ account: \"{account}\", subject: \"{info}\" }}, to: \"$JS.API.INFO\" }}")?;
    }
    writeln!(out, "    ]\n  }}")
}

fn write_user(out: &mut String, User { party, public_key }: &User) -> fmt::Result {
    writeln!(out, "{USER}{}\n{NKEY}{public_key}\n        permissions {{", party.name())?;
    list(out, "publish", &party.publishes())?;
    list(out, "subscribe", &party.subscribes())?;
    writeln!(out, "        }}\n      }}")
}

/// The exports of the coordinators' account to the account of another party.
fn write_exports(out: &mut String, to: &Party) -> fmt::Result {
    for Service { subject, answers } in to.services() {
        service(out, &subject, answers, to)?;
    }
    if let Party::Pool(pool) = to {
        let (subject, account) = (names::stop(pool), to.account());
        writeln!(out, "      {{ stream: \"{subject}\", accounts: [ \"{account}\" ] }}")?;
    }
    Ok(())
}

fn service(out: &mut String, subject: &str, answers: Answers, to: &Party) -> fmt::Result {
    let response = match answers {
        Answers::One => "",
        Answers::Many => "response: stream, ",
    };
    let account = to.account();
    writeln!(
        out,
        "      {{ service: \"{subject}\", {response}threshold: \"{ANSWERS_SILENCE}\", accounts: [ \"{account}\" ] }}"
    )
}

fn import(out: &mut String, what: &str, account: &str, subject: &str) -> fmt::Result {
    writeln!(out, "      {{ {what}: {{ account: \"{account}\", subject: \"{subject}\" }} }}")
}

/// Heartbeats reach the observer as a service of its account: a message that one account got from a second one by a
/// service is not passed on to a third one by a stream.
fn heartbeat(of: &Party) -> Option<String> {
    match of {
        Party::Pool(pool) => Some(names::heartbeat(pool)),
        Party::Coordinator | Party::Observer | Party::Operator => None,
    }
}

fn asks_for_settings(party: &Party) -> bool {
    match party {
        Party::Coordinator | Party::Observer => true,
        Party::Operator | Party::Pool(_) => false,
    }
}

fn list(out: &mut String, what: &str, subjects: &[String]) -> fmt::Result {
    writeln!(out, "          {what} {{ allow = [")?;
    for subject in subjects {
        writeln!(out, "            \"{subject}\"")?;
    }
    writeln!(out, "          ] }}")
}

/// The settings of `nats.conf`.
#[derive(Debug, Clone)]
pub struct Server {
    pub port: u16,
    /// The address of the monitoring pages, which have no authentication. `None`: no monitoring.
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
    /// The authority that signs the certificates of the cluster's servers.
    pub ca: Option<String>,
}

#[derive(Debug, Clone)]
pub struct Cluster {
    pub name: String,
    pub port: u16,
    /// The servers, itself among them or not, as `nats-route://nats-0.nats:6222`.
    pub routes: Vec<String>,
}

/// `nats.conf`, which includes `accounts.conf` beside it. The same on every server of a cluster: its name comes from
/// the environment (`SERVER_NAME`).
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
        writeln!(out, "cluster {{\n  name: {}\n  port: {port}", quoted(name))?;
        if tls.is_some() {
            // Clients would learn addresses that no certificate names.
            writeln!(out, "  no_advertise: true")?;
        }
        writeln!(out, "  routes = [")?;
        for route in routes {
            writeln!(out, "    {}", quoted(route))?;
        }
        writeln!(out, "  ]")?;
        if let Some(tls) = tls {
            // Servers authenticate each other with their certificates, so no other server can join.
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
