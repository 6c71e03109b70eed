//! Several coordinators share the shards: each run has one owner at a time, after any kill, pause or return, and any of
//! them serves any client.

use std::time::{Duration, Instant};

use harness::{Client, Coordinator, PATIENCE, Run, Shards, Yard, call, client_answer};
use proto::v1::{self, CallState, FloorPolicy, RunStatus, run_event::Event};
use serde_json::json;

use crate::{FIXTURE, check, count, counted, question};

/// How long an owner's lease lasts without renewal.
const LEASE: Duration = Duration::from_secs(6);

/// A yard with a second coordinator and a client of it, once they share the shards.
async fn two() -> (Yard, Coordinator, Client, Shards) {
    let yard = Yard::start(FIXTURE).await;
    let other = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(other.address()).await;
    let shards = Shards::at(&yard.broker.url()).await;
    shards.until(&[8, 8]).await;
    (yard, other, client, shards)
}

fn shard_of(run: &Run) -> u8 {
    u8::from_str_radix(&run.id[4..6], 16).expect("a run id names its shard")
}

fn timeout(call: v1::NewCall, timeout: Duration) -> v1::NewCall {
    v1::NewCall { timeout: Some(proto::convert::duration(timeout)), ..call }
}

async fn append(run: &Run, calls: Vec<v1::NewCall>) {
    let request = v1::AppendCallsRequest { run_id: run.id.clone(), calls, ..v1::AppendCallsRequest::default() };
    run.client.runs.clone().append_calls(request).await.expect("an open run takes calls");
}

async fn close(run: &Run) {
    let request = v1::CloseRunRequest { run_id: run.id.clone() };
    run.client.runs.clone().close_run(request).await.expect("an open run can be closed");
}

async fn create_open(client: &Client, calls: Vec<v1::NewCall>) -> Run {
    let request = v1::CreateRunRequest { calls, keep_open: true, ..v1::CreateRunRequest::default() };
    let created = client.runs.clone().create_run(request).await.expect("the run is accepted").into_inner();
    Run { client: client.clone(), id: created.run.expect("the response has the run").run_id }
}

#[tokio::test]
async fn coordinators_that_come_and_go_share_the_shards_within_seconds() {
    let yard = Yard::start(FIXTURE).await;
    let (url, shards) = (yard.broker.url(), Shards::at(&yard.broker.url()).await);
    let alone = shards.until(&[16]).await;
    let _second = yard.fixture.coordinator(&url).await;
    let halves = shards.until(&[8, 8]).await;
    let mut third = yard.fixture.coordinator(&url).await;
    let thirds = shards.until(&[5, 5, 6]).await;
    // No coordinator receives entries of shards that it does not follow.
    let followed = async {
        while shards.feeds().await.iter().map(|(shards, _)| shards).sum::<usize>() != 16 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, followed).await.expect("each shard is followed once");
    third.terminate().await;
    let returned = shards.until(&[8, 8]).await;
    eprintln!("alone {alone:?}, halves {halves:?}, thirds {thirds:?}, returned {returned:?}");
    let longest = [alone, halves, thirds, returned].into_iter().max();
    assert!(longest < Some(LEASE - Duration::from_secs(1)), "no lease has to run out for that");
}

