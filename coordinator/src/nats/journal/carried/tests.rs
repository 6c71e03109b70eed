//! Carrying with a real broker.

use std::collections::HashMap;
use std::sync::Arc;

use ::history::{History, HistoryLocation};
use owner::{Expected, Listed};
use proto::subject::{Subject, SubjectKind};
use run::{CallIndex, Event, Partition, RunOpened};

use super::super::tests::{fresh, journal};
use super::super::{Journals, RunPages};
use super::*;
use crate::nats::scan::Log;

const SHARD: Shard = Shard(0);
const ALL: Timestamp = Timestamp(u64::MAX);

/// The id of a run that is old enough to be carried, and young enough to be opened.
fn old() -> RunId {
    let at = ::nats::now().0 - 60_000;
    RunId::new(SHARD, uuid::Builder::from_unix_timestamp_millis(at, &rand::random()).into_uuid())
}

fn order(run: RunId, fence: Fence) -> Order {
    Order { run, carried: 0, fence, expires: ::nats::now().after(Duration::from_secs(3600)) }
}

async fn open(journal: &Journal, run: RunId) -> u64 {
    let opened = Event::RunOpened(RunOpened { deadline: ALL, open: true, ..RunOpened::default() });
    journal.append(run, &[opened], None, 0).await.expect("stored")
}

/// Adds entries to calls of the run, each after an entry of another run.
pub(crate) async fn add(journal: &Journal, run: RunId, places: &mut Vec<u64>, entries: u16) {
    for number in 0..entries {
        journal.append(fresh(), &[Event::RunClosed], None, 0).await.expect("stored");
        let call = CallIndex(number % 3);
        let subject = Subject { run, place: SubjectKind::Control { call } }.to_string();
        let last = journal.last_on(&subject).await.expect("the broker is there").map_or(0, |last| last.sequence);
        places.push(journal.append(run, &[Event::CallDropped { call }], None, last).await.expect("stored"));
    }
}

pub(crate) async fn drop_before(journal: &Journal, sequence: u64) {
    let log = journal.now().await.expect("the broker is there");
    journal.drop_before(sequence, &log).await.expect("it can be removed");
}

/// The log, and a run of it that was carried, and went on when so many of its entries had left the log.
pub(crate) async fn left(journal: &Journal, leaves: usize) -> (Log, RunId) {
    let (run, fence) = (old(), journal.fence(SHARD, 1).await.expect("it is written"));
    let mut places = vec![open(journal, run).await];
    add(journal, run, &mut places, 3).await;
    journal.carry(order(run, fence), ALL).await.expect("it is carried");
    drop_before(journal, places.get(leaves).map_or(places[3] + 1, |place| *place)).await;
    add(journal, run, &mut places, 1).await;
    (Log::new(&journal.broker, Journals::new(&journal.broker, None)), run)
}

/// A run that is carried while the log has nothing more of it, its entries, and the position of a barrier of its shard
/// before it.
pub(crate) async fn gone(journal: &Journal) -> (RunId, Vec<u64>, u64) {
    let mark = journal.mark(SHARD, Pace::Soon).await.expect("it is stored");
    let (run, fence) = (old(), journal.fence(SHARD, 1).await.expect("it is written"));
    let mut places = vec![open(journal, run).await];
    add(journal, run, &mut places, 2).await;
    journal.carry(order(run, fence), ALL).await.expect("it is carried");
    journal.mark(SHARD, Pace::Soon).await.expect("it is stored");
    drop_before(journal, places[2] + 1).await;
    (run, places, mark)
}

async fn sequences(mut pages: RunPages) -> Vec<u64> {
    let mut read = Vec::new();
    loop {
        let page = pages.next_known().await.expect("it can be read");
        assert!(!page.is_cut, "nothing is missing");
        read.extend(page.entries.iter().map(|entry| entry.sequence));
        if page.last {
            return read;
        }
    }
}

