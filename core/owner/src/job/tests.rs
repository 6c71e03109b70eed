//! The way of a job, action by action.

use run::{AfterPartialOutput, Backoff, CallIndex, ErrorKind, Nonce, RetryOn};

use super::*;

const CONFLICT: Stored = Stored::Conflict { is_resent: false };
const CONFLICT_AFTER_RESEND: Stored = Stored::Conflict { is_resent: true };

fn policy(repeatable: bool) -> Policy {
    Policy {
        repeatable,
        attempts_max: 3,
        attempt_timeout: Duration::from_secs(300),
        idle_timeout: None,
        backoff: Backoff { jitter_percent: 0, ..Backoff::default() },
        retry_on: RetryOn::default(),
        after_partial_output: AfterPartialOutput::Restart,
    }
}

fn attempt(number: u32) -> AttemptId {
    AttemptId { call: CallIndex(0), number: AttemptNumber(number), nonce: Nonce(7) }
}

fn go(number: u32, used: u32, from: u32) -> Verdict {
    Verdict::Go { number: AttemptNumber(number), used, from: ChunkIndex(from) }
}

fn failed() -> CallError {
    CallError::new(ErrorKind::ToolFailed, "it broke").retryable()
}

/// A job and the time.
struct Played {
    job: Job,
    now: Instant,
}

impl Played {
    /// A job that has a slot.
    fn delivered(delivered: u32, age: Duration) -> Self {
        let now = Instant::now();
        let mut job = Job::new(delivered, age, now);
        assert_eq!(job.poll_action(), Some(Action::WaitForSlot));
        job.handle_slot(false, true, now);
        Self { job, now }
    }

    fn fresh() -> Self {
        Self::delivered(1, Duration::ZERO)
    }

    /// A job that was delivered for the second time, and the owner's answer to it.
    fn answered(verdict: Verdict, last_output: u64) -> Self {
        let mut played = Self::delivered(2, Duration::ZERO);
        assert_eq!(played.next(), Action::Ask(About::Delivery));
        played.job.handle_answer(Some((verdict, last_output)), played.now);
        played
    }

    /// A job whose attempt of a repeatable tool runs.
    fn running(delivered: u32) -> Self {
        let mut played = if delivered == 1 { Self::fresh() } else { Self::answered(go(2, 1, 0), 0) };
        assert!(matches!(played.next(), Action::Prepare(_)));
        played.job.handle_ready(attempt(delivered), &policy(true));
        assert!(matches!(played.next(), Action::Run(Start { is_stored: false, .. })));
        played
    }

    /// A job whose start is being stored, of a tool that is not safe to repeat.
    fn starting() -> Self {
        let mut played = Self::answered(go(2, 0, 0), 40);
        assert!(matches!(played.next(), Action::Prepare(_)));
        played.job.handle_ready(attempt(2), &policy(false));
        let event = Stage::Started(ChunkIndex(0));
        assert_eq!(played.next(), Action::Store(Entry { attempt: attempt(2), event, expected: Some(40) }));
        played
    }

    fn next(&mut self) -> Action {
        self.job.poll_action().expect("an action")
    }

    fn ended(&mut self, ended: Ended<'_>) -> Action {
        self.job.handle_ended(ended, &policy(true), 0.0, self.now);
        self.next()
    }

    /// Nobody answers until the owner is not asked any more.
    fn unanswered(&mut self) -> (u32, Action) {
        let mut asked = 1;
        loop {
            self.job.handle_answer(None, self.now + ANSWER_PATIENCE);
            self.now = self.job.poll_timeout().expect("it pauses");
            self.job.handle_timeout(self.now);
            match self.next() {
                Action::Ask(_) => asked += 1,
                action => return (asked, action),
            }
        }
    }
}

fn nak(seconds: u64, why: Why) -> Action {
    Action::Finish(Settle::Nak(Duration::from_secs(seconds)), why)
}

fn returned() -> Action {
    Action::Store(Entry { attempt: attempt(2), event: Stage::Ended(AttemptOutcome::Returned), expected: None })
}

#[test]
fn a_fresh_job_is_executed_and_acknowledged_without_a_question() {
    let mut played = Played::running(1);
    assert_eq!(played.ended(Ended::Finally), Action::Finish(Settle::Ack, Why::Executed));
    assert!(played.job.is_over());
}

#[test]
fn a_job_that_is_old_or_waited_or_is_overdue_or_was_delivered_before_is_asked_about() {
    let now = Instant::now();
    for (delivered, age, waited, is_in_time) in [
        (2, Duration::ZERO, false, true),
        (1, FRESH, false, true),
        (1, Duration::ZERO, true, true),
        (1, Duration::ZERO, false, false),
    ] {
        let mut job = Job::new(delivered, age, now);
        job.handle_slot(waited, is_in_time, now);
        assert_eq!(job.poll_action(), Some(Action::Ask(About::Delivery)));
    }
}

