//! Orders of turns, as stories and as properties.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use proptest::prelude::*;
use run::{CallIndex, Priority, RunId, TenantId, Timestamp};

use super::divide::part;
use super::*;

const START: Timestamp = Timestamp(1_700_000_000_000);
const ROOM: u32 = 4;
/// The first run whose calls take the room of a lane.
const FILLS: u32 = 1_000_000;

fn run_id(number: u32) -> RunId {
    format!("run_00_0193a7b4c2d07e3f8a1b2c3d{number:08x}").parse().expect("a run id")
}

fn key(run: u32, call: u16) -> CallKey {
    CallKey { run: run_id(run), call: CallIndex(call) }
}

fn tenant(name: &str) -> Tenant {
    Some(name.parse::<TenantId>().expect("a tenant"))
}

fn lane_named(tool: Option<&str>) -> Lane {
    Lane {
        pool: "alpha".parse().expect("a pool"),
        tool: tool.map(|tool| tool.parse().expect("a tool")),
        is_stranded: false,
    }
}

/// One lane, and the time.
struct Story {
    turns: Turns,
    lane: LaneId,
    now: Timestamp,
}

impl Story {
    fn with_room(room: u32) -> Self {
        let mut turns = Turns::default();
        let lane = turns.add_lane(lane_named(None), room);
        Self { turns, lane, now: START }
    }

    fn ticket(&self, tenant: &Tenant, weight: u32, priority: Priority) -> Ticket {
        Ticket { lane: self.lane, claim: Claim { tenant: tenant.clone(), weight, priority, since: self.now } }
    }

    fn ask(&mut self, key: CallKey, tenant: &Tenant, priority: Priority) -> bool {
        let ticket = self.ticket(tenant, 1, priority);
        self.turns.request(key, &ticket, self.now)
    }

    /// Workers begin a call that was handed out, and the next one that waits is handed out.
    fn next(&mut self, begun: CallKey) -> Option<CallKey> {
        self.turns.handle_begun(begun, self.now);
        // Calls are begun slowly, so that the rate gives no room.
        self.now = self.now.after(Duration::from_millis(200));
        self.turns.next_granted(self.now)
    }

    /// All waiting calls, in the order of their turns.
    fn drain(&mut self, mut begun: CallKey) -> Vec<CallKey> {
        let mut order = Vec::new();
        while let Some(next) = self.next(begun) {
            order.push(next);
            begun = next;
        }
        order
    }
}

/// A lane whose room is taken by calls of runs from [`FILLS`].
fn full(room: u32) -> Story {
    let mut story = Story::with_room(room);
    for number in 0..room {
        assert!(story.ask(key(FILLS + number, 0), &None, Priority::Normal), "there is room for call {number}");
    }
    story
}

#[test]
fn a_call_is_handed_out_at_once_while_there_is_room_and_none_waits() {
    let mut story = full(ROOM);
    assert!(!story.ask(key(1, 0), &None, Priority::High), "the queue has {ROOM} calls");
    assert!(story.ask(key(FILLS, 0), &None, Priority::Normal), "it was handed out before");
    story.turns.leave(key(FILLS, 0));
    assert!(!story.ask(key(2, 0), &None, Priority::Normal), "another one waits before it");
    assert_eq!(story.turns.next_granted(START), Some(key(1, 0)));
    assert_eq!(story.turns.next_granted(START), None, "the queue is full again");
}

#[test]
fn ten_calls_of_a_tenant_take_turns_with_the_backlog_of_another() {
    let mut story = full(1);
    for number in 0..20_000 {
        assert!(!story.ask(key(number, 0), &tenant("busy"), Priority::High));
    }
    let begun = story.drain_some(key(FILLS, 0), 50).last().copied().expect("calls are handed out");
    for number in 40_000..40_010 {
        story.ask(key(number, 0), &tenant("small"), Priority::Low);
    }
    let order = story.drain_some(begun, 20);
    let of_small = order.iter().filter(|key| key.run >= run_id(40_000)).count();
    assert_eq!(of_small, 10, "all ten are among the next twenty, whatever the priorities: {order:?}");
}

