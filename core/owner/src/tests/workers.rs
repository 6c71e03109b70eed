//! Lost workers, pools without workers, jobs that were given out and not started, and questions of workers.

use super::*;

fn dies(story: &Story) {
    story.world.alive.borrow_mut().clear();
}

#[test]
fn a_lost_workers_job_is_handed_back_after_6_s_and_again_10_s_later() {
    let mut story = Story::begin();
    story.running(run_id(1), spec("a"));
    dies(&story);
    story.wait(5);
    assert!(story.check_workers().is_empty(), "a worker that has just stored a start was alive then");
    story.wait(1);
    let actions = story.check_workers();
    assert!(matches!(&actions[..], [Action::HandBack { job, .. }] if job.lease == "lease"), "{actions:?}");
    story.wait(9);
    assert!(story.check_workers().is_empty());
    story.wait(1);
    assert_eq!(story.check_workers().len(), 1, "the next worker may be lost too");
}

#[test]
fn a_job_that_could_not_be_handed_back_is_handed_back_with_the_next_check() {
    let mut story = Story::begin();
    story.running(run_id(1), spec("a"));
    dies(&story);
    story.wait(6);
    assert_eq!(story.check_workers().len(), 1);
    story.owner.handle_not_handed_back(run_id(1), attempt(1));
    assert_eq!(story.check_workers().len(), 1);
}

#[test]
fn a_lost_workers_call_that_must_not_be_repeated_is_ended_too() {
    let mut story = Story::begin();
    story.running(run_id(1), once("a"));
    dies(&story);
    story.wait(6);
    let actions = story.check_workers();
    assert!(matches!(&actions[..], [Action::EndLost { .. }, Action::HandBack { .. }]), "{actions:?}");
    let question = Question::after_a_loss(run_id(1), CALL);
    let verdict = story.owner.verdict(&question, &pool(), story.sequence, story.now, &story.world);
    assert!(matches!(verdict, Some(Verdict::End { .. })), "{verdict:?}");
}

#[test]
fn nobody_is_lost_while_heartbeats_have_not_been_received_for_long_enough() {
    let mut story = Story::begin();
    story.running(run_id(1), spec("a"));
    story.queued(run_id(2), CallSpec { without_worker: WithoutWorker::Fail, ..spec("b") });
    dies(&story);
    story.world.known.set(false);
    story.wait(60);
    assert!(story.check_workers().is_empty());
}

#[test]
fn a_call_that_should_not_wait_for_a_worker_fails_6_s_after_it_was_accepted() {
    let mut story = Story::begin();
    dies(&story);
    story.queued(run_id(1), CallSpec { without_worker: WithoutWorker::Fail, ..spec("a") });
    story.queued(run_id(2), spec("b"));
    story.wait(5);
    assert!(story.check_workers().is_empty());
    story.wait(1);
    let actions = story.check_workers();
    let [Action::Append(append)] = actions.as_slice() else { panic!("{actions:?}") };
    assert!(append.run == run_id(1) && matches!(append.event, Event::CallFailed { .. }), "{append:?}");
}

#[test]
fn an_ended_calls_tool_is_taken_to_be_gone_when_its_worker_is_lost() {
    let mut story = Story::begin();
    let run = run_id(1);
    story.log(run, vec![opening(vec![spec("a"), spec("b")])]);
    story.log(run, vec![Event::CallDispatched { call: CALL, pool: pool() }]);
    story.log(run, vec![started(1, "w1")]);
    let deadline = DeadlineKind::Call;
    story.log(run, vec![Event::CallExpired { call: CALL, deadline }]);
    assert!(story.owner.run(run).is_some(), "the other call is open");
    story.wait(6);
    let expired = |actions: &[Action]| {
        let attempt = DeadlineKind::Attempt(AttemptNumber(1));
        appended(actions).contains(&&Event::CallExpired { call: CALL, deadline: attempt })
    };
    assert!(!expired(&story.check_workers()));
    dies(&story);
    assert!(expired(&story.check_workers()));
}

