//! What a tool gives beside its result, without a broker.

use serde_json::json;
use toolyard_worker::{ErrorKind, Output, ToolError, testkit, tool};

#[tokio::test]
async fn state_has_a_limit() {
    /// Remembers much.
    #[tool(read_only)]
    async fn hoard(bytes: usize) -> Result<Output, ToolError> {
        Output::from("Kept.").and(Output::from("All.")).with_state("k", &"x".repeat(bytes))
    }
    let fits = testkit::call(Hoard, json!({ "bytes": 8 * 1024 - 3 })).await;
    assert_eq!(fits.answer(), "Kept.All.");
    let large = testkit::call(Hoard, json!({ "bytes": 8 * 1024 - 2 })).await;
    assert_eq!(large.result.expect_err("it failed").kind, ErrorKind::ResultTooLarge);
}
