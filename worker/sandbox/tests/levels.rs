//! What programs can still do on each level, with real processes.

#![allow(clippy::unwrap_used, reason = "it is all tests")]
#![cfg(target_os = "linux")]

mod programs_of_tests;

use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use programs_of_tests::{SOON, end, exit, sandbox_with, workspace};
use sandbox::{
    Exit, Level, Network, Order, Request, Sandbox, SandboxError, Settings, Signal, StartError, User, Wanted,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::time::timeout;
use toolyard_tool::Left;

const CONFINING: [Level; 2] = [Level::Confined, Level::Isolated];

fn sandbox_of(level: Level, network: Network) -> Option<Sandbox> {
    sandbox::use_program(env!("CARGO_BIN_EXE_toolyard-guard").into());
    let user = sandbox::choose_user(None).unwrap();
    let settings = Settings { level: Wanted::Exactly(level), network, user, ..Settings::default() };
    match Sandbox::new(settings) {
        Ok(sandbox) => Some(sandbox),
        Err(error) => {
            // The test of break-outs fails when a machine cannot give a level and nobody said that this is known.
            eprintln!("NOT TESTED: {error}");
            None
        }
    }
}

async fn run(sandbox: &Sandbox, script: &str) -> (String, String, Option<Exit>) {
    let folder = workspace();
    end(sandbox.start(Request::shell(script, folder.path()), Left::default()).await.unwrap()).await
}

#[tokio::test]
async fn a_confined_program_has_its_workspace_the_system_and_a_folder_for_temporary_files() {
    for sandbox in CONFINING.into_iter().filter_map(|level| sandbox_of(level, Network::Denied)) {
        let script = "mkdir a && echo hi > a/b && mv a/b c && ln c d && rm c && cat d && \
                      cat /etc/hostname > /dev/null && \
                      touch $TMPDIR/x $HOME/y && ls /usr/bin > /dev/null && (echo piped | cat) && \
                      head -c 4 /dev/urandom > /dev/null && cat /proc/self/stat > /dev/null && echo $TMPDIR";
        let (out, err, exit) = run(&sandbox, script).await;
        assert_eq!((err.as_str(), exit), ("", Some(Exit::ExitCode(0))), "{}", sandbox.level());
        assert!(out.starts_with("hi\npiped\n/"), "{out}");
        let temporary = out.lines().last().unwrap();
        assert!(temporary == "/tmp" || !std::path::Path::new(temporary).exists(), "{temporary} is left");
    }
}

#[tokio::test]
async fn an_isolated_program_sees_itself_alone() {
    let Some(sandbox) = sandbox_of(Level::Isolated, Network::Denied) else { return };
    let script = "ls -A /tmp | wc -l; ls /proc | grep -c '^[0-9]'; cat /proc/sys/kernel/hostname; \
                  ls /home /root /srv /sys 2>/dev/null | wc -l; grep -c : /proc/net/dev";
    let (out, err, _) = run(&sandbox, script).await;
    // The workspace lies in /tmp here. The processes are the guard, the shell, and those of the pipe.
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!((lines[0], lines[2], lines[3], lines[4]), ("1", "toolyard", "0", "1"), "{out}{err}");
    assert!(lines[1].parse::<u32>().unwrap() <= 5, "{out}");
}

#[tokio::test]
async fn an_isolated_program_has_a_loopback_of_its_own() {
    let Some(sandbox) = sandbox_of(Level::Isolated, Network::Denied) else { return };
    let script = "perl -MIO::Socket::INET -e '\
                  $l = IO::Socket::INET->new(Listen => 1, LocalAddr => \"127.0.0.1\") or die $@; \
                  IO::Socket::INET->new(PeerAddr => \"127.0.0.1\", PeerPort => $l->sockport) or die $@; print \"met\"'";
    assert_eq!(run(&sandbox, script).await, ("met".to_owned(), String::new(), Some(Exit::ExitCode(0))));
}

#[tokio::test]
async fn a_program_with_a_network_reaches_it_but_no_abstract_socket() {
    let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = format!("toolyard-test-{}", std::process::id());
    let _abstract = UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port} && echo connected; \
         perl -MSocket -e 'socket(S, AF_UNIX, SOCK_STREAM, 0) or die; \
         connect(S, pack_sockaddr_un(\"\\0{name}\")) and print \"ESCAPED\"'",
        port = tcp.local_addr().unwrap().port()
    );
    for sandbox in CONFINING.into_iter().filter_map(|level| sandbox_of(level, Network::Allowed)) {
        assert_eq!(run(&sandbox, &script).await.0, "connected\n", "{}", sandbox.level());
    }
}

