//! `toolyard top` in a terminal of its own, against `toolyard dev`.

use crate::process::run;

#[test]
fn without_a_terminal_it_is_wrong_usage() {
    for arguments in [vec!["top"], vec!["top", "-o", "json"]] {
        let ended = run(&arguments);
        assert_eq!(ended.code(), 2, "{}", ended.stderr());
        assert!(
            ended.stderr().contains("draws on a terminal") && ended.stderr().contains("runs ls"),
            "{}",
            ended.stderr()
        );
        assert_eq!(ended.stdout(), "");
    }
}

/// The controlling terminal of a process is set by a program of Linux.
#[cfg(target_os = "linux")]
mod in_a_terminal {
    use std::fs::File;
    use std::io::{Read as _, Write as _};
    use std::num::NonZeroU16;
    use std::process::{Child, Command};
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use rustix::fs::{Mode, OFlags, open};
    use rustix::process::{Pid, Signal, kill_process};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

    use crate::process::{Background, Dev, PATIENCE, toolyard};

    /// What the program wrote to its terminal.
    struct Seen {
        screen: vt100::Parser,
        bytes: Vec<u8>,
    }

    /// The program in a terminal.
    struct Top {
        child: Child,
        terminal: File,
        seen: Arc<Mutex<Seen>>,
        changed: Receiver<()>,
    }

    impl Top {
        fn start(arguments: &[&str]) -> Self {
            let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
            grantpt(&terminal).and_then(|()| unlockpt(&terminal)).expect("it can be used");
            let name = ptsname(&terminal, Vec::new()).expect("it has a name");
            let inside = || {
                let file = open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("the other side");
                std::process::Stdio::from(file)
            };
            resize(&terminal, 24, 80);
            let program = toolyard(arguments);
            let mut command = Command::new("setsid");
            command.arg("--ctty").arg(program.get_program()).args(program.get_args());
            for (variable, value) in program.get_envs() {
                match value {
                    Some(value) => command.env(variable, value),
                    None => command.env_remove(variable),
                };
            }
            command.env("TERM", "xterm-256color").stdin(inside()).stdout(inside()).stderr(inside());
            let child = command.spawn().expect("setsid of util-linux");
            let size = |size| NonZeroU16::new(size).expect("not zero");
            let seen = Seen { screen: vt100::Parser::new(size(24), size(80), 0), bytes: Vec::new() };
            let (terminal, seen) = (File::from(terminal), Arc::new(Mutex::new(seen)));
            let (sender, changed) = channel();
            let (mut output, shared) = (terminal.try_clone().expect("a second handle"), Arc::clone(&seen));
            std::thread::spawn(move || {
                let mut buffer = [0; 64 * 1024];
                while let Ok(read @ 1..) = output.read(&mut buffer) {
                    let mut seen = shared.lock().expect("no thread panics with it");
                    seen.screen.process(&buffer[..read]);
                    seen.bytes.extend_from_slice(&buffer[..read]);
                    drop(seen);
                    if sender.send(()).is_err() {
                        return;
                    }
                }
            });
            Self { child, terminal, seen, changed }
        }

        fn press(&mut self, keys: &str) {
            self.terminal.write_all(keys.as_bytes()).expect("the terminal takes keys");
        }

        fn screen(&self) -> String {
            self.seen.lock().expect("no thread panics with it").screen.screen().contents()
        }

        /// Waits until the screen shows a text.
        #[track_caller]
        fn until(&self, text: &str) -> String {
            self.until_seen(text, |screen| screen.contents().contains(text));
            self.screen()
        }

        /// Waits until the screen is as it should be.
        #[track_caller]
        fn until_seen(&self, what: &str, is_as_wanted: impl Fn(&vt100::Screen) -> bool) {
            let last = Instant::now() + PATIENCE;
            while !is_as_wanted(self.seen.lock().expect("no thread panics with it").screen.screen()) {
                // The console draws its clock each second, so that the time of one change is no limit.
                let left = last.saturating_duration_since(Instant::now());
                if left.is_zero() || self.changed.recv_timeout(left).is_err() {
                    panic!("{what:?} does not come:\n{}", self.screen());
                }
            }
        }

        fn pid(&self) -> Pid {
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process id")
        }

