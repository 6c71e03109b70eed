//! How shards are taken over and given back.

use super::*;

fn taken(claim: u64, through: u64, tip: u64, open: Vec<Known>) -> Takeover {
    Takeover { claim, through, tip, open, unread: vec![(run_id(9), 3)], ..Takeover::default() }
}

#[test]
fn an_owner_acts_once_everything_is_applied_that_was_in_the_log_when_the_shard_became_its_own() {
    let mut story = Story::without_shard();
    let run = run_id(1);
    story.owner.handle_claimed(SHARD, 7);
    assert!(story.log(run, vec![opening(vec![spec("a")])]).is_empty(), "its runs are not read yet");
    assert!(!story.owner.handle_taken(SHARD, taken(6, 1, 1, Vec::new()), START), "that was an earlier claim");
    assert!(story.owner.handle_taken(SHARD, taken(7, 1, 3, vec![opened(run, 2)]), START));
    assert!(!story.owner.begin_to_lead(SHARD));
    assert!(story.log(run, vec![Event::CallDispatched { call: CALL, pool: pool() }]).is_empty());
    story.owner.handle_position(SHARD, 3);
    assert!(story.owner.begin_to_lead(SHARD) && !story.owner.begin_to_lead(SHARD));
    story.owner.check_shard(SHARD, story.now, &story.world);
    let actions = story.actions();
    assert_eq!(appended(&actions), [&Event::CallDispatched { call: CallIndex(1), pool: pool() }]);
}

#[test]
fn an_entry_that_comes_twice_is_applied_once() {
    let mut story = Story::begin();
    let (run, mut heard) = (run_id(1), Vec::new());
    let entry =
        Entry { sequence: 5, at: START, not_after: None, hooked: false, events: vec![opening(vec![spec("a")])] };
    assert!(matches!(story.owner.handle_entry(run, &entry, &mut heard, START, &story.world), Applied::Open(_)));
    assert!(matches!(story.owner.handle_entry(run, &entry, &mut heard, START, &story.world), Applied::Ignored));
}

#[test]
fn an_owner_that_leaves_stops_at_once_and_forgets_the_shard_when_it_is_lost() {
    let mut story = Story::begin();
    story.log(run_id(1), vec![opening(vec![spec("a")])]);
    story.owner.handle_leaving(SHARD);
    assert!(story.wait(5).is_empty() && story.check_workers().is_empty());
    assert_eq!(story.owner.shard(SHARD).map(|shard| shard.snapshot().count()), Some(1), "its snapshot is complete");
    story.owner.handle_lost(SHARD);
    assert_eq!(story.owner.shard(SHARD).map(ShardState::phase), Some(Phase::NotOwned));
    assert_eq!((story.owner.run(run_id(1)).is_none(), story.owner.poll_timeout()), (true, None));
}

#[test]
fn a_snapshot_has_the_open_runs_and_those_of_newer_releases_with_their_last_entries() {
    let mut story = Story::without_shard();
    story.owner.handle_claimed(SHARD, 1);
    story.owner.handle_taken(SHARD, taken(1, 0, 0, Vec::new()), START);
    story.owner.begin_to_lead(SHARD);
    story.log(run_id(1), vec![opening(vec![spec("a"), spec("b")])]);
    story.log(run_id(2), vec![opening(Vec::new()), Event::RunClosed]);
    story.log(run_id(1), vec![Event::CallDispatched { call: CALL, pool: pool() }]);
    let snapshot: Vec<_> = story.owner.shard(SHARD).expect("the only one").snapshot().collect();
    let listed = |run, first| Listed { run, first, last: 3 };
    assert_eq!(snapshot, [listed(run_id(1), 1), listed(run_id(9), 0)], "the run without calls has ended");
    let state = story.owner.shard(SHARD).expect("the only one");
    assert!(state.recent_run(run_id(2)).is_some(), "it is kept for the command that ended it");
}

#[test]
fn jobs_of_a_run_that_a_newer_release_opened_are_left_to_it() {
    let mut story = Story::begin();
    let place = SubjectKind::Job { call: CALL, pool: pool() };
    let noted = |story: &mut Story, number, place: &SubjectKind, sequence| {
        story.owner.handle_unreadable((run_id(number), place.clone()), sequence, START, || false)
    };
    assert_eq!(noted(&mut story, 1, &place, 1), Noted::Kept);
    assert_eq!(noted(&mut story, 2, &SubjectKind::Control { call: CALL }, 2), Noted::Stray, "that opens no run");
    let question = Question { run: run_id(1), call: CALL, delivered: 1, sequence: 1, attempt: None, executed: false };
    assert_eq!(story.owner.verdict(&question, &pool(), 0, START, &story.world), None);
    let unknown = Question { run: run_id(2), ..question };
    assert_eq!(story.owner.verdict(&unknown, &pool(), 0, START, &story.world), Some(Verdict::Drop));
    story.owner.forget_unread_before(SHARD, START.after(Duration::from_secs(1)));
    assert_eq!(story.owner.verdict(&question, &pool(), 0, START, &story.world), Some(Verdict::Drop));
}

