//! The floor: hand-made histories, and the output of each policy.

mod story;

use std::time::Duration;

use story::{
    START, Story, answered, cancel_requested, client, completed, dispatched, expired, failed, failed_for_now, once,
    output, refused, repeatable, run_cancel_requested, shared, speak, started,
};
use toolyard_run::FloorPolicy::{Arrival, Interleaved, Submission};
use toolyard_run::{AddedPolicy, CallIndex, ChooseSpeaker, Event, FloorPolicy, OutputKind, Position, Voice};

const POLICIES: [FloorPolicy; 3] = [Arrival, Submission, Interleaved];

/// Two calls, both running; the second talks first, and the first ends first.
fn two_that_talk_at_once() -> Story {
    let mut story = Story::of([repeatable("a"), repeatable("b")]);
    story.tell_all([dispatched(0), dispatched(1), started(0, 1), started(1, 1)]);
    story.tell_all([output(1, 1, 0..1), output(0, 1, 0..2), output(1, 1, 1..2)]);
    story.tell_all([completed(0, 1, 2), output(1, 1, 2..3), completed(1, 1, 3)]);
    story
}

#[test]
fn by_arrival_whoever_talks_first_talks_to_its_end() {
    let expected = [
        "1 speaks",
        "1 says 0..1 of attempt 1",
        "1 says 1..2 of attempt 1",
        "1 says 2..3 of attempt 1",
        "1 ended",
        "0 speaks",
        "0 says 0..2 of attempt 1",
        "0 ended",
    ];
    assert_eq!(two_that_talk_at_once().floor(Arrival), expected);
}

#[test]
fn by_submission_calls_talk_in_the_order_in_which_they_were_asked_for() {
    let expected = [
        "0 speaks",
        "0 says 0..2 of attempt 1",
        "0 ended",
        "1 speaks",
        "1 says 0..1 of attempt 1",
        "1 says 1..2 of attempt 1",
        "1 says 2..3 of attempt 1",
        "1 ended",
    ];
    assert_eq!(two_that_talk_at_once().floor(Submission), expected);
}

#[test]
fn interleaved_everything_is_said_as_it_is_stored() {
    let expected = [
        "1 speaks",
        "1 says 0..1 of attempt 1",
        "0 speaks",
        "0 says 0..2 of attempt 1",
        "1 says 1..2 of attempt 1",
        "0 ended",
        "1 says 2..3 of attempt 1",
        "1 ended",
    ];
    assert_eq!(two_that_talk_at_once().floor(Interleaved), expected);
}

#[test]
fn what_needs_no_floor_is_said_at_once() {
    let mut story = Story::open([repeatable("a"), repeatable("b")]);
    story.tell_all([dispatched(0), dispatched(1), started(0, 1), output(0, 1, 0..1), started(1, 1)]);
    story.tell_all([failed_for_now(1, 1), Event::CallsAppended { calls: shared([client("c")]) }, Event::RunClosed]);
    story.tell_all([cancel_requested(0), completed(0, 1, 1), expired(1), answered(2, "yes")]);
    let expected = [
        "run opened",
        "0 attempt 1 starts",
        "0 speaks",
        "0 says 0..1 of attempt 1",
        "1 attempt 1 starts",
        "1 attempt 1 ends",
        "1 more from 2",
        "2 waits",
        "run closed",
        "0 shall stop",
        "0 ended",
        "1 speaks",
        "1 ended",
        "run is RequiresAction",
        "2 speaks",
        "2 ended",
        "run ended Completed",
    ];
    for policy in POLICIES {
        assert_eq!(story.spoken(policy), expected, "{policy:?}");
    }
}

