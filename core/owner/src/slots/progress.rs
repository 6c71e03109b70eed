//! Calls of several runs that wait for slots, for turns and for calls that they made: in the end all of them end.

use proptest::prelude::*;
use run::{CallIndex, Priority};

use super::*;
use crate::turns::{Lane, LaneId, Ticket, Turns};

const START: Timestamp = Timestamp(1_700_000_000_000);

/// What a call is like. `parent` is the number of another one, modulo those before it.
#[derive(Debug, Clone)]
struct Plan {
    parent: Option<usize>,
    tool: u8,
    tenant: u8,
    pool: u8,
    priority: Priority,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The call that makes it has not begun.
    Unmade,
    Accepted,
    /// Handed out, and no worker has begun it.
    Queued,
    Begun,
    Ended,
}

/// A coordinator without IO: it asks for slots and turns as the real one does. Workers begin what is handed out, and a
/// call ends when those that it made have ended.
struct World {
    plans: Vec<Plan>,
    depths: Vec<u8>,
    states: Vec<State>,
    slots: Slots,
    turns: Turns,
    lanes: Vec<LaneId>,
    limits: BTreeMap<Whose, u32>,
    now: Timestamp,
}

impl World {
    fn new(mut plans: Vec<Plan>, (of_tool, of_tenant, room): (u32, u32, u32)) -> Self {
        let mut depths: Vec<u8> = Vec::new();
        for number in 0..plans.len() {
            let parent = plans[number].parent.filter(|_| number > 0).map(|parent| parent % number);
            // Calls further down may wait in a circle.
            let parent = parent.filter(|parent| depths[*parent] < DEPTH_MAX);
            depths.push(parent.map_or(0, |parent| depths[parent] + 1));
            plans[number].parent = parent;
            if let Some(parent) = parent {
                plans[number].tenant = plans[parent].tenant;
            }
        }
        let mut turns = Turns::default();
        let pool = |number: u8| format!("pool-{number}").parse().expect("a pool");
        let lane = |number| Lane { pool: pool(number), tool: None, is_stranded: false };
        let lanes = (0..2).map(|number| turns.add_lane(lane(number), room)).collect();
        let tools = (0..3).map(|number| (tool(number), of_tool));
        let limits = tools.chain((0..2).map(|number| (tenant(number), of_tenant))).collect();
        let states = vec![State::Unmade; plans.len()];
        Self { plans, depths, states, slots: Slots::default(), turns, lanes, limits, now: START }
    }

    fn key(&self, number: usize) -> CallKey {
        let run = format!("run_00_0193a7b4c2d07e3f8a1b2c3d{number:08x}").parse().expect("a run id");
        CallKey { run, call: CallIndex(0) }
    }

    fn beginner(&self, number: usize) -> Beginner {
        let id = || "a".parse().expect("a call id");
        let plan = &self.plans[number];
        let parent = plan.parent.map(|parent| ParentCall { run: self.key(parent).run, call: id() });
        let name = format!("t{}", plan.tenant).parse().ok();
        let claim = Claim { tenant: name, weight: 1, priority: plan.priority, since: self.now };
        Beginner { key: self.key(number), id: id(), parent, by: vec![tenant(plan.tenant), tool(plan.tool)], claim }
    }

    /// As the coordinator checks a call.
    fn check(&mut self, number: usize) {
        let (key, beginner) = (self.key(number), self.beginner(number));
        if self.states[number] != State::Accepted || self.turns.is_waiting(key) {
            return;
        }
        let ticket = Ticket { lane: self.lanes[usize::from(self.plans[number].pool)], claim: beginner.claim.clone() };
        let limits = &self.limits;
        if !self.slots.begin(beginner.clone(), &|whose, _| limits.get(whose).copied(), self.now) {
            self.turns.give_back(key);
        } else if !self.turns.request(key, &ticket, self.now) {
            self.slots.give_back(key);
        } else {
            self.states[number] = State::Queued;
            self.slots.handle_begun(key, || beginner);
            self.turns.handle_queued(key, ticket.lane);
        }
    }

    fn accept(&mut self, number: usize) {
        self.states[number] = State::Accepted;
        self.check(number);
    }

    /// Lets calls begin for which there are slots, and those whose turn has come.
    fn hand_out(&mut self) {
        let limits = self.limits.clone();
        for _ in 0..16 {
            self.now = self.now.after(Duration::from_millis(200));
            let mut next = self.slots.call_next(&|whose, _| limits.get(whose).copied(), self.now);
            next.extend(std::iter::from_fn(|| self.turns.next_granted(self.now)).map(|key| key.run));
            for number in 0..self.plans.len() {
                if next.contains(&self.key(number).run) {
                    self.check(number);
                }
            }
            self.assert_limits();
        }
    }

