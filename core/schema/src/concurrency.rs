//! Whether a call may run beside others, decided by its arguments and the schemas that its tool declares.

use run::Concurrency;

use crate::Schema;

/// A tool's schemas for concurrency, compiled once.
#[derive(Debug, Clone)]
pub struct ByInput {
    /// The default if neither schema matches.
    pub otherwise: Concurrency,
    pub exclusive_when: Option<Schema>,
    pub parallel_when: Option<Schema>,
}

impl ByInput {
    /// Whether a call with these arguments may run beside others. With `may_change` the arguments may still be changed
    /// (by an approver), so their present value does not permit it.
    #[must_use]
    pub fn of(&self, arguments: &[u8], may_change: bool) -> Concurrency {
        // If the check takes too long, the call runs alone.
        let exclusive = |schema: &Schema| schema.accepts(arguments).unwrap_or(true);
        let parallel = |schema: &Schema| schema.accepts(arguments).unwrap_or(false);
        match (&self.exclusive_when, &self.parallel_when) {
            (None, None) => self.otherwise,
            _ if may_change => Concurrency::Exclusive,
            (Some(when), _) if exclusive(when) => Concurrency::Exclusive,
            (_, Some(when)) if parallel(when) => Concurrency::Parallel,
            _ => self.otherwise,
        }
    }
}
