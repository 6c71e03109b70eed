//! Every command explains itself, and says what was typed wrong.

use crate::process::{Ended, run, toolyard};

const COMMANDS: [&[&str]; 85] = [
    &[],
    &["demo"],
    &["dev"],
    &["model"],
    &["coordinator"],
    &["worker"],
    &["tools"],
    &["tools", "ls"],
    &["tools", "get"],
    &["call"],
    &["run"],
    &["top"],
    &["tail"],
    &["open"],
    &["completions"],
    &["man"],
    &["context"],
    &["context", "ls"],
    &["context", "use"],
    &["context", "set"],
    &["context", "rm"],
    &["runs", "logs"],
    &["runs"],
    &["runs", "ls"],
    &["runs", "get"],
    &["runs", "watch"],
    &["runs", "messages"],
    &["runs", "cancel"],
    &["calls"],
    &["calls", "ls"],
    &["calls", "cancel"],
    &["index"],
    &["index", "count"],
    &["index", "verify"],
    &["index", "rebuild"],
    &["key"],
    &["key", "new"],
    &["key", "answer"],
    &["pause"],
    &["pause", "tool"],
    &["pause", "pool"],
    &["pause", "ls"],
    &["resume"],
    &["resume", "tool"],
    &["resume", "pool"],
    &["workers"],
    &["workers", "ls"],
    &["workers", "drain"],
    &["objects"],
    &["objects", "get"],
    &["objects", "put"],
    &["objects", "link"],
    &["submit"],
    &["why"],
    &["doctor"],
    &["nats-config"],
    &["nats-keys"],
    &["nats-keys", "add"],
    &["nats-keys", "switch"],
    &["nats-keys", "retire"],
    &["queues"],
    &["log"],
    &["log", "usage"],
    &["log", "resize"],
    &["log", "partitions"],
    &["log", "retention"],
    &["log", "durability"],
    &["backup"],
    &["restore"],
    &["parked"],
    &["parked", "ls"],
    &["parked", "show"],
    &["parked", "redrive"],
    &["parked", "drop"],
    &["schedules"],
    &["schedules", "create"],
    &["schedules", "ls"],
    &["schedules", "get"],
    &["schedules", "pause"],
    &["schedules", "resume"],
    &["schedules", "delete"],
    &["schedules", "run-now"],
    &["webhooks"],
    &["webhooks", "parked"],
    &["webhooks", "redrive"],
];

#[test]
fn every_command_has_a_help_with_the_global_options() {
    for command in COMMANDS {
        for flag in ["-h", "--help"] {
            let help = run(command.iter().chain([&flag]));
            assert_eq!(help.code(), 0, "{command:?}");
            let text = help.stdout();
            for part in ["Usage: toolyard", "--url", "TOOLYARD_URL", "--color", "--output"] {
                assert!(text.contains(part), "{command:?} {flag} does not tell {part}:\n{text}");
            }
        }
    }
}

#[test]
fn commands_without_subcommands_show_examples() {
    let groups: [&[&str]; 14] = [
        &["context"],
        &["log"],
        &["key"],
        &["objects"],
        &["pause"],
        &["resume"],
        &["workers"],
        &["tools", "ls"],
        &["runs"],
        &["parked"],
        &["calls"],
        &["index"],
        &["schedules"],
        &["webhooks"],
    ];
    for command in COMMANDS.into_iter().filter(|command| !groups.contains(command)) {
        let text = run(command.iter().chain([&"-h"])).stdout();
        assert!(text.contains("Example"), "{command:?}:\n{text}");
    }
}

#[test]
fn the_help_documents_the_events_and_the_exit_codes() {
    let text = run(["--help"]).stdout();
    for event in ["run_opened", "call_output_withdrawn", "call_ended", "run_ended"] {
        assert!(text.contains(event), "{event} is not told:\n{text}");
    }
    let text = run(["call", "--help"]).stdout();
    assert!(text.contains("5    the coordinator cannot be reached"), "{text}");
}

