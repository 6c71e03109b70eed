//! Figures of calls in the last minutes, by tool. Each owner task counts those of its coordinator's shards. Each second
//! it makes a share of them, which all coordinators get; `GetOverview` adds up the latest shares. Their size depends on
//! the number of tools, not of runs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) use proto::convert::overview::{OverviewShare, Standing, ToolShare};
use proto::names::OVERVIEW_LOST;
use run::{Outcome, Timestamp};
use tokio::time::Instant;

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
/// Pairs of a tool and a pool in a share and in one response.
pub(crate) const TOOLS_MAX: usize = 1000;
/// Coordinators whose shares are kept: as many as can own a shard.
const COORDINATORS_MAX: usize = owner::SHARDS_MAX;
/// How long a sum of the shares is served again.
const SUM_KEPT: Duration = Duration::from_secs(1);

/// The latest shares of all coordinators. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overview(Arc<Mutex<Shares>>);

#[derive(Debug, Default)]
struct Shares {
    by_coordinator: BTreeMap<String, (Instant, OverviewShare)>,
    sum: Option<(Instant, Arc<Sum>)>,
}

/// The figures of all coordinators.
#[derive(Debug, Default)]
pub(crate) struct Sum {
    /// When they were added up.
    pub(crate) time: Timestamp,
    /// The coordinators whose shares are in them.
    pub(crate) coordinators: usize,
    pub(crate) shards: u32,
    pub(crate) runs_open: u64,
    pub(crate) waiting_for_client: u64,
    pub(crate) awaiting_approval: u64,
    /// The longest of all.
    pub(crate) lag: Duration,
    pub(crate) tools: Vec<ToolSum>,
}

/// The figures of a tool in a pool.
#[derive(Debug)]
pub(crate) struct ToolSum {
    /// Empty for calls that no worker executes.
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

impl Overview {
    /// Keeps the share of a coordinator, this one or another.
    pub(crate) fn hear(&self, share: OverviewShare, now: Instant) {
        let mut shares = self.lock();
        shares.forget_lost(now);
        let is_known = shares.by_coordinator.contains_key(&share.coordinator);
        if share.leaving {
            shares.by_coordinator.remove(&share.coordinator);
        } else if is_known || shares.by_coordinator.len() < COORDINATORS_MAX {
            shares.by_coordinator.insert(share.coordinator.clone(), (now, share));
        }
    }

    /// The sum of the latest shares. All readers within a second get the same one.
    pub(crate) fn read(&self, now: Instant, time: Timestamp) -> Arc<Sum> {
        let mut shares = self.lock();
        if let Some((at, sum)) = &shares.sum
            && now - *at < SUM_KEPT
        {
            return Arc::clone(sum);
        }
        shares.forget_lost(now);
        let sum = Arc::new(add_up(shares.by_coordinator.values().map(|(_, share)| share), time));
        shares.sum = Some((now, Arc::clone(&sum)));
        sum
    }

    fn lock(&self) -> MutexGuard<'_, Shares> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shares {
    fn forget_lost(&mut self, now: Instant) {
        self.by_coordinator.retain(|_, (heard, _)| now - *heard < OVERVIEW_LOST);
    }
}

/// The figures of a tool that are being added up.
#[derive(Default)]
struct Adding {
    standing: Standing,
    ended: [u32; 4],
    ended_each: Vec<u32>,
    to_start: BTreeMap<u32, u64>,
    to_end: BTreeMap<u32, u64>,
}

fn add_up<'a>(shares: impl Iterator<Item = &'a OverviewShare>, time: Timestamp) -> Sum {
    let newest = index(time, PART);
    let mut sum = Sum { time, ..Sum::default() };
    let mut tools: BTreeMap<(&str, &str), Adding> = BTreeMap::new();
    for share in shares {
        sum.coordinators += 1;
        sum.shards += share.shards;
        sum.runs_open += share.runs_open;
        sum.waiting_for_client += share.waiting_for_client;
        sum.awaiting_approval += share.awaiting_approval;
        sum.lag = sum.lag.max(Duration::from_millis(share.lag_ms));
        for tool in &share.tools {
            let key = (tool.pool.as_str(), tool.tool.as_str());
            if tools.len() < TOOLS_MAX || tools.contains_key(&key) {
                tools.entry(key).or_default().add(tool, newest.saturating_sub(share.newest_part));
            }
        }
    }
    sum.tools = tools.into_iter().map(|((pool, tool), adding)| adding.finish(pool, tool)).collect();
    sum
}

