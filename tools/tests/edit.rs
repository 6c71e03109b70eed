//! `edit` and `read_file` on real files.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod tree;

use std::fs;
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt as _, symlink};

use run::{Content, ErrorKind};
use serde_json::{Value, json};
use tools::{Edit, Glob, Grep, ReadFile};
use toolyard_tool::Table;
use toolyard_tool::testkit::{self, Called};

use tree::Tree;

async fn edit(tree: &Tree, arguments: Value) -> Called {
    testkit::call(Edit::new(tree.root(), None), arguments).await
}

async fn read(tree: &Tree, arguments: Value) -> Called {
    testkit::call(ReadFile::new(tree.root(), None), arguments).await
}

fn content(tree: &Tree, path: &str) -> String {
    fs::read_to_string(tree.path().join(path)).unwrap()
}

/// The last part of a result.
fn facts(called: &Called) -> Value {
    match called.result.as_ref().unwrap().last().unwrap() {
        Content::Json(text) => serde_json::from_str(text).unwrap(),
        other => panic!("{other:?}"),
    }
}

/// The first part of a result.
fn text(called: &Called) -> &str {
    match called.result.as_ref().unwrap().first().unwrap() {
        Content::Text(text) => text,
        other => panic!("{other:?}"),
    }
}

fn done(called: &Called) {
    assert!(called.result.is_ok(), "{called:?}");
}

fn pointer(called: &Called) -> &str {
    let error = called.result.as_ref().unwrap_err();
    assert_eq!(error.kind, ErrorKind::ArgumentsInvalid, "{error:?}");
    &error.violations[0].path
}

fn poem() -> Tree {
    Tree::of(&[("poem.txt", "one\ntwo\nthree\ntwo\n")])
}

#[tokio::test]
async fn an_exact_text_is_replaced_and_the_result_is_the_diff() {
    let tree = poem();
    let called = edit(&tree, json!({ "path": "poem.txt", "edits": [{ "old_text": "three", "new_text": "3" }] })).await;
    assert_eq!(content(&tree, "poem.txt"), "one\ntwo\n3\ntwo\n");
    assert_eq!(text(&called), "--- a/poem.txt\n+++ b/poem.txt\n@@ -1,4 +1,4 @@\n one\n two\n-three\n+3\n two\n");
    let facts = facts(&called);
    assert_eq!(
        (&facts["lines_added"], &facts["lines_removed"], &facts["created"]),
        (&json!(1), &json!(1), &json!(false))
    );
    let after = read(&tree, json!({ "path": "poem.txt" })).await;
    assert_eq!(self::facts(&after)["sha256"], facts["sha256"]);
}

#[tokio::test]
async fn several_edits_are_made_together_or_not_at_all() {
    let tree = poem();
    let edits = json!([{ "old_text": "one", "new_text": "1" }, { "old_text": "1\ntwo", "new_text": "1\n2" }]);
    done(&edit(&tree, json!({ "path": "poem.txt", "edits": edits })).await);
    assert_eq!(content(&tree, "poem.txt"), "1\n2\nthree\ntwo\n");
    let edits = json!([{ "old_text": "1", "new_text": "one" }, { "old_text": "nowhere", "new_text": "x" }]);
    let refused = edit(&tree, json!({ "path": "poem.txt", "edits": edits })).await;
    assert_eq!(pointer(&refused), "/edits/1/old_text");
    assert_eq!(content(&tree, "poem.txt"), "1\n2\nthree\ntwo\n");
}

#[tokio::test]
async fn a_text_that_is_not_unique_is_refused_unless_all_are_meant() {
    let tree = poem();
    let refused = edit(&tree, json!({ "path": "poem.txt", "edits": [{ "old_text": "two", "new_text": "2" }] })).await;
    assert!(refused.error().contains("occurs 2 times, in lines 2, 4"), "{}", refused.error());
    let edits = json!([{ "old_text": "two", "new_text": "2", "replace_all": true }]);
    done(&edit(&tree, json!({ "path": "poem.txt", "edits": edits })).await);
    assert_eq!(content(&tree, "poem.txt"), "one\n2\nthree\n2\n");
}

#[tokio::test]
async fn a_text_that_is_almost_there_is_explained() {
    let tree = Tree::of(&[("a.rs", "fn main() {\n    one();\n    two();\n}\n")]);
    let white = json!([{ "old_text": "one();\n  two();", "new_text": "" }]);
    let refused = edit(&tree, json!({ "path": "a.rs", "edits": white })).await;
    assert!(refused.error().contains("other white space, from line 2"), "{}", refused.error());
    let other = json!([{ "old_text": "one();\nthree();", "new_text": "" }]);
    let refused = edit(&tree, json!({ "path": "a.rs", "edits": other })).await;
    assert!(refused.error().contains("first line is there, in line 2"), "{}", refused.error());
}

