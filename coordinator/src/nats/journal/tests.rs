//! Appends with a real broker.

use futures::FutureExt as _;
use nats::Credentials;
use run::Shard;

use std::sync::atomic::Ordering::Relaxed;

use run::{Event, Partition};

use super::append::*;
use super::*;
use crate::nats::setup::LogOptions;
use crate::nats::snapshots::Snapshots;

pub(crate) use super::carried::tests as carried;

pub(crate) async fn journal() -> (local::Broker, Journal) {
    let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let log = LogOptions { bytes_max: 4 << 20, ..LogOptions::default() };
    let broker = Broker::connect(&server.url(), &Credentials::default(), &log).await.expect("it can be set up");
    let journal = Journal::new(&broker, Partition::FIRST);
    (server, journal)
}

/// The snapshots at the same broker.
pub(crate) fn snapshots(journal: &Journal) -> Snapshots {
    Snapshots::new(&journal.broker)
}

pub(crate) fn fresh() -> RunId {
    RunId::new(Shard(0), uuid::Uuid::now_v7())
}

/// How many entries the log holds.
pub(super) async fn count(journal: &Journal) -> u64 {
    let stream = journal.broker.context.get_stream(names::STREAM).await.expect("the log is there");
    stream.cached_info().state.messages
}

#[tokio::test]
async fn what_the_feed_brings_in_time_is_not_sent_again() {
    let (_server, journal) = journal().await;
    let id = fresh();
    let stored = journal.append_heard(id, &[Event::RunClosed], heard(&journal, id)).await.expect("stored");
    assert_eq!((stored, count(&journal).await), (1, 1));
    assert_eq!(behind_until(&journal), 0, "no append waited in vain");
}

/// 0 unless an append has waited for the feed in vain.
fn behind_until(journal: &Journal) -> u64 {
    journal.behind_until.load(Relaxed)
}

/// Replaces the feed by reads from the broker.
async fn heard(journal: &Journal, id: RunId) -> u64 {
    loop {
        let last = journal.last_of_run(id).await.expect("the log can be asked");
        if last > 0 {
            return last;
        }
    }
}

#[tokio::test]
async fn what_was_stored_and_is_not_heard_is_found_and_not_stored_twice_and_others_ask_at_once() {
    let (_server, journal) = journal().await;
    let append = || journal.append_heard(fresh(), &[Event::RunClosed], std::future::pending());
    let began = Instant::now();
    assert_eq!((append().await.expect("stored"), count(&journal).await), (1, 1));
    assert!(began.elapsed() >= HEARD_PATIENCE, "the feed had its time");
    let behind = behind_until(&journal);
    assert_eq!((append().await.expect("stored"), count(&journal).await), (2, 2));
    assert!(behind > 0 && behind_until(&journal) == behind, "no append waited for a feed that is known to be behind");
}

#[tokio::test]
async fn the_feed_is_listened_to_on_while_an_answer_is_asked_for() {
    let (mut server, journal) = journal().await;
    server.kill().await;
    let late = async {
        tokio::time::sleep(HEARD_PATIENCE * 2).await;
        7
    };
    assert_eq!(journal.append_heard(fresh(), &[Event::RunClosed], late).await.expect("it was heard"), 7);
}

#[tokio::test]
async fn what_cannot_be_stored_says_why_though_no_answer_was_asked_for_at_first() {
    let (_server, journal) = journal().await;
    let cancel = |bytes: usize| [Event::RunCancelRequested { reason: "x".repeat(bytes) }];
    let large = journal.append_heard(fresh(), &cancel(2 << 20), std::future::pending()).await;
    assert!(matches!(large, Err(AppendError::TooLarge)), "{large:?}");
    let mut stored = Ok(0);
    // More than the log has room for.
    for _ in 0..400 {
        let id = fresh();
        let (cancel, heard) = (cancel(15 << 10), heard(&journal, id));
        stored = journal.append_heard(id, &cancel, heard).await;
        if stored.is_err() {
            break;
        }
    }
    assert!(matches!(stored, Err(AppendError::Full { .. })), "{stored:?}");
}

