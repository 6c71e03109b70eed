//! Control groups (version 2): limits of all processes of a program together.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The microseconds over which processor time is counted.
const CPU_PERIOD_US: u64 = 100_000;

/// Groups that this process made: their names are different.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A control group in which each program gets one of its own, and the limits of each.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ControlGroups {
    /// A group that the worker may write and that has no process of its own.
    pub folder: PathBuf,
    /// Bytes of memory of a program (`memory.max`), without swap.
    pub memory: Option<u64>,
    /// Processes and threads of a program (`pids.max`).
    pub processes: Option<u64>,
    /// Thousandths of a processor of a program (`cpu.max`).
    pub cpu_thousandths: Option<u64>,
}

/// The control group cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ControlGroupError {
    #[error("{} is not a control group of version 2: it has no readable cgroup.controllers ({source})", folder.display())]
    Unreadable { folder: PathBuf, source: io::Error },
    #[error(
        "the control group {} has no controller {controller:?}, only {available:?}: enable it in the \
         cgroup.subtree_control of the group above",
        folder.display()
    )]
    Controller { folder: PathBuf, controller: &'static str, available: String },
    #[error(
        "groups cannot be made in the control group {} ({source}): the worker needs the right to write it, and no \
         process may be in it (systemd: Delegate=yes and DelegateSubgroup=worker)",
        folder.display()
    )]
    Unwritable { folder: PathBuf, source: io::Error },
}

/// Makes groups.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limits: ControlGroups,
    /// Groups that could not be removed yet, because a process in them was just ending.
    ending: Mutex<Vec<PathBuf>>,
}

impl Groups {
    /// Enables the controllers that the limits need.
    pub(crate) fn open(limits: &ControlGroups) -> Result<Self, ControlGroupError> {
        let folder = limits.folder.clone();
        let available = fs::read_to_string(folder.join("cgroup.controllers"));
        let available = available.map_err(|source| ControlGroupError::Unreadable { folder: folder.clone(), source })?;
        let needed = [
            ("memory", limits.memory.is_some()),
            ("pids", limits.processes.is_some()),
            ("cpu", limits.cpu_thousandths.is_some()),
        ];
        for (controller, _) in needed.into_iter().filter(|(_, is_needed)| *is_needed) {
            if !available.split_ascii_whitespace().any(|name| name == controller) {
                let available = available.trim().to_owned();
                return Err(ControlGroupError::Controller { folder, controller, available });
            }
            fs::write(folder.join("cgroup.subtree_control"), format!("+{controller}"))
                .map_err(|source| ControlGroupError::Unwritable { folder: folder.clone(), source })?;
        }
        let groups =
            Self { inner: Arc::new(Inner { limits: limits.clone(), ending: Mutex::new(remains(&limits.folder)) }) };
        // Whether it can be done is found out now, not by the first program.
        groups.make().map_err(|source| ControlGroupError::Unwritable { folder, source })?;
        Ok(groups)
    }

    /// A group for one program. Call it again for the next one.
    pub(crate) fn make(&self) -> io::Result<Group> {
        self.sweep();
        let limits = &self.inner.limits;
        let name = format!("toolyard-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let folder = limits.folder.join(name);
        fs::create_dir(&folder)?;
        let group = Group { folder, groups: self.clone() };
        if let Some(bytes) = limits.memory {
            group.write("memory.max", &bytes.to_string())?;
            // Not every kernel counts swap.
            drop(group.write("memory.swap.max", "0"));
        }
        if let Some(processes) = limits.processes {
            group.write("pids.max", &processes.to_string())?;
        }
        if let Some(thousandths) = limits.cpu_thousandths {
            let quota = thousandths.saturating_mul(CPU_PERIOD_US) / 1000;
            group.write("cpu.max", &format!("{quota} {CPU_PERIOD_US}"))?;
        }
        Ok(group)
    }

    /// Removes what can be removed by now.
    fn sweep(&self) {
        let mut ending = self.inner.ending.lock().unwrap_or_else(PoisonError::into_inner);
        ending.retain(|folder| fs::remove_dir(folder).is_err());
    }
}

/// The control group of one program. When it is dropped, everything in it is killed and it is removed.
#[derive(Debug)]
pub(crate) struct Group {
    folder: PathBuf,
    groups: Groups,
}

impl Group {
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn write(&self, file: &str, value: &str) -> io::Result<()> {
        let path: &Path = &self.folder.join(file);
        fs::write(path, value).map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // An older kernel has no such file; the guard has ended everything then.
        drop(self.write("cgroup.kill", "1"));
        if fs::remove_dir(&self.folder).is_err() {
            let mut ending = self.groups.inner.ending.lock().unwrap_or_else(PoisonError::into_inner);
            ending.push(self.folder.clone());
        }
    }
}

/// Groups of workers that were killed. Those of a worker that lives may be empty because they were just made.
fn remains(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let is_dead = |name: &str| {
        let process = name.strip_prefix("toolyard-").and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists())
    };
    entries.filter(|entry| is_dead(&entry.file_name().to_string_lossy())).map(|entry| entry.path()).collect()
}

/// Moves this process into a group. All that it starts from then on is in it, too.
pub(crate) fn enter(folder: &Path) -> io::Result<()> {
    let file = folder.join("cgroup.procs");
    fs::write(&file, "0").map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with the files of a control group, which keeps what is written.
    fn group(controllers: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("cgroup.controllers"), controllers).unwrap();
        folder
    }

    fn limits(folder: &Path) -> ControlGroups {
        let folder = folder.to_owned();
        ControlGroups { folder, memory: Some(1 << 30), processes: Some(100), cpu_thousandths: Some(1500) }
    }

    #[test]
    fn each_program_has_a_group_with_the_limits() {
        let folder = group("cpu memory pids\n");
        let group = Groups::open(&limits(folder.path())).unwrap().make().unwrap();
        enter(group.folder()).unwrap();
        let read = |file| fs::read_to_string(group.folder.join(file)).unwrap();
        assert_eq!((read("memory.max").as_str(), read("memory.swap.max").as_str()), ("1073741824", "0"));
        assert_eq!((read("pids.max").as_str(), read("cpu.max").as_str()), ("100", "150000 100000"));
        assert_eq!(read("cgroup.procs"), "0");
        assert_eq!(fs::read_to_string(folder.path().join("cgroup.subtree_control")).unwrap(), "+cpu");
    }

    #[test]
    fn groups_of_dead_workers_are_removed_and_those_of_others_stay() {
        let folder = group("cpu memory pids");
        let own = format!("toolyard-{}-99", std::process::id());
        for name in ["toolyard-4194305-0", own.as_str(), "other"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        Groups::open(&ControlGroups { folder: folder.path().to_owned(), ..ControlGroups::default() }).unwrap();
        let is_there = |name: &str| folder.path().join(name).exists();
        assert!(!is_there("toolyard-4194305-0") && is_there(&own) && is_there("other"));
    }

    #[test]
    fn a_group_without_a_controller_is_refused_by_name() {
        let folder = group("cpu pids");
        let error = Groups::open(&limits(folder.path())).unwrap_err().to_string();
        assert!(error.contains("\"memory\"") && error.contains("\"cpu pids\""), "{error}");
        let nothing = tempfile::tempdir().unwrap();
        let error = Groups::open(&limits(nothing.path())).unwrap_err();
        assert!(matches!(error, ControlGroupError::Unreadable { .. }), "{error}");
    }
}
