//! Checks the history of ended runs: its store, and how far the database of each shard goes.

use std::time::Duration;

use async_nats::jetstream::stream::{Info, Stream};
use history::{History, HistoryError, ShardSeen};
use proto::names;
use run::{Partition, Shard, Timestamp};

use super::super::journal::millis;
use super::{Finding, Level};

/// A shard without entries of its own is noted after so many of others, and then written.
const NOTED_WITHIN: u64 = 1024;
/// Runs are written within seconds. The log keeps those that wait for at most 25 h.
const LATE: Duration = Duration::from_secs(300);
const TOO_LATE: Duration = Duration::from_secs(4 * 3600);
/// For how long a shard that is late is searched for damage.
const SEARCH: Duration = Duration::from_secs(3);
const DAY_S: u64 = 86_400;
const WHAT: &str = "history";

/// A partition of the log, as the broker describes it.
#[derive(Debug, Clone, Copy)]
struct LogSeen {
    created: u64,
    first: u64,
    last: u64,
    first_at: Timestamp,
    last_at: Timestamp,
}

impl LogSeen {
    fn of(info: &Info) -> Self {
        let state = &info.state;
        Self {
            created: u64::try_from(info.created.unix_timestamp_nanos()).unwrap_or(0),
            first: state.first_sequence,
            last: state.last_sequence,
            first_at: millis(state.first_timestamp.unix_timestamp_nanos()),
            last_at: millis(state.last_timestamp.unix_timestamp_nanos()),
        }
    }

    /// For about how long what follows an entry has waited, as if entries came at a steady rate.
    fn waited(&self, through: u64) -> Duration {
        let behind = self.last.saturating_sub(through.max(self.first));
        if behind <= NOTED_WITHIN {
            return Duration::ZERO;
        }
        let all = u32::try_from((self.last - self.first).max(1)).unwrap_or(u32::MAX);
        let behind = u32::try_from(behind).unwrap_or(u32::MAX);
        self.last_at.since(self.first_at).mul_f64(f64::from(behind) / f64::from(all))
    }
}

pub(super) async fn examine(log: &[Stream], history: Option<&History>) -> Vec<Finding> {
    let Some(history) = history else {
        let advice = "if coordinators have one, give it here too (--history)";
        return vec![Finding { advice: advice.to_owned(), ..Finding::ok(WHAT, "none was given, so none is examined") }];
    };
    let mut findings = vec![store(history).await];
    let (mut shards, mut oldest) = (Shards::default(), None);
    for stream in log {
        let info = stream.cached_info();
        let place = names::STREAMS.iter().position(|name| *name == info.config.name);
        let Some(partition) = place.and_then(|place| Partition::first(Partition::MAX).nth(place)) else { continue };
        let looks = partition.shards().map(|shard| async move { (shard, history.look_at(shard).await) });
        for (shard, seen) in futures::future::join_all(looks).await {
            if let Ok(seen) = &seen {
                oldest = [oldest, seen.oldest.map(|run| run.created_at())].into_iter().flatten().min();
            }
            shards.add(shard, seen, &LogSeen::of(info));
        }
    }
    findings.push(retention(history, oldest, ::nats::now()));
    let searches = shards.late.iter().map(|(shard, _)| async move {
        match history.read_through(*shard, SEARCH).await {
            Err(HistoryError::Damaged(error)) => Some(format!("{shard}: {error}")),
            Ok(()) | Err(_) => None,
        }
    });
    let damaged: Vec<String> = futures::future::join_all(searches).await.into_iter().flatten().collect();
    findings.extend(shards.findings(&damaged));
    findings
}

async fn store(history: &History) -> Finding {
    let place = history.place();
    match history.try_out().await {
        Ok(true) => Finding::ok(WHAT, format!("{place} can be written, and keeps what is there")),
        Ok(false) => {
            let found = format!("{place} overwrites a file although it was told to create one");
            Finding::fail(WHAT, found, "take a store with conditional writes: two coordinators would damage this one")
        }
        Err(error) => {
            let advice = "bring the store back, and check the key: GetObject, PutObject, DeleteObject, ListBucket";
            Finding::fail(WHAT, format!("{place}: {error}"), advice)
        }
    }
}

fn retention(history: &History, oldest: Option<Timestamp>, now: Timestamp) -> Finding {
    let days = |span: Duration| span.as_secs() / DAY_S;
    let kept = format!("runs are shown for {} days after their end", days(history.retention()));
    let found = match oldest {
        Some(oldest) => format!("{kept}; the oldest was created {} days ago", days(now.since(oldest))),
        None => format!("{kept}; there is none yet"),
    };
    Finding::ok("history retention", found)
}