#[tokio::test]
async fn only_so_many_openings_are_waited_for_and_none_that_is_large() {
    let (_server, journal) = journal().await;
    let append = |events: [Event; 1]| {
        let journal = journal.clone();
        async move { journal.append_heard(fresh(), &events, std::future::pending()).await }
    };
    let large = Event::RunCancelRequested { reason: "x".repeat(UNHEARD_BYTES_MAX) };
    assert_eq!(append([large]).await.expect("stored"), 1);
    let permits = journal.unheard.acquire_many(u32::try_from(UNHEARD_MAX).expect("few")).await.expect("it is open");
    assert_eq!(append([Event::RunClosed]).await.expect("stored"), 2);
    drop(permits);
    assert_eq!(behind_until(&journal), 0, "nothing was waited for");
    let waits = append([Event::RunClosed]);
    let mut waits = std::pin::pin!(waits);
    assert!(waits.as_mut().now_or_never().is_none());
    assert_eq!(journal.unheard.available_permits(), UNHEARD_MAX - 1);
    waits.await.expect("stored");
    assert_eq!(journal.unheard.available_permits(), UNHEARD_MAX);
}

#[tokio::test]
async fn a_broker_that_is_gone_leaves_nobody_waiting_without_an_end() {
    let (mut server, journal) = journal().await;
    server.kill().await;
    // More than the library buffers for a broker that is away.
    let mut appends = tokio::task::JoinSet::new();
    for _ in 0..3000 {
        let journal = journal.clone();
        appends.spawn(async move { journal.append_heard(fresh(), &[Event::RunClosed], std::future::pending()).await });
    }
    let all = tokio::time::timeout(APPEND_PATIENCE * 2, appends.join_all()).await.expect("each has its end");
    assert!(
        all.iter().all(|end| matches!(end, Err(AppendError::Unavailable(_) | AppendError::Unconfirmed { .. }))),
        "the broker is not there"
    );
}

#[tokio::test]
async fn what_does_not_fit_and_what_finds_no_room_are_told_apart_at_once() {
    let (_server, journal) = journal().await;
    let cancel = |bytes: usize| [Event::RunCancelRequested { reason: "x".repeat(bytes) }];
    let began = Instant::now();
    let large = journal.append(fresh(), &cancel(2 << 20), None, 0).await;
    assert!(matches!(large, Err(AppendError::TooLarge)), "{large:?}");
    let mut last = Ok(0);
    for _ in 0..10 {
        last = journal.append(fresh(), &cancel(512 << 10), None, 0).await;
    }
    assert!(matches!(last, Err(AppendError::Full { .. })), "{last:?}");
    assert!(began.elapsed() < APPEND_PATIENCE, "neither is tried again");
}

#[tokio::test]
async fn a_log_with_as_many_messages_as_it_may_hold_refuses_more_and_keeps_all() {
    let server = local::Broker::start(local::BrokerOptions::default(), |_| {}).await.expect("a broker starts");
    let log = LogOptions { bytes_max: 4 << 20, messages_max: Some(20), ..LogOptions::default() };
    let broker = Broker::connect(&server.url(), &Credentials::default(), &log).await.expect("it can be set up");
    let journal = Journal::new(&broker, Partition::FIRST);
    let began = Instant::now();
    for stored in 1..=20 {
        assert_eq!(journal.append(fresh(), &[Event::RunClosed], None, 0).await.expect("there is room"), stored);
    }
    let refused = journal.append(fresh(), &[Event::RunClosed], None, 0).await;
    assert!(matches!(refused, Err(AppendError::Full { is_certain: true })), "{refused:?}");
    assert!(began.elapsed() < APPEND_PATIENCE, "it is not tried again");
    let log = journal.now().await.expect("the log is there");
    assert_eq!((log.first, log.last), (1, 20), "nothing was discarded");
}

#[test]
fn a_tenant_whose_entries_are_as_small_as_they_get_has_no_more_of_the_messages_than_of_the_bytes() {
    let log = LogOptions::default();
    assert_eq!(counted_bytes(0) * log.messages_max().unsigned_abs(), log.bytes_max.unsigned_abs());
    assert_eq!(counted_bytes(10_000), 10_000 + ENTRY_BYTES, "large ones count by their bytes");
}

#[test]
fn a_page_that_lost_a_message_on_its_way_is_refused() {
    let naming = |before: &str| {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Last-Sequence", before);
        headers
    };
    assert!(follows(Some(&naming("7")), 7).is_ok());
    assert!(follows(None, 7).is_ok(), "a broker that names none is believed");
    let lost = follows(Some(&naming("9")), 7).expect_err("entry 9 is missing");
    assert!(lost.to_string().contains("entry 9 was lost on its way"), "{lost}");
}

