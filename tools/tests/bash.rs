//! `bash` with real processes.

#![allow(clippy::unwrap_used, reason = "it is all tests")]

mod tree;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use run::{Chunk, Content, ErrorKind};
use rustix::process::{Pid, test_kill_process};
use sandbox::{Sandbox, Settings, User};
use serde_json::{Value, json};
use tokio::time::timeout;
use tools::Bash;
use toolyard_tool::testkit::{self, Call, Called};

use tree::Tree;

/// Longer than anything here should take, shorter than the commands that have to be ended.
const SOON: Duration = Duration::from_secs(10);

async fn bash(command: &str) -> Called {
    bash_in(&Tree::of(&[]), json!({ "command": command })).await
}

async fn bash_in(tree: &Tree, arguments: Value) -> Called {
    timeout(SOON, testkit::call(tool(tree), arguments)).await.unwrap()
}

fn start(tree: &Tree, command: &str) -> Call {
    testkit::start(tool(tree), json!({ "command": command }))
}

fn tool(tree: &Tree) -> Bash {
    tool_with(tree.root(), Settings::default())
}

fn tool_with(root: tools::Root, settings: Settings) -> Bash {
    sandbox::use_program(env!("CARGO_BIN_EXE_guard-of-tests").into());
    Bash::new(root, Sandbox::new(settings).unwrap())
}

fn tool_of_nobody(tree: &Tree) -> Bash {
    tool_with(tree.root(), Settings { user: Some(User::NOBODY), ..Settings::default() })
}

async fn end(call: Call) -> Called {
    timeout(SOON, call.end()).await.unwrap()
}

/// The channel and text of the next piece of output.
async fn said(call: &mut Call) -> (String, String) {
    match timeout(SOON, call.chunk()).await.unwrap() {
        Some(Chunk::Content { channel, content: Content::Text(text) }) => (channel, text),
        other => panic!("{other:?} is no text"),
    }
}

/// The process id that the command says next.
async fn pid(call: &mut Call) -> Pid {
    parse_pid(&said(call).await.1)
}

fn parse_pid(text: &str) -> Pid {
    Pid::from_raw(text.trim().parse().unwrap()).unwrap()
}

/// A zombie is gone: whoever has to reap it is none of ours.
fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    let zombie = stat.is_ok_and(|stat| stat.rsplit(')').next().unwrap().trim_start().starts_with(['Z', 'X']));
    test_kill_process(pid).is_ok() && !zombie
}

