//! Files that a worker is given and its tools must not read.

use std::fs;

use super::process::run;

#[test]
fn a_root_with_a_token_that_the_file_of_mcp_servers_names_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (root, servers) = (folder.path().join("root"), folder.path().join("servers.json"));
    let token = root.join("token");
    fs::create_dir(&root).expect("made");
    fs::write(&token, "secret").expect("written");
    let server = serde_json::json!({ "url": "https://mcp.example", "toolyard": { "token_file": token } });
    fs::write(&servers, serde_json::json!({ "mcpServers": { "a": server } }).to_string()).expect("written");
    let [root, servers] = [root, servers].map(|path| path.display().to_string());
    // Nothing listens there: it is refused before.
    let broker = "nats://127.0.0.1:1";
    let refused = run(["worker", "--nats-url", broker, "--pool", "p", "--root", &root, "--mcp-config", &servers]);
    assert_eq!(refused.code(), 1, "{}", refused.stderr());
    assert!(refused.stderr().contains("must not read") && refused.stderr().contains("token"), "{}", refused.stderr());
}