        /// Its exit code, once it has ended.
        fn code(&mut self) -> i32 {
            let status = self.child.wait().expect("it is our child");
            status.code().expect("it was not ended by a signal")
        }
    }

    impl Drop for Top {
        fn drop(&mut self) {
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }

    fn resize(terminal: impl std::os::fd::AsFd, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(terminal, size).expect("it takes a size");
    }

    #[test]
    fn a_call_is_approved_in_the_inbox_and_its_output_is_followed() {
        let dev = Dev::start();
        let call =
            dev.background(["call", "--approval", "bash", "command=echo out; printf '\\033]0;owned\\007\\n'; exit 3"]);
        let id = call
            .stderr
            .until(|line| line.contains("calls approve|reject"))
            .split(' ')
            .rev()
            .nth(1)
            .expect("an id")
            .to_owned();
        let mut top = Top::start(&["--url", dev.url(), "top"]);
        top.until("1, 16 slots");
        top.press("3");
        top.until("\"command\": \"echo out;");
        top.press("o");
        top.until(&id);
        top.until("awaits approval");
        top.press("a");
        top.until("\"command\": \"echo out;");
        top.press("ay");
        top.until("was approved");
        top.press("\x1b");
        let screen = top.until("✓ run completed");
        assert!(screen.contains("│ out") && screen.contains("␛]0;owned␇"), "{screen}");
        let bytes = top.seen.lock().expect("no thread panics with it").bytes.clone();
        assert!(!bytes.windows(2).any(|pair| pair == b"\x1b]"), "the title of the terminal is not the tool's");
        top.press("q");
        assert_eq!(top.code(), 0);
    }

    #[test]
    fn it_resizes_shows_the_keys_and_restores_the_terminal_after_a_signal() {
        let dev = Dev::start();
        let mut top = Top::start(&["--url", dev.url(), "top", "--page", "workers"]);
        top.until("1 pool, 1 worker");
        assert!(!tcgetattr(&top.terminal).expect("its modes").local_modes.contains(LocalModes::ECHO));
        top.seen
            .lock()
            .expect("no thread panics with it")
            .screen
            .screen_mut()
            .set_size(NonZeroU16::new(40).expect("not zero"), NonZeroU16::new(120).expect("not zero"));
        resize(&top.terminal, 40, 120);
        top.press("?");
        let screen = top.until("approve with");
        assert!(screen.contains("other arguments"), "{screen}");
        kill_process(top.pid(), Signal::TERM).expect("it runs");
        assert_eq!(top.code(), 130);
        let modes = tcgetattr(&top.terminal).expect("its modes").local_modes;
        assert!(modes.contains(LocalModes::ECHO | LocalModes::ICANON), "{modes:?}");
        top.until_seen("the screen is as it was", |screen| !screen.alternate_screen() && !screen.hide_cursor());
    }

    /// A coordinator with a broker and a worker, on an address that the next one can take.
    fn start(data: &str, listen: &str) -> (Background, String) {
        let process = Background::start(["dev", "--listen", listen, "--data-dir", data, "-o", "json"]);
        let up: serde_json::Value = serde_json::from_str(&process.stdout.until(|_| true)).expect("it says where it is");
        (process, up["url"].as_str().expect("a URL").to_owned())
    }

    #[test]
    fn the_output_of_a_run_goes_on_when_the_coordinator_comes_back() {
        let folder = tempfile::tempdir().expect("a folder");
        let data = folder.path().to_str().expect("a path");
        let (dev, url) = start(data, "127.0.0.1:0");
        let call = Background::start(["--url", &url, "call", "ask_user", "question=Tea?"]);
        let line = call.stderr.until(|line| line.contains("toolyard submit"));
        let id = line.split(' ').rev().nth(2).expect("an id").to_owned();
        let mut top = Top::start(&["--url", &url, "top", &id]);
        top.until("waits for an answer");
        dev.signal(Signal::KILL);
        drop(dev);
        top.until("the output goes on after event");
        let (_dev, _) = start(data, url.trim_start_matches("http://"));
        top.until("connected again");
        top.press("w");
        top.until("Tea?");
        top.press("agreen\r");
        top.until("was answered");
        top.press("\x1b");
        let screen = top.until("✓ run completed");
        assert_eq!(screen.matches("waits for an answer").count(), 1, "each event is shown once:\n{screen}");
    }
}
