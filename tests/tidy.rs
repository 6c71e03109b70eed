//! Rules of the house that a machine can check. Each says what to do instead.

use std::path::{Path, PathBuf};

/// Longest file of code. A longer one has two subjects: split it.
const LINES_MAX: usize = 600;

/// Names that admit that no idea was found.
const BANNED_WORDS: [&str; 6] = ["Manager", "Helper", "Utils", "Util", "Misc", "Handler"];

/// Folders and files in which a technology's library may be named.
const RIMS: [(&str, &[&str]); 4] = [
    ("async_nats", &["coordinator/src/nats", "worker/src/nats", "proto/src/nats", "store/src/nats", "tests/"]),
    ("object_store", &["store/src/s3", "tests/"]),
    ("redis", &["coordinator/src/redis", "tests/"]),
    ("tonic", &["coordinator/src/grpc", "telemetry/src/otlp", "proto/", "cli/", "tests/"]),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace").to_owned()
}

/// Tracked and new source files, by their path from the root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let from_root = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
                found.push((from_root, std::fs::read_to_string(&path).expect("a text")));
            }
        }
    }
    assert!(found.len() > 50, "the sources were found");
    found
}

fn offenders(rule: impl Fn(&str, &str) -> Option<String>) -> Vec<String> {
    let sources = sources();
    let offenders = sources.iter().filter_map(|(path, text)| Some(format!("{path}: {}", rule(path, text)?)));
    offenders.collect()
}

/// The file's code without its comments, roughly: enough for names.
fn code(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn no_file_outgrows_its_room() {
    let long = offenders(|_, text| {
        let lines = text.lines().count();
        (lines > LINES_MAX).then(|| format!("{lines} lines, at most {LINES_MAX}: split it by subject"))
    });
    assert!(long.is_empty(), "{long:#?}");
}

#[test]
fn every_file_says_what_it_is_for() {
    let silent = offenders(|_, text| (!text.starts_with("//!")).then(|| "begin it with a line of //!".to_owned()));
    assert!(silent.is_empty(), "{silent:#?}");
}

#[test]
fn nothing_is_named_for_want_of_an_idea() {
    let named = offenders(|path, text| {
        let code = code(text);
        let words: Vec<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let declared = words.windows(2).filter(|pair| ["struct", "enum", "trait", "mod"].contains(&pair[0]));
        let word = declared.filter_map(|pair| BANNED_WORDS.into_iter().find(|word| pair[1].ends_with(word))).next()?;
        (path != "tests/tidy.rs").then(|| format!("a type ends in {word}: name the thing it owns"))
    });
    assert!(named.is_empty(), "{named:#?}");
}

#[test]
fn a_technology_is_named_only_at_its_rim() {
    for (library, rims) in RIMS {
        let strays = offenders(|path, text| {
            let inside = rims.iter().any(|rim| path.starts_with(rim));
            // A folder may have the name of its library.
            let names = code(text).replace(&format!("crate::{library}::"), "").contains(&format!("{library}::"));
            (names && !inside).then(|| format!("{library} belongs to {rims:?}"))
        });
        assert!(strays.is_empty(), "{strays:#?}");
    }
}

#[test]
fn rooms_depend_in_one_direction() {
    let forbidden = [
        ("run", &["proto", "coordinator", "worker", "cli", "local", "telemetry", "tokio", "tracing", "rand"][..]),
        ("proto", &["coordinator", "worker", "cli", "local", "telemetry", "tokio"]),
        ("telemetry", &["run", "proto", "coordinator", "worker", "cli", "local"]),
        ("local", &["run", "proto", "coordinator", "worker", "cli"]),
        ("hooks", &["coordinator", "worker", "cli", "local", "telemetry"]),
        ("store", &["telemetry", "local", "hooks", "coordinator", "worker", "cli"]),
        ("vendor", &["run", "proto", "telemetry", "local", "coordinator", "worker", "cli", "tokio"]),
        ("faces", &["telemetry", "local", "coordinator", "worker", "cli", "tokio"]),
        ("coordinator", &["worker", "cli", "local"]),
        ("worker", &["coordinator", "cli", "local"]),
    ];
    for (room, others) in forbidden {
        let manifest = std::fs::read_to_string(root().join(room).join("Cargo.toml")).expect("a manifest");
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let dependencies = dependencies.split("\n[").next().unwrap_or_default();
        for other in others {
            let named = dependencies.lines().any(|line| {
                line.strip_prefix(other).is_some_and(|rest| rest.starts_with('.') || rest.starts_with(' '))
            });
            assert!(!named, "{room} must not depend on {other}");
        }
    }
}

#[test]
fn no_task_is_spawned_and_forgotten() {
    // Each of these says why nobody waits for it.
    let known = ["tests/", "cli/", "worker/src/testkit.rs", "worker/examples/greet.rs", "worker/tests/"];
    let strays = offenders(|path, text| {
        let inside = known.iter().any(|known| path.starts_with(known))
            || path.contains("/tests/")
            || path.ends_with("/tests.rs");
        (code(text).contains("tokio::spawn(") && !inside)
            .then(|| "spawn it on a JoinSet that somebody awaits".to_owned())
    });
    assert!(strays.is_empty(), "{strays:#?}");
}

#[test]
fn routes_are_made_of_the_lists_of_which_the_document_is_made() {
    let lists = ["coordinator/src/http.rs", "coordinator/src/http/openai.rs"];
    let strays = offenders(|path, text| {
        let adds = code(text).contains(".route(\"") || code(text).contains("routes.route(");
        let inside = lists.contains(&path) || !path.starts_with("coordinator/src");
        (adds && !inside).then(|| "put the route into a list: docs/openapi.json is made of them".to_owned())
    });
    assert!(strays.is_empty(), "{strays:#?}");
}

#[test]
fn nothing_names_a_folder_of_one_machine() {
    let absolute = offenders(|path, text| {
        let here = root();
        let named = text.contains(&*here.to_string_lossy());
        (named && path != "tests/tidy.rs").then(|| "an absolute path of this machine".to_owned())
    });
    assert!(absolute.is_empty(), "{absolute:#?}");
}
