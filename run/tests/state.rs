//! The state of a run is that of its calls, in their order, whatever order they end in.

mod story;

use std::collections::BTreeMap;

use proptest::prelude::*;
use story::{
    Story, cancel_requested, dispatched, ended, ended_as, expired, failed, failed_for_now, repeatable, run_id, started,
    text,
};
use toolyard_run::{AttemptOutcome, Completion, Event, Object, Outcome, Run};

type Fields = BTreeMap<String, String>;

fn object(fields: &Fields) -> Object {
    fields.clone().into_iter().collect()
}

fn fields(object: &Object) -> Fields {
    object.iter().map(|(key, json)| (key.to_owned(), json.to_owned())).collect()
}

/// How a call ends, in the words of its attempts.
#[derive(Debug, Clone, Copy)]
enum Ends {
    Completes,
    /// A second attempt completes, and so say others that do not count.
    CompletesLater,
    /// The first attempt fails, the second completes.
    TriesAgain,
    Fails,
    /// It completes, but not all of its output reached the log.
    Incomplete,
    Cancelled,
    Expires,
}

#[derive(Debug, Clone)]
struct Plan {
    ends: Ends,
    /// What it gives, where it completes.
    gives: Fields,
    /// What is given where nobody should hear it.
    forged: Fields,
}

impl Plan {
    fn completes(&self) -> bool {
        match self.ends {
            Ends::Completes | Ends::CompletesLater | Ends::TriesAgain => true,
            Ends::Fails | Ends::Incomplete | Ends::Cancelled | Ends::Expires => false,
        }
    }

    fn events(&self, call: u16) -> Vec<Event> {
        let given = |fields: &Fields| {
            AttemptOutcome::Completed(Completion { result: text("done"), extra_state: object(fields) })
        };
        let (gives, forged) = (given(&self.gives), given(&self.forged));
        let mut events = vec![dispatched(call), started(call, 1)];
        events.extend(match self.ends {
            Ends::Completes => vec![ended(call, 1, gives)],
            Ends::CompletesLater => vec![
                started(call, 2),
                ended(call, 1, forged.clone()),
                ended(call, 2, gives),
                ended(call, 2, forged.clone()),
                ended(call, 3, forged),
            ],
            Ends::TriesAgain => vec![failed_for_now(call, 1), started(call, 2), ended(call, 2, gives)],
            Ends::Fails => vec![failed(call, 1), ended(call, 1, forged)],
            Ends::Incomplete => vec![ended_as(story::attempt(call, 1), "alpha", 3, forged)],
            Ends::Cancelled => {
                vec![cancel_requested(call), ended(call, 1, AttemptOutcome::Cancelled), ended(call, 1, forged)]
            }
            Ends::Expires => vec![expired(call), ended(call, 1, forged)],
        });
        events
    }
}

fn plan() -> impl Strategy<Value = Plan> {
    let ends = prop::sample::select(vec![
        Ends::Completes,
        Ends::Completes,
        Ends::CompletesLater,
        Ends::TriesAgain,
        Ends::Fails,
        Ends::Incomplete,
        Ends::Cancelled,
        Ends::Expires,
    ]);
    let fields = || prop::collection::btree_map("[a-d]", "[0-9]", 0..4);
    (ends, fields(), fields()).prop_map(|(ends, gives, forged)| Plan { ends, gives, forged })
}

/// The calls' events, each call's in order, the calls' in any; some of them stored twice.
fn interleaved(plans: &[Plan], picks: &[(usize, bool)]) -> Vec<Event> {
    let mut scripts: Vec<_> = (0..).zip(plans).map(|(call, plan)| plan.events(call).into_iter().peekable()).collect();
    let mut picks = picks.iter().cycle();
    let mut told = Vec::new();
    while scripts.iter_mut().any(|script| script.peek().is_some()) {
        let Some((pick, twice)) = picks.next() else { break };
        let left: Vec<usize> = (0..scripts.len()).filter(|&call| scripts[call].peek().is_some()).collect();
        let Some(event) = scripts[left[pick % left.len()]].next() else { break };
        told.extend(twice.then(|| event.clone()));
        told.push(event);
    }
    told
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn state_is_merged_in_the_order_of_the_calls_and_only_of_those_that_completed(
        plans in prop::collection::vec(plan(), 1..6),
        picks in prop::collection::vec((any::<usize>(), any::<bool>()), 1..40),
    ) {
        let mut story = Story::of((0..plans.len()).map(|call| repeatable(&format!("call-{call}"))));
        for event in interleaved(&plans, &picks) {
            story.tell(event);
            let mut so_far = Fields::new();
            for (call, plan) in story.run.calls().iter().zip(&plans) {
                let is_done = matches!(call.outcome(), Some(Outcome::Completed(_)));
                prop_assert_eq!(fields(call.extra_state()), if is_done { plan.gives.clone() } else { Fields::new() });
                so_far.extend(is_done.then(|| plan.gives.clone()).into_iter().flatten());
            }
            prop_assert_eq!(fields(&story.run.extra_state()), so_far);
        }
        prop_assert!(story.run.status().is_final());
        let expected = plans.iter().filter(|plan| plan.completes()).flat_map(|plan| plan.gives.clone()).collect::<Fields>();
        prop_assert_eq!(fields(&story.run.extra_state()), expected);

        let mut again = Run::new(run_id());
        story.log.iter().for_each(|entry| again.apply(entry, &mut Vec::new()));
        prop_assert_eq!(again.extra_state(), story.run.extra_state());
    }
}
