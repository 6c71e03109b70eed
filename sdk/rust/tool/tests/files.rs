//! Tools that read the files of their calls.

use serde_json::json;
use toolyard_tool::testkit::call_with;
use toolyard_tool::{Context, Table, ToolError, tool};

/// Says what stands in a file.
#[tool(read_only)]
async fn reads(context: &Context, file: String, bytes_max: u64) -> Result<String, ToolError> {
    let all = context.read_all(context.file(&file)?, bytes_max).await?;
    Ok(String::from_utf8_lossy(&all).into_owned())
}

#[tokio::test]
async fn a_tool_reads_the_files_of_its_call() {
    let table = Table::new().host(Reads).expect("it can be hosted");
    let long = "long ".repeat(100_000);
    let files: [(&str, &[u8]); 3] = [("a", b"short"), ("b", long.as_bytes()), ("c", b"")];
    let read = async |file: &str, bytes_max: u64| {
        call_with(&table, "reads", json!({ "file": file, "bytes_max": bytes_max }), &files).await
    };
    assert_eq!(read("a", 5).await.answer(), "short");
    assert_eq!(read("b", 1 << 20).await.answer(), long, "over the edge of a chunk");
    assert_eq!(read("c", 0).await.answer(), "");
    assert!(read("a", 4).await.error().contains("5 bytes, at most 4"));
    assert!(read("d", 4).await.error().contains("there are: a, b, c"));
}