#[test]
fn a_job_that_waits_for_a_slot_goes_back_at_shutdown_and_is_left_when_its_lease_is_lost() {
    let job = || Job::new(1, Duration::ZERO, Instant::now());
    let (mut given_back, mut lost) = (job(), job());
    given_back.handle_give_back();
    assert_eq!(given_back.poll_action(), Some(nak(1, Why::NotNow)));
    lost.handle_lease_lost();
    assert_eq!(lost.poll_action(), Some(Action::Finish(Settle::Leave, Why::LeaseLost)));
}

#[test]
fn the_owner_is_asked_again_with_longer_pauses_until_the_job_goes_back() {
    let mut played = Played::delivered(2, Duration::ZERO);
    assert_eq!(played.next(), Action::Ask(About::Delivery));
    let (began, first) = (played.now, played.now + ASK_PAUSE);
    played.job.handle_answer(None, played.now);
    assert_eq!((played.job.poll_action(), played.job.poll_timeout()), (None, Some(first)));
    played.job.handle_timeout(first);
    assert_eq!(played.next(), Action::Ask(About::Delivery));
    played.job.handle_answer(None, first);
    assert_eq!(played.job.poll_timeout(), Some(first + ASK_PAUSE * 2));
    played.job.handle_timeout(first + ASK_PAUSE * 2);
    assert_eq!(played.next(), Action::Ask(About::Delivery));
    let (_, action) = played.unanswered();
    assert_eq!(action, nak(1, Why::NotNow));
    assert!(played.now >= began + ASK_PATIENCE);
}

#[test]
fn a_job_of_a_call_that_ended_is_acknowledged_and_one_that_another_worker_has_is_left() {
    assert_eq!(Played::answered(Verdict::Drop, 0).next(), Action::Finish(Settle::Ack, Why::Duplicate));
    assert_eq!(Played::answered(Verdict::Leave, 0).next(), Action::Finish(Settle::Leave, Why::Duplicate));
}

#[test]
fn the_end_of_a_lost_attempt_is_stored_behind_the_output_that_the_owner_knew() {
    for (stored, settle) in [
        (Stored::Confirmed, Settle::Ack),
        (CONFLICT, Settle::Nak(NOT_NOW)),
        (CONFLICT_AFTER_RESEND, Settle::Nak(NOT_NOW)),
        (Stored::GivenUp, Settle::Leave),
        (Stored::TooLarge, Settle::Leave),
    ] {
        let outcome = AttemptOutcome::Failed(failed());
        let mut played = Played::answered(Verdict::End { attempt: attempt(1), outcome: outcome.clone() }, 40);
        let entry = Entry { attempt: attempt(1), event: Stage::Ended(outcome), expected: Some(40) };
        assert_eq!(played.next(), Action::Store(entry));
        played.job.handle_stored(stored, played.now);
        assert_eq!(played.next(), Action::Finish(settle, Why::LostAttempt), "{stored:?}");
    }
}

#[test]
fn a_tool_that_is_not_safe_to_repeat_runs_only_after_the_owner_confirmed_its_start() {
    for stored in [Stored::Confirmed, CONFLICT_AFTER_RESEND] {
        let mut played = Played::starting();
        played.job.handle_stored(stored, played.now);
        assert_eq!(played.next(), Action::Ask(About::Start(attempt(2))));
        played.job.handle_answer(Some((go(2, 0, 0), 41)), played.now);
        let run = Start { attempt: attempt(2), from: ChunkIndex(0), is_stored: true };
        assert_eq!(played.next(), Action::Run(run));
    }
    for verdict in [go(3, 0, 0), Verdict::Drop, Verdict::Leave] {
        let mut played = Played::starting();
        played.job.handle_stored(Stored::Confirmed, played.now);
        assert_eq!(played.next(), Action::Ask(About::Start(attempt(2))));
        played.job.handle_answer(Some((verdict, 41)), played.now);
        assert_eq!(played.next(), nak(1, Why::Superseded));
    }
}

#[test]
fn an_attempt_that_goes_on_from_a_chunk_stores_its_start_before_too() {
    let mut played = Played::answered(go(2, 1, 5), 40);
    assert!(matches!(played.next(), Action::Prepare(_)));
    played.job.handle_ready(attempt(2), &policy(true));
    let event = Stage::Started(ChunkIndex(5));
    assert_eq!(played.next(), Action::Store(Entry { attempt: attempt(2), event, expected: Some(40) }));
}

#[test]
fn a_start_that_was_overtaken_is_not_executed() {
    for stored in [CONFLICT, Stored::TooLarge] {
        let mut played = Played::starting();
        played.job.handle_stored(stored, played.now);
        assert_eq!(played.next(), nak(1, Why::Superseded));
    }
}