#[tokio::test]
async fn every_watch_and_every_command_works_through_a_coordinator_that_does_not_own_the_run() {
    let (yard, _other, other, shards) = two().await;
    let _worker = yard.worker().await;
    other.wait_for_tool("echo").await;
    let run = create_open(&yard.client, vec![count("a", 40, 25), question("ask"), count("goes", 1000, 50)]).await;
    assert!(shards.of(yard.coordinator.address()).await.contains(&shard_of(&run)), "it opens runs in its own shards");
    let there = run.through(&other);
    assert_eq!(there.get().await.calls.len(), 3);
    let watches = [FloorPolicy::Arrival, FloorPolicy::Submission, FloorPolicy::Interleaved].map(|policy| {
        let (here, there) = (run.clone(), there.clone());
        tokio::spawn(async move {
            let (here, there) = (here.watch(policy).await, there.watch(policy).await);
            (policy, here.to_end().await, there.to_end().await)
        })
    });
    let mut watched = there.watch(FloorPolicy::Interleaved).await;
    watched.until(|event| matches!(event, Event::CallOutput(output) if output.call_id == "goes")).await;
    let cancel =
        v1::CancelCallRequest { run_id: run.id.clone(), call_id: "goes".to_owned(), reason: "enough".to_owned() };
    other.runs.clone().cancel_call(cancel).await.expect("a call can be cancelled");
    there.submit(vec![client_answer("ask", "from elsewhere")]).await.expect("the call waits");
    append(&there, vec![call("later", "echo", json!({ "text": "appended elsewhere" }))]).await;
    close(&there).await;
    for watch in watches {
        let (policy, here, there) = watch.await.expect("the readers do not panic");
        check::whole(&here, policy != FloorPolicy::Interleaved);
        assert_eq!(here, there, "{policy:?}: the replicas differ");
        assert_eq!(check::said(&here)["a"], counted("a", 40));
        let outcomes = check::outcomes(&here);
        assert_eq!(outcomes["goes"].state(), CallState::Cancelled);
        assert_eq!(check::text(&outcomes["ask"]), "from elsewhere");
        assert_eq!(check::text(&outcomes["later"]), "appended elsewhere");
    }
    let second = yard.client.create(vec![count("b", 1000, 50), question("ask")]).await;
    let second = second.through(&other);
    second.cancel("elsewhere").await;
    let events = second.watch(FloorPolicy::Arrival).await.to_end().await;
    assert!(check::outcomes(&events).values().all(|outcome| outcome.state() == CallState::Cancelled));
    assert_eq!(second.get().await.status(), RunStatus::Cancelled);
}

#[tokio::test]
async fn runs_of_an_owner_that_was_killed_go_on_with_the_next() {
    let (mut yard, _other, other, shards) = two().await;
    let _worker = yard.worker().await;
    other.wait_for_tool("echo").await;
    let steps = create_open(&yard.client, vec![count("first", 2, 10)]).await.through(&other);
    let cancelled = yard.client.create(vec![count("endless", 100_000, 50)]).await.through(&other);
    let expires = yard.client.create(vec![timeout(question("ask"), Duration::from_secs(3))]).await.through(&other);
    let many = yard.client.create((0..60).map(|index| count(&format!("c{index}"), 3, 200)).collect()).await;
    let many = many.through(&other);
    let mut watch = cancelled.watch(FloorPolicy::Arrival).await;
    watch.until(|event| matches!(event, Event::CallOutput(_))).await;
    // The kill.
    yard.coordinator.kill().await;
    let killed = Instant::now();
    cancelled.cancel("its owner is dead").await;
    append(&steps, vec![count("second", 2, 10), question("third")]).await;
    steps.submit(vec![client_answer("third", "yes")]).await.expect("the call waits");
    close(&steps).await;
    shards.until(&[16]).await;
    let owned = killed.elapsed();
    let ends = [&steps, &cancelled, &expires, &many].map(|run| {
        let run = run.clone();
        tokio::spawn(async move {
            let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
            (events, killed.elapsed())
        })
    });
    let [steps, cancelled, expires, many] = ends;
    let (steps, cancelled) = (steps.await.expect("it is read"), cancelled.await.expect("it is read"));
    let (expires, many) = (expires.await.expect("it is read"), many.await.expect("it is read"));
    eprintln!(
        "after the kill: shards taken {owned:?}; dispatched {:?}, cancelled {:?}, expired {:?}, 60 calls {:?}",
        steps.1, cancelled.1, expires.1, many.1
    );
    assert!(owned < LEASE * 2, "shards are taken over soon: {owned:?}");
    for (events, took) in [&steps, &cancelled, &expires, &many] {
        check::whole(events, true);
        assert!(*took < LEASE * 4, "it went on soon: {took:?}");
    }
    assert_eq!(check::said(&steps.0)["second"], counted("second", 2));
    assert_eq!(check::outcomes(&cancelled.0)["endless"].state(), CallState::Cancelled);
    assert_eq!(check::outcomes(&expires.0)["ask"].state(), CallState::Expired);
    assert_eq!(check::outcomes(&many.0).len(), 60);
    for (call, said) in check::said(&many.0) {
        assert_eq!(said, counted(&call, 3));
    }
}

