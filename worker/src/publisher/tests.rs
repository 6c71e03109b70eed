//! Which entries are sent when, with a paused clock that advances only when nothing is left to do.

use std::cell::RefCell;
use std::rc::Rc;

use run::{AttemptNumber, CallIndex, Content, Nonce, limit};
use tokio::sync::oneshot;

use super::*;

type Acknowledge = oneshot::Sender<Result<(), Lost>>;

/// Entries as they were sent, each with the sender of its acknowledgement.
#[derive(Default)]
struct Sent(RefCell<Vec<(Vec<Event>, Option<Acknowledge>)>>);

impl Sent {
    fn acknowledge(&self, index: usize, with: Result<(), Lost>) {
        let sender = self.0.borrow_mut()[index].1.take().expect("it was not acknowledged yet");
        sender.send(with).expect("somebody waits for it");
    }

    fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// The chunks of an entry: the first one's number, and how many.
    fn chunks(&self, index: usize) -> Option<(u32, usize)> {
        self.0.borrow()[index].0.iter().find_map(|event| match event {
            Event::Output { first, chunks, .. } => Some((first.0, chunks.len())),
            _ => None,
        })
    }
}

fn publisher(from: u32) -> (Rc<Sent>, Publisher<impl Fn(Vec<Event>) -> Append>) {
    let sent = Rc::new(Sent::default());
    let attempt = AttemptId { call: CallIndex(0), number: AttemptNumber(1), nonce: Nonce(1) };
    let log = Rc::downgrade(&sent);
    let append = move |events| -> Append {
        let (sender, acknowledged) = oneshot::channel();
        if let Some(log) = log.upgrade() {
            log.0.borrow_mut().push((events, Some(sender)));
        }
        Box::pin(async move { acknowledged.await.unwrap_or(Err(Lost)) })
    };
    let pool = "main".parse().expect("a pool name");
    (sent, Publisher::new(attempt, pool, ChunkIndex(from), None, OutputCount::default(), append))
}

fn chunk(bytes: usize) -> Chunk {
    Chunk::Content { channel: String::new(), content: Content::Text("x".repeat(bytes)) }
}

#[tokio::test(start_paused = true)]
async fn the_first_chunk_goes_at_once_and_those_behind_it_go_together() {
    let (sent, mut publisher) = publisher(0);
    assert!(publisher.take(chunk(10)));
    publisher.send_if_ready();
    assert_eq!(sent.chunks(0), Some((0, 1)));
    for _ in 0..3 {
        assert!(publisher.take(chunk(10)));
        publisher.send_if_ready();
    }
    assert_eq!(sent.count(), 1, "they wait for company");
    let began = Instant::now();
    publisher.turn().await.expect("nothing is lost");
    assert_eq!(began.elapsed(), LINGER);
    assert_eq!(sent.chunks(1), Some((1, 3)));
}

#[tokio::test(start_paused = true)]
async fn what_waits_goes_as_soon_as_nothing_is_on_its_way() {
    let (sent, mut publisher) = publisher(0);
    for _ in 0..2 {
        assert!(publisher.take(chunk(10)));
        publisher.send_if_ready();
    }
    sent.acknowledge(0, Ok(()));
    let began = Instant::now();
    publisher.turn().await.expect("nothing is lost");
    assert!(began.elapsed() < LINGER);
    assert_eq!(sent.chunks(1), Some((1, 1)));
}

#[tokio::test(start_paused = true)]
async fn a_large_batch_does_not_wait_and_the_window_is_bounded() {
    let (sent, mut publisher) = publisher(0);
    for index in 0..WINDOW {
        assert!(publisher.has_room(), "{index}");
        assert!(publisher.take(chunk(BATCH_BYTES)));
        publisher.send_if_ready();
    }
    assert_eq!(sent.count(), WINDOW);
    assert!(!publisher.has_room());
    sent.acknowledge(5, Ok(()));
    publisher.turn().await.expect("nothing is lost");
    assert!(publisher.has_room());
}

#[tokio::test(start_paused = true)]
async fn the_end_waits_until_everything_before_it_is_stored() {
    let (sent, mut publisher) = publisher(0);
    assert!(publisher.take(chunk(10)));
    publisher.send_if_ready();
    assert!(publisher.take(chunk(10)));
    let log = Rc::clone(&sent);
    let end = publisher.end(AttemptOutcome::Cancelled);
    tokio::pin!(end);
    assert!(futures::poll!(&mut end).is_pending());
    assert_eq!(log.count(), 1, "the end is held back");
    log.acknowledge(0, Ok(()));
    assert!(futures::poll!(&mut end).is_pending());
    assert!(matches!(log.0.borrow()[1].0.as_slice(), [Event::Output { .. }, Event::AttemptEnded { chunks: 2, .. }]));
    log.acknowledge(1, Ok(()));
    assert_eq!(end.await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_goes_on_numbers_on() {
    let (sent, mut publisher) = publisher(7);
    assert!(publisher.take(chunk(10)));
    publisher.send_if_ready();
    assert_eq!(sent.chunks(0), Some((7, 1)));
    drop(publisher.end(AttemptOutcome::Cancelled));
}

#[tokio::test(start_paused = true)]
async fn that_stopping_was_delivered_goes_at_once_and_that_it_was_noticed_waits_for_the_end() {
    let (sent, mut publisher) = publisher(0);
    publisher.stopping(StopStage::Delivered);
    assert!(matches!(sent.0.borrow()[0].0.as_slice(), [Event::AttemptStopping { .. }]));
    publisher.stopping(StopStage::Acknowledged);
    assert_eq!(sent.count(), 1);
    sent.acknowledge(0, Ok(()));
    let end = publisher.end(AttemptOutcome::Cancelled);
    tokio::pin!(end);
    assert!(futures::poll!(&mut end).is_pending());
    let entries = sent.0.borrow();
    assert!(matches!(entries[1].0.as_slice(), [Event::AttemptStopping { .. }, Event::AttemptEnded { .. }]));
}

#[tokio::test(start_paused = true)]
async fn an_entry_that_is_lost_ends_the_attempt() {
    let (sent, mut publisher) = publisher(0);
    assert!(publisher.take(chunk(10)));
    publisher.send_if_ready();
    sent.acknowledge(0, Err(Lost));
    assert_eq!(publisher.turn().await, Err(Lost));
}

#[test]
fn more_output_than_an_attempt_may_have_is_not_taken() {
    let (_, mut publisher) = publisher(limit::CHUNKS_PER_ATTEMPT_MAX - 1);
    assert!(publisher.take(chunk(1)));
    assert!(!publisher.take(chunk(1)));
    let (_, mut other) = self::publisher(0);
    assert!(other.take(chunk(limit::OUTPUT_BYTES_PER_ATTEMPT_MAX - 5)));
    assert!(!other.take(chunk(6)));
    assert!(other.take(chunk(5)));
}
