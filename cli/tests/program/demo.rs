//! The demo: the first thing anybody types.

use std::collections::BTreeSet;
use std::path::Path;

use crate::process::{Ended, toolyard};

/// Runs the demo on this checkout, with a folder for temporary files of its own.
fn demo(arguments: &[&str]) -> Ended {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let temporary = tempfile::tempdir().expect("a temporary folder");
    let mut command = toolyard(["demo"]);
    command.args(arguments).arg("--root").arg(checkout).env("TMPDIR", temporary.path());
    let ended = Ended::of(&mut command);
    let left: Vec<_> = temporary.path().read_dir().expect("it is there").collect();
    assert!(left.is_empty(), "it left something behind: {left:?}");
    ended
}

const SPEAKERS: [&str; 7] = [
    "bash · slow",
    "bash · countdown",
    "grep · search",
    "glob · files",
    "get_current_time · shanghai",
    "get_current_time · berlin",
    "ask_user · ask",
];

#[test]
fn every_speaker_has_one_block_and_all_of_its_output_in_it() {
    let ended = demo(&["--answer", "of course"]);
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    let text = ended.stdout();
    let blocks: Vec<(&str, &str)> = text.split("● ").skip(1).filter_map(|block| block.split_once('\n')).collect();
    let speakers: Vec<&str> = blocks.iter().map(|(speaker, _)| *speaker).collect();
    assert_eq!(speakers.len(), SPEAKERS.len(), "{text}");
    assert_eq!(speakers.iter().collect::<BTreeSet<_>>(), SPEAKERS.iter().collect::<BTreeSet<_>>(), "{text}");

    let body = |wanted: &str| blocks.iter().find(|(speaker, _)| *speaker == wanted).map(|(_, body)| *body).unwrap();
    assert!(body("bash · slow").starts_with("│ step 1\n│ step 2\n│ step 3\n│ step 4\n│ step 5\n✓"), "{text}");
    assert!(body("bash · countdown").starts_with("│ 3\n│ 2\n│ 1\n│ lift-off\n✓"), "{text}");
    assert!(body("glob · files").contains("│ Cargo.toml\n"), "{text}");
    assert!(body("grep · search").contains(".rs:"), "{text}");
    assert!(body("get_current_time · shanghai").contains("Asia/Shanghai"), "{text}");
    assert!(body("ask_user · ask").contains("of course"), "{text}");
    assert!(text.contains("7 of 7 calls completed"), "{text}");
    assert!(!text.contains('\x1b'), "colours and cursor movements are for terminals: {text}");
}

#[test]
fn for_programs_it_is_json_and_nobody_is_asked() {
    let ended = demo(&["-o", "json"]);
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    assert!(ended.stderr().contains("nobody is at the keyboard; the answer is \"yes\""), "{}", ended.stderr());
    let mut lines = ended.json();
    let summary = lines.pop().unwrap();
    for (event, number) in lines.iter().zip(0..) {
        assert_eq!(event["sequence"], number, "{event}");
    }
    assert!(lines.first().unwrap()["run_opened"].is_object() && lines.last().unwrap()["run_ended"].is_object());
    let summary = &summary["summary"];
    let (together, wall) = (summary["calls_s"].as_f64().unwrap(), summary["wall_s"].as_f64().unwrap());
    assert!(together > wall, "the calls ran at the same time: {summary}");
}
