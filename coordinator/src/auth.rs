//! Authentication, the rights of callers, and the audit log.

pub(crate) mod audit;
pub(crate) mod callers;
pub(crate) mod tls;
