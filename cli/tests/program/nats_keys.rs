//! Keys of the broker are replaced while everything runs: no call fails, no party is refused, and the old key is at the
//! end.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use local::{Broker, BrokerOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::process::{Background, Ended, PATIENCE, run};

/// What `nats-config` wrote.
struct Configured(tempfile::TempDir);

impl Configured {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let configured = Self(folder);
        let made = configured.run("nats-config", &["--pool", "main", "--pool", "other"]);
        assert_eq!(made.code(), 0, "{}", made.stderr());
        configured
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn read(&self, file: &str) -> String {
        fs::read_to_string(self.path(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    fn run(&self, command: &str, arguments: &[&str]) -> Ended {
        let out = self.0.path().to_str().expect("a path of text");
        run(command.split(' ').chain(["--out", out]).chain(arguments.iter().copied()))
    }

    /// A step that is done.
    fn step(&self, step: &str, users: &[&str]) -> Ended {
        let done = self.run(&format!("nats-keys {step}"), users);
        assert_eq!(done.code(), 0, "{step}: {}", done.stderr());
        done
    }

    /// The error of a step that is refused.
    fn refused(&self, step: &str, user: &str) -> String {
        let before = self.files();
        let refused = self.run(&format!("nats-keys {step}"), &[user]);
        assert_eq!(refused.code(), 2, "{}", refused.stdout());
        assert_eq!(self.files(), before, "a refusal changes nothing");
        refused.stderr()
    }

    /// All files and what they hold.
    fn files(&self) -> BTreeMap<PathBuf, String> {
        let folders = ["", "keys", "rotation"].map(|folder| self.path(folder));
        let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten().flatten();
        let files = entries.map(|entry| entry.path()).filter(|path| path.is_file());
        files.map(|path| (path.clone(), fs::read_to_string(&path).expect("a text"))).collect()
    }

    fn public_key(&self, file: &str) -> String {
        let seed = self.read(file);
        nkeys::KeyPair::from_seed(seed.trim()).expect("it is a seed").public_key()
    }
}

#[test]
fn a_key_is_added_takes_the_place_of_the_old_one_and_stays_alone() {
    let configured = Configured::new();
    let before = configured.files();
    let (old, accounts) = (configured.read("keys/pool-main.nk"), configured.read("accounts.conf"));
    let keys = || configured.read("accounts.conf").matches("nkey:").count();
    let said = configured.step("add", &["pool-main", "pool-main", "operator"]);
    assert!(said.stdout().contains("nats-keys switch"), "{}", said.stdout());
    assert_eq!((configured.read("keys/pool-main.nk"), keys()), (old.clone(), 7), "five users, two of them twice");
    let next = configured.read("rotation/pool-main.next.nk");
    for seed in [&old, &next] {
        assert!(!said.stdout().contains(seed.trim()), "a secret is shown: {}", said.stdout());
    }
    let added = configured.files();
    configured.step("add", &["pool-main"]);
    assert_eq!(configured.files(), added, "repeating it makes no other key");
    // A pool that is added meanwhile leaves both keys in.
    let pools = ["--pool", "main", "--pool", "other", "--pool", "third"];
    assert_eq!(configured.run("nats-config", &pools).code(), 0);
    assert_eq!(keys(), 8);
    assert!(configured.refused("retire", "pool-main").contains("nats-keys switch"));

    configured.step("switch", &["pool-main", "operator"]);
    assert_eq!((configured.read("keys/pool-main.nk"), configured.read("rotation/pool-main.old.nk")), (next, old));
    assert_eq!(keys(), 8);
    let switched = configured.files();
    configured.step("switch", &["pool-main"]);
    assert_eq!(configured.files(), switched);
    assert!(configured.refused("add", "pool-main").contains("nats-keys retire"));

    let json = configured.step("retire", &["pool-main", "operator", "-o", "json"]).json();
    assert_eq!((&json[0]["step"], &json[0]["keys"][0]["user"]), (&"retire".into(), &"pool-main".into()), "{json:?}");
    assert_eq!(json[0]["keys"][0]["public_key"], configured.public_key("keys/pool-main.nk"));
    assert_eq!(json[0]["keys"].as_array().map(Vec::len), Some(2), "one key each: {json:?}");
    configured.step("retire", &["pool-main"]);
    let after = configured.files();
    assert_eq!(after.len(), before.len() + 1, "the key of the third pool: {:?}", after.keys());
    for (file, text) in before {
        let replaced = ["pool-main.nk", "operator.nk", "accounts.conf"].iter().any(|name| file.ends_with(name));
        assert_eq!(after[&file] == text, !replaced, "{}", file.display());
    }
    assert_ne!(configured.read("accounts.conf"), accounts);
}

#[test]
fn steps_that_make_no_sense_are_refused_and_change_nothing() {
    let configured = Configured::new();
    assert!(configured.refused("add", "pool-none").contains("observer, pool-main, pool-other"));
    assert!(configured.refused("add", "somebody").contains("pool-NAME"));
    assert!(configured.refused("switch", "pool-main").contains("nats-keys add"));
    let accounts = configured.read("accounts.conf");
    fs::write(configured.path("accounts.conf"), accounts.replace("# observer", "# watcher")).expect("written");
    assert!(configured.refused("add", "pool-main").contains("nats-config"));
    fs::write(configured.path("accounts.conf"), &accounts).expect("written");

    // A key that is not wanted after all.
    configured.step("add", &["pool-main"]);
    fs::remove_file(configured.path("rotation/pool-main.next.nk")).expect("it was made");
    configured.step("retire", &["pool-main"]);
    assert_eq!(configured.read("accounts.conf"), accounts);

    // It was stopped before it wrote accounts.conf: nothing may use the key.
    configured.step("add", &["pool-main"]);
    let added = configured.read("accounts.conf");
    fs::write(configured.path("accounts.conf"), &accounts).expect("written");
    assert!(configured.refused("switch", "pool-main").contains("Repeat"));
    configured.step("add", &["pool-main"]);
    assert_eq!(configured.read("accounts.conf"), added);
    // It was stopped when it had copied the key in use.
    fs::copy(configured.path("keys/pool-main.nk"), configured.path("rotation/pool-main.old.nk")).expect("copied");
    configured.step("switch", &["pool-main"]);
    assert_ne!(configured.read("keys/pool-main.nk"), configured.read("rotation/pool-main.old.nk"));
    // It was stopped before it deleted the old seed.
    let old = configured.read("rotation/pool-main.old.nk");
    configured.step("retire", &["pool-main"]);
    let retired = configured.files();
    fs::write(configured.path("rotation/pool-main.old.nk"), old).expect("written");
    configured.step("retire", &["pool-main"]);
    assert_eq!(configured.files(), retired);
}

/// A broker, processes with keys, and what they are started with.
struct Yard {
    configured: Configured,
    broker: Broker,
    reloads: usize,
}

/// A coordinator, and where it serves.
struct Coordinator {
    _process: Background,
    url: String,
}

impl Yard {
    async fn start() -> Self {
        let configured = Configured::new();
        // A server whose name is not in its file does not reload it.
        let config = configured.path("test.conf");
        fs::write(&config, "server_name: toolyard-local\ninclude \"accounts.conf\"\n").expect("written");
        let options = BrokerOptions { config: Some(config), monitored: true, ..BrokerOptions::default() };
        let broker = Broker::start(options, |_| {}).await.expect("a broker starts");
        Self { configured, broker, reloads: 0 }
    }

    fn told(&self, command: &[&str], key: &Path) -> Vec<String> {
        let (url, key) = (self.broker.url(), key.to_str().expect("a path of text"));
        command.iter().chain(&["--nats-url", &*url, "--nats-nkey", key]).map(|&word| word.to_owned()).collect()
    }

    fn coordinator(&self) -> Coordinator {
        let command = ["coordinator", "-o", "json", "--listen", "127.0.0.1:0"];
        let process = Background::start(self.told(&command, &self.configured.path("keys/coordinator.nk")));
        let line = process.stderr.until(|line| line.contains("\"message\":\"serving\""));
        let log: Value = serde_json::from_str(&line).expect("a log line is JSON");
        let url = format!("http://{}", log["address"].as_str().expect("it says where it serves"));
        Coordinator { _process: process, url }
    }

    fn worker(&self, key: &str, options: &[&str]) -> Background {
        let command = ["worker", "--pool", "main", "--root", "/usr"];
        let worker = Background::start(self.told(&[&command, options].concat(), &self.configured.path(key)));
        worker.stderr.until(|line| line.contains("pulling"));
        worker
    }

    fn log(&self) -> String {
        fs::read_to_string(self.broker.data_dir().join("server.log")).expect("the broker keeps a log")
    }

    fn reload(&mut self) {
        let server = self.broker.pid().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        kill_process(server.expect("it runs"), Signal::HUP).expect("it is told");
        self.reloads += 1;
        until("the broker reads its configuration", || {
            self.log().matches("Reloaded server configuration").count() == self.reloads
        });
    }

    /// The key of each connection, by the connection's number.
    fn connections(&self) -> BTreeMap<u64, String> {
        let url = self.broker.monitoring_url().expect("it is monitored");
        let mut socket = std::net::TcpStream::connect(url.trim_start_matches("http://")).expect("it listens");
        socket.write_all(b"GET /connz?auth=1 HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("it listens");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("it answers");
        let (_, body) = answer.split_once("\r\n\r\n").expect("the answer has a body");
        let body: Value = serde_json::from_str(body).expect("it is JSON");
        let connections = body["connections"].as_array().expect("it lists them").iter();
        // One that is just being made has no user yet.
        let keys = connections.filter_map(|one| {
            let number = one["cid"].as_u64().expect("a connection has a number");
            Some((number, one["authorized_user"].as_str()?.to_owned()))
        });
        keys.collect()
    }

    fn doctor(&self, key: &Path) -> Ended {
        run(self.told(&["doctor"], key))
    }
}

fn until(what: &str, done: impl Fn() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < give_up, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Callers who make one call after the other, each through the coordinator that new calls are given to.
struct Callers {
    stop: Arc<AtomicBool>,
    /// The coordinators that take new calls.
    urls: Arc<RwLock<Vec<String>>>,
    done: Arc<AtomicUsize>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Callers {
    fn start(urls: &[&Coordinator]) -> Self {
        let urls = urls.iter().map(|coordinator| coordinator.url.clone()).collect();
        let urls = Arc::new(RwLock::new(urls));
        let mut callers = Self { stop: Arc::default(), urls, done: Arc::default(), threads: Vec::new() };
        for caller in 0..2 {
            let (stop, urls, done) = (callers.stop.clone(), callers.urls.clone(), callers.done.clone());
            callers.threads.push(std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    // A coordinator leaves the list only when no call through it is under way.
                    let urls = urls.read().expect("nobody panicked");
                    let url = &urls[caller % urls.len()];
                    let called = run(["--url", url, "call", "bash", "command=sleep 0.1; echo fine"]);
                    assert!(called.code() == 0 && called.stdout().contains("fine"), "{}", called.stderr());
                    done.fetch_add(1, Ordering::Relaxed);
                }
            }));
        }
        callers
    }

    fn give_to(&self, coordinators: &[&Coordinator]) {
        let urls = coordinators.iter().map(|coordinator| coordinator.url.clone()).collect();
        *self.urls.write().expect("nobody panicked") = urls;
    }

    /// Waits until some more calls were made.
    fn go_on(&self) {
        let before = self.done.load(Ordering::Relaxed);
        until("calls go on", || {
            let dead = self.threads.iter().any(std::thread::JoinHandle::is_finished);
            assert!(!dead, "a call failed");
            self.done.load(Ordering::Relaxed) >= before + 4
        });
    }

    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().expect("no call failed"));
        self.done.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_a_pool_and_of_coordinators_are_replaced_under_load_and_no_call_fails() {
    let mut yard = Yard::start().await;
    let (mut first, mut second) = (yard.coordinator(), yard.coordinator());
    let mut worker = yard.worker("keys/pool-main.nk", &[]);
    let callers = Callers::start(&[&first, &second]);
    callers.go_on();
    let users = ["pool-main", "coordinator"];
    let before = yard.connections();

    yard.configured.step("add", &users);
    yard.reload();
    callers.go_on();
    let reloaded = yard.connections();
    assert!(before.iter().all(|(number, key)| reloaded.get(number) == Some(key)), "{before:?}, then {reloaded:?}");

    yard.configured.step("switch", &users);
    // The old worker is left when the new one works, as in a rolling update.
    let next = yard.worker("keys/pool-main.nk", &[]);
    drop(std::mem::replace(&mut worker, next));
    callers.go_on();
    callers.give_to(&[&second]);
    drop(std::mem::replace(&mut first, yard.coordinator()));
    callers.give_to(&[&first]);
    drop(std::mem::replace(&mut second, yard.coordinator()));
    callers.give_to(&[&first, &second]);
    callers.go_on();
    let old = ["pool-main", "coordinator"].map(|user| yard.configured.path(&format!("rotation/{user}.old.nk")));
    let old_keys = users.map(|user| yard.configured.public_key(&format!("rotation/{user}.old.nk")));
    until("nobody uses the old keys", || !yard.connections().values().any(|key| old_keys.contains(key)));
    // Somebody was forgotten. It executes no call: one that it executes while it is cut off is lost.
    let forgotten = yard.worker("rotation/pool-main.old.nk", &["--disable", "bash"]);
    let stolen = old.map(|file| {
        let copy = file.with_extension("copy");
        fs::copy(&file, &copy).expect("copied");
        copy
    });
    let before = yard.connections();
    assert!(!yard.log().to_lowercase().contains("authentication error"), "nobody was refused: {}", yard.log());

    yard.configured.step("retire", &users);
    yard.reload();
    callers.go_on();
    let after = yard.connections();
    for (number, key) in before {
        assert_eq!(after.contains_key(&number), !old_keys.contains(&key), "only the old keys are cut off");
    }
    for key in stolen {
        let refused = yard.doctor(&key);
        assert!(refused.code() == 1 && refused.stdout().contains("does not let us in"), "{}", refused.stdout());
    }
    assert_eq!(yard.doctor(&yard.configured.path("keys/observer.nk")).code(), 0);
    eprintln!("{} calls while all keys were replaced", callers.end());
    drop((forgotten, worker));
}
