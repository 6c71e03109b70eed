//! Durability profiles of the log, and detection of how its servers write to disk.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use async_nats::Client;
use async_nats::jetstream::stream::Info;
use futures::StreamExt as _;
use nats::access::SETTINGS;
use serde_json::Value;
use tokio::time::Instant;

/// How long the servers may take to answer. All are queried concurrently, and answer from memory.
const SETTINGS_PATIENCE: Duration = Duration::from_secs(2);
const NO_RESPONDERS: u16 = 503;

/// Which failures the log survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// One copy, on one server: a lost disk loses the log.
    #[default]
    Dev,
    /// Three copies, each written to disk when its server sees fit. Survives the loss of a server, and may lose the
    /// last accepted entries if all servers lose power at once.
    Standard,
    /// Three copies, each on disk before an append is confirmed.
    Strict,
}

impl Durability {
    pub const NAMES: [&'static str; 3] = ["dev", "standard", "strict"];

    #[must_use]
    pub fn replicas(self) -> usize {
        match self {
            Self::Dev => 1,
            Self::Standard | Self::Strict => 3,
        }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Dev => "dev",
            Self::Standard => "standard",
            Self::Strict => "strict",
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("unknown durability {0:?}: choose dev, standard or strict")]
pub struct UnknownDurability(String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let all = [Self::Dev, Self::Standard, Self::Strict];
        all.into_iter().find(|durability| durability.name() == name).ok_or_else(|| UnknownDurability(name.to_owned()))
    }
}

/// Whether the servers that hold the log have `sync_interval: always`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Synced {
    Always,
    /// These servers write to disk after they confirm.
    Later(Vec<String>),
    /// These servers did not answer, and no other has it wrong.
    NotSaid(Vec<String>),
}

/// Queries the servers. Most accounts get no answer, and the stream's own settings do not show it.
pub(crate) async fn synced(client: &Client, log: &Info) -> Synced {
    judge(&holders(client, log), &settings(client).await)
}

/// The servers that hold a copy of the log.
fn holders(client: &Client, log: &Info) -> Vec<String> {
    let Some(cluster) = &log.cluster else { return vec![client.server_info().server_name] };
    cluster.leader.iter().chain(cluster.replicas.iter().map(|peer| &peer.name)).cloned().collect()
}

fn judge(holders: &[String], settings: &BTreeMap<String, bool>) -> Synced {
    let with = |wanted: Option<bool>| -> Vec<String> {
        holders.iter().filter(|server| settings.get(*server).copied() == wanted).cloned().collect()
    };
    let (later, silent) = (with(Some(false)), with(None));
    match (later.is_empty(), silent.is_empty() && !holders.is_empty()) {
        (false, _) => Synced::Later(later),
        (true, false) => Synced::NotSaid(silent),
        (true, true) => Synced::Always,
    }
}

/// Which servers sync always, by name, as far as they answer.
async fn settings(client: &Client) -> BTreeMap<String, bool> {
    let mut found = BTreeMap::new();
    let inbox = client.new_inbox();
    let Ok(mut answers) = client.subscribe(inbox.clone()).await else { return found };
    if client.publish_with_reply(SETTINGS, inbox, r#"{"config":true}"#.into()).await.is_err() {
        return found;
    }
    let until = Instant::now() + SETTINGS_PATIENCE;
    while let Ok(Some(answer)) = tokio::time::timeout_at(until, answers.next()).await {
        if answer.status.is_some_and(|status| status.as_u16() == NO_RESPONDERS) {
            break;
        }
        found.extend(setting(&answer.payload));
    }
    found
}

/// A server leaves the flag out if it is off.
fn setting(answer: &[u8]) -> Option<(String, bool)> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let config = answer["data"]["config"].as_object()?;
    let always = config.get("sync_always").and_then(Value::as_bool).unwrap_or(false);
    Some((answer["server"]["name"].as_str()?.to_owned(), always))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_known_by_its_name() {
        for name in Durability::NAMES {
            assert_eq!(name.parse::<Durability>().expect("it is known").to_string(), name);
        }
        assert!("safe".parse::<Durability>().is_err());
    }

    #[test]
    fn always_is_said_only_when_every_holder_of_the_log_says_so() {
        let holders = ["a", "b"].map(str::to_owned);
        let said = |settings: &[(&str, bool)]| {
            judge(&holders, &settings.iter().map(|(name, always)| ((*name).to_owned(), *always)).collect())
        };
        assert_eq!(said(&[("a", true), ("b", true), ("c", false)]), Synced::Always);
        assert_eq!(said(&[("a", true)]), Synced::NotSaid(vec!["b".to_owned()]));
        assert_eq!(said(&[("b", false)]), Synced::Later(vec!["b".to_owned()]));
        assert_eq!(judge(&[], &BTreeMap::new()), Synced::NotSaid(Vec::new()));
    }

    #[test]
    fn a_flag_that_is_left_out_is_off_and_an_answer_without_settings_says_nothing() {
        let answer = |data: &str| setting(format!(r#"{{"server":{{"name":"a"}},"data":{data}}}"#).as_bytes());
        assert_eq!(answer(r#"{"config":{"sync_always":true}}"#), Some(("a".to_owned(), true)));
        assert_eq!(answer(r#"{"config":{"sync_interval":120000000000}}"#), Some(("a".to_owned(), false)));
        assert_eq!(answer("{}"), None);
    }
}
