//! `toolyard log`, `backup` and `restore`, with the operator's key at a broker that lets everybody do what they must.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ::run::RunId;
use local::{Broker, BrokerOptions};
use serde_json::Value;

use crate::process::{Background, Ended, PATIENCE, run};

/// The configuration of a broker, and the keys that fit it.
struct Configured(tempfile::TempDir);

impl Configured {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let out = folder.path().to_str().expect("a path of text");
        assert_eq!(run(["nats-config", "--out", out, "--pool", "main"]).code(), 0);
        Self(folder)
    }

    async fn broker(&self) -> Broker {
        let options = BrokerOptions { config: Some(self.0.path().join("accounts.conf")), ..BrokerOptions::default() };
        Broker::start(options, |_| {}).await.expect("a broker starts")
    }

    fn key(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn start(&self, broker: &Broker, key: &str, command: &[&str]) -> Background {
        Background::start(told(broker, &self.key(key), command))
    }

    /// As the operator.
    fn run(&self, broker: &Broker, command: &[&str]) -> Ended {
        run(told(broker, &self.key("operator.nk"), command))
    }
}

fn told(broker: &Broker, key: &Path, command: &[&str]) -> Vec<String> {
    let (url, key) = (broker.url(), key.to_str().expect("a path of text"));
    command.iter().chain(&["--nats-url", &*url, "--nats-nkey", key]).map(|&word| word.to_owned()).collect()
}

/// A coordinator with a log of 1 MiB, and where it serves.
fn coordinator(configured: &Configured, broker: &Broker) -> (Background, String) {
    let command = ["coordinator", "-o", "json", "--listen", "127.0.0.1:0", "--log-max-bytes", "1048576"];
    let process = configured.start(broker, "keys/coordinator.nk", &command);
    let line = process.stderr.until(|line| line.contains("\"message\":\"serving\""));
    let log: Value = serde_json::from_str(&line).expect("a log line is JSON");
    (process, format!("http://{}", log["address"].as_str().expect("it says where it serves")))
}

fn worker(configured: &Configured, broker: &Broker) -> Background {
    let worker = configured.start(broker, "keys/pool-main.nk", &["worker", "--pool", "main", "--root", "/usr"]);
    worker.stderr.until(|line| line.contains("pulling"));
    worker
}

