//! A broker that lets nobody do more than it must: its configuration, and everybody's keys.

use std::path::PathBuf;

use async_nats::{Client, ConnectOptions, Event, ServerError};
use proto::access::Party;
use proto::access::config::{self, User};
use tokio::sync::mpsc;

use crate::{Fixture, PATIENCE};

/// Keys of a coordinator, an observer and some pools, and `accounts.conf` for them, as long as this lives.
#[derive(Debug)]
pub struct Keys {
    folder: tempfile::TempDir,
}

impl Keys {
    /// # Panics
    /// When they cannot be written: the test cannot go on.
    #[must_use]
    pub fn new(pools: &[&str]) -> Self {
        let keys = Self { folder: tempfile::tempdir().expect("a folder") };
        let pools = pools.iter().map(|pool| pool_party(pool));
        let users: Vec<User> = [Party::Coordinator, Party::Observer]
            .into_iter()
            .chain(pools)
            .map(|party| {
                let pair = nkeys::KeyPair::new_user();
                std::fs::write(keys.of(&party), pair.seed().expect("a new key has a seed")).expect("written");
                User { party, public_key: pair.public_key() }
            })
            .collect();
        std::fs::write(keys.accounts(), config::accounts(&users)).expect("written");
        keys
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

    /// A client of the broker who is this party.
    ///
    /// # Panics
    /// When the broker does not let it in.
    pub async fn client(&self, url: &str, party: &Party) -> Client {
        let seed = std::fs::read_to_string(self.of(party)).expect("the party has a key");
        let options = ConnectOptions::with_nkey(seed).custom_inbox_prefix(party.inbox());
        options.connect(url).await.expect("a user is let in")
    }

    /// Somebody who has a pool's key, and a will of their own.
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
        let client = options.connect(url).await.expect("a user is let in");
        Intruder { client, refusals }
    }
}

fn pool_party(pool: &str) -> Party {
    Party::Pool(pool.parse().expect("the name of a pool"))
}

/// A client of the broker that hears what it is refused.
#[derive(Debug)]
pub struct Intruder {
    pub client: Client,
    refusals: mpsc::Receiver<String>,
}

impl Intruder {
    /// What the broker refuses next.
    ///
    /// # Panics
    /// When it refuses nothing.
    pub async fn refused(&mut self) -> String {
        let refusal = tokio::time::timeout(PATIENCE, self.refusals.recv()).await;
        refusal.expect("the broker refuses it").expect("the client lives").to_lowercase()
    }

    /// Whether the broker has refused something that nobody asked about yet.
    pub fn was_refused(&mut self) -> Option<String> {
        self.refusals.try_recv().ok()
    }
}
