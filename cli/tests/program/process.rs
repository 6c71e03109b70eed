//! The program as a process: run to its end, or in the background and heard line by line.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// How long anything may take before a test gives up: far longer than it does, on a slow machine.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long a process may take to end well before it is killed, when its test is over.
const GRACE: Duration = Duration::from_secs(15);

/// The program with these arguments, without a terminal and without the caller's settings.
pub fn toolyard<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_toolyard"));
    let settings = ["URL", "LOG", "CONTEXT", "KEY_FILE", "CA", "NATS_URL", "LISTEN", "POOL", "DURABILITY", "HOOKS"]
        .map(|setting| format!("TOOLYARD_{setting}"));
    for name in settings.iter().map(String::as_str).chain(["NO_COLOR"]) {
        command.env_remove(name);
    }
    // What the program keeps from one command to the next is not the user's.
    command.env("XDG_STATE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/state"));
    command.env("XDG_CONFIG_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-config"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A process that has ended.
pub struct Ended(Output);

pub fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Ended {
    Ended::of(&mut toolyard(arguments))
}

impl Ended {
    pub fn of(command: &mut Command) -> Self {
        Self(command.output().expect("the program starts"))
    }

    pub fn code(&self) -> i32 {
        self.0.status.code().expect("it was not ended by a signal")
    }

    pub fn stdout(&self) -> String {
        String::from_utf8(self.0.stdout.clone()).expect("its output is text")
    }

    pub fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr.clone()).expect("its errors are text")
    }

    /// What it wrote as JSON, a value a line.
    pub fn json(&self) -> Vec<Value> {
        self.stdout().lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    }
}

/// A process in the background. Dropping it ends it well, or else kills it.
pub struct Background {
    pid: Pid,
    /// How it ended. `None` once that was heard.
    ended: Option<Receiver<ExitStatus>>,
    pub stdout: Lines,
    pub stderr: Lines,
}

impl Background {
    pub fn start<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Self {
        Self::of(&mut toolyard(arguments))
    }

    pub fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        let stdout = Lines::of(child.stdout.take().expect("its output is ours"));
        let stderr = Lines::of(child.stderr.take().expect("its errors are ours"));
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a process id");
        let (sender, ended) = channel();
        std::thread::spawn(move || {
            let status = child.wait().expect("it is our child");
            sender.send(status).unwrap_or_else(|_| eprintln!("its test is over"));
        });
        Self { pid, ended: Some(ended), stdout, stderr }
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid, signal).expect("it still runs");
    }

    /// Waits until it ends, and gives its exit code.
    pub fn code(mut self) -> i32 {
        let ended = self.ended.take().expect("nobody was told yet");
        let status = ended.recv_timeout(PATIENCE).expect("it ends in time");
        status.code().expect("it was not ended by a signal")
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let Some(ended) = self.ended.take().filter(|ended| ended.try_recv().is_err()) else { return };
        // It may end by itself at this very moment.
        let told = kill_process(self.pid, Signal::TERM);
        if ended.recv_timeout(GRACE).is_err() && told.is_ok() {
            self.signal(Signal::KILL);
        }
    }
}

/// Lines as they are written.
pub struct Lines(Receiver<String>);

impl Lines {
    fn of(pipe: impl Read + Send + 'static) -> Self {
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(lines)
    }

    /// The next line that is `wanted`; those before it are passed over.
    pub fn until(&self, wanted: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.0.recv_timeout(PATIENCE).expect("the line comes in time");
            if wanted(&line) {
                return line;
            }
        }
    }

    /// What the next event of this kind says.
    pub fn event(&self, kind: &str) -> Value {
        let parse = |line: &str| serde_json::from_str::<Value>(line).expect("a line is JSON");
        parse(&self.until(|line| parse(line).get(kind).is_some()))[kind].take()
    }

    /// What is still to come, to the end.
    pub fn rest(&self) -> Vec<String> {
        self.0.iter().collect()
    }
}

/// `toolyard dev` on free ports.
pub struct Dev {
    process: Background,
    url: String,
    nats_url: String,
}

impl Dev {
    pub fn start() -> Self {
        Self::with(&[])
    }

    pub fn with(options: &[&str]) -> Self {
        let process = Background::start([&["dev", "--listen", "127.0.0.1:0", "-o", "json"], options].concat());
        let up: Value = serde_json::from_str(&process.stdout.until(|_| true)).expect("it says where it is");
        let url = |of: &str| up[of].as_str().expect("it has a URL").to_owned();
        Self { url: url("url"), nats_url: url("nats_url"), process }
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn nats_url(&self) -> &str {
        &self.nats_url
    }

    /// What it writes to standard error.
    pub fn stderr(&self) -> &Lines {
        &self.process.stderr
    }

    /// Runs a client command to its end.
    pub fn run<const N: usize>(&self, arguments: [&str; N]) -> Ended {
        run(["--url", &self.url].into_iter().chain(arguments))
    }

    pub fn background<const N: usize>(&self, arguments: [&str; N]) -> Background {
        Background::start(["--url", &self.url].into_iter().chain(arguments))
    }

    pub fn command<const N: usize>(&self, arguments: [&str; N]) -> Command {
        toolyard(["--url", &self.url].into_iter().chain(arguments))
    }
}
