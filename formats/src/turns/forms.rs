//! One module per form: how its turn is read, and how its answers are written.

pub(crate) mod anthropic;
pub(crate) mod chat;
pub(crate) mod gemini;
pub(crate) mod mcp;
pub(crate) mod responses;