#[tokio::test]
async fn input_signals_and_stops_reach_a_program_on_every_level() {
    for sandbox in CONFINING.into_iter().filter_map(|level| sandbox_of(level, Network::Denied)) {
        let folder = workspace();
        let script = "trap 'echo interrupted' INT; trap 'echo ending; exit 4' TERM; \
                      while :; do read -r line && echo \"got $line\" || sleep 0.01; done";
        let mut guarded = sandbox.start(Request::shell(script, folder.path()).piped(), Left::default()).await.unwrap();
        let mut stdin = guarded.stdin().unwrap();
        let mut lines = BufReader::new(guarded.pipes().0.unwrap()).lines();
        stdin.write_all(b"one\n").await.unwrap();
        assert_eq!(timeout(SOON, lines.next_line()).await.unwrap().unwrap().as_deref(), Some("got one"));
        guarded.order(Order::Signal(Signal::Interrupt));
        assert_eq!(timeout(SOON, lines.next_line()).await.unwrap().unwrap().as_deref(), Some("interrupted"));
        let stopped = timeout(SOON, guarded.stop(SOON)).await.unwrap();
        assert_eq!(stopped, Some(Exit::ExitCode(4)), "{}", sandbox.level());
        assert_eq!(timeout(SOON, lines.next_line()).await.unwrap().unwrap().as_deref(), Some("ending"));
    }
}

