//! `git` on real repositories, with the real program.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod tree;

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;

use run::ErrorKind;
use sandbox::{Sandbox, Settings};
use serde_json::{Value, json};
use tools::{Git, Root};
use toolyard_tool::testkit::{self, Called};

use tree::Tree;

/// Runs git as a person does, in a folder.
fn sh(folder: &Path, arguments: &[&str]) {
    let mut command = Command::new("git");
    for (name, value) in [("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_CONFIG_SYSTEM", "/dev/null")] {
        command.env(name, value);
    }
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Ada").env(format!("GIT_{who}_EMAIL"), "ada@example.com");
    }
    command.args(["-c", "protocol.file.allow=always"]).args(arguments).current_dir(folder);
    let output = command.output().expect("git is installed");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A repository with two commits.
fn repository() -> Tree {
    let tree = Tree::of(&[("a.txt", "one\ntwo\n"), ("b c.txt", "x\n")]);
    sh(tree.path(), &["init", "--quiet", "--initial-branch=main"]);
    sh(tree.path(), &["add", "."]);
    sh(tree.path(), &["commit", "--quiet", "-m", "first", "-m", "with a body"]);
    tree.write("a.txt", b"one\n2\n");
    sh(tree.path(), &["commit", "--quiet", "-am", "second"]);
    tree
}

async fn git_in(root: Root, arguments: Value) -> Called {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    testkit::call(Git::new(root, Sandbox::new(Settings::default()).unwrap()), arguments).await
}

async fn git(tree: &Tree, arguments: Value) -> Called {
    git_in(tree.root(), arguments).await
}