#[tokio::test]
async fn a_carried_run_is_read_whole_and_in_order_whatever_of_it_has_left_the_log() {
    let (_server, journal) = journal().await;
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    for bytes in [1 << 20, 150] {
        let (run, pages) = (old(), |run| RunPages::new(journal.clone(), run, bytes));
        let mut places = vec![open(&journal, run).await];
        add(&journal, run, &mut places, 6).await;
        let mut begun = pages(run);
        let first = begun.next(places[6]).await.expect("it can be read");
        // Carried twice, the second time with more.
        for leaves in [0, 3, 7] {
            let through = *places.last().expect("it has entries");
            assert_eq!(journal.carry(order(run, fence), ALL).await.expect("it is carried").through, through);
            drop_before(&journal, places[0].max(places[leaves.min(places.len() - 1)])).await;
            assert_eq!(sequences(pages(run)).await, places, "{bytes} bytes, {leaves} have left");
            add(&journal, run, &mut places, 5).await;
            assert_eq!(sequences(pages(run)).await, places, "{bytes} bytes, {leaves} have left");
            let known = journal.known(run).await.expect("it can be read");
            assert_eq!((known.first, known.last), (places[0], *places.last().expect("it has entries")));
            assert!(known.run.opened_at().is_some());
            assert!(!journal.is_absent(run).await.expect("it is known"));
            assert_eq!(journal.last_of_run(run).await.expect("it is known"), known.last);
        }
        // A reader goes on where it was.
        assert_eq!(journal.carry(order(run, fence), ALL).await.expect("it is carried").through, places[21]);
        drop_before(&journal, places[21] + 1).await;
        let read = places.iter().position(|place| *place == first.through).expect("an entry");
        assert_eq!(sequences(begun).await, places[read + 1..], "{bytes} bytes");
        assert_eq!(journal.last_of_run(run).await.expect("it is known"), places[21]);
        let page = journal.carried_page(run, places[9]).await.expect("it can be read");
        assert_eq!((page.carried, page.entries[0].sequence), (places[21], places[10]));
    }
}

/// Two readers that have read all of a run: one expects the next entry, the other asks what there is.
#[tokio::test]
async fn a_reader_that_has_read_all_goes_on_after_the_run_was_carried_and_has_left_the_log() {
    let (_server, journal) = journal().await;
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    for leaves in [2, 3, 4] {
        let run = old();
        let mut places = vec![open(&journal, run).await];
        add(&journal, run, &mut places, 3).await;
        let [mut expects, mut asks] = [(); 2].map(|()| RunPages::new(journal.clone(), run, PAGE_BYTES));
        assert_eq!(expects.next(places[3]).await.expect("it can be read").through, places[3]);
        assert!(asks.next_known().await.expect("it can be read").last);
        journal.carry(order(run, fence), ALL).await.expect("it is carried");
        drop_before(&journal, places.get(leaves).map_or(places[3] + 1, |place| *place)).await;
        add(&journal, run, &mut places, 1).await;
        let next = expects.next(places[4]).await.expect("it can be read");
        assert_eq!((next.is_cut, next.through, next.entries.len()), (false, places[4], 1), "{leaves} have left");
        assert_eq!(sequences(asks).await, places[4..], "{leaves} have left");
    }
}

#[tokio::test]
async fn an_append_expects_nothing_in_place_of_what_has_left_the_log_and_still_notices_what_came_since() {
    let (_server, journal) = journal().await;
    let other = Journal::new(&journal.broker, Partition::FIRST);
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    let run = old();
    let mut places = vec![open(&journal, run).await];
    add(&journal, run, &mut places, 1).await;
    let carried = journal.carry(order(run, fence), ALL).await.expect("it is carried").through;
    let call = CallIndex(0);
    let known = other.known(run).await.expect("it can be read");
    assert_eq!(known.revision(&SubjectKind::Control { call }), 0, "the fold does not know the call");
    let expected = Expected { entry: places[1], carried, known_at: None };
    drop_before(&journal, places[1] + 1).await;
    let events = [Event::CallDropped { call }];
    // It has not noticed that the log begins later.
    let stored = other.append(run, &events, None, expected).await.expect("stored");
    let late = other.append(run, &events, None, expected).await;
    assert!(matches!(late, Err(crate::nats::journal::AppendError::Conflict)), "{late:?}");
    let known = other.known(run).await.expect("it can be read");
    assert_eq!((known.last, known.carried), (stored, carried));
}

