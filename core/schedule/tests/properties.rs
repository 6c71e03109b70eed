//! Firings are in order, never early and never twice, whatever the times, the jitter and the gaps between decisions.

use std::time::Duration;

use proptest::prelude::*;
use run::Timestamp;
use schedule::{
    Decision, INTERVAL_MAX, INTERVAL_MIN, LATE_MAX, MADE_UP_MAX, MissedPolicy, ON_TIME, Plan, Progress, Timing,
    TimingError,
};

fn at(text: &str) -> Timestamp {
    let time: jiff::Timestamp = text.parse().expect("a time");
    Timestamp(u64::try_from(time.as_millisecond()).expect("after 1970"))
}

fn shown(times: &[Timestamp]) -> Vec<String> {
    let text = |time: &Timestamp| {
        jiff::Timestamp::from_millisecond(i64::try_from(time.0).expect("a time")).expect("a time").to_string()
    };
    times.iter().map(text).collect()
}

fn times(timing: &Timing, from: Timestamp, count: usize) -> Vec<Timestamp> {
    std::iter::successors(timing.next_after(from), |time| timing.next_after(*time)).take(count).collect()
}

fn plan(timing: Timing, jitter: Duration, missed: MissedPolicy) -> Plan {
    Plan { timing, seed: 7, jitter, end: None, firings_max: None, missed }
}

/// Decides until nothing is due, as a coordinator does. Returns the fired times and the number of missed ones.
fn decide_all(plan: &Plan, progress: &mut Progress, now: Timestamp) -> (Vec<Timestamp>, u64) {
    let (mut fired, mut missed) = (Vec::new(), 0);
    loop {
        match plan.decide(*progress, now) {
            Decision::Due(due) => {
                assert!(due.missed > 0 || !due.fire.is_empty(), "a decision gets on");
                assert_eq!(due.missed > 0, due.missed_between.is_some());
                for last in due.missed_between.map(|(_, last)| last).iter().chain(&due.fire) {
                    assert!(*last > progress.decided_until, "in order, and never twice");
                    progress.decided_until = *last;
                }
                missed += due.missed;
                progress.fired += due.fire.len() as u64;
                fired.extend(due.fire);
            }
            Decision::Wait(until) => {
                assert!(until > now, "it is due otherwise");
                return (fired, missed);
            }
            Decision::Over => return (fired, missed),
        }
    }
}

fn policies() -> impl Strategy<Value = MissedPolicy> {
    prop_oneof![Just(MissedPolicy::Skip), Just(MissedPolicy::Latest), Just(MissedPolicy::All)]
}