#[tokio::test]
async fn a_unified_diff_is_applied_and_one_that_does_not_fit_changes_nothing() {
    let tree = poem();
    let patch = "--- a/poem.txt\n+++ b/poem.txt\n@@ -2,3 +2,3 @@\n two\n-three\n+drei\n two\n";
    done(&edit(&tree, json!({ "path": "poem.txt", "patch": patch })).await);
    assert_eq!(content(&tree, "poem.txt"), "one\ntwo\ndrei\ntwo\n");
    let again = edit(&tree, json!({ "path": "poem.txt", "patch": patch })).await;
    assert_eq!(pointer(&again), "/patch");
    for patch in ["no diff", "--- a\n+++ b\n", "--- a/poem.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n"] {
        assert_eq!(pointer(&edit(&tree, json!({ "path": "poem.txt", "patch": patch })).await), "/patch", "{patch}");
    }
    assert_eq!(content(&tree, "poem.txt"), "one\ntwo\ndrei\ntwo\n");
}

#[tokio::test]
async fn a_file_is_created_with_its_folders_and_an_existing_one_is_not_overwritten_unread() {
    let tree = poem();
    let created = edit(&tree, json!({ "path": "a/b/new.txt", "content": "hello\n" })).await;
    assert_eq!(content(&tree, "a/b/new.txt"), "hello\n");
    assert_eq!(facts(&created)["created"], true);
    assert!(text(&created).starts_with("--- /dev/null\n+++ b/a/b/new.txt\n@@ -0,0 +1 @@\n+hello\n"), "{created:?}");
    let refused = edit(&tree, json!({ "path": "poem.txt", "content": "gone" })).await;
    assert!(refused.error().contains("is there already"), "{}", refused.error());
    let sha256 = facts(&read(&tree, json!({ "path": "poem.txt" })).await)["sha256"].clone();
    done(&edit(&tree, json!({ "path": "poem.txt", "content": "new\n", "expected_sha256": sha256 })).await);
    assert_eq!(content(&tree, "poem.txt"), "new\n");
}

#[tokio::test]
async fn a_file_that_changed_since_it_was_read_is_refused() {
    let tree = poem();
    let sha256 = facts(&read(&tree, json!({ "path": "poem.txt" })).await)["sha256"].clone();
    tree.write("poem.txt", b"one\ntwo\nthree\nfour\n");
    let edits = json!([{ "old_text": "one", "new_text": "1" }]);
    let refused = edit(&tree, json!({ "path": "poem.txt", "edits": edits, "expected_sha256": sha256 })).await;
    assert_eq!(pointer(&refused), "/expected_sha256");
    assert_eq!(content(&tree, "poem.txt"), "one\ntwo\nthree\nfour\n");
}

#[tokio::test]
async fn mode_and_line_endings_stay() {
    let tree = Tree::of(&[("run.sh", "#!/bin/sh\r\necho one\r\necho two\r\n")]);
    let file = tree.path().join("run.sh");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o750)).unwrap();
    let edits = json!([{ "old_text": "echo one\necho two", "new_text": "echo three\necho four" }]);
    done(&edit(&tree, json!({ "path": "run.sh", "edits": edits })).await);
    assert_eq!(content(&tree, "run.sh"), "#!/bin/sh\r\necho three\r\necho four\r\n");
    let patch = "@@ -1,3 +1,3 @@\n #!/bin/sh\n-echo three\n+echo 3\n echo four\n";
    done(&edit(&tree, json!({ "path": "run.sh", "patch": patch })).await);
    assert_eq!(content(&tree, "run.sh"), "#!/bin/sh\r\necho 3\r\necho four\r\n");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o7777, 0o750);
    assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 1, "no temporary file is left");
}

#[tokio::test]
async fn what_is_no_text_is_refused() {
    let tree = poem();
    tree.write("binary", b"one\0two");
    tree.write("latin1", b"caf\xe9 one");
    for path in ["binary", "latin1"] {
        let edits = json!([{ "old_text": "one", "new_text": "1" }]);
        assert_eq!(pointer(&edit(&tree, json!({ "path": path, "edits": edits })).await), "/path");
    }
    let zero = edit(&tree, json!({ "path": "new", "content": "a\u{0}b" })).await;
    assert!(zero.error().contains("zero byte"), "{}", zero.error());
    tree.write("huge", &vec![b'x'; 9 * 1024 * 1024]);
    let edits = json!([{ "old_text": "one", "new_text": "1" }]);
    assert!(edit(&tree, json!({ "path": "huge", "edits": edits })).await.error().contains("8 MiB"));
}