/// The JSON part of a result.
async fn json(tree: &Tree, arguments: Value) -> Value {
    let called = git(tree, arguments).await;
    let last = called.result.as_ref().unwrap_or_else(|error| panic!("{error:?}")).last().unwrap().clone();
    match last {
        run::Content::Json(text) => serde_json::from_str(&text).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn the_status_names_what_is_changed_staged_renamed_and_unknown() {
    let tree = repository();
    tree.write("a.txt", b"changed\n");
    tree.write("new/file", b"");
    sh(tree.path(), &["mv", "b c.txt", "moved.txt"]);
    let status = json(&tree, json!({ "action": "status" })).await;
    assert_eq!(status["branch"], "main");
    assert_eq!(status["head"].as_str().unwrap().len(), 40);
    let expected = json!([
        { "path": "a.txt", "unstaged": "modified" },
        { "path": "moved.txt", "staged": "renamed", "from": "b c.txt" },
        { "path": "new/file", "unstaged": "untracked" },
    ]);
    assert_eq!(status["files"], expected);
    let some = json(&tree, json!({ "action": "status", "paths": ["new"] })).await;
    assert_eq!(some["files"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_diff_is_text_with_the_numbers_of_lines() {
    let tree = repository();
    tree.write("a.txt", b"one\ndeux\n");
    let called = git(&tree, json!({ "action": "diff", "context": 0 })).await;
    assert!(called.answer().contains("@@ -2 +2 @@ one\n-2\n+deux\n"), "{}", called.answer());
    let facts = json(&tree, json!({ "action": "diff", "summary": true })).await;
    assert_eq!(facts, json!({ "files": [{ "path": "a.txt", "added": 1, "removed": 1 }], "cut": false }));
    let staged = git(&tree, json!({ "action": "diff", "staged": true })).await;
    assert!(staged.answer().starts_with("No change\n"), "{}", staged.answer());
    let between = git(&tree, json!({ "action": "diff", "revision": "HEAD~1", "to": "HEAD" })).await;
    assert!(between.answer().contains("-two\n+2\n"), "{}", between.answer());
}

#[tokio::test]
async fn a_large_diff_is_cut_and_says_so() {
    let tree = repository();
    tree.write("a.txt", "a line of some length\n".repeat(50_000).as_bytes());
    let called = git(&tree, json!({ "action": "diff" })).await;
    assert!(called.answer().contains("\"cut\":true"), "the result says that it is cut");
    assert!(called.answer().len() < 256 * 1024);
}

#[tokio::test]
async fn the_log_is_read_page_by_page() {
    let tree = repository();
    let log = json(&tree, json!({ "action": "log" })).await;
    let commits = log["commits"].as_array().unwrap();
    assert_eq!(commits.len(), 2);
    assert_eq!((&commits[0]["subject"], &commits[0]["email"]), (&json!("second"), &json!("ada@example.com")));
    assert_eq!((&commits[1]["subject"], &commits[1]["body"]), (&json!("first"), &json!("with a body")));
    let page = json(&tree, json!({ "action": "log", "limit": 1, "offset": 1, "paths": ["a.txt"] })).await;
    assert_eq!(page["commits"][0], commits[1]);
}

#[tokio::test]
async fn a_commit_and_a_file_of_it_are_shown() {
    let tree = repository();
    let called = git(&tree, json!({ "action": "show" })).await;
    assert!(called.answer().contains("-two\n+2\n") && called.answer().contains("\"subject\":\"second\""));
    let file = git(&tree, json!({ "action": "show", "revision": "HEAD~1", "path": "a.txt" })).await;
    assert!(file.answer().starts_with("one\ntwo\n"), "{}", file.answer());
}

#[tokio::test]
async fn each_line_is_blamed_on_its_commit() {
    let tree = repository();
    let blame = json(&tree, json!({ "action": "blame", "path": "a.txt" })).await;
    let lines = blame["lines"].as_array().unwrap();
    assert_eq!((&lines[0]["summary"], &lines[0]["text"]), (&json!("first"), &json!("one")));
    assert_eq!((&lines[1]["summary"], &lines[1]["text"]), (&json!("second"), &json!("2")));
    let one = json(&tree, json!({ "action": "blame", "path": "a.txt", "from_line": 2, "to_line": 2 })).await;
    assert_eq!(one["lines"][0], lines[1]);
}

#[tokio::test]
async fn paths_are_committed_by_an_author() {
    let tree = repository();
    tree.write("new.txt", b"new\n");
    tree.write("a.txt", b"also changed\n");
    let ask =
        json!({ "action": "commit", "paths": ["new.txt"], "message": "- third", "author": "Eve <eve@example.com>" });
    let committed = json(&tree, ask).await;
    assert_eq!(committed["commit"]["subject"], "- third");
    assert_eq!(committed["commit"]["email"], "eve@example.com");
    let left = json(&tree, json!({ "action": "status" })).await;
    assert_eq!(left["files"], json!([{ "path": "a.txt", "unstaged": "modified" }]));
    json(&tree, json!({ "action": "commit", "all": true, "message": "fourth" })).await;
    let nothing = git(&tree, json!({ "action": "commit", "message": "fifth" })).await;
    assert!(nothing.error().contains("nothing to commit"), "{}", nothing.error());
}

#[tokio::test]
async fn branches_and_work_trees_are_made_listed_and_removed() {
    let tree = repository();
    let branch = |operation: &str, name: &str| json!({ "action": "branch", "operation": operation, "name": name });
    let made = json(&tree, branch("create", "topic")).await;
    let names: Vec<_> = made["branches"].as_array().unwrap().iter().map(|branch| branch["name"].clone()).collect();
    assert_eq!(names, ["main", "topic"]);
    let switched = json(&tree, branch("switch", "topic")).await;
    assert_eq!(switched["branches"][1]["current"], true);
    json(&tree, branch("switch", "main")).await;
    let ask = json!({ "action": "worktree", "operation": "create", "path": "beside/tree", "revision": "topic" });
    let trees = json(&tree, ask).await;
    assert_eq!(trees["worktrees"][1]["path"], "beside/tree");
    let status = json(&tree, json!({ "action": "status", "folder": "beside/tree" })).await;
    assert_eq!(status["branch"], "topic");
    json(&tree, json!({ "action": "worktree", "operation": "delete", "path": "beside/tree" })).await;
    json(&tree, branch("delete", "topic")).await;
    assert!(!tree.path().join("beside/tree").exists());
    let outside = json!({ "action": "worktree", "operation": "create", "path": "../beside", "revision": "main" });
    assert_eq!(git(&tree, outside).await.result.unwrap_err().violations[0].path, "/path");
}

#[tokio::test]
async fn nothing_that_a_repository_configures_is_run() {
    let (tree, spy) = (repository(), Tree::of(&[]));
    let mark = spy.path().join("ran");
    let script = spy.path().join("spy");
    fs::write(&script, format!("#!/bin/sh\necho \"$0 $*\" >> {}\ncat\n", mark.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    // A module whose own configuration is as bad.
    let other = repository();
    sh(tree.path(), &["submodule", "--quiet", "add", other.path().to_str().unwrap(), "module"]);
    sh(tree.path(), &["commit", "--quiet", "-m", "module"]);
    let spy = script.to_str().unwrap();
    for folder in [tree.path().to_owned(), tree.path().join("module")] {
        for name in [
            "core.fsmonitor",
            "core.sshCommand",
            "core.editor",
            "core.pager",
            "core.askPass",
            "core.gitProxy",
            "diff.external",
            "gpg.program",
            "credential.helper",
            "filter.x=y.clean",
            "filter.x=y.smudge",
            "filter.p.process",
            "diff.x=y.command",
            "diff.x=y.textconv",
            "merge.x=y.driver",
            "alias.status",
            "sequence.editor",
            "pager.log",
            "uploadpack.packObjectsHook",
        ] {
            sh(&folder, &["config", name, spy]);
        }
        for (name, value) in
            [("filter.x=y.required", "true"), ("commit.gpgSign", "true"), ("log.showSignature", "true")]
        {
            sh(&folder, &["config", name, value]);
        }
    }
    for hook in
        ["pre-commit", "commit-msg", "post-commit", "post-checkout", "reference-transaction", "post-index-change"]
    {
        symlink(&script, tree.path().join(".git/hooks").join(hook)).unwrap();
    }
    tree.write(".gitattributes", b"*.txt filter=x=y diff=x=y merge=x=y\n*.bin filter=p\n");
    tree.write("a.txt", b"changed\n");
    tree.write("a.bin", b"changed\n");
    tree.write("module/a.txt", b"changed\n");
    for ask in [
        json!({ "action": "status" }),
        json!({ "action": "diff" }),
        json!({ "action": "commit", "paths": ["a.txt", "a.bin", ".gitattributes"], "message": "all" }),
        json!({ "action": "log" }),
        json!({ "action": "show" }),
        json!({ "action": "blame", "path": "a.txt" }),
        json!({ "action": "branch", "operation": "create", "name": "topic", "revision": "HEAD~2" }),
        json!({ "action": "branch", "operation": "switch", "name": "topic" }),
        json!({ "action": "worktree", "operation": "create", "path": "beside", "revision": "main" }),
    ] {
        json(&tree, ask.clone()).await;
        assert!(!mark.exists(), "{ask}: {}", fs::read_to_string(&mark).unwrap());
    }
    // The test would see it.
    Command::new("git").arg("status").current_dir(tree.path()).output().unwrap();
    assert!(mark.exists());
}

#[tokio::test]
async fn a_repository_that_includes_configuration_under_a_condition_is_refused() {
    for condition in ["gitdir:**/worktrees/**", "onbranch:new"] {
        let (tree, spy) = (repository(), Tree::of(&[]));
        let (mark, included) = (spy.path().join("ran"), spy.path().join("included"));
        fs::write(&included, format!("[filter \"evil\"]\n\tsmudge = touch {}\n", mark.display())).unwrap();
        tree.write(".gitattributes", b"* filter=evil\n");
        sh(tree.path(), &["add", "."]);
        sh(tree.path(), &["commit", "--quiet", "-m", "attributes"]);
        sh(tree.path(), &["config", &format!("includeIf.{condition}.path"), included.to_str().unwrap()]);
        let ask = json!({ "action": "worktree", "operation": "create", "path": "beside", "name": "new" });
        let called = git(&tree, ask).await;
        assert!(!mark.exists(), "{condition}: the filter was run");
        let error = called.result.unwrap_err();
        assert_eq!((error.kind, error.violations[0].path.as_str()), (ErrorKind::ArgumentsInvalid, "/folder"));
        assert!(error.violations[0].message.contains("includeIf"), "{error:?}");
        // The test would see it.
        sh(tree.path(), &["worktree", "add", "--quiet", "-b", "new", "seen"]);
        assert!(mark.exists(), "{condition}");
    }
}

#[tokio::test]
async fn a_repository_that_is_not_all_inside_of_the_root_is_refused() {
    let outer = repository();
    fs::create_dir_all(outer.path().join("below/linked")).unwrap();
    let root = || Root::new(&outer.path().join("below")).unwrap();
    let above = git_in(root(), json!({ "action": "status" })).await;
    assert!(above.error().contains("no git repository"), "{}", above.error());
    fs::write(outer.path().join("below/linked/.git"), format!("gitdir: {}/.git\n", outer.path().display())).unwrap();
    let linked = git_in(root(), json!({ "action": "log", "folder": "linked" })).await;
    assert!(linked.error().contains("outside of the folder"), "{}", linked.error());
    sh(&outer.path().join("below"), &["init", "--quiet", "moved"]);
    sh(&outer.path().join("below/moved"), &["config", "core.worktree", outer.path().to_str().unwrap()]);
    let moved = git_in(root(), json!({ "action": "status", "folder": "moved" })).await;
    assert!(moved.error().contains("outside of the folder"), "{}", moved.error());
}

#[tokio::test]
async fn what_git_would_take_for_an_option_is_refused() {
    let tree = repository();
    for (ask, pointer) in [
        (json!({ "action": "log", "revision": "--output=x" }), "/revision"),
        (json!({ "action": "diff", "revision": "HEAD", "to": "-O" }), "/to"),
        (json!({ "action": "diff", "to": "HEAD" }), "/revision"),
        (json!({ "action": "branch", "operation": "create", "name": "-D" }), "/name"),
        (json!({ "action": "branch", "operation": "create" }), "/name"),
        (json!({ "action": "blame" }), "/path"),
        (json!({ "action": "blame", "path": "--contents=/etc/passwd" }), "/path"),
        (json!({ "action": "blame", "path": "a.txt", "from_line": 5, "to_line": 2 }), "/to_line"),
        (json!({ "action": "status", "paths": ["../x"] }), "/paths/0"),
        (json!({ "action": "show", "revision": "HEAD:a.txt" }), "/revision"),
        (json!({ "action": "commit" }), "/message"),
        (json!({ "action": "status", "folder": ".." }), "/folder"),
        (json!({ "action": "push" }), "/action"),
    ] {
        let error = git(&tree, ask.clone()).await.result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ArgumentsInvalid, "{ask}: {error:?}");
        assert_eq!(error.violations[0].path, pointer, "{ask}: {error:?}");
    }
    let unknown = git(&tree, json!({ "action": "log", "revision": "nowhere" })).await;
    assert!(unknown.error().contains("git log failed: fatal: bad revision 'nowhere'"), "{}", unknown.error());
    assert!(!tree.path().join("x").exists());
}
