//! Coordinators and workers of both releases at once, as in the middle of an upgrade, while processes come and go.

use harness::{Client, Run, Shards, client_answer};
use proto::v1::CallState;
use tokio_util::sync::CancellationToken;

use crate::{broker, check, count, counted, events, present, previous, question, until_action_is_required};

#[tokio::test]
#[ignore = "needs the previous release: tests/release/run"]
async fn shards_move_between_both_releases_under_load_and_every_reader_sees_one_order() {
    let broker = broker().await;
    let url = broker.url();
    let fixtures = [previous(), present()];
    let [mut first, mut second] = [fixtures[0].coordinator(&url).await, fixtures[1].coordinator(&url).await];
    let shards = Shards::at(&url).await;
    shards.until(&[8, 8]).await;
    let clients = [Client::connect(first.address()).await, Client::connect(second.address()).await];
    let mut workers = [fixtures[0].worker(&url, "main", 4).await, fixtures[1].worker(&url, "main", 4).await];
    for client in &clients {
        client.wait_for_tool("echo").await;
    }
    // Runs that are open while their shards move; enough for most shards.
    let mut open = Vec::new();
    for index in 0..16 {
        open.push(clients[index % 2].create(vec![count("before", 3, 5), question("ask")]).await);
    }
    let stop = CancellationToken::new();
    let callers = [0, 1, 2].map(|caller| {
        let (clients, stop) = (clients.clone(), stop.clone());
        tokio::spawn(async move {
            let mut runs = Vec::new();
            while !stop.is_cancelled() {
                let id = format!("caller-{caller}-run-{}", runs.len());
                runs.push((id.clone(), harness::carried_through(&clients, id).await));
            }
            runs
        })
    });
    for run in &open {
        until_action_is_required(run).await;
    }
    for round in 0..2 {
        for (coordinator, fixture) in [(&mut first, &fixtures[0]), (&mut second, &fixtures[1])] {
            let address = coordinator.address();
            match round {
                0 => coordinator.terminate().await,
                _ => coordinator.kill().await,
            }
            shards.until(&[16]).await;
            *coordinator = fixture.coordinator_at(&url, address).await;
            shards.until(&[8, 8]).await;
        }
        for (worker, fixture) in workers.iter_mut().zip(&fixtures) {
            worker.terminate().await;
            *worker = fixture.worker(&url, "main", 4).await;
        }
    }
    // Each is answered through the release that it was not made with.
    let clients = [Client::connect(first.address()).await, Client::connect(second.address()).await];
    for (index, run) in open.iter().enumerate() {
        let run = run.through(&clients[(index + 1) % 2]);
        run.submit(vec![client_answer("ask", "this one")]).await.expect("it waits");
        let seen = same_for_all(&run, &clients).await;
        assert_eq!(check::text(&check::outcomes(&seen)["ask"]), "this one");
        assert_eq!(check::said(&seen)["before"], counted("before", 3));
    }
    stop.cancel();
    let mut runs = 0;
    for caller in callers {
        for (id, seen) in caller.await.expect("a caller does not panic") {
            check::whole(&seen, true);
            let outcomes = check::outcomes(&seen);
            assert!(outcomes.values().all(|outcome| outcome.state() == CallState::Completed), "{id}: {outcomes:?}");
            assert_eq!((check::text(&outcomes["b"]), check::said(&seen)["a"].clone()), (id, counted("a", 3)));
            let opened = match &seen[0].event {
                Some(proto::v1::run_event::Event::RunOpened(opened)) => opened.run_id.clone(),
                other => panic!("a run begins with its opening: {other:?}"),
            };
            let run = Run { client: clients[0].clone(), id: opened };
            assert_eq!(same_for_all(&run, &clients).await, seen);
            runs += 1;
        }
    }
    eprintln!("{runs} runs of three calls while coordinators and workers of both releases came and went");
    assert!(runs >= 6, "there was load: {runs} runs");
}

/// The events of a run, which are the same through both coordinators.
async fn same_for_all(run: &Run, clients: &[Client; 2]) -> Vec<proto::v1::RunEvent> {
    let [first, second] = [events(&run.through(&clients[0])).await, events(&run.through(&clients[1])).await];
    assert_eq!(first, second, "every reader sees one order");
    first
}
