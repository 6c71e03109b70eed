//! Runs that have left the log are read from the history as they were, whatever dies while they are written.

use std::path::Path;
use std::time::Duration;

use ::history::{History, HistoryError, HistoryLocation};
use coordinator::Level;
use futures::StreamExt as _;
use harness::{Bucket, Client, Fixture, Http, Run, Shards, Yard, call, reason, unlike};
use proto::convert::history::HistoryRun;
use proto::convert::snapshot::Needs;
use proto::names;
use proto::v1::{self, FloorPolicy, RunEvent};
use run::{Partition, RunId, Shard};
use serde_json::json;
use tonic::{Code, Status};

use crate::{FIXTURE, check, count};

/// Messages that the log may hold. A call takes two.
const MESSAGES: u64 = 8000;
/// Calls that fill the tenth of it that runs that have ended may use, with room to spare.
pub(crate) const ENOUGH: usize = 1000;
/// Entries stay for half a minute, a round of the history takes 5 s, and so does one of the log.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) fn fixture(folder: &Path) -> Fixture {
    short(&Fixture::new(FIXTURE).with("TOOLYARD_HISTORY", format!("file://{}", folder.display())))
}

/// With a log that runs leave soon after their end.
pub(crate) fn short(fixture: &Fixture) -> Fixture {
    fixture.with("TOOLYARD_LOG_MAX_MESSAGES", MESSAGES).with("TOOLYARD_TAIL_PERCENT", 10)
}

/// The history as another process sees it.
pub(crate) fn history(folder: &Path) -> History {
    History::new(&HistoryLocation::Folder(folder.to_owned()), Duration::from_secs(86_400)).expect("a folder")
}