#[test]
fn by_arrival_the_floor_goes_to_the_oldest_that_waits() {
    let mut story = Story::of([repeatable("a"), repeatable("b"), repeatable("c")]);
    story.tell_all([dispatched(0), dispatched(1), dispatched(2)]);
    story.tell_all([output(0, 1, 0..1), output(2, 1, 0..1), output(1, 1, 0..1)]);
    story.tell_all([completed(1, 1, 1), completed(0, 1, 1), completed(2, 1, 1)]);
    let speakers = |policy| {
        let floor = story.floor(policy).into_iter();
        floor.filter_map(|line| line.strip_suffix(" speaks").map(str::to_owned)).collect::<Vec<_>>()
    };
    assert_eq!(speakers(Arrival), ["0", "2", "1"]);
    assert_eq!(speakers(Submission), ["0", "1", "2"]);
}

#[test]
fn by_arrival_a_call_that_has_nothing_to_say_holds_nobody_up() {
    let mut story = Story::of([repeatable("a"), repeatable("b")]);
    story.tell_all([dispatched(0), dispatched(1), started(0, 1), output(1, 1, 0..1)]);
    assert_eq!(story.floor(Arrival), ["1 speaks", "1 says 0..1 of attempt 1"]);
    assert!(story.floor(Submission).is_empty());
}

#[test]
fn by_submission_a_call_that_waits_for_its_client_is_passed_over() {
    let mut story = Story::of([client("a"), repeatable("b"), repeatable("c")]);
    story.tell_all([dispatched(1), dispatched(2), output(1, 1, 0..1), output(2, 1, 0..1)]);
    assert_eq!(story.floor(Submission), ["1 speaks", "1 says 0..1 of attempt 1"]);
    story.tell(answered(0, "yes"));
    assert_eq!(story.floor(Submission).len(), 2, "the floor is not taken from its holder");
    story.tell_all([completed(1, 1, 1), completed(2, 1, 1)]);
    let expected = ["1 ended", "0 speaks", "0 ended", "2 speaks", "2 says 0..1 of attempt 1", "2 ended"];
    assert_eq!(story.floor(Submission)[2..], expected);
}

#[test]
fn by_submission_an_answer_is_not_held_up_by_a_later_call_that_is_silent() {
    let mut story = Story::of([client("a"), repeatable("b"), repeatable("c")]);
    story.tell_all([dispatched(1), dispatched(2), output(2, 1, 0..1), answered(0, "yes")]);
    assert_eq!(story.floor(Submission), ["0 speaks", "0 ended"]);
}

#[test]
fn by_submission_a_client_call_that_was_answered_waits_for_those_before_it() {
    let mut story = Story::of([repeatable("a"), client("b")]);
    story.tell_all([dispatched(0), answered(1, "yes")]);
    assert!(story.floor(Submission).is_empty());
    assert_eq!(story.floor(Arrival), ["1 speaks", "1 ended"]);
    story.tell(completed(0, 1, 0));
    assert_eq!(story.floor(Submission), ["0 speaks", "0 ended", "1 speaks", "1 ended"]);
}

#[test]
fn a_stuck_speaker_is_silenced_by_its_deadline() {
    for (policy, end) in [Arrival, Submission]
        .into_iter()
        .flat_map(|policy| [expired(0), Event::CallCancelled { call: CallIndex(0) }].map(|end| (policy, end)))
    {
        let mut story = Story::of([once("a"), repeatable("b")]);
        story.tell_all([dispatched(0), dispatched(1), started(0, 1), output(0, 1, 0..1)]);
        story.tell_all([output(1, 1, 0..1), completed(1, 1, 1)]);
        assert_eq!(story.floor(policy), ["0 speaks", "0 says 0..1 of attempt 1"]);
        story.tell(end);
        assert_eq!(story.floor(policy)[2..], ["0 ended", "1 speaks", "1 says 0..1 of attempt 1", "1 ended"]);
    }
}

