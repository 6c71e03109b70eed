//! Model turns of vendors: reading, answers, and errors.

mod answers;
mod conversations;
mod mutated;
mod properties;
mod refused;
mod streams;
mod turns;
