//! The index in memory: its lists, what it removes, and its counts.

use std::time::Duration;

use proto::v1::{CallErrorKind, CallState, RunStatus};
use run::Partition;
use tokio::time::Instant;

use super::super::summary::CallSummary;
use super::*;

/// A run that was made `number` milliseconds after the beginning, with calls in these states.
fn run(number: u64, status: RunStatus, calls: &[CallState]) -> Arc<Summary> {
    let id = format!("run_{:02x}_{number:012x}70008000000000000000", number % u64::from(Partition::SHARDS));
    let calls = calls.iter().enumerate().map(|(index, state)| CallSummary {
        id: format!("call_{index}").parse().unwrap(),
        tool: "bash".parse().unwrap(),
        pool: None,
        state: *state,
        attempts: 1,
        not_before: None,
        parked: *state == CallState::Failed,
        ended: None,
        error: CallErrorKind::Unspecified,
        asked_by: None,
    });
    Arc::new(Summary {
        id: id.parse().unwrap(),
        sequence: number,
        status,
        open: false,
        created: Timestamp(number),
        deadline: Timestamp(number + 1000),
        schedule: None,
        tenant: number.is_multiple_of(2).then(|| "even".parse().unwrap()),
        calls: calls.collect(),
    })
}

fn sequences(page: &Page<Arc<Summary>, Key>) -> Vec<u64> {
    page.items.iter().map(|run| run.sequence).collect()
}

fn ten() -> Memory {
    let memory = Memory::default();
    memory.write((1..=10).map(|number| run(number, RunStatus::Completed, &[CallState::Completed])).collect());
    memory
}

#[test]
fn pages_come_newest_first_and_do_not_move_when_runs_are_added() {
    let memory = ten();
    let first = memory.list_runs(&RunFilter::default(), Ask { size: 4, behind: None });
    assert_eq!(sequences(&first), [10, 9, 8, 7]);
    memory.write(vec![run(11, RunStatus::InProgress, &[CallState::Running])]);
    let second = memory.list_runs(&RunFilter::default(), Ask { size: 4, behind: first.behind });
    assert_eq!(sequences(&second), [6, 5, 4, 3]);
    let last = memory.list_runs(&RunFilter::default(), Ask { size: 4, behind: second.behind });
    assert_eq!((sequences(&last), last.behind), (vec![2, 1], None));
}

#[test]
fn filters_admit_what_they_name() {
    let memory = ten();
    memory.write(vec![run(11, RunStatus::InProgress, &[CallState::Running, CallState::Failed])]);
    let list = |filter: RunFilter| sequences(&memory.list_runs(&filter, Ask { size: 100, behind: None }));
    assert_eq!(list(RunFilter { status: Some(RunStatus::InProgress), ..RunFilter::default() }), [11]);
    assert_eq!(list(RunFilter { tenant: Some("even".parse().unwrap()), ..RunFilter::default() }), [10, 8, 6, 4, 2]);
    let created = Created { from: Some(Timestamp(3)), before: Some(Timestamp(6)) };
    assert_eq!(list(RunFilter { created, ..RunFilter::default() }), [5, 4, 3]);
    let created = Created { from: Some(Timestamp(6)), before: Some(Timestamp(3)) };
    assert!(list(RunFilter { created, ..RunFilter::default() }).is_empty());

    let calls = |filter: CallFilter| {
        let page = memory.list_calls(&filter, Ask { size: 100, behind: None });
        page.items.iter().map(|(run, call)| (run.sequence, call.0)).collect::<Vec<_>>()
    };
    assert_eq!(calls(CallFilter { state: Some(CallState::Running), ..CallFilter::default() }), [(11, 0)]);
    assert_eq!(calls(CallFilter { parked: true, ..CallFilter::default() }), [(11, 1)]);
    assert!(calls(CallFilter { tool: Some("grep".parse().unwrap()), ..CallFilter::default() }).is_empty());
}

#[test]
fn calls_are_paged_within_a_run() {
    let memory = Memory::default();
    memory.write((1..=3).map(|number| run(number, RunStatus::Completed, &[CallState::Completed; 3])).collect());
    let (mut behind, mut seen) = (None, Vec::new());
    loop {
        let page = memory.list_calls(&CallFilter::default(), Ask { size: 2, behind });
        seen.extend(page.items.iter().map(|(run, call)| (run.sequence, call.0)));
        behind = page.behind;
        if behind.is_none() {
            break;
        }
    }
    assert_eq!(seen, [(3, 2), (3, 1), (3, 0), (2, 2), (2, 1), (2, 0), (1, 2), (1, 1), (1, 0)]);
}

