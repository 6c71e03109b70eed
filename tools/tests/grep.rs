//! `grep` on real files.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod tree;

use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use run::ErrorKind;
use rustix::fs::{self, CWD, RenameFlags};
use serde_json::{Value, json};
use tokio::time::timeout;
use tools::Grep;
use toolyard_tool::testkit::{self, Called};

use tree::Tree;

async fn grep(tree: &Tree, arguments: Value) -> Called {
    testkit::call(Grep::new(tree.root(), None), arguments).await
}

/// The text that is said when there is nothing else of interest.
async fn lines(tree: &Tree, arguments: Value) -> String {
    grep(tree, arguments).await.text()
}

fn poem() -> Tree {
    Tree::of(&[
        ("a.txt", "one\ntwo\nthree\nfour\nfive\nsix\nseven\n"),
        ("b/c.txt", "One more\ntwo\n"),
        ("b/d.rs", "fn two() {}\n"),
    ])
}

#[tokio::test]
async fn matches_are_shown_with_path_and_line_in_order() {
    let called = grep(&poem(), json!({ "pattern": "t[wh]" })).await;
    assert_eq!(called.text(), "a.txt:2:two\na.txt:3:three\nb/c.txt:2:two\nb/d.rs:1:fn two() {}\n");
    assert_eq!(called.answer(), "4 matching lines in 3 files");
}

#[tokio::test]
async fn a_glob_and_a_path_narrow_the_search() {
    let tree = poem();
    assert_eq!(lines(&tree, json!({ "pattern": "two", "glob": "*.rs" })).await, "b/d.rs:1:fn two() {}\n");
    assert_eq!(lines(&tree, json!({ "pattern": "two", "path": "b", "glob": "/c.*" })).await, "b/c.txt:2:two\n");
    assert_eq!(lines(&tree, json!({ "pattern": "two", "path": "a.txt", "glob": "*.txt" })).await, "a.txt:2:two\n");
    assert_eq!(lines(&tree, json!({ "pattern": "two", "path": "a.txt", "glob": "*.rs" })).await, "");
}

#[tokio::test]
async fn case_matters_unless_told_otherwise() {
    let tree = poem();
    assert_eq!(lines(&tree, json!({ "pattern": "^one" })).await, "a.txt:1:one\n");
    let both = lines(&tree, json!({ "pattern": "^one", "ignore_case": true })).await;
    assert_eq!(both, "a.txt:1:one\nb/c.txt:1:One more\n");
}

#[tokio::test]
async fn a_fixed_string_is_no_expression() {
    let tree = poem();
    assert_eq!(lines(&tree, json!({ "pattern": "two()", "fixed_strings": true })).await, "b/d.rs:1:fn two() {}\n");
    assert_eq!(grep(&tree, json!({ "pattern": "t.o", "fixed_strings": true })).await.answer(), "No line matches");
}

#[tokio::test]
async fn lines_of_context_are_marked_and_groups_are_told_apart() {
    let said = lines(&poem(), json!({ "pattern": "two|six", "glob": "*.txt", "context": 1 })).await;
    let expected = "a.txt-1-one\na.txt:2:two\na.txt-3-three\n--\na.txt-5-five\na.txt:6:six\na.txt-7-seven\n--\n\
                    b/c.txt-1-One more\nb/c.txt:2:two\n";
    assert_eq!(said, expected);
}

#[tokio::test]
async fn a_search_that_was_cut_says_so_and_shows_nothing_of_the_next_match() {
    let called = grep(&poem(), json!({ "pattern": "two|six", "context": 1, "limit": 1 })).await;
    assert_eq!(called.text(), "a.txt-1-one\na.txt:2:two\na.txt-3-three\n");
    assert!(called.answer().starts_with("1 matching line in 1 file, cut at the limit"), "{}", called.answer());
    let neighbours = grep(&poem(), json!({ "pattern": "two|three", "limit": 1 })).await;
    assert_eq!(neighbours.text(), "a.txt:2:two\n");
    assert!(neighbours.answer().contains("cut"));
}

#[tokio::test]
async fn a_search_that_just_fits_was_not_cut() {
    let called = grep(&poem(), json!({ "pattern": "two", "limit": 3, "context": 1 })).await;
    assert_eq!(called.answer(), "3 matching lines in 3 files");
}