pub(crate) async fn until<F: Future<Output = bool>>(what: &str, is_so: impl Fn() -> F) {
    let begun = tokio::time::Instant::now();
    while !is_so().await {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// What the history has of a run by now. A history that stays open follows what others write once a minute.
pub(crate) async fn stored(folder: &Path, run: &str) -> Result<Option<HistoryRun>, HistoryError> {
    history(folder).run(run.parse().expect("a run id"), nats::now()).await
}

/// Waits until the history has these runs.
pub(crate) async fn until_written(folder: &Path, runs: &[String]) {
    for run in runs {
        let has = || async { matches!(stored(folder, run).await, Ok(Some(_))) };
        until(&format!("{run} is not in the history"), has).await;
    }
}

/// Makes this many calls, each a run of its own, and waits until they have ended.
pub(crate) async fn fill(client: &Client, calls: usize) -> Vec<String> {
    let run = |_| async {
        let mut stream = client.execute(vec![call("c", "echo", json!({ "text": "x" }))]).await;
        while stream.next().await.expect("the stream does not break") {}
        check::whole(&stream.seen, true);
        stream.run(client).id
    };
    futures::stream::iter(0..calls).map(run).buffer_unordered(32).collect().await
}

pub(crate) async fn first(yard: &Yard) -> u64 {
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let stream = async_nats::jetstream::new(nats).get_stream(names::STREAM).await;
    stream.expect("the log is there").cached_info().state.first_sequence
}

pub(crate) async fn last(yard: &Yard) -> u64 {
    Shards::at(&yard.broker.url()).await.log_last().await
}

/// From which entry on the history may need the log, as the owners of all shards have told; 0 if one has not.
async fn told(yard: &Yard) -> u64 {
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let bucket = async_nats::jetstream::new(nats).get_key_value(names::SNAPSHOTS_BUCKET).await.expect("it is there");
    let mut first = u64::MAX;
    for shard in Partition::FIRST.shards() {
        let told = bucket.get(format!("needs.{shard}")).await.expect("the broker is there");
        let needs = told.map(|needs| Needs::decode(needs).expect("needs"));
        first = first.min(needs.and_then(|needs| needs.unwritten).map_or(0, |unwritten| unwritten.from));
    }
    first
}

/// Waits until the log begins behind this entry.
pub(crate) async fn until_gone(yard: &Yard, through: u64) {
    until("the log keeps what the history has", || async { first(yard).await > through }).await;
}

pub(crate) async fn get(client: &Client, run: &str) -> Result<v1::Run, Status> {
    let request = v1::GetRunRequest { run_id: run.to_owned() };
    Ok(client.runs.clone().get_run(request).await?.into_inner().run.expect("the response has the run"))
}

pub(crate) fn request(id: &str) -> v1::CreateRunRequest {
    let calls = vec![count("a", 40, 1), count("b", 40, 1), call("c", "echo", json!({ "text": id }))];
    v1::CreateRunRequest { calls, request_id: id.to_owned(), ..v1::CreateRunRequest::default() }
}

pub(crate) async fn create(client: &Client, request: v1::CreateRunRequest) -> Result<Run, Status> {
    let created = client.runs.clone().create_run(request).await?.into_inner();
    Ok(Run { client: client.clone(), id: created.run.expect("the response has the run").run_id })
}

pub(crate) async fn watch(run: &Run, after: Option<u64>) -> Vec<RunEvent> {
    run.watch_after(FloorPolicy::Arrival, after).await.expect("the history has it").to_end().await
}

/// The events of a run over HTTP.
async fn streamed(http: &Http, run: &str) -> Vec<String> {
    let mut answering = http.events(run, None).await;
    answering.to_end().await.expect("the stream does not break");
    answering.sent().iter().map(|sent| format!("{sent:?}")).collect()
}

/// What becomes of the first call of a run.
async fn why(client: &Client, run: &str) -> String {
    let run = get(client, run).await.expect("it is there");
    let request = v1::ExplainCallRequest { run_id: run.run_id, call_id: run.calls[0].call_id.clone() };
    client.runs.clone().explain_call(request).await.expect("the call is there").into_inner().why
}

pub(crate) async fn erase(client: &Client, request: v1::EraseRunsRequest) -> u64 {
    let (mut requested, mut request) = (0, request);
    loop {
        let erased = client.runs.clone().erase_runs(request.clone()).await.expect("it may").into_inner();
        requested += erased.requested;
        if erased.next_page_token.is_empty() {
            return requested;
        }
        request.page_token = erased.next_page_token;
    }
}

#[tokio::test]
async fn a_run_that_left_the_log_is_read_as_before_by_every_way_and_at_every_coordinator_until_it_is_erased() {
    let folder = tempfile::tempdir().expect("a folder");
    let yard = Yard::start_with(fixture(folder.path())).await;
    let _worker = yard.worker().await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let old = create(&yard.client, request("order 7")).await.expect("accepted");
    let acme = v1::CreateRunRequest { tenant: "acme".to_owned(), ..request("order 8") };
    let acme = create(&yard.client, acme).await.expect("accepted");
    let (events, of_acme) = (watch(&old, None).await, watch(&acme, None).await);
    let input = json!([{ "type": "function_call", "call_id": "c", "name": "echo", "arguments": "{\"text\": \"hi\"}" }]);
    let answer = yard.http().post("/responses", &json!({ "input": input })).await.json();
    let response = format!("/responses/{}", answer["id"].as_str().expect("it has an id"));
    let (before, path) = (get(&yard.client, &old.id).await.expect("it is there"), format!("/v1/runs/{}", old.id));
    let (shown, sent) = (yard.http().get(&path).await.json(), streamed(&yard.http(), &old.id).await);
    let because = why(&yard.client, &old.id).await;
    let ended = last(&yard).await;
    let mut slow = old.watch(FloorPolicy::Arrival).await;
    assert!(slow.next().await.expect("it begins"));
    fill(&yard.client, ENOUGH).await;
    until_gone(&yard, ended).await;

    let elsewhere = Client::connect(second.address()).await;
    for client in [&yard.client, &elsewhere] {
        let run = old.through(client);
        assert_eq!(get(client, &old.id).await.expect("the history has it"), before);
        assert_eq!(watch(&run, None).await, events);
        assert_eq!(why(client, &old.id).await, because);
        let half = events[events.len() / 2].sequence;
        let rest: Vec<RunEvent> = events.iter().filter(|event| event.sequence > half).cloned().collect();
        assert_eq!(watch(&run, Some(half)).await, rest);
        let again = create(client, request("order 7")).await.expect("it is answered with the same run");
        assert_eq!(again.id, old.id);
        let unknown = get(client, &unlike(&old.id)).await.expect_err("it never was");
        assert_eq!(reason(&unknown), "EVENTS_EXPIRED", "{unknown:?}");
    }
    for http in [yard.http(), Http::new(second.address())] {
        assert_eq!((http.get(&path).await.json(), streamed(&http, &old.id).await), (shown.clone(), sent.clone()));
        assert_eq!(http.get(&response).await.json(), answer);
    }
    assert_eq!(slow.to_end().await, events, "a stream that began in the log goes on");

    assert_eq!(watch(&acme.through(&elsewhere), None).await, of_acme);
    let of_tenant = v1::EraseRunsRequest { tenant: "acme".to_owned(), ..v1::EraseRunsRequest::default() };
    assert_eq!(erase(&elsewhere, of_tenant.clone()).await, 1);
    let by_id = v1::EraseRunsRequest { run_id: old.id.clone(), ..v1::EraseRunsRequest::default() };
    assert_eq!(erase(&elsewhere, by_id).await, 1);
    for run in [&old.id, &acme.id] {
        let is_erased = || async { get(&yard.client, run).await.is_err() && get(&elsewhere, run).await.is_err() };
        until("it can still be read", is_erased).await;
        let id: RunId = run.parse().expect("a run id");
        assert!(history(folder.path()).run(id, nats::now()).await.expect("it is there").is_none());
    }
    assert_eq!(erase(&elsewhere, of_tenant).await, 0, "nothing is left");
}

#[tokio::test]
async fn every_run_is_in_the_history_although_its_writers_are_killed_and_replaced_while_they_write() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut yard = Yard::start_with(fixture(folder.path())).await;
    let _worker = yard.worker().await;
    let mut runs = Vec::new();
    for _ in 0..4 {
        runs.extend(fill(&yard.client, 100).await);
        // In the middle of a round, or before one, or after one.
        yard.coordinator.kill().await;
        yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
        yard.client = Client::connect(yard.coordinator.address()).await;
        yard.client.wait_for_tool("echo").await;
    }
    // One that is suspended loses its shards, and writes nothing when it goes on: the next owner has fenced it.
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    Shards::at(&yard.broker.url()).await.until(&[8, 8]).await;
    let client = Client::connect(second.address()).await;
    client.wait_for_tool("echo").await;
    yard.coordinator.pause();
    runs.extend(fill(&client, 100).await);
    Shards::at(&yard.broker.url()).await.until(&[16]).await;
    until_written(folder.path(), &runs).await;
    yard.coordinator.resume();
    runs.extend(fill(&client, 100).await);
    until_written(folder.path(), &runs).await;
}

#[tokio::test]
async fn while_the_history_is_away_runs_stay_in_the_log_and_nothing_stops_and_then_they_are_written() {
    let outer = tempfile::tempdir().expect("a folder");
    let (folder, aside) = (outer.path().join("here"), outer.path().join("aside"));
    let yard = Yard::start_with(fixture(&folder)).await;
    let _worker = yard.worker().await;
    let mut runs = fill(&yard.client, 50).await;
    until_written(&folder, &runs).await;
    std::fs::rename(&folder, &aside).expect("moved");
    std::fs::write(&folder, b"").expect("a file in its place");
    let away_from = last(&yard).await;
    runs.extend(fill(&yard.client, ENOUGH).await);
    let ended = last(&yard).await;
    // They would have left the log by now.
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert!(first(&yard).await <= away_from + 1, "they are nowhere else");
    runs.extend(fill(&yard.client, 10).await);
    get(&yard.client, &runs[60]).await.expect("it is in the log");
    std::fs::remove_file(&folder).expect("removed");
    std::fs::rename(&aside, &folder).expect("moved back");
    until_written(&folder, &runs).await;
    fill(&yard.client, ENOUGH).await;
    until_gone(&yard, ended).await;
    get(&yard.client, &runs[60]).await.expect("the history has it");
}

#[tokio::test]
async fn what_a_history_has_leaves_the_log_though_the_shards_have_a_new_owner_who_cannot_open_it() {
    let outer = tempfile::tempdir().expect("a folder");
    let (folder, aside) = (outer.path().join("here"), outer.path().join("aside"));
    let mut yard = Yard::start_with(fixture(&folder)).await;
    let _worker = yard.worker().await;
    let second = yard.fixture.coordinator(&yard.broker.url()).await;
    let shards = Shards::at(&yard.broker.url()).await;
    shards.until(&[8, 8]).await;
    let client = Client::connect(second.address()).await;
    client.wait_for_tool("echo").await;
    fill(&client, 300).await;
    let written = last(&yard).await;
    until("their owners do not tell that the history has it", || async { told(&yard).await > written / 2 }).await;
    std::fs::rename(&folder, &aside).expect("moved");
    std::fs::write(&folder, b"").expect("a file in its place");
    let unwritten_from = told(&yard).await;

    yard.coordinator.kill().await;
    shards.until(&[16]).await;
    fill(&client, ENOUGH).await;
    until_gone(&yard, unwritten_from - 1).await;
    // They may have told more meanwhile.
    let first = first(&yard).await;
    assert!(first <= told(&yard).await, "the rest is nowhere else");
}

#[tokio::test]
async fn a_file_of_the_history_that_is_damaged_is_reported_for_its_runs_and_others_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut yard = Yard::start_with(fixture(folder.path())).await;
    let _worker = yard.worker().await;
    let old = create(&yard.client, request("a mark in the file")).await.expect("accepted");
    watch(&old, None).await;
    let others = fill(&yard.client, ENOUGH).await;
    let ended = last(&yard).await;
    fill(&yard.client, ENOUGH).await;
    until_gone(&yard, ended).await;
    // Its files are complete only if it ends in order.
    yard.coordinator.terminate().await;
    assert!(damage(folder.path(), b"a mark in the file") > 0);
    yard.coordinator = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(yard.coordinator.address()).await;
    client.wait_for_tool("echo").await;
    let damaged = get(&client, &old.id).await.expect_err("it is damaged");
    assert_eq!((damaged.code(), reason(&damaged).as_str()), (Code::DataLoss, "HISTORY_DAMAGED"), "{damaged:?}");
    let shard = |run: &String| run.parse::<RunId>().expect("a run id").shard();
    let own: Shard = shard(&old.id);
    for run in others.iter().filter(|run| shard(run) != own) {
        get(&client, run).await.expect("it is not damaged");
    }
    fill(&client, 10).await;
}

