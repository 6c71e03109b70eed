//! Figures of calls in the last minutes, by tool, in memory. The owner task writes them; `GetOverview` reads them.
//! Their size depends on the number of tools, not of runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use run::{Outcome, Timestamp};

/// The length of a part of the window.
const PART: Duration = Duration::from_secs(5);
/// Parts of the window.
const PARTS: usize = 60;
/// The time to which the counts belong.
pub(crate) const WINDOW: Duration = Duration::from_secs(PART.as_secs() * PARTS as u64);
/// The interval after which the older half of the percentiles' values is dropped.
const HALF: Duration = Duration::from_secs(WINDOW.as_secs() / 2);
/// Buckets of times: 8 for each doubling, up to 2^28 ms, which is three days.
const BUCKETS: usize = 28 * 8;
/// Pairs of a tool and a pool in one response.
pub(crate) const TOOLS_MAX: usize = 1000;

/// The figures. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overview(Arc<Mutex<Pools>>);

/// By pool, which is empty for calls that no worker executes, and by tool.
type Pools = BTreeMap<String, BTreeMap<String, OfTool>>;

/// Calls of a tool that have not ended, as of the last census.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) waiting: u32,
    pub(crate) runnable: u32,
    pub(crate) without_worker: u32,
    pub(crate) running: u32,
    pub(crate) oldest: Option<Timestamp>,
}

/// The figures of a tool in a pool, as they are read.
#[derive(Debug)]
pub(crate) struct Figures {
    pub(crate) pool: String,
    pub(crate) tool: String,
    pub(crate) standing: Standing,
    /// Ends in the window: completed, failed, cancelled, expired.
    pub(crate) ended: [u32; 4],
    /// All ends by parts of the window, the oldest first.
    pub(crate) ended_each: Vec<u32>,
    /// The median and the 95th percentile.
    pub(crate) to_start: Option<[Duration; 2]>,
    pub(crate) to_end: Option<[Duration; 2]>,
}

#[derive(Debug, Default)]
struct OfTool {
    standing: Standing,
    ended: [Counts; 4],
    to_start: Times,
    to_end: Times,
}

/// Counts by parts of the window.
#[derive(Debug)]
struct Counts {
    /// The newest part, counted from 1970.
    newest: u64,
    parts: [u32; PARTS],
}

impl Default for Counts {
    fn default() -> Self {
        Self { newest: 0, parts: [0; PARTS] }
    }
}

impl Counts {
    fn add(&mut self, now: Timestamp) {
        let part = self.turn(now);
        self.parts[part] += 1;
    }

    /// Empties the parts that have left the window. Returns the place of the newest one.
    fn turn(&mut self, now: Timestamp) -> usize {
        let newest = index(now, PART);
        let passed = newest.saturating_sub(self.newest).min(PARTS as u64);
        for part in 0..passed {
            self.parts[place(newest - part)] = 0;
        }
        self.newest = self.newest.max(newest);
        place(self.newest)
    }

    /// The oldest first.
    fn each(&mut self, now: Timestamp) -> impl Iterator<Item = u32> {
        let newest = self.turn(now);
        (1..=PARTS).map(move |after| self.parts[(newest + after) % PARTS])
    }
}

fn index(now: Timestamp, part: Duration) -> u64 {
    now.0 / u64::try_from(part.as_millis()).unwrap_or(u64::MAX)
}

fn place(part: u64) -> usize {
    usize::try_from(part % PARTS as u64).unwrap_or_default()
}

/// Times of the present half of the window and of the one before.
#[derive(Debug, Default)]
struct Times {
    half: u64,
    newer: Option<Box<Buckets>>,
    older: Option<Box<Buckets>>,
}

#[derive(Debug)]
struct Buckets([u32; BUCKETS]);

impl Times {
    fn add(&mut self, took: Duration, now: Timestamp) {
        self.turn(now);
        let buckets = self.newer.get_or_insert_with(|| Box::new(Buckets([0; BUCKETS])));
        buckets.0[bucket(took)] += 1;
    }

