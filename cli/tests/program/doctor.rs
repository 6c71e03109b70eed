//! `toolyard doctor` against what is well, and what is not.

use std::process::{Command, Stdio};

use local::{Broker, BrokerOptions, Lookup, Program};
use serde_json::Value;

use crate::process::{Background, Dev, Ended, run};

fn doctor(nats_url: &str) -> Ended {
    run(["doctor", "-o", "json", "--nats-url", nats_url])
}

/// What was found of `what`, in the only line that it writes.
fn finding<'a>(said: &'a [Value], what: &str) -> &'a Value {
    let mut findings = said[0]["findings"].as_array().expect("it lists what it found").iter();
    findings.find(|finding| finding["what"] == what).unwrap_or_else(|| panic!("{what} is not among {said:#?}"))
}

#[test]
fn a_yard_that_is_well_is_found_well() {
    let dev = Dev::start();
    let ended = doctor(dev.nats_url());
    let said = ended.json();
    assert_eq!((ended.code(), &said[0]["well"]), (0, &Value::from(true)), "{said:#?}");
    for (what, found) in [
        ("broker", "nats-server 2."),
        ("jetstream", "on"),
        ("accounts", "none: every client"),
        ("log", "as a coordinator makes them"),
        ("replicas", "1"),
        ("durability", "dev: one copy"),
        ("room", "0 %"),
        ("memory", "when the log is full"),
        ("bucket ty-leases", "replicas: 1"),
        ("coordinators", "shards"),
        ("clock", "give or take"),
        ("pool local", concat!("workers alive: 1 (", env!("CARGO_PKG_VERSION"), ": 1), pulling: 1")),
    ] {
        let finding = finding(&said, what);
        assert_eq!(finding["level"], "ok", "{finding}");
        assert!(finding["found"].as_str().is_some_and(|text| text.contains(found)), "{finding}");
    }
    let people = run(["doctor", "--nats-url", dev.nats_url()]);
    assert_eq!(people.code(), 0);
    assert!(people.stdout().lines().all(|line| line.starts_with("ok")), "{}", people.stdout());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_missing_is_told_with_what_to_do() {
    let broker = Broker::start(BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let ended = doctor(&broker.url());
    let said = ended.json();
    assert_eq!(ended.code(), 1);
    assert_eq!(finding(&said, "log")["level"], "fail");
    assert!(finding(&said, "log")["advice"].as_str().is_some_and(|advice| advice.contains("start a coordinator")));

    // A coordinator makes the log and leaves; nobody hosts a tool.
    let listen = ["coordinator", "-o", "json", "--listen", "127.0.0.1:0", "--nats-url"];
    let coordinator = Background::start(listen.into_iter().chain([broker.url().as_str()]));
    coordinator.stderr.until(|line| line.contains("\"message\":\"serving\""));
    let said = doctor(&broker.url()).json();
    assert_eq!(finding(&said, "pools")["level"], "warn");
    assert_eq!(finding(&said, "coordinators")["level"], "ok", "{said:#?}");
    drop(coordinator);
    let said = doctor(&broker.url()).json();
    assert_eq!(finding(&said, "coordinators")["level"], "fail", "{said:#?}");
    broker.stop().await;
}

#[test]
fn a_broker_that_is_not_there_is_a_finding() {
    let ended = doctor("nats://127.0.0.1:1");
    assert_eq!(ended.code(), 1);
    assert_eq!(finding(&ended.json(), "broker")["level"], "fail");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_without_jetstream_is_told() {
    let server = local::find(Program::NatsServer, &Lookup::from_env(), |_| {}).await.expect("there is a server");
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(server);
    command.args(["--addr", "127.0.0.1", "--port", "-1", "--ports_file_dir"]).arg(folder.path());
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let ports = folder.path().join(format!("nats-server_{}.ports", child.id()));
    let url = loop {
        let ports = std::fs::read_to_string(&ports).unwrap_or_default();
        if let Ok(ports) = serde_json::from_str::<Value>(&ports) {
            break ports["nats"][0].as_str().expect("it says where it listens").to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let ended = doctor(&url);
    assert_eq!(ended.code(), 1);
    assert_eq!(finding(&ended.json(), "jetstream")["level"], "fail");
    let coordinator = run(["coordinator", "--listen", "127.0.0.1:0", "--nats-url", &url]);
    assert!(coordinator.stderr().contains("JetStream is off"), "{}", coordinator.stderr());
    child.kill().and_then(|()| child.wait()).expect("it was ours");
}