const CRONS: [&str; 5] = ["* * * * *", "*/20 * * * * *", "30 2 * * *", "15,45 */2 * * *", "@hourly"];
const ZONES: [&str; 4] = ["", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"];

fn timings() -> impl Strategy<Value = Timing> {
    let start = at("2026-03-28T20:00:00Z");
    let every = (1000_u64..100_000).prop_map(move |ms| Timing::every(Duration::from_millis(ms), start));
    let cron = (proptest::sample::select(&CRONS[..]), proptest::sample::select(&ZONES[..]))
        .prop_map(move |(cron, zone)| Timing::cron(cron, zone, start));
    prop_oneof![every, cron].prop_map(|timing| timing.expect("it fires"))
}

proptest! {
    #[test]
    fn firings_are_in_order_never_early_and_each_time_is_decided_once(
        timing in timings(),
        jitter in 0_u64..120_000,
        missed in policies(),
        waits in proptest::collection::vec(1_u64..4_000_000, 1..12),
    ) {
        let start = at("2026-03-28T20:00:00Z");
        let plan = plan(timing, Duration::from_millis(jitter), missed);
        let (mut now, mut progress) = (start, Progress { decided_until: start, fired: 0 });
        let (mut decided, mut all) = (0, Vec::new());
        for wait in waits {
            now = now.after(Duration::from_millis(wait));
            let (fired, missed) = decide_all(&plan, &mut progress, now);
            prop_assert!(fired.iter().all(|time| plan.due_at(*time) <= now && *time <= now), "never before its time");
            let most = if plan.missed == MissedPolicy::All { MADE_UP_MAX } else { 1 };
            prop_assert!(fired.len() <= most);
            decided += missed + fired.len() as u64;
            all.extend(fired);
        }
        prop_assert!(all.is_sorted_by(|one, next| one < next), "in order, and never twice");
        let mut expected = 0;
        let mut time = start;
        while let Some(next) = plan.timing.next_after(time).filter(|next| plan.due_at(*next) <= now) {
            (time, expected) = (next, expected + 1);
        }
        prop_assert_eq!(decided, expected, "each time is fired or missed");
    }

    #[test]
    fn jitter_is_bounded_the_same_everywhere_and_keeps_the_order(timing in timings(), jitter in 0_u64..600_000) {
        let start = at("2026-03-28T20:00:00Z");
        let plan = plan(timing, Duration::from_millis(jitter), MissedPolicy::Latest);
        let progress = Progress { decided_until: start, fired: 0 };
        let upcoming = plan.upcoming(progress, 5);
        prop_assert_eq!(&upcoming, &plan.upcoming(progress, 5));
        prop_assert!(upcoming.is_sorted());
        for (time, due) in times(&plan.timing, start, 5).into_iter().zip(&upcoming) {
            prop_assert!(plan.due_at(time) <= *due && plan.due_at(time).since(time) <= Duration::from_millis(jitter));
        }
        let is_first = |wait| wait == Decision::Wait(upcoming[0]);
        prop_assert!(is_first(plan.decide(progress, Timestamp(upcoming[0].0 - 1))));
    }

    #[test]
    fn any_text_is_a_cron_expression_or_an_error(text in ".{0,40}", fields in "[-*/,0-9LW#@?A-Z ]{1,30}") {
        let now = at("2026-01-01T00:00:00Z");
        for text in [text, fields] {
            if let Ok(timing) = Timing::cron(&text, "", now) {
                prop_assert!(timing.next_after(now).is_some_and(|next| next > now));
            }
        }
    }
}

#[test]
fn a_fixed_time_that_does_not_exist_fires_once_after_the_gap_and_one_that_exists_twice_fires_once() {
    let timing = Timing::cron("30 2 * * *", "Europe/Berlin", at("2026-03-27T12:00:00Z")).expect("it fires");
    let spring = times(&timing, at("2026-03-27T12:00:00Z"), 3);
    assert_eq!(shown(&spring), ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
    let autumn = times(&timing, at("2026-10-24T12:00:00Z"), 2);
    assert_eq!(shown(&autumn), ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
}

#[test]
fn every_half_hour_fires_through_a_fold_and_a_gap_without_a_hole() {
    let timing = Timing::cron("*/30 * * * *", "Europe/Berlin", at("2026-01-01T00:00:00Z")).expect("it fires");
    for night in ["2026-03-29T00:00:00Z", "2026-10-25T00:00:00Z"] {
        let half_hours = times(&timing, at(night), 8);
        let steps: Vec<Duration> = half_hours.windows(2).map(|pair| pair[1].since(pair[0])).collect();
        assert_eq!(steps, [Duration::from_secs(1800); 7], "{:?}", shown(&half_hours));
    }
}

#[test]
fn expressions_that_cannot_be_read_or_never_fire_are_errors_at_once() {
    let now = at("2026-01-01T00:00:00Z");
    for never in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 0 30 2 *", "0 0 1 1 * 2025"] {
        let refused = Timing::cron(never, "", now).expect_err(never);
        assert!(matches!(refused, TimingError::NeverFires(_) | TimingError::NoCron { .. }), "{never}: {refused:?}");
    }
    let long = "* ".repeat(200);
    for unreadable in ["", "* * * *", "61 * * * *", "* * * * * * * *", "every day", "ä * * * *", "@reboot", &long] {
        let refused = Timing::cron(unreadable, "", now).expect_err(unreadable);
        assert!(matches!(refused, TimingError::NoCron { .. } | TimingError::CronTooLong(_)), "{refused:?}");
    }
    for zone in ["Europe/Nowhere", "Mars", "+99:00", "../../etc/passwd", &"x".repeat(100)] {
        let refused = Timing::cron("* * * * *", zone, now).expect_err(zone);
        assert!(matches!(refused, TimingError::NoZone(_)), "{refused:?}");
    }
}

#[test]
fn intervals_and_single_times_have_bounds() {
    let now = at("2026-01-01T00:00:00Z");
    for wrong in [Duration::ZERO, INTERVAL_MIN - Duration::from_millis(1), INTERVAL_MAX + Duration::from_secs(1)] {
        assert_eq!(Timing::every(wrong, now).expect_err("out of bounds"), TimingError::Interval(wrong));
    }
    assert_eq!(Timing::once(now, now).expect_err("it has passed"), TimingError::Past);
    assert_eq!(Timing::once(at("2040-01-01T00:00:00Z"), now).expect_err("too far"), TimingError::TooFar);
}

#[test]
fn missed_firings_follow_their_policy() {
    let start = at("2026-01-01T00:00:00Z");
    let every = || Timing::every(Duration::from_secs(60), start).expect("an interval");
    let now = start.after(Duration::from_secs(3 * 3600 + 45));
    let decide = |missed| {
        let mut progress = Progress { decided_until: start, fired: 0 };
        decide_all(&plan(every(), Duration::ZERO, missed), &mut progress, now)
    };
    let last = start.after(Duration::from_secs(3 * 3600));
    assert_eq!(decide(MissedPolicy::Skip), (Vec::new(), 180), "the last one is 45 s late");
    assert_eq!(decide(MissedPolicy::Latest), (vec![last], 179));
    let (made_up, missed) = decide(MissedPolicy::All);
    assert_eq!((made_up.len(), missed, made_up.last()), (MADE_UP_MAX, 80, Some(&last)));
    let mut progress = Progress { decided_until: start, fired: 0 };
    let soon = last.after(ON_TIME);
    assert_eq!(decide_all(&plan(every(), Duration::ZERO, MissedPolicy::Skip), &mut progress, soon), (vec![last], 179));
}

#[test]
fn a_single_time_that_is_a_day_late_is_missed_and_one_that_is_less_late_fires() {
    let start = at("2026-01-01T00:00:00Z");
    let once = at("2026-01-02T00:00:00Z");
    let plan = plan(Timing::once(once, start).expect("ahead"), Duration::ZERO, MissedPolicy::Latest);
    let decide = |late: Duration| {
        let mut progress = Progress { decided_until: start, fired: 0 };
        decide_all(&plan, &mut progress, once.after(late))
    };
    assert_eq!(decide(LATE_MAX), (vec![once], 0));
    assert_eq!(decide(LATE_MAX + Duration::from_secs(1)), (Vec::new(), 1));
}

#[test]
fn a_schedule_is_over_after_its_end_or_its_last_firing() {
    let start = at("2026-01-01T00:00:00Z");
    let timing = Timing::every(Duration::from_secs(1), start).expect("an interval");
    let ends = Plan {
        end: Some(start.after(Duration::from_secs(3))),
        ..plan(timing.clone(), Duration::ZERO, MissedPolicy::All)
    };
    let mut progress = Progress { decided_until: start, fired: 0 };
    let later = start.after(Duration::from_secs(60));
    assert_eq!(decide_all(&ends, &mut progress, later).0.len(), 3);
    assert_eq!(ends.decide(progress, later), Decision::Over);
    assert!(ends.upcoming(progress, 5).is_empty());

    let twice = Plan { firings_max: Some(2), ..plan(timing, Duration::ZERO, MissedPolicy::All) };
    let mut progress = Progress { decided_until: start, fired: 0 };
    assert_eq!(twice.upcoming(progress, 5).len(), 2);
    assert_eq!(decide_all(&twice, &mut progress, later).0.len(), 2);
    assert_eq!(twice.decide(progress, later), Decision::Over);
}
