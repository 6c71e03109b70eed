//! A breadth-first search over all states of a small world. Its first counterexample is a shortest one.

use std::collections::{HashSet, VecDeque};
use std::fmt;

use crate::step::steps;
use crate::world::{COORDINATORS, Plan, SHORT, WORKERS, World};

/// Steps that a world without further faults may take until its run has ended.
const DRAIN_MAX: usize = 60;

/// What a search has seen.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    /// Steps from the beginning to the last state.
    pub(crate) depth: usize,
    /// States from which the run was brought to its end without further faults.
    pub(crate) drained: usize,
    /// Whether every state within the budget was seen.
    pub(crate) is_complete: bool,
    pub(crate) broken: Option<Counterexample>,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { states, transitions, depth, drained, .. } = self;
        write!(f, "{states} states, {transitions} transitions, at most {depth} steps, {drained} states drained")
    }
}

/// A broken promise, and the steps that lead to it.
#[derive(Debug)]
pub(crate) struct Counterexample {
    pub(crate) what: String,
    pub(crate) steps: Vec<String>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, after {} steps:", self.what, self.steps.len())?;
        self.steps.iter().enumerate().try_for_each(|(number, step)| writeln!(f, "  {:>2}. {step}", number + 1))
    }
}

/// A state that was seen: its predecessor, and which of that state's steps leads to it.
struct Seen {
    before: u32,
    choice: u16,
    depth: u16,
}

/// Explores all states within the plan's budget, but no more than `states_max`.
pub(crate) fn search(plan: Plan, states_max: usize) -> Found {
    let mut found = Found::default();
    let first = World::new(plan);
    let mut known = HashSet::from([first.fingerprint()]);
    let mut seen = vec![Seen { before: 0, choice: 0, depth: 0 }];
    let mut queue = VecDeque::from([(0_u32, first)]);
    while let Some((at, world)) = queue.pop_front() {
        if let Err(what) = check(&world, &mut found) {
            found.broken = Some(counterexample(plan, &seen, at, what));
            break;
        }
        for (choice, step) in (0..).zip(steps(&world)) {
            found.transitions += 1;
            let next = world.after(step);
            if !known.insert(next.fingerprint()) {
                continue;
            }
            let depth = seen[at as usize].depth + 1;
            found.depth = found.depth.max(depth.into());
            queue.push_back((u32::try_from(seen.len()).expect("fewer states than that"), next));
            seen.push(Seen { before: at, choice, depth });
        }
        if seen.len() >= states_max {
            found.states = seen.len();
            return found;
        }
    }
    found.states = seen.len();
    found.is_complete = found.broken.is_none();
    found
}

fn check(world: &World, found: &mut Found) -> Result<(), String> {
    if let Some(what) = &world.promises.broken {
        return Err(what.clone());
    }
    world.check_reader()?;
    if is_quiet(world) {
        found.drained += 1;
        drain(world.clone())?;
    }
    Ok(())
}

/// The steps to a state, found by taking them again.
fn counterexample(plan: Plan, seen: &[Seen], mut at: u32, what: String) -> Counterexample {
    let mut choices = Vec::new();
    while at != 0 {
        choices.push(seen[at as usize].choice);
        at = seen[at as usize].before;
    }
    let (mut world, mut lines) = (World::new(plan), Vec::new());
    for choice in choices.into_iter().rev() {
        let step = steps(&world)[usize::from(choice)];
        lines.push(step.describe(&world));
        world = world.after(step);
    }
    Counterexample { what, steps: lines }
}

/// Nothing happens any more unless time passes: from here on the run must come to its end without further faults.
fn is_quiet(world: &World) -> bool {
    world.wires.is_empty() && world.behind().is_none()
}

/// The world goes on without further faults, and crashed processes are started again: the run has to end.
fn drain(mut world: World) -> Result<(), String> {
    for round in 0..DRAIN_MAX {
        if world.has_ended() {
            return world.check_reader();
        }
        world.restart();
        if world.owner().is_none() {
            world.claim(round % COORDINATORS);
        }
        world.answer(u8::try_from(round).expect("few rounds"));
        loop {
            if let Some(index) = world.behind() {
                world.feed(index);
            } else if !world.wires.is_empty() {
                let (_, message) = world.wires.remove(0);
                world.receive(message);
            } else if let (Some(worker), Some((job, _))) =
                ((0..WORKERS).find(|worker| world.workers[*worker].is_free()), world.waiting().first())
            {
                world.deliver(worker, *job);
            } else {
                break;
            }
            if let Some(what) = &world.promises.broken {
                return Err(format!("{what} (without further faults)"));
            }
        }
        world.pass(SHORT, None);
    }
    Err(format!("the run does not end without further faults: {:?}", world.run.calls()[0].state()))
}
