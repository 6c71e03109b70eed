//! The sandbox in which the tools of a worker start programs, as its arguments describe it.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use sandbox::{ControlGroups, Level, Limits, Network, Quota, Sandbox, Settings, Sharing, User, Wanted, Workspaces};

use crate::exit::Failure;

/// The least memory with which programs, and the guard that starts them, can start.
const MEMORY_MIN: u64 = 64 * 1024 * 1024;

/// The sandbox of programs that tools start.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Sandbox of programs (docs/howto/sandbox.md)")]
pub(crate) struct SandboxArgs {
    /// How strongly programs of tools are confined. auto: confined if this machine can give all of it, else isolated,
    /// else none with a warning. Another level is required: a worker that cannot give it does not start
    #[arg(long, env = "TOOLYARD_SANDBOX", value_name = "LEVEL", default_value = "auto")]
    #[arg(value_parser = PossibleValuesParser::new(Wanted::NAMES).try_map(|name| name.parse::<Wanted>()))]
    sandbox: Wanted,
    /// Confined programs reach the network, that of this machine's loopback included
    #[arg(long, env = "TOOLYARD_NETWORK", value_parser = clap::builder::FalseyValueParser::new())]
    network: bool,
    /// Folders and files that confined programs may read, beside the system's and the root, with commas between them
    #[arg(long, env = "TOOLYARD_READABLE", value_name = "PATHS", value_delimiter = ',')]
    readable: Vec<PathBuf>,
    /// Calls work in a folder below the root: call: each in its own, which goes with it. run: those of a run, which
    /// goes after an hour without calls. tenant: those of a tenant, which stays [default: all calls work in the root]
    #[arg(long, env = "TOOLYARD_WORKSPACE", value_name = "KIND", requires = "root")]
    #[arg(value_parser = PossibleValuesParser::new(Sharing::NAMES).try_map(|name| name.parse::<Sharing>()))]
    workspace: Option<Sharing>,
    /// Bytes on the disk that such a folder may hold; a call that makes more of it fails
    #[arg(long, env = "TOOLYARD_WORKSPACE_BYTES", value_name = "B", default_value_t = Quota::default().bytes)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..), requires = "workspace")]
    workspace_bytes: u64,
    /// Files, folders and links that such a folder may hold
    #[arg(long, env = "TOOLYARD_WORKSPACE_FILES", value_name = "N", default_value_t = Quota::default().files)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..), requires = "workspace")]
    workspace_files: u64,
    /// Bytes of memory that one process of a program may take [default: no limit]
    #[arg(long, env = "TOOLYARD_MEMORY", value_name = "B", value_parser = clap::value_parser!(u64).range(MEMORY_MIN..))]
    memory: Option<u64>,
    /// Processes and threads of one isolated program; of others, those of their user beyond the machine's
    #[arg(long, env = "TOOLYARD_PROCESSES", value_name = "N", default_value_t = Limits::default().processes)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    processes: u64,
    /// Open files of one process of a program [default: as many as the worker]
    #[arg(long, env = "TOOLYARD_OPEN_FILES", value_name = "N", value_parser = clap::value_parser!(u64).range(16..))]
    open_files: Option<u64>,
    /// Bytes of one file that a program writes
    #[arg(long, env = "TOOLYARD_FILE_BYTES", value_name = "B", default_value_t = Limits::default().file_bytes)]
    file_bytes: u64,
    /// Seconds of processor time of one process of a program [default: no limit]
    #[arg(long, env = "TOOLYARD_CPU_SECONDS", value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    cpu_seconds: Option<u64>,
    /// Bytes of the temporary folder of an isolated program, which is in memory
    #[arg(long, env = "TOOLYARD_TEMPORARY_BYTES", value_name = "B")]
    #[arg(default_value_t = Limits::default().temporary_bytes)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    temporary_bytes: u64,
    /// A control group (version 2) in which each program gets a group of its own, which limits all of its processes
    /// together. The worker may write it and is not in it (systemd: Delegate=yes, DelegateSubgroup=worker)
    #[arg(long, env = "TOOLYARD_CONTROL_GROUP", value_name = "DIR")]
    control_group: Option<PathBuf>,
    /// Bytes of memory of all processes of a program
    #[arg(long, env = "TOOLYARD_GROUP_MEMORY", value_name = "B", requires = "control_group")]
    #[arg(value_parser = clap::value_parser!(u64).range(MEMORY_MIN..))]
    group_memory: Option<u64>,
    /// Processes and threads of a program
    #[arg(long, env = "TOOLYARD_GROUP_PROCESSES", value_name = "N", requires = "control_group")]
    #[arg(value_parser = clap::value_parser!(u64).range(8..))]
    group_processes: Option<u64>,
    /// Thousandths of a processor of a program: 1500 is one and a half
    #[arg(long, env = "TOOLYARD_GROUP_CPU", value_name = "N", requires = "control_group")]
    #[arg(value_parser = clap::value_parser!(u64).range(10..))]
    group_cpu: Option<u64>,
}

