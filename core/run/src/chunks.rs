//! Puts the chunks of one attempt in order. A publisher that reconnects may store them late or twice, so their order
//! follows from their numbers and not from the log.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::event::Position;
use crate::id::ChunkIndex;
use crate::limit::{CHUNKS_EARLY_MAX, CHUNKS_PER_ATTEMPT_MAX};

/// Neighbouring chunks of one stored event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Span {
    /// The event that holds them.
    pub position: Position,
    /// Chunks of that event before the span.
    pub skip: u32,
    /// The number of the span's first chunk within its attempt.
    pub first: ChunkIndex,
    pub count: u32,
}

impl Span {
    fn end(&self) -> u32 {
        self.first.0.saturating_add(self.count)
    }

    /// Where its chunks are among those of their event.
    pub(crate) fn within(self) -> Range<usize> {
        let first = self.skip as usize;
        first..first.saturating_add(self.count as usize)
    }

    /// The part of the span from chunk `next` on.
    fn from(self, next: u32) -> Self {
        let cut = next.saturating_sub(self.first.0).min(self.count);
        Self { skip: self.skip + cut, first: ChunkIndex(self.first.0 + cut), count: self.count - cut, ..self }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ChunkOrder {
    /// Chunks passed on so far, which is also the number of the next one.
    next: u32,
    /// Spans that wait for an earlier chunk, by their first.
    early: BTreeMap<u32, Span>,
}

impl ChunkOrder {
    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    /// Drops spans that wait for an earlier chunk, because the attempt that would send it is gone.
    pub(crate) fn forget_early(&mut self) {
        self.early.clear();
    }

    /// Inserts a span and passes on all that is now in order. Chunks that were seen before, or are beyond a limit, are
    /// dropped. `count` gets each part of the span that was not there before, so each chunk is counted once.
    pub(crate) fn insert(&mut self, span: Span, mut hand_on: impl FnMut(Span), mut count: impl FnMut(Span)) {
        if span.end() <= self.next || span.end() > CHUNKS_PER_ATTEMPT_MAX {
            return;
        }
        if span.first.0 > self.next {
            while let Some(fresh) = self.not_early(span)
                && self.early.len() < CHUNKS_EARLY_MAX
            {
                count(fresh);
                self.early.insert(fresh.first.0, fresh);
            }
            return;
        }
        let mut rest = Some(span.from(self.next));
        while let Some(fresh) = rest.and_then(|rest| self.not_early(rest)) {
            count(fresh);
            rest = Some(span.from(fresh.end())).filter(|rest| rest.count > 0);
        }
        let mut ready = Some(span);
        while let Some(span) = ready {
            let fresh = span.from(self.next);
            if fresh.count > 0 {
                self.next = fresh.end();
                hand_on(fresh);
            }
            let is_due = self.early.first_key_value().is_some_and(|(first, _)| *first <= self.next);
            ready = if is_due { self.early.pop_first().map(|(_, span)| span) } else { None };
        }
    }

    /// The first part of a span that none of the waiting spans has. These do not overlap.
    fn not_early(&self, span: Span) -> Option<Span> {
        let mut rest = span;
        if let Some((_, before)) = self.early.range(..=rest.first.0).next_back() {
            rest = rest.from(before.end());
        }
        for (first, known) in self.early.range(rest.first.0..) {
            if *first > rest.first.0 {
                return Some(Span { count: rest.count.min(*first - rest.first.0), ..rest }).filter(|it| it.count > 0);
            }
            rest = rest.from(known.end());
        }
        Some(rest).filter(|rest| rest.count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(spans: &[(u32, u32)]) -> Vec<(u32, u32)> {
        let mut order = ChunkOrder::default();
        let mut out = Vec::new();
        for (sequence, (first, count)) in spans.iter().enumerate() {
            let position = Position { sequence: sequence as u64, event: 0 };
            let span = Span { position, skip: 0, first: ChunkIndex(*first), count: *count };
            order.insert(span, |span| out.push((span.first.0, span.count)), |_| {});
        }
        out
    }

    #[test]
    fn chunks_in_order_pass_through() {
        assert_eq!(order(&[(0, 1), (1, 2), (3, 1)]), [(0, 1), (1, 2), (3, 1)]);
    }

    #[test]
    fn a_chunk_seen_before_is_dropped() {
        assert_eq!(order(&[(0, 2), (0, 2), (1, 1), (2, 1)]), [(0, 2), (2, 1)]);
    }

    #[test]
    fn an_early_chunk_waits_for_the_gap_to_fill() {
        assert_eq!(order(&[(2, 1), (1, 1), (0, 1)]), [(0, 1), (1, 1), (2, 1)]);
    }

    #[test]
    fn an_overlap_is_trimmed_and_says_how_much_to_skip() {
        let mut order = ChunkOrder::default();
        let mut out = Vec::new();
        for (sequence, first, count) in [(1, 0, 3), (2, 1, 4)] {
            let position = Position { sequence, event: 0 };
            order.insert(Span { position, skip: 0, first: ChunkIndex(first), count }, |span| out.push(span), |_| {});
        }
        assert_eq!((out[1].first.0, out[1].count, out[1].skip), (3, 2, 2));
    }

    #[test]
    fn chunks_beyond_the_limit_are_not_taken() {
        let up_to_it = (0, CHUNKS_PER_ATTEMPT_MAX);
        assert_eq!(order(&[(0, CHUNKS_PER_ATTEMPT_MAX + 1), (0, u32::MAX)]), []);
        assert_eq!(order(&[up_to_it, (CHUNKS_PER_ATTEMPT_MAX, 1), (u32::MAX, u32::MAX)]), [up_to_it]);
    }

    #[test]
    fn only_so_many_chunks_wait_for_an_earlier_one() {
        let waiting = (1..).step_by(2).take(CHUNKS_EARLY_MAX + 1).map(|first| (first, 1));
        let filling = (0..).step_by(2).take(CHUNKS_EARLY_MAX + 1).map(|first| (first, 1));
        let handed_on = order(&waiting.chain(filling).collect::<Vec<_>>());
        assert_eq!(handed_on.len(), 2 * CHUNKS_EARLY_MAX + 1);
    }

    /// The chunks of each span that are counted: those that no span before it had.
    fn counted(spans: &[(u32, u32)]) -> Vec<Vec<u32>> {
        let mut order = ChunkOrder::default();
        let numbers = |span: Span| span.first.0..span.end();
        let all = spans.iter().map(|(first, count)| {
            let position = Position { sequence: 0, event: 0 };
            let mut counted = Vec::new();
            let span = Span { position, skip: 0, first: ChunkIndex(*first), count: *count };
            order.insert(
                span,
                |_| {},
                |new| {
                    assert_eq!(new.skip, new.first.0 - span.first.0);
                    counted.extend(numbers(new));
                },
            );
            counted
        });
        all.collect()
    }

    #[test]
    fn a_chunk_is_counted_once_however_the_spans_that_wait_overlap() {
        assert_eq!(counted(&[(5, 3), (6, 3), (4, 6)]), [vec![5, 6, 7], vec![8], vec![4, 9]]);
        assert_eq!(counted(&[(2, 1), (4, 1), (0, 7), (3, 4)]), [vec![2], vec![4], vec![0, 1, 3, 5, 6], vec![]]);
        assert_eq!(counted(&[(1, 2), (1, 2), (1, 3), (0, 1)]), [vec![1, 2], vec![], vec![3], vec![0]]);
    }

    #[test]
    fn spans_that_overlap_while_they_wait_pass_each_chunk_on_once() {
        let chunks = |spans: &[(u32, u32)]| -> Vec<u32> {
            order(spans).into_iter().flat_map(|(first, count)| first..first + count).collect()
        };
        assert_eq!(chunks(&[(5, 3), (6, 3), (4, 6), (0, 4)]), (0..10).collect::<Vec<_>>());
        assert_eq!(chunks(&[(2, 1), (4, 1), (0, 7), (3, 4)]), (0..7).collect::<Vec<_>>());
    }
}