#[tokio::test]
async fn an_owner_that_was_replaced_carries_nothing_nor_does_what_it_sent_before() {
    let (_server, journal) = journal().await;
    let run = old();
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    assert_eq!(journal.fence(SHARD, 1).await.expect("it is there"), fence);
    let again = journal.fence_again(SHARD, 1).await.expect("it is written");
    let opened = open(&journal, run).await;
    assert!(journal.carry(order(run, fence), ALL).await.is_err(), "it was sent before the fence");
    let next = journal.fence(SHARD, 2).await.expect("it is written");
    assert!(journal.carry(order(run, again), ALL).await.is_err(), "another owner has the shard");
    let late = journal.fence_again(SHARD, 1).await.expect("it can be asked for");
    assert!(journal.carry(order(run, late), ALL).await.is_err(), "the later owner's stays");
    assert_eq!(journal.carried_to(run).await.expect("it is known"), 0);
    assert_eq!(journal.carry(order(run, next), ALL).await.expect("it is carried").through, opened);
    assert_eq!(journal.carried_runs(SHARD).await.expect("they are listed"), [run]);
}

#[tokio::test]
async fn what_was_carried_long_ago_is_known_although_the_part_has_grown_since() {
    let (_server, journal) = journal().await;
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    let run = old();
    let mut places = vec![open(&journal, run).await];
    let carry = async || journal.carry(order(run, fence), ALL).await.expect("it is carried");
    assert_eq!(carry().await, CarriedTo { through: places[0], settled: 0 });
    let stored = journal.last_part(run).await.expect("it can be read").expect("it is there");
    add(&journal, run, &mut places, 1).await;
    assert_eq!(carry().await, CarriedTo { through: places[1], settled: 0 });
    let grown = journal.last_part(run).await.expect("it can be read").expect("it is there");
    let first = Some((places[0], stored.stored_at));
    assert_eq!((grown.part.settled, grown.part.settling), (0, first));
    let times = [stored.stored_at, grown.stored_at].map(|at| at.after(SETTLED_BEFORE));
    let settled = |stored: &StoredPart| times.map(|at| (stored.settled(at), stored.settling(at)));
    assert_eq!(settled(&stored), [(places[0], None), (places[0], None)]);
    // Otherwise a run with steady entries would keep the log.
    assert_eq!(settled(&grown), [(places[0], Some((places[1], grown.stored_at))), (places[1], None)]);
    assert_eq!(grown.settled(times[0].before(Duration::from_millis(1))), 0);
    // As if it had grown long before.
    let aged = CarriedPart { settled: places[0], settling: None, ..grown.part };
    journal.put_part(order(run, fence), 0, aged.encode()).await.expect("stored");
    for _ in 0..2 {
        add(&journal, run, &mut places, 1).await;
        let through = *places.last().expect("it has entries");
        assert_eq!(carry().await, CarriedTo { through, settled: places[0] });
    }
    drop_before(&journal, places[1]).await;
    let known = journal.known(run).await.expect("it can be read");
    assert_eq!((known.carried, known.settled), (places[3], places[0]), "so the next owner knows it");
}

#[tokio::test]
async fn a_part_that_an_old_server_of_the_broker_tells_is_not_written_again() {
    let (_server, journal) = journal().await;
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    let run = old();
    let mut places = vec![open(&journal, run).await];
    journal.carry(order(run, fence), ALL).await.expect("it is carried");
    let before = journal.stored_part(run, 0).await.expect("it can be read").expect("it is there").part;
    add(&journal, run, &mut places, 2).await;
    let carried = journal.carry(order(run, fence), ALL).await.expect("it is carried").through;
    drop_before(&journal, places[2] + 1).await;
    add(&journal, run, &mut places, 1).await;
    // As if a server answered that has not heard of what was stored since.
    journal.put_part(order(run, fence), 0, before.encode()).await.expect("stored");
    let known = Order { carried, ..order(run, fence) };
    journal.carry(known, ALL).await.expect_err("entries would be missing");
    let kept = journal.stored_part(run, 0).await.expect("it can be read").expect("it is there").part;
    assert_eq!(kept.through(), places[0], "nothing is written");
}

#[tokio::test]
async fn all_of_a_run_that_has_ended_is_carried_if_its_beginning_is_and_nothing_of_one_that_is_erased() {
    let (_server, journal) = journal().await;
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    let (whole, never) = (old(), old());
    for run in [whole, never] {
        let mut places = vec![open(&journal, run).await];
        if run == whole {
            journal.carry(order(run, fence), ALL).await.expect("it is carried");
        }
        add(&journal, run, &mut places, 2).await;
        journal.carry_ended(order(run, fence), places[2]).await.expect("it is carried");
        let through = if run == whole { places[2] } else { 0 };
        assert_eq!(journal.carried_to(run).await.expect("it is known"), through);
    }
    drop_before(&journal, journal.now().await.expect("the broker is there").last).await;
    assert!(journal.known(whole).await.expect("it can be read").run.opened_at().is_some());
    assert!(journal.known(never).await.expect("it can be read").run.opened_at().is_none());
    let last = journal.last_of_run(whole).await.expect("it is known");
    journal.erase(whole, last).await.expect("it can be erased");
    assert_eq!(journal.carried_to(whole).await.expect("it is known"), 0);
    assert!(journal.is_absent(whole).await.expect("it is known"));
}