fn log(usage: &Ended) -> Value {
    let streams = usage.json();
    streams.into_iter().find(|stream| stream["stream"] == "ty-log").expect("the log is among the streams")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_log_takes_new_work_again_when_the_operator_gives_it_room() {
    let configured = Configured::new();
    let broker = configured.broker().await;
    let (_coordinator, door) = coordinator(&configured, &broker);
    let _worker = worker(&configured, &broker);
    let long = format!("command=true {}", "a".repeat(100_000));
    let call = || run(["--url", &door, "call", "-o", "json", "bash", &long]);
    let full = (0..40).map(|_| call()).find(|ended| ended.code() != 0).expect("the log is full at some time");
    assert!(full.stderr().contains("LOG_FULL"), "{}", full.stderr());

    let before = log(&configured.run(&broker, &["log", "usage", "-o", "json"]));
    assert_eq!((&before["max_bytes"], &before["replicas"]), (&1_048_576.into(), &1.into()), "{before}");
    let small = configured.run(&broker, &["log", "resize", "512KiB"]);
    assert!(small.code() != 0 && small.stderr().contains("at least"), "{}", small.stderr());
    let stranger = run(told(&broker, &configured.key("keys/coordinator.nk"), &["log", "resize", "64MiB"]));
    assert!(stranger.code() != 0 && stranger.stderr().contains("operator.nk"), "{}", stranger.stderr());
    let unchanged = log(&configured.run(&broker, &["log", "usage", "-o", "json"]));
    assert_eq!(unchanged["max_bytes"], before["max_bytes"]);

    let larger = configured.run(&broker, &["log", "resize", "64MiB"]);
    assert_eq!(larger.code(), 0, "{}", larger.stderr());
    assert!(larger.stdout().contains("ty-log: 64.0 MiB, was 1.0 MiB"), "{}", larger.stdout());
    // Coordinators look how full the log is every second.
    let give_up = Instant::now() + PATIENCE;
    while call().code() != 0 {
        assert!(Instant::now() < give_up, "the log has room");
    }

    let short = configured.run(&broker, &["log", "retention", "2h"]);
    assert!(short.code() != 0 && short.stderr().contains("25 h"), "{}", short.stderr());
    assert_eq!(configured.run(&broker, &["log", "retention", "3d"]).code(), 0);
    let kept = log(&configured.run(&broker, &["log", "usage", "-o", "json"]));
    assert_eq!((&kept["max_age_s"], &kept["max_bytes"]), (&259_200.into(), &(64 << 20).into()), "{kept}");
    let alone = configured.run(&broker, &["log", "durability", "standard"]);
    assert!(alone.code() != 0, "one server keeps no three copies: {}", alone.stdout());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_says_how_many_messages_the_log_may_hold() {
    let configured = Configured::new();
    let broker = configured.broker().await;
    let (_coordinator, _) = coordinator(&configured, &broker);
    let usage = || log(&configured.run(&broker, &["log", "usage", "-o", "json"]));
    assert_eq!(usage()["max_messages"], 2048, "a part of its bytes");
    let few = configured.run(&broker, &["log", "resize", "--messages", "1"]);
    assert!(few.code() != 0 && few.stderr().contains("at least"), "{}", few.stderr());
    let both = configured.run(&broker, &["log", "resize", "2MiB", "--messages", "4096"]);
    assert_eq!(both.code(), 0, "{}", both.stderr());
    assert!(both.stdout().contains("ty-log: 2.0 MiB, was 1.0 MiB"), "{}", both.stdout());
    assert!(both.stdout().contains("ty-log: 4096 messages, was 2048 messages"), "{}", both.stdout());
    assert_eq!((&usage()["max_messages"], &usage()["max_bytes"]), (&4096.into(), &(2 << 20).into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_is_restored_has_the_runs_of_the_backup() {
    let configured = Configured::new();
    let first = configured.broker().await;
    let (run_id, copy) = {
        let (_coordinator, door) = coordinator(&configured, &first);
        let _worker = worker(&configured, &first);
        let called = run(["--url", &door, "call", "-o", "json", "bash", "command=echo kept"]);
        let run_id = called.json()[0]["run_opened"]["run_id"].as_str().expect("a run has an id").to_owned();
        let copy = configured.key("copy");
        let copy = copy.to_str().expect("a path of text").to_owned();
        let made = configured.run(&first, &["backup", &copy]);
        assert_eq!(made.code(), 0, "{}", made.stderr());
        assert!(made.stdout().contains("ty-log: "), "{}", made.stdout());
        let again = configured.run(&first, &["backup", &copy]);
        assert!(again.code() == 2 && again.stderr().contains("holds a backup already"), "{}", again.stderr());
        (run_id, copy)
    };
    let over = configured.run(&first, &["restore", &copy]);
    assert!(over.code() != 0 && over.stderr().contains("ty-log"), "nothing is written over: {}", over.stderr());
    first.stop().await;

    let second = configured.broker().await;
    let part = configured.key("part");
    std::fs::create_dir(&part).expect("made");
    let part = configured.run(&second, &["restore", part.to_str().expect("a path of text")]);
    assert!(part.code() == 2 && part.stderr().contains("no whole backup"), "{}", part.stderr());
    let restored = configured.run(&second, &["restore", &copy, "-o", "json"]);
    assert_eq!(restored.code(), 0, "{}", restored.stderr());
    assert_eq!(restored.json()[0]["stream"], "KV_ty-schedules", "one that is older than the log fires again");
    assert_eq!(restored.json()[1]["stream"], "ty-log");
    let (_coordinator, door) = coordinator(&configured, &second);
    let watched = run(["--url", &door, "runs", "watch", &run_id]);
    assert_eq!(watched.code(), 0, "{}", watched.stderr());
    assert!(watched.stdout().contains("kept"), "{}", watched.stdout());
    let _worker = worker(&configured, &second);
    let called = run(["--url", &door, "call", "bash", "command=echo goes on"]);
    assert_eq!(called.code(), 0, "{}", called.stderr());
}

/// The broker's streams that hold the log.
fn partitions(configured: &Configured, broker: &Broker) -> Vec<Value> {
    let streams = configured.run(broker, &["log", "usage", "-o", "json"]).json();
    streams.into_iter().filter(|it| it["stream"].as_str().is_some_and(|name| name.starts_with("ty-log"))).collect()
}

/// Makes calls until both partitions of the log have a run. Returns a run of each.
fn one_of_each_partition(door: &str) -> [String; 2] {
    let mut found = [None, None];
    let give_up = Instant::now() + PATIENCE;
    loop {
        let called = run(["--url", door, "call", "-o", "json", "bash", "command=echo kept"]);
        assert_eq!(called.code(), 0, "{}", called.stderr());
        let run_id = called.json()[0]["run_opened"]["run_id"].as_str().expect("a run has an id").to_owned();
        let partition = run_id.parse::<RunId>().expect("a run id").shard().partition().as_usize();
        found[partition] = Some(run_id);
        if let [Some(first), Some(second)] = &found {
            return [first.clone(), second.clone()];
        }
        assert!(Instant::now() < give_up, "all runs are in one partition: {found:?}");
        // No run is opened in a partition that was added less than 15 s ago, and the log is small.
        std::thread::sleep(Duration::from_millis(250));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_adds_partitions_and_a_restored_broker_has_the_runs_of_all_of_them() {
    let configured = Configured::new();
    let first = configured.broker().await;
    let copy = configured.key("copy");
    let copy = copy.to_str().expect("a path of text");
    let runs = {
        let (_coordinator, door) = coordinator(&configured, &first);
        let _worker = worker(&configured, &first);
        let stranger = run(told(&first, &configured.key("keys/coordinator.nk"), &["log", "partitions", "2"]));
        assert!(stranger.code() != 0 && stranger.stderr().contains("operator.nk"), "{}", stranger.stderr());
        for count in ["0", "17"] {
            assert_eq!(configured.run(&first, &["log", "partitions", count]).code(), 2, "{count}");
        }
        assert_eq!(partitions(&configured, &first).len(), 1, "nothing was changed");
        let made = configured.run(&first, &["log", "partitions", "2"]);
        assert_eq!((made.code(), made.stdout().as_str()), (0, "made ty-log-1\n"), "{}", made.stderr());
        let again = configured.run(&first, &["log", "partitions", "2"]);
        assert!(again.code() == 0 && again.stderr().contains("nothing to change"), "{}", again.stderr());
        let fewer = configured.run(&first, &["log", "partitions", "1"]);
        assert!(fewer.code() != 0 && fewer.stderr().contains("has 2 partitions"), "{}", fewer.stderr());
        let runs = one_of_each_partition(&door);
        let made = configured.run(&first, &["backup", copy]);
        assert!(made.code() == 0 && made.stdout().contains("ty-log-1: "), "{} {}", made.stdout(), made.stderr());
        runs
    };
    first.stop().await;

    let second = configured.broker().await;
    let restored = configured.run(&second, &["restore", copy]);
    assert_eq!(restored.code(), 0, "{}", restored.stderr());
    assert_eq!(partitions(&configured, &second).len(), 2);
    let (_coordinator, door) = coordinator(&configured, &second);
    for run_id in &runs {
        let watched = run(["--url", &door, "runs", "watch", run_id]);
        assert!(watched.code() == 0 && watched.stdout().contains("kept"), "{run_id}: {}", watched.stderr());
    }
    let _worker = worker(&configured, &second);
    one_of_each_partition(&door);
}
