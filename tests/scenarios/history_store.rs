//! What becomes of runs while the store of the history does not answer, hangs, is slow or is full.

use harness::{Bucket, Client, Direction, Fixture, Http, Proxy, Worker, Yard, reason};
use proto::v1;
use tokio::time::{Duration, Instant};

use crate::FIXTURE;
use crate::history::{ENOUGH, create, fill, first, get, last, request, short, until_gone, watch};
use crate::objects::{BYTES, broker, made, object, read};

/// How long a reader may wait for a store that hangs: a read of it is given up after 5 s, and some requests need a few.
const SOON: Duration = Duration::from_secs(25);
/// A run leaves the log 30 s after its end, and the log is looked at every 5 s.
const GONE_BY_NOW: Duration = Duration::from_secs(45);
const SLOW_BYTES_PER_S: usize = 64 * 1024;

/// A coordinator that keeps the history in a bucket, which it reaches through a link, and a worker.
struct Kept {
    bucket: Bucket,
    link: Proxy,
    yard: Yard,
    _worker: Worker,
}

impl Kept {
    async fn start() -> Self {
        let bucket = Bucket::start().await;
        let address = bucket.server.url().trim_start_matches("http://").parse().expect("an address");
        let link = Proxy::to(address).await.expect("a port is free");
        let keyed = bucket.coordinators(&Fixture::new(FIXTURE)).with("TOOLYARD_HISTORY", "s3://yard/tests");
        let keyed = keyed.with("TOOLYARD_HISTORY_ENDPOINT", format!("http://{}", link.address()));
        let yard = Yard::start_with(short(&keyed.with("TOOLYARD_HISTORY_ALLOW_HTTP", "true"))).await;
        let worker = bucket.workers(&Fixture::new(FIXTURE), "main").worker(&yard.broker.url(), "main", 16).await;
        yard.client.wait_for_tool("echo").await;
        Self { bucket, link, yard, _worker: worker }
    }

    /// Makes so many runs that older ones leave the log, and waits until this entry has left it.
    async fn until_gone(&self, client: &Client, through: u64) {
        fill(client, ENOUGH).await;
        until_gone(&self.yard, through).await;
    }
}

/// A run of the history is refused in time, as what may be asked for again later.
async fn is_refused_for_now(client: &Client, http: &Http, run: &str) {
    let begun = Instant::now();
    let away = get(client, run).await.expect_err("only the history has it");
    assert_eq!((away.code(), reason(&away).as_str()), (tonic::Code::Unavailable, "HISTORY_UNAVAILABLE"), "{away:?}");
    let answer = http.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(answer.problem(), (503, "HISTORY_UNAVAILABLE".to_owned()), "{answer:?}");
    // A stream may have begun with a heartbeat by then.
    let answer = http.get(&format!("/v1/runs/{run}/events")).await;
    let told = String::from_utf8_lossy(&answer.body);
    assert!(told.contains("\"HISTORY_UNAVAILABLE\""), "{answer:?}");
    assert!(begun.elapsed() < 3 * SOON, "{:?}", begun.elapsed());
}

#[tokio::test]
async fn runs_of_a_history_whose_store_does_not_answer_or_hangs_are_refused_for_now_and_nothing_else_is() {
    let mut kept = Kept::start().await;
    let old = create(&kept.yard.client, request("order 7")).await.expect("accepted");
    let (events, before) = (watch(&old, None).await, get(&kept.yard.client, &old.id).await.expect("it is there"));
    let ended = last(&kept.yard).await;
    kept.until_gone(&kept.yard.client, ended).await;

    // The next coordinator has nothing of the history in memory.
    kept.yard.coordinator.kill().await;
    kept.link.close();
    let next = kept.yard.fixture.coordinator(&kept.yard.broker.url()).await;
    let (client, http) = (Client::connect(next.address()).await, Http::new(next.address()));
    client.wait_for_tool("echo").await;
    is_refused_for_now(&client, &http, &old.id).await;
    fill(&client, 20).await;
    kept.link.heal();
    kept.link.hold(Direction::Both);
    is_refused_for_now(&client, &http, &old.id).await;
    let unwritten = fill(&client, 20).await;
    let of_now = get(&client, &unwritten[0]).await.expect("it is in the log");
    let ended = last(&kept.yard).await;

    kept.link.heal();
    let is_back = || async { get(&client, &old.id).await.is_ok() };
    crate::history::until("the history is not read, though its store is back", is_back).await;
    assert_eq!(get(&client, &old.id).await.expect("it is read"), before);
    assert_eq!(watch(&old.through(&client), None).await, events);
    kept.until_gone(&client, ended).await;
    assert_eq!(get(&client, &unwritten[0]).await.expect("it was written later"), of_now);
}