impl Adding {
    /// `late`: how many parts have begun since the share was made.
    fn add(&mut self, share: &ToolShare, late: u64) {
        let (standing, more) = (&mut self.standing, &share.standing);
        standing.waiting += more.waiting;
        standing.runnable += more.runnable;
        standing.without_worker += more.without_worker;
        standing.running += more.running;
        standing.oldest = standing.oldest.into_iter().chain(more.oldest).min();
        self.ended.iter_mut().zip(share.ended).for_each(|(ended, more)| *ended += more);
        let late = usize::try_from(late).unwrap_or(PARTS);
        self.ended_each.resize(PARTS, 0);
        self.ended_each.iter_mut().zip(share.ended_each.iter().skip(late)).for_each(|(ended, more)| *ended += more);
        for (sum, more) in [(&mut self.to_start, &share.to_start), (&mut self.to_end, &share.to_end)] {
            more.iter().for_each(|(bucket, count)| *sum.entry(*bucket).or_default() += u64::from(*count));
        }
    }

    fn finish(self, pool: &str, tool: &str) -> ToolSum {
        ToolSum {
            pool: pool.to_owned(),
            tool: tool.to_owned(),
            standing: self.standing,
            ended: self.ended,
            ended_each: self.ended_each,
            to_start: percentiles(&self.to_start),
            to_end: percentiles(&self.to_end),
        }
    }
}

/// The median and the 95th percentile of counts by buckets; `None` without any.
fn percentiles(buckets: &BTreeMap<u32, u64>) -> Option<[Duration; 2]> {
    let total: u64 = buckets.values().sum();
    let percentile = |percent: u64| {
        let rank = (total * percent).div_ceil(100);
        let mut seen = 0;
        let mut reaches = buckets.iter().skip_while(|(_, count)| {
            seen += **count;
            seen < rank
        });
        upper(reaches.next().map_or(BUCKETS - 1, |(bucket, _)| *bucket as usize).min(BUCKETS - 1))
    };
    (total > 0).then(|| [percentile(50), percentile(95)])
}

/// The figures of this coordinator's shards. Only the owner task has them, because it counts each call.
#[derive(Debug, Default)]
pub(crate) struct Figures(Pools);

/// By pool, which is empty for calls that no worker executes, and by tool.
type Pools = BTreeMap<String, BTreeMap<String, OfTool>>;

#[derive(Debug, Default)]
struct OfTool {
    /// As of the last share.
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