#[tokio::test]
async fn a_long_line_is_cut_with_a_mark() {
    let tree = Tree::of(&[("min.js", &format!("x{}\n", "é".repeat(400)))]);
    let expected = format!("min.js:1:x{} [cut: 302 bytes more]\n", "é".repeat(249));
    assert_eq!(lines(&tree, json!({ "pattern": "x" })).await, expected);
}

#[tokio::test]
async fn binary_ignored_and_hidden_files_are_skipped() {
    let tree = poem();
    tree.write("early", b"two\0two\n");
    let mut late = b"zwei two\n".repeat(2_000);
    late.push(0);
    tree.write("late", &late);
    tree.write(".gitignore", b"b/\n");
    tree.write(".hidden", b"two\n");
    let said = lines(&tree, json!({ "pattern": "^two" })).await;
    assert_eq!(said, "a.txt:2:two\n");
}

#[tokio::test]
async fn a_carriage_return_is_no_part_of_the_line() {
    let tree = Tree::of(&[("windows.txt", "one\r\ntwo\r\n")]);
    assert_eq!(lines(&tree, json!({ "pattern": "^two$" })).await, "windows.txt:2:two\n");
}

#[tokio::test]
async fn text_in_utf_16_is_read() {
    let tree = Tree::of(&[]);
    let utf16: Vec<u8> = "\u{feff}one\r\ntwo\r\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    tree.write("windows.txt", &utf16);
    assert_eq!(lines(&tree, json!({ "pattern": "two$" })).await, "windows.txt:2:two\n");
}

#[tokio::test]
async fn bytes_that_are_no_text_are_replaced() {
    let tree = Tree::of(&[]);
    tree.write("latin1.txt", b"caf\xe9\n");
    assert_eq!(lines(&tree, json!({ "pattern": "caf" })).await, "latin1.txt:1:caf\u{fffd}\n");
}

#[tokio::test]
async fn an_expression_that_is_none_is_explained() {
    let tree = poem();
    let called = grep(&tree, json!({ "pattern": "(two" })).await;
    assert!(called.error().contains("unclosed group"), "{}", called.error());
    assert!(called.error().contains("fixed_strings"), "{}", called.error());
    let look_around = grep(&tree, json!({ "pattern": "(?=two)" })).await;
    assert!(look_around.error().contains("look-around"), "{}", look_around.error());
    let huge = grep(&tree, json!({ "pattern": "(\\w{1000}){1000}" })).await;
    assert!(huge.error().contains("size limit"), "{}", huge.error());
}

#[tokio::test]
async fn a_path_that_leads_out_is_refused_and_links_are_not_followed() {
    let (tree, other) = (poem(), Tree::of(&[("secret", "two\n")]));
    symlink(other.path(), tree.path().join("way_out")).unwrap();
    symlink(other.path().join("secret"), tree.path().join("secret")).unwrap();
    for path in ["..", "way_out", "secret", "way_out/secret", "/etc/passwd"] {
        let called = grep(&tree, json!({ "pattern": "two", "path": path })).await;
        assert!(called.error().contains("leads out of the folder"), "{path}: {}", called.error());
    }
    assert!(!lines(&tree, json!({ "pattern": "two" })).await.contains("secret"));
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused() {
    for arguments in [
        json!({}),
        json!({ "pattern": "" }),
        json!({ "pattern": "x", "context": 11 }),
        json!({ "pattern": "x", "limit": 0 }),
        json!({ "pattern": "x", "limit": 1_000_000 }),
        json!({ "pattern": "x", "flags": "i" }),
    ] {
        let called = grep(&poem(), arguments.clone()).await;
        assert_eq!(called.result.unwrap_err().kind, ErrorKind::ArgumentsInvalid, "{arguments}");
    }
}

#[tokio::test]
async fn a_match_is_shown_while_the_search_goes_on_and_a_cancelled_search_stops() {
    let tree = Tree::of(&[("a.txt", "two\n")]);
    // Terabytes of nothing take no room and could not be read to their end.
    let endless = std::fs::File::create(tree.path().join("b.txt")).unwrap();
    std::io::Write::write_all(&mut &endless, &b"filler\n".repeat(2_000)).unwrap();
    endless.set_len(1 << 42).unwrap();
    tree.write("c.txt", b"two\n");
    let mut call = testkit::start(Grep::new(tree.root(), None), json!({ "pattern": "two" }));
    let first = timeout(Duration::from_secs(5), call.chunk()).await.unwrap().unwrap();
    assert!(format!("{first:?}").contains("a.txt:1:two"), "{first:?}");
    call.cancel();
    timeout(Duration::from_secs(5), call.end()).await.unwrap();
}

/// Exchanges two files without a pause until it is dropped.
struct Swap {
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Swap {
    fn start(one: PathBuf, other: PathBuf) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                fs::renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).unwrap();
            }
        });
        Self { over, thread: Some(thread) }
    }
}