impl Story {
    fn drain_some(&mut self, mut begun: CallKey, count: usize) -> Vec<CallKey> {
        (0..count)
            .map(|_| {
                begun = self.next(begun).expect("a call waits");
                begun
            })
            .collect()
    }
}

#[test]
fn tenants_share_by_weight() {
    let mut story = full(1);
    for number in 0..400 {
        let (name, weight) = if number % 2 == 0 { ("light", 1) } else { ("heavy", 3) };
        let ticket = story.ticket(&tenant(name), weight, Priority::Normal);
        story.turns.request(key(number, 0), &ticket, story.now);
    }
    let order = story.drain_some(key(FILLS, 0), 100);
    let heavy = order.iter().filter(|key| (0..400).any(|n| n % 2 == 1 && key.run == run_id(n))).count();
    assert_eq!(heavy, 75);
}

#[test]
fn runs_of_a_tenant_take_turns_and_a_run_that_joins_comes_after_the_round() {
    let mut story = full(1);
    for call in 0..4 {
        story.ask(key(1, call), &None, Priority::Normal);
    }
    story.ask(key(2, 0), &None, Priority::Normal);
    story.ask(key(2, 1), &None, Priority::Normal);
    let mut begun = key(FILLS, 0);
    let mut order = Vec::new();
    for number in 0..6 {
        begun = story.next(begun).expect("a call waits");
        order.push(begun);
        // Single calls that keep coming do not hold up the run with many.
        story.ask(key(10 + number, 0), &None, Priority::Normal);
    }
    order.extend(story.drain(begun));
    let place = |key: CallKey| order.iter().position(|it| *it == key).expect("it had its turn");
    // The first run is in the next round too, and has been waiting for longer than the second.
    assert_eq!(order[..5], [key(1, 0), key(1, 1), key(2, 0), key(1, 2), key(2, 1)], "{order:?}");
    assert!(place(key(1, 2)) < place(key(12, 0)), "{order:?}");
    assert_eq!(order.len(), 12);
}

#[test]
fn a_higher_priority_comes_first_and_a_call_that_waits_long_rises() {
    let mut story = full(1);
    story.ask(key(1, 0), &None, Priority::Low);
    story.ask(key(2, 0), &None, Priority::Normal);
    story.now = START.after(AGING - Duration::from_millis(500));
    story.ask(key(3, 0), &None, Priority::High);
    assert_eq!(story.next(key(FILLS, 0)), Some(key(3, 0)));
    story.now = START.after(AGING + Duration::from_millis(500));
    story.ask(key(4, 0), &None, Priority::High);
    assert_eq!(story.turns.position(key(2, 0), story.now).map(|it| it.priority), Some(Priority::High));
    assert_eq!(story.next(key(3, 0)), Some(key(2, 0)), "it has been high for half a second");
    story.now = START.after(AGING * 2);
    story.ask(key(5, 0), &None, Priority::High);
    let order = story.drain(key(2, 0));
    assert_eq!(order, [key(4, 0), key(1, 0), key(5, 0)], "the lowest one rises twice");
}

#[test]
fn a_position_far_behind_is_not_counted_to_the_end_and_one_in_front_is() {
    let mut story = full(1);
    for number in 0..20_000 {
        story.ask(key(number, 0), &tenant("busy"), Priority::Normal);
    }
    for number in 30_000..31_000 {
        story.ask(key(number, 0), &tenant(&format!("t{number}")), Priority::Normal);
    }
    let position = |story: &mut Story, key| {
        let position = story.turns.position(key, story.now).expect("it waits");
        (position.ahead, position.is_exact)
    };
    assert_eq!(position(&mut story, key(0, 0)), (0, true));
    assert_eq!(position(&mut story, key(30_100, 0)), (101, true), "one of the busy tenant, and a hundred others");
    let (ahead, is_exact) = position(&mut story, key(19_999, 0));
    assert!(!is_exact && (LOOK_MAX..20_999).contains(&ahead), "{ahead}");
    let (ahead, is_exact) = position(&mut story, key(30_999, 0));
    assert!(!is_exact && (LOOK_MAX..1_000).contains(&ahead), "{ahead}");
    story.ask(key(40_000, 0), &tenant("busy"), Priority::High);
    assert_eq!(position(&mut story, key(40_000, 0)), (0, true));
}