#[test]
fn a_start_that_may_be_stored_and_is_not_executed_is_given_back() {
    let mut given_up = Played::starting();
    given_up.job.handle_stored(Stored::GivenUp, given_up.now);
    let mut unanswered = Played::starting();
    unanswered.job.handle_stored(Stored::Confirmed, unanswered.now);
    assert!(matches!(unanswered.next(), Action::Ask(About::Start(_))));
    unanswered.job.action = Some(unanswered.unanswered().1);
    let mut shutdown = Played::starting();
    shutdown.job.handle_stored(Stored::Confirmed, shutdown.now);
    assert!(matches!(shutdown.next(), Action::Ask(About::Start(_))));
    shutdown.job.handle_give_back();
    for mut played in [given_up, unanswered, shutdown] {
        assert_eq!(played.next(), returned());
        played.job.handle_stored(Stored::Confirmed, played.now);
        assert_eq!(played.next(), nak(1, Why::Superseded));
    }
}

#[test]
fn a_job_of_a_paused_tool_comes_again_ever_later_and_one_that_is_not_hosted_sooner() {
    type GiveBack = fn(&mut Job);
    let delayed = |delivered, give_back: GiveBack| {
        let mut job = Job::new(delivered, Duration::ZERO, Instant::now());
        give_back(&mut job);
        let Some(Action::Finish(Settle::Nak(delay), _)) = job.poll_action() else { panic!("it goes back") };
        delay
    };
    let ways: [(GiveBack, Duration, Duration); 3] = [
        (Job::handle_paused, Duration::from_secs(1), PAUSED_LONGEST),
        (|job| job.handle_not_hosted(false), Duration::from_millis(1), NOT_HOSTED_LONGEST),
        (|job| job.handle_not_hosted(true), Duration::from_millis(1), NOT_HOSTED_LONGEST),
    ];
    for (give_back, first, longest) in ways {
        assert_eq!([1, 3].map(|delivered| delayed(delivered, give_back)), [first, first * 4]);
        for late in [30, 64, 65, u32::MAX] {
            assert_eq!(delayed(late, give_back), longest);
        }
    }
    let hosted = [9, 10, 25, 26, 29].map(|delivered| delayed(delivered, |job| job.handle_not_hosted(true)));
    assert_eq!(hosted, [256, 256, 256, 512, 4096].map(Duration::from_millis));
}

#[test]
fn a_failure_that_is_tried_again_returns_the_job_with_the_policys_pause() {
    assert_eq!(Played::running(1).ended(Ended::Failed(&failed())), nak(1, Why::Executed));
    let final_error = CallError::new(ErrorKind::ArgumentsInvalid, "no");
    assert_eq!(Played::running(1).ended(Ended::Failed(&final_error)), Action::Finish(Settle::Ack, Why::Executed));
}

#[test]
fn an_attempt_that_was_given_back_returns_its_job_at_once_and_one_that_broke_off_says_nothing() {
    assert_eq!(Played::running(1).ended(Ended::Returned), nak(0, Why::Executed));
    assert_eq!(Played::running(1).ended(Ended::Abandoned), Action::Finish(Settle::Leave, Why::Abandoned));
    let mut lost = Played::running(1);
    lost.job.handle_lease_lost();
    assert_eq!(lost.ended(Ended::Finally), Action::Finish(Settle::Leave, Why::LeaseLost));
}

#[test]
fn after_two_seconds_or_a_redelivery_the_owner_is_asked_before_the_job_is_acknowledged() {
    let mut slow = Played::running(1);
    slow.now += SOLELY_OURS;
    for mut played in [slow, Played::running(2)] {
        assert_eq!(played.ended(Ended::Finally), Action::Ask(About::End));
        played.job.handle_answer(Some((Verdict::Drop, 9)), played.now);
        assert_eq!(played.next(), Action::Finish(Settle::Ack, Why::Executed));
    }
    for (verdict, expected) in [
        (go(3, 1, 0), nak(2, Why::Executed)),
        (Verdict::Leave, Action::Finish(Settle::Leave, Why::TakenOver)),
        (
            Verdict::End { attempt: attempt(2), outcome: AttemptOutcome::Returned },
            Action::Finish(Settle::Leave, Why::TakenOver),
        ),
    ] {
        let mut played = Played::running(2);
        assert_eq!(played.ended(Ended::Failed(&failed())), Action::Ask(About::End));
        played.job.handle_answer(Some((verdict, 9)), played.now);
        assert_eq!(played.next(), expected);
    }
    let mut shutdown = Played::running(2);
    assert_eq!(shutdown.ended(Ended::Finally), Action::Ask(About::End));
    shutdown.job.handle_give_back();
    assert_eq!(shutdown.next(), Action::Finish(Settle::Leave, Why::TakenOver));
}

#[test]
fn a_lease_that_is_lost_while_the_tool_runs_or_its_start_is_asked_about_does_not_end_the_job_at_once() {
    let mut played = Played::starting();
    played.job.handle_stored(Stored::Confirmed, played.now);
    assert!(matches!(played.next(), Action::Ask(About::Start(_))));
    played.job.handle_lease_lost();
    assert_eq!(played.job.poll_action(), None);
    played.job.handle_answer(Some((go(2, 0, 0), 41)), played.now);
    assert!(matches!(played.next(), Action::Run(_)), "the driver ends the attempt, which says so");
}
