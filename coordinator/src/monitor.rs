//! The state of a coordinator for operators: its health, and how much of the broker and the index is in use.

pub(crate) mod health;
pub(crate) mod usage;
