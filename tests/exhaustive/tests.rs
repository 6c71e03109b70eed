//! The worlds that every run of the tests explores, and the broken rules that must be found.

use crate::search::{Found, search};
use crate::world::{Budget, Flaw, Plan};

/// No search of a test sees more states: one that does has not explored its world.
const STATES_MAX: usize = 1_000_000;

/// Faults of any kinds, and one short step of time.
fn faults(faults: u8) -> Budget {
    Budget { short_steps: 1, ..Budget::with_faults(faults) }
}

fn plan(budget: Budget) -> Plan {
    Plan { repeatable: false, apart: false, delayed: false, asks: false, flaw: Flaw::None, budget }
}

fn explore(plan: Plan) -> Found {
    let found = search(plan, STATES_MAX);
    println!("{plan:?}: {found}");
    found
}

/// Panics with a shortest counterexample if a promise is broken.
fn keeps_its_promises(plan: Plan) {
    let found = explore(plan);
    if let Some(broken) = &found.broken {
        panic!("{plan:?}: {broken}");
    }
    assert!(found.is_complete, "{plan:?}: more than {STATES_MAX} states");
}

#[test]
fn a_call_that_is_not_safe_to_repeat_keeps_its_promises_whatever_two_faults_happen() {
    keeps_its_promises(plan(faults(2)));
}

#[test]
fn a_call_that_is_safe_to_repeat_keeps_its_promises_whatever_two_faults_happen() {
    keeps_its_promises(Plan { repeatable: true, ..plan(faults(2)) });
}

#[test]
fn a_call_whose_job_the_owner_appends_keeps_its_promises_whatever_fault_happens() {
    keeps_its_promises(Plan { apart: true, ..plan(faults(1)) });
}

#[test]
fn a_call_that_is_cancelled_keeps_its_promises_whatever_fault_happens() {
    for repeatable in [false, true] {
        keeps_its_promises(Plan { repeatable, ..plan(Budget { cancels: 1, ..Budget::with_faults(1) }) });
    }
}

#[test]
fn a_delayed_call_is_not_called_before_its_time_and_keeps_its_promises_whatever_fault_happens() {
    for repeatable in [false, true] {
        keeps_its_promises(Plan { repeatable, delayed: true, ..plan(faults(1)) });
    }
    keeps_its_promises(Plan { delayed: true, ..plan(Budget { cancels: 1, ..faults(0) }) });
}

#[test]
fn a_call_keeps_its_promises_when_leases_end_and_entries_come_too_late() {
    for repeatable in [false, true] {
        keeps_its_promises(Plan { repeatable, ..plan(Budget { long_steps: 1, ..faults(0) }) });
        keeps_its_promises(Plan { repeatable, ..plan(Budget { long_steps: 1, ..Budget::with_faults(1) }) });
    }
}

/// The tool asks its client, who answers so often: in time, late, or twice.
fn asking(answers: u8, budget: Budget) -> Plan {
    Plan { asks: true, ..plan(Budget { answers, ..budget }) }
}

#[test]
fn a_call_that_asks_keeps_its_promises_whatever_process_crashes() {
    let crash = Budget { faults: 1, crashes: 1, ..faults(0) };
    for repeatable in [false, true] {
        keeps_its_promises(Plan { repeatable, ..asking(1, crash) });
    }
}

#[test]
fn a_call_that_asks_keeps_its_promises_when_it_is_answered_twice_or_cancelled() {
    for repeatable in [false, true] {
        keeps_its_promises(Plan { repeatable, ..asking(2, Budget::with_faults(1)) });
        keeps_its_promises(Plan { repeatable, ..asking(1, Budget { cancels: 1, ..Budget::with_faults(0) }) });
    }
}

/// A search that cannot fail proves nothing: each of these rules is broken in turn, and a promise with it.
#[test]
fn every_rule_without_a_second_line_of_defense_is_missed_when_it_is_broken() {
    let cancelled = Budget { cancels: 1, ..faults(1) };
    let repeatable = Plan { repeatable: true, ..plan(faults(2)) };
    let flaws = [
        (Flaw::DeafWorker, plan(faults(1))),
        (Flaw::UnconfirmedStart, plan(cancelled)),
        (Flaw::EarlyAck, plan(faults(1))),
        (Flaw::IdleOwner, Plan { apart: true, ..plan(faults(1)) }),
        (Flaw::SilentReturn, plan(faults(1))),
        (Flaw::ForgetfulOwner, plan(faults(1))),
        (Flaw::AckSuperseded, plan(faults(1))),
        (Flaw::HastyAck, repeatable),
        (Flaw::ImpatientOwner, Plan { repeatable: true, delayed: true, ..plan(faults(0)) }),
        (Flaw::UnfencedQuestion, asking(0, faults(1))),
        (Flaw::StrayAnswer, Plan { repeatable: true, ..asking(1, faults(1)) }),
        (Flaw::AskedOnce, asking(0, faults(1))),
    ];
    for (flaw, plan) in flaws {
        let found = explore(Plan { flaw, ..plan });
        assert!(found.broken.is_some(), "no promise is broken with {flaw:?}");
    }
}

#[test]
fn a_counterexample_names_the_steps_that_lead_to_it() {
    let found = explore(Plan { flaw: Flaw::UnconfirmedStart, ..plan(Budget { cancels: 1, ..faults(1) }) });
    let text = found.broken.expect("a promise is broken").to_string();
    assert!(text.contains("its start does not count, after 5 steps:"), "{text}");
    assert!(text.contains("the client cancels the call"), "{text}");
}
