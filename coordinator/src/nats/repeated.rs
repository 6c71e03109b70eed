//! Requests that are sent again while the broker does not answer, because a server, the request or its answer may be
//! lost.
//!
//! The earlier copies are still waited for, as long as their own requests last: an overloaded broker answers late, and
//! would never answer a reader that listens to the newest copy alone.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{LastRawMessageErrorKind, Stream};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use ::nats::append::PAUSE;

use super::journal::ReadError;

/// How long a read may take.
pub(crate) const READ_PATIENCE: Duration = Duration::from_secs(10);
/// How long the broker may take to answer a read before it is sent again, at first and at most. A server of three that
/// hangs may be asked every third time, and a takeover takes several reads one after the other.
const ANSWER_PATIENCE: Duration = Duration::from_millis(250);
const ANSWER_PATIENCE_LONGEST: Duration = Duration::from_secs(4);
/// As `ANSWER_PATIENCE`, for requests that cost the broker more: pages of many entries, lists, consumers. And for reads
/// of watchers while the broker answers none of them.
const LATER_PATIENCE: Duration = Duration::from_secs(1);
/// Watchers' reads of the log that have a turn, until they are answered or sent again. Others wait for theirs, so that
/// thousands of watchers that reconnect do not keep the broker from the calls of others. One read takes about 0.2 ms.
const READING_MAX: usize = 64;

/// Turns of watchers' reads of the log, and how soon they are answered.
#[derive(Debug)]
pub(crate) struct Turns {
    free: Semaphore,
    answers: Mutex<Answers>,
}

/// How soon reads are answered, estimated as TCP estimates the time of a round trip (RFC 6298). A run is read with many
/// requests, and each that any server may answer is lost with a third of the probability while one of three hangs: they
/// are sent again soon. An overloaded broker takes longer to answer, and gets most of them once.
#[derive(Debug, Default)]
struct Answers {
    mean: Option<Duration>,
    deviation: Duration,
    /// Since when reads have been sent without any answer.
    silent_since: Option<Instant>,
}

impl Answers {
    fn handle_sent(&mut self, now: Instant) {
        self.silent_since.get_or_insert(now);
    }

    fn handle_answer(&mut self, took: Duration) {
        (self.mean, self.deviation) = match self.mean {
            None => (Some(took), took / 2),
            Some(mean) => (Some(mean * 7 / 8 + took / 8), self.deviation * 3 / 4 + mean.abs_diff(took) / 4),
        };
        self.silent_since = None;
    }

    /// How long to wait before a read is sent again for the first time. If the broker stands still, few copies wait for
    /// it when it goes on.
    fn patience(&self, now: Instant) -> Duration {
        let is_silent = self.silent_since.is_some_and(|since| now - since >= LATER_PATIENCE);
        match self.mean {
            Some(mean) if !is_silent => (mean + mean.max(self.deviation * 4)).clamp(ANSWER_PATIENCE, LATER_PATIENCE),
            Some(_) | None => LATER_PATIENCE,
        }
    }
}

