//! `toolyard coordinator` and `toolyard worker` as processes of their own.

use std::time::Instant;

use local::{Broker, BrokerOptions};
use rustix::process::Signal;

use crate::process::{Background, PATIENCE, run};

pub(crate) fn coordinator(nats_url: &str, listen: &str) -> (Background, String) {
    let process = Background::start(["coordinator", "-o", "json", "--nats-url", nats_url, "--listen", listen]);
    let line = process.stderr.until(|line| line.contains("\"message\":\"serving\""));
    let log: serde_json::Value = serde_json::from_str(&line).expect("a log line is JSON");
    let address = log["address"].as_str().expect("it says where it serves").to_owned();
    (process, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_coordinator_is_not_noticed() {
    let broker = Broker::start(BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let (first, address) = coordinator(&broker.url(), "127.0.0.1:0");
    // Its command looks for a file of ours, so it runs as we do.
    let me = rustix::process::getuid().as_raw().to_string();
    let arguments = ["worker", "--nats-url", &broker.url(), "--pool", "main", "--root", "/usr", "--tools-user", &me];
    let worker = Background::start(arguments);
    worker.stderr.until(|line| line.contains("pulling"));

    let url = format!("http://{address}");
    let deadline = Instant::now() + PATIENCE;
    while run(["--url", &url, "tools", "get", "bash"]).code() != 0 {
        assert!(Instant::now() < deadline, "the coordinator hears of the worker's tools");
    }

    let go = tempfile::tempdir().unwrap();
    let file = go.path().join("go");
    let command = format!("command=echo one; until test -e {}; do sleep 0.05; done; echo two", file.display());
    let call = Background::start(["--url", &url, "call", "bash", &command]);
    assert_eq!(call.stdout.until(|_| true), "one");

    first.signal(Signal::TERM);
    assert_eq!(first.code(), 0);
    let (second, _) = coordinator(&broker.url(), &address);
    std::fs::write(&file, "").unwrap();
    assert_eq!(call.stdout.rest(), ["two"]);
    assert_eq!(call.code(), 0);

    worker.signal(Signal::TERM);
    assert_eq!(worker.code(), 0);
    let listed = run(["--url", &url, "tools", "ls", "--unavailable"]).stdout();
    assert!(listed.contains("main: no worker lives"), "{listed}");
    second.signal(Signal::TERM);
    assert_eq!(second.code(), 0);
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_hosts_what_it_is_told_to() {
    let broker = Broker::start(BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let (_coordinator, address) = coordinator(&broker.url(), "127.0.0.1:0");
    let arguments = [
        "worker",
        "--nats-url",
        &broker.url(),
        "--pool",
        "main",
        "--root",
        "/usr",
        "--enable",
        "bash,gl*",
        "--disable",
        "b*",
    ];
    let worker = Background::start(arguments);
    worker.stderr.until(|line| line.contains("pulling"));
    let url = format!("http://{address}");
    let deadline = Instant::now() + PATIENCE;
    let listed = loop {
        let listed = run(["--url", &url, "tools", "ls", "-o", "json"]).json().remove(0);
        if listed["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
            break listed;
        }
        assert!(Instant::now() < deadline, "the coordinator hears of the worker's tools");
    };
    let names: Vec<&str> =
        listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["glob"]);
    let unknown = run(["worker", "--pool", "main", "--root", "/usr", "--disable", "bosh"]);
    assert_eq!(unknown.code(), 1);
    assert!(unknown.stderr().contains("bosh") && unknown.stderr().contains("get_current_time"), "{}", unknown.stderr());
    let nothing = run(["worker", "--pool", "main", "--root", "/usr", "--enable", "x*"]);
    assert!(nothing.code() == 1 && nothing.stderr().contains("x*"), "{}", nothing.stderr());
    broker.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_choice_of_tools_holds_for_programs_too() {
    let broker = Broker::start(BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let (_coordinator, address) = coordinator(&broker.url(), "127.0.0.1:0");
    let folder = tempfile::tempdir().unwrap();
    let program = |name: &str| format!("[[program]]\nname = \"{name}\"\ndescription = \"x\"\ncommand = [\"true\"]\n");
    let file = folder.path().join("tools.toml");
    std::fs::write(&file, ["greet", "greet_loud", "wave"].map(program).concat()).unwrap();
    let file = file.to_str().unwrap();
    let worker = ["worker", "--nats-url", &broker.url(), "--pool", "main", "--programs", file];
    let chosen = Background::start(worker.iter().chain(&["--enable", "greet*", "--disable", "*_loud"]));
    chosen.stderr.until(|line| line.contains("pulling"));
    let url = format!("http://{address}");
    let deadline = Instant::now() + PATIENCE;
    while run(["--url", &url, "tools", "get", "greet"]).code() != 0 {
        assert!(Instant::now() < deadline, "the coordinator knows the tool");
    }
    let listed = run(["--url", &url, "tools", "ls", "-o", "json"]).json().remove(0);
    let tools = listed["tools"].as_array().unwrap();
    assert_eq!(tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect::<Vec<_>>(), ["greet"]);
    let unknown = run(worker.iter().chain(&["--enable", "bosh"]));
    assert!(unknown.stderr().contains("bosh") && unknown.stderr().contains("wave"), "{}", unknown.stderr());
    broker.stop().await;
}

#[test]
fn a_broker_that_is_not_there_is_told() {
    for role in [vec!["coordinator", "--listen", "127.0.0.1:0"], vec!["worker", "--pool", "main", "--root", "/usr"]] {
        let ended = run(role.iter().chain(&["--nats-url", "nats://127.0.0.1:1"]));
        assert_eq!(ended.code(), 1);
        assert!(ended.stderr().contains("cannot reach the broker at nats://127.0.0.1:1"), "{}", ended.stderr());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_is_less_safe_than_asked_for_is_refused() {
    let broker = Broker::start(BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let (first, _) = coordinator(&broker.url(), "127.0.0.1:0");
    for durability in ["standard", "strict"] {
        let arguments = ["coordinator", "--listen", "127.0.0.1:0", "--durability", durability, "--nats-url"];
        let ended = run(arguments.into_iter().chain([broker.url().as_str()]));
        assert_eq!(ended.code(), 1);
        let said = format!("stream ty-log has 1 replica at the broker, --durability {durability} needs 3 replicas");
        assert!(ended.stderr().contains(&said), "{}", ended.stderr());
        assert!(ended.stderr().contains("--durability dev"), "it says what to do: {}", ended.stderr());
    }
    first.signal(Signal::TERM);
    assert_eq!(first.code(), 0);
    broker.stop().await;
}

#[test]
fn a_coordinator_that_others_reach_asks_who_they_are_unless_it_is_told_not_to() {
    for program in ["coordinator", "dev"] {
        let refused = run([program, "--listen", "0.0.0.0:0"]);
        assert_ne!(refused.code(), 0, "{program}");
        for word in ["--auth", "--open-to-all", "TOOLYARD_OPEN_TO_ALL"] {
            assert!(refused.stderr().contains(word), "{program}: {}", refused.stderr());
        }
    }
    let open = ["coordinator", "--listen", "0.0.0.0:0", "--open-to-all", "--nats-url", "nats://127.0.0.1:1"];
    let warned = run(open);
    assert!(warned.stderr().contains("open to all"), "{}", warned.stderr());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_interceptors_of_a_file_stand_around_the_tools_of_a_worker() {
    let broker = Broker::start(BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let (_coordinator, address) = coordinator(&broker.url(), "127.0.0.1:0");
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let programs = file(
        "tools.toml",
        "[[program]]\nname = \"risky\"\ndescription = \"x\"\ncommand = [\"/bin/false\"]\n\
         effects = { read_only = true, open_world = false }\n",
    );
    let interceptors =
        file("interceptors.toml", "[[interceptor]]\nkind = \"emulate\"\ntools = [\"risky\"]\nanswer = \"as if\"\n");
    let nats_url = broker.url();
    let worker = |interceptors: &str| {
        let pool = ["worker", "--nats-url", &nats_url, "--pool", "main"];
        Background::start(pool.into_iter().chain(["--programs", &programs, "--interceptors", interceptors]))
    };
    let first = worker(&interceptors);
    first.stderr.until(|line| line.contains("pulling"));
    let url = format!("http://{address}");
    let deadline = Instant::now() + PATIENCE;
    while run(["--url", &url, "tools", "get", "risky"]).code() != 0 {
        assert!(Instant::now() < deadline, "the coordinator hears of the worker's tools");
    }
    let called = run(["--url", &url, "call", "risky"]);
    assert_eq!((called.code(), called.stdout().as_str()), (0, "as if\n"), "{}", called.stderr());
    let wrong = worker(&file("wrong.toml", "[[interceptor]]\nkind = \"emulate\"\nanswer = \"as if\"\n"));
    wrong.stderr.until(|line| line.contains("missing field `tools`"));
    assert_eq!(wrong.code(), 1);
    broker.stop().await;
}