#[test]
fn the_end_of_a_run_lets_everybody_out() {
    for end in [Event::RunExpired { without_worker: Vec::new() }, run_cancel_requested()] {
        let mut story = Story::of([client("a"), repeatable("b"), client("c")]);
        story.tell_all([dispatched(1), end]);
        for policy in POLICIES {
            let floor = story.floor(policy);
            let ended = floor.iter().filter(|line| line.ends_with("ended"));
            assert_eq!(ended.count(), 3, "{policy:?}");
            assert!(story.spoken(policy).last().is_some_and(|line| line.starts_with("run ended")));
        }
    }
}

#[test]
fn what_was_said_before_a_retry_is_withdrawn_once() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), output(0, 1, 0..2), failed_for_now(0, 1), started(0, 2)]);
    story.tell_all([output(0, 1, 2..3), output(0, 2, 0..1), completed(0, 2, 1)]);
    let expected = [
        "run opened",
        "0 attempt 1 starts",
        "0 speaks",
        "0 says 0..2 of attempt 1",
        "0 attempt 1 ends",
        "0 attempt 2 starts",
        "0 withdraws attempt 1",
        "0 says 0..1 of attempt 2",
        "0 ended",
        "run ended Completed",
    ];
    for policy in POLICIES {
        assert_eq!(story.spoken(policy), expected, "{policy:?}");
    }
}

#[test]
fn output_stands_until_another_attempt_starts() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), output(0, 1, 0..2), failed_for_now(0, 1), expired(0)]);
    for policy in POLICIES {
        assert_eq!(story.floor(policy), ["0 speaks", "0 says 0..2 of attempt 1", "0 ended"]);
    }
}

#[test]
fn nothing_is_withdrawn_where_nothing_was_said() {
    let mut silent = Story::of([repeatable("a")]);
    silent.tell_all([dispatched(0), started(0, 1), failed_for_now(0, 1), output(0, 2, 0..1), completed(0, 2, 1)]);
    for policy in POLICIES {
        assert_eq!(silent.floor(policy), ["0 speaks", "0 says 0..1 of attempt 2", "0 ended"]);
    }

    let mut unheard = Story::of([repeatable("a"), repeatable("b")]);
    unheard.tell_all([dispatched(0), dispatched(1), output(0, 1, 0..1), output(1, 1, 0..3), failed_for_now(1, 1)]);
    unheard.tell_all([output(1, 2, 0..1), completed(0, 1, 1), completed(1, 2, 1)]);
    for policy in [Arrival, Submission] {
        assert_eq!(unheard.floor(policy)[3..], ["1 speaks", "1 says 0..1 of attempt 2", "1 ended"]);
    }
}

#[test]
fn an_attempt_that_was_overtaken_is_withdrawn_though_it_never_ended() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), output(0, 1, 0..1), output(0, 2, 0..1), output(0, 1, 1..2)]);
    let expected = ["0 speaks", "0 says 0..1 of attempt 1", "0 withdraws attempt 1", "0 says 0..1 of attempt 2"];
    for policy in POLICIES {
        assert_eq!(story.floor(policy), expected);
    }
}

#[test]
fn refused_calls_end_at_once() {
    let mut story = Story::of([refused("a"), repeatable("b"), refused("c")]);
    let at_once = ["0 speaks", "0 ended", "2 speaks", "2 ended"];
    assert_eq!(story.floor(Arrival), at_once);
    assert_eq!(story.floor(Interleaved), at_once);
    assert_eq!(story.floor(Submission), ["0 speaks", "0 ended"], "and keep their place");
    story.tell_all([dispatched(1), failed(1, 1)]);
    let in_order = ["0 speaks", "0 ended", "1 speaks", "1 ended", "2 speaks", "2 ended"];
    assert_eq!(story.floor(Submission), in_order);
}

#[test]
fn chunks_are_said_in_their_order_whatever_the_order_of_the_log() {
    let mut story = Story::of([repeatable("a")]);
    story.tell_all([dispatched(0), output(0, 1, 2..3), output(0, 1, 0..1), output(0, 1, 0..2), completed(0, 1, 3)]);
    let expected =
        ["0 speaks", "0 says 0..1 of attempt 1", "0 says 1..2 of attempt 1", "0 says 2..3 of attempt 1", "0 ended"];
    for policy in POLICIES {
        assert_eq!(story.floor(policy), expected);
    }
}