#[tokio::test]
async fn what_is_overdue_ends_for_whoever_watches_though_its_owner_is_dead_and_nobody_has_its_shard_yet() {
    let (mut yard, _other, other, shards) = two().await;
    let _worker = yard.worker().await;
    other.wait_for_tool("echo").await;
    let call = yard.client.create(vec![timeout(question("ask"), Duration::from_secs(1))]).await.through(&other);
    let request = v1::CreateRunRequest {
        calls: vec![question("ask")],
        timeout: Some(proto::convert::duration(Duration::from_secs(1))),
        ..v1::CreateRunRequest::default()
    };
    let whole = yard.client.runs.clone().create_run(request).await.expect("it is accepted").into_inner();
    let whole = Run { client: other.clone(), id: whole.run.expect("the response has the run").run_id };
    let owned = shards.shares().await;
    yard.coordinator.kill().await;
    for run in [&call, &whole] {
        let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
        check::whole(&events, true);
        assert_eq!(check::outcomes(&events)["ask"].state(), CallState::Expired);
    }
    assert_eq!(owned, shards.shares().await, "the dead owner's lease has not run out");
    shards.until(&[16]).await;
    assert_eq!(whole.get().await.status(), RunStatus::Expired);
}

#[tokio::test]
async fn an_owner_that_stood_still_past_its_lease_does_no_harm_and_joins_again() {
    let (yard, _other, other, shards) = two().await;
    let _worker = yard.worker().await;
    other.wait_for_tool("echo").await;
    // A deadline that passes while the owner is paused: the next owner acts, and the first must not act again.
    let expires = yard.client.create(vec![timeout(question("ask"), LEASE / 2)]).await.through(&other);
    let answered = yard.client.create(vec![question("ask"), count("a", 10, 20)]).await.through(&other);
    let cancelled = yard.client.create(vec![count("endless", 100_000, 50)]).await.through(&other);
    let queued = create_open(&yard.client, Vec::new()).await.through(&other);
    let mut watch = cancelled.watch(FloorPolicy::Arrival).await;
    watch.until(|event| matches!(event, Event::CallOutput(_))).await;
    let stale = shards.shares().await;
    yard.coordinator.pause();
    let paused = Instant::now();
    cancelled.cancel("its owner stands still").await;
    append(&queued, (0..20).map(|index| count(&format!("q{index}"), 2, 10)).collect()).await;
    close(&queued).await;
    shards.until(&[16]).await;
    eprintln!("a paused owner was replaced after {:?}", paused.elapsed());
    let runs = [expires, answered, cancelled, queued];
    assert!(runs[1].submit(vec![client_answer("ask", "the other owner")]).await.is_ok());
    let mut before = Vec::new();
    for run in &runs {
        let events = run.watch(FloorPolicy::Arrival).await.to_end().await;
        check::whole(&events, true);
        before.push(events);
    }
    let entries = shards.written().await;
    yard.coordinator.resume();
    let rejoined = shards.until(&[8, 8]).await;
    eprintln!("it joined again {rejoined:?} after it went on");
    // Under another name: it knows that it was replaced.
    assert_ne!(stale, shards.shares().await);
    assert!(shards.shares().await.keys().filter(|member| stale.contains_key(*member)).count() == 1);
    // Longer than any effect takes to be repeated.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(shards.written().await, entries, "the stale owner appended something");
    for (run, before) in runs.iter().zip(&before) {
        for client in [&yard.client, &other] {
            assert_eq!(*before, run.through(client).watch(FloorPolicy::Arrival).await.to_end().await);
        }
    }
    // It is an owner like any other again.
    let next = yard.client.create((0..10).map(|index| count(&format!("n{index}"), 2, 10)).collect()).await;
    let events = next.watch(FloorPolicy::Arrival).await.to_end().await;
    assert_eq!(events, next.through(&other).watch(FloorPolicy::Arrival).await.to_end().await);
    assert_eq!(check::outcomes(&events).len(), 10);
}

