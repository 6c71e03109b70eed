//! Clocks of machines that are minutes apart end nothing early, nothing late, and lose nothing.

use std::time::{Duration, Instant};

use harness::{Client, Fixture, Yard, call};
use proto::v1::{self, CallState};
use serde_json::json;

use crate::{FIXTURE, check, count};

const SKEW: &str = "TOOLYARD_CLOCK_SKEW_MS";
const AHEAD_MS: i64 = 5 * 60 * 1000;
const BEHIND_MS: i64 = -AHEAD_MS;
/// How long a call may run in this test, and by how much its end may be late on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(2);
const LATE: Duration = Duration::from_secs(2);
/// How much of its time a call may miss: clocks agree to half a round trip, which a busy machine makes long.
const EARLY: Duration = Duration::from_millis(300);

#[tokio::test]
async fn machines_whose_clocks_are_minutes_apart_agree_on_every_deadline() {
    let fixture = Fixture::new(FIXTURE);
    // The first one acts for all runs; the other one takes some of them in.
    let yard = Yard::start_with(fixture.with(SKEW, AHEAD_MS)).await;
    let behind = fixture.with(SKEW, BEHIND_MS).coordinator(&yard.broker.url()).await;
    let clients = [yard.client.clone(), Client::connect(behind.address()).await];
    for worker_skew in [AHEAD_MS, BEHIND_MS] {
        let mut worker = fixture.with(SKEW, worker_skew).worker(&yard.broker.url(), "main", 16).await;
        for client in &clients {
            client.wait_for_tool("echo").await;
            a_fresh_job_is_done(client).await;
            a_deadline_comes_in_time(client).await;
        }
        worker.terminate().await;
    }
}

#[tokio::test]
async fn a_coordinator_behind_acts_as_one_whose_clock_is_right() {
    let fixture = Fixture::new(FIXTURE);
    let yard = Yard::start_with(fixture.with(SKEW, BEHIND_MS)).await;
    let right = fixture.coordinator(&yard.broker.url()).await;
    let _worker = fixture.with(SKEW, AHEAD_MS).worker(&yard.broker.url(), "main", 16).await;
    for client in [yard.client.clone(), Client::connect(right.address()).await] {
        client.wait_for_tool("echo").await;
        a_fresh_job_is_done(&client).await;
        a_deadline_comes_in_time(&client).await;
    }
}

/// With little time for the queue and for itself, which would be over long ago by a clock that is off.
async fn a_fresh_job_is_done(client: &Client) {
    let echo = |id: &str| v1::NewCall {
        timeout: Some(proto::convert::duration(Duration::from_secs(10))),
        queue_timeout: Some(proto::convert::duration(Duration::from_secs(5))),
        ..call(id, "echo", json!({ "text": id }))
    };
    let events = client.execute(vec![echo("one"), echo("two"), echo("three")]).await.to_end().await;
    check::whole(&events, true);
    for (id, outcome) in check::outcomes(&events) {
        assert_eq!((outcome.state(), check::text(&outcome)), (CallState::Completed, id), "{outcome:?}");
    }
    let events = client.execute(vec![echo("alone")]).await.to_end().await;
    assert_eq!(check::outcomes(&events)["alone"].state(), CallState::Completed, "{events:#?}");
}

async fn a_deadline_comes_in_time(client: &Client) {
    let timeout = Some(proto::convert::duration(TIMEOUT));
    let asked = Instant::now();
    let stream = client.execute(vec![v1::NewCall { timeout, ..count("slow", 1000, 100) }]).await;
    let events = stream.to_end().await;
    let took = asked.elapsed();
    assert_eq!(check::outcomes(&events)["slow"].state(), CallState::Expired, "{events:#?}");
    assert!(took >= TIMEOUT - EARLY && took <= TIMEOUT + LATE, "it ended {took:?} after it was asked for");
}
