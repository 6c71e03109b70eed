//! Files that a worker is given and its tools must not read.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;

use super::process::{Ended, run, toolyard};

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

/// A process that hides belongs to root in `/proc`.
#[test]
fn a_worker_hides_before_it_starts_programs_that_describe_themselves() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).expect("ours");
    let (program, tools) = (folder.path().join("looks"), folder.path().join("tools.toml"));
    // It looks at the worker, which is the parent of its guard.
    let script = "#!/bin/sh\n\
        worker=$(awk '/^PPid:/ {print $2}' /proc/$PPID/status)\n\
        stat -c '%n %u' /proc/$worker/environ > \"$(dirname \"$0\")/owner\"\n\
        tr '\\0' ' ' < /proc/$worker/cmdline >> \"$(dirname \"$0\")/owner\"\n\
        echo '{\"name\": \"looks\", \"description\": \"Looks at its worker.\"}'\n";
    fs::write(&program, script).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    fs::write(&tools, format!("[[program]]\ncommand = [{program:?}]\ndescribe = true\n")).expect("written");
    let tools = tools.display().to_string();
    let broker = "nats://127.0.0.1:1";
    let mut worker =
        toolyard(["worker", "--nats-url", broker, "--pool", "p", "--sandbox", "none", "--programs", &tools]);
    // What belongs to root says nothing about a worker of root.
    if rustix::process::getuid().is_root() {
        worker.uid(65532).gid(65532);
    }
    Ended::of(&mut worker);
    let owner = fs::read_to_string(folder.path().join("owner")).expect("the program has looked");
    let (environ, command) = owner.split_once('\n').expect("two lines");
    assert!(command.contains("worker --nats-url"), "it looked at the worker: {owner}");
    assert!(environ.ends_with(" 0"), "{owner}");
}
