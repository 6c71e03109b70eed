//! The broker enforces permissions: everything works with them, and a pool's key gives no access to other pools.

use std::time::Duration;

use async_nats::{HeaderMap, Request};
use coordinator::Level;
use harness::{Client, Fixture, Intruder, Keys, PATIENCE, Shards, Yard, client_answer};
use nats::Credentials;
use nats::access::Party;
use proto::convert::worker::Heartbeat;
use proto::v1::{self, CallState, FloorPolicy, run_event::Event};

use crate::{FIXTURE, check, count, counted, question};

/// Permission errors in the broker's own log.
fn violations(yard: &Yard) -> Vec<String> {
    let log = std::fs::read_to_string(yard.broker.data_dir().join("server.log")).expect("the broker keeps a log");
    log.lines().filter(|line| line.contains("Violation")).map(str::to_owned).collect()
}

#[tokio::test]
async fn everything_works_with_no_more_rights_than_the_configuration_gives() {
    let keys = Keys::new(&["main"]);
    let mut yard = Yard::guarded(FIXTURE, &keys).await;
    let url = yard.broker.url();
    let workers = keys.workers(&yard.fixture, "main");
    let mut lost = workers.worker(&url, "main", 16).await;
    yard.client.wait_for_tool("echo").await;

    // A worker is killed in mid-stream, a call waits for its client, another one is cancelled.
    let mut stream = yard.client.execute(vec![count("a", 40, 50), question("ask"), count("b", 2000, 100)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let mut second = workers.worker(&url, "main", 16).await;
    lost.kill().await;
    let run = stream.run(&yard.client);
    run.submit(vec![client_answer("ask", "blue")]).await.expect("the call waits");
    stream.until(|event| matches!(event, Event::CallEnded(ended) if ended.call_id == "a")).await;

    // The coordinator is killed as well, and another one takes its shards.
    let shards = Shards::through(keys.client(&url, &Party::Coordinator).await);
    let successor = keys.coordinators(&yard.fixture).coordinator(&url).await;
    shards.until(&[8, 8]).await;
    yard.coordinator.kill().await;
    shards.until(&[16]).await;
    let client = Client::connect(successor.address()).await;
    let run = run.through(&client);
    run.cancel("enough").await;
    let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["a"], counted("a", 40));
    assert_eq!(check::outcomes(&events)["b"].state(), CallState::Cancelled);

    let credentials = Credentials { nkey: Some(keys.of(&Party::Observer)), ca: None };
    let findings = coordinator::examine(&url, &credentials, None).await;
    assert!(findings.iter().all(|finding| finding.level == Level::Ok), "{findings:#?}");
    second.terminate().await;
    assert!(violations(&yard).is_empty(), "{:#?}", violations(&yard));
}

#[tokio::test]
async fn an_observer_and_a_coordinator_can_verify_that_a_cluster_is_strict() {
    let keys = Keys::new(&["main"]);
    let options = local::ClusterOptions { sync_always: true, config: Some(keys.accounts()) };
    let cluster = local::Cluster::start_with(options, |_| {}).await.expect("a cluster starts");
    let (url, fixture) = (cluster.url(), Fixture::new(FIXTURE).with("TOOLYARD_DURABILITY", "strict"));
    let coordinator = keys.coordinators(&fixture).coordinator(&url).await;
    let client = Client::connect(coordinator.address()).await;
    let _worker = keys.workers(&fixture, "main").worker(&url, "main", 4).await;
    client.wait_for_tool("echo").await;
    let events = client.execute(vec![count("c", 5, 10)]).await.to_end().await;
    assert_eq!(check::said(&events)["c"], counted("c", 5));
    let credentials = Credentials { nkey: Some(keys.of(&Party::Observer)), ca: None };
    let findings = coordinator::examine(&url, &credentials, None).await;
    let durability = findings.iter().find(|finding| finding.what == "durability").expect("it looks at it");
    assert!(durability.found.starts_with("strict:"), "{findings:#?}");
}

#[tokio::test]
async fn nobody_comes_in_without_a_key() {
    let keys = Keys::new(&["main"]);
    let yard = Yard::guarded(FIXTURE, &keys).await;
    async_nats::connect(yard.broker.url()).await.expect_err("who does not say who they are stays outside");
    let findings = coordinator::examine(&yard.broker.url(), &Credentials::default(), None).await;
    assert!(findings[0].found.contains("does not let us in"), "{findings:?}");
    let stranger = Keys::new(&["main"]);
    let credentials = Credentials { nkey: Some(stranger.of(&Party::Observer)), ca: None };
    let findings = coordinator::examine(&yard.broker.url(), &credentials, None).await;
    assert!(findings[0].found.contains("does not let us in"), "{findings:?}");
}

/// A yard with a run of pool `main` in mid-stream, and an intruder with the key of pool `other`.
async fn intruded() -> (Yard, Keys, harness::Worker, harness::Stream, Intruder) {
    let keys = Keys::new(&["main", "other"]);
    let yard = Yard::guarded(FIXTURE, &keys).await;
    let worker = keys.workers(&yard.fixture, "main").worker(&yard.broker.url(), "main", 16).await;
    yard.client.wait_for_tool("echo").await;
    let mut stream = yard.client.execute(vec![count("c", 60, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;
    let intruder = keys.intruder(&yard.broker.url(), "other").await;
    (yard, keys, worker, stream, intruder)
}

/// What the key of another pool must not publish on.
fn foreign_subjects(run: &str) -> Vec<String> {
    let entry = |rest: &str| format!("ty.run.{}.{run}.{rest}", &run[4..6]);
    vec![
        // The log: another pool's output, anybody's job, a command, a run.
        entry("0.out.main"),
        entry("0.job.main"),
        entry("0.job.other"),
        entry("0.ctl"),
        entry("_.run"),
        // Signals, answers, advertisements, leases.
        "ty.alive.main".to_owned(),
        "ty.ask.main.00".to_owned(),
        "ty.file.main.00".to_owned(),
        "ty.stop.main".to_owned(),
        "ty.stop.other".to_owned(),
        "_INBOX.pool.main.x".to_owned(),
        "_INBOX.coordinator.x".to_owned(),
        "$KV.ty-tools.main.set".to_owned(),
        "$KV.ty-leases.shard.00".to_owned(),
        "$KV.ty-snapshots.00".to_owned(),
        "$KV.ty-requests.x".to_owned(),
        // Objects: another pool's, an upload, and to read any, which would say them wherever it is told to.
        format!("ty.obj.{}.0.main.00000000000000ff.0", run),
        format!("ty.obj.up.upl_{}.0", &run[7..]),
        format!("$JS.API.DIRECT.GET.ty-objects.ty.obj.{}.0.other.00000000000000ff.0", run),
        "$JS.API.DIRECT.GET.ty-objects".to_owned(),
        "$JS.API.STREAM.MSG.GET.ty-objects".to_owned(),
        "$JS.API.CONSUMER.CREATE.ty-objects".to_owned(),
        "$JS.API.STREAM.PURGE.ty-objects".to_owned(),
        // Jobs of the pool: to take one, to end one, to see how many.
        "$JS.API.CONSUMER.MSG.NEXT.ty-log.pool-main".to_owned(),
        "$JS.API.CONSUMER.INFO.ty-log.pool-main".to_owned(),
        "$JS.ACK.ty-log.pool-main.1.1.1.1.1".to_owned(),
        "$JS.ACK._.hash.ty-log.pool-main.1.1.1.1.1".to_owned(),
        "$JS.API.CONSUMER.MSG.NEXT.ty-log-1.pool-main".to_owned(),
        "$JS.ACK.ty-log-1.pool-main.1.1.1.1.1".to_owned(),
        // Of pool main for the broker, which counts tokens, though it looks like one of the pool's own.
        "$JS.ACK.ty-log.pool-main.ty-log.pool-other.1.1.1".to_owned(),
        // The log as a whole: to read it, to empty it, to change it.
        "$JS.API.DIRECT.GET.ty-log".to_owned(),
        "$JS.API.DIRECT.GET.ty-log.ty.run.>".to_owned(),
        "$JS.API.STREAM.MSG.GET.ty-log".to_owned(),
        "$JS.API.CONSUMER.CREATE.ty-log".to_owned(),
        "$JS.API.CONSUMER.CREATE.ty-log.mine.ty.run.>".to_owned(),
        "$JS.API.CONSUMER.DELETE.ty-log.pool-main".to_owned(),
        "$JS.API.CONSUMER.PAUSE.ty-log.pool-other".to_owned(),
        "$JS.API.STREAM.PURGE.ty-log".to_owned(),
        "$JS.API.STREAM.UPDATE.ty-log".to_owned(),
        "$JS.API.STREAM.DELETE.ty-log".to_owned(),
        "$JS.API.STREAM.CREATE.mine".to_owned(),
        "$JS.API.STREAM.MSG.GET.KV_ty-requests".to_owned(),
        // Its own words: the broker would say them wherever it is told to.
        "$JS.API.DIRECT.GET.KV_ty-tools.$KV.ty-tools.other.set".to_owned(),
        "$JS.API.STREAM.INFO.KV_ty-tools".to_owned(),
        "$SYS.REQ.SERVER.PING.JSZ".to_owned(),
    ]
}

#[tokio::test]
async fn with_another_pools_key_nothing_of_this_pool_can_be_said() {
    let (yard, _keys, _worker, stream, mut intruder) = intruded().await;
    let run = stream.run(&yard.client);
    for subject in foreign_subjects(&run.id) {
        intruder.client.publish(subject.clone(), "{}".into()).await.expect("it is sent");
        let refusal = intruder.refused().await;
        assert!(refusal.contains("publish") && refusal.contains(&subject.to_lowercase()), "{subject}: {refusal}");
    }
    // It may do what its own pool may do.
    intruder.client.publish("ty.alive.other", "garbage".into()).await.expect("it is sent");
    intruder.client.flush().await.expect("the broker answers");
    assert_eq!(intruder.was_refused(), None);
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 60));
    assert_eq!(check::outcomes(&events)["c"].state(), CallState::Completed);
}

#[tokio::test]
async fn with_another_pools_key_nothing_of_this_pool_can_be_heard() {
    let (_yard, _keys, _worker, _stream, mut intruder) = intruded().await;
    for subject in [
        ">",
        "*.>",
        "ty.>",
        "ty.run.>",
        "ty.run.*.*.*.job.main",
        "ty.run.*.*.*.out.other",
        "ty.stop.main",
        "ty.stop.*",
        "ty.alive.*",
        "ty.ask.*.*",
        "_INBOX.>",
        "_INBOX.pool.>",
        "_INBOX.pool.main.>",
        "_INBOX.coordinator.>",
        "$KV.>",
        "$JS.EVENT.ADVISORY.>",
        "$JS.ACK.>",
    ] {
        let _subscription = intruder.client.subscribe(subject).await.expect("it is asked");
        let refusal = intruder.refused().await;
        assert!(refusal.contains("subscription") && refusal.contains(&subject.to_lowercase()), "{subject}: {refusal}");
    }
    let _own = intruder.client.subscribe("ty.stop.other").await.expect("it is asked");
    intruder.client.flush().await.expect("the broker answers");
    assert_eq!(intruder.was_refused(), None);
}

/// Says a heartbeat with the key of `pool`, as the worker that calls itself `worker`.
async fn say_alive(intruder: &Intruder, pool: &str, worker: &str, leaving: bool) {
    let (worker, tools) = (worker.parse().expect("an id"), "none".parse().expect("an id"));
    let release = String::new();
    let heartbeat = Heartbeat {
        worker,
        slots: 1,
        running: 0,
        leaving,
        pulling: true,
        tools,
        draining: false,
        release,
        sandbox: None,
        hooks: Vec::new(),
    };
    intruder.client.publish(format!("ty.alive.{pool}"), heartbeat.encode()).await.expect("it is sent");
    intruder.client.flush().await.expect("the broker answers");
}

/// The workers that are known, each with its pool, when they are as wanted.
async fn until_known(yard: &Yard, wanted: impl Fn(&[(String, String)]) -> bool) -> Vec<(String, String)> {
    let known = async {
        loop {
            let listed = yard.client.fleet.clone().list_workers(v1::ListWorkersRequest::default()).await;
            let workers = listed.expect("it lists").into_inner().workers;
            let known: Vec<_> = workers.into_iter().map(|worker| (worker.worker_id, worker.pool)).collect();
            if wanted(&known) {
                return known;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, known).await.expect("the workers become known")
}

#[tokio::test]
async fn with_another_pools_key_no_worker_of_this_pool_is_moved_taken_for_gone_or_kept_alive() {
    let keys = Keys::new(&["main", "other"]);
    for (ours, theirs) in [("main", "other"), ("other", "main")] {
        let yard = Yard::guarded(FIXTURE, &keys).await;
        let mut worker = keys.workers(&yard.fixture, ours).worker(&yard.broker.url(), ours, 16).await;
        let (id, intruder) = (worker.id().to_owned(), keys.intruder(&yard.broker.url(), theirs).await);
        let is_there = |known: &[(String, String)], name: &str, pool: &str| {
            known.iter().any(|(id, of)| (id.as_str(), of.as_str()) == (name, pool))
        };
        until_known(&yard, |known| is_there(known, &id, ours)).await;
        yard.client.wait_for_tool("echo").await;
        let mut stream = yard.client.execute(vec![count("c", 60, 50)]).await;
        stream.until(|event| matches!(event, Event::CallOutput(_))).await;
        // It lives in another pool, it says: neither that nor its farewell is of this pool's worker.
        say_alive(&intruder, theirs, &id, false).await;
        let known = until_known(&yard, |known| is_there(known, &id, theirs)).await;
        assert!(is_there(&known, &id, ours), "{known:?}");
        say_alive(&intruder, theirs, &id, true).await;
        let known = until_known(&yard, |known| !is_there(known, &id, theirs)).await;
        assert!(is_there(&known, &id, ours), "{known:?}");
        let again = yard.client.execute(vec![count("d", 3, 1)]).await.to_end().await;
        assert_eq!(check::outcomes(&again)["d"].state(), CallState::Completed, "its tools are there");
        let events = stream.to_end().await;
        check::whole(&events, true);
        assert_eq!(check::said(&events)["c"], counted("c", 60));
        // Nor does anybody live on whom another pool speaks for.
        worker.kill().await;
        let speaks = async {
            loop {
                say_alive(&intruder, theirs, &id, false).await;
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        };
        let gone = until_known(&yard, |known| is_there(known, &id, theirs) && !is_there(known, &id, ours));
        tokio::select! {
            known = gone => assert!(is_there(&known, &id, theirs)),
            () = speaks => {}
        }
        say_alive(&intruder, theirs, &id, true).await;
    }
}

#[tokio::test]
async fn a_pool_cannot_wipe_what_other_pools_advertise() {
    let (yard, keys, _worker, stream, intruder) = intruded().await;
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Rollup", "all");
    let rollup = Request::new().headers(headers).payload("".into());
    let answer = intruder.client.send_request("$KV.ty-tools.other.set", rollup).await.expect("the broker answers");
    let answer = String::from_utf8_lossy(&answer.payload).into_owned();
    assert!(answer.contains("rollup not permitted"), "{answer}");
    stream.to_end().await;
    let late = keys.coordinators(&yard.fixture).coordinator(&yard.broker.url()).await;
    let client = Client::connect(late.address()).await;
    tokio::time::timeout(PATIENCE, client.wait_for_tool("echo")).await.expect("the tools of pool main are known");
}

/// How often the broker logged that it reloaded its configuration.
fn reloads(yard: &Yard) -> usize {
    let log = std::fs::read_to_string(yard.broker.data_dir().join("server.log")).expect("the broker keeps a log");
    log.matches("Reloaded server configuration").count()
}

#[tokio::test]
async fn a_pool_is_added_while_another_works_by_reloading_the_broker_twice() {
    let mut keys = Keys::new(&["main"]);
    let yard = Yard::guarded(FIXTURE, &keys).await;
    let url = yard.broker.url();
    let _main = keys.workers(&yard.fixture, "main").worker(&url, "main", 16).await;
    yard.client.wait_for_tool("echo").await;
    let mut stream = yard.client.execute(vec![count("c", 60, 50)]).await;
    stream.until(|event| matches!(event, Event::CallOutput(_))).await;

    keys.add("late");
    // The broker of a test has its name from a flag, and none in its file: it would not take that for the same.
    let text = std::fs::read_to_string(keys.accounts()).expect("it was written");
    std::fs::write(keys.accounts(), text + "server_name: toolyard-local\n").expect("written");
    let server = yard.broker.pid().and_then(|pid| rustix::process::Pid::from_raw(i32::try_from(pid).ok()?));
    for reload in 1..=2 {
        rustix::process::kill_process(server.expect("it runs"), rustix::process::Signal::HUP).expect("it is told");
        let done = async {
            while reloads(&yard) < reload {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, done).await.expect("the broker reads its configuration again");
    }
    // It has its queue and is known, with a key that the broker did not know when it started.
    let late = keys.workers(&yard.fixture, "late").worker(&url, "late", 1).await;
    until_known(&yard, |known| known.iter().any(|(id, pool)| (id.as_str(), pool.as_str()) == (late.id(), "late")))
        .await;
    let events = stream.to_end().await;
    check::whole(&events, true);
    assert_eq!(check::said(&events)["c"], counted("c", 60));
    assert!(violations(&yard).is_empty(), "{:#?}", violations(&yard));
}
