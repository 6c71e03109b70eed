//! Vendors' model turns: what is read, what answers them, and what is refused.

mod answers;
mod mutated;
mod properties;
mod refused;
mod turns;
