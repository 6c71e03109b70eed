//! Rules of the house that a machine can check. Each says what to do instead.

use std::path::{Path, PathBuf};

/// Longest file of code. A longer one has two subjects: split it.
const LINES_MAX: usize = 600;

/// Names that admit that no idea was found.
const BANNED_WORDS: [&str; 6] = ["Manager", "Helper", "Utils", "Util", "Misc", "Handler"];

/// Folders and files in which a technology's library may be named.
const RIMS: [(&str, &[&str]); 5] = [
    ("async_nats", &["coordinator/src/nats", "worker/src/nats", "infra/nats", "infra/objects/src/nats", "tests/"]),
    ("object_store", &["infra/history", "infra/objects/src/s3", "tests/"]),
    ("slatedb", &["infra/history"]),
    ("redis", &["coordinator/src/index/redis", "tests/"]),
    (
        "tonic",
        &[
            "coordinator/src/api/grpc",
            "coordinator/src/api/port",
            "coordinator/src/api/serve.rs",
            "infra/telemetry/src/otlp",
            "proto/",
            "sdk/rust/client/",
            "cli/",
            "tests/",
        ],
    ),
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

/// What follows is the name of a module of ours, which may be that of a library: `index::redis::`.
fn is_of_a_path(before: &str) -> bool {
    before.trim_end_matches("::").len() < before.len()
        && before.trim_end_matches("::").ends_with(|c: char| c.is_alphanumeric() || c == '_')
}

#[test]
fn a_technology_is_named_only_at_its_rim() {
    for (library, rims) in RIMS {
        let strays = offenders(|path, text| {
            let inside = rims.iter().any(|rim| path.starts_with(rim));
            let code = code(text);
            let names = code.match_indices(&format!("{library}::")).any(|(at, _)| !is_of_a_path(&code[..at]));
            (names && !inside).then(|| format!("{library} belongs to {rims:?}"))
        });
        assert!(strays.is_empty(), "{strays:#?}");
    }
}

#[test]
fn rooms_depend_in_one_direction() {
    let forbidden = [
        (
            "core/run",
            &[
                "proto",
                "schema",
                "owner",
                "coordinator",
                "worker",
                "cli",
                "local",
                "telemetry",
                "tokio",
                "tracing",
                "rand",
            ][..],
        ),
        ("core/schema", &["proto", "coordinator", "worker", "cli", "local", "telemetry", "tokio", "tracing", "rand"]),
        ("core/schedule", &["proto", "coordinator", "worker", "cli", "local", "telemetry", "tokio", "tracing", "rand"]),
        ("core/owner", &["proto", "coordinator", "worker", "cli", "local", "telemetry", "tokio", "tracing", "rand"]),
        ("proto", &["nats", "async-nats", "formats", "coordinator", "worker", "cli", "local", "telemetry", "tokio"]),
        ("formats", &["telemetry", "local", "objects", "coordinator", "worker", "cli", "tokio"]),
        ("infra/telemetry", &["run", "proto", "formats", "coordinator", "worker", "cli", "local"]),
        ("infra/local", &["run", "proto", "formats", "coordinator", "worker", "cli"]),
        ("infra/hooks", &["formats", "coordinator", "worker", "cli", "local"]),
        ("infra/nats", &["formats", "telemetry", "local", "hooks", "objects", "coordinator", "worker", "cli"]),
        ("infra/objects", &["formats", "telemetry", "local", "hooks", "coordinator", "worker", "cli"]),
        ("sdk/rust/client", &["run", "nats", "objects", "hooks", "coordinator", "worker", "cli", "local", "telemetry"]),
        (
            "sdk/rust/tool",
            &["nats", "objects", "hooks", "client", "coordinator", "worker", "cli", "local", "telemetry"],
        ),
        ("coordinator", &["client", "worker", "cli", "local"]),
        ("worker", &["coordinator", "tools", "origins", "sandbox", "cli", "local"]),
        ("worker/sandbox", &["nats", "proto", "coordinator", "worker", "tools", "cli", "local"]),
        ("tools", &["nats", "proto", "coordinator", "worker", "cli", "local"]),
        // They may use the client: their tools call the fleet.
        ("tools/agents", &["nats", "proto", "coordinator", "worker", "cli", "local"]),
        ("tools/collaboration", &["nats", "proto", "coordinator", "worker", "cli", "local"]),
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

/// What the author of a tool does not have to compile.
const NOT_FOR_TOOLS: [&str; 5] = ["async-nats", "hyper", "object_store", "redis", "tonic"];

#[test]
fn a_tool_needs_no_broker_no_grpc_and_no_object_store() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Not `cargo metadata`: it shows a dependency with the features that the whole workspace asks for.
    let tree = ["tree", "--offline", "--package", "toolyard-tool", "--edges", "normal", "--prefix", "none"];
    let tree = std::process::Command::new(cargo).args(tree).current_dir(root()).output().expect("cargo starts");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let tree = String::from_utf8(tree.stdout).expect("names of packages");
    let packages: Vec<&str> = tree.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(packages.contains(&"toolyard-proto"), "the dependencies of dependencies are listed: {packages:?}");
    for package in NOT_FOR_TOOLS {
        assert!(
            !packages.contains(&package),
            "toolyard-tool must not depend on {package}: see `cargo tree -i {package}`"
        );
    }
}

/// The coordinator's rooms from top to bottom. A room may use those below it, and no room above it or beside it.
const COORDINATOR: [&[&str]; 15] = [
    &["start"],
    &["api", "monitor"],
    &["schedules"],
    &["history_writer", "runs"],
    &["objects", "readers"],
    &["admission"],
    &["owner"],
    &["notifications", "quotas"],
    &["turns"],
    &["index"],
    &["nats"],
    &["auth"],
    &["metrics"],
    &["hook_notices", "trace"],
    &["fleet", "offload", "overview", "requests", "shards"],
];
/// What every room may use.
const EVERYWHERE: [&str; 1] = ["tasks"];

#[test]
fn rooms_of_the_coordinator_depend_in_one_direction() {
    let floor = |room: &str| COORDINATOR.iter().position(|floor| floor.contains(&room));
    let strays = offenders(|path, text| {
        let inside = path.strip_prefix("coordinator/src/")?;
        let room = inside.split('/').next()?.trim_end_matches(".rs");
        if room == "lib" {
            return None;
        }
        let Some(own) = floor(room).or(EVERYWHERE.contains(&room).then_some(COORDINATOR.len())) else {
            return Some(format!("the room {room} has no place in the list of the coordinator's rooms"));
        };
        let code = code(text);
        let used =
            code.split("crate::").skip(1).map(|rest| rest.split(|c: char| !c.is_alphanumeric() && c != '_').next());
        let up = used.flatten().find(|used| *used != room && floor(used).is_some_and(|floor| floor <= own))?;
        Some(format!("{room} must not use {up}: it is not below it"))
    });
    assert!(strays.is_empty(), "{strays:#?}");
}

#[test]
fn no_task_is_spawned_and_forgotten() {
    // Each of these says why nobody waits for it.
    let known = [
        "tests/",
        "cli/",
        "infra/history/src/shard.rs",
        "sdk/rust/tool/src/testkit.rs",
        "worker/examples/greet.rs",
        "worker/tests/",
    ];
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
    // The console is files, and no part of the API.
    let lists =
        ["coordinator/src/api/http.rs", "coordinator/src/api/http/console.rs", "coordinator/src/api/http/openai.rs"];
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