#[test]
fn a_turn_that_is_not_used_costs_its_tenant_nothing() {
    let mut story = full(1);
    for number in 0..10 {
        story.ask(key(number, 0), &tenant("limited"), Priority::Normal);
        story.ask(key(100 + number, 0), &tenant("other"), Priority::Normal);
    }
    story.turns.leave(key(FILLS, 0));
    // Its limit of running calls is reached.
    let first = story.turns.next_granted(story.now).expect("a call waits");
    assert_eq!(first, key(0, 0));
    story.turns.leave(first);
    assert_eq!(story.turns.next_granted(story.now), Some(key(1, 0)), "the next call of the same tenant has the turn");
}

#[test]
fn a_pool_that_begins_many_calls_a_second_has_a_longer_queue() {
    let mut story = full(2);
    for number in 0..100 {
        story.ask(key(number, 0), &None, Priority::Normal);
    }
    let mut begun = key(FILLS, 0);
    for _ in 0..20 {
        story.turns.handle_begun(begun, story.now);
        begun = story.turns.next_granted(story.now).expect("there is room");
    }
    assert!(story.turns.handed_out(story.lane) >= 2);
    let mut handed_out = 0;
    while story.turns.next_granted(story.now).is_some() {
        handed_out += 1;
    }
    assert!(story.turns.handed_out(story.lane) == 20, "20 calls were begun in 50 ms, {handed_out} more fit");
    story.now = story.now.after(Duration::from_secs(1));
    assert_eq!(story.turns.next_granted(story.now), None, "the rate has gone");
}

#[test]
fn a_stranded_tool_does_not_hold_up_the_others_once_it_has_a_lane_of_its_own() {
    let mut story = full(ROOM);
    story.ask(key(1, 0), &None, Priority::Normal);
    for number in 0..ROOM {
        story.turns.handle_queued(key(FILLS + number, 0), story.lane);
    }
    assert_eq!(story.turns.next_granted(START), None);
    let separate = story.turns.add_lane(lane_named(Some("stranded")), ROOM);
    let ticket = Ticket { lane: separate, ..story.ticket(&None, 1, Priority::Normal) };
    story.turns.move_to(key(FILLS, 0), &ticket, START);
    assert_eq!(story.turns.next_granted(START), Some(key(1, 0)));
    story.ask(key(2, 0), &None, Priority::Normal);
    story.turns.move_to(key(2, 0), &ticket, START);
    assert_eq!(story.turns.next_granted(START), Some(key(2, 0)), "a waiting call moves too");
}

#[test]
fn a_lost_shard_and_a_grant_that_the_log_never_shows_free_their_places() {
    let mut story = full(ROOM);
    story.ask(key(1, 0), &None, Priority::Normal);
    story.turns.forget_late(START.after(HAND_OUT));
    assert_eq!(story.turns.handed_out(story.lane), 0);
    assert!(story.turns.has_waiting());
    story.turns.forget_shard(run_id(1).shard());
    assert!(!story.turns.has_waiting());
    assert_eq!(story.turns.next_granted(START), None);
}