/// Changes a byte behind each copy of these bytes in the files of a folder. Returns how many there were.
fn damage(folder: &Path, mark: &[u8]) -> usize {
    let mut damaged = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            damaged += damage(&path, mark);
            continue;
        }
        let mut bytes = std::fs::read(&path).expect("a file");
        let places: Vec<usize> =
            (0..bytes.len().saturating_sub(mark.len())).filter(|at| bytes[*at..].starts_with(mark)).collect();
        places.iter().for_each(|at| bytes[*at] ^= 0xff);
        if !places.is_empty() {
            std::fs::write(&path, bytes).expect("written");
        }
        damaged += places.len();
    }
    damaged
}

#[tokio::test]
async fn a_bucket_keeps_runs_and_a_coordinator_that_is_killed_is_replaced_by_one_that_reads_and_writes_on() {
    let bucket = Bucket::start().await;
    let keyed = bucket.coordinators(&Fixture::new(FIXTURE));
    let keyed = keyed.with("TOOLYARD_HISTORY", "s3://yard/tests");
    let keyed = keyed.with("TOOLYARD_HISTORY_ENDPOINT", bucket.server.url());
    let mut yard = Yard::start_with(short(&keyed.with("TOOLYARD_HISTORY_ALLOW_HTTP", "true"))).await;
    // The key of a worker opens nothing of the history.
    let workers = bucket.workers(&Fixture::new(FIXTURE), "main");
    let _worker = workers.worker(&yard.broker.url(), "main", 16).await;
    yard.client.wait_for_tool("echo").await;
    let old = create(&yard.client, request("order 7")).await.expect("accepted");
    let (events, before) = (watch(&old, None).await, get(&yard.client, &old.id).await.expect("it is there"));
    let ended = last(&yard).await;
    fill(&yard.client, ENOUGH).await;
    until_gone(&yard, ended).await;
    yard.coordinator.kill().await;
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    assert_eq!(get(&client, &old.id).await.expect("the history has it"), before);
    assert_eq!(watch(&old.through(&client), None).await, events);
    let later = create(&client, request("order 8")).await.expect("accepted");
    let (events, ended) = (watch(&later, None).await, last(&yard).await);
    fill(&client, ENOUGH).await;
    until_gone(&yard, ended).await;
    assert_eq!(watch(&later.through(&client), None).await, events);
    let keys = bucket.keys("history/").await;
    assert!(keys.iter().any(|key| key.contains("/shards/")), "{keys:?}");
}