#[test]
fn an_entry_that_cannot_be_read_is_expected_by_the_next_append_on_its_subject() {
    let mut story = Story::begin();
    story.queued(run_id(1), spec("a"));
    let place = SubjectKind::Control { call: CALL };
    assert_eq!(story.owner.handle_unreadable((run_id(1), place), 2, START, || false), Noted::Kept);
    story.sequence = 2;
    let actions = story.wait(600);
    let [Action::Append(append)] = actions.as_slice() else { panic!("{actions:?}") };
    assert_eq!(append.expected, 2);
}

#[test]
fn the_delay_of_a_call_is_ended_at_its_time_or_by_the_next_owner_if_that_comes_later() {
    let (run, minute) = (run_id(1), Duration::from_secs(60));
    let opens = || vec![opening(vec![CallSpec { not_before: Some(START.after(minute)), ..spec("a") }])];
    let (ended, dispatched) =
        (Event::CallDelayEnded { call: CALL }, Event::CallDispatched { call: CALL, pool: pool() });
    let mut story = Story::begin();
    assert!(story.log(run, opens()).is_empty() && story.wait(59).is_empty());
    assert_eq!(story.owner.poll_timeout(), Some(START.after(minute)));
    let actions = story.wait(1);
    assert_eq!(appended(&actions), [&ended]);
    story.done(&actions);
    assert_eq!(appended(&story.wait(1)), [&ended], "the log has not shown it");

    // The owner dies, and the next one reads the run from the log.
    let mut next = Story { now: story.now, sequence: 1, ..Story::without_shard() };
    let mut known = Known::new(run);
    known.apply(&Entry { sequence: 1, at: START, not_after: None, hooked: false, events: opens() }, &mut Vec::new());
    next.owner.handle_claimed(SHARD, 2);
    let taken = Takeover { claim: 2, through: 1, tip: 1, open: vec![known], ..Takeover::default() };
    assert!(next.owner.handle_taken(SHARD, taken, next.now) && next.owner.begin_to_lead(SHARD));
    next.owner.check_shard(SHARD, next.now, &next.world);
    let actions = next.actions();
    assert_eq!(appended(&actions), [&ended]);
    let actions = next.log(run, vec![ended]);
    assert_eq!(appended(&actions), [&dispatched]);
}

/// A run that was opened two minutes before the stories begin.
fn old_run(number: u8) -> RunId {
    format!("run_00_018bcfe393407e3f8a1b2c3d4e5f60{number:02x}").parse().expect("a run id")
}

fn shard(story: &Story) -> &ShardState {
    story.owner.shard(SHARD).expect("the only one")
}

#[test]
fn what_is_carried_leaves_the_log_after_a_while_but_for_jobs_that_a_worker_may_still_take() {
    let mut story = Story::begin();
    let (waiting, working) = (old_run(1), old_run(2));
    let for_client = CallSpec { route: Route::Client, ..spec("a") };
    story.log(waiting, vec![opening(vec![for_client])]);
    story.log(working, vec![opening(vec![spec("a")])]);
    story.log(working, vec![Event::CallDispatched { call: CALL, pool: pool() }]);
    let needs = |story: &Story| shard(story).needed_from(story.now);
    let to_carry = |story: &Story, before| shard(story).to_carry(before, story.now);
    assert_eq!((to_carry(&story, 1), to_carry(&story, 3)), (vec![], vec![waiting, working]));
    story.owner.handle_carried(waiting, carried(1), story.now);
    story.owner.handle_carried(working, carried(3), story.now);
    assert_eq!((needs(&story), to_carry(&story, 9)), (1, vec![]), "it is all too young");
    story.wait(30);
    assert_eq!(needs(&story), 3, "the job");
    story.log(waiting, vec![Event::RunClosed]);
    assert_eq!(to_carry(&story, 9), vec![waiting], "an entry more");
    story.log(working, vec![Event::CallCancelled { call: CALL }]);
    story.owner.handle_carried_whole(working);
    assert_eq!(needs(&story), 2, "what follows the last entry that is carried");
    story.owner.handle_carried(waiting, carried(4), story.now);
    story.owner.handle_carried(waiting, carried(1), story.now);
    assert_eq!(needs(&story), 2, "it stays until it counts that more is carried");
    story.wait(30);
    assert_eq!(needs(&story), shard(&story).applied() + 1);
}

