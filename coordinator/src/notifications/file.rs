//! The file of the endpoints, in TOML. It is checked as a whole when a coordinator starts; with an invalid file the
//! coordinator does not start. Addresses come from this file only, so a caller cannot have notifications posted
//! elsewhere.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hooks::client::{Address, Posted};
use hooks::sign::{self, Secret};
use http::{HeaderValue, header};
use run::TenantId;
use serde::Deserialize;

use super::Webhooks;
use super::notification::Kind;

/// Endpoints of one deployment: each has a deliverer for every shard.
const ENDPOINTS_MAX: usize = 16;
/// Secrets of one endpoint: the new one, the old one, and room for a mistake.
const SECRETS_MAX: usize = 4;
/// Default of how long a notification is tried.
const GIVE_UP_AFTER: Duration = Duration::from_secs(24 * 3600);
/// Maximum of how long a notification is tried: some days are left to redrive parked ones.
const GIVE_UP_AFTER_MAX: Duration = Duration::from_secs(4 * 24 * 3600);
const NAME_BYTES_MAX: usize = 32;
/// Bytes of an answer that are read, so that the connection can be reused.
const ANSWER_BYTES_MAX: usize = 16 * 1024;
const AGENT: &str = concat!("toolyard/", env!("CARGO_PKG_VERSION"));

/// Why a file of webhooks is invalid.
#[derive(Debug, thiserror::Error)]
pub enum InvalidWebhooks {
    #[error("the webhooks file {} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the webhooks file {} cannot be parsed: {error}", path.display())]
    Malformed { path: PathBuf, error: toml::de::Error },
    #[error("in {}, endpoint {name:?}: {field}: {reason}", path.display())]
    Endpoint { path: PathBuf, name: String, field: &'static str, reason: String },
    #[error("in {}: {count} endpoints; 1 to {ENDPOINTS_MAX} are allowed", path.display())]
    Count { path: PathBuf, count: usize },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    endpoint: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    url: String,
    #[serde(default)]
    secret_files: Vec<PathBuf>,
    #[serde(default)]
    secret_env: Vec<String>,
    events: Option<Vec<Kind>>,
    tenants: Option<Vec<String>>,
    give_up_after_s: Option<u64>,
}

/// A receiver of notifications.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) name: String,
    address: Address,
    secrets: Vec<Secret>,
    /// `None`: all events.
    events: Option<Vec<Kind>>,
    /// `None`: all tenants, and runs without a tenant.
    tenants: Option<Vec<TenantId>>,
    /// An older notification is parked.
    pub(crate) give_up_after: Duration,
}

type Fault = (&'static str, String);

impl Webhooks {
    /// Reads a file. `env` looks up a variable.
    ///
    /// # Errors
    /// If the file cannot be used, with the line or the endpoint and field.
    pub fn read(path: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidWebhooks> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| InvalidWebhooks::Unreadable { path: path.to_owned(), source })?;
        let File { endpoint: entries } =
            toml::from_str(&text).map_err(|error| InvalidWebhooks::Malformed { path: path.to_owned(), error })?;
        if !(1..=ENDPOINTS_MAX).contains(&entries.len()) {
            return Err(InvalidWebhooks::Count { path: path.to_owned(), count: entries.len() });
        }
        let folder = path.parent().unwrap_or(Path::new("."));
        let mut names = HashSet::new();
        let mut endpoints = Vec::new();
        for entry in entries {
            let name = entry.name.clone();
            let taken = !names.insert(name.clone());
            let read = if taken {
                Err(("name", "another endpoint has this name".to_owned()))
            } else {
                entry.read(folder, &env)
            };
            let fault = |(field, reason)| InvalidWebhooks::Endpoint { path: path.to_owned(), name, field, reason };
            endpoints.push(Arc::new(read.map_err(fault)?));
        }
        Ok(Self(Arc::new(endpoints)))
    }
}