    fn children(&self, number: usize) -> impl Iterator<Item = usize> {
        (0..self.plans.len()).filter(move |child| self.plans[*child].parent == Some(number))
    }

    /// Whether a call waits for one that it made.
    fn waits(&self, number: usize) -> bool {
        self.children(number).any(|child| matches!(self.states[child], State::Accepted | State::Queued | State::Begun))
    }

    /// Of the calls of each depth, no more have a slot than a limit says.
    fn assert_limits(&self) {
        let has_slots = |number: &usize| matches!(self.states[*number], State::Queued | State::Begun);
        for (whose, limit) in &self.limits {
            for depth in 0..=DEPTH_MAX {
                let counts =
                    |number: &usize| self.depths[*number] == depth && self.beginner(*number).by.contains(whose);
                let count = (0..self.plans.len()).filter(has_slots).filter(counts).count();
                assert!(count <= *limit as usize, "{count} calls of {whose:?} at depth {depth}");
            }
        }
    }

    /// A step of this call, if there is one: a worker begins it, it makes the next call, or it ends.
    fn step(&mut self, number: usize) -> bool {
        match self.states[number] {
            State::Queued => {
                self.states[number] = State::Begun;
                self.turns.handle_begun(self.key(number), self.now);
                self.hand_out();
                return true;
            }
            State::Begun => {}
            State::Unmade | State::Accepted | State::Ended => return false,
        }
        let next = self.children(number).find(|child| self.states[*child] == State::Unmade);
        if let Some(child) = next {
            self.accept(child);
        } else if self.waits(number) {
            return false;
        } else {
            self.states[number] = State::Ended;
            self.slots.handle_ended(self.key(number));
        }
        self.hand_out();
        true
    }

    /// Steps in the order of `choices` until none is possible.
    fn run(&mut self, choices: &[usize]) {
        for number in 0..self.plans.len() {
            if self.plans[number].parent.is_none() && self.states[number] == State::Unmade {
                self.accept(number);
            }
        }
        self.hand_out();
        let mut choices = choices.iter().cycle();
        loop {
            let begun = choices.next().copied().unwrap_or_default();
            let count = self.plans.len();
            if !(0..count).any(|number| self.step((begun + number) % count)) {
                break;
            }
        }
    }
}

fn tool(number: u8) -> Whose {
    Whose::Tool(format!("tool_{number}").parse().expect("a tool"))
}

fn tenant(number: u8) -> Whose {
    Whose::Tenant(format!("t{number}").parse().expect("a tenant"))
}

fn plan(parent: Option<usize>, tool: u8) -> Plan {
    Plan { parent, tool, tenant: 0, pool: 0, priority: Priority::Normal }
}

#[test]
fn two_calls_that_each_wait_for_a_slot_of_the_other_come_through() {
    let mut world = World::new(vec![plan(None, 0), plan(None, 1), plan(Some(0), 1), plan(Some(1), 0)], (1, 9, 9));
    (0..2).for_each(|number| world.accept(number));
    for number in 0..2 {
        assert!(world.step(number), "a worker begins it");
        assert!(world.step(number), "it makes a call of the other tool");
    }
    world.run(&[0]);
    assert_eq!(world.states, [State::Ended; 4]);
}

#[test]
fn calls_that_take_all_slots_of_their_tenant_do_not_wait_for_one_in_vain() {
    let mut world = World::new((0..12).map(|number| plan((number >= 6).then(|| number - 6), 0)).collect(), (9, 3, 9));
    world.run(&[0]);
    assert_eq!(world.states, [State::Ended; 12]);
}

fn plans() -> impl Strategy<Value = Vec<Plan>> {
    let priority = prop_oneof![Just(Priority::Low), Just(Priority::Normal), Just(Priority::High)];
    let one = (prop::option::of(0usize..64), 0u8..3, 0u8..2, 0u8..2, priority);
    let plan = |(parent, tool, tenant, pool, priority)| Plan { parent, tool, tenant, pool, priority };
    prop::collection::vec(one.prop_map(plan), 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn calls_that_wait_for_slots_turns_and_each_other_all_end(
        plans in plans(),
        limits in (1u32..3, 1u32..4, 1u32..3),
        choices in prop::collection::vec(0usize..64, 1..40),
    ) {
        let mut world = World::new(plans, limits);
        world.run(&choices);
        prop_assert!(world.states.iter().all(|state| *state == State::Ended), "{:?}", world.states);
        prop_assert!(world.slots.counts(false).chain(world.slots.counts(true)).next().is_none());
        prop_assert!(world.slots.taken.is_empty() && world.slots.waiting.is_empty() && world.slots.called.is_empty());
        prop_assert!(!world.turns.has_waiting());
    }
}
