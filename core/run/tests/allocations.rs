//! Allocations of the fold, because times on a busy machine are too inexact.

mod story;

use allocation_counter::measure;
use story::{Story, completed, output, repeatable, run_id, started};
use toolyard_run::{Entry, Event, FloorPolicy, Run, Sequencer};

/// Allocations of a reader that folds a log and orders its output.
fn of_a_reader(log: &[Entry]) -> u64 {
    let info = measure(|| {
        let (mut run, mut sequencer) = (Run::new(run_id()), Sequencer::new(FloorPolicy::Arrival));
        let (mut heard, mut spoken) = (Vec::new(), Vec::new());
        for entry in log {
            heard.clear();
            run.apply(entry, &mut heard);
            sequencer.observe(entry.at, &heard, &mut spoken);
            spoken.clear();
        }
        assert!(run.status().is_final(), "the log is a whole run");
    });
    info.count_total
}

/// A run as a call without output leaves it: two entries.
fn quick_call() -> Story {
    let mut story = Story::unopened();
    story.tell_together([story::opened([repeatable("only")], false), story::dispatched(0)]);
    story.tell_together([started(0, 1), completed(0, 1, 0)]);
    story
}

/// A call with a given number of chunks, an entry each.
fn streaming_call(chunks: u32) -> Story {
    let mut story = Story::unopened();
    story.tell_together([story::opened([repeatable("only")], false), story::dispatched(0)]);
    story.tell(started(0, 1));
    let all = (0..chunks).map(|chunk| output(0, 1, chunk..chunk + 1));
    story.tell_all(all.collect::<Vec<Event>>());
    story.tell(completed(0, 1, chunks));
    story
}

#[test]
fn a_call_is_folded_and_put_in_order_in_nine_allocations() {
    assert_eq!(of_a_reader(&quick_call().log), 9);
}

#[test]
fn a_chunk_is_folded_and_put_in_order_without_an_allocation() {
    assert_eq!(of_a_reader(&streaming_call(100).log), of_a_reader(&streaming_call(1100).log));
}