async fn until_gone(pid: Pid) {
    let deadline = Instant::now() + SOON;
    while is_running(pid) {
        assert!(Instant::now() < deadline, "{pid:?} is still running");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn output_comes_on_two_channels_and_the_exit_code_is_the_result() {
    let called = bash("echo out; echo err >&2").await;
    assert_eq!(called.text_on("stdout"), "out\n");
    assert_eq!(called.text_on("stderr"), "err\n");
    assert_eq!(called.answer(), r#"{"exit_code":0}"#);
}

#[tokio::test]
async fn a_command_that_fails_completes_its_call() {
    assert_eq!(bash("exit 3").await.answer(), r#"{"exit_code":3}"#);
    assert_eq!(bash("no-such-program").await.answer(), r#"{"exit_code":127}"#);
}

#[tokio::test]
async fn a_command_that_is_killed_says_by_what() {
    assert_eq!(bash("kill -9 $$").await.answer(), r#"{"signal":9}"#);
    assert_eq!(bash("kill 0; sleep 60").await.answer(), r#"{"signal":15}"#);
}

#[tokio::test]
async fn output_comes_while_the_command_runs() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "echo one; sleep 60; echo two");
    assert_eq!(said(&mut call).await, ("stdout".to_owned(), "one\n".to_owned()));
    call.cancel();
    let called = end(call).await;
    assert_eq!(called.error(), "the call was cancelled");
    assert!(called.output.is_empty());
}

#[tokio::test]
async fn what_a_command_says_as_it_is_ended_is_heard() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "trap 'echo bye; exit' TERM; echo ready; while :; do sleep 0.05; done");
    assert_eq!(said(&mut call).await.1, "ready\n");
    call.cancel();
    assert_eq!(end(call).await.text_on("stdout"), "bye\n");
}

#[tokio::test]
async fn characters_that_are_written_in_pieces_arrive_whole() {
    let called = bash(r"printf 'a\xe6\xbc'; sleep 0.2; printf '\xa2\xff'").await;
    assert_eq!(called.text_on("stdout"), "a漢");
    // What is no text comes as it is.
    let stray = |chunk: &Chunk| matches!(chunk, Chunk::Content { content: Content::Data { data, .. }, .. } if data[..] == [0xff]);
    assert!(called.output.last().is_some_and(stray), "{:?}", called.output);
}

#[tokio::test]
async fn standard_input_is_empty() {
    assert_eq!(bash("cat; echo done").await.text_on("stdout"), "done\n");
}

#[tokio::test]
async fn a_background_process_does_not_hold_the_call_and_ends_with_it() {
    let called = bash("sleep 60 & echo $!").await;
    assert_eq!(called.answer(), r#"{"exit_code":0}"#);
    until_gone(parse_pid(&called.text_on("stdout"))).await;
    let silent = bash("sleep 60 >/dev/null 2>&1 & echo $!").await;
    until_gone(parse_pid(&silent.text_on("stdout"))).await;
}

/// Ways out of a process group, a session and a family: each prints the number of the process that goes them.
#[cfg(target_os = "linux")]
const ESCAPES: [&str; 4] = [
    "setsid sleep 60 & echo $!",
    "setsid sh -c 'sleep 60 >/dev/null 2>&1 & echo $!'",
    "(setsid sh -c 'trap \"\" TERM HUP; echo $$; while :; do sleep 0.05; done' >&1 &) ; sleep 0.3",
    "python3 -c 'import os,time\nif os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\nprint(os.getpid(),flush=True)\ntime.sleep(60)'; sleep 0.3",
];

#[tokio::test]
#[cfg(target_os = "linux")]
async fn nothing_that_leaves_its_group_or_its_parents_outlives_the_result() {
    for escape in ESCAPES {
        let called = bash(escape).await;
        assert_eq!(called.answer(), r#"{"exit_code":0}"#, "{escape}");
        // Not until it is gone: it is gone when the result is there.
        assert!(!is_running(parse_pid(&called.text_on("stdout"))), "{escape}");
    }
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn nothing_that_leaves_its_group_or_its_parents_outlives_a_cancel() {
    let tree = Tree::of(&[]);
    for escape in ESCAPES {
        let mut call = start(&tree, &format!("{escape}; sleep 60"));
        let escaped = pid(&mut call).await;
        call.cancel();
        assert_eq!(end(call).await.error(), "the call was cancelled", "{escape}");
        assert!(!is_running(escaped), "{escape}");
    }
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn nothing_that_leaves_its_group_outlives_a_timeout_or_a_call_that_is_dropped() {
    let tree = Tree::of(&[]);
    let overdue = bash_in(&tree, json!({ "command": "setsid sleep 60 & echo $!; sleep 60", "timeout_s": 1 })).await;
    assert!(overdue.error().contains("took longer"));
    assert!(!is_running(parse_pid(&overdue.text_on("stdout"))));
    let mut call = start(&tree, "setsid sleep 60 & echo $!; sleep 60");
    let escaped = pid(&mut call).await;
    drop(call);
    until_gone(escaped).await;
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_family_that_goes_on_forking_ends_with_its_call() {
    let tree = Tree::of(&[]);
    // Sixteen lines, in each of which every process lives for a moment and leaves one more behind.
    let family =
        "f() { setsid bash -c 'sleep 0.02; f' & }; export -f f; for i in $(seq 16); do f; done; echo begun; sleep 60";
    let mut call = start(&tree, family);
    assert_eq!(said(&mut call).await.1, "begun\n");
    tokio::time::sleep(Duration::from_millis(200)).await;
    call.cancel();
    assert_eq!(end(call).await.error(), "the call was cancelled");
    let here = tree.path().canonicalize().unwrap();
    let works_here =
        |entry: &std::fs::DirEntry| std::fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == here);
    let left = std::fs::read_dir("/proc").unwrap().flatten().filter(works_here).count();
    assert_eq!(left, 0);
}

#[tokio::test]
async fn everything_is_said_also_when_it_is_heard_after_the_end() {
    let tree = Tree::of(&[]);
    let many = "for i in $(seq 600); do echo line $i; sleep 0.001; done";
    let mut call = start(&tree, &format!("sleep 60 & echo $!; {many}; printf %060000d 0"));
    let (_, text) = said(&mut call).await;
    let (background, first) = text.split_once('\n').unwrap();
    // From here on nobody listens, more is said than may wait, and in the end the pipes are let go.
    until_gone(parse_pid(background)).await;
    let said = first.to_owned() + &end(call).await.text_on("stdout");
    let (lines, last) = said.rsplit_once('\n').unwrap();
    assert_eq!((lines.lines().count(), last.len()), (600, 60_000));
}

#[tokio::test]
async fn a_cancelled_command_ends_with_its_grandchildren() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "sh -c 'sleep 60 & echo $!; wait'; true");
    let grandchild = pid(&mut call).await;
    call.cancel();
    assert_eq!(end(call).await.error(), "the call was cancelled");
    until_gone(grandchild).await;
}

#[tokio::test]
async fn a_command_that_ignores_sigterm_is_killed() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "trap '' TERM; echo $$; while :; do sleep 0.05; done");
    let deaf = pid(&mut call).await;
    let asked = Instant::now();
    call.cancel();
    end(call).await;
    assert!(asked.elapsed() >= Duration::from_secs(2), "it was given its time");
    until_gone(deaf).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_kills_the_group() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "trap '' TERM; sh -c 'sleep 60 & echo $!; wait'; true");
    let grandchild = pid(&mut call).await;
    let dropped = Instant::now();
    drop(call);
    until_gone(grandchild).await;
    assert!(dropped.elapsed() < Duration::from_secs(2), "it was killed, not left to the leader of its group");
}

#[tokio::test]
async fn a_command_ends_when_its_time_is_over() {
    let called = bash_in(&Tree::of(&[]), json!({ "command": "sleep 60 & echo $!; wait", "timeout_s": 1 })).await;
    assert_eq!(called.error(), "the command took longer than timeout_s, 1 s, and was ended");
    until_gone(parse_pid(&called.text_on("stdout"))).await;
}

#[tokio::test]
async fn nothing_of_the_environment_but_a_few_names_is_passed_on() {
    let kept = ["PATH", "HOME", "LANG", "LC_ALL", "TERM", "TZ", "USER", "TMPDIR"];
    let of_the_shell = ["PWD", "OLDPWD", "SHLVL", "_"];
    let secret = |name: &str| !kept.contains(&name) && !of_the_shell.contains(&name);
    assert!(std::env::vars().any(|(name, _)| secret(&name)), "there is something that must not be seen");
    for line in bash("env").await.text_on("stdout").lines() {
        let (name, _) = line.split_once('=').unwrap();
        assert!(!secret(name), "{line}");
    }
}

/// Commands of root can get around every barrier: then they run as another user, as those of a worker do.
#[cfg(target_os = "linux")]
fn without_root(tree: &Tree) -> Bash {
    std::fs::set_permissions(tree.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    match rustix::process::geteuid().is_root() {
        true => tool_of_nobody(tree),
        false => tool(tree),
    }
}

/// A key of the worker beside the folder in which commands run, and a tool that hides it.
#[cfg(target_os = "linux")]
fn with_key(tree: &Tree) -> (Bash, std::path::PathBuf) {
    tree.write("keys/pool.nk", b"SUSECRET");
    tree.write("keys/other.nk", b"SUOTHER");
    tree.write("work/file", b"");
    let root = tools::Root::new(&tree.path().join("work")).unwrap();
    let key = tree.path().canonicalize().unwrap().join("keys/pool.nk");
    (tool_with(root, Settings { hidden: vec![key.clone()], ..Settings::default() }), key)
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_command_cannot_get_at_a_hidden_key_in_any_way() {
    let tree = Tree::of(&[]);
    let (bash, key) = with_key(&tree);
    let table = toolyard_tool::Table::new().host(bash).unwrap();
    let (key, here) = (key.display(), std::process::id());
    let attacks = [
        format!("cat {key}"),
        "cat ../keys/other.nk".to_owned(),
        format!("ln -s {key} link && cat link"),
        format!("ln {key} hard && cat hard"),
        format!("mv {key} moved && cat moved"),
        format!("cp {key} copy && cat copy"),
        format!("cat /proc/{here}/root{key}"),
        format!("mkdir up && mount --bind $(dirname {key}) up && cat up/pool.nk"),
        format!("unshare -Urm sh -c 'mkdir -p m; mount --bind $(dirname {key}) m; cat m/pool.nk; cat {key}'"),
        format!("python3 -c 'print(open(\"{key}\").read())'"),
        format!("grep -r SU $(dirname {key}) ."),
        format!("exec 7< {key} && cat <&7"),
    ];
    for attack in attacks {
        let called = testkit::call_in(&table, "bash", json!({ "command": attack })).await;
        let said = called.text_on("stdout");
        assert!(!said.contains("SECRET") && !said.contains("OTHER"), "{attack}: {said}");
    }
    assert_eq!(std::fs::read_to_string(tree.path().join("keys/pool.nk")).unwrap(), "SUSECRET", "it is as it was");
    // What is not hidden is as ever.
    let usual =
        "echo a > a && mv a file && cat file && mkdir -p d && touch d/x && rm -r d && ls /etc >/dev/null && echo fine";
    let called = testkit::call_in(&table, "bash", json!({ "command": usual })).await;
    assert_eq!(called.text_on("stdout"), "a\nfine\n", "{}", called.text_on("stderr"));
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_command_cannot_look_into_or_signal_what_is_not_its_own() {
    // As a worker does when it begins to serve.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).unwrap();
    let here = std::process::id();
    let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let other = stranger.id();
    let attacks = [
        format!("cat /proc/{here}/environ"),
        format!("head -c 10 /proc/{here}/mem"),
        format!("ls /proc/{here}/fd /proc/$PPID/fd"),
        format!("cat /proc/{other}/environ /proc/$PPID/environ"),
        format!("kill -9 {here}"),
        format!("kill -9 {other}"),
        "kill -9 $PPID".to_owned(),
    ];
    let tree = Tree::of(&[]);
    for attack in attacks {
        let arguments = json!({ "command": format!("{attack} && echo got") });
        let called = timeout(SOON, testkit::call(without_root(&tree), arguments)).await.unwrap();
        assert!(!called.text_on("stdout").contains("got"), "{attack}");
        assert!(
            matches!(called.answer().as_str(), r#"{"exit_code":1}"# | r#"{"exit_code":2}"#),
            "{attack}: {called:?}"
        );
    }
    assert!(stranger.try_wait().unwrap().is_none());
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_command_runs_as_another_user_when_the_worker_is_root_and_reads_nothing_of_roots() {
    if !rustix::process::geteuid().is_root() {
        // Nobody else can be another user: then the command is refused, and says why.
        let called = testkit::call(tool_of_nobody(&Tree::of(&[])), json!({ "command": "id" })).await;
        assert!(called.error().contains("cannot be run"), "{}", called.error());
        return;
    }
    let tree = Tree::of(&[("key", "SECRET")]);
    std::fs::set_permissions(tree.path().join("key"), std::os::unix::fs::PermissionsExt::from_mode(0o400)).unwrap();
    let bash = without_root(&tree);
    let command = "id -u; id -g; echo $HOME; cat key; touch mine && echo written";
    let called = testkit::call(bash, json!({ "command": command })).await;
    let home = tree.path().canonicalize().unwrap();
    assert_eq!(called.text_on("stdout"), format!("65532\n65532\n{}\nwritten\n", home.display()));
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_command_of_root_reads_no_environment_memory_or_files_of_other_processes() {
    // As a worker does when it begins to serve.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).unwrap();
    let here = std::process::id();
    let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let other = stranger.id();
    let attacks = [
        format!("cat /proc/{here}/environ"),
        format!("head -c 10 /proc/{here}/mem"),
        format!("readlink /proc/{here}/fd/0"),
        format!("cat /proc/{other}/environ"),
        "mount -t tmpfs none .".to_owned(),
    ];
    let tree = Tree::of(&[]);
    for attack in attacks {
        let called = bash_in(&tree, json!({ "command": format!("{attack} && echo got") })).await;
        assert!(!called.text_on("stdout").contains("got"), "{attack}");
    }
    // What is its own is as ever.
    let own = "touch a && chown 1000 a && sleep 9 & cat /proc/$!/environ >/dev/null && kill $! && echo fine";
    let called = bash_in(&tree, json!({ "command": own })).await;
    let is_root = rustix::process::geteuid().is_root();
    assert!(!is_root || called.text_on("stdout") == "fine\n", "{called:?}");
    stranger.kill().unwrap();
    stranger.wait().unwrap();
}

#[tokio::test]
#[cfg(target_os = "linux")]
async fn a_command_is_limited_and_goes_first_when_memory_runs_out() {
    let said =
        bash("ulimit -c; ulimit -f; ulimit -u; cat /proc/self/oom_score_adj; grep NoNewPrivs /proc/self/status").await;
    let said = said.text_on("stdout");
    let mut lines = said.lines();
    // In blocks of 1024 bytes.
    assert_eq!((lines.next(), lines.next()), (Some("0"), Some("16777216")));
    let processes: u64 = lines.next().unwrap().parse().unwrap();
    assert!((4096..1_000_000).contains(&processes), "{processes}");
    assert_eq!((lines.next(), lines.next()), (Some("500"), Some("NoNewPrivs:\t1")));
}

#[tokio::test]
async fn a_file_that_the_worker_inherited_does_not_reach_a_command() {
    use std::os::fd::AsRawFd as _;
    let tree = Tree::of(&[("inherited", "SECRET")]);
    let file = std::fs::File::open(tree.path().join("inherited")).unwrap();
    rustix::io::fcntl_setfd(&file, rustix::io::FdFlags::empty()).unwrap();
    let called = bash_in(&tree, json!({ "command": format!("cat <&{}", file.as_raw_fd()) })).await;
    assert_eq!((called.text_on("stdout").as_str(), called.answer().as_str()), ("", r#"{"exit_code":1}"#));
}

#[tokio::test]
async fn a_command_runs_below_the_root() {
    let tree = Tree::of(&[("src/lib.rs", "")]);
    assert_eq!(bash_in(&tree, json!({ "command": "ls" })).await.text_on("stdout"), "src\n");
    let below = bash_in(&tree, json!({ "command": "ls", "working_directory": "src" })).await;
    assert_eq!(below.text_on("stdout"), "lib.rs\n");
    for (folder, reason) in
        [("..", "leads out"), ("/", "leads out"), ("lib", "there is no"), ("src/lib.rs", "not a folder")]
    {
        let called = bash_in(&tree, json!({ "command": "ls", "working_directory": folder })).await;
        assert!(called.error().contains(reason), "{folder}: {}", called.error());
    }
}

#[tokio::test]
async fn a_command_that_begins_with_a_dash_is_no_option() {
    assert_eq!(bash("-x").await.answer(), r#"{"exit_code":127}"#);
}

#[tokio::test]
async fn a_command_that_never_stops_talking_is_ended() {
    let called = bash("yes").await;
    assert_eq!(called.result.as_ref().unwrap_err().kind, ErrorKind::OutputTooLarge);
    assert!(called.error().contains("write to a file"));
}

#[tokio::test]
async fn arguments_that_do_not_fit_are_refused() {
    let tree = Tree::of(&[]);
    for arguments in [
        json!({}),
        json!({ "command": "" }),
        json!({ "command": "true", "timeout_s": 0 }),
        json!({ "command": "true", "timeout_s": 601 }),
        json!({ "command": "true", "env": {} }),
    ] {
        let called = bash_in(&tree, arguments.clone()).await;
        assert_eq!(called.result.unwrap_err().kind, ErrorKind::ArgumentsInvalid, "{arguments}");
    }
    let long = bash_in(&tree, json!({ "command": format!(": {}", "x".repeat(128 * 1024)) })).await;
    assert!(long.error().contains("write a file and run that"));
    let longest = format!(": {}", "x".repeat(128 * 1024 - 3));
    assert_eq!(bash_in(&tree, json!({ "command": longest })).await.answer(), r#"{"exit_code":0}"#);
}

#[tokio::test]
async fn nothing_of_a_command_outlives_a_worker_that_is_killed() {
    let mut worker = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "worker_to_be_killed", "--ignored", "--nocapture"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(worker.stderr.take().unwrap()).lines();
    let grandchild = lines.find_map(|line| line.unwrap().strip_prefix("grandchild ").map(parse_pid)).unwrap();
    assert!(is_running(grandchild));
    worker.kill().unwrap();
    worker.wait().unwrap();
    until_gone(grandchild).await;
}

#[tokio::test]
#[ignore = "a process that another test starts and kills"]
async fn worker_to_be_killed() {
    let tree = Tree::of(&[]);
    let mut call = start(&tree, "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 60 & echo $!; wait'; true");
    eprintln!("grandchild {}", pid(&mut call).await.as_raw_nonzero());
    end(call).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: how long a command takes that does nothing"]
async fn time_of_a_command_that_does_nothing() {
    let (tree, mut took) = (Tree::of(&[]), Vec::new());
    let table = toolyard_tool::Table::new().host(tool(&tree)).unwrap();
    for _ in 0..300 {
        let began = Instant::now();
        let called = testkit::call_in(&table, "bash", json!({ "command": ":" })).await;
        assert_eq!(called.answer(), r#"{"exit_code":0}"#);
        took.push(began.elapsed());
    }
    took.sort();
    eprintln!("p50 {:?}, p90 {:?}, fastest {:?}", took[150], took[270], took[0]);
}
