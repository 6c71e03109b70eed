//! Runs of a second partition leave its log: those that have ended are read from the history, and open ones are
//! carried.

use std::path::Path;

use async_nats::jetstream::stream::State;
use harness::{Client, Fixture, PATIENCE, Run, Yard, client_answer, reason, unlike};
use proto::names;
use proto::v1::{self, CallState, RunEvent, RunStatus};
use run::{Partition, RunId};
use tokio::time::{Duration, Instant};

use crate::history::{create, erase, get, request, stored, until, until_written, watch};
use crate::partitions::{add_partitions, partition_of, until_spread};
use crate::{FIXTURE, check, question};

const PARTITIONS: usize = 2;
/// A coordinator opens its runs in one partition for 50 ms, and then in the next.
const TURN: Duration = Duration::from_millis(60);

/// A run that has ended, as it was read while the log had it.
struct Ended {
    request: v1::CreateRunRequest,
    run: Run,
    state: v1::Run,
    events: Vec<RunEvent>,
}

impl Ended {
    async fn make(client: &Client, number: usize) -> Self {
        let request = v1::CreateRunRequest { tenant: "acme".to_owned(), ..request(&format!("order {number}")) };
        let run = create(client, request.clone()).await.expect("accepted");
        let events = watch(&run, None).await;
        check::whole(&events, true);
        let state = get(client, &run.id).await.expect("it is there");
        Self { request, run, state, events }
    }

    /// The run is read as before, and a repeated request is answered with it.
    async fn is_read_as_before(&self, client: &Client) {
        let id = &self.run.id;
        assert_eq!(get(client, id).await.expect("the history has it"), self.state);
        assert_eq!(watch(&self.run.through(client), None).await, self.events, "{id}");
        let again = create(client, self.request.clone()).await.expect("it is answered with the same run");
        assert_eq!(again.id, *id);
    }

    async fn is_erased(&self, client: &Client, folder: &Path) -> bool {
        get(client, &self.run.id).await.is_err() && matches!(stored(folder, &self.run.id).await, Ok(None))
    }
}

/// Makes runs until the first partition has one and the second has two.
async fn spread<T>(make: impl AsyncFn(usize) -> T, run_of: impl Fn(&T) -> &Run) -> Vec<T> {
    let (begun, mut made) = (Instant::now(), Vec::new());
    loop {
        made.push(make(made.len()).await);
        let in_first = made.iter().filter(|one| partition_of(&run_of(one).id) == Partition::FIRST).count();
        if in_first >= 1 && made.len() - in_first >= 2 {
            return made;
        }
        assert!(begun.elapsed() < PATIENCE, "{in_first} of {} runs are in the first partition", made.len());
        tokio::time::sleep(TURN).await;
    }
}

/// The log, partition by partition.
async fn log(yard: &Yard) -> Vec<State> {
    let nats = async_nats::connect(yard.broker.url()).await.expect("the broker is there");
    let context = async_nats::jetstream::new(nats);
    let mut partitions = Vec::new();
    for stream in names::STREAMS.iter().take(PARTITIONS) {
        let stream = context.get_stream(*stream).await.expect("the partition is there");
        partitions.push(stream.cached_info().state.clone());
    }
    partitions
}

/// Waits until everything has left the log that it has now. Returns the last entry of each partition that left.
async fn until_all_left(yard: &Yard) -> Vec<u64> {
    let last: Vec<u64> = log(yard).await.iter().map(|partition| partition.last_sequence).collect();
    let has_left = || async { log(yard).await.iter().zip(&last).all(|(log, last)| log.first_sequence > *last) };
    until("a partition keeps what the history has, or what is carried", has_left).await;
    last
}

/// The client of an open run answers it at its next owner. Then it is read from its beginning, which the log has lost.
async fn answer(question: &Run) {
    question.submit(vec![client_answer("ask", "the left one")]).await.expect("it waits");
    let events = watch(question, None).await;
    check::whole(&events, true);
    assert_eq!(check::text(&check::outcomes(&events)["ask"]), "the left one");
}

#[tokio::test]
async fn runs_of_both_partitions_are_read_from_the_history_and_erased_and_open_ones_are_carried_and_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let fixture = Fixture::new(FIXTURE).with("TOOLYARD_HISTORY", format!("file://{}", folder.path().display()));
    let mut yard = Yard::start_with(fixture.with("TOOLYARD_TAIL_SECONDS", 1)).await;
    let _worker = yard.worker().await;
    add_partitions(&yard.broker.url(), PARTITIONS).await;
    // Meanwhile all runs are in the first partition, so positions in the two are far apart.
    until_spread(&yard.client, PARTITIONS).await;
    let questions = spread(async |_| yard.client.create(vec![question("ask")]).await, |run| run).await;
    let ended = spread(async |number| Ended::make(&yard.client, number).await, |ended| &ended.run).await;
    let left = until_all_left(&yard).await;

    // It has nothing of the runs in memory.
    let next = yard.fixture.coordinator(&yard.broker.url()).await;
    let client = Client::connect(next.address()).await;
    client.wait_for_tool("echo").await;
    for client in [&yard.client, &client] {
        for ended in &ended {
            ended.is_read_as_before(client).await;
            let unknown = get(client, &unlike(&ended.run.id)).await.expect_err("it never was");
            assert_eq!(reason(&unknown), "EVENTS_EXPIRED", "{unknown:?}");
        }
        for question in &questions {
            let run = get(client, &question.id).await.expect("it is open");
            let states = (run.status(), run.calls[0].state());
            assert_eq!(states, (RunStatus::RequiresAction, CallState::WaitingForClient), "{}", question.id);
        }
    }
    yard.coordinator.kill().await;
    for question in &questions {
        answer(&question.through(&client)).await;
    }
    let answered: Vec<String> = questions.iter().map(|question| question.id.clone()).collect();
    until_written(folder.path(), &answered).await;
    for run in &answered {
        let id: RunId = run.parse().expect("a run id");
        let stored = stored(folder.path(), run).await.expect("it is there").expect("it has the run");
        let begins = stored.messages.first().expect("it has entries").sequence;
        assert!(begins <= left[id.shard().partition().as_usize()], "{run}: what was carried of it is missing");
    }
    erase_all(&client, &ended, folder.path()).await;
}

/// Erases a run of the second partition by its id, and the runs of both partitions by their tenant.
async fn erase_all(client: &Client, ended: &[Ended], folder: &Path) {
    let is_in_second = |ended: &&Ended| partition_of(&ended.run.id) != Partition::FIRST;
    let one = ended.iter().find(is_in_second).expect("they are in both partitions");
    let by_id = v1::EraseRunsRequest { run_id: one.run.id.clone(), ..v1::EraseRunsRequest::default() };
    assert_eq!(erase(client, by_id).await, 1);
    until("the run can still be read", || one.is_erased(client, folder)).await;
    let others: Vec<&Ended> = ended.iter().filter(|other| other.run.id != one.run.id).collect();
    for other in &others {
        assert_eq!(get(client, &other.run.id).await.expect("it was not erased"), other.state);
    }
    let by_tenant = v1::EraseRunsRequest { tenant: "acme".to_owned(), ..v1::EraseRunsRequest::default() };
    assert_eq!(erase(client, by_tenant.clone()).await, others.len() as u64);
    for other in others {
        until("a run of the tenant can still be read", || other.is_erased(client, folder)).await;
    }
    assert_eq!(erase(client, by_tenant).await, 0, "nothing is left");
}
