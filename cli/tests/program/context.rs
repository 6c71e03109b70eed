//! `toolyard context`: named coordinators, and which of them a command uses.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::process::{Dev, Ended, toolyard};

fn with(config: &Path, arguments: &[&str]) -> Ended {
    Ended::of(toolyard(arguments).env("XDG_CONFIG_HOME", config))
}

#[test]
fn a_context_is_stored_used_and_removed_and_only_its_owner_can_read_it() {
    let config = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| with(config.path(), arguments);
    assert!(run(&["context", "ls"]).stderr().contains("there is no context"));
    assert_eq!(run(&["context", "use", "prod"]).code(), 2);
    assert_eq!(run(&["context", "set", "a b", "--url", "http://h:1"]).code(), 2);
    let incomplete = run(&["context", "set", "prod"]);
    assert!(incomplete.code() == 2 && incomplete.stderr().contains("--url"), "{}", incomplete.stderr());

    let set = run(&["context", "set", "prod", "--url", "https://h:1", "--key-file", "prod.key"]);
    assert_eq!(set.code(), 0, "{}", set.stderr());
    assert!(set.stderr().contains("does not exist yet"), "{}", set.stderr());
    assert_eq!(run(&["context", "set", "dev", "--url", "http://h:2"]).code(), 0);
    assert_eq!(run(&["context", "ls"]).stdout(), "  dev  http://h:2\n* prod  https://h:1\n");
    assert_eq!(run(&["context", "ls", "-o", "name"]).stdout(), "dev\nprod\n");
    let shown = run(&["context", "show", "-o", "json"]).json().remove(0);
    assert_eq!((&shown["name"], &shown["current"]), (&"prod".into(), &true.into()));
    assert!(Path::new(shown["key_file"].as_str().expect("a path")).is_absolute(), "{shown}");

    let file = config.path().join("toolyard/contexts.toml");
    let mode = |path: &Path| std::fs::metadata(path).expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(&config.path().join("toolyard"))), (0o600, 0o700));

    assert_eq!(run(&["context", "rm", "prod"]).code(), 0);
    let none = run(&["context", "show"]);
    assert!(none.code() == 2 && none.stderr().contains("toolyard context use"), "{}", none.stderr());
    std::fs::write(&file, "contexts = 1").expect("it can be written");
    let broken = run(&["runs", "ls"]);
    assert!(broken.code() == 2 && broken.stderr().contains("contexts.toml"), "{}", broken.stderr());
    assert_eq!(run(&["runs", "ls", "--url", "http://127.0.0.1:1"]).code(), 5, "the address is given");
}

#[test]
fn commands_use_the_current_context_and_options_win() {
    let config = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| with(config.path(), arguments);
    let dev = Dev::start();
    run(&["context", "set", "here", "--url", dev.url()]);
    run(&["context", "set", "nowhere", "--url", "http://127.0.0.1:1"]);
    assert_eq!(run(&["tools", "ls"]).code(), 0);
    assert_eq!(run(&["--use-context", "nowhere", "tools", "ls"]).code(), 5);
    run(&["context", "use", "nowhere"]);
    assert_eq!(run(&["tools", "ls"]).code(), 5);
    assert_eq!(run(&["tools", "ls", "--url", dev.url()]).code(), 0);
    let mut command = toolyard(["tools", "ls"]);
    command.env("XDG_CONFIG_HOME", config.path()).env("TOOLYARD_URL", dev.url());
    assert_eq!(Ended::of(&mut command).code(), 0);
    let both = run(&["tools", "ls", "--url", dev.url(), "--use-context", "here"]);
    assert!(both.code() == 2 && both.stderr().contains("not both"), "{}", both.stderr());
    let unknown = run(&["tools", "ls", "--use-context", "prod"]);
    assert!(unknown.code() == 2 && unknown.stderr().contains("here, nowhere"), "{}", unknown.stderr());
}

/// Otherwise a key for one coordinator would be sent to another.
#[test]
fn the_key_of_a_context_is_not_used_for_an_address_that_is_given() {
    let config = tempfile::tempdir().expect("a folder");
    let run = |arguments: &[&str]| with(config.path(), arguments);
    run(&["context", "set", "prod", "--url", "https://h:1", "--key-file", "/nonexistent/key"]);
    let own = run(&["tools", "ls"]);
    assert!(own.code() == 2 && own.stderr().contains("/nonexistent/key"), "{}", own.stderr());
    let other = run(&["tools", "ls", "--url", "http://127.0.0.1:1"]);
    assert!(other.code() == 5 && !other.stderr().contains("nonexistent"), "{}", other.stderr());
}
