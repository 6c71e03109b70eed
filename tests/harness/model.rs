//! The scripted model of `agents::scripted` for tests. It keeps what it was asked, and can be held before a turn.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use agents::scripted::{Script, ScriptedModel};
use futures::FutureExt as _;
use tempfile::TempDir;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use crate::Fixture;

pub use agents::scripted::{Asked, Line};

/// The key that the model wants. A test gives it to workers by a file.
pub const MODEL_KEY: &str = "sk-scripted-0123456789";

/// A model.
#[derive(Debug)]
pub struct Model {
    address: SocketAddr,
    folder: TempDir,
    shared: Arc<Shared>,
    _serving: JoinSet<()>,
}

#[derive(Debug, Default)]
struct Shared {
    asked: Mutex<Vec<Asked>>,
    changed: Notify,
    holds: Mutex<HashMap<(String, usize), Arc<Semaphore>>>,
}

impl Model {
    /// A model with this script: the first word of the user's message that is a key decides.
    ///
    /// # Panics
    /// If there is no free port or no folder.
    pub async fn start(script: &[(&str, Vec<Line>)]) -> Self {
        let script = script.iter().map(|(word, lines)| ((*word).to_owned(), lines.clone())).collect();
        let shared = Arc::new(Shared::default());
        let seen = Arc::clone(&shared);
        let model = ScriptedModel::new(Script(script)).with_key(MODEL_KEY).with_gate(move |asked| {
            let seen = Arc::clone(&seen);
            async move { seen.see(asked).await }.boxed()
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let mut serving = JoinSet::new();
        serving.spawn(async move { model.serve(listener).await.expect("it serves") });
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("key"), MODEL_KEY).expect("a file is written");
        Self { address, folder, shared, _serving: serving }
    }

    /// Writes a file of agents, in which `OPENAI` and `ANTHROPIC` stand for the address and the key of the model.
    ///
    /// # Panics
    /// If the file cannot be written.
    #[must_use]
    pub fn write(&self, agents: &str) -> PathBuf {
        let address = self.address;
        let at = |kind: &str, path: &str| {
            let url = format!("http://{address}/v1/{path}");
            format!("api = \"{kind}\"\nurl = \"{url}\"\nkey = {{ file = \"key\" }}\nmodel = \"m1\"")
        };
        let text = agents
            .replace("OPENAI", &at("openai", "chat/completions"))
            .replace("ANTHROPIC", &at("anthropic", "messages"));
        let file = self.folder.path().join("agents.toml");
        std::fs::write(&file, format!("{text}\n[egress]\naddresses = [\"127.0.0.1\"]\n")).expect("a file is written");
        file
    }

    /// The fixture whose workers host the agents of such a file.
    #[must_use]
    pub fn of(&self, fixture: &Fixture, agents: &str, api: SocketAddr) -> Fixture {
        let file = self.write(agents);
        fixture.with("TOOLYARD_AGENTS", file.display()).with("TOOLYARD_API_URL", format!("http://{api}"))
    }

    /// Holds the model's answer of a turn until it is [released](Self::release).
    pub fn hold(&self, word: &str, turn: usize) {
        lock(&self.shared.holds).insert((word.to_owned(), turn), Arc::new(Semaphore::new(0)));
    }

    /// Lets the answer of a turn go.
    pub fn release(&self, word: &str, turn: usize) {
        if let Some(hold) = lock(&self.shared.holds).remove(&(word.to_owned(), turn)) {
            hold.add_permits(Semaphore::MAX_PERMITS / 2);
        }
    }

    /// The requests so far.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        lock(&self.shared.asked).clone()
    }

    /// How often a turn was asked for.
    #[must_use]
    pub fn count(&self, word: &str, turn: usize) -> usize {
        lock(&self.shared.asked).iter().filter(|asked| asked.word == word && asked.turn == turn).count()
    }

    /// Waits until a turn was asked for.
    pub async fn until_asked(&self, word: &str, turn: usize) {
        self.until_asked_times(word, turn, 1).await;
    }

    /// Waits until a turn was asked for so often.
    ///
    /// # Panics
    /// If that takes too long.
    pub async fn until_asked_times(&self, word: &str, turn: usize, times: usize) {
        let asked = async {
            while self.count(word, turn) < times {
                self.shared.changed.notified().await;
            }
        };
        tokio::time::timeout(crate::PATIENCE, asked).await.expect("the model is asked in time");
    }
}

impl Shared {
    /// Notes a request, and waits while its turn is held.
    async fn see(&self, asked: Asked) {
        let turn = (asked.word.clone(), asked.turn);
        lock(&self.asked).push(asked);
        // A permit is kept for the one test that waits.
        self.changed.notify_one();
        let hold = lock(&self.holds).get(&turn).cloned();
        if let Some(hold) = hold {
            hold.acquire().await.expect("it is never closed").forget();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
