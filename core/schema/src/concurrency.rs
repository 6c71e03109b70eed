//! Whether a call may run beside others, told by its arguments: as its tool has said it beforehand.

use run::Concurrency;

use crate::Schema;

/// What a tool says of its calls, compiled once.
#[derive(Debug, Clone)]
pub struct ByInput {
    /// Where neither schema says anything.
    pub otherwise: Concurrency,
    pub exclusive_when: Option<Schema>,
    pub parallel_when: Option<Schema>,
}

impl ByInput {
    /// Whether a call with these arguments may run beside others. `may_change` where somebody may still change them:
    /// then what they are now lets nobody beside it.
    #[must_use]
    pub fn of(&self, arguments: &[u8], may_change: bool) -> Concurrency {
        // What takes too long to find out lets no call beside others.
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
