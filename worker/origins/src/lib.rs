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

/// For whom a call is, as its coordinator says: the tenant, the caller, and the caller's roles with commas between
/// them; empty if there are none.
fn requester(context: &toolyard_tool::Context) -> [String; 3] {
    let roles: Vec<_> = context.roles().iter().map(toolyard_tool::Role::name).collect();
    let (tenant, caller) = (context.tenant().map(ToString::to_string), context.caller().map(ToString::to_string));
    [tenant.unwrap_or_default(), caller.unwrap_or_default(), roles.join(",")]
}