/// A run with this many calls whose entries are between those of others, and the positions of its entries.
async fn scattered(journal: &Journal, calls: u16, rounds: usize) -> (RunId, Vec<u64>) {
    let id = fresh();
    let opened = Event::RunOpened(run::RunOpened { deadline: Timestamp(u64::MAX), ..run::RunOpened::default() });
    let mut places = vec![journal.append(id, &[opened], None, 0).await.expect("stored")];
    let mut last = vec![0; usize::from(calls)];
    for _ in 0..rounds {
        for (call, last) in (0..calls).zip(&mut last) {
            journal.append(fresh(), &[Event::RunClosed], None, 0).await.expect("stored");
            let events = [Event::CallDropped { call: run::CallIndex(call) }];
            *last = journal.append(id, &events, None, *last).await.expect("stored");
            places.push(*last);
        }
    }
    (id, places)
}

#[tokio::test]
async fn a_run_is_read_whole_and_in_order_however_many_subjects_and_pages_it_has() {
    let (_server, journal) = journal().await;
    for (calls, rounds, bytes) in [(1, 1, 1 << 20), (3, 20, 600), (1, 40, 200), (20, 3, 1 << 20), (20, 3, 500)] {
        let (id, places) = scattered(&journal, calls, rounds).await;
        let (mut pages, mut read, mut count) = (RunPages::new(journal.clone(), id, bytes), Vec::new(), 0);
        while pages.through() < *places.last().expect("it has entries") {
            let page = pages.next(*places.last().expect("it has entries")).await.expect("it can be read");
            read.extend(page.entries.iter().map(|entry| entry.sequence));
            count += 1;
        }
        assert_eq!(read, places, "{calls} calls, {rounds} rounds");
        assert!(bytes > 1000 || count > 3, "{count} pages of {bytes} bytes");
        assert!(pages.next(0).await.expect("it can be asked again").entries.is_empty());
        let mut pages = RunPages::new(journal.clone(), id, bytes);
        let mut known = Vec::new();
        loop {
            let page = pages.next_known().await.expect("it can be read");
            known.extend(page.entries.iter().map(|entry| entry.sequence));
            if page.last {
                break;
            }
        }
        assert_eq!(known, places, "{calls} calls, {rounds} rounds");
        assert!(pages.next_known().await.expect("it can be asked again").last);
        let after = journal.append(id, &[Event::RunClosed], None, places[0]).await.expect("stored");
        let page = pages.next(after).await.expect("it is read on");
        assert_eq!((page.through, page.entries.len(), page.last), (after, 1, true));
    }
}

#[tokio::test]
async fn a_run_that_leaves_while_it_is_read_is_read_on_if_nothing_is_missing_and_else_ends_there() {
    let (_server, journal) = journal().await;
    for is_missing in [false, true] {
        for is_erased in [false, true] {
            let (id, places) = scattered(&journal, 2, 20).await;
            let mut pages = RunPages::new(journal.clone(), id, 400);
            let first = pages.next(places[39]).await.expect("it can be read");
            let read = places.iter().position(|place| *place == first.through).expect("an entry");
            // All that was read but the last, or one more than was read.
            let leaves = if is_missing { read + 1 } else { read - 1 };
            if is_erased {
                journal.erase(id, places[leaves]).await.expect("it can be erased");
            } else {
                let log = journal.now().await.expect("the broker is there");
                journal.drop_before(places[leaves + 1], &log).await.expect("it can be removed");
            }
            let mut rest = Vec::new();
            let is_cut = loop {
                let page = pages.next_known().await.expect("the rest can be read");
                rest.extend(page.entries.iter().map(|entry| entry.sequence));
                if page.last {
                    break page.is_cut;
                }
            };
            assert_eq!(is_cut, is_missing, "erased: {is_erased}");
            assert_eq!(rest, if is_missing { &[] } else { &places[read + 1..] }, "erased: {is_erased}");
            assert!(journal.known(id).await.expect("it can be asked for").run.opened_at().is_none());
        }
    }
    assert!(journal.known(fresh()).await.expect("it can be asked for").run.opened_at().is_none());
}

