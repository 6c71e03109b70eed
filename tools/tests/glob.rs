//! `glob` on real folders.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod tree;

use std::os::unix::fs::symlink;

use run::ErrorKind;
use serde_json::{Value, json};
use tools::Glob;
use toolyard_tool::testkit::{self, Called};

use tree::Tree;

fn project() -> Tree {
    Tree::of(&[
        (".gitignore", "target/\n*.log\n"),
        (".hidden.rs", ""),
        ("README.md", ""),
        ("build.rs", ""),
        ("run.log", ""),
        ("src/lib.rs", ""),
        ("src/deep/er/mod.rs", ""),
        ("src/main.rs", ""),
        ("target/debug/out.rs", ""),
    ])
}

async fn glob(tree: &Tree, arguments: Value) -> Called {
    testkit::call(Glob::new(tree.root(), None), arguments).await
}

#[tokio::test]
async fn files_are_listed_in_the_order_of_their_paths() {
    let called = glob(&project(), json!({ "pattern": "**/*.rs" })).await;
    assert_eq!(called.text(), "build.rs\nsrc/deep/er/mod.rs\nsrc/lib.rs\nsrc/main.rs\n");
    assert_eq!(called.answer(), "4 files");
}

#[tokio::test]
async fn ignored_and_hidden_files_are_left_out_also_when_they_are_named() {
    let tree = project();
    for pattern in ["*.log", ".hidden.rs", "target/**", ".*"] {
        let called = glob(&tree, json!({ "pattern": pattern })).await;
        assert_eq!((called.text().as_str(), called.answer().as_str()), ("", "No file matches"), "{pattern}");
    }
}

#[tokio::test]
async fn an_ignore_file_above_the_path_counts() {
    let tree = project();
    tree.write("src/noise.log", b"");
    assert_eq!(glob(&tree, json!({ "pattern": "*.log", "path": "src" })).await.answer(), "No file matches");
}

#[tokio::test]
async fn a_pattern_is_relative_to_the_path_and_results_to_the_root() {
    let called = glob(&project(), json!({ "pattern": "*/er/*.rs", "path": "src" })).await;
    assert_eq!(called.text(), "src/deep/er/mod.rs\n");
    assert_eq!(called.answer(), "1 file");
}

#[tokio::test]
async fn a_list_that_was_cut_says_so_and_one_that_fits_does_not() {
    let tree = project();
    let called = glob(&tree, json!({ "pattern": "*.rs", "limit": 3 })).await;
    assert_eq!(called.text().lines().count(), 3);
    assert!(called.answer().starts_with("3 files, cut at the limit"), "{}", called.answer());
    assert_eq!(glob(&tree, json!({ "pattern": "*.rs", "limit": 4 })).await.answer(), "4 files");
}

#[tokio::test]
async fn a_path_that_leads_out_is_refused() {
    let tree = project();
    symlink("/", tree.path().join("way_out")).unwrap();
    for path in ["..", "src/../..", "/etc", "way_out", "way_out/etc"] {
        let called = glob(&tree, json!({ "pattern": "*", "path": path })).await;
        assert!(called.error().contains("leads out of the folder"), "{path}: {}", called.error());
    }
    assert!(glob(&tree, json!({ "pattern": "../*" })).await.error().contains("must not lead out"));
}

#[tokio::test]
async fn links_are_not_followed() {
    let (tree, other) = (project(), Tree::of(&[("secret.rs", "")]));
    symlink(other.path(), tree.path().join("way_out")).unwrap();
    symlink(other.path().join("secret.rs"), tree.path().join("src/secret.rs")).unwrap();
    assert_eq!(glob(&tree, json!({ "pattern": "**/secret.rs" })).await.answer(), "No file matches");
}

#[tokio::test]
async fn bad_input_is_explained() {
    let tree = project();
    let missing = glob(&tree, json!({ "pattern": "*", "path": "sources" })).await;
    assert!(missing.error().contains("there is no \"sources\""), "{}", missing.error());
    let file = glob(&tree, json!({ "pattern": "*", "path": "README.md" })).await;
    assert!(file.error().contains("not a folder"), "{}", file.error());
    let unclosed = glob(&tree, json!({ "pattern": "*.{rs" })).await;
    assert!(unclosed.error().contains("unclosed alternate group"), "{}", unclosed.error());
    for arguments in [json!({}), json!({ "pattern": "*", "limit": 0 }), json!({ "pattern": "*", "depth": 1 })] {
        assert_eq!(glob(&tree, arguments).await.result.unwrap_err().kind, ErrorKind::ArgumentsInvalid);
    }
}
