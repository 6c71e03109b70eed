//! Who is next at a limit, as stories.

use run::{CallIndex, Priority};

use super::*;
use crate::turns::AGING;

const START: Timestamp = Timestamp(1_700_000_000_000);

fn key(number: u32) -> CallKey {
    let run = format!("run_00_0193a7b4c2d07e3f8a1b2c3d{number:08x}").parse().expect("a run id");
    CallKey { run, call: CallIndex(0) }
}

fn id() -> CallId {
    "a".parse().expect("a call id")
}

fn tool() -> Whose {
    Whose::Tool("scarce".parse().expect("a tool"))
}

fn tenant(name: &str) -> Whose {
    Whose::Tenant(name.parse().expect("a tenant"))
}

/// Slots of one tool and of tenants.
struct Story {
    slots: Slots,
    of_tool: Option<u32>,
    of_tenant: Option<u32>,
    now: Timestamp,
}

impl Story {
    fn of_tool(limit: u32) -> Self {
        Self { slots: Slots::default(), of_tool: Some(limit), of_tenant: None, now: START }
    }

    fn ask(&mut self, number: u32, name: &str, priority: Priority) -> bool {
        let by = vec![tenant(name), tool()];
        let claim = Claim { tenant: name.parse().ok(), weight: 1, priority, since: self.now };
        let (of_tool, of_tenant) = (self.of_tool, self.of_tenant);
        let limit = |whose: &Whose, _: bool| match whose {
            Whose::Tool(_) => of_tool,
            Whose::Tenant(_) => of_tenant,
        };
        self.slots.begin(Beginner { key: key(number), id: id(), parent: None, by, claim }, &limit, self.now)
    }

    fn next(&mut self) -> Vec<RunId> {
        let (of_tool, of_tenant) = (self.of_tool, self.of_tenant);
        let limit = |whose: &Whose, _: bool| match whose {
            Whose::Tool(_) => of_tool,
            Whose::Tenant(_) => of_tenant,
        };
        self.slots.call_next(&limit, self.now).into_iter().collect()
    }

    /// A call ends, and those that are called begin. They belong to this tenant.
    fn end(&mut self, number: u32) -> Vec<RunId> {
        assert!(self.slots.handle_ended(key(number)), "it had a slot");
        self.next()
    }
}

#[test]
fn the_highest_priority_comes_first_at_a_limit_and_a_call_that_waits_long_rises() {
    let mut story = Story::of_tool(1);
    assert!(story.ask(0, "acme", Priority::Low));
    assert!(!story.ask(1, "acme", Priority::Low));
    assert!(!story.ask(2, "acme", Priority::Normal));
    assert!(!story.ask(3, "acme", Priority::High), "the last one, and the most urgent");
    assert_eq!(story.slots.position(key(1), START).map(|(_, position)| position.ahead), Some(2));
    assert_eq!(story.end(0), [key(3).run]);
    assert!(!story.ask(1, "acme", Priority::Low), "it is not called");
    assert!(story.ask(3, "acme", Priority::High));
    story.now = START.after(AGING * 2);
    assert!(!story.ask(4, "acme", Priority::High));
    assert_eq!(story.end(3), [key(2).run], "it rose before the low one did");
    assert!(story.ask(2, "acme", Priority::Normal));
    assert_eq!(story.end(2), [key(1).run], "a call with a low priority is the most urgent after a minute");
}

#[test]
fn a_priority_does_not_outweigh_the_share_of_another_tenant() {
    let mut story = Story::of_tool(1);
    assert!(story.ask(0, "busy", Priority::High));
    for number in 1..20 {
        assert!(!story.ask(number, "busy", Priority::High));
    }
    assert!(!story.ask(20, "small", Priority::Low));
    let mut running = 0;
    let mut before = 0;
    loop {
        let [next] = story.end(running)[..] else { panic!("one is called") };
        if next == key(20).run {
            break;
        }
        (running, before) = (before + 1, before + 1);
        assert!(story.ask(running, "busy", Priority::High));
    }
    assert!(before <= 1, "{before} calls of the busy tenant came before it");
}

#[test]
fn a_call_that_comes_later_waits_behind_the_line_although_a_slot_is_free() {
    let mut story = Story::of_tool(1);
    assert!(story.ask(0, "acme", Priority::Normal));
    assert!(!story.ask(1, "acme", Priority::Normal));
    assert!(story.slots.handle_ended(key(0)));
    assert!(!story.ask(2, "acme", Priority::Normal));
    assert_eq!(story.next(), [key(1).run]);
    assert!(story.ask(1, "acme", Priority::Normal));
}

