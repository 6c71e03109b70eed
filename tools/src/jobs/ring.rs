//! The latest output of a job, in a limited room.

use std::collections::VecDeque;

/// Bytes of a job's output that are kept.
const KEPT_BYTES_MAX: usize = 1024 * 1024;

/// The end of a stream of bytes.
#[derive(Debug, Default)]
pub(super) struct Ring {
    kept: VecDeque<u8>,
    /// Bytes before those that are kept.
    forgotten: u64,
}

impl Ring {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        let over = self.kept.len().saturating_sub(KEPT_BYTES_MAX);
        self.kept.drain(..over);
        self.forgotten += over as u64;
    }

    /// The offset behind the last byte.
    pub(super) fn end(&self) -> u64 {
        self.forgotten + self.kept.len() as u64
    }

    /// At most that many bytes, at least 4, from an offset on, or from the first one that is kept; and where they
    /// begin. A character that is not complete at the end stays for the next read, unless `is_all` says that nothing
    /// follows.
    pub(super) fn read(&self, offset: u64, most: usize, is_all: bool) -> (u64, Vec<u8>) {
        let from = offset.max(self.forgotten);
        let start = usize::try_from(from - self.forgotten).unwrap_or(usize::MAX).min(self.kept.len());
        let mut bytes: Vec<u8> = self.kept.range(start..).take(most).copied().collect();
        let is_last = is_all && start + bytes.len() == self.kept.len();
        if !is_last {
            bytes.truncate(bytes.len() - begun(&bytes));
        }
        (from, bytes)
    }
}

/// Bytes at the end that may become a character with bytes to come.
fn begun(bytes: &[u8]) -> usize {
    let may_be = |count: &usize| {
        let tail = &bytes[bytes.len() - count..];
        std::str::from_utf8(tail).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(3)).find(may_be).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_bytes_are_kept_at_their_offsets() {
        let mut ring = Ring::default();
        ring.push(&vec![b'a'; KEPT_BYTES_MAX]);
        ring.push(b"bcd");
        assert_eq!(ring.end(), KEPT_BYTES_MAX as u64 + 3);
        let (from, bytes) = ring.read(0, 10, false);
        assert_eq!((from, bytes), (3, vec![b'a'; 10]));
        assert_eq!(ring.read(ring.end() - 2, 10, true), (ring.end() - 2, b"cd".to_vec()));
        assert_eq!(ring.read(ring.end(), 10, true).1, b"");
    }

    #[test]
    fn a_character_is_never_cut() {
        let mut ring = Ring::default();
        ring.push("aé".as_bytes());
        assert_eq!(ring.read(0, 2, true).1, b"a");
        assert_eq!(ring.read(1, 4, true).1, "é".as_bytes());
        ring.push(&[0xe6, 0xbc]);
        assert_eq!(ring.read(1, 10, false).1, "é".as_bytes());
        assert_eq!(ring.read(1, 10, true).1.len(), 4);
    }
}