#[tokio::test]
async fn a_store_of_the_history_that_is_slow_slows_no_call_and_gets_every_run() {
    let kept = Kept::start().await;
    let begun = Instant::now();
    fill(&kept.yard.client, ENOUGH).await;
    let quick = begun.elapsed();
    kept.link.throttle(Direction::Both, SLOW_BYTES_PER_S);
    let old = create(&kept.yard.client, request("order 7")).await.expect("accepted");
    let (events, ended) = (watch(&old, None).await, last(&kept.yard).await);
    let begun = Instant::now();
    let runs = fill(&kept.yard.client, ENOUGH).await;
    // If calls waited for the store they would take minutes.
    assert!(begun.elapsed() < 3 * quick + Duration::from_secs(10), "{:?} and {quick:?}", begun.elapsed());
    until_gone(&kept.yard, ended).await;
    assert_eq!(watch(&old, None).await, events);
    kept.link.heal();
    let ended = last(&kept.yard).await;
    kept.until_gone(&kept.yard.client, ended).await;
    for run in runs.iter().step_by(50) {
        get(&kept.yard.client, run).await.expect("the history has it");
    }
}

#[tokio::test]
async fn while_the_store_of_the_history_is_full_runs_stay_in_the_log_and_older_ones_are_read_from_it() {
    let mut kept = Kept::start().await;
    let client = kept.yard.client.clone();
    let old = create(&client, request("order 7")).await.expect("accepted");
    let (events, ended) = (watch(&old, None).await, last(&kept.yard).await);
    kept.until_gone(&client, ended).await;

    kept.bucket.server.restart_full().await.expect("it comes back");
    let full_from = last(&kept.yard).await;
    // What was being written as the store ended may be written after this; nothing of what follows is.
    let later = create(&client, request("order 8")).await.expect("accepted");
    let of_later = watch(&later, None).await;
    let ended = last(&kept.yard).await;
    fill(&client, ENOUGH).await;
    tokio::time::sleep(GONE_BY_NOW).await;
    assert!(first(&kept.yard).await <= full_from + 1, "it is nowhere else");
    assert_eq!(watch(&later, None).await, of_later);
    assert_eq!(watch(&old, None).await, events, "a full store can be read");
    fill(&client, 10).await;

    kept.bucket.server.restart().await.expect("it comes back");
    kept.until_gone(&client, ended).await;
    assert_eq!(watch(&later, None).await, of_later);
}

#[tokio::test]
async fn a_large_result_is_read_from_the_history_when_the_store_of_objects_has_it_no_more() {
    let folder = tempfile::tempdir().expect("a folder");
    let yard = Yard::start_with(crate::history::fixture(folder.path())).await;
    let _worker = yard.worker().await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let (run, object) = object(&yard.client, BYTES).await;
    let ended = last(&yard).await;
    fill(&yard.client, ENOUGH).await;
    until_gone(&yard, ended).await;
    let objects = broker(yard.broker.url()).await;
    let stream = objects.get_stream(proto::names::OBJECTS).await.expect("the store of objects is there");
    assert!(stream.purge().await.expect("it is emptied").purged > 0);

    let elsewhere = Client::connect(second.address()).await;
    let path = format!("/v1/objects/{}", object.object_id);
    for (client, http) in [(&yard.client, yard.http()), (&elsewhere, Http::new(second.address()))] {
        assert_eq!(read(client, &object.object_id, 0, None).await.expect("the history has it"), made(BYTES));
        let part = read(client, &object.object_id, 262_000, Some(1000)).await.expect("the history has it");
        assert_eq!(part, made(BYTES)[262_000..263_000]);
        assert_eq!(http.get(&path).await.body, made(BYTES));
    }
    let erase = v1::EraseRunsRequest { run_id: run.id.clone(), ..v1::EraseRunsRequest::default() };
    assert_eq!(crate::history::erase(&yard.client, erase).await, 1);
    let is_erased = || async { read(&yard.client, &object.object_id, 0, None).await.is_err() };
    crate::history::until("an object of an erased run can be read", is_erased).await;
}
