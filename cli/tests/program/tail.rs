//! `toolyard tail`, `runs logs`, short ids, and the forms of lists.

use crate::process::Dev;

#[test]
fn the_output_of_new_runs_is_followed_with_the_names_of_their_calls() {
    let dev = Dev::start();
    let tail = dev.background(["tail", "--tool", "bash"]);
    tail.stderr.until(|line| line.contains("following new runs"));
    assert_eq!(dev.run(["call", "get_current_time", "time_zone=UTC"]).code(), 0);
    assert_eq!(dev.run(["call", "bash", "command=echo one; echo two >&2"]).code(), 0);
    // The two channels come in any order.
    let (mut lines, mut is_over) = (Vec::new(), false);
    while !is_over {
        let line = tail.stdout.until(|_| true);
        is_over = line.contains("· completed");
        lines.push(line);
    }
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(has(" call_0 bash │ one") && has(" call_0 bash ! two") && !has("get_current_time"), "{lines:#?}");
    let all = dev.background(["tail", "--since", "1h", "-o", "json"]);
    let opened = all.stdout.until(|line| line.contains("get_current_time"));
    assert!(opened.starts_with("{\"run_id\":\"run_"), "{opened}");
}

#[test]
fn a_run_is_found_by_the_end_of_its_id_and_its_logs_are_its_output_alone() {
    let dev = Dev::start();
    let bash = |command: &str| format!(r#"{{"tool":"bash","arguments":{{"command":"{command}"}}}}"#);
    let run = format!("[{},{}]", bash("echo out; echo err >&2"), bash("exit 3"));
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), run).expect("it can be written");
    let path = file.path().to_str().expect("a path");
    let made = dev.run(["run", "-f", path, "--approve", "--detach", "--metadata", "team=blue", "-o", "name"]);
    let id = made.stdout().trim().to_owned();
    assert!(made.code() == 0 && id.starts_with("run_"), "{id} {}", made.stderr());
    assert_eq!(dev.run(["runs", "watch", &id]).code(), 0);

    let logs = dev.run(["runs", "logs", &id[id.len() - 8..], "--call", "call_0"]);
    assert_eq!((logs.stdout().as_str(), logs.stderr().as_str()), ("out\n", "err\n"));
    let logs = dev.run(["runs", "logs", &id, "--prefix"]).stdout();
    assert!(logs.contains(" call_0 bash │ out\n") && logs.contains(" call_1 bash │ {\"exit_code\":3}\n"), "{logs}");
    let wrong = dev.run(["runs", "logs", &id, "--call", "call_7"]);
    assert!(wrong.code() == 2 && wrong.stderr().contains("call_0, call_1"), "{}", wrong.stderr());
    let several = dev.run(["why", &id]);
    assert!(several.code() == 2 && several.stderr().contains("call_0, call_1"), "{}", several.stderr());
    let unknown = dev.run(["runs", "get", "nothing"]);
    assert_eq!(unknown.code(), 2, "{}", unknown.stderr());

    assert_eq!(dev.run(["runs", "ls", "-o", "name"]).stdout(), format!("{id}\n"));
    let wide = dev.run(["runs", "ls", "-o", "wide"]).stdout();
    assert!(wide.starts_with("RUN ") && wide.contains("DEADLINE"), "{wide}");
    let yaml = dev.run(["runs", "get", &id, "-o", "yaml"]).stdout();
    assert!(yaml.starts_with(&format!("---\nrun_id: {id}\n")), "{yaml}");
    assert_eq!(dev.run(["open", &id, "--print"]).stdout(), format!("{}/console/#/runs/{id}\n", dev.url()));
}

#[test]
fn the_exit_code_of_a_program_is_passed_on_if_it_is_wanted() {
    let dev = Dev::start();
    assert_eq!(dev.run(["call", "bash", "command=exit 7"]).code(), 0);
    assert_eq!(dev.run(["call", "bash", "--exit-status", "command=exit 7"]).code(), 7);
    assert_eq!(dev.run(["call", "bash", "--exit-status", "command=kill -9 $$"]).code(), 137);
    assert_eq!(dev.run(["call", "bash", "--exit-status", "command=true"]).code(), 0);
    assert_eq!(dev.run(["call", "bash", "--exit-status", "command=sleep 60", "--timeout", "1"]).code(), 255);
}

#[test]
fn a_call_that_waits_says_after_a_second_what_for() {
    let dev = Dev::start();
    let paused = dev.run(["pause", "tool", "bash"]);
    assert!(paused.stderr().contains("tool bash is paused"), "{}", paused.stderr());
    let call = dev.background(["call", "bash", "command=echo hello"]);
    let line = call.stderr.until(|line| line.starts_with("waiting: "));
    assert!(line.contains("paused"), "{line}");
    let unknown = dev.run(["resume", "tool", "nope"]);
    assert!(unknown.code() == 2 || unknown.stderr().contains("was not paused"), "{}", unknown.stderr());
    assert!(dev.run(["resume", "tool", "bash"]).stderr().contains("tool bash goes on"));
    call.stdout.until(|line| line == "hello");
}

#[test]
fn what_is_approved_is_shown() {
    let dev = Dev::start();
    let call = dev.background(["call", "--approval", "bash", "command=echo hello"]);
    call.stderr.until(|line| line.contains("it awaits approval: {\"command\":\"echo hello\"}"));
    let waiting = loop {
        let waiting = dev.run(["inbox"]).stdout();
        if !waiting.is_empty() {
            break waiting;
        }
    };
    assert!(waiting.contains("{\"command\":\"echo hello\"}"), "{waiting}");
    let id = waiting.split(' ').next().expect("an id").to_owned();
    assert!(dev.run(["runs", "get", &id]).stdout().contains("echo hello"));
    let approved = dev.run(["calls", "approve", &id]);
    assert!(approved.code() == 0 && approved.stderr().contains("\"command\": \"echo hello\""), "{}", approved.stderr());
    call.stdout.until(|line| line == "hello");
}
