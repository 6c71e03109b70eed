//! The promises of a run, held against random histories: honest ones with lags, crashes and forgeries, and plain
//! garbage. `PROPTEST_CASES` asks for more cases than the default.

mod reader;
mod story;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use reader::hall::Hall;
use reader::log::{
    attempt_of, chunks_that_count, continuing, fails_fast, for_any_entry, for_each_entry, forged, newest_attempts,
    pooled, twin, was_returned,
};
use reader::{listen, pieces, resumed, unfold};
use story::{START, ended_as, run_id, speak, started_from};
use toolyard_run::{
    AfterPartialOutput, AttemptId, AttemptOutcome, Call, CallError, CallIndex, CallState, CommandError, Concurrency,
    DeadlineKind, Decider, Decision, Effect, ErrorKind, Event, Fact, FloorPolicy, Nonce, Outcome, OutputKind, Run,
    RunStatus, Sequencer, Stopped, Timestamp, Verdict,
};
use world::{History, ask, entry, fold, garbage, histories, performed, pick, whole_histories};

const POLICIES: [FloorPolicy; 3] = [FloorPolicy::Arrival, FloorPolicy::Submission, FloorPolicy::Interleaved];

fn cases(count: u32) -> ProptestConfig {
    let default = ProptestConfig::default();
    // ChaCha, the default, is most of the running time of a build without optimization.
    let rng_algorithm = RngAlgorithm::XorShift;
    ProptestConfig { cases: count.max(default.cases), failure_persistence: None, rng_algorithm, ..default }
}

fn any_history() -> impl Strategy<Value = History> {
    prop_oneof![histories(), garbage()]
}

/// Everything about a call that is not bookkeeping of its subject: repeated events raise its revision.
fn facts(call: &Call) -> (CallState, u32, bool, Option<CallError>) {
    (call.state().clone(), call.attempts_used(), call.cancel_requested(), call.last_failure().cloned())
}

type RunFacts = (RunStatus, bool, Vec<(CallState, u32, bool, Option<CallError>)>, Option<Timestamp>);

fn run_facts(run: &Run) -> RunFacts {
    (run.status(), run.is_open(), run.calls().iter().map(facts).collect(), run.next_deadline())
}

/// Whether all that stands of the call's output is of one attempt.
fn newest_only(call: &Call) -> bool {
    pooled(call).is_none_or(|(_, policy)| policy.after_partial_output != AfterPartialOutput::Continue)
}

fn dispatches(effect: &Effect) -> bool {
    matches!(effect, Effect::Dispatch { .. })
}

fn apply(run: &Run, event: Event) -> (Run, Vec<Fact>) {
    let (mut run, mut heard, sequence, at) = (run.clone(), Vec::new(), u64::MAX, Timestamp(u64::MAX));
    run.apply(&entry(sequence, at, event), &mut heard);
    (run, heard)
}

fn assert_changes_nothing(run: &Run, event: Event) {
    let (after, heard) = apply(run, event.clone());
    assert_eq!((run, heard), (&after, vec![]), "changed by {event:?}");
}

// ---- the fold ----