#[test]
fn owners_divide_the_room_by_what_each_has_waiting() {
    let waits = |calls: &[(&str, u32)]| -> BTreeMap<Tenant, u32> {
        calls.iter().map(|(name, calls)| (tenant(name), *calls)).collect()
    };
    let even = |_: &Tenant| 1;
    assert_eq!(part(100, &waits(&[]), &waits(&[]), even), 100, "nothing waits anywhere");
    assert_eq!(part(100, &waits(&[("a", 500)]), &waits(&[]), even), 100);
    assert_eq!(part(100, &waits(&[("a", 500)]), &waits(&[("a", 1500)]), even), 25, "a tenant's part is split");
    assert_eq!(part(100, &waits(&[("a", 20_000)]), &waits(&[("b", 500)]), even), 50, "tenants share evenly");
    assert_eq!(part(100, &waits(&[("a", 20_000)]), &waits(&[("b", 10)]), even), 90, "ten calls need ten places");
    assert_eq!(part(100, &waits(&[("b", 10)]), &waits(&[("a", 20_000)]), even), 10);
    let weights = |name: &Tenant| if *name == tenant("a") { 3 } else { 1 };
    assert_eq!(part(100, &waits(&[("a", 500)]), &waits(&[("b", 500)]), weights), 75);
    assert_eq!(part(1, &waits(&[]), &waits(&[("a", 500)]), even), 1, "never nothing");
    let slots = (100, 50);
    assert_eq!(room(slots, &waits(&[("b", 10)]), None, even), 50, "without reports by the shards");
    assert_eq!(room(slots, &waits(&[("b", 10)]), Some(&waits(&[("a", 20_000)])), even), 10);
    assert_eq!(room(slots, &waits(&[]), Some(&waits(&[("a", 20_000)])), even), 50, "for calls that may come");
}

/// How many calls of each tenant two owners hand out while both have calls waiting. `waits`: what waits at each.
fn handed_out_by_two(waits: [&[(&str, u32)]; 2]) -> BTreeMap<Tenant, usize> {
    let demand = |calls: &[(&str, u32)]| calls.iter().map(|(name, calls)| (tenant(name), *calls)).collect();
    let waits_at: [BTreeMap<Tenant, u32>; 2] = waits.map(demand);
    let (mut all, mut number): (BTreeMap<Tenant, usize>, u32) = (BTreeMap::new(), 0);
    for (own, others) in [(0, 1), (1, 0)] {
        let (mut story, mut of) = (full(1), BTreeMap::new());
        for (name, calls) in waits[own] {
            for _ in 0..*calls {
                number += 1;
                story.ask(key(number, 0), &tenant(name), Priority::Normal);
                of.insert(key(number, 0), tenant(name));
            }
        }
        story.turns.set_shares(story.lane, &waits_at[own], &waits_at[others]);
        let part = part(300, &waits_at[own], &waits_at[others], |_| 1);
        for key in story.drain_some(key(FILLS, 0), part as usize) {
            *all.entry(of[&key].clone()).or_default() += 1;
        }
    }
    all
}

#[test]
fn a_tenant_whose_calls_wait_at_several_owners_gets_no_more_than_one_whose_calls_wait_at_one() {
    for waits in [
        [&[("here", 400), ("both", 400)][..], &[("both", 400)][..]],
        [&[("here", 400), ("both", 600)][..], &[("both", 200)][..]],
        [&[("here", 400), ("both", 400)][..], &[("both", 400), ("there", 1)][..]],
    ] {
        let all = handed_out_by_two(waits);
        let (here, both) = (all[&tenant("here")], all[&tenant("both")]);
        assert!(here.abs_diff(both) <= 4, "{all:?} of {waits:?}");
    }
}

/// A call that asks for its turn: tenant, run, priority.
fn asking() -> impl Strategy<Value = Vec<(u8, u32, u8)>> {
    prop::collection::vec((0u8..4, 0u32..12, 0u8..3), 1..80)
}

fn priority(number: u8) -> Priority {
    [Priority::Low, Priority::Normal, Priority::High][usize::from(number)]
}

fn name(number: u8) -> Tenant {
    (number > 0).then(|| format!("t{number}").parse().expect("a tenant"))
}

/// The calls in a lane with room for one, which is taken.
fn filled(calls: &[(u8, u32, u8)]) -> (Story, Vec<CallKey>) {
    let mut story = full(1);
    let keys: Vec<CallKey> = calls
        .iter()
        .zip(0..)
        .map(|((owner, run, level), number)| {
            // A run has one tenant.
            let key = key(run * 4 + u32::from(*owner), number);
            let ticket = story.ticket(&name(*owner), u32::from(*owner) + 1, priority(*level));
            story.turns.request(key, &ticket, story.now);
            story.now = Timestamp(story.now.0 + 1);
            key
        })
        .collect();
    (story, keys)
}