    fn turn(&mut self, now: Timestamp) {
        let half = index(now, HALF);
        match half.saturating_sub(self.half) {
            0 => return,
            1 => self.older = self.newer.take(),
            _ => (self.older, self.newer) = (None, None),
        }
        self.half = half;
    }

    /// The median and the 95th percentile; `None` without values.
    fn percentiles(&mut self, now: Timestamp) -> Option<[Duration; 2]> {
        self.turn(now);
        let halves = [self.newer.as_deref(), self.older.as_deref()];
        let count = |at: usize| halves.iter().flatten().map(|buckets| u64::from(buckets.0[at])).sum::<u64>();
        let total: u64 = (0..BUCKETS).map(count).sum();
        let percentile = |percent: u64| {
            let rank = (total * percent).div_ceil(100);
            let mut seen = 0;
            let found = (0..BUCKETS).find(|at| {
                seen += count(*at);
                seen >= rank
            });
            upper(found.unwrap_or(BUCKETS - 1))
        };
        (total > 0).then(|| [percentile(50), percentile(95)])
    }
}

/// The bucket of a time: 8 for each doubling of milliseconds.
fn bucket(took: Duration) -> usize {
    let eighths = u64::try_from(took.as_millis()).unwrap_or(u64::MAX / 8).max(1).saturating_mul(8);
    let doublings = eighths.ilog2() - 3;
    let within = (eighths >> doublings) & 7;
    let bucket = u64::from(doublings) * 8 + within;
    usize::try_from(bucket).map_or(BUCKETS - 1, |bucket| bucket.min(BUCKETS - 1))
}

/// The longest time of a bucket, in whole milliseconds.
fn upper(bucket: usize) -> Duration {
    let (doublings, within) = (bucket / 8, bucket as u64 % 8);
    Duration::from_millis(((9 + within) << doublings).div_ceil(8).saturating_sub(1).max(1))
}

impl Overview {
    /// Counts the start of a call's first attempt.
    pub(crate) fn started(&self, (pool, tool): (&str, &str), waited: Duration, now: Timestamp) {
        of(&mut self.lock(), pool, tool).to_start.add(waited, now);
    }

    /// Counts the end of a call.
    pub(crate) fn ended(&self, (pool, tool): (&str, &str), outcome: &Outcome, took: Duration, now: Timestamp) {
        let outcome = match outcome {
            Outcome::Completed(_) => 0,
            Outcome::Failed(_) => 1,
            Outcome::Cancelled { .. } => 2,
            Outcome::Expired(_) => 3,
        };
        let mut pools = self.lock();
        let of_tool = of(&mut pools, pool, tool);
        of_tool.ended[outcome].add(now);
        of_tool.to_end.add(took, now);
    }

