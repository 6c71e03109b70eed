//! How a reader joins log and feed, with a real broker and a feed driven by hand.

use futures::FutureExt as _;
use run::{Event, Timestamp};

use super::behind::DOUBT_LONGEST;
use super::*;
use crate::nats::journal::tests::carried::drop_before;
use crate::nats::journal::tests::{fresh, journal};
use crate::owner::scripted::{ByHand, Feed};

const PATIENCE: Duration = Duration::from_secs(10);

struct Watched {
    server: local::Broker,
    journal: Journal,
    source: Source,
    feed: Feed,
    last: u64,
}

fn events() -> Vec<Event> {
    vec![Event::RunCancelRequested { reason: "any event will do".to_owned() }]
}

impl Watched {
    /// A run with one entry, which the log's leader names as its last, and which the reader has.
    async fn of_one_entry() -> Self {
        let (server, journal) = journal().await;
        let (ledger, mut by_hand) = ByHand::new();
        let (run, live) = (fresh(), journal.clone());
        let first = journal.append(run, &events(), None, 0).await.expect("stored");
        let source = Source::new(live, ledger, run, Behind::Unknown).await.expect("the ledger is there");
        let feed = by_hand.joined().await;
        let mut watched = Self { server, journal, source, feed, last: first };
        assert_eq!(watched.next().await, first);
        watched
    }

    async fn stored(&mut self) -> u64 {
        self.last = self.journal.append(self.source.run, &events(), None, self.last).await.expect("stored");
        self.last
    }

    fn fed(&self, sequence: u64) {
        self.feed.brings(Entry { sequence, at: Timestamp(0), not_after: None, hooked: false, events: events() });
    }

    async fn next(&mut self) -> u64 {
        let next = tokio::time::timeout(PATIENCE, self.source.next()).await.expect("it comes in time");
        next.expect("the log can be read").sequence
    }
}

#[tokio::test]
async fn entries_between_the_leaders_word_and_the_feeds_first_are_not_missed() {
    let mut watched = Box::pin(Watched::of_one_entry()).await;
    // For a leader that was replaced without knowing it, the first entry was the last; the feed began after the second.
    let (second, third) = (watched.stored().await, watched.stored().await);
    watched.fed(third);
    assert_eq!([watched.next().await, watched.next().await], [second, third]);
    // From there on the feed is trusted.
    let fourth = watched.stored().await;
    watched.fed(third);
    watched.fed(fourth);
    assert_eq!(watched.next().await, fourth);
}

#[tokio::test]
async fn the_last_entries_of_a_run_come_though_the_leader_did_not_know_them_and_the_feed_is_silent() {
    let mut watched = Box::pin(Watched::of_one_entry()).await;
    let second = watched.stored().await;
    assert_eq!(watched.next().await, second);
}

/// Lets time pass for everything that waits.
async fn later(span: Duration) {
    tokio::time::pause();
    tokio::time::advance(span).await;
    tokio::time::resume();
}

/// A run with two entries, which the reader has, and whose feed it trusts.
async fn trusting() -> Watched {
    let mut watched = Box::pin(Watched::of_one_entry()).await;
    let second = watched.stored().await;
    watched.fed(second);
    assert_eq!(watched.next().await, second);
    assert!(matches!(watched.source.behind, Behind::Nothing));
    watched
}

#[tokio::test]
async fn the_last_entry_of_a_run_comes_though_a_feed_that_is_trusted_missed_it() {
    let mut watched = Box::pin(trusting()).await;
    for _ in 0..2 {
        let missed = watched.stored().await;
        let soon = tokio::time::timeout(Duration::from_millis(300), watched.source.next()).await;
        assert!(soon.is_err(), "the broker is not asked for each");
        later(DOUBT_LONGEST).await;
        assert_eq!(watched.next().await, missed);
    }
}

#[tokio::test]
async fn a_reader_of_a_run_that_left_the_log_before_its_feed_had_the_end_does_not_wait_for_ever() {
    let mut watched = Box::pin(trusting()).await;
    watched.stored().await;
    let after = watched.journal.append(fresh(), &events(), None, 0).await.expect("stored");
    drop_before(&watched.journal, after).await;
    let soon = tokio::time::timeout(Duration::from_millis(300), watched.source.next()).await;
    assert!(soon.is_err(), "nothing tells it");
    later(DOUBT).await;
    let told = tokio::time::timeout(PATIENCE, watched.source.next()).await.expect("it is told");
    assert!(matches!(told, Err(WatchError::Gone(_))), "{told:?}");
}

