//! Reads the broker's time: every answer about a stream or a consumer contains it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use async_nats::client::{Client, Request};
use prost_types::Timestamp;
use run::PoolId;

use proto::names;

use crate::time;

/// How often to ask: clocks of quartz part by about a millisecond in this time.
pub const LOOK: Duration = Duration::from_secs(10);
/// How many looks are compared. The one with the shortest round trip is the most exact.
const KEPT: usize = 6;
/// Readings at the start, before the time is used.
const FIRST_LOOKS: usize = 4;
/// An answer that took longer is too inexact.
const PATIENCE: Duration = Duration::from_secs(2);
/// By how much clocks may part between the oldest and the newest look that are compared, many times over.
const DRIFT: Duration = Duration::from_millis(50);
/// A larger difference of the machine's clock is logged, because the machine's logs are hard to compare with others.
const WORTH_A_WORD_MS: i64 = 500;

#[derive(Debug, thiserror::Error)]
#[error(
    "stream {stream} at the broker, the first partition of the log, does not say what time it is: {0}",
    stream = names::STREAM
)]
pub struct ClockError(String);

/// Keeps the process's clock right.
#[derive(Debug)]
pub struct Clock {
    client: Client,
    subject: String,
    looks: VecDeque<Look>,
    /// How far ahead the machine's clock was when it was last logged.
    told: i64,
}

/// A reading of the broker's clock at `moment`, plus or minus half of `round_trip`.
#[derive(Debug, Clone, Copy)]
struct Look {
    moment: Instant,
    time: i64,
    round_trip: Duration,
}

impl Clock {
    /// For parties that may see the log.
    #[must_use]
    pub fn of_log(client: Client) -> Self {
        Self::new(client, format!("$JS.API.STREAM.INFO.{}", names::STREAM))
    }

    /// For a worker, which may see no more than its pool's queue.
    #[must_use]
    pub fn of_pool(client: Client, pool: &PoolId) -> Self {
        let (stream, queue) = (names::STREAM, names::pool_consumer(pool));
        Self::new(client, format!("$JS.API.CONSUMER.INFO.{stream}.{queue}"))
    }

    fn new(client: Client, subject: String) -> Self {
        Self { client, subject, looks: VecDeque::new(), told: 0 }
    }

    /// Sets the clock for the first time.
    ///
    /// # Errors
    /// When the broker does not answer.
    pub async fn begin(&mut self) -> Result<(), ClockError> {
        for _ in 0..FIRST_LOOKS {
            self.look().await?;
        }
        Ok(())
    }

    /// Looks once more and sets the clock. To be called every [`LOOK`].
    ///
    /// # Errors
    /// When the broker does not answer: the clock goes on as it was.
    pub async fn look(&mut self) -> Result<(), ClockError> {
        let newest = ask(&self.client, &self.subject).await?;
        // If an earlier reading cannot be true any more, the broker's clock was set, or this machine slept.
        self.looks.retain(|look| look.agrees(&newest));
        self.looks.truncate(KEPT - 1);
        self.looks.push_front(newest);
        let best = self.looks.iter().min_by_key(|look| look.round_trip).unwrap_or(&newest);
        time::set(best.moment, best.time);
        self.tell();
        Ok(())
    }

    /// Once per change, not every time.
    fn tell(&mut self) {
        let ahead = time::ahead();
        if (ahead - self.told).abs() <= WORTH_A_WORD_MS {
            return;
        }
        self.told = ahead;
        if ahead.abs() > WORTH_A_WORD_MS {
            tracing::warn!(
                ahead_ms = ahead,
                "this machine's clock is not the broker's, whose time is used; is NTP on?"
            );
        } else {
            tracing::info!(ahead_ms = ahead, "this machine's clock agrees with the broker's again");
        }
    }
}

impl Look {
    fn agrees(&self, newer: &Self) -> bool {
        let passed = i64::try_from(newer.moment.saturating_duration_since(self.moment).as_millis()).unwrap_or(i64::MAX);
        let apart = newer.time.saturating_sub(self.time).abs_diff(passed);
        let error = (self.round_trip + newer.round_trip) / 2 + DRIFT;
        u128::from(apart) <= error.as_millis()
    }
}

async fn ask(client: &Client, subject: &str) -> Result<Look, ClockError> {
    let asked = Instant::now();
    let answer = client.send_request(subject.to_owned(), Request::new().timeout(Some(PATIENCE))).await;
    let round_trip = asked.elapsed();
    let answer = answer.map_err(|error| ClockError(error.to_string()))?;
    Ok(Look { moment: asked + round_trip / 2, time: time(&answer.payload)?, round_trip })
}

/// The time that an answer carries, in milliseconds since the Unix epoch.
fn time(answer: &[u8]) -> Result<i64, ClockError> {
    let answer: serde_json::Value = serde_json::from_slice(answer).map_err(|error| ClockError(error.to_string()))?;
    let Some(text) = answer["ts"].as_str() else {
        let reason = answer["error"]["description"].as_str().unwrap_or("its answer has no time");
        return Err(ClockError(reason.to_owned()));
    };
    let time: Timestamp = text.parse().map_err(|_| ClockError(format!("{text:?} is not a time")))?;
    Ok(time.seconds.saturating_mul(1000).saturating_add(i64::from(time.nanos / 1_000_000)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(moment: Instant, time: i64, round_trip_ms: u64) -> Look {
        Look { moment, time, round_trip: Duration::from_millis(round_trip_ms) }
    }

    #[test]
    fn an_answer_says_the_time() {
        assert_eq!(time(br#"{"ts":"1970-01-01T00:00:01.234567891Z"}"#).expect("a time"), 1234);
        assert_eq!(time(br#"{"ts":"1970-01-01T01:00:01+01:00"}"#).expect("a time"), 1000);
        let refused = time(br#"{"error":{"code":404,"description":"consumer not found"}}"#).expect_err("no time");
        assert!(refused.to_string().contains("consumer not found"), "{refused}");
        time(br#"{"ts":"yesterday"}"#).expect_err("not a time");
        time(b"soon").expect_err("not an answer");
    }

    #[test]
    fn a_look_that_can_no_longer_be_true_is_dropped() {
        let start = Instant::now();
        let first = look(start, 1000, 4);
        assert!(first.agrees(&look(start + LOOK, 11_000, 4)));
        assert!(first.agrees(&look(start + LOOK, 11_900, 1900)), "a slow answer may be that far off");
        assert!(!first.agrees(&look(start + LOOK, 13_000, 4)), "the broker's clock was set");
        assert!(!first.agrees(&look(start + LOOK, 9000, 4)), "and so it was here");
    }
}