    /// Replaces the counts of calls that have not ended, and forgets tools without calls in the window.
    pub(crate) fn stand<'a>(&self, all: impl Iterator<Item = ((&'a str, &'a str), Standing)>, now: Timestamp) {
        let mut pools = self.lock();
        for of_tool in pools.values_mut().flat_map(BTreeMap::values_mut) {
            of_tool.standing = Standing::default();
        }
        for ((pool, tool), standing) in all {
            of(&mut pools, pool, tool).standing = standing;
        }
        let is_used = |of_tool: &mut OfTool| {
            of_tool.standing != Standing::default()
                || of_tool.to_start.percentiles(now).is_some()
                || of_tool.to_end.percentiles(now).is_some()
        };
        for tools in pools.values_mut() {
            tools.retain(|_, of_tool| is_used(of_tool));
        }
        pools.retain(|_, tools| !tools.is_empty());
    }

    /// The figures of each tool, at most [`TOOLS_MAX`].
    pub(crate) fn read(&self, now: Timestamp) -> Vec<Figures> {
        let mut pools = self.lock();
        let all = pools.iter_mut().flat_map(|(pool, tools)| tools.iter_mut().map(move |tool| (pool, tool)));
        all.take(TOOLS_MAX).map(|(pool, (tool, of_tool))| of_tool.read((pool, tool), now)).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Pools> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl OfTool {
    fn read(&mut self, (pool, tool): (&str, &str), now: Timestamp) -> Figures {
        let mut ended_each = vec![0; PARTS];
        let ended = self.ended.each_mut().map(|counts| {
            let parts = ended_each.iter_mut().zip(counts.each(now));
            parts
                .map(|(all, count)| {
                    *all += count;
                    count
                })
                .sum()
        });
        Figures {
            pool: pool.to_owned(),
            tool: tool.to_owned(),
            standing: self.standing,
            ended,
            ended_each,
            to_start: self.to_start.percentiles(now),
            to_end: self.to_end.percentiles(now),
        }
    }
}

/// Most calls are of a tool that was counted before, so no name is copied for them.
fn of<'a>(pools: &'a mut Pools, pool: &str, tool: &str) -> &'a mut OfTool {
    if !pools.get(pool).is_some_and(|tools| tools.contains_key(tool)) {
        pools.entry(pool.to_owned()).or_default().insert(tool.to_owned(), OfTool::default());
    }
    pools.get_mut(pool).and_then(|tools| tools.get_mut(tool)).expect("it was made above")
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp(1_700_000_000_000);

    fn cancelled() -> Outcome {
        Outcome::Cancelled { reason: String::new(), stopped: run::Stopped::NotRunning }
    }

    #[test]
    fn a_bucket_is_at_most_an_eighth_wide_and_has_its_own_times() {
        for ms in (1..5000).chain([86_399_999, 86_400_000, 200_000_000]) {
            let upper = upper(bucket(Duration::from_millis(ms))).as_millis() as u64;
            assert!(upper >= ms, "{ms} is above its bucket, {upper}");
            assert!(upper - ms <= ms / 8 + 1, "{ms} is far from the end of its bucket, {upper}");
        }
        assert_eq!(bucket(Duration::MAX), BUCKETS - 1);
        assert_eq!(bucket(Duration::ZERO), 0);
    }

    #[test]
    fn figures_leave_with_the_window() {
        let overview = Overview::default();
        let of = ("local", "bash");
        for ms in 1..=100 {
            overview.started(of, Duration::from_millis(ms), START);
            overview.ended(of, &cancelled(), Duration::from_millis(10 * ms), START.after(PART));
        }
        let read = overview.read(START.after(2 * PART));
        let [figures] = &read[..] else { panic!("{read:?}") };
        assert_eq!(figures.ended, [0, 0, 100, 0]);
        assert_eq!(figures.ended_each[PARTS - 2], 100);
        assert_eq!(figures.ended_each.iter().sum::<u32>(), 100);
        let [median, high] = figures.to_start.expect("calls began");
        assert!((50..=56).contains(&median.as_millis()), "{median:?}");
        assert!((95..=107).contains(&high.as_millis()), "{high:?}");

        overview.stand(std::iter::empty(), START.after(2 * PART));
        assert_eq!(overview.read(START.after(2 * PART)).len(), 1, "its ends are still in the window");
        overview.stand(std::iter::empty(), START.after(2 * WINDOW));
        assert!(overview.read(START.after(2 * WINDOW)).is_empty());
    }

    #[test]
    fn what_stands_is_that_of_the_last_census() {
        let overview = Overview::default();
        let standing = Standing { waiting: 3, ..Standing::default() };
        overview.stand([(("local", "bash"), standing)].into_iter(), START);
        assert_eq!(overview.read(START)[0].standing.waiting, 3);
        overview.stand([(("local", "grep"), standing)].into_iter(), START);
        let tools: Vec<_> = overview.read(START).into_iter().map(|figures| figures.tool).collect();
        assert_eq!(tools, ["grep"]);
    }
}
