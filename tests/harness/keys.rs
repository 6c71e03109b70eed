//! A broker with least permissions: its configuration, and the keys of all parties.

use std::path::{Path, PathBuf};

use async_nats::{Client, ConnectOptions, Event, ServerError};
use nats::access::Party;
use nats::access::config::{self, User};
use tokio::sync::mpsc;

use crate::{Fixture, PATIENCE};

const ADMINISTRATOR: &str = "administrator";
/// The part of the file names of second keys.
const SECOND: &str = "second";

/// Keys of a coordinator, an observer and some pools, and `accounts.conf` for them, as long as this lives.
#[derive(Debug)]
pub struct Keys {
    folder: tempfile::TempDir,
    users: Vec<User>,
}

impl Keys {
    /// # Panics
    /// When they cannot be written: the test cannot go on.
    #[must_use]
    pub fn new(pools: &[&str]) -> Self {
        let mut keys = Self { folder: tempfile::tempdir().expect("a folder"), users: Vec::new() };
        let parties = [Party::Coordinator, Party::Observer, Party::Operator].into_iter();
        for party in parties.chain(pools.iter().map(|pool| pool_party(pool))) {
            let public_key = keys.make(&party.name());
            keys.users.push(User { party, public_key });
        }
        std::fs::write(keys.accounts(), config::accounts(&keys.users)).expect("written");
        keys
    }

    /// Writes a key for one more pool, and a new `accounts.conf`. The broker does not know of it before it reads it
    /// again.
    ///
    /// # Panics
    /// When they cannot be written: the test cannot go on.
    pub fn add(&mut self, pool: &str) {
        let party = pool_party(pool);
        let public_key = self.make(&party.name());
        self.users.push(User { party, public_key });
        std::fs::write(self.accounts(), config::accounts(&self.users)).expect("written");
    }

    /// Gives every party a second key, as each has that is being replaced.
    ///
    /// # Panics
    /// When they cannot be written: the test cannot go on.
    #[must_use]
    pub fn with_second_keys(mut self) -> Self {
        for User { party, .. } in self.users.clone() {
            let public_key = self.make(&format!("{}.{SECOND}", party.name()));
            self.users.push(User { party, public_key });
        }
        std::fs::write(self.accounts(), config::accounts(&self.users)).expect("written");
        self
    }

    /// A client of the broker as this party, with the second key.
    ///
    /// # Panics
    /// When the broker does not let it in.
    pub async fn second_client(&self, url: &str, party: &Party) -> Client {
        let file = self.folder.path().join(format!("{}.{SECOND}.nk", party.name()));
        connect(url, party, &file).await
    }

    /// Adds a user with all permissions to the account of the coordinators, for tests that compare all stored data.
    ///
    /// # Panics
    /// When it cannot be written: the test cannot go on.
    #[must_use]
    pub fn with_administrator(self) -> Self {
        let user = format!("users = [ {{ nkey: {} }}", self.make(ADMINISTRATOR));
        let text = std::fs::read_to_string(self.accounts()).expect("it was written");
        // The coordinators' account is the first.
        std::fs::write(self.accounts(), text.replacen("users = [", &user, 1)).expect("written");
        self
    }

    /// The user with all permissions in the account of the coordinators.
    ///
    /// # Panics
    /// When the broker does not let it in.
    pub async fn administrator(&self, url: &str) -> Client {
        let seed =
            std::fs::read_to_string(self.folder.path().join(format!("{ADMINISTRATOR}.nk"))).expect("there is one");
        ConnectOptions::with_nkey(seed).connect(servers(url)).await.expect("a user is let in")
    }

    fn make(&self, file: &str) -> String {
        let (pair, file) = (nkeys::KeyPair::new_user(), self.folder.path().join(format!("{file}.nk")));
        std::fs::write(file, pair.seed().expect("a new key has a seed")).expect("written");
        pair.public_key()
    }

    #[must_use]
    pub fn accounts(&self) -> PathBuf {
        self.folder.path().join("accounts.conf")
    }

    #[must_use]
    pub fn of(&self, party: &Party) -> PathBuf {
        self.folder.path().join(format!("{}.nk", party.name()))
    }

    /// The fixture as a coordinator may start it.
    #[must_use]
    pub fn coordinators(&self, fixture: &Fixture) -> Fixture {
        fixture.with("TOOLYARD_NATS_NKEY", self.of(&Party::Coordinator).display())
    }

    /// The fixture with the key of a pool.
    #[must_use]
    pub fn workers(&self, fixture: &Fixture, pool: &str) -> Fixture {
        fixture.with("TOOLYARD_NATS_NKEY", self.of(&pool_party(pool)).display())
    }

    /// A client of the broker as this party.
    ///
    /// # Panics
    /// When the broker does not let it in.
    pub async fn client(&self, url: &str, party: &Party) -> Client {
        connect(url, party, &self.of(party)).await
    }

    /// An intruder with a pool's key.
    ///
    /// # Panics
    /// When the broker does not let them in.
    pub async fn intruder(&self, url: &str, pool: &str) -> Intruder {
        let party = pool_party(pool);
        let seed = std::fs::read_to_string(self.of(&party)).expect("the pool has a key");
        let (sender, refusals) = mpsc::channel(64);
        let options = ConnectOptions::with_nkey(seed).custom_inbox_prefix(party.inbox()).event_callback(move |event| {
            let sender = sender.clone();
            async move {
                if let Event::ServerError(ServerError::Other(refusal)) = event {
                    drop(sender.send(refusal).await);
                }
            }
        });
        let client = options.connect(servers(url)).await.expect("a user is let in");
        Intruder { client, refusals }
    }
}

async fn connect(url: &str, party: &Party, key: &Path) -> Client {
    let seed = std::fs::read_to_string(key).expect("the party has a key");
    let options = ConnectOptions::with_nkey(seed).custom_inbox_prefix(party.inbox());
    options.connect(servers(url)).await.expect("a user is let in")
}

/// A cluster's servers, separated by commas, or one.
fn servers(url: &str) -> Vec<&str> {
    url.split(',').collect()
}

fn pool_party(pool: &str) -> Party {
    Party::Pool(pool.parse().expect("the name of a pool"))
}

/// A client of the broker that collects permission errors.
#[derive(Debug)]
pub struct Intruder {
    pub client: Client,
    refusals: mpsc::Receiver<String>,
}

impl Intruder {
    /// The next permission error.
    ///
    /// # Panics
    /// When it refuses nothing.
    pub async fn refused(&mut self) -> String {
        let refusal = tokio::time::timeout(PATIENCE, self.refusals.recv()).await;
        refusal.expect("the broker refuses it").expect("the client lives").to_lowercase()
    }

    /// Whether there is a permission error that no test has consumed yet.
    pub fn was_refused(&mut self) -> Option<String> {
        self.refusals.try_recv().ok()
    }
}
