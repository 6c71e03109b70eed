//! Folders of calls, runs and tenants, with the built-in tools and real processes.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use run::ErrorKind;
use sandbox::{Level, Quota, Sandbox, Settings, Sharing, Wanted, Workspaces};
use serde_json::{Value, json};
use tokio::time::timeout;
use toolyard_tool::Table;
use toolyard_tool::testkit::{self, Called, Requester};

/// Longer than anything here should take.
const SOON: Duration = Duration::from_secs(30);
const QUOTA: Quota = Quota { bytes: 1024 * 1024, files: 100 };

/// The built-in tools of a worker below a root.
fn table(root: &Path, sharing: Sharing, level: Level) -> Table {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    let user = sandbox::choose_user(None).unwrap();
    let settings = Settings { level: Wanted::Exactly(level), user, ..Settings::default() };
    let workspaces = Some(Workspaces::new(root, sharing, QUOTA, user).unwrap());
    let sandbox = Sandbox::new(settings).unwrap();
    tools::built_in(tools::Options { workspaces, ..tools::Options::new(root, sandbox) }).unwrap()
}

async fn call(table: &Table, tenant: &str, tool: &str, arguments: Value) -> Called {
    let tenant = (!tenant.is_empty()).then(|| tenant.parse().unwrap());
    let requester = Requester { tenant, ..Requester::default() };
    timeout(SOON, testkit::call_for(table, tool, arguments, requester)).await.unwrap()
}

async fn bash(table: &Table, tenant: &str, command: &str) -> Called {
    call(table, tenant, "bash", json!({ "command": command })).await
}

/// Runs a command that succeeds.
async fn done(table: &Table, tenant: &str, command: &str) {
    assert_eq!(bash(table, tenant, command).await.answer(), r#"{"exit_code":0}"#, "{command}");
}

/// What a command writes, whichever its exit code.
async fn said(table: &Table, tenant: &str, command: &str) -> String {
    let called = bash(table, tenant, command).await;
    called.text_on("stdout") + &called.text_on("stderr")
}

/// A root that the user of programs may pass through.
fn root() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    std::fs::set_permissions(root.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    root
}

#[tokio::test]
async fn two_tenants_that_alternate_on_one_worker_never_see_each_other() {
    for level in [Level::Confined, Level::None] {
        let root = root();
        let table = table(root.path(), Sharing::Tenant, level);
        for turn in 0..3 {
            for (own, other) in [("acme", "rival"), ("rival", "acme")] {
                let name = format!("{own}-{turn}");
                let edit = json!({ "path": name, "content": format!("the secret of {own}") });
                assert!(call(&table, own, "edit", edit).await.result.is_ok());
                done(&table, own, &format!("cp {name} copy-{turn}")).await;
                // Each finds what it left before, and nothing of the other.
                for seen in [
                    call(&table, own, "glob", json!({ "pattern": "**" })).await.text(),
                    call(&table, own, "grep", json!({ "pattern": "secret" })).await.text(),
                    said(&table, own, "ls; cat *").await,
                ] {
                    assert!(seen.contains(own) && !seen.contains(other), "{level} {own}: {seen}");
                }
                let outside = format!("../tenant-{other}/{other}-0");
                let read = call(&table, own, "read_file", json!({ "path": outside })).await;
                assert_eq!(read.result.unwrap_err().kind, ErrorKind::ArgumentsInvalid);
                let link = call(&table, own, "bash", json!({ "command": format!("ln -sf {outside} link") })).await;
                assert!(link.result.is_ok());
                let read = call(&table, own, "read_file", json!({ "path": "link" })).await;
                assert!(read.result.is_err(), "a link leads to the other tenant");
                if level == Level::Confined {
                    let tries = format!("cat {outside} link; ls ..; echo x > ../x");
                    assert_eq!(bash(&table, own, &tries).await.text_on("stdout"), "", "{tries}");
                }
                done(&table, own, "rm link").await;
            }
        }
        let nobodys = said(&table, "", "ls").await;
        assert!(!nobodys.contains("acme") && !nobodys.contains("rival"), "calls without a tenant: {nobodys}");
        assert!(!root.path().join("x").exists());
    }
}

#[tokio::test]
async fn a_call_has_a_fresh_folder_and_nothing_of_it_is_left() {
    let root = root();
    let table = table(root.path(), Sharing::Call, Level::None);
    for _ in 0..2 {
        let pwd = said(&table, "", "ls -A; pwd; touch left; mkdir closed; touch closed/x; chmod 0 closed").await;
        let folder = Path::new(pwd.trim());
        assert!(folder.starts_with(root.path().canonicalize().unwrap()), "it is empty: {pwd:?}");
        // The removal is part of the call's end in a worker, which waits for it; the test kit does not.
        timeout(SOON, async {
            while folder.exists() {
                tokio::task::yield_now().await;
            }
        })
        .await
        .unwrap();
    }
    let job = json!({ "command": "sleep 60", "run_in_background": true });
    let refused = call(&table, "", "bash", job).await.result.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NeedsInput);
    drop(table);
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0, "a worker that ends leaves nothing");
}

#[tokio::test]
async fn the_calls_of_a_run_share_files_and_its_jobs_work_there() {
    let root = root();
    let table = table(root.path(), Sharing::Run, Level::None);
    done(&table, "", "echo hello > note").await;
    assert!(call(&table, "", "read_file", json!({ "path": "note" })).await.answer().contains("hello"));
    let job = json!({ "command": "cat note; sleep 60", "run_in_background": true });
    let shown: Value = serde_json::from_str(&call(&table, "", "bash", job).await.answer()).unwrap();
    let read = |job: &Value| json!({ "job": job, "wait_s": 20 });
    assert!(call(&table, "", "process_output", read(&shown["job"])).await.answer().contains("hello"));
    let stranger = call(&table, "rival", "process_output", read(&shown["job"])).await.result.unwrap_err();
    assert_eq!(stranger.kind, ErrorKind::ArgumentsInvalid, "a job is reached by calls of its tenant alone");
}

#[tokio::test]
async fn a_folder_that_is_full_fails_its_calls_until_files_are_removed() {
    let root = root();
    let table = table(root.path(), Sharing::Tenant, Level::None);
    let slow = bash(&table, "acme", "head -c 3000000 /dev/zero > large; sleep 60").await.result.unwrap_err();
    assert!(slow.message.contains("the folder of this tenant holds"), "{}", slow.message);
    let quick = bash(&table, "acme", "echo x > small").await.result.unwrap_err();
    assert!(quick.message.contains("remove files"), "a short call counts as well: {}", quick.message);
    assert!(call(&table, "acme", "glob", json!({ "pattern": "*" })).await.text().contains("large"), "reading goes on");
    done(&table, "rival", "true").await;
    done(&table, "acme", "rm large").await;
}