#[tokio::test]
async fn a_long_run_is_carried_in_parts_of_which_those_behind_a_restored_log_are_forgotten() {
    let (_server, journal) = journal().await;
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    let run = old();
    let mut places = vec![open(&journal, run).await];
    for _ in 0..7 {
        let reason = "x".repeat(200 << 10);
        let last = *places.last().expect("it has entries");
        let events = [Event::RunCancelRequested { reason }];
        places.push(journal.append(run, &events, None, last).await.expect("stored"));
    }
    journal.carry(order(run, fence), ALL).await.expect("it is carried");
    let parts = async |number| {
        let stored = journal.stored_part(run, number).await.expect("it can be read");
        stored.map(|stored| stored.part)
    };
    assert!(parts(3).await.is_some() && parts(4).await.is_none());
    assert_eq!(sequences(RunPages::new(journal.clone(), run, PAGE_BYTES)).await, places);
    drop_before(&journal, places[7]).await;
    // As if the log had been restored from a copy that was made after the fourth entry.
    let known = journal.carried_through(run, fence, places[3]).await.expect("it can be read");
    assert_eq!((known.last, known.carried), (places[3], places[3]));
    assert_eq!(journal.carried_to(run).await.expect("it is known"), places[3]);
}

#[tokio::test]
async fn what_is_carried_behind_a_restored_log_is_forgotten_also_if_that_has_the_opening() {
    let (_server, journal) = journal().await;
    // Of an owner of before the restore, whose bucket of leases had counted further.
    let stale = [77_u64.to_be_bytes(), 1_u64.to_be_bytes()].concat();
    journal.broker.carried.put(format!("fence.{SHARD}"), stale.into()).await.expect("stored");
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    let run = old();
    let mut places = vec![open(&journal, run).await];
    add(&journal, run, &mut places, 3).await;
    journal.carry(order(run, fence), ALL).await.expect("it is carried");
    let known = journal.carried_through(run, fence, places[1]).await.expect("it can be read");
    assert_eq!((known.first, known.last), (places[0], places[1]));
    assert_eq!(journal.carried_to(run).await.expect("it is known"), places[1]);
    journal.carried_through(run, fence, places[0] - 1).await.expect("it can be read");
    assert_eq!(journal.carried_to(run).await.expect("it is known"), 0);
}

#[tokio::test]
async fn nothing_stays_carried_of_a_run_that_ended_and_cannot_be_carried_whole() {
    let (_server, journal) = journal().await;
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    let (lost, lagging) = (old(), old());
    for run in [lost, lagging] {
        let mut places = vec![open(&journal, run).await];
        journal.carry(order(run, fence), ALL).await.expect("it is carried");
        add(&journal, run, &mut places, 2).await;
        if run == lost {
            drop_before(&journal, places[2] + 1).await;
            journal.carry_ended(order(run, fence), places[2]).await.expect("it is known");
            assert_eq!(journal.carried_to(run).await.expect("it is known"), 0);
        } else {
            // Of an entry that the server which answers does not have.
            let carried = journal.carry_ended(order(run, fence), places[2] + 1000).await;
            assert!(carried.is_err() && journal.carried_to(run).await.expect("it is known") > 0);
        }
    }
}

