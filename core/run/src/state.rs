//! What a run's calls leave behind beside their results: state, merged in the order of the calls.

use crate::call::Call;
use crate::fields::Fields;
use crate::run::Run;

impl Run {
    /// What calls that are added to it are given, where they do not say otherwise. Empty once none can be added.
    #[must_use]
    pub fn context(&self) -> &Fields {
        &self.context
    }

    /// What its calls gave back beside their results, so far. Of two that gave the same key the later one counts, as the calls
    /// stand in the run: whichever ended first, and whoever reads it.
    #[must_use]
    pub fn extra_state(&self) -> Fields {
        let mut state = Fields::default();
        self.calls.iter().for_each(|call| state.overlay(&call.extra_state));
        state
    }
}

impl Call {
    /// What it gave back beside its result; nothing unless it completed.
    #[must_use]
    pub fn extra_state(&self) -> &Fields {
        &self.extra_state
    }
}