#[test]
fn a_job_that_no_worker_starts_is_taken_back_3_s_after_it_was_seen_to_be_out() {
    let mut story = Story::begin();
    let job = story.queued(run_id(1), spec("a"));
    story.wait(1);
    assert!(story.check_workers().is_empty(), "it has hardly waited");
    story.wait(1);
    assert!(matches!(story.check_workers()[..], [Action::AskQueues(_)]));
    assert!(story.check_workers().is_empty(), "the queue is being asked");
    assert!(story.queue_was_given(job).is_empty());
    for _ in 0..2 {
        story.wait(1);
        story.check_workers();
        assert!(story.queue_was_given(job).is_empty());
    }
    story.wait(1);
    story.check_workers();
    let actions = story.queue_was_given(job);
    assert!(matches!(&actions[..], [Action::TakeBack { job: back, .. }] if *back == job), "{actions:?}");
}

#[test]
fn a_job_is_not_taken_back_if_it_was_not_given_out_or_was_started_or_the_queues_were_silent() {
    let mut story = Story::begin();
    let (run, job) = (run_id(1), story.queued(run_id(1), spec("a")));
    let round = |story: &mut Story, seconds, given| {
        story.wait(seconds);
        story.check_workers();
        story.queue_was_given(given)
    };
    for _ in 0..5 {
        assert!(round(&mut story, 1, job - 1).is_empty(), "it waits in the queue");
    }
    assert!(round(&mut story, 1, job).is_empty());
    assert!(round(&mut story, 4, job).is_empty(), "the broker was away for 4 s");
    assert!(round(&mut story, 1, job).is_empty());
    story.wait(2);
    story.check_workers();
    story.log(run, vec![started(1, "w1")]);
    assert!(story.queue_was_given(job).is_empty(), "its start came while the queue was asked");
}

fn asked(story: &Story, delivered: u32, attempt: Option<AttemptId>) -> Option<Verdict> {
    let question = Question { run: run_id(1), call: CALL, delivered, sequence: 1, attempt, executed: false };
    story.owner.verdict(&question, &pool(), 0, story.now, &story.world)
}

#[test]
fn a_worker_that_is_given_a_living_workers_job_leaves_it() {
    let mut story = Story::begin();
    story.running(run_id(1), spec("a"));
    assert_eq!(asked(&story, 2, None), Some(Verdict::Leave));
    dies(&story);
    story.wait(5);
    assert_eq!(asked(&story, 2, None), Some(Verdict::Leave), "it stored a start 5 s ago");
    story.wait(1);
    assert!(matches!(asked(&story, 2, None), Some(Verdict::Go { number: AttemptNumber(2), .. })));
}

#[test]
fn a_worker_may_lose_its_job_to_another_though_it_lives_once_the_lease_has_passed() {
    let mut story = Story::begin();
    story.running(run_id(1), spec("a"));
    story.wait(29);
    assert_eq!(asked(&story, 2, None), Some(Verdict::Leave));
    story.wait(1);
    assert!(matches!(asked(&story, 2, None), Some(Verdict::Go { .. })));
}

#[test]
fn only_the_attempt_that_counts_may_go_on() {
    let mut story = Story::begin();
    story.running(run_id(1), once("a"));
    let own = Verdict::Go { number: AttemptNumber(1), used: 0, from: ChunkIndex(0) };
    assert_eq!(asked(&story, 1, Some(attempt(1))), Some(own));
    assert_eq!(asked(&story, 1, Some(attempt(2))), Some(Verdict::Drop));
}

#[test]
fn nothing_is_answered_before_the_calls_last_output_was_read() {
    let mut story = Story::begin();
    story.running(run_id(1), spec("a"));
    let question = Question::after_a_loss(run_id(1), CALL);
    let verdict = |story: &Story, needed| story.owner.verdict(&question, &pool(), needed, story.now, &story.world);
    assert!(verdict(&story, story.sequence).is_some());
    assert_eq!(verdict(&story, story.sequence + 1), None);
    story.world.holds.set(false);
    assert_eq!(verdict(&story, story.sequence), None, "the lease has run out");
}
