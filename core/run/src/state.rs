//! Extra state that a run's calls return beside their results, merged in the order of the calls.

use crate::call::Call;
use crate::fields::Fields;
use crate::run::Run;

impl Run {
    /// The context of calls that are added to it, unless they have their own. Empty once none can be added.
    #[must_use]
    pub fn context(&self) -> &Fields {
        &self.context
    }

    /// The extra state of its calls so far. If two calls return the same key, the later call in the run wins, whichever
    /// ended first.
    #[must_use]
    pub fn extra_state(&self) -> Fields {
        let mut state = Fields::default();
        self.calls.iter().for_each(|call| state.overlay(&call.extra_state));
        state
    }
}

impl Call {
    /// Its extra state; empty unless it completed.
    #[must_use]
    pub fn extra_state(&self) -> &Fields {
        &self.extra_state
    }
}
