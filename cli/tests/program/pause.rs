//! `toolyard pause`, `resume` and `workers`: an operator has something stand still, or leave.

use std::time::Instant;

use local::{Broker, BrokerOptions};

use crate::process::{Background, Dev, PATIENCE, run, toolyard};

#[test]
fn what_is_paused_is_listed_explained_and_resumed() {
    let dev = Dev::start();
    assert_eq!(dev.run(["pause", "tool", "bash", "--reason", "it does harm"]).code(), 0);
    assert_eq!(dev.run(["pause", "pool", "local"]).code(), 0);
    let listed = dev.run(["pause", "ls", "-o", "json"]).json();
    assert_eq!((&listed[0]["tool"], &listed[0]["reason"]), (&"bash".into(), &"it does harm".into()));
    assert_eq!(listed[1]["pool"], "local");
    let tools = dev.run(["tools", "ls"]).stdout();
    let bash = tools.lines().find(|line| line.starts_with("bash")).expect("it is listed");
    assert!(bash.contains("paused, local: 1 worker, paused"), "{tools}");
    let doctor = run(["doctor", "--nats-url", dev.nats_url()]);
    assert!(doctor.code() == 0 && doctor.stdout().contains("paused; tools:"), "{}", doctor.stdout());
    // Another process than the yard's, which waits for the call.
    let call = dev.background(["call", "-o", "json", "bash", "command=echo at last"]);
    let opened = call.stdout.event("run_opened");
    let run_id = opened["run_id"].as_str().expect("a run has an id");
    let why = dev.run(["why", run_id, "call_0"]).stdout();
    assert!(why.contains("tool bash was paused") && why.contains("it does harm"), "{why}");
    let workers = dev.run(["workers", "ls"]).stdout();
    assert!(workers.contains("its pool is paused"), "{workers}");
    assert_eq!(dev.run(["resume", "tool", "bash"]).code(), 0);
    assert_eq!(dev.run(["resume", "pool", "local"]).code(), 0);
    call.stdout.event("run_ended");
    assert_eq!(call.code(), 0);
    assert!(dev.run(["pause", "ls"]).stderr().contains("nothing is paused"));
    let unknown = dev.run(["pause", "tool", "bosh"]);
    assert!(unknown.code() != 0 && unknown.stderr().contains("bosh"), "{}", unknown.stderr());
    let unknown = dev.run(["resume", "tool", "bosh"]);
    assert!(unknown.code() != 0 && unknown.stderr().contains("bosh"), "{}", unknown.stderr());
}

#[test]
fn dev_goes_on_when_its_worker_is_drained_and_another_worker_may_take_its_place() {
    let dev = Dev::start();
    // Its first heartbeat comes when it has connected.
    let workers = || dev.run(["workers", "ls", "-o", "json"]).json();
    let listed = std::iter::repeat_with(workers).find(|listed| !listed.is_empty()).expect("it repeats");
    let id = listed[0]["worker_id"].as_str().expect("it has an id");
    assert_eq!(dev.run(["workers", "drain", id]).code(), 0);
    dev.stderr().until(|line| line.contains("was drained") && line.contains(dev.nats_url()));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let root = folder.path().to_str().expect("a path of text");
    let worker = Background::of(
        toolyard(["worker", "--pool", "local", "--root", root]).env("TOOLYARD_NATS_URL", dev.nats_url()),
    );
    worker.stderr.until(|line| line.contains("pulling"));
    let called = dev.run(["call", "get_current_time", "time_zone=UTC"]);
    assert_eq!(called.code(), 0, "{}", called.stderr());
}

#[test]
fn dev_says_how_to_reach_a_broker_that_is_not_at_the_usual_port() {
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    let arguments = ["dev", "--listen", "127.0.0.1:0", "--nats-port", &port.to_string()];
    let dev = Background::start(arguments);
    dev.stdout.until(|line| line.trim() == format!("export TOOLYARD_NATS_URL=nats://127.0.0.1:{port}"));
    let astray = run(["doctor", "--nats-url", "nats://127.0.0.1:1"]);
    let told = format!("{}{}", astray.stdout(), astray.stderr());
    assert!(told.contains("TOOLYARD_NATS_URL"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_drained_ends_well() {
    let broker = Broker::start(BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let (_coordinator, address) = crate::fleet::coordinator(&broker.url(), "127.0.0.1:0");
    let worker =
        Background::start(["worker", "--nats-url", &broker.url(), "--pool", "main", "--root", "/usr", "--slots", "3"]);
    worker.stderr.until(|line| line.contains("pulling"));
    let url = format!("http://{address}");
    let deadline = Instant::now() + PATIENCE;
    let listed = loop {
        let listed = run(["--url", &url, "workers", "ls", "-o", "json"]).json();
        if !listed.is_empty() {
            break listed;
        }
        assert!(Instant::now() < deadline, "the coordinator hears of the worker");
    };
    assert_eq!((&listed[0]["pool"], &listed[0]["slots"]), (&"main".into(), &3.into()));
    let id = listed[0]["worker_id"].as_str().expect("it has an id");
    let drained = run(["--url", &url, "workers", "drain", id]);
    assert!(drained.code() == 0 && drained.stderr().contains("drains"), "{}", drained.stderr());
    assert_eq!(worker.code(), 0);
    let again = run(["--url", &url, "workers", "drain", id]);
    assert!(again.code() != 0 && again.stderr().contains("no live worker"), "{}", again.stderr());
    let none = run(["--url", &url, "workers", "ls", "--pool", "main"]);
    assert!(none.code() == 0 && none.stderr().contains("no worker lives"), "{}", none.stderr());
    broker.stop().await;
}