#[test]
fn wrong_usage_is_told_and_has_its_exit_code() {
    for arguments in [
        vec!["nonsense"],
        vec!["call"],
        vec!["call", "bash", "--timeout", "0"],
        vec!["call", "bash", "--json", "[]"],
        vec!["call", "not a name"],
        vec!["submit", "run", "call"],
        vec!["submit", "run", "call", "text", "--error", "and an error"],
        vec!["submit", "run", "call", "--json", "{"],
        vec!["runs", "watch", "run", "--floor", "sideways"],
        vec!["runs", "ls", "--since", "yesterday"],
        vec!["runs", "ls", "--status", "good"],
        vec!["calls", "ls", "--waiting", "--state", "queued"],
        vec!["worker"],
        vec!["worker", "--pool", "p"],
        vec!["worker", "--pool", "p", "--root", "/usr", "--tools-user", "alice"],
        vec!["worker", "--pool", "two words"],
        vec!["worker", "--pool", "p", "--admin-listen", "here"],
        vec!["worker", "--pool", "p", "--otlp-endpoint", "https://collector"],
        vec!["coordinator", "--otlp-endpoint", "collector:4317"],
        vec!["tools", "ls", "--url", "no address"],
    ] {
        let ended = run(&arguments);
        assert_eq!(ended.code(), 2, "{arguments:?}: {}", ended.stderr());
        assert!(ended.stderr().starts_with("error:"), "{arguments:?}: {}", ended.stderr());
        assert_eq!(ended.stdout(), "", "{arguments:?}");
    }
}

#[test]
fn the_usage_line_of_an_error_shows_no_option_that_only_the_environment_sets() {
    for arguments in [vec!["why"], vec!["runs", "get"], vec!["why", "--nonsense"]] {
        let mut command = toolyard(&arguments);
        let told = Ended::of(command.env("TOOLYARD_URL", "http://127.0.0.1:1")).stderr();
        let usage = told.lines().find(|line| line.starts_with("Usage: ")).expect("it shows the usage");
        assert!(!usage.contains("--url") && usage.contains("<RUN>"), "{usage}");
    }
}

#[test]
fn wrong_usage_is_json_for_programs() {
    for arguments in [vec!["-o", "json", "why"], vec!["why", "--output=json"], vec!["nonsense", "-o", "json"]] {
        let ended = run(&arguments);
        assert_eq!((ended.code(), ended.stdout().as_str()), (2, ""), "{arguments:?}");
        let error: serde_json::Value = serde_json::from_str(&ended.stderr()).expect("it is JSON");
        assert_eq!((&error["error"]["reason"], &error["error"]["exit_code"]), (&"USAGE".into(), &2.into()));
        let message = error["error"]["message"].as_str().expect("it has a message");
        assert!(!message.is_empty() && !message.contains("Usage:"), "{message}");
    }
}

#[test]
fn a_coordinator_that_is_not_there_is_told() {
    let ended = run(["tools", "ls", "--url", "http://127.0.0.1:1"]);
    assert_eq!(ended.code(), 5);
    assert!(ended.stderr().contains("http://127.0.0.1:1") && ended.stderr().contains("toolyard dev"));
}

#[test]
fn errors_are_json_for_programs() {
    let ended = run(["tools", "ls", "--url", "http://127.0.0.1:1", "-o", "json"]);
    let error: serde_json::Value = serde_json::from_str(&ended.stderr()).expect("it is JSON");
    assert_eq!(error["error"]["reason"], "UNREACHABLE");
    assert_eq!(error["error"]["exit_code"], 5);
}

#[test]
fn a_group_of_commands_alone_shows_its_help() {
    let ended = run(["runs"]);
    assert_eq!((ended.code(), ended.stdout().as_str()), (2, ""));
    let text = ended.stderr();
    assert!(text.contains("Usage: toolyard runs") && text.contains("watch") && !text.contains("error:"), "{text}");
    assert_eq!(run(["runs", "-o", "json"]).code(), 2);
}