proptest! {
    #[test]
    fn every_call_has_one_turn_and_the_order_is_the_same_each_time(calls in asking()) {
        let (mut story, keys) = filled(&calls);
        let order = story.drain(key(FILLS, 0));
        prop_assert_eq!(order.iter().collect::<BTreeSet<_>>(), keys.iter().collect::<BTreeSet<_>>());
        prop_assert_eq!(order.len(), keys.len());
        let (mut again, _) = filled(&calls);
        prop_assert_eq!(again.drain(key(FILLS, 0)), order);
        prop_assert!(!story.turns.has_waiting());
    }

    #[test]
    fn the_position_is_the_place_in_the_order(calls in asking(), left in 0usize..80) {
        let (mut story, keys) = filled(&calls);
        story.turns.leave(keys[left % keys.len()]);
        // The first turns advance the tenants' virtual times and the rounds of the runs.
        let mut begun = key(FILLS, 0);
        for _ in 0..left % 7 {
            let Some(next) = story.next(begun) else { break };
            begun = next;
        }
        let now = story.now;
        let waiting = keys.iter().filter_map(|key| Some((*key, story.turns.position(*key, now)?)));
        let mut positions: Vec<(usize, CallKey)> = waiting.map(|(key, position)| (position.ahead, key)).collect();
        positions.sort_unstable();
        let expected: Vec<CallKey> = positions.into_iter().map(|(_, key)| key).collect();
        prop_assert_eq!(story.drain(begun), expected);
    }

    #[test]
    fn no_tenant_waits_for_longer_than_its_share_demands(calls in asking()) {
        let (mut story, keys) = filled(&calls);
        let owner_of: BTreeMap<CallKey, u8> = keys.iter().copied().zip(calls.iter().map(|call| call.0)).collect();
        let order = story.drain(key(FILLS, 0));
        // Between two calls of a tenant that waits, the others get their weights once, and one call each for rounding.
        for owner in 0u8..4 {
            let turns: Vec<usize> = (0..order.len()).filter(|at| owner_of[&order[*at]] == owner).collect();
            for pair in turns.windows(2) {
                for other in (0u8..4).filter(|other| *other != owner) {
                    let between = (pair[0] + 1..pair[1]).filter(|at| owner_of[&order[*at]] == other).count();
                    let share = (usize::from(other) + 1).div_ceil(usize::from(owner) + 1);
                    prop_assert!(between <= share + 1, "{between} calls of {other} between two of {owner}: {order:?}");
                }
            }
        }
    }

    #[test]
    fn the_queue_is_never_longer_than_its_room_and_forgets_nothing(
        calls in asking(), room in 1u32..6, steps in prop::collection::vec(0u8..4, 1..120),
    ) {
        let mut story = Story::with_room(room);
        let mut waiting: BTreeSet<CallKey> = BTreeSet::new();
        let mut out: Vec<CallKey> = Vec::new();
        let mut coming = calls.iter().zip(0..);
        for step in steps {
            match step {
                0 | 1 => if let Some(((owner, run, level), number)) = coming.next() {
                    let key = key(run * 4 + u32::from(*owner), number);
                    match story.ask(key, &name(*owner), priority(*level)) {
                        true => out.push(key),
                        false => drop(waiting.insert(key)),
                    }
                },
                2 => if let Some(begun) = out.pop() {
                    story.turns.handle_begun(begun, story.now);
                    story.now = story.now.after(Duration::from_millis(200));
                },
                _ => if let Some(first) = waiting.first().copied() {
                    story.turns.leave(first);
                    waiting.remove(&first);
                },
            }
            while let Some(granted) = story.turns.next_granted(story.now) {
                prop_assert!(waiting.remove(&granted), "{granted:?} did not wait");
                out.push(granted);
            }
            prop_assert!(out.len() <= room as usize, "{} calls were handed out", out.len());
            prop_assert_eq!(story.turns.handed_out(story.lane) as usize, out.len());
            prop_assert_eq!(story.turns.waiting(story.lane).iter().sum::<usize>(), waiting.len());
            prop_assert!(waiting.is_empty() || out.len() == room as usize, "a call waits although there is room");
        }
    }
}
