//! Hosts tools that are not code of the worker: those of MCP servers, HTTP endpoints and programs. Each becomes an
//! ordinary tool of a [`Table`](toolyard_tool::Table); a worker hosts it as any other.

pub mod http;
pub mod mcp;
pub mod process;

mod described;
mod given;
mod source;
mod table;
mod transcript;

pub use source::{InvalidFile, Skipped};