proptest! {
    #![proptest_config(cases(1500))]

    /// Asks everything of a run that can be asked, after anything that could be stored.
    #[test]
    fn nothing_in_a_log_makes_the_core_panic(history in any_history(), ask in ask(), delivered in any::<u32>()) {
        for_each_entry(&history.log, |entry, _, run, _| {
            let times = [Timestamp(0), entry.at, history.now, Timestamp(u64::MAX)];
            for now in times {
                for effect in run.outstanding(now) {
                    performed(run, effect);
                }
                if let Some(command) = ask.command(run, &[]) {
                    drop(run.decide(command, now));
                }
            }
            for call in run.calls() {
                drop(call.verdict(delivered, entry.at));
                for workers in [None, Some(0), Some(1), Some(7)] {
                    let why = run.why(call, entry.at, workers);
                    assert!(!why.contains(char::is_control) && !why.trim().is_empty(), "{why:?}");
                }
            }
        });
        for policy in POLICIES {
            speak(&history.log, policy);
        }
    }

    #[test]
    fn a_fold_can_be_interrupted_anywhere(history in any_history(), at in pick()) {
        let (first, rest) = history.log.split_at(at.among(history.log.len() + 1));
        let (mut whole, mut heard_whole) = (Run::new(run_id()), Vec::new());
        for entry in &history.log {
            whole.apply(entry, &mut heard_whole);
        }
        let (mut parted, mut heard_parted) = (Run::new(run_id()), Vec::new());
        for entry in first {
            parted.apply(entry, &mut heard_parted);
        }
        let mut resumed = parted.pack().as_deref().and_then(Run::unpack).expect("its state is packed and unpacked");
        for entry in rest {
            resumed.apply(entry, &mut heard_parted);
        }
        prop_assert_eq!(&whole, &resumed);
        prop_assert_eq!(heard_whole, heard_parted);
        prop_assert_eq!(parted, fold(first), "nor did the rest change what was folded before");
    }

    #[test]
    fn an_ended_call_never_changes_and_neither_does_an_ended_run(history in any_history()) {
        for_each_entry(&history.log, |entry, before, after, heard| {
            for (old, new) in before.calls().iter().zip(after.calls()).filter(|(old, _)| old.outcome().is_some()) {
                assert_eq!(facts(old), facts(new), "changed by {entry:?}");
            }
            assert!(before.calls().len() <= after.calls().len());
            if before.status().is_final() {
                assert_eq!(run_facts(before), run_facts(after), "changed by {entry:?}");
                assert_eq!(heard, []);
            }
            let open_calls = after.calls().iter().any(|call| call.outcome().is_none());
            assert_eq!(after.status().is_final(), !open_calls && !after.is_open() && after.opened_at().is_some());
        });
    }

    #[test]
    fn no_state_but_the_last_is_without_a_deadline(history in any_history()) {
        for_each_entry(&history.log, |_, _, run, _| {
            let goes_on = run.opened_at().is_some() && !run.status().is_final();
            let next = run.next_deadline();
            assert_eq!(next.is_some(), goes_on);
            let Some(next) = next else { return assert_eq!(run.outstanding(Timestamp(u64::MAX)), []) };
            let latest = run.calls().iter().filter(|call| call.outcome().is_none()).map(|call| call.spec().deadline);
            assert!(latest.chain([run.deadline()]).all(|deadline| next <= deadline));
            let ends_something = |effect: &Effect| {
                use Effect::{Cancel, Decide, EndDelay, Expire, ExpireRun};
                matches!(effect, Cancel { .. } | Decide { .. } | EndDelay { .. } | Expire { .. } | ExpireRun)
            };
            assert!(run.outstanding(next).iter().any(ends_something), "woken at {next:?} for nothing");
            if let Some(before) = next.0.checked_sub(1).map(Timestamp) {
                assert_eq!(run.outstanding(before), run.outstanding(Timestamp(0)), "time alone changed the answer");
                assert!(!run.outstanding(before).iter().any(ends_something));
            }
        });
    }

    #[test]
    fn left_alone_everything_ends_by_its_deadline(history in any_history(), at in pick()) {
        let cut = history.cut(at);
        let (run, from, tried) = (cut.fold(), cut.now, newest_attempts(&cut.log));
        let ended = cut.left_alone().map_err(TestCaseError::fail)?;
        let ended_run = ended.fold();
        prop_assert_eq!(ended_run.status().is_final(), run.opened_at().is_some());
        for (before, after) in run.calls().iter().zip(ended_run.calls()) {
            let CallState::Ended(end) = after.state() else { panic!("{after:?} did not end") };
            let deadline = after.spec().deadline.min(run.deadline()).max(from);
            prop_assert!(before.outcome().is_some() || end.at <= deadline, "{:?} ended late", after);
            // What awaits approval is in the queue for as long afterwards.
            let is_untried = pooled(before).is_some() && before.spec().approval.is_none() && !tried.contains_key(&before.index());
            let start_by = before.spec().queue_deadline.filter(|_| is_untried).map(|queue| queue.max(from));
            prop_assert!(before.outcome().is_some() || start_by.is_none_or(|by| end.at <= by), "{:?} waited", after);
        }
        prop_assert!(run.status().is_final() || ended.now <= run.deadline().max(from));
    }

    #[test]
    fn an_exclusive_call_runs_alone_and_no_turn_is_taken_back(history in histories()) {
        let mut due: Vec<Effect> = Vec::new();
        for_each_entry(&history.log, |_, _, run, _| {
            // A call that has ended counts as long as its tool may still run.
            let begun = |call: &&Call| matches!(call.state(), CallState::Queued { .. } | CallState::Running(_));
            let in_flight = |call: &&Call| begun(call) || call.unsettled().is_some();
            let alone = |call: &&Call| call.spec().concurrency == Concurrency::Exclusive;
            let calls: Vec<_> = run.calls().iter().filter(in_flight).collect();
            assert!(calls.len() < 2 || !calls.iter().any(alone), "{calls:?}");
            let room = run.rules().running_max.map_or(usize::MAX, usize::from);
            assert!(calls.len() <= room, "{} at once, {room} may be", calls.len());

            let now: Vec<Effect> = run.outstanding(Timestamp(0)).into_iter().filter(dispatches).collect();
            let held = |call: &Call| *call.state() == CallState::Accepted;
            assert!(!now.is_empty() || !calls.is_empty() || !run.calls().iter().any(held), "nobody goes on: {run:?}");
            let is_open = |effect: &&Effect| {
                matches!(effect, Effect::Dispatch { call } if run.call(*call).is_some_and(held))
            };
            assert!(due.iter().filter(is_open).all(|effect| now.contains(effect)), "{due:?}, then {now:?}");
            due = now;
        });
    }

    #[test]
    fn nothing_runs_before_it_is_approved(history in any_history()) {
        for_each_entry(&history.log, |_, before, run, _| {
            for call in run.calls().iter().filter(|call| call.spec().approval.is_some() && pooled(call).is_some()) {
                let decision = call.decided().map(|decided| &decided.decision);
                let approved = matches!(decision, Some(Decision::Approved { .. }));
                let ran = call.attempts_used() > 0 || matches!(call.state(), CallState::Queued { .. });
                assert!(approved || !ran, "{call:?}");
                if let Some(Decision::Approved { arguments: Some(arguments) }) = decision {
                    assert_eq!(call.spec().arguments, arguments);
                }
                let earlier = before.call(call.index()).and_then(Call::decided);
                assert!(earlier.is_none() || earlier == call.decided(), "decided twice: {call:?}");
            }
        });
    }

    #[test]
    fn an_attempt_that_is_not_the_newest_changes_nothing(history in any_history(), at in pick()) {
        let history = history.cut(at);
        let run = history.fold();
        let newest = newest_attempts(&history.log);
        let mut stale = 0;
        let events = history.log.iter().flat_map(|entry| &entry.events);
        for event in events.flat_map(|event| [Some(event.clone()), twin(event)]).flatten() {
            let Some(attempt) = attempt_of(&event) else { continue };
            if newest.get(&attempt.call).is_some_and(|newest| attempt != *newest && attempt.number <= newest.number) {
                stale += 1;
                assert_changes_nothing(&run, event);
            }
        }
        // Each event of a known attempt has a twin that is not it.
        prop_assert!(stale > 0 || newest.is_empty());
    }

    #[test]
    fn what_another_pool_says_changes_nothing(history in any_history(), at in pick()) {
        let run = history.cut(at).fold();
        for event in history.log.iter().flat_map(|entry| &entry.events).filter_map(forged) {
            assert_changes_nothing(&run, event);
        }
    }

    #[test]
    fn an_attempt_that_ended_changes_nothing_more(history in any_history()) {
        let mut ended = BTreeSet::new();
        for_each_entry(&history.log, |entry, before, after, heard| {
            let key = |attempt: AttemptId| (attempt.call, attempt.number, attempt.nonce);
            let is_stale = |event| attempt_of(event).is_some_and(|attempt| ended.contains(&key(attempt)));
            if entry.events.iter().all(is_stale) {
                assert_eq!((before, heard), (after, [].as_slice()), "{entry:?}");
            }
            ended.extend(heard.iter().filter_map(|fact| match fact {
                Fact::AttemptEnded { attempt } => Some(key(*attempt)),
                _ => None,
            }));
        });
    }

    #[test]
    fn an_effect_performed_twice_is_an_effect_performed_once(
        history in any_history(), at in pick(), which in pick(), again in pick(),
    ) {
        prop_assume!(!history.log.is_empty());
        let (mut once, done_at) = (history.clone(), at.among(history.log.len()));
        let run = fold(&history.log[..=done_at]);
        let now = run.next_deadline().filter(|_| which.among(2) == 0).unwrap_or(history.now);
        let effects = run.outstanding(now).into_iter();
        let events: Vec<Event> = effects.filter_map(|effect| performed(&run, effect)).collect();
        let Some(event) = which.of(&events) else { return Ok(()) };

        let entry = |after: u64| entry(after.saturating_add(1), now, event.clone());
        once.log.insert(done_at + 1, entry(history.log[done_at].sequence));
        let mut twice = once.clone();
        let repeated_at = done_at + 1 + again.among(once.log.len() - done_at - 1);
        twice.log.insert(repeated_at + 1, entry(once.log[repeated_at].sequence));

        prop_assert_eq!(run_facts(&once.fold()), run_facts(&twice.fold()));
        for policy in POLICIES {
            prop_assert_eq!(speak(&once.log, policy), speak(&twice.log, policy));
        }
    }

    #[test]
    fn what_was_decided_and_stored_needs_no_deciding_again(history in histories(), at in pick(), ask in ask()) {
        let History { log, now } = history.cut(at);
        let mut run = fold(&log);
        let Some(command) = ask.command(&run, &[]) else { return Ok(()) };
        let Ok(events) = run.decide(command.clone(), now) else { return Ok(()) };
        for (event, sequence) in events.into_iter().zip(1000..) {
            run.apply(&entry(sequence, now, event), &mut Vec::new());
        }
        let again = run.decide(command, now);
        // The first of several errors or rejections may have failed the run, and with it the call that the second was
        // for.
        use CommandError::{CallNotWaiting, NotAwaitingApproval};
        let state = "cancelled";
        let cancelled = matches!(again, Err(CallNotWaiting { state: s, .. } | NotAwaitingApproval { state: s, .. }) if s == state);
        prop_assert!(again == Ok(vec![]) || (cancelled && fails_fast(&log)), "{:?}", again);
    }
}

