//! A guard for the tests of MCP servers, whose own main function cannot begin as one.

fn main() {
    sandbox::enter();
}
