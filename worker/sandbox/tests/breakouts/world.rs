//! What is around a program that tries to get out: files, sockets and processes, and whether they were touched.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};

use sandbox::{Guarded, Level, Limits, Request, Sandbox, Settings, Wanted};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use toolyard_tool::Left;

use crate::cases::Case;
use crate::programs_of_tests::{SOON, end, give, sandbox_with};

pub(crate) struct World {
    folder: TempDir,
    sandbox: Sandbox,
    level: Level,
    tcp: TcpListener,
    udp: UdpSocket,
    abstract_socket: UnixListener,
    socket: UnixListener,
    _victim: Guarded,
    victim: String,
    marker: String,
    _inherited: File,
}

impl World {
    pub(crate) async fn new(level: Level) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        open_to_all(folder.path());
        for name in ["outside", "keys", "workspaces", "workspaces/other"] {
            fs::create_dir(path(name)).unwrap();
            open_to_all(&path(name));
        }
        for name in ["outside/secret", "outside/own", "keys/key", "workspaces/other/data"] {
            fs::write(path(name), "SECRET").unwrap();
            open_to_all(&path(name));
            give(&path(name));
        }
        let marker = folder.path().file_name().unwrap().to_str().unwrap().replace('.', "");
        let limits = Limits {
            memory: Some(256 << 20),
            processes: 64,
            open_files: Some(128),
            file_bytes: 16 << 20,
            ..Limits::default()
        };
        let hidden = vec![path("keys/key")];
        let sandbox = sandbox_with(Settings { level: Wanted::Exactly(level), limits, hidden, ..Settings::default() });
        let (victim_program, victim) = victim().await;
        let inherited = File::open(path("outside/secret")).unwrap();
        rustix::io::fcntl_setfd(&inherited, rustix::io::FdFlags::empty()).unwrap();
        let socket = UnixListener::bind(path("outside/socket")).unwrap();
        open_to_all(&path("outside/socket"));
        let name = SocketAddr::from_abstract_name(&marker).unwrap();
        let world = Self {
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            abstract_socket: UnixListener::bind_addr(&name).unwrap(),
            _victim: victim_program,
            _inherited: inherited,
            folder,
            sandbox,
            level,
            socket,
            victim,
            marker,
        };
        world.tcp.set_nonblocking(true).unwrap();
        world.udp.set_nonblocking(true).unwrap();
        world.abstract_socket.set_nonblocking(true).unwrap();
        world.socket.set_nonblocking(true).unwrap();
        world
    }

    /// Runs the script of a case, and returns its output.
    pub(crate) async fn run(&self, case: &Case) -> String {
        let workspace = self.workspace();
        let script = self.fill(case.script, workspace.path());
        let request =
            Request { workspace: Some(workspace.path().to_owned()), ..Request::shell(script, workspace.path()) };
        let (out, err, _) = end(self.sandbox.start(request, Left::default()).await.unwrap()).await;
        format!("{out}{err}")
    }

    fn workspace(&self) -> TempDir {
        let folder = tempfile::tempdir_in(self.path("workspaces")).unwrap();
        give(folder.path());
        let setuid = folder.path().join("setuid-id");
        fs::copy("/usr/bin/id", &setuid).unwrap();
        fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn fill(&self, script: &str, workspace: &Path) -> String {
        let shown = |path: PathBuf| path.display().to_string();
        // Without a namespace of its own for users, all processes of the machine are in between.
        let processes_max = if self.level == Level::Isolated { 64 } else { 8000 };
        let names = [
            ("outside", shown(self.path("outside"))),
            ("key", shown(self.path("keys/key"))),
            ("workspaces", shown(self.path("workspaces"))),
            ("other", shown(self.path("workspaces/other"))),
            ("workspace", shown(workspace.to_owned())),
            ("worker", std::process::id().to_string()),
            ("victim", self.victim.clone()),
            ("marker", self.marker.clone()),
            ("tcp", self.tcp.local_addr().unwrap().port().to_string()),
            ("udp", self.udp.local_addr().unwrap().port().to_string()),
            ("is_none", u8::from(self.level == Level::None).to_string()),
            ("processes_max", processes_max.to_string()),
            ("ptrace", libc::SYS_ptrace.to_string()),
            ("process_vm_readv", libc::SYS_process_vm_readv.to_string()),
            ("pidfd_open", libc::SYS_pidfd_open.to_string()),
            ("pidfd_getfd", libc::SYS_pidfd_getfd.to_string()),
            ("mount", libc::SYS_mount.to_string()),
            ("unshare", libc::SYS_unshare.to_string()),
            ("clone", libc::SYS_clone.to_string()),
            ("keyctl", libc::SYS_keyctl.to_string()),
            ("io_uring_setup", libc::SYS_io_uring_setup.to_string()),
            ("bpf", libc::SYS_bpf.to_string()),
            ("finit_module", libc::SYS_finit_module.to_string()),
            ("ioctl", libc::SYS_ioctl.to_string()),
        ];
        names
            .into_iter()
            .fold(script.to_owned(), |script, (name, value)| script.replace(&format!("{{{name}}}"), &value))
    }

    /// Traces of a program that got out.
    pub(crate) fn traces(&self) -> Vec<String> {
        let mut traces = Vec::new();
        let mut files: Vec<_> =
            fs::read_dir(self.path("outside")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        files.sort();
        if files != ["own", "secret", "socket"] {
            traces.push(format!("outside has {files:?}"));
        }
        for name in ["outside/secret", "outside/own", "workspaces/other/data"] {
            if fs::read(self.path(name)).ok().as_deref() != Some(b"SECRET") {
                traces.push(format!("{name} has changed"));
            }
        }
        let waits = |result: std::io::Result<()>| result.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        let heard = [
            ("TCP", waits(self.tcp.accept().map(drop))),
            ("UDP", waits(self.udp.recv(&mut [0; 8]).map(drop))),
            ("the abstract socket", waits(self.abstract_socket.accept().map(drop))),
            ("the socket in a folder", waits(self.socket.accept().map(drop))),
        ];
        traces.extend(heard.iter().filter(|(_, waits)| !waits).map(|(name, _)| format!("{name} was reached")));
        let status = fs::read_to_string(format!("/proc/{}/status", self.victim)).unwrap_or_default();
        if !status.contains("TracerPid:\t0") {
            traces.push("the other program was touched".to_owned());
        }
        traces.extend(marked(&self.marker).map(|process| format!("process {process} lives on")));
        traces
    }
}

fn open_to_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
}

/// Another program of the same user, and its number.
async fn victim() -> (Guarded, String) {
    let sandbox = sandbox_with(Settings::default());
    let mut victim = sandbox.start(Request::shell("echo $$; exec sleep 600", "/"), Left::default()).await.unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(victim.pipes().0.unwrap());
    tokio::time::timeout(SOON, stdout.read_line(&mut line)).await.unwrap().unwrap();
    (victim, line.trim().to_owned())
}

/// Processes with the marker in their command line.
fn marked(marker: &str) -> impl Iterator<Item = String> {
    fs::read_dir("/proc").unwrap().flatten().filter_map(move |entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let is_numbered = entry.file_name().to_str()?.parse::<u32>().is_ok();
        (is_numbered && String::from_utf8_lossy(&line).contains(marker))
            .then(|| entry.file_name().to_string_lossy().into_owned())
    })
}