#[test]
fn a_call_whose_turn_has_not_come_leaves_its_slot_to_others_and_is_the_first_to_get_another() {
    let mut story = Story::of_tool(1);
    assert!(story.ask(1, "acme", Priority::Normal));
    story.slots.give_back(key(1));
    assert!(story.ask(2, "acme", Priority::Normal));
    assert!(!story.ask(3, "acme", Priority::Normal));
    assert!(!story.ask(4, "acme", Priority::Normal));
    // Its turn comes, and the slot is taken.
    assert!(!story.ask(1, "acme", Priority::Normal));
    assert_eq!(story.end(2), [key(1).run], "it was called before");
    // Its turn comes later, and until then it needs no place in the line.
    assert!(story.ask(1, "acme", Priority::Normal));
    story.slots.give_back(key(1));
    assert_eq!(story.next(), [key(3).run]);
    assert!(story.ask(1, "acme", Priority::Normal));
}

#[test]
fn a_call_that_waits_for_one_limit_keeps_no_slot_of_the_other() {
    let mut story = Story { of_tenant: Some(1), ..Story::of_tool(2) };
    assert!(story.ask(0, "acme", Priority::Normal));
    assert!(!story.ask(1, "acme", Priority::High), "its tenant has no slot left");
    assert!(story.ask(2, "other", Priority::Low), "its tool has");
    assert!(!story.ask(3, "third", Priority::Low));
    assert_eq!(story.end(2), [key(3).run]);
    assert!(story.ask(3, "third", Priority::Low));
    assert_eq!(story.end(0), [key(1).run]);
    // A slot of the tool is taken between the call and the beginning.
    story.of_tool = Some(1);
    assert!(!story.ask(1, "acme", Priority::High));
    assert_eq!(story.slots.position(key(1), story.now).map(|(line, _)| line), Some(tool()));
    assert_eq!(
        story.slots.counts(false).collect::<BTreeMap<_, _>>(),
        BTreeMap::from([(&tool(), 1), (&tenant("third"), 1)])
    );
}

#[test]
fn calls_of_a_tenant_at_its_limit_do_not_take_the_slots_of_a_tool_before_those_that_wait_for_it() {
    let mut story = Story { of_tenant: Some(1), ..Story::of_tool(1) };
    assert!(story.ask(0, "acme", Priority::Normal));
    assert!(!story.ask(1, "acme", Priority::Normal), "its tenant has no slot left");
    assert!(!story.ask(2, "acme", Priority::Normal));
    assert!(!story.ask(9, "other", Priority::Normal), "its tool has none");
    assert_eq!(story.end(0), [key(9).run]);
    assert!(story.ask(9, "other", Priority::Normal));
    assert_eq!(story.end(9), [key(1).run]);
    assert!(story.ask(1, "acme", Priority::Normal));
    assert_eq!(story.end(1), [key(2).run]);
}

#[test]
fn what_is_lost_or_has_no_limit_any_more_waits_for_nothing() {
    let mut story = Story::of_tool(1);
    for number in 0..4 {
        story.ask(number, "acme", Priority::Normal);
    }
    story.slots.leave(key(1));
    story.slots.leave(key(2));
    assert_eq!(story.end(0), [key(3).run]);
    assert!(story.ask(3, "acme", Priority::Normal));
    story.ask(4, "acme", Priority::Normal);
    story.slots.forget_shard(key(4).run.shard());
    assert_eq!(story.end(3), []);
    assert!(story.ask(5, "acme", Priority::Normal));
    assert!(!story.ask(6, "acme", Priority::Normal));
    assert_eq!(story.slots.forget_all().into_iter().collect::<Vec<_>>(), [key(6).run]);
}

#[test]
fn calls_wait_for_shards_that_are_being_read_and_not_for_those_that_cannot_be_read() {
    let known = |ages: &[u64]| Known::of(ages.iter().map(|age| Duration::from_secs(*age)));
    assert_eq!(known(&[]), Known::All);
    assert_eq!(known(&[1]), Known::Soon);
    assert_eq!(known(&[60, 1]), Known::Soon, "what was taken over just now is known in a moment");
    assert_eq!(known(&[60, 30, 31]), Known::Without(3));
    assert_eq!([Known::All, Known::Soon].map(|known| known.part(8, 32)), [8, 0]);
    let part = |limit, shards| Known::Without(shards).part(limit, 32);
    assert_eq!(part(8, 16), 4, "the rest is kept for what may run in the other half");
    assert_eq!([part(1, 16), part(3, 16), part(8, 32)], [1, 2, 1], "calls go on");
    assert_eq!(part(0, 16), 0);
}