// ---- verdicts ----

proptest! {
    #![proptest_config(cases(1500))]

    #[test]
    fn a_call_that_is_not_repeatable_does_not_go_again_once_its_start_is_on_record(
        history in any_history(), delivered in 0..5u32,
    ) {
        // Attempts on record that were not given back.
        let mut on_record: BTreeMap<CallIndex, u32> = BTreeMap::new();
        for_each_entry(&history.log, |entry, _, run, heard| {
            for fact in heard {
                match fact {
                    Fact::AttemptStarted { attempt, .. } => *on_record.entry(attempt.call).or_default() += 1,
                    Fact::AttemptEnded { attempt } if was_returned(entry, *attempt) => {
                        *on_record.get_mut(&attempt.call).expect("it started") -= 1;
                    }
                    _ => {}
                }
            }
            for call in run.calls().iter().filter(|call| pooled(call).is_some_and(|(_, policy)| !policy.repeatable)) {
                let started = on_record.get(&call.index()).is_some_and(|attempts| *attempts > 0);
                let verdict = call.verdict(delivered, entry.at);
                assert!(!(started && matches!(verdict, Verdict::Go { .. })), "{call:?}");
                if let CallState::Running(running) = call.state() {
                    let Verdict::End { attempt, outcome } = verdict else { panic!("{verdict:?} for {call:?}") };
                    assert_eq!(attempt, running.attempt);
                    match outcome {
                        AttemptOutcome::Failed(error) => assert_eq!(error.kind, ErrorKind::Interrupted),
                        other => panic!("{other:?} for {call:?}"),
                    }
                }
            }
        });
    }

    /// The verdict and the fold agree: who goes is heard, and who ends a call ends it.
    #[test]
    fn a_worker_that_does_as_it_is_told_is_heard(history in any_history(), at in pick(), delivered in 0..5u32) {
        let run = history.cut(at).fold();
        for call in run.calls() {
            let Some((pool, policy)) = pooled(call) else {
                prop_assert_eq!(call.verdict(delivered, START), Verdict::Drop);
                continue;
            };
            match call.verdict(delivered, START) {
                Verdict::Go { number, used, from } => {
                    prop_assert_eq!(used, call.attempts_used());
                    prop_assert!(number.0 >= delivered.max(1));
                    let running = matches!(call.state(), CallState::Running(_));
                    prop_assert!(!running || (policy.repeatable && used < policy.attempts_max));
                    let attempt = AttemptId { call: call.index(), number, nonce: Nonce(u64::MAX) };
                    let heard = apply(&run, started_from(attempt, pool.as_str(), from.0)).1;
                    let is_heard = heard.contains(&Fact::AttemptStarted { attempt, continues: from.0 > 0 });
                    prop_assert!(is_heard || *call.state() == CallState::Accepted);
                }
                Verdict::End { attempt, outcome } => {
                    let (after, _) = apply(&run, ended_as(attempt, pool.as_str(), 0, outcome));
                    prop_assert!(after.call(call.index()).is_some_and(|call| call.outcome().is_some()));
                }
                Verdict::Leave => prop_assert!(false, "that is said by who knows which workers live"),
                Verdict::Drop => {
                    let start_by = call.deadline().min(call.spec().queue_deadline.unwrap_or(Timestamp(u64::MAX)));
                    let is_held = matches!(call.state(), CallState::AwaitingApproval | CallState::Delayed);
                    prop_assert!(call.outcome().is_some() || is_held || start_by <= START);
                }
            }
        }
    }
}

