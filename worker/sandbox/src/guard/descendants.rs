//! Everything that a program started, as a guard finds it.

#[cfg(target_os = "linux")]
pub(super) use linux::{signal, signal_group};

/// Whether a guard sees everything that its program started, wherever that went.
pub(super) const SEES_ALL: bool = cfg!(target_os = "linux");

/// Signals the process group of the program: other systems show no more.
#[cfg(not(target_os = "linux"))]
pub(super) fn signal(program: rustix::process::Pid, signal: rustix::process::Signal) {
    // When it fails the group is gone.
    drop(rustix::process::kill_process_group(program, signal));
}

#[cfg(not(target_os = "linux"))]
pub(super) use signal as signal_group;

#[cfg(target_os = "linux")]
mod linux {
    use std::collections::HashMap;

    use rustix::process::{Pid, PidfdFlags, Signal, getpid, kill_process, pidfd_open, pidfd_send_signal};

    /// A process as the system lists it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Listed {
        pid: Pid,
        parent: i32,
        /// Its process group.
        group: i32,
        /// When it began. This distinguishes it from a later process with the same id.
        began: u64,
    }

    /// Signals all descendants of this process that live now. One that is begun meanwhile is missed: call it again.
    pub(in super::super) fn signal(_program: Pid, signal: Signal) {
        signal_those(signal, |_| true);
    }

    /// Signals the descendants of this process that are in the process group of the program. The group's number alone
    /// may have come to mean another group.
    pub(in super::super) fn signal_group(program: Pid, signal: Signal) {
        signal_those(signal, |listed| listed.group == program.as_raw_nonzero().get());
    }

    fn signal_those(signal: Signal, is_meant: impl Fn(&Listed) -> bool) {
        let mut children: HashMap<i32, Vec<Listed>> = HashMap::new();
        for listed in processes() {
            children.entry(listed.parent).or_default().push(listed);
        }
        // Parents first, so that a process that was killed is not started again.
        let mut parents = vec![getpid().as_raw_nonzero().get()];
        while let Some(parent) = parents.pop() {
            for child in children.remove(&parent).unwrap_or_default() {
                parents.push(child.pid.as_raw_nonzero().get());
                if is_meant(&child) {
                    send(child, signal);
                }
            }
        }
    }

    fn send(listed: Listed, signal: Signal) {
        // A process that cannot be signalled has ended.
        match pidfd_open(listed.pid, PidfdFlags::empty()) {
            // Held open, the number cannot come to mean another process.
            Ok(process) if look_up(listed.pid) == Some(listed.began) => drop(pidfd_send_signal(process, signal)),
            Ok(_) => {}
            Err(rustix::io::Errno::NOSYS) => drop(kill_process(listed.pid, signal)),
            Err(_) => {}
        }
    }

    fn look_up(pid: Pid) -> Option<u64> {
        read(pid.as_raw_nonzero().get()).map(|listed| listed.began)
    }

    fn processes() -> impl Iterator<Item = Listed> {
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries.filter_map(|entry| read(entry.file_name().to_str()?.parse().ok()?))
    }

    fn read(pid: i32) -> Option<Listed> {
        let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
        parse(pid, &String::from_utf8_lossy(&stat))
    }

    /// The name stands in parentheses and may hold some itself; behind it come state, parent, group and, as the
    /// 20th, the beginning.
    fn parse(pid: i32, stat: &str) -> Option<Listed> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let parent = fields.nth(1)?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        Some(Listed { pid: Pid::from_raw(pid)?, parent, group, began: fields.nth(16)?.parse().ok()? })
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn a_name_with_parentheses_and_spaces_does_not_hide_the_parent() {
            let stat = "42 (a) 7 (b c) S 17 41 42 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 10 11";
            let listed = parse(42, stat).unwrap();
            assert_eq!((listed.parent, listed.group, listed.began), (17, 41, 98765));
        }

        #[test]
        fn this_process_is_listed_with_its_parent() {
            let own = read(getpid().as_raw_nonzero().get()).unwrap();
            let parent = rustix::process::getppid().unwrap();
            assert_eq!(own.parent, parent.as_raw_nonzero().get());
            assert!(processes().any(|listed| listed == own));
        }
    }
}
