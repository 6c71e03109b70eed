//! Puts the chunks of one attempt in order. A publisher that reconnects may store them late or twice, so their order
//! follows from their numbers and not from the log.

use std::collections::BTreeMap;

use crate::event::Position;
use crate::id::ChunkIndex;
use crate::limit::{CHUNKS_EARLY_MAX, CHUNKS_PER_ATTEMPT_MAX};

/// Neighbouring chunks of one stored event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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

    /// The part of the span from chunk `next` on.
    fn from(self, next: u32) -> Self {
        let cut = next.saturating_sub(self.first.0).min(self.count);
        Self { skip: self.skip + cut, first: ChunkIndex(self.first.0 + cut), count: self.count - cut, ..self }
    }
}

#[derive(Debug, Clone, Default, PartialEq)]
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
    /// dropped. Returns how many of the span's chunks, counted from the last, were not there before.
    pub(crate) fn insert(&mut self, span: Span, mut hand_on: impl FnMut(Span)) -> u32 {
        if span.end() <= self.next || span.end() > CHUNKS_PER_ATTEMPT_MAX {
            return 0;
        }
        if span.first.0 > self.next {
            let known = self.early.get(&span.first.0).map_or(0, |known| known.count);
            if known >= span.count || self.early.len() >= CHUNKS_EARLY_MAX {
                return 0;
            }
            self.early.insert(span.first.0, span);
            return span.count - known;
        }
        let new = span.from(self.next).count;
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
        new
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
            order.insert(span, |span| out.push((span.first.0, span.count)));
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
            order.insert(Span { position, skip: 0, first: ChunkIndex(first), count }, |span| out.push(span));
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
}