#[tokio::test]
async fn a_run_that_is_too_large_to_be_in_memory_at_once_is_written_in_pieces_and_read_as_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let yard = Yard::start_with(fixture(folder.path())).await;
    let _worker = yard.worker().await;
    let arguments = json!({ "label": "x".repeat(1000), "pieces": 3000, "every_ms": 0 });
    let calls = ["a", "b"].map(|id| call(id, "count", arguments.clone())).to_vec();
    let request = v1::CreateRunRequest { calls, ..v1::CreateRunRequest::default() };
    let large = create(&yard.client, request).await.expect("accepted");
    let (events, before) = (watch(&large, None).await, get(&yard.client, &large.id).await.expect("it is there"));
    let ended = last(&yard).await;
    fill(&yard.client, ENOUGH).await;
    until_gone(&yard, ended).await;
    let id: RunId = large.id.parse().expect("a run id");
    let stored = history(folder.path()).run(id, nats::now()).await.expect("it is there").expect("it has the run");
    assert!(stored.parts > 8 && stored.messages.is_empty(), "{} parts", stored.parts);
    assert_eq!(get(&yard.client, &large.id).await.expect("the history has it"), before);
    assert_eq!(watch(&large, None).await, events);
    let by_id = v1::EraseRunsRequest { run_id: large.id.clone(), ..v1::EraseRunsRequest::default() };
    assert_eq!(erase(&yard.client, by_id).await, 1);
    until("it can still be read", || async { get(&yard.client, &large.id).await.is_err() }).await;
    // The coordinator says that it is gone a moment before that is durable.
    until("its parts are still there", || async {
        let part = history(folder.path()).part(id, stored.parts).await;
        matches!(part, Err(::history::HistoryError::Damaged(_)))
    })
    .await;
}