    /// Counts by buckets, those without any left out.
    fn buckets(&mut self, now: Timestamp) -> Vec<(u32, u32)> {
        self.turn(now);
        let halves = [self.newer.as_deref(), self.older.as_deref()];
        let count = |at: usize| halves.iter().flatten().map(|buckets| buckets.0[at]).sum::<u32>();
        (0..BUCKETS).zip(0..).map(|(at, index)| (index, count(at))).filter(|(_, count)| *count > 0).collect()
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

impl Figures {
    /// Counts the start of a call's first attempt.
    pub(crate) fn started(&mut self, (pool, tool): (&str, &str), waited: Duration, now: Timestamp) {
        of(&mut self.0, pool, tool).to_start.add(waited, now);
    }

    /// Counts the end of a call.
    pub(crate) fn ended(&mut self, (pool, tool): (&str, &str), outcome: &Outcome, took: Duration, now: Timestamp) {
        let outcome = match outcome {
            Outcome::Completed(_) => 0,
            Outcome::Failed(_) => 1,
            Outcome::Cancelled { .. } => 2,
            Outcome::Expired(_) => 3,
        };
        let of_tool = of(&mut self.0, pool, tool);
        of_tool.ended[outcome].add(now);
        of_tool.to_end.add(took, now);
    }

    /// The share of each tool, with the calls that have not ended. Forgets tools without calls in the window.
    pub(crate) fn share<'a>(
        &mut self,
        standing: impl Iterator<Item = ((&'a str, &'a str), Standing)>,
        now: Timestamp,
    ) -> (u64, Vec<ToolShare>) {
        let mut shares = Vec::new();
        for of_tool in self.0.values_mut().flat_map(BTreeMap::values_mut) {
            of_tool.standing = Standing::default();
        }
        for ((pool, tool), standing) in standing {
            of(&mut self.0, pool, tool).standing = standing;
        }
        for (pool, tools) in &mut self.0 {
            tools.retain(|tool, of_tool| {
                let share = of_tool.share((pool, tool), now);
                let is_used = share.standing != Standing::default()
                    || !share.to_start.is_empty()
                    || !share.to_end.is_empty()
                    || share.ended.iter().any(|count| *count > 0);
                shares.extend(is_used.then_some(share));
                is_used
            });
        }
        self.0.retain(|_, tools| !tools.is_empty());
        shares.truncate(TOOLS_MAX);
        (index(now, PART), shares)
    }
}

impl OfTool {
    fn share(&mut self, (pool, tool): (&str, &str), now: Timestamp) -> ToolShare {
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
        ToolShare {
            pool: pool.to_owned(),
            tool: tool.to_owned(),
            standing: self.standing,
            ended,
            ended_each,
            to_start: self.to_start.buckets(now),
            to_end: self.to_end.buckets(now),
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

    fn share(coordinator: &str, figures: &mut Figures, standing: Standing, now: Timestamp) -> OverviewShare {
        let (newest_part, tools) = figures.share([(("local", "bash"), standing)].into_iter(), now);
        OverviewShare { coordinator: coordinator.to_owned(), shards: 8, newest_part, tools, ..OverviewShare::default() }
    }

    #[test]
    fn figures_leave_with_the_window() {
        let mut figures = Figures::default();
        let of = ("local", "bash");
        for ms in 1..=100 {
            figures.started(of, Duration::from_millis(ms), START);
            figures.ended(of, &cancelled(), Duration::from_millis(10 * ms), START.after(PART));
        }
        let now = START.after(2 * PART);
        let sum = add_up([&share("a", &mut figures, Standing::default(), now)].into_iter(), now);
        let [tool] = &sum.tools[..] else { panic!("{sum:?}") };
        assert_eq!(tool.ended, [0, 0, 100, 0]);
        assert_eq!(tool.ended_each[PARTS - 2], 100);
        assert_eq!(tool.ended_each.iter().sum::<u32>(), 100);
        let [median, high] = tool.to_start.expect("calls began");
        assert!((50..=56).contains(&median.as_millis()), "{median:?}");
        assert!((95..=107).contains(&high.as_millis()), "{high:?}");

        let (_, shares) = figures.share(std::iter::empty(), START.after(2 * PART));
        assert_eq!(shares.len(), 1, "its ends are still in the window");
        let (_, shares) = figures.share(std::iter::empty(), START.after(2 * WINDOW));
        assert!(shares.is_empty() && figures.0.is_empty());
    }

    #[test]
    fn shares_of_different_moments_are_added_part_by_part() {
        let (mut here, mut there) = (Figures::default(), Figures::default());
        let of = ("local", "bash");
        let completed = Outcome::Completed(Vec::new());
        here.ended(of, &completed, Duration::from_millis(10), START);
        (0..99).for_each(|_| there.ended(of, &completed, Duration::from_secs(9), START.after(PART)));
        let standing = |since: u64| Standing { waiting: 2, oldest: Some(Timestamp(since)), ..Standing::default() };
        let shares =
            [share("a", &mut here, standing(70), START), share("b", &mut there, standing(60), START.after(PART))];
        let sum = add_up(shares.iter(), START.after(PART));
        assert_eq!((sum.coordinators, sum.shards), (2, 16));
        let [tool] = &sum.tools[..] else { panic!("{sum:?}") };
        assert_eq!(tool.ended_each[PARTS - 2..], [1, 99], "each in its own part");
        assert_eq!((tool.ended[0], tool.standing.waiting), (100, 4));
        assert_eq!(tool.standing.oldest, Some(Timestamp(60)));
        let [median, _] = tool.to_end.expect("calls ended");
        assert!(median > Duration::from_secs(8), "of all calls, and no mean of both medians: {median:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_coordinator_that_is_silent_for_long_or_leaves_is_left_out() {
        let overview = Overview::default();
        let share = |coordinator: &str| OverviewShare {
            coordinator: coordinator.to_owned(),
            shards: 8,
            ..OverviewShare::default()
        };
        let coordinators = |overview: &Overview| overview.read(Instant::now(), START).coordinators;
        ["a", "b", "c"].iter().for_each(|name| overview.hear(share(name), Instant::now()));
        assert_eq!(coordinators(&overview), 3);
        overview.hear(OverviewShare { leaving: true, ..share("c") }, Instant::now());
        assert_eq!(coordinators(&overview), 3, "the sum of the same second");
        tokio::time::advance(OVERVIEW_LOST - SUM_KEPT).await;
        overview.hear(share("a"), Instant::now());
        assert_eq!(coordinators(&overview), 2);
        tokio::time::advance(SUM_KEPT).await;
        assert_eq!(coordinators(&overview), 1, "b has been silent for too long");
    }
}