// ---- the output ----

proptest! {
    #![proptest_config(cases(1000))]

    #[test]
    fn every_reader_hears_each_thing_once_and_in_order(history in whole_histories()) {
        let run = history.fold();
        let expected = chunks_that_count(&history.log);
        for policy in POLICIES {
            let transcript = listen(&history.log, policy);
            prop_assert!(transcript.run_ended);
            for call in run.calls() {
                let voice = transcript.calls.get(&call.index()).expect("every call is heard of");
                prop_assert!(voice.ended);
                let (attempt, count) = expected.get(&call.index()).copied().unzip();
                let stands = |said: &AttemptId| Some(*said) == attempt || !newest_only(call);
                prop_assert!(voice.said.iter().all(stands));
                prop_assert_eq!(voice.said.len(), count.unwrap_or(0) as usize);
            }
        }
    }

    #[test]
    fn what_is_held_back_is_heard_as_its_call_ends_and_not_before(history in any_history()) {
        for_each_entry(&history.log, |_, _, run, heard| {
            for fact in heard {
                let Fact::Output { attempt, .. } = fact else { continue };
                let Some((_, policy)) = run.call(attempt.call).and_then(pooled) else { continue };
                let ends = heard.contains(&Fact::CallEnded { call: attempt.call });
                assert!(policy.after_partial_output != AfterPartialOutput::Buffer || ends, "{attempt:?}");
            }
        });
    }

    #[test]
    fn in_a_run_that_fails_nothing_waits_any_more(history in any_history()) {
        for_each_entry(&history.log, |_, _, run, heard| {
            let waits = |call: &Call| match call.state() {
                CallState::Accepted
                | CallState::AwaitingApproval
                | CallState::Delayed
                | CallState::WaitingForClient
                | CallState::Queued { .. } => true,
                CallState::Running(_) => !call.cancel_requested(),
                CallState::Ended(_) => false,
            };
            let closes = run.outstanding(Timestamp(0)).contains(&Effect::Close);
            assert!(!closes || !run.calls().iter().any(waits), "{run:?}");
            let fails = heard.contains(&Fact::StatusChanged(RunStatus::Failed));
            let failed = |call: &Call| matches!(call.outcome(), Some(Outcome::Failed(_) | Outcome::Expired(_)));
            assert!(!fails || run.requested_calls().any(failed), "{run:?}");
        });
    }

    #[test]
    fn a_run_fails_with_a_call_where_that_was_asked_for_and_nowhere_else(history in histories()) {
        for_each_entry(&history.log, |_, before, run, _| {
            let failed = run.requested_calls().any(|call| matches!(call.outcome(), Some(Outcome::Failed(_) | Outcome::Expired(_))));
            let may_fail = run.rules().fails_with_call || fails_fast(&history.log);
            match run.status() {
                RunStatus::Failed => assert!(failed && may_fail, "{run:?}"),
                RunStatus::Completed => assert!(!(failed && may_fail), "{run:?}"),
                RunStatus::InProgress | RunStatus::RequiresAction | RunStatus::Cancelled | RunStatus::Expired => {}
            }
            assert!(!before.returns_direct() || run.returns_direct(), "what was the answer is not taken back");
            let completes = |call: &Call| {
                matches!(call.outcome(), Some(Outcome::Completed(_))) && call.spec().result_use.return_direct
            };
            let all = run.status().is_final() && run.requested_calls().count() > 0 && run.requested_calls().all(completes);
            assert!(!run.returns_direct() || all, "{run:?}");
            assert!(!(all && run.status() == RunStatus::Completed) || run.returns_direct(), "{run:?}");
        });
    }

    #[test]
    fn a_result_comes_with_all_of_its_output(history in whole_histories()) {
        let chunks = chunks_that_count(&history.log);
        for call in history.fold().calls() {
            let (Some(Outcome::Completed(_)), Some(_)) = (call.outcome(), pooled(call)) else { continue };
            let (newest, count) = chunks[&call.index()];
            let says_so = |event: &Event| matches!(
                event,
                Event::AttemptEnded { attempt, chunks, outcome: AttemptOutcome::Completed(_), .. }
                    if *attempt == newest && *chunks == count
            );
            prop_assert!(history.log.iter().flat_map(|entry| &entry.events).any(says_so), "{:?}", call);
        }
    }

    #[test]
    fn garbage_does_not_disturb_the_order_of_the_output(history in garbage()) {
        for policy in POLICIES {
            let mut next = 0;
            let spoken = speak(&history.log, policy);
            for (place, spoken_here) in spoken.iter().enumerate() {
                prop_assert_eq!(spoken_here.number, next);
                next += match spoken_here.what {
                    OutputKind::Output { span, .. } => u64::from(span.count),
                    OutputKind::RunEnded(_) => {
                        prop_assert_eq!(place + 1, spoken.len());
                        1
                    }
                    _ => 1,
                };
            }
        }
    }

    #[test]
    fn a_reader_that_comes_back_gets_exactly_the_rest(history in whole_histories(), at in pick()) {
        for policy in POLICIES {
            let whole = pieces(&history.log, policy);
            let before = pieces(&history.clone().cut(at).log, policy);
            prop_assert_eq!(&before[..], &whole[..before.len()], "what was said stays said");

            let spoken = speak(&history.log, policy);
            for after in 0..whole.len() {
                let mut rest = resumed(&spoken, after as u64);
                let Some(first) = rest.next() else {
                    prop_assert_eq!(after + 1, whole.len());
                    continue;
                };
                let unfolded = unfold(&history.log, &first);
                prop_assert_eq!(first.number, after as u64 + 1);
                prop_assert_eq!(&unfolded[..], &whole[after + 1..][..unfolded.len()]);
                let following = first.number + unfolded.len() as u64;
                prop_assert!(rest.next().is_none_or(|second| second.number == following));
            }
        }
    }

    #[test]
    fn the_floor_goes_to_whom_it_should(history in whole_histories()) {
        for policy in [FloorPolicy::Arrival, FloorPolicy::Submission] {
            let (mut sequencer, mut hall) = (Sequencer::new(policy), Hall::default());
            let mut said = Vec::new();
            for_each_entry(&history.log, |entry, _, run, heard| {
                for fact in heard {
                    hall.hear(*fact);
                    let mut spoken = Vec::new();
                    sequencer.observe(entry.at, &[*fact], &mut spoken);
                    for spoken in &spoken {
                        hall.speak(spoken.what, policy, run);
                    }
                    said.extend(spoken);
                    hall.check_nobody_waits_in_vain(policy, run);
                }
            });
            prop_assert_eq!(said, speak(&history.log, policy), "one fact at a time or a whole entry: all the same");
        }
    }
}

