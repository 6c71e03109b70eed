//! The calls of sessions that are in progress at this replica, so that their clients can cancel them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use run::RunId;

/// A session, and the canonical id of one of its requests.
type Key = (String, String);

/// The calls in progress.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    begun: u64,
    /// With the number of the stream that follows the run: the latest one, if it was resumed.
    runs: HashMap<Key, (u64, RunId)>,
}

/// A call in progress, until this is dropped.
#[derive(Debug)]
pub(super) struct UnderWay {
    calls: Calls,
    key: Key,
    number: u64,
}

impl Calls {
    pub(super) fn begin(&self, session: &str, id: String, run: RunId) -> UnderWay {
        let key = (session.to_owned(), id);
        let mut known = self.known();
        known.begun += 1;
        let number = known.begun;
        known.runs.insert(key.clone(), (number, run));
        UnderWay { calls: self.clone(), key, number }
    }

    pub(super) fn find(&self, session: &str, id: &str) -> Option<RunId> {
        self.known().runs.get(&(session.to_owned(), id.to_owned())).map(|(_, run)| *run)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut known = self.calls.known();
        // A stream that was resumed has an entry of its own under the same key.
        if known.runs.get(&self.key).is_some_and(|(number, _)| *number == self.number) {
            known.runs.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_stream_leaves_the_stream_that_resumed_it() {
        let run: RunId = "run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f".parse().unwrap();
        let calls = Calls::default();
        let first = calls.begin("s", "7".to_owned(), run);
        let resumed = calls.begin("s", "7".to_owned(), run);
        drop(first);
        assert_eq!((calls.find("s", "7"), calls.find("s", "8")), (Some(run), None));
        drop(resumed);
        assert_eq!(calls.find("s", "7"), None);
    }
}