#[tokio::test]
async fn nothing_outside_of_the_root_is_read_or_changed() {
    let (tree, other) = (poem(), Tree::of(&[("secret", "one\n")]));
    symlink(other.path(), tree.path().join("out")).unwrap();
    symlink(other.path().join("secret"), tree.path().join("secret")).unwrap();
    symlink(other.path().join("new"), tree.path().join("dangling")).unwrap();
    for path in ["../x", "out/secret", "out/new", "secret", "dangling", "/etc/passwd", "a/../../x"] {
        let created = edit(&tree, json!({ "path": path, "content": "gone" })).await;
        assert_eq!(pointer(&created), "/path", "{path}");
        let edits = json!([{ "old_text": "one", "new_text": "1" }]);
        assert_eq!(pointer(&edit(&tree, json!({ "path": path, "edits": edits })).await), "/path", "{path}");
        assert_eq!(pointer(&read(&tree, json!({ "path": path })).await), "/path", "{path}");
    }
    assert_eq!(content(&other, "secret"), "one\n");
    assert!(!other.path().join("new").exists());
    // A link that stays inside leads to its file, and stays.
    symlink("poem.txt", tree.path().join("link")).unwrap();
    done(&edit(&tree, json!({ "path": "link", "edits": [{ "old_text": "one", "new_text": "1" }] })).await);
    assert_eq!(content(&tree, "poem.txt"), "1\ntwo\nthree\ntwo\n");
    assert!(tree.path().join("link").symlink_metadata().unwrap().is_symlink());
}

#[tokio::test]
async fn arguments_that_do_not_fit_together_are_refused() {
    let tree = poem();
    for arguments in [
        json!({ "path": "poem.txt" }),
        json!({ "path": "poem.txt", "patch": "@@", "content": "" }),
        json!({ "path": "poem.txt", "edits": [{ "old_text": "", "new_text": "x" }] }),
        json!({ "path": "poem.txt", "edits": [{ "old_text": "one", "new_text": "one" }] }),
        json!({ "path": "poem.txt", "edits": [{ "old_text": "one", "new_text": "1" }], "expected_sha256": "abc" }),
        json!({ "path": "missing.txt", "edits": [{ "old_text": "one", "new_text": "1" }] }),
        json!({ "path": ".", "content": "x" }),
        json!({ "path": "poem.txt/x", "content": "x" }),
        json!({ "path": "key.nk", "content": "x" }),
    ] {
        let called = edit(&tree, arguments.clone()).await;
        let error = called.result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::ArgumentsInvalid, "{arguments}: {error:?}");
    }
    assert_eq!(content(&tree, "poem.txt"), "one\ntwo\nthree\ntwo\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn edits_at_the_same_time_are_all_in_the_file() {
    let lines: String = (0..40).map(|line| format!("line {line}.\n")).collect();
    let tree = Tree::of(&[("a.txt", &lines)]);
    let table = Table::new().host(Edit::new(tree.root(), None)).unwrap();
    let calls = (0..40).map(|line| {
        let edits = json!([{ "old_text": format!("line {line}."), "new_text": format!("LINE {line}!") }]);
        testkit::start_in(&table, "edit", json!({ "path": "a.txt", "edits": edits }))
    });
    for call in calls.collect::<Vec<_>>() {
        done(&call.end().await);
    }
    assert_eq!(content(&tree, "a.txt"), lines.replace("line", "LINE").replace('.', "!"));
}

#[tokio::test]
async fn lines_are_shown_with_numbers_and_the_rest_is_announced() {
    let tree = poem();
    let called = read(&tree, json!({ "path": "poem.txt", "offset": 2, "limit": 2 })).await;
    assert_eq!(text(&called), "2\ttwo\n3\tthree\n");
    let facts = facts(&called);
    assert_eq!((&facts["lines"], &facts["shown"], &facts["more"]), (&json!(4), &json!([2, 3]), &json!(true)));
    let plain = read(&tree, json!({ "path": "poem.txt", "line_numbers": false })).await;
    assert_eq!(text(&plain), "one\ntwo\nthree\ntwo\n");
    assert_eq!(self::facts(&plain).get("more"), None);
    assert_eq!(pointer(&read(&tree, json!({ "path": "poem.txt", "offset": 5 })).await), "/offset");
}