// ---- the histories themselves ----

/// Properties of dull histories prove little: what they are about has to happen.
#[test]
fn the_histories_are_not_dull() {
    let mut runner = TestRunner::new_with_rng(cases(1), TestRng::deterministic_rng(RngAlgorithm::XorShift));
    let mut seen: BTreeMap<&str, u32> = BTreeMap::new();
    for _ in 0..1000 {
        let history = whole_histories().new_tree(&mut runner).expect("a history").current();
        let mut note = |what| *seen.entry(what).or_default() += 1;
        let run = history.fold();
        for call in run.calls().iter().filter(|call| pooled(call).is_some()) {
            match call.outcome().expect("it ended") {
                Outcome::Completed(_) => note("completed"),
                Outcome::Failed(error) if error.kind == ErrorKind::Interrupted => note("interrupted"),
                Outcome::Failed(error) if error.kind == ErrorKind::WorkerLost => note("worker lost"),
                Outcome::Failed(error) if error.kind == ErrorKind::OutputIncomplete => note("output incomplete"),
                Outcome::Failed(_) => note("failed"),
                Outcome::Cancelled { stopped: Stopped::Confirmed, .. } => note("stopped"),
                Outcome::Cancelled { .. } => note("cancelled"),
                Outcome::Expired(DeadlineKind::Queue) => note("expired in the queue"),
                Outcome::Expired(_) => note("expired"),
            }
            if call.attempts_used() > 1 {
                note("retried");
            }
            if call.fate().is_some() {
                note("parked, then not");
            }
        }
        match run.status() {
            RunStatus::Completed => note("run completed"),
            RunStatus::Failed => note("run failed"),
            RunStatus::Cancelled => note("run cancelled"),
            RunStatus::Expired => note("run expired"),
            RunStatus::InProgress | RunStatus::RequiresAction => {}
        }
        let parallel = |call: &Call| call.spec().concurrency == Concurrency::Parallel;
        let is_full = |run: &Run, call: &Call| parallel(call) && run.waits_for(call).is_some_and(parallel);
        if for_any_entry(&history.log, |run| run.calls().iter().any(|call| is_full(run, call))) {
            note("waited for room");
        }
        for_each_entry(&history.log, |entry, _, _, heard| match entry.events.first().expect("not empty") {
            Event::AttemptStarted { .. } if heard.is_empty() => note("a start not heard"),
            Event::Output { .. } if heard.is_empty() => note("output not heard"),
            Event::AttemptEnded { .. } if heard.is_empty() => note("an end not heard"),
            Event::Output { .. } if heard.len() > 2 => note("a gap filled"),
            Event::ClientAnswered { .. } if !heard.is_empty() => note("answered"),
            Event::CallDecided { by: Decider::Default, .. } if !heard.is_empty() => note("decided by default"),
            Event::CallDecided { decision, .. } if !heard.is_empty() => match decision {
                Decision::Approved { arguments: None } => note("approved"),
                Decision::Approved { .. } => note("approved with other arguments"),
                Decision::Rejected { .. } => note("rejected"),
            },
            Event::CallExpired { deadline: DeadlineKind::Idle(_), .. } if !heard.is_empty() => {
                note("given up in silence")
            }
            Event::AttemptStopping { .. } if !heard.is_empty() => note("told to stop"),
            Event::CallFailed { .. } if !heard.is_empty() => note("nobody lived"),
            _ => {}
        });
        (0..continuing(&history.log).len()).for_each(|_| note("continued"));
        let transcript = listen(&history.log, FloorPolicy::Arrival);
        for voice in transcript.calls.values() {
            (0..voice.withdrawals).for_each(|_| note("withdrawn"));
            (voice.said.len() > 3).then(|| note("said much"));
        }
    }
    assert!(seen.len() == 31 && seen.values().all(|count| *count >= 10), "{seen:?}");
}