impl Entry {
    fn read(self, folder: &Path, env: impl Fn(&str) -> Option<String>) -> Result<Endpoint, Fault> {
        let Self { name, url, secret_files, secret_env, events, tenants, give_up_after_s } = self;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.chars().all(is_name) {
            return Err(("name", format!("1 to {NAME_BYTES_MAX} of a-z 0-9 - were expected")));
        }
        let address = Address::parse(&url).map_err(|reason| ("url", reason))?;
        let mut secrets = Vec::new();
        for file in secret_files {
            let invalid = |reason: String| ("secret_files", format!("{}: {reason}", file.display()));
            let text = std::fs::read_to_string(folder.join(&file)).map_err(|error| invalid(error.to_string()))?;
            secrets.push(Secret::parse(&text).map_err(invalid)?);
        }
        for variable in secret_env {
            let invalid = |reason: String| ("secret_env", format!("{variable}: {reason}"));
            let text = env(&variable).ok_or_else(|| invalid("it is not set".to_owned()))?;
            secrets.push(Secret::parse(&text).map_err(invalid)?);
        }
        if !(1..=SECRETS_MAX).contains(&secrets.len()) {
            let reason = format!("{} secrets; 1 to {SECRETS_MAX} are allowed, in files or in variables", secrets.len());
            return Err(("secret_files", reason));
        }
        let tenants = tenants.map(|tenants| tenants.iter().map(|tenant| tenant.parse()).collect::<Result<_, _>>());
        let tenants = tenants.transpose().map_err(|error: run::InvalidId| ("tenants", error.to_string()))?;
        let give_up_after = give_up_after_s.map_or(GIVE_UP_AFTER, Duration::from_secs);
        if give_up_after.is_zero() || give_up_after > GIVE_UP_AFTER_MAX {
            return Err(("give_up_after_s", format!("1 to {} were expected", GIVE_UP_AFTER_MAX.as_secs())));
        }
        Ok(Endpoint { name, address, secrets, events, tenants, give_up_after })
    }
}

impl Endpoint {
    pub(super) fn wants(&self, kind: Kind, tenant: Option<&TenantId>) -> bool {
        let is_wanted = self.events.as_ref().is_none_or(|events| events.contains(&kind));
        is_wanted && self.tenants.as_ref().is_none_or(|tenants| tenant.is_some_and(|tenant| tenants.contains(tenant)))
    }

    /// Posts a notification, signed with the present time.
    pub(super) async fn post(&self, id: &str, body: &Bytes) -> Result<Posted, String> {
        let mut headers = sign::headers(&self.secrets, id, ::nats::now(), body);
        headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
        self.address.post(headers, body.clone(), ANSWER_BYTES_MAX).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

    fn read(text: &str) -> Result<Webhooks, String> {
        let folder = std::env::temp_dir().join(format!("toolyard-webhooks-{}", rand::random::<u64>()));
        std::fs::create_dir(&folder).expect("a folder");
        std::fs::write(folder.join("secret"), format!("{SECRET}\n")).expect("a file");
        std::fs::write(folder.join("webhooks.toml"), text).expect("a file");
        let env = |name: &str| (name == "SECRET").then(|| SECRET.to_owned());
        let read = Webhooks::read(&folder.join("webhooks.toml"), env).map_err(|error| error.to_string());
        std::fs::remove_dir_all(&folder).expect("it is ours");
        read
    }

    fn endpoint(lines: &str) -> String {
        format!("[[endpoint]]\nname = \"a\"\nurl = \"http://127.0.0.1:1/\"\n{lines}\n")
    }

    #[test]
    fn an_endpoint_is_told_of_what_it_asks_for() {
        let secrets = "secret_files = [\"secret\"]\nsecret_env = [\"SECRET\"]\n";
        let all = read(&endpoint(secrets)).expect("usable");
        let tenant: TenantId = "acme".parse().expect("a tenant");
        assert_eq!(all.0[0].secrets.len(), 2);
        assert!(all.0[0].wants(Kind::Expired, None) && all.0[0].wants(Kind::Completed, Some(&tenant)));
        let some =
            read(&endpoint(&format!("{secrets}events = [\"run.failed\"]\ntenants = [\"acme\"]"))).expect("usable");
        let some = &some.0[0];
        assert!(some.wants(Kind::Failed, Some(&tenant)));
        assert!(!some.wants(Kind::Failed, None) && !some.wants(Kind::Completed, Some(&tenant)));
    }

    #[test]
    fn a_file_that_cannot_be_used_says_where_and_why() {
        let secret = "secret_env = [\"SECRET\"]";
        let twice = format!("{0}{0}", endpoint(secret));
        let table: [(&str, &str); 10] = [
            ("", "0 endpoints"),
            (&endpoint(""), "secret_files: 0 secrets"),
            (&endpoint("secret_env = [\"OTHER\"]"), "secret_env: OTHER: it is not set"),
            (
                &endpoint("secret_files = [\"webhooks.toml\"]"),
                "secret_files: webhooks.toml: a secret must begin with whsec_",
            ),
            (&endpoint(&format!("{secret}\nevents = [\"run.opened\"]")), "run.opened"),
            (&endpoint(&format!("{secret}\ntenants = [\"a b\"]")), "tenants"),
            (&endpoint(&format!("{secret}\ngive_up_after_s = 0")), "give_up_after_s"),
            (&endpoint(&format!("{secret}\nurls = 1")), "urls"),
            (&endpoint(secret).replace("http://127.0.0.1:1/", "ftp://x"), "url"),
            (&twice, "name: another endpoint has this name"),
        ];
        for (text, expected) in table {
            let error = read(text).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }
}
