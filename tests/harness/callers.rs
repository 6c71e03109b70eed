//! The file of callers, and everybody's keys.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::{Client, Fixture, Worker};

/// A file of callers as long as this lives. `{name}` in its text stands for the hash of that caller's key.
#[derive(Debug)]
pub struct Callers {
    folder: tempfile::TempDir,
    keys: RefCell<BTreeMap<String, (String, String)>>,
}

impl Callers {
    /// # Panics
    /// When it cannot be written: the test cannot go on. So all that follows.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let callers = Self { folder: tempfile::tempdir().expect("a folder"), keys: RefCell::default() };
        callers.write(text);
        callers
    }

    /// Writes the file again.
    pub fn write(&self, text: &str) {
        let (mut whole, mut rest) = (String::new(), text);
        while let Some((before, after)) = rest.split_once("\"{") {
            let (name, after) = after.split_once("}\"").expect("a name in braces");
            whole.push_str(&format!("{before}\"{}\"", self.pair(name).1));
            rest = after;
        }
        whole.push_str(rest);
        // In one step, as files of secrets are replaced.
        let next = self.folder.path().join("next");
        std::fs::write(&next, whole).expect("written");
        std::fs::rename(next, self.file()).expect("replaced");
    }

    /// Writes a file beside it.
    pub fn beside(&self, name: &str, content: &[u8]) {
        std::fs::write(self.folder.path().join(name), content).expect("written");
    }

    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.path().join("callers.toml")
    }

    /// The key of a caller whose hash is, or will be, in the file.
    #[must_use]
    pub fn key(&self, name: &str) -> String {
        self.pair(name).0
    }

    fn pair(&self, name: &str) -> (String, String) {
        self.keys.borrow_mut().entry(name.to_owned()).or_insert_with(coordinator::new_key).clone()
    }
}

/// A pools file as long as this lives.
#[derive(Debug)]
pub struct Pools(tempfile::TempDir);

impl Pools {
    /// # Panics
    /// When it cannot be written: the test cannot go on.
    #[must_use]
    pub fn new(text: &str) -> Self {
        let pools = Self(tempfile::tempdir().expect("a folder"));
        pools.write(text);
        pools
    }

    /// Writes the file again.
    pub fn write(&self, text: &str) {
        let next = self.0.path().join("next");
        std::fs::write(&next, text).expect("written");
        std::fs::rename(next, self.0.path().join("pools.toml")).expect("replaced");
    }

    /// The same program, whose coordinators read the file.
    #[must_use]
    pub fn of(&self, fixture: &Fixture) -> Fixture {
        fixture.with("TOOLYARD_POOLS", self.0.path().join("pools.toml").display())
    }
}

/// A broker, a coordinator that authenticates all callers, and a worker.
#[derive(Debug)]
pub struct Guarded {
    pub fixture: Fixture,
    pub broker: local::Broker,
    pub coordinator: crate::Coordinator,
    pub worker: Worker,
    pub callers: Callers,
    /// A client without credentials.
    pub stranger: Client,
}

impl Guarded {
    pub async fn start(fixture: Fixture, callers: Callers) -> Self {
        let broker = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
        let fixture = fixture.with("TOOLYARD_AUTH", callers.file().display());
        let coordinator = fixture.coordinator(&broker.url()).await;
        let worker = fixture.worker(&broker.url(), "main", 16).await;
        let stranger = Client::connect(coordinator.address()).await;
        Self { fixture, broker, coordinator, worker, callers, stranger }
    }

    /// A client with the key of a caller.
    #[must_use]
    pub fn client(&self, name: &str) -> Client {
        self.stranger.with_key(&self.callers.key(name))
    }
}