#[tokio::test]
async fn a_reader_that_doubts_its_feed_waits_on_while_the_broker_is_away() {
    let mut watched = Box::pin(trusting()).await;
    let third = watched.stored().await;
    watched.fed(third);
    assert_eq!(watched.next().await, third);
    let soon = tokio::time::timeout(Duration::from_millis(300), watched.source.next()).await;
    assert!(soon.is_err(), "nothing is stored");
    watched.server.kill().await;
    later(DOUBT).await;
    // Longer than a read is tried for.
    let meanwhile = tokio::time::timeout(PATIENCE + Duration::from_secs(5), watched.source.next()).await;
    assert!(meanwhile.is_err(), "the feed may be all right: {meanwhile:?}");
    assert!(matches!(watched.source.behind, Behind::Presumably { .. }), "{:?}", watched.source.behind);
    watched.server.restart().await.expect("it starts again");
    let missed = watched.stored().await;
    later(DOUBT_LONGEST).await;
    assert_eq!(watched.next().await, missed);
}

fn opened() -> Vec<Event> {
    vec![Event::RunOpened(run::RunOpened { deadline: Timestamp(u64::MAX), ..run::RunOpened::default() })]
}

#[tokio::test]
async fn a_new_runs_opening_is_told_of_once_it_is_heard_and_then_read_as_ever() {
    let (_server, journal) = journal().await;
    let (ledger, mut by_hand) = ByHand::new();
    let run = fresh();
    let mut reader = Reader::of_new_run(journal, ledger, run, FloorPolicy::Arrival).await.expect("it is there");
    // The feed's position is not reported yet, and is not needed.
    let (feed, _standing) = by_hand.asked().await;
    assert_eq!(reader.opening().now_or_never(), None, "there is nothing yet");
    feed.brings(Entry { sequence: 7, at: Timestamp(0), not_after: None, hooked: false, events: opened() });
    assert_eq!(reader.opening().now_or_never(), Some(7), "it is waited for once, so nothing is lost in between");
    assert!(reader.run().opened_at().is_none(), "no event was emitted yet");
    let said = tokio::time::timeout(PATIENCE, reader.next()).await.expect("it comes in time").expect("it can be read");
    assert!(said.is_some_and(|events| !events.is_empty()) && reader.run().opened_at().is_some());
}

#[tokio::test]
async fn an_entry_that_opens_nothing_does_not_pass_for_the_opening_and_what_stands_before_it_is_read() {
    let (_server, journal) = journal().await;
    let (ledger, mut by_hand) = ByHand::new();
    let run = fresh();
    let first = journal.append(run, &opened(), None, 0).await.expect("stored");
    let second = journal.append(run, &events(), None, first).await.expect("stored");
    let mut source = Source::new(journal, ledger, run, Behind::Unopened).await.expect("it is there");
    let feed = by_hand.joined().await;
    feed.brings(Entry { sequence: second, at: Timestamp(0), not_after: None, hooked: false, events: events() });
    assert_eq!(tokio::time::timeout(PATIENCE, source.opening()).await, Ok(None));
    let read = [source.next().await, source.next().await].map(|entry| entry.expect("the log can be read").sequence);
    assert_eq!(read, [first, second]);
}

#[tokio::test]
async fn what_the_ledger_knows_of_a_run_is_not_read_and_the_feed_goes_on_behind_it() {
    let (_server, journal) = journal().await;
    let (ledger, mut by_hand) = ByHand::new();
    let run = fresh();
    let entry = |sequence| Entry { sequence, at: Timestamp(0), not_after: None, hooked: false, events: events() };
    let mut source = Source::new(journal, ledger, run, Behind::Unknown).await.expect("the ledger is there");
    let (feed, standing) = by_hand.asked().await;
    let before = Before::Entries(vec![Arc::new(entry(7)), Arc::new(entry(9))]);
    standing.send(Standing::Following(before)).expect("the reader waits for the answer");
    feed.brings(entry(9));
    feed.brings(entry(12));
    // None of these entries is in the log, so a reader that queried the broker would not get them.
    for expected in [7, 9, 12] {
        let next = tokio::time::timeout(PATIENCE, source.next()).await.expect("it comes in time");
        assert_eq!(next.expect("it is known").sequence, expected);
    }
    assert!(matches!(source.behind, Behind::Nothing));
}