#[tokio::test]
async fn a_rolling_restart_of_all_coordinators_under_load_fails_no_call() {
    let (mut yard, mut other, other_client, shards) = two().await;
    let _worker = yard.worker().await;
    other_client.wait_for_tool("echo").await;
    let clients = [yard.client.clone(), other_client];
    let stop = tokio_util::sync::CancellationToken::new();
    let (finished, mut progress) = tokio::sync::watch::channel(0);
    let callers = [0, 1, 2, 3].map(|caller| {
        let (clients, stop, finished) = (clients.clone(), stop.clone(), finished.clone());
        tokio::spawn(async move {
            let mut runs = Vec::new();
            while !stop.is_cancelled() {
                let id = format!("caller-{caller}-run-{}", runs.len());
                runs.push((id.clone(), harness::carried_through(&clients, id).await));
                finished.send_modify(|count| *count += 1);
            }
            runs
        })
    });
    for _ in 0..2 {
        for coordinator in [&mut yard.coordinator, &mut other] {
            // A restart takes milliseconds: each begins while runs are under way.
            let before = *progress.borrow();
            let more = tokio::time::timeout(PATIENCE, progress.wait_for(|count| *count >= before + 4)).await;
            more.expect("runs end in time").expect("callers go on");
            let address = coordinator.address();
            coordinator.terminate().await;
            let alone = shards.until(&[16]).await;
            *coordinator = yard.fixture.coordinator_at(&yard.broker.url(), address).await;
            let shared = shards.until(&[8, 8]).await;
            eprintln!("restarted {address}: the other took over in {alone:?}, shared again in {shared:?}");
        }
    }
    stop.cancel();
    let mut count = 0;
    for caller in callers {
        for (id, events) in caller.await.expect("a caller does not panic") {
            check::whole(&events, true);
            let outcomes = check::outcomes(&events);
            assert_eq!(check::text(&outcomes["b"]), id);
            assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{id}: {outcomes:?}");
            assert_eq!(check::said(&events)["a"], counted("a", 3));
            count += 1;
        }
    }
    eprintln!("{count} runs of three calls while every coordinator was restarted twice");
    assert!(count >= 16, "there was load: {count} runs");
}