#[test]
fn each_chunk_has_a_number_and_says_where_it_lies() {
    let mut story = Story::of([repeatable("a")]);
    story.tell(dispatched(0));
    let events = [started(0, 1), output(0, 1, 0..2), output(0, 1, 1..4), completed(0, 1, 4)];
    story.tell_together(events);
    let entry = story.log.last().expect("not empty").sequence;
    let spoken = speak(&story.log, Arrival);
    let numbers: Vec<u64> = spoken.iter().map(|spoken| spoken.number).collect();
    assert_eq!(numbers, [0, 1, 2, 3, 5, 7, 8], "two chunks at 3 and two at 5");
    let places: Vec<(Position, u32)> = spoken
        .iter()
        .filter_map(|spoken| match spoken.what {
            OutputKind::Output { span, .. } => Some((span.position, span.skip)),
            _ => None,
        })
        .collect();
    let place = |event| Position { sequence: entry, event };
    assert_eq!(places, [(place(1), 0), (place(2), 1)]);
}

#[test]
fn what_waited_keeps_the_time_at_which_it_was_stored() {
    let mut story = Story::of([repeatable("a"), repeatable("b")]);
    story.tell_all([dispatched(0), dispatched(1), output(0, 1, 0..1), output(1, 1, 0..1)]);
    story.wait(Duration::from_secs(9));
    story.tell(completed(0, 1, 1));
    let spoken = speak(&story.log, Arrival);
    let times: Vec<_> = spoken.iter().rev().take(3).map(|spoken| spoken.at).collect();
    assert_eq!(times, [START, START, story.now], "ended now, but what followed was stored long before");
}

/// The call that was accepted last and has something to say.
fn last_first(voices: &[Voice]) -> Option<CallIndex> {
    let waiting = voices.iter().zip(0..).filter(|(voice, _)| voice.waits_since().is_some());
    waiting.last().map(|(_, index)| CallIndex(index))
}

#[test]
fn a_policy_that_a_deployment_adds_chooses_the_speaker() {
    let mut story = Story::of([repeatable("a"), repeatable("b"), repeatable("c")]);
    story.tell_all([dispatched(0), dispatched(1), dispatched(2)]);
    story.tell_all([output(0, 1, 0..1), output(1, 1, 0..1), output(2, 1, 0..1)]);
    story.tell_all([completed(1, 1, 1), completed(2, 1, 1), completed(0, 1, 1)]);
    let speakers = |policy| {
        let spoken = story.floor(policy).into_iter();
        spoken.filter_map(|said| said.strip_suffix(" speaks").map(str::to_owned)).collect::<Vec<_>>()
    };
    let names = |names: [&str; 3]| names.map(str::to_owned).to_vec();
    let added = FloorPolicy::Added(AddedPolicy { name: "last-first", choose: last_first });
    assert_eq!((speakers(added), speakers(Arrival)), (names(["0", "2", "1"]), names(["0", "1", "2"])));
}

#[test]
fn whatever_a_policy_chooses_everything_is_said_once() {
    let table: [(&'static str, ChooseSpeaker); 5] = [
        ("nobody", |_| None),
        ("none, because it panics", |_| panic!("as it is meant to")),
        ("a call that is not there", |_| Some(CallIndex(7))),
        ("the first, whether it has ended or not", |_| Some(CallIndex(0))),
        ("last first", last_first),
    ];
    let story = two_that_talk_at_once();
    let sorted = |mut said: Vec<String>| {
        said.sort();
        said
    };
    for (name, choose) in table {
        let said = story.floor(FloorPolicy::Added(AddedPolicy { name, choose }));
        assert_eq!(sorted(said), sorted(story.floor(Arrival)), "{name}");
    }
}
