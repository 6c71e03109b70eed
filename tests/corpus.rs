//! Replays the inputs that fuzzing has kept, `fuzz/corpus`, through the functions that are fuzzed: none of them panics.
//! How to fuzz is written in CONTRIBUTING.md.

#![allow(unreachable_pub, reason = "the fuzzing program needs the names that are public")]

#[path = "../fuzz/src/targets.rs"]
mod targets;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long one input may take in a build without optimization: the fuzzer stops at 10 s in one with it.
const INPUT_LIMIT: Duration = Duration::from_secs(10);

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("the corpus lies in fuzz/corpus");
    let mut entries: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
    entries.sort();
    entries
}

#[test]
fn every_input_that_fuzzing_kept_is_read_or_refused_in_time() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let mut wrong = Vec::new();
    for folder in entries(&corpus) {
        let name = folder.file_name().expect("a folder has a name").to_string_lossy().into_owned();
        let target = targets::TARGETS.iter().find(|(known, _)| *known == name);
        let (_, target) = target.unwrap_or_else(|| panic!("{name} is the corpus of no target"));
        for file in entries(&folder) {
            let input = std::fs::read(&file).expect("it can be read");
            let began = Instant::now();
            let panicked = std::panic::catch_unwind(|| target(&input)).is_err();
            if panicked || began.elapsed() > INPUT_LIMIT {
                wrong.push(format!("{}: panicked: {panicked}, took {:?}", file.display(), began.elapsed()));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_target_has_a_corpus() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, _) in targets::TARGETS {
        assert!(
            !entries(&corpus.join(name)).is_empty(),
            "{name} has no corpus: fuzz/run {name}, then fuzz/keep {name}"
        );
    }
}
