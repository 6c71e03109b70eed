//! Numbers drawn from a seed: the same ones on every machine and with every version of any library.

use std::ops::Range;
use std::time::Duration;

/// SplitMix64. Small, and good enough to choose victims.
#[derive(Debug, Clone)]
pub(crate) struct Seed(u64);

impl Seed {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A seed of its own for the `number`-th of several things, so that one does not shift the others.
    pub(crate) fn of(&self, number: u64) -> Self {
        let mut mixed = Self(self.0 ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17));
        Self(mixed.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn between(&mut self, range: Range<u64>) -> u64 {
        let width = range.end.saturating_sub(range.start).max(1);
        range.start + self.next() % width
    }

    /// As [`Self::between`], with small numbers more often than large ones.
    pub(crate) fn mostly_small(&mut self, range: Range<u64>) -> u64 {
        let width = range.end.saturating_sub(range.start).max(1);
        let drawn = self.next() % width;
        range.start + drawn * (self.next() % width) / width
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(len.max(1)).unwrap_or(1)).unwrap_or_default()
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    pub(crate) fn ms(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.between(range))
    }

    /// One of several things, each as likely as its weight says.
    pub(crate) fn weighted<T: Clone>(&mut self, things: &[(u64, T)]) -> Option<T> {
        let mut drawn = self.next() % things.iter().map(|(weight, _)| weight).sum::<u64>().max(1);
        for (weight, thing) in things {
            if drawn < *weight {
                return Some(thing.clone());
            }
            drawn -= weight;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_one_others() {
        let draw =
            |seed: u64| (0..8).map(|_| 0).scan(Seed::new(seed), |seed, _: u64| Some(seed.next())).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_ne!(Seed::new(7).of(1).next(), Seed::new(7).of(2).next());
    }

    #[test]
    fn what_is_drawn_lies_in_its_range() {
        let mut seed = Seed::new(1);
        for _ in 0..1000 {
            assert!((5..9).contains(&seed.between(5..9)));
            assert!((5..90).contains(&seed.mostly_small(5..90)));
            assert!(seed.index(3) < 3);
            assert_eq!(seed.weighted(&[(0, 'a'), (3, 'b')]), Some('b'));
        }
    }
}
