//! Tools of MCP servers.
