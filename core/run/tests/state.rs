//! The state of a run is that of its calls, in their order, whatever order they end in; and the context is what it was.

mod story;

use std::collections::BTreeMap;

use proptest::prelude::*;
use story::{
    RUN_LIFE, START, Story, cancel_requested, dispatched, ended, ended_as, expired, failed, failed_for_now, repeatable,
    run_id, shared, started, text,
};
use toolyard_run::{
    AttemptOutcome, CallSpec, CommandError, Completion, Event, Fields, Opening, Outcome, Run, RunOpened, limit,
};

type Map = BTreeMap<String, String>;

fn object(fields: &Map) -> Fields {
    fields.clone().into_iter().collect()
}

fn fields(object: &Fields) -> Map {
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
    gives: Map,
    /// What is given where nobody should hear it.
    forged: Map,
}

impl Plan {
    fn completes(&self) -> bool {
        match self.ends {
            Ends::Completes | Ends::CompletesLater | Ends::TriesAgain => true,
            Ends::Fails | Ends::Incomplete | Ends::Cancelled | Ends::Expires => false,
        }
    }

    fn events(&self, call: u16) -> Vec<Event> {
        let given =
            |fields: &Map| AttemptOutcome::Completed(Completion { result: text("done"), extra_state: object(fields) });
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
            let mut so_far = Map::new();
            for (call, plan) in story.run.calls().iter().zip(&plans) {
                let is_done = matches!(call.outcome(), Some(Outcome::Completed(_)));
                prop_assert_eq!(fields(call.extra_state()), if is_done { plan.gives.clone() } else { Map::new() });
                so_far.extend(is_done.then(|| plan.gives.clone()).into_iter().flatten());
            }
            prop_assert_eq!(fields(&story.run.extra_state()), so_far);
        }
        prop_assert!(story.run.status().is_final());
        let expected = plans.iter().filter(|plan| plan.completes()).flat_map(|plan| plan.gives.clone()).collect::<Map>();
        prop_assert_eq!(fields(&story.run.extra_state()), expected);

        let mut again = Run::new(run_id());
        story.log.iter().for_each(|entry| again.apply(entry, &mut Vec::new()));
        prop_assert_eq!(again.extra_state(), story.run.extra_state());
    }
}

fn of_bytes(bytes: usize) -> Fields {
    [("k".to_owned(), "7".repeat(bytes - 1))].into_iter().collect()
}

fn opening(open: bool, run: Fields, call: Fields) -> Result<RunOpened, CommandError> {
    let calls = shared([CallSpec { context: call, ..repeatable("a") }]);
    let opening = Opening { calls, deadline: START.after(RUN_LIFE), open, context: run, ..Opening::default() };
    let events = Run::open(opening, START)?;
    let Some(Event::RunOpened(opened)) = events.into_iter().next() else { panic!("a run begins with its opening") };
    Ok(opened)
}

#[test]
fn a_context_has_its_limit_in_a_run_and_in_each_call() {
    let (most, limit) = (limit::CONTEXT_BYTES_MAX, limit::CONTEXT_BYTES_MAX);
    assert!(opening(true, of_bytes(most), of_bytes(most)).is_ok());
    let too_large =
        |call: Option<&str>| CommandError::ContextTooLarge { call: call.map(story::id), size: most + 1, limit };
    assert_eq!(opening(true, of_bytes(most + 1), Fields::default()).unwrap_err(), too_large(None));
    assert_eq!(opening(false, of_bytes(1), of_bytes(most + 1)).unwrap_err(), too_large(Some("a")));
    // All contexts of a request must fit one entry together.
    let calls = shared((0..64).map(|index| CallSpec { context: of_bytes(most), ..repeatable(&index.to_string()) }));
    let opening = Opening { calls, deadline: START.after(RUN_LIFE), ..Opening::default() };
    assert!(matches!(Run::open(opening, START), Err(CommandError::RequestTooLarge { .. })));
}

#[test]
fn a_run_keeps_its_context_only_for_calls_that_may_be_added() {
    assert_eq!(opening(false, of_bytes(9), Fields::default()).unwrap().context, Fields::default());
    assert_eq!(opening(true, of_bytes(9), Fields::default()).unwrap().context, of_bytes(9));
    let mut story = Story::unopened();
    story.tell(Event::RunOpened(opening(true, of_bytes(9), Fields::default()).unwrap()));
    assert_eq!(story.run.context(), &of_bytes(9));
}

#[test]
fn a_debug_line_does_not_tell_what_is_in_a_context() {
    let context: Fields = [("token".to_owned(), "\"s3cret\"".to_owned())].into_iter().collect();
    let line = format!("{:?}", CallSpec { context, ..repeatable("a") });
    assert!(line.contains("token") && !line.contains("s3cret"), "{line}");
}