#[test]
fn an_older_word_does_not_take_the_place_of_a_newer_one() {
    let memory = ten();
    let newer = Summary { sequence: 50, ..Summary::clone(&run(5, RunStatus::Failed, &[CallState::Failed])) };
    memory.write(vec![Arc::new(newer)]);
    memory.write(vec![run(5, RunStatus::InProgress, &[CallState::Running])]);
    let (counts, _) = memory.count();
    assert_eq!(counts.runs, BTreeMap::from([(RunStatus::Completed, 9), (RunStatus::Failed, 1)]));
    assert_eq!(counts.calls, BTreeMap::from([(CallState::Completed, 9), (CallState::Failed, 1)]));
    assert_eq!(counts.parked, 1);
    memory.wipe();
    assert_eq!(memory.count().0, Counts::default());
}

#[test]
fn the_oldest_ended_runs_are_forgotten_and_that_is_told() {
    let memory = Memory::default();
    memory.write(vec![run(1, RunStatus::InProgress, &[CallState::Running])]);
    let (first, last) = (2, 2 + ENDED_RUNS_MAX as u64);
    memory.write((first..=last).map(|number| run(number, RunStatus::Completed, &[])).collect());
    assert_eq!(memory.coverage().cut_before, Some(Timestamp(3)), "run 2 was forgotten");
    let open = RunFilter { status: Some(RunStatus::InProgress), ..RunFilter::default() };
    assert_eq!(sequences(&memory.list_runs(&open, Ask { size: 10, behind: None })), [1], "what is open is kept");
    assert_eq!(memory.count().0.runs[&RunStatus::Completed], ENDED_RUNS_MAX as u64);
    memory.forget(Shard(1));
    assert!(memory.list_runs(&open, Ask { size: 10, behind: None }).items.is_empty());
}

#[test]
fn beside_a_history_it_is_told_that_runs_have_left_the_log() {
    let pruned = |memory: Memory| {
        memory.write((1..=4).map(|number| run(number, RunStatus::Completed, &[])).collect());
        memory.prune(&Expired::at(&[Timestamp(3)]));
        memory.prune(&Expired::at(&[Timestamp(3)]));
        memory.coverage().cut_before
    };
    assert_eq!(pruned(Memory::default()), None, "they are nowhere");
    assert_eq!(pruned(Memory::default().beside_history()), Some(Timestamp(3)));
    let memory = Memory::default().beside_history();
    memory.wipe();
    memory.prune(&Expired::at(&[Timestamp(3)]));
    assert_eq!(memory.coverage().cut_before, None, "there were none");
    memory.cut(Timestamp(2));
    assert_eq!(memory.coverage().cut_before, Some(Timestamp(2)));
}

#[test]
fn a_mark_moves_only_from_where_it_is_believed_to_stand() {
    let memory = Memory::default();
    let (shard, mark) = (Shard(3), Watermark::settled(7));
    assert!(!memory.advance(shard, Some(mark), Watermark::settled(9)));
    assert!(memory.advance(shard, None, mark));
    assert!(memory.advance(shard, Some(mark), Watermark::settled(9)));
    memory.wipe();
    assert!(!memory.advance(shard, Some(Watermark::settled(9)), Watermark::settled(10)), "it was emptied meanwhile");
}

#[tokio::test(start_paused = true)]
async fn a_list_is_complete_with_every_shard_that_there_may_be() {
    let memory = Memory::default();
    for shard in Partition::FIRST.shards() {
        assert!(!memory.coverage().is_complete());
        assert!(memory.advance(shard, None, Watermark::settled(1)));
    }
    assert!(!memory.coverage().is_complete(), "nobody said how many there are");
    let lasts = Duration::from_secs(10);
    memory.note_found(Found::all(16, Instant::now() + lasts));
    assert!(memory.coverage().is_complete());
    tokio::time::advance(lasts).await;
    assert!(!memory.coverage().is_complete(), "there may be more by now");
    memory.note_found(Found::all(17, Instant::now() + lasts));
    assert!(!memory.coverage().is_complete());
}