impl Drop for Swap {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[tokio::test]
async fn a_link_that_is_put_in_the_place_of_a_file_meanwhile_is_not_followed() {
    let (tree, outside) = (Tree::of(&[("x", "plain\n"), (".aside/other", "")]), Tree::of(&[("secret", "needle\n")]));
    std::fs::remove_file(tree.path().join(".aside/other")).unwrap();
    symlink(outside.path().join("secret"), tree.path().join(".aside/other")).unwrap();
    let _swap = Swap::start(tree.path().join("x"), tree.path().join(".aside/other"));
    for _ in 0..1_000 {
        assert_eq!(lines(&tree, json!({ "pattern": "needle" })).await, "");
    }
}

#[tokio::test]
async fn a_pipe_that_is_put_in_the_place_of_a_file_meanwhile_is_not_waited_for() {
    let tree = Tree::of(&[("x", "plain\n"), (".aside/x", "")]);
    let (file, pipe) = (tree.path().join("x"), tree.path().join(".aside/other"));
    fs::mkfifoat(CWD, &pipe, fs::Mode::from_raw_mode(0o600)).unwrap();
    let swap = Swap::start(file.clone(), pipe.clone());
    for _ in 0..1_000 {
        if timeout(Duration::from_secs(5), grep(&tree, json!({ "pattern": "needle" }))).await.is_err() {
            drop(swap);
            // A pipe that is open for writing is waited for no longer.
            let ends = [file, pipe].map(|path| std::fs::File::options().read(true).write(true).open(path));
            panic!("a search waits for a pipe: {ends:?}");
        }
    }
}

/// A pattern that needs thousands of states for each byte of a line.
const SLOW: &str = "[ab]*a[ab]{8000}c";

#[tokio::test(flavor = "multi_thread")]
async fn a_search_ends_with_its_call_also_within_a_line() {
    let line: String = (0..8_000_000_u64).map(|n| if (n * n / 7) % 3 == 0 { 'a' } else { 'b' }).collect();
    let tree = Tree::of(&[("ab.txt", line.as_str())]);
    let before = processor_time();
    let call = testkit::start(Grep::new(tree.root(), None), json!({ "pattern": SLOW, "path": "ab.txt" }));
    while processor_time() < before + Duration::from_millis(300) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    call.cancel();
    assert_eq!(call.end().await.error(), "the call was cancelled");
    // Its thread holds the file open while it searches.
    let reads = || {
        std::fs::read_dir("/proc/self/fd").unwrap().flatten().any(|fd| {
            std::fs::read_link(fd.path())
                .is_ok_and(|target| target.ends_with("ab.txt") && target.starts_with(tree.path()))
        })
    };
    timeout(Duration::from_secs(20), async {
        while reads() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .expect("the thread ends");
}

/// What this process used of a processor.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let ticks =
        stat.rsplit(')').next().unwrap().split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap());
    Duration::from_millis(ticks.sum::<u64>() * 10)
}

#[tokio::test]
async fn a_long_line_is_searched_in_steps_with_the_same_result() {
    let long = "ab".repeat(20_000) + "c";
    let text = format!("short\n{long}\nab\n");
    let tree = Tree::of(&[("a.txt", text.as_str())]);
    let called = grep(&tree, json!({ "pattern": "^[ab]*a[ab]{1001}c$" })).await;
    assert_eq!(called.answer(), "1 matching line in 1 file");
    assert!(called.text().starts_with("a.txt:2:abab"), "{}", called.text());
    let called = grep(&tree, json!({ "pattern": "^[ab]*a[ab]{1000}x" })).await;
    assert_eq!(called.answer(), "No line matches");
}

#[tokio::test]
async fn what_is_passed_over_is_named_with_the_reason() {
    let tree = Tree::of(&[("long.txt", "x".repeat(17 * 1024 * 1024).as_str()), ("a.txt", "one\n")]);
    let called = grep(&tree, json!({ "pattern": "one" })).await;
    let expected = "1 matching line in 1 file; 1 could not be read: long.txt (it has a line of more than 16 MiB)";
    assert_eq!(called.answer(), expected);
}

#[tokio::test]
async fn a_mode_shows_only_the_files_or_how_often_each_matches() {
    let tree = poem();
    let files = grep(&tree, json!({ "pattern": "t[wh]", "output_mode": "files_with_matches" })).await;
    assert_eq!(files.text(), "a.txt\nb/c.txt\nb/d.rs\n");
    assert_eq!(files.answer(), "3 files");
    let counts = grep(&tree, json!({ "pattern": "t[wh]", "output_mode": "count", "context": 3 })).await;
    assert_eq!(counts.text(), "a.txt:2\nb/c.txt:1\nb/d.rs:1\n");
    assert_eq!(counts.answer(), "4 matching lines in 3 files");
    let some = grep(&tree, json!({ "pattern": "t[wh]", "output_mode": "count", "offset": 1, "limit": 1 })).await;
    assert_eq!(some.text(), "b/c.txt:1\n");
    assert!(some.answer().starts_with("1 matching line in 1 file, cut at the limit"), "{}", some.answer());
}

#[tokio::test]
async fn a_type_of_files_narrows_the_search_and_an_unknown_one_is_refused_with_proposals() {
    let tree = poem();
    assert_eq!(lines(&tree, json!({ "pattern": "two", "type": "rust" })).await, "b/d.rs:1:fn two() {}\n");
    let unknown = grep(&tree, json!({ "pattern": "two", "type": "typescrip" })).await;
    assert_eq!(unknown.result.as_ref().unwrap_err().violations[0].path, "/type");
    assert!(unknown.error().contains("typescript"), "{}", unknown.error());
}

#[tokio::test]
async fn pages_of_matches_are_together_all_of_them() {
    let tree = poem();
    let all = lines(&tree, json!({ "pattern": "e" })).await;
    let mut pages = String::new();
    for page in 0..10 {
        pages += &lines(&tree, json!({ "pattern": "e", "offset": page * 2, "limit": 2 })).await;
    }
    assert_eq!(pages, all);
    let beyond = grep(&tree, json!({ "pattern": "e", "offset": 100 })).await;
    assert_eq!(beyond.answer(), "No further line matches");
    let around = lines(&tree, json!({ "pattern": "two|six", "path": "a.txt", "context": 1, "offset": 1 })).await;
    assert_eq!(around, "a.txt-5-five\na.txt:6:six\na.txt-7-seven\n");
}

#[tokio::test]
async fn context_may_differ_before_and_after() {
    let said = lines(&poem(), json!({ "pattern": "four", "before": 2, "after": 1 })).await;
    assert_eq!(said, "a.txt-2-two\na.txt-3-three\na.txt:4:four\na.txt-5-five\n");
    let said = lines(&poem(), json!({ "pattern": "four", "context": 1, "before": 0 })).await;
    assert_eq!(said, "a.txt:4:four\na.txt-5-five\n");
}

#[tokio::test]
async fn a_match_spans_lines_when_that_is_wanted() {
    let tree = poem();
    assert_eq!(grep(&tree, json!({ "pattern": "two.three" })).await.answer(), "No line matches");
    let called = grep(&tree, json!({ "pattern": "two.three", "multiline": true })).await;
    assert_eq!(called.text(), "a.txt:2:two\na.txt:3:three\n");
    let newline = lines(&tree, json!({ "pattern": "six\nsev", "multiline": true })).await;
    assert_eq!(newline, "a.txt:6:six\na.txt:7:seven\n");
    let anchored = lines(&tree, json!({ "pattern": "^three$", "multiline": true })).await;
    assert_eq!(anchored, "a.txt:3:three\n");
}

#[tokio::test]
async fn a_large_file_is_searched_in_steps_across_lines_with_the_same_result() {
    let text = format!("begin\n{}\nend\nbegin\nend\n", "ab\n".repeat(20_000));
    let tree = Tree::of(&[("a.txt", text.as_str())]);
    // The repetition has thousands of states, so that the text counts as long.
    let called = grep(&tree, json!({ "pattern": "end\nbegin|x{5000}", "multiline": true, "context": 1 })).await;
    let last = 20_000 + 3;
    let expected = format!("a.txt-{}-\na.txt:{last}:end\na.txt:{}:begin\na.txt-{}-end\n", last - 1, last + 1, last + 2);
    assert_eq!(called.text(), expected);
}