impl SandboxArgs {
    /// The folders that calls work in instead of the root, if they are to; removes what killed workers left.
    pub(crate) fn workspaces(&self, root: Option<&Path>, user: Option<User>) -> Result<Option<Workspaces>, Failure> {
        // A root that cannot be used is reported with the tools, in their words.
        let (Some(sharing), Some(root)) = (self.workspace, root.filter(|root| root.is_dir())) else { return Ok(None) };
        let quota = Quota { bytes: self.workspace_bytes, files: self.workspace_files };
        let made = Workspaces::new(root, sharing, quota, user);
        made.map(Some).map_err(|error| Failure::Workspaces { root: root.to_owned(), error })
    }

    /// Makes the sandbox. Without a root, or with a folder for each call, programs may change the folder that they run
    /// in. `folders` can be read.
    pub(crate) fn open(
        self,
        root: Option<&Path>,
        folders: Vec<PathBuf>,
        hidden: Vec<PathBuf>,
        user: Option<User>,
    ) -> Result<Sandbox, Failure> {
        let limits = Limits {
            memory: self.memory,
            processes: self.processes,
            open_files: self.open_files,
            file_bytes: self.file_bytes,
            cpu_seconds: self.cpu_seconds,
            temporary_bytes: self.temporary_bytes,
        };
        let groups = self.control_group.map(|folder| ControlGroups {
            folder,
            memory: self.group_memory,
            processes: self.group_processes,
            cpu_thousandths: self.group_cpu,
        });
        let network = if self.network { Network::Allowed } else { Network::Denied };
        let is_shared = self.workspace.is_none();
        let workspace = root.filter(|root| is_shared && root.is_dir()).map(Path::to_owned);
        let readable = self.readable.into_iter().chain(folders).collect();
        let settings = Settings { level: self.sandbox, network, limits, groups, workspace, readable, hidden, user };
        Ok(Sandbox::new(settings)?)
    }
}

/// How programs of tools are confined, as the worker tells operators.
pub(crate) fn told(sandbox: &Sandbox, workspaces: Option<&Workspaces>) -> worker::SandboxReport {
    let level = sandbox.level();
    let workspace = workspaces.map(|workspaces| workspaces.sharing().name()).unwrap_or_default();
    let network = level == Level::None || sandbox.settings().network == Network::Allowed;
    let effective = worker::WorkerSandbox { level: level.to_string(), workspace: workspace.to_owned(), network };
    worker::SandboxReport { effective, gaps: sandbox.gaps().iter().map(ToString::to_string).collect() }
}

/// Logs how programs of tools are confined, and what this machine cannot give.
pub(crate) fn report(sandbox: &Sandbox, workspaces: Option<&Workspaces>) {
    let Settings { level: wanted, network, limits, groups, hidden, user, .. } = sandbox.settings();
    let level = sandbox.level();
    if *wanted == Wanted::Auto && level == Level::None {
        for gap in sandbox.gaps() {
            tracing::warn!(%gap, "programs of tools are not confined: this machine cannot give it");
        }
    }
    let processes = limits.processes;
    let memory = limits.memory;
    tracing::info!(%level, ?network, ?memory, processes, limits.file_bytes, "sandbox of programs that tools start");
    if let Some(workspaces) = workspaces {
        let sharing = workspaces.sharing().name();
        tracing::info!(sharing, "calls work in folders of their own below the root");
        if level == Level::None {
            tracing::warn!(sharing, "programs of tools can read the folders of other calls: they are not confined");
        }
    }
    match groups {
        Some(groups) => tracing::info!(?groups, "each program has a control group"),
        None => tracing::info!("programs have no control group: limits are those of single processes"),
    }
    if level == Level::None {
        sandbox::warn_of_gaps(hidden, *user);
    }
}