/// What doctor finds of the history.
async fn examined(yard: &Yard, history: &History) -> Vec<(Level, String)> {
    let findings = coordinator::examine(&yard.broker.url(), &nats::Credentials::default(), Some(history)).await;
    let of_history = findings.into_iter().filter(|finding| finding.what.starts_with("history"));
    of_history.map(|finding| (finding.level, format!("{}: {}", finding.what, finding.found))).collect()
}

#[tokio::test]
async fn doctor_says_whether_the_history_can_be_written_and_how_far_it_goes() {
    let outer = tempfile::tempdir().expect("a folder");
    let folder = outer.path().join("here");
    let yard = Yard::start_with(fixture(&folder)).await;
    let _worker = yard.worker().await;
    let runs = fill(&yard.client, 20).await;
    until_written(&folder, &runs).await;
    let found = examined(&yard, &history(&folder)).await;
    assert_eq!(found.iter().map(|(level, _)| *level).collect::<Vec<_>>(), [Level::Ok; 3], "{found:#?}");
    assert!(found[1].1.contains("the oldest was created 0 days ago"), "{found:#?}");
    let away = history(&folder);
    std::fs::rename(&folder, outer.path().join("aside")).expect("moved");
    std::fs::write(&folder, b"").expect("a file in its place");
    let found = examined(&yard, &away).await;
    assert!(found.iter().any(|(level, what)| *level == Level::Fail && what.starts_with("history: ")), "{found:#?}");
}

async fn covered(client: &Client) -> v1::IndexCoverage {
    let counted = client.index.clone().count_runs(v1::CountRunsRequest::default()).await;
    counted.expect("the index answers").into_inner().coverage.expect("it says what it has")
}

async fn is_listed(client: &Client, run: &str) -> bool {
    let request = v1::ListRunsRequest { tenant: "acme".to_owned(), ..v1::ListRunsRequest::default() };
    let listed = client.index.clone().list_runs(request).await.expect("the index answers").into_inner();
    listed.runs.iter().any(|listed| listed.run_id == run)
}

#[tokio::test]
async fn an_index_in_redis_that_is_rebuilt_says_from_when_runs_of_the_history_are_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = local::Store::start(|_| {}).await.expect("a store starts");
    let yard = Yard::start_with(fixture(folder.path()).with_redis(&store.url())).await;
    let _worker = yard.worker().await;
    let old = v1::CreateRunRequest { tenant: "acme".to_owned(), ..request("order 7") };
    let old = create(&yard.client, old).await.expect("accepted");
    watch(&old, None).await;
    let ended = last(&yard).await;
    fill(&yard.client, ENOUGH).await;
    until_gone(&yard, ended).await;
    assert!(is_listed(&yard.client, &old.id).await);
    assert_eq!(covered(&yard.client).await, v1::IndexCoverage { complete: true, ..v1::IndexCoverage::default() });

    let redis = redis::Client::open(store.url()).expect("an address");
    let mut redis = redis.get_multiplexed_async_connection().await.expect("the store answers");
    redis::cmd("FLUSHALL").query_async::<()>(&mut redis).await.expect("it is emptied");
    let is_rebuilt = || async {
        let is_cut = covered(&yard.client).await;
        is_cut.complete && is_cut.cut_before.is_some()
    };
    until("the index is not rebuilt, or does not say what it lacks", is_rebuilt).await;
    assert!(!is_listed(&yard.client, &old.id).await, "it is in the history alone");
    get(&yard.client, &old.id).await.expect("the history has it");
}