/// What was found of all shards.
#[derive(Debug, Default)]
struct Shards {
    current: usize,
    late: Vec<(Shard, Duration)>,
    /// Entries that left the log before they were read.
    missed: Vec<Shard>,
    unread: Vec<(Shard, HistoryError)>,
}

impl Shards {
    fn add(&mut self, shard: Shard, seen: Result<ShardSeen, HistoryError>, log: &LogSeen) {
        let position = match seen {
            Ok(seen) => seen.position.filter(|position| position.log == log.created),
            Err(error) => return self.unread.push((shard, error)),
        };
        let waited = log.waited(position.map_or(0, |position| position.through));
        if position.is_some_and(|position| position.through + NOTED_WITHIN < log.first) {
            self.missed.push(shard);
        } else if waited > LATE {
            self.late.push((shard, waited));
        } else {
            self.current += 1;
        }
    }

    fn findings(&self, damaged: &[String]) -> Vec<Finding> {
        let what = "history shards";
        let named = |shards: &mut dyn Iterator<Item = Shard>| shards.map(|shard| shard.to_string()).collect::<Vec<_>>();
        let mut findings = Vec::new();
        if !damaged.is_empty() {
            let advice = "restore the files of these shards from a copy (docs/howto/runbook.md)";
            findings.push(Finding::fail(what, format!("damaged: {}", damaged.join("; ")), advice));
        }
        if let Some((_, error)) = self.unread.first() {
            let shards = named(&mut self.unread.iter().map(|(shard, _)| *shard)).join(", ");
            let advice = match error {
                HistoryError::Damaged(_) => "restore the files of these shards from a copy (docs/howto/runbook.md)",
                HistoryError::Unavailable(_) | HistoryError::Fenced | HistoryError::NotOpen => "see the line history",
            };
            findings.push(Finding::fail(what, format!("cannot be read: {shards}: {error}"), advice));
        }
        if !self.missed.is_empty() {
            let shards = named(&mut self.missed.iter().copied()).join(", ");
            let found = format!("entries left the log before these shards were written: {shards}");
            findings.push(Finding::fail(what, found, "see why in a coordinator's log: `to the history failed`"));
        }
        if let Some(longest) = self.late.iter().map(|(_, waited)| *waited).max() {
            let shards = named(&mut self.late.iter().map(|(shard, _)| *shard)).join(", ");
            let found = format!("runs wait for some {} min in {shards}", longest.as_secs() / 60);
            let advice = "see why in a coordinator's log: `to the history failed`. The log keeps them for 25 h at most";
            let late = Finding::warn(what, found, advice);
            findings.push(Finding { level: if longest > TOO_LATE { Level::Fail } else { Level::Warn }, ..late });
        }
        if findings.is_empty() {
            findings.push(Finding::ok(what, format!("{} are written up to the end of the log", self.current)));
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use proto::convert::history::HistoryPosition;

    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    /// A log of 10 h, 1,000 entries a minute.
    fn log() -> LogSeen {
        LogSeen { created: 5, first: 1, last: 600_001, first_at: Timestamp(0), last_at: Timestamp(10 * HOUR_MS) }
    }

    fn judged(through: u64, log: &LogSeen) -> (Level, String) {
        let mut shards = Shards::default();
        let position = Some(HistoryPosition { log: 5, through });
        shards.add(Shard(3), Ok(ShardSeen { position, oldest: None }), log);
        let finding = shards.findings(&[]).remove(0);
        (finding.level, finding.found)
    }

    #[test]
    fn a_shard_that_is_not_written_is_reported_with_how_long_its_runs_wait() {
        assert_eq!(judged(600_001, &log()).0, Level::Ok);
        assert_eq!(judged(599_500, &log()).0, Level::Ok, "others have the newest entries");
        assert_eq!(judged(590_001, &log()), (Level::Warn, "runs wait for some 10 min in 03".to_owned()));
        assert_eq!(judged(1_000, &log()).0, Level::Fail);
        let cut = LogSeen { first: 595_000, first_at: Timestamp(9 * HOUR_MS), ..log() };
        let (level, found) = judged(590_001, &cut);
        assert!(level == Level::Fail && found.starts_with("entries left the log"), "{found}");
        let other = LogSeen { created: 6, ..log() };
        assert_eq!(judged(600_001, &other).0, Level::Fail, "it is of another log, so nothing of this one is written");
    }

    #[test]
    fn what_is_damaged_or_away_is_reported_with_its_shards() {
        let mut shards = Shards::default();
        shards.add(Shard(1), Err(HistoryError::Damaged("a checksum".to_owned())), &log());
        let findings = shards.findings(&["02: a checksum".to_owned()]);
        let found: Vec<&str> = findings.iter().map(|finding| finding.found.as_str()).collect();
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("02") && found[1].contains("01"), "{found:?}");
        assert!(findings.iter().all(|finding| finding.level == Level::Fail && finding.advice.contains("copy")));
    }
}
