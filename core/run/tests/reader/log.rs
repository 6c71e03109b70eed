//! The knowledge of a correct reader of the log.

use std::collections::{BTreeMap, BTreeSet};

use toolyard_run::{
    AttemptId, AttemptNumber, AttemptOutcome, Call, CallIndex, CallState, Entry, Event, Fact, Nonce, Policy, PoolId,
    Route, Run, limit,
};

use crate::story::{pool, run_id};

/// Each entry with the run before and after it, and the accepted facts.
pub(crate) fn for_each_entry(log: &[Entry], mut check: impl FnMut(&Entry, &Run, &Run, &[Fact])) {
    let mut run = Run::new(run_id());
    for entry in log {
        let before = run.clone();
        let mut heard = Vec::new();
        run.apply(entry, &mut heard);
        check(entry, &before, &run, &heard);
    }
}

pub(crate) fn for_any_entry(log: &[Entry], holds: impl Fn(&Run) -> bool) -> bool {
    let mut any = false;
    for_each_entry(log, |_, _, run, _| any |= holds(run));
    any
}

/// The questions of running calls.
pub(crate) fn questions(log: &[Entry]) -> BTreeSet<CallIndex> {
    let mut run = Run::new(run_id());
    log.iter().for_each(|entry| run.apply(entry, &mut Vec::new()));
    run.calls().iter().filter(|call| call.is_question()).map(Call::index).collect()
}

pub(crate) fn fails_fast(log: &[Entry]) -> bool {
    let mut events = log.iter().flat_map(|entry| &entry.events);
    events.any(|event| matches!(event, Event::RunOpened(opened) if opened.fail_fast))
}

pub(crate) fn pooled(call: &Call) -> Option<(&PoolId, &Policy)> {
    match &call.spec().route {
        Route::Pool { pool, policy, .. } => Some((pool, policy)),
        Route::Client | Route::Refused(_) | Route::Answered(_) => None,
    }
}

pub(crate) fn attempt_of(event: &Event) -> Option<AttemptId> {
    match event {
        Event::AttemptStarted { attempt, .. }
        | Event::AttemptStopping { attempt, .. }
        | Event::Output { attempt, .. }
        | Event::AttemptEnded { attempt, .. } => Some(*attempt),
        _ => None,
    }
}

/// The same event of another attempt that came to the same number.
pub(crate) fn twin(event: &Event) -> Option<Event> {
    with_author(event, |attempt, _| attempt.nonce = Nonce(attempt.nonce.0 ^ (1 << 40)))
}

/// The same event by a pool that has no calls, of an attempt that is newer than all others.
pub(crate) fn forged(event: &Event) -> Option<Event> {
    with_author(event, |attempt, author| (attempt.number, *author) = (AttemptNumber(u32::MAX), pool("omega")))
}

fn with_author(event: &Event, change: impl FnOnce(&mut AttemptId, &mut PoolId)) -> Option<Event> {
    let mut event = event.clone();
    match &mut event {
        Event::AttemptStarted { attempt, pool, .. }
        | Event::AttemptStopping { attempt, pool, .. }
        | Event::Output { attempt, pool, .. }
        | Event::AttemptEnded { attempt, pool, .. } => change(attempt, pool),
        _ => return None,
    }
    Some(event)
}

pub(crate) fn was_returned(entry: &Entry, id: AttemptId) -> bool {
    entry.events.iter().any(|event| {
        matches!(event, Event::AttemptEnded { attempt, outcome: AttemptOutcome::Returned, .. } if *attempt == id)
    })
}

pub(crate) fn newest_attempts(log: &[Entry]) -> BTreeMap<CallIndex, AttemptId> {
    let mut newest = BTreeMap::new();
    for_each_entry(log, |_, _, _, heard| {
        newest.extend(heard.iter().filter_map(|fact| match fact {
            Fact::AttemptStarted { attempt, .. } => Some((attempt.call, *attempt)),
            _ => None,
        }));
    });
    newest
}

fn unbroken(held: &BTreeSet<u32>) -> u32 {
    (0..).take_while(|chunk| held.contains(chunk)).count() as u32
}

/// The attempts that went on where the one before them broke off.
pub(crate) fn continuing(log: &[Entry]) -> BTreeSet<(CallIndex, AttemptNumber)> {
    let mut continuing = BTreeSet::new();
    for_each_entry(log, |_, _, _, heard| {
        continuing.extend(heard.iter().filter_map(|fact| match fact {
            Fact::AttemptStarted { attempt, continues: true } => Some((attempt.call, attempt.number)),
            _ => None,
        }));
    });
    continuing
}

/// Of each call the newest attempt, and how many of its chunks were stored in its time, from the first to a gap. Those
/// that it went on from count too.
pub(crate) fn chunks_that_count(log: &[Entry]) -> BTreeMap<CallIndex, (AttemptId, u32)> {
    let mut stored: BTreeMap<CallIndex, (AttemptId, BTreeSet<u32>)> = BTreeMap::new();
    let singly = log.iter().flat_map(|entry| {
        entry.events.iter().map(|event| Entry {
            sequence: entry.sequence,
            at: entry.at,
            not_after: None,
            hooked: entry.hooked,
            events: vec![event.clone()],
        })
    });
    for_each_entry(&singly.collect::<Vec<_>>(), |entry, _, run, heard| {
        for fact in heard {
            if let Fact::AttemptStarted { attempt, continues } = fact {
                let before = stored.remove(&attempt.call).filter(|_| *continues).map(|(_, held)| held);
                let held = before.map_or_else(BTreeSet::new, |held| (0..unbroken(&held)).collect());
                stored.insert(attempt.call, (*attempt, held));
            }
        }
        let [Event::Output { attempt, first, chunks, .. }] = entry.events.as_slice() else { return };
        let state = run.call(attempt.call).map(Call::state);
        if let (Some(CallState::Running(running)), Some((_, held))) = (state, stored.get_mut(&attempt.call))
            && running.attempt == *attempt
            && first.0 < limit::CHUNKS_PER_ATTEMPT_MAX
        {
            held.extend((first.0..).take(chunks.len()));
        }
    });
    stored.into_iter().map(|(call, (attempt, held))| (call, (attempt, unbroken(&held)))).collect()
}