#[tokio::test]
async fn a_program_may_read_folders_that_are_named_for_it() {
    let shown = workspace();
    std::fs::write(shown.path().join("file"), "shown").unwrap();
    std::fs::set_permissions(shown.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for level in CONFINING.into_iter().filter(|level| sandbox_of(*level, Network::Denied).is_some()) {
        let readable = vec![shown.path().to_owned()];
        let sandbox = sandbox_with(Settings { level: Wanted::Exactly(level), readable, ..Settings::default() });
        let script = format!("cat {0}/file; touch {0}/new && echo written", shown.path().display());
        assert_eq!(run(&sandbox, &script).await.0, "shown", "{level}");
    }
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_named() {
    let Some(sandbox) = sandbox_of(Level::Confined, Network::Denied) else { return };
    let error = sandbox.start(Request::shell("true", "/nowhere/at/all"), Left::default()).await.unwrap_err();
    assert!(matches!(&error, StartError::Folder { path, .. } if path.ends_with("at/all")), "{error}");
}

#[tokio::test]
async fn a_program_without_a_sandbox_may_mount_in_a_namespace_of_its_own_unless_files_are_hidden() {
    let script = "unshare --user --map-root-user --mount mount -t tmpfs none /mnt && echo mounted";
    let can_mount = Command::new("unshare").args(["--user", "--map-root-user", "--mount", "true"]).status();
    if !can_mount.is_ok_and(|status| status.success()) {
        eprintln!("NOT TESTED: there are no user namespaces");
        return;
    }
    let none = sandbox_with(Settings::default());
    assert_eq!(run(&none, script).await.0, "mounted\n");
    let hiding = sandbox_with(Settings { hidden: vec!["/etc/hostname".into()], ..Settings::default() });
    let (out, err, _) = run(&hiding, script).await;
    assert!(out.is_empty() && err.contains("not permitted"), "{out}{err}");
}

#[test]
fn an_error_names_everything_that_is_missing() {
    let what = "user namespaces (denied)".to_owned();
    let gaps = vec![sandbox::Gap { level: Level::Isolated, what, closed_by_isolation: false }];
    let error = SandboxError::Missing { level: Level::Isolated, gaps }.to_string();
    assert!(error.contains("level isolated: isolated needs user namespaces (denied)"), "{error}");
}

/// A worker that is not root: an ignored test, in a process of its own.
fn plain_user(test: &str) -> Command {
    use std::os::unix::process::CommandExt as _;
    let mut worker = Command::new(std::env::current_exe().unwrap());
    worker.args(["--exact", test, "--ignored"]);
    if let Some(User { uid, gid }) = sandbox::choose_user(None).unwrap() {
        worker.uid(uid).gid(gid);
    }
    worker
}

#[test]
fn programs_cannot_look_into_a_worker_that_hides_itself() {
    assert!(plain_user("worker_that_hides_itself").status().unwrap().success());
}

#[tokio::test]
#[ignore = "a process that another test starts"]
async fn worker_that_hides_itself() {
    let (worker, own) = (std::process::id(), rustix::process::getuid().as_raw());
    let script = format!("stat -c %u /proc/{worker}/environ /proc/{worker}/mem /proc/{worker}/fd");
    let owners = |uid: u32| format!("{uid}\n").repeat(3);
    let none = sandbox_of(Level::None, Network::Denied).unwrap();
    assert_eq!(run(&none, &script).await.0, owners(own));
    // As a worker does.
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable).unwrap();
    // A worker that is hidden can still try what the kernel gives.
    let confined = sandbox_of(Level::Confined, Network::Denied);
    for sandbox in confined.iter().chain([&none]) {
        assert_eq!(run(sandbox, &script).await.0, owners(0), "{}", sandbox.level());
    }
}

#[test]
fn the_temporary_folder_of_a_program_goes_although_the_program_took_rights_away() {
    let temporary = workspace();
    // Root may remove anything.
    let mut worker = plain_user("worker_of_a_plain_user");
    worker.env("TMPDIR", temporary.path());
    assert!(worker.status().unwrap().success());
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
#[ignore = "a process that another test starts"]
async fn worker_of_a_plain_user() {
    let Some(sandbox) = sandbox_of(Level::Confined, Network::Denied) else { return };
    let script = "mkdir -p $TMPDIR/a/b $HOME/go/pkg && touch $TMPDIR/a/b/c $HOME/go/pkg/x && \
                  chmod 555 $TMPDIR/a/b $TMPDIR/a && chmod 0 $HOME/go/pkg";
    assert_eq!(run(&sandbox, script).await, (String::new(), String::new(), Some(Exit::ExitCode(0))));
}

#[tokio::test]
async fn nothing_of_a_program_outlives_a_worker_that_is_killed_on_any_level() {
    for level in CONFINING.into_iter().filter(|level| sandbox_of(*level, Network::Denied).is_some()) {
        let marker = format!("{}-{level}", std::process::id());
        let mut worker = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker_to_be_killed", "--ignored", "--nocapture"])
            .env("LEVEL", level.to_string())
            .env("MARKER", &marker)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(worker.stderr.take().unwrap()));
        assert!(lines.any(|line| line.unwrap() == "running"));
        assert!(is_marked(&marker));
        worker.kill().unwrap();
        worker.wait().unwrap();
        let deadline = Instant::now() + SOON;
        while is_marked(&marker) {
            assert!(Instant::now() < deadline, "a program on level {level} still runs");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A program has the marker in its command line.
fn is_marked(marker: &str) -> bool {
    let lines = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = lines.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).contains(&format!("sleep 600 # {marker}")))
}

#[tokio::test]
#[ignore = "a process that another test starts and kills"]
async fn worker_to_be_killed() {
    let sandbox::Wanted::Exactly(level) = std::env::var("LEVEL").unwrap().parse().unwrap() else { panic!() };
    let (sandbox, folder) = (sandbox_of(level, Network::Denied).unwrap(), workspace());
    let script = format!(
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; echo; sleep 600 # {}'; true",
        std::env::var("MARKER").unwrap()
    );
    let mut guarded = sandbox.start(Request::shell(script, folder.path()), Left::default()).await.unwrap();
    BufReader::new(guarded.pipes().0.unwrap()).read_line(&mut String::new()).await.unwrap();
    eprintln!("running");
    exit(&mut guarded).await;
}