#[tokio::test]
async fn taking_over_reads_what_is_open_and_not_what_is_kept() {
    let mut yard = Yard::start(FIXTURE).await;
    let _worker = yard.worker().await;
    let shards = Shards::at(&yard.broker.url()).await;
    shards.until(&[16]).await;
    let open = [yard.client.create(vec![question("ask")]).await, yard.client.create(vec![question("ask")]).await];
    for round in 0..200 {
        let calls = vec![call("e", "echo", json!({ "text": round.to_string() }))];
        yard.client.execute(calls).await.to_end().await;
    }
    yard.client.execute(vec![count("much", 60_000, 0)]).await.to_end().await;
    let kept = shards.log_last().await;
    // The owner writes down how far it came within seconds.
    let written = async {
        loop {
            let mut through = Vec::new();
            for shard in 0..16 {
                through.extend(shards.snapshot(shard).await.map(|snapshot| snapshot.through));
            }
            if through.len() == 16 && through.iter().all(|through| *through >= kept) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(LEASE * 2, written).await.expect("it is written down");
    let snapshot = shards.snapshot(shard_of(&open[0])).await.expect("the shard has a snapshot");
    assert!(snapshot.open.iter().any(|listed| listed.run.to_string() == open[0].id), "the open runs are in it");
    assert!(snapshot.open.len() <= 2, "the ended ones are not");
    yard.coordinator.kill().await;
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    shards.until(&[16]).await;
    for run in open {
        let run = run.through(&client);
        run.submit(vec![client_answer("ask", "still open")]).await.expect("the call waits");
        check::whole(&run.watch(FloorPolicy::Arrival).await.to_end().await, true);
    }
    let brought: u64 = shards.feeds().await.iter().map(|(_, brought)| brought).sum();
    eprintln!("{kept} entries are kept; the next owner's feeds brought {brought}");
    assert!(kept > 400, "there is something to be read: {kept}");
    assert!(brought < 40, "the next owner read {brought} entries of {kept}");
}

#[tokio::test]
async fn on_three_brokers_each_coordinator_knows_at_once_what_the_other_stored() {
    let cluster = local::Cluster::start(|_| {}).await.expect("a cluster starts");
    let fixture = harness::Fixture::new(FIXTURE).with("TOOLYARD_DURABILITY", "standard");
    let (one, two) = (fixture.coordinator(&cluster.url()).await, fixture.coordinator(&cluster.url()).await);
    let clients = [Client::connect(one.address()).await, Client::connect(two.address()).await];
    let _worker = fixture.worker(&cluster.url(), "main", 16).await;
    for client in &clients {
        client.wait_for_tool("echo").await;
    }
    // Pages of the log come from any of three replicas, of which two may be a moment behind.
    for round in 0..60 {
        let (here, there) = (&clients[round % 2], &clients[(round + 1) % 2]);
        let run = create_open(here, vec![question("ask"), count("a", 5, 1)]).await;
        let elsewhere = run.through(there);
        let watch = elsewhere.watch(FloorPolicy::Arrival).await;
        elsewhere.submit(vec![client_answer("ask", "at once")]).await.expect("the call waits");
        append(&run, vec![call("b", "echo", json!({ "text": "appended" }))]).await;
        close(&elsewhere).await;
        assert!(matches!(append_late(&run).await.as_str(), "RUN_CLOSED" | "RUN_ENDED"));
        let events = watch.to_end().await;
        check::whole(&events, true);
        assert_eq!(check::outcomes(&events).len(), 3);
        assert_eq!(check::said(&events)["a"], counted("a", 5));
        assert_eq!(events, run.watch(FloorPolicy::Arrival).await.to_end().await);
        assert_eq!(run.get().await.status(), RunStatus::Completed);
    }
}

/// Why a closed run takes no call.
async fn append_late(run: &Run) -> String {
    let request = v1::AppendCallsRequest {
        run_id: run.id.clone(),
        calls: vec![question("late")],
        ..v1::AppendCallsRequest::default()
    };
    let refused = run.client.runs.clone().append_calls(request).await.expect_err("the run is closed");
    harness::reason(&refused)
}

#[tokio::test]
async fn a_run_that_is_cancelled_before_its_owner_sees_what_was_due_gets_no_job() {
    let (yard, _other, other, shards) = two().await;
    let _worker = yard.worker().await;
    other.wait_for_tool("echo").await;
    let confirms = || vec![call("a", "confirms", json!({ "text": "hello" }))];
    let approve = async |run: &Run| {
        let decision = Some(v1::call_decision::Decision::Approve(v1::CallApproval::default()));
        let decisions = vec![v1::CallDecision { call_id: "a".to_owned(), decision }];
        let request = v1::DecideCallsRequest { run_id: run.id.clone(), decisions };
        run.client.runs.clone().decide_calls(request).await.expect("it awaits approval");
    };
    let jobs = async |run: &Run| shards.entries(&format!("ty.run.*.{}.*.job.>", run.id)).await;
    let executed = yard.client.create(confirms()).await;
    approve(&executed).await;
    check::whole(&executed.watch(FloorPolicy::Arrival).await.to_end().await, true);
    assert_eq!(jobs(&executed).await, 1);
    let mut cancelled = Vec::new();
    for _ in 0..10 {
        cancelled.push(yard.client.create(confirms()).await.through(&other));
    }
    yard.coordinator.pause();
    for run in &cancelled {
        approve(run).await;
        run.cancel("no longer needed").await;
    }
    yard.coordinator.resume();
    for run in &cancelled {
        let owned = run.through(&yard.client);
        check::whole(&owned.watch(FloorPolicy::Arrival).await.to_end().await, true);
    }
    // The owner acts for other runs after that.
    check::whole(&yard.client.execute(vec![count("b", 1, 0)]).await.to_end().await, true);
    for run in &cancelled {
        assert_eq!(jobs(run).await, 0, "a job of a run that has ended");
    }
}