#[test]
fn what_an_earlier_owner_carried_long_ago_counts_at_once_and_the_rest_after_a_while() {
    let mut story = Story::begin();
    let run = old_run(1);
    for number in 1..=4 {
        let call = CallSpec { route: Route::Client, ..spec(&format!("call_{number}")) };
        let calls = vec![Arc::new(call.clone())];
        story.log(run, vec![if number == 1 { opening(vec![call]) } else { Event::CallsAppended { calls } }]);
    }
    let known = story.owner.run(run).expect("it is open").into_owned();
    // The next owner reads what is carried, or finds it when it carries the run.
    for is_read in [true, false] {
        let read = |to: CarriedTo| {
            let mut known = known.clone();
            if is_read {
                (known.carried, known.settled) = (to.through, to.settled);
            }
            let mut next = Story::without_shard();
            next.owner.handle_claimed(SHARD, 2);
            let taken = Takeover { claim: 2, through: 4, tip: 4, open: vec![known], ..Takeover::default() };
            assert!(next.owner.handle_taken(SHARD, taken, START));
            if !is_read {
                assert_eq!((shard(&next).needed_from(START), shard(&next).to_carry(9, START)), (1, vec![run]));
                next.owner.handle_carried(run, to, START);
            }
            let later = START.after(Duration::from_secs(30));
            [START, later].map(|now| (shard(&next).needed_from(now), shard(&next).to_carry(9, now).len()))
        };
        assert_eq!(read(CarriedTo { through: 3, settled: 3 }), [(4, 1), (4, 1)]);
        assert_eq!(read(CarriedTo { through: 3, settled: 2 }), [(3, 0), (4, 1)]);
        assert_eq!(read(CarriedTo { through: 4, settled: 2 }), [(3, 0), (5, 0)]);
        assert_eq!(read(CarriedTo { through: 3, settled: 0 }), [(1, 0), (4, 1)]);
        // An old snapshot: the entry after the last one that it knows was carried a moment ago.
        assert_eq!(read(CarriedTo { through: 5, settled: 4 }), [(5, 0), (5, 0)]);
    }
}

#[test]
fn a_run_whose_beginning_may_be_carried_is_carried_whole_once_it_ends_by_the_next_owner_too() {
    let mut story = Story::begin();
    let (old, young) = (old_run(1), run_id(1));
    story.log(old, vec![opening(vec![spec("a")])]);
    story.log(young, vec![opening(vec![spec("a")])]);
    let mut known = story.owner.run(old).expect("it is open").into_owned();
    known.carried = 1;
    for run in [old, young] {
        story.log(run, vec![Event::CallCancelled { call: CALL }]);
    }
    assert_eq!(
        shard(&story).half_carried().map(|run| (run, shard(&story).half_carried_last(run))).collect::<Vec<_>>(),
        [(old, Some(3))]
    );
    assert_eq!(
        (shard(&story).needed_from(story.now), shard(&story).snapshot().collect::<Vec<_>>()),
        (1, vec![Listed { run: old, first: 0, last: 3 }])
    );
    // The next owner reads it because it is in the snapshot.
    let ends = Entry {
        sequence: 3,
        at: START,
        not_after: None,
        hooked: false,
        events: vec![Event::CallCancelled { call: CALL }],
    };
    known.apply(&ends, &mut Vec::new());
    let mut next = Story::without_shard();
    next.owner.handle_claimed(SHARD, 2);
    let taken = Takeover { claim: 2, through: 4, tip: 4, ended: vec![known], ..Takeover::default() };
    assert!(next.owner.handle_taken(SHARD, taken, START));
    assert_eq!(
        (
            shard(&next).half_carried().collect::<Vec<_>>(),
            shard(&next).half_carried_last(old),
            shard(&next).needed_from(START)
        ),
        (vec![old], Some(3), 1)
    );
    next.owner.handle_carried_whole(old);
    assert_eq!((shard(&next).half_carried().count(), shard(&next).needed_from(START)), (0, 5));
}

#[test]
fn an_append_expects_what_is_last_in_the_log_and_nothing_if_that_is_carried_and_has_left() {
    let expected = |entry, carried| Expected { entry, carried, known_at: None };
    assert_eq!(expected(7, 9).in_log(7), 7, "it is still there");
    assert_eq!(expected(7, 9).in_log(8), 0);
    assert_eq!(expected(7, 6).in_log(8), 7, "the run has left the log, and its command is refused");
    assert_eq!(expected(0, 9).in_log(8), 0);
}

#[test]
fn an_entry_of_a_run_that_was_read_up_to_there_before_changes_nothing() {
    let mut story = Story::without_shard();
    let run = old_run(1);
    let mut known = Known::new(run);
    let opens = opening(vec![spec("a")]);
    known
        .apply(&Entry { sequence: 5, at: START, not_after: None, hooked: false, events: vec![opens] }, &mut Vec::new());
    story.owner.handle_claimed(SHARD, 1);
    let taken = Takeover { claim: 1, through: 0, tip: 5, open: vec![known], ..Takeover::default() };
    assert!(story.owner.handle_taken(SHARD, taken, START));
    // The shard is read from its beginning, because there is no snapshot.
    let appends = Event::CallsAppended { calls: vec![Arc::new(spec("b"))] };
    story.sequence = 3;
    story.log(run, vec![appends]);
    assert_eq!(story.owner.run(run).expect("it is open").run.calls().len(), 1);
}