#[tokio::test]
async fn a_run_that_the_history_lacks_stays_carried_while_the_bucket_is_full_and_the_log_has_room_for_the_rest() {
    let (_server, journal) = journal().await;
    let folder = tempfile::tempdir().expect("a folder");
    let location = HistoryLocation::Folder(folder.path().to_owned());
    let kept = Duration::from_secs(25 * 3600);
    let journal = journal.with_history(Some(History::new(&location, kept).expect("a folder")));
    let (run, fence) = (old(), journal.fence(SHARD, 1).await.expect("it is written"));
    let mut places = vec![open(&journal, run).await];
    journal.carry(order(run, fence), ALL).await.expect("it is carried");
    add(&journal, run, &mut places, 2).await;
    drop_before(&journal, places[1]).await;
    let info = journal.broker.carried.stream.get_info().await.expect("the bucket is there");
    let mut config = info.config;
    let room = std::mem::replace(&mut config.max_bytes, i64::try_from(info.state.bytes).expect("it is small"));
    journal.broker.context.update_stream(&config).await.expect("it may be changed");
    let refused = journal.carry_ended(order(run, fence), places[2]).await;
    assert!(matches!(refused, Err(CarryError::Full)), "{refused:?}");
    assert_eq!(sequences(RunPages::new(journal.clone(), run, PAGE_BYTES)).await, places, "it can be read");
    config.max_bytes = room;
    journal.broker.context.update_stream(&config).await.expect("it may be changed");
    journal.carry_ended(order(run, fence), places[2]).await.expect("there is room");
    assert_eq!(journal.carried_to(run).await.expect("it is known"), places[2]);
}

fn listed(run: RunId, places: &[u64]) -> Listed {
    Listed { run, first: places[0], last: places[places.len() - 1] }
}

/// The run at an entry, read alone.
async fn alone(journal: &Journal, run: RunId, last: u64) -> (Arc<run::Run>, u64, u64) {
    let known = journal.known_through(run, last).await.expect("it can be read");
    (known.run, known.first, known.last)
}

#[tokio::test]
async fn runs_that_are_read_together_are_as_each_read_alone_or_left_out() {
    let (_server, journal) = journal().await;
    let (one, two, other) = (fresh(), fresh(), fresh());
    open(&journal, other).await;
    let mut of_one = vec![open(&journal, one).await];
    let mut of_two = vec![open(&journal, two).await];
    add(&journal, one, &mut of_one, 3).await;
    add(&journal, two, &mut of_two, 2).await;
    add(&journal, one, &mut of_one, 1).await;
    // The last entry of one of them follows the snapshot that lists it.
    let runs = [listed(one, &of_one[..4]), listed(two, &of_two)];
    let mut read = journal.together(SHARD, &runs).await.expect("they can be read");
    read.sort_by_key(|known| known.first);
    for (known, listed) in read.iter().zip(&runs) {
        let is = (Arc::clone(&known.run), known.first, known.last);
        assert_eq!(is, alone(&journal, listed.run, listed.last).await);
    }
    assert_eq!(read.len(), 2);
    let ids = |read: Vec<Known>| read.iter().map(|known| known.run.id()).collect::<Vec<_>>();
    let wrong = [Listed { first: of_one[0] - 1, ..runs[0] }, runs[1]];
    assert_eq!(ids(journal.together(SHARD, &wrong).await.expect("they can be read")), [two], "the first one differs");
    let lacks = [runs[0], Listed { last: of_two[2] + 1, ..runs[1] }];
    assert_eq!(ids(journal.together(SHARD, &lacks).await.expect("they can be read")), [one], "the last one differs");
    drop_before(&journal, of_one[0] + 1).await;
    assert!(
        journal.together(SHARD, &runs).await.expect("they can be read").is_empty(),
        "the log has lost its beginning"
    );
}

#[tokio::test]
async fn runs_that_are_carried_whole_are_read_together_and_those_that_went_on_are_left() {
    let (_server, journal) = journal().await;
    let fence = journal.fence(SHARD, 1).await.expect("it is written");
    let (mut wanted, mut expected) = (HashMap::new(), Vec::new());
    for number in 0..5 {
        let run = old();
        let mut places = vec![open(&journal, run).await];
        journal.carry(order(run, fence), ALL).await.expect("it is carried");
        add(&journal, run, &mut places, number).await;
        if number < 4 {
            // Its part grows, and thereby moves behind the others.
            journal.carry(order(run, fence), ALL).await.expect("it is carried");
            expected.push((alone(&journal, run, places[places.len() - 1]).await, places[places.len() - 1]));
        }
        wanted.insert(run, Listed { first: 0, ..listed(run, &places) });
    }
    let in_log = wanted.values().map(|listed| listed.last).max().expect("some");
    let mut read = Vec::new();
    journal.carried_together(SHARD, &mut wanted, |known| read.push(known)).await.expect("they can be read");
    read.sort_by_key(|known| known.first);
    let read: Vec<_> = read.into_iter().map(|known| ((known.run, known.first, known.last), known.carried)).collect();
    assert_eq!(read, expected);
    assert_eq!(wanted.values().map(|listed| listed.last).collect::<Vec<_>>(), [in_log], "the log has the rest of it");
}
