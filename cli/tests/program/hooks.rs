//! Hooks as the documentation shows them, and what is written down of every decision.

use serde_json::Value;

use crate::process::{Background, run, toolyard};

const GUIDE: &str = include_str!("../../../docs/howto/hooks.md");

/// The file that the guide has its readers write.
fn documented() -> &'static str {
    let rest = GUIDE.split_once("<<'EOF'\n").expect("the guide writes a file").1;
    rest.split_once("EOF\n").expect("the file ends").0
}

#[test]
fn the_example_of_the_guide_denies_one_call_and_allows_the_other_and_both_are_written_down() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("hooks.toml");
    std::fs::write(&file, documented()).expect("it can be written");
    let mut dev = toolyard(["dev", "--listen", "127.0.0.1:0", "-o", "json", "--hooks"]);
    let dev = Background::of(dev.arg(&file).env("TOOLYARD_LOG", "off,toolyard::audit=info"));
    let up: Value = serde_json::from_str(&dev.stdout.until(|_| true)).expect("it says where it is");
    let url = up["url"].as_str().expect("it has a URL");

    let allowed = run(["--url", url, "call", "bash", "command=echo hello"]);
    assert_eq!((allowed.code(), allowed.stdout().as_str()), (0, "hello\n"));
    let denied = run(["--url", url, "call", "bash", "command=rm -rf /tmp/nothing"]);
    assert_eq!(denied.code(), 1);
    assert!(denied.stderr().contains("the call was denied: nothing is deleted here"), "{}", denied.stderr());

    let lines: Vec<String> = (0..3).map(|_| dev.stderr.until(|line| line.contains("toolyard::audit"))).collect();
    assert!(!lines.concat().contains("rm -rf") && !lines.concat().contains("echo hello"), "{lines:?}");
    let lines: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let of = |field: &str| lines.iter().map(|line| line[field].as_str().unwrap_or("").to_owned()).collect::<Vec<_>>();
    assert_eq!(of("tool"), ["bash"; 3]);
    assert_eq!(of("decision"), ["allowed", "deny", "refused"]);
    assert_eq!((of("hook"), of("why")), (vec_of(["", "no-deletes", ""]), vec_of(["", "", "DENIED"])));
    assert!(lines.iter().all(|line| line["run.id"].as_str().is_some_and(|id| id.starts_with("run_"))), "{lines:?}");
}

fn vec_of(words: [&str; 3]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

#[test]
fn a_process_with_a_bad_file_does_not_start_and_says_why() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("hooks.toml");
    std::fs::write(&file, "[[hook]]\nname = \"a\"\non = [\"pre_tool_use\"]\n").expect("it can be written");
    let file = file.to_str().expect("a path that is text");
    let commands: [&[&str]; 3] = [&["coordinator"], &["worker", "--pool", "main", "--root", "/usr"], &["dev"]];
    for command in commands {
        let ended = run(command.iter().copied().chain(["--hooks", file]));
        assert_eq!(ended.code(), 1, "{command:?}");
        assert!(ended.stderr().contains("hook \"a\": command: is missing, and so is url"), "{}", ended.stderr());
    }
}