#[tokio::test]
async fn a_picture_is_shown_as_one_and_other_binary_files_are_refused() {
    let tree = Tree::of(&[]);
    let png = b"\x89PNG\x0d\x0a\x1a\x0a\0\0\0\x0dIHDR".repeat(1_000);
    tree.write("a.bin", &png);
    tree.write("b.bin", b"\x7fELF\0\0");
    let called = read(&tree, json!({ "path": "a.bin" })).await;
    let parts = called.result.as_ref().unwrap();
    assert!(matches!(&parts[0], Content::Data { media_type, data } if media_type == "image/png" && *data == png));
    assert!(read(&tree, json!({ "path": "b.bin" })).await.error().contains("is binary (6 bytes)"));
    rustix::fs::mkfifoat(rustix::fs::CWD, tree.path().join("pipe"), rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    assert!(read(&tree, json!({ "path": "pipe" })).await.error().contains("no regular file"));
    assert_eq!(pointer(&read(&tree, json!({ "path": "." })).await), "/path");
}

#[tokio::test]
async fn long_lines_and_much_text_are_cut_with_a_mark() {
    let tree = Tree::of(&[]);
    tree.write("long", format!("{}\nshort\n", "x".repeat(300_000)).as_bytes());
    let called = read(&tree, json!({ "path": "long" })).await;
    assert!(text(&called).ends_with(" [cut: 298000 bytes more]\n2\tshort\n"), "{}", text(&called).len());
    tree.write("much", "y\n".repeat(100_000).as_bytes());
    let called = read(&tree, json!({ "path": "much", "limit": 20_000 })).await;
    let facts = facts(&called);
    assert_eq!((&facts["lines"], &facts["more"]), (&json!(100_000), &json!(true)));
    assert!(text(&called).len() <= 128 * 1024);
}

#[tokio::test]
async fn a_file_in_a_folder_that_the_user_of_tools_may_not_enter_is_not_read_or_changed() {
    if !rustix::process::geteuid().is_root() {
        // Only root has another user for its tools; the system checks all others.
        return;
    }
    let tree = Tree::of(&[("private/in/a", "secret\n"), ("open/a", "plain\n")]);
    let access = |path: &str, mode| fs::set_permissions(tree.path().join(path), Permissions::from_mode(mode)).unwrap();
    access("private", 0o700);
    access("private/in", 0o777);
    access("private/in/a", 0o666);
    let user = Some(sandbox::User::NOBODY);
    let read = async |path: &str| testkit::call(ReadFile::new(tree.root(), user), json!({ "path": path })).await;
    assert!(read("open/a").await.result.is_ok());
    let error = read("private/in/a").await;
    assert!(error.error().contains("cannot be read: permission denied"), "{error:?}");
    let edits = json!([{ "old_text": "secret", "new_text": "changed" }]);
    for arguments in
        [json!({ "path": "private/in/a", "edits": edits }), json!({ "path": "private/in/new", "content": "x" })]
    {
        let called = testkit::call(Edit::new(tree.root(), user), arguments).await;
        assert!(called.error().contains("permission denied"), "{called:?}");
    }
}

#[tokio::test]
async fn what_the_user_of_tools_may_not_read_is_passed_over_by_searches() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let tree = Tree::of(&[("private/a", "needle\n"), ("b", "needle\n"), ("open/c", "needle\n")]);
    for (path, mode) in [("private", 0o700), ("b", 0o600)] {
        fs::set_permissions(tree.path().join(path), Permissions::from_mode(mode)).unwrap();
    }
    let user = Some(sandbox::User::NOBODY);
    let found = testkit::call(Grep::new(tree.root(), user), json!({ "pattern": "needle" })).await;
    assert_eq!(found.text(), "open/c:1:needle\n");
    assert!(found.answer().contains("2 could not be read: b (permission denied), private (permission denied)"));
    // A user who may list a folder can read the names in it.
    let listed = testkit::call(Glob::new(tree.root(), user), json!({ "pattern": "**/*" })).await;
    assert_eq!(listed.text(), "b\nopen/c\n");
    for path in ["private", "private/a"] {
        let named = testkit::call(Grep::new(tree.root(), user), json!({ "pattern": "needle", "path": path })).await;
        assert_eq!(named.text(), "", "{path}");
    }
}