#[tokio::test]
async fn whether_a_run_may_have_left_is_known_by_what_left_and_not_by_how_little_is_there() {
    let (_server, journal) = journal().await;
    let old = |minutes: u64| {
        let at = ::nats::now().0 - minutes * 60_000;
        RunId::new(Shard(0), uuid::Builder::from_unix_timestamp_millis(at, &rand::random()).into_uuid())
    };
    let (id, places) = scattered(&journal, 2, 2).await;
    journal.erase(id, u64::MAX - 1).await.expect("it can be erased");
    journal.mark(Shard(0), Pace::Soon).await.expect("stored");
    assert!(journal.may_have_left(old(10)).await.expect("it is known"), "an older release may have removed it");
    let log = journal.now().await.expect("the broker is there");
    let empty = LogNow { oldest: Timestamp(0), ..log };
    journal.begin_cuts(&empty).await.expect("it is stored");
    journal.begin_cuts(&log).await.expect("it is stored already");
    assert!(!journal.may_have_left(old(10)).await.expect("it is known"), "nothing but an erased run has left");
    journal.drop_before(places[3] + 1, &log).await.expect("it can be removed");
    assert!(journal.may_have_left(old(10)).await.expect("it is known"));
    let now = journal.now().await.expect("the broker is there");
    assert!(now.first > places[3], "{now:?}");
    let at = |time| journal.first_since(time, &now);
    assert_eq!(at(now.last_at).await.expect("it is found"), now.last);
    assert_eq!(at(now.last_at.after(Duration::from_secs(60))).await.expect("none is"), now.last + 1);
}

#[tokio::test]
async fn a_run_is_known_for_certain_when_a_server_answers_that_has_the_mark_behind_it() {
    let (_server, journal) = journal().await;
    let (id, places) = scattered(&journal, 2, 20).await;
    let last = *places.last().expect("it has entries");
    assert_eq!(journal.known_for_certain(id).await.expect("it can be read").last, last);
    let behind = count(&journal).await + 1;
    let mut pages = RunPages::new(journal.clone(), id, 400).behind(behind);
    let (page, mark) = tokio::join!(pages.next_known(), async {
        // Until then the server lacks entries that may belong to the run.
        tokio::time::sleep(LAG_PAUSE).await;
        journal.append(id, &[Event::RunClosed], None, places[0]).await.expect("stored")
    });
    assert_eq!(mark, behind);
    assert!(page.expect("it is read then").through >= places[0]);
}

#[tokio::test]
async fn a_run_is_erased_up_to_an_entry_however_many_it_has_and_nothing_else_with_it() {
    let (_server, journal) = journal().await;
    for (calls, rounds) in [(2, 4), (2, 300)] {
        let (id, places) = scattered(&journal, calls, rounds).await;
        let [.., before, last] = places[..] else { unreachable!("it has entries") };
        let all = count(&journal).await;
        journal.erase(id, before).await.expect("it can be erased");
        let left = journal.known(id).await.expect("it can be read");
        assert_eq!((left.last, left.run.opened_at()), (last, None), "{rounds}");
        assert_eq!(count(&journal).await, all + 1 - places.len() as u64, "{rounds}");
        journal.erase(id, last).await.expect("it can be erased");
        journal.erase(id, last).await.expect("it can be erased again");
        assert_eq!(count(&journal).await, all - places.len() as u64, "{rounds}");
    }
}

#[tokio::test]
async fn what_is_left_of_a_run_is_read_subject_by_subject_and_gone_is_told_from_lagging() {
    let (_server, journal) = journal().await;
    let (id, places) = scattered(&journal, 3, 4).await;
    let last = *places.last().expect("it has entries");
    let mark = journal.mark(id.shard(), Pace::Soon).await.expect("the log answers");
    let left = |last| journal.left_of_run(id, last, mark);
    assert_eq!(left(last).await.expect("it can be read").last, last);
    assert_eq!(left(places[7]).await.expect("it can be read").last, places[7], "no entry behind the asked one");
    journal.erase(id, places[9]).await.expect("it can be erased");
    assert_eq!(left(last).await.expect("the rest can be read").last, last);
    journal.erase(id, last).await.expect("it can be erased");
    let began = Instant::now();
    assert_eq!(left(last).await.expect("nothing is left").last, 0);
    assert!(began.elapsed() < READ_PATIENCE, "an entry that is gone is not waited for");
}