impl Turns {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How soon a request is sent again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace<'turns> {
    Soon,
    /// For a request that costs the broker more.
    Later,
    /// For watchers: as soon as their reads are usually answered, and each copy has a turn.
    InTurns(&'turns Turns),
}

impl Default for Turns {
    fn default() -> Self {
        Self { free: Semaphore::new(READING_MAX), answers: Mutex::default() }
    }
}

/// Sends a read to a stream again while it fails or is not answered soon, and returns the first answer. Each copy waits
/// for its turn behind others', and has it no longer than until the next copy: reads that are lost keep nobody from
/// theirs.
///
/// Every copy may be carried out, also after this returns. So it is only for what may be done again at any time.
pub(crate) async fn patiently<T, F>(
    again: &str,
    stream: &str,
    pace: Pace<'_>,
    read: impl Fn() -> F,
) -> Result<T, ReadError>
where
    F: Future<Output = Result<T, ReadError>>,
{
    let (mut copies, mut newest) = (FuturesUnordered::new(), 0_usize);
    let (turns, mut patience) = match pace {
        Pace::Soon => (None, ANSWER_PATIENCE),
        Pace::Later => (None, LATER_PATIENCE),
        Pace::InTurns(turns) => (Some(turns), Duration::ZERO),
    };
    let mut give_up = None;
    loop {
        newest += 1;
        let turn = match turns {
            Some(turns) => tokio::select! {
                biased;
                answer = answer_of(&mut copies, newest) => return answer,
                turn = turns.free.acquire() => turn.ok(),
            },
            None => None,
        };
        let give_up = *give_up.get_or_insert_with(|| Instant::now() + READ_PATIENCE);
        let number = newest;
        if let Some(turns) = turns {
            let (mut answers, now) = (turns.answers(), Instant::now());
            patience = patience.max(answers.patience(now));
            answers.handle_sent(now);
        }
        let (copy, sent) = (read(), Instant::now());
        copies.push(async move {
            let answer = copy.await;
            if let Some(turns) = turns.filter(|_| answer.is_ok()) {
                turns.answers().handle_answer(sent.elapsed());
            }
            (number, answer)
        });
        let answer = tokio::time::timeout(patience, answer_of(&mut copies, newest)).await;
        drop(turn);
        let is_silent = answer.is_err();
        let error = match answer.unwrap_or_else(|_| Err(ReadError::new(&"the broker does not answer"))) {
            Err(error) if Instant::now() < give_up => error,
            answer => return answer,
        };
        if is_silent && patience < LATER_PATIENCE {
            tracing::debug!(stream, %error, "{again}");
        } else {
            tracing::warn!(stream, %error, "{again}");
        }
        if !is_silent {
            tokio::time::sleep(PAUSE).await;
        }
        patience = (patience * 2).min(ANSWER_PATIENCE_LONGEST);
    }
}

/// The first answer, or the failure of the copy with this number: those before it were followed by another.
async fn answer_of<T, F>(copies: &mut FuturesUnordered<F>, newest: usize) -> Result<T, ReadError>
where
    F: Future<Output = (usize, Result<T, ReadError>)>,
{
    loop {
        match copies.next().await {
            Some((_, Ok(answer))) => return Ok(answer),
            Some((number, Err(error))) if number == newest => return Err(error),
            Some((_, Err(_))) => {}
            None => std::future::pending().await,
        }
    }
}

/// The last message on a subject of a stream, from its leader: a confirmed write is seen.
pub(crate) async fn last_message<I>(stream: &Stream<I>, subject: &str) -> Result<Option<StreamMessage>, ReadError> {
    match stream.get_last_raw_message_by_subject(subject).await {
        Ok(message) => Ok(Some(message)),
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
        Err(error) => Err(ReadError::new(&error)),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::future::{pending, ready};

    use futures::future::join_all;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_read_that_is_not_answered_soon_is_sent_again_and_not_without_an_end() {
        let asked = Cell::new(0);
        let read = || {
            asked.set(asked.get() + 1);
            let is_lost = asked.get() < 3;
            async move {
                if is_lost {
                    pending::<()>().await;
                }
                Ok(7)
            }
        };
        let began = Instant::now();
        assert_eq!(patiently("again", "ty-log", Pace::Soon, read).await.expect("the third is answered"), 7);
        assert_eq!(began.elapsed(), 3 * ANSWER_PATIENCE);
        let lost: Result<(), _> = patiently("again", "ty-log", Pace::Soon, pending).await;
        assert!(lost.expect_err("it is given up").to_string().contains("does not answer"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_to_an_earlier_copy_counts_and_its_failure_does_not() {
        let asked = Cell::new(0);
        let read = || {
            let copy = asked.replace(asked.get() + 1);
            async move {
                tokio::time::sleep(ANSWER_PATIENCE_LONGEST).await;
                Ok(copy)
            }
        };
        assert_eq!(patiently("again", "ty-log", Pace::Soon, read).await.expect("the first is answered"), 0);

        // Also while another copy waits for its turn.
        let (turns, began) = (Turns::default(), Instant::now());
        asked.set(0);
        let answer = patiently("again", "ty-log", Pace::InTurns(&turns), read);
        let others = async {
            let all = u32::try_from(READING_MAX).expect("it is small");
            let _all = turns.free.acquire_many(all).await.expect("it is not closed");
            pending::<()>().await;
        };
        tokio::select! {
            // The first copy has its turn, and the others are the next.
            biased;
            answer = answer => assert_eq!(answer.expect("the first is answered"), 0),
            () = others => unreachable!("they keep all turns"),
        }
        assert_eq!((asked.get(), began.elapsed()), (1, ANSWER_PATIENCE_LONGEST), "no other copy has had a turn");

        let asked = Cell::new(0);
        let read = || {
            let copy = asked.replace(asked.get() + 1);
            async move {
                // Fails while the second copy is waited for, which is answered within the time that it has.
                tokio::time::sleep(ANSWER_PATIENCE + ANSWER_PATIENCE / 2).await;
                if copy == 0 { Err(ReadError::new(&"of the first")) } else { Ok(copy) }
            }
        };
        assert_eq!(patiently("again", "ty-log", Pace::Soon, read).await.expect("the second is answered"), 1);
        assert_eq!(asked.get(), 2, "no copy is sent because an earlier one has failed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_watchers_read_is_sent_again_soon_if_others_are_answered_soon_and_late_if_late() {
        let (turns, sent) = (Turns::default(), RefCell::new(Vec::new()));
        let pace = Pace::InTurns(&turns);
        let answered = async |after: Duration| {
            let read = || async move {
                tokio::time::sleep(after).await;
                Ok(())
            };
            patiently("again", "ty-log", pace, read).await.expect("it is answered");
        };
        let lost = || {
            sent.borrow_mut().push(Instant::now());
            pending::<Result<(), ReadError>>()
        };
        // While one server hangs, the others answer other reads.
        let copies = async |answers_after: Duration| {
            for _ in 0..50 {
                answered(answers_after).await;
            }
            sent.borrow_mut().clear();
            let began = Instant::now();
            let others = async {
                while began.elapsed() < READ_PATIENCE {
                    answered(answers_after).await;
                }
            };
            let (read, ()) = tokio::join!(patiently("again", "ty-log", pace, lost), others);
            read.expect_err("it is given up");
            let within = |at: &&Instant| **at - began < LATER_PATIENCE;
            sent.borrow().iter().filter(within).count()
        };
        assert_eq!(copies(Duration::from_millis(2)).await, 3, "at once, and after 250 and 750 ms");
        assert_eq!(copies(Duration::from_millis(900)).await, 1, "others are answered after 900 ms");
    }

    #[tokio::test(start_paused = true)]
    async fn few_copies_of_watchers_reads_wait_for_a_broker_that_stands_still() {
        let (turns, sent) = (Turns::default(), Cell::new(0));
        let pace = Pace::InTurns(&turns);
        for _ in 0..10 {
            patiently("again", "ty-log", pace, || ready(Ok(()))).await.expect("it is answered");
        }
        let lost = || {
            sent.set(sent.get() + 1);
            pending::<Result<(), ReadError>>()
        };
        let watchers = async {
            join_all((0..READING_MAX * 8).map(|_| async {
                loop {
                    drop(patiently("again", "ty-log", pace, lost).await);
                }
            }))
            .await;
        };
        tokio::time::timeout(Duration::from_secs(20), watchers).await.expect_err("it stands still");
        // In each turn four in the first second, and then one a second.
        assert!(sent.get() <= READING_MAX * (4 + 19), "{} copies", sent.get());
    }

    #[tokio::test(start_paused = true)]
    async fn reads_without_an_answer_keep_nobody_from_theirs_and_no_more_are_sent_at_a_time_than_turns() {
        let (turns, sent) = (Turns::default(), RefCell::new(Vec::new()));
        let lost = || {
            sent.borrow_mut().push(Instant::now());
            pending::<Result<(), ReadError>>()
        };
        let pace = Pace::InTurns(&turns);
        let mut waits = join_all((0..READING_MAX * 4).map(|_| patiently("again", "ty-log", pace, lost)));
        let began = Instant::now();
        tokio::select! {
            biased;
            _ = &mut waits => unreachable!("the broker answers no request"),
            read = patiently("again", "ty-log", pace, || ready(Ok(()))) => read.expect("it is answered"),
        }
        assert!(began.elapsed() < LATER_PATIENCE * 5, "{:?}", began.elapsed());
        for first in sent.borrow().iter() {
            let soon = sent.borrow().iter().filter(|at| **at >= *first && **at < *first + LATER_PATIENCE).count();
            assert!(soon <= READING_MAX, "{soon}");
        }
    }
}
