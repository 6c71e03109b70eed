//! The system calls that a confined program cannot use, as a seccomp filter.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare, SeccompCondition as Condition,
    SeccompFilter, SeccompRule as Rule, TargetArch, apply_filter,
};

use crate::level::{Level, Network};

/// Calls that no program needs for its work and that reach into other processes or the kernel. Each has a history of
/// flaws, or undoes another barrier.
const DENIED: [i64; 53] = [
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    // The kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_fanotify_init,
    libc::SYS_lookup_dcookie,
    libc::SYS_vhangup,
    libc::SYS_nfsservctl,
    // Keys of the kernel's keyrings, which are not counted to a namespace.
    libc::SYS_keyctl,
    libc::SYS_add_key,
    libc::SYS_request_key,
    // The machine's clock and names.
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
];

/// Calls that only this architecture has.
#[cfg(target_arch = "x86_64")]
const DENIED_HERE: [i64; 3] = [libc::SYS_iopl, libc::SYS_ioperm, libc::SYS_modify_ldt];
#[cfg(not(target_arch = "x86_64"))]
const DENIED_HERE: [i64; 0] = [];

/// The bit that turns a number into a call of the x32 interface, which the kernel may also serve.
#[cfg(target_arch = "x86_64")]
const OTHER_INTERFACE: Option<i64> = Some(0x4000_0000);
#[cfg(not(target_arch = "x86_64"))]
const OTHER_INTERFACE: Option<i64> = None;

/// Flags of `clone` that make a namespace.
const NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Requests of `ioctl` that type into a terminal.
const TYPING: [u64; 2] = [libc::TIOCSTI, 0x541c /* TIOCLINUX */];

/// The obsolete kind of a socket that reads all packets of an interface.
const SOCK_PACKET: i32 = 10;
/// The protocol with which programs list the network's interfaces.
const NETLINK_ROUTE: i32 = 0;

/// Binds this thread and all processes that it starts, for ever. Takes the right to gain privileges, too.
pub(super) fn enter(level: Level, network: Network) -> io::Result<()> {
    for program in programs(level, network).map_err(io::Error::other)? {
        apply_filter(&program).map_err(io::Error::other)?;
    }
    Ok(())
}

fn programs(level: Level, network: Network) -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let architecture = TargetArch::try_from(std::env::consts::ARCH)?;
    let mut denied: BTreeMap<i64, Vec<Rule>> =
        DENIED.into_iter().chain(DENIED_HERE).map(|call| (call, Vec::new())).collect();
    let with_flag = |flag: &i32| {
        let flag = u64::from(flag.unsigned_abs());
        Rule::new(vec![Condition::new(0, Length::Qword, Compare::MaskedEq(flag), flag)?])
    };
    denied.insert(libc::SYS_clone, NAMESPACES.iter().map(with_flag).collect::<Result<_, _>>()?);
    let typing = |request| Rule::new(vec![Condition::new(1, Length::Dword, Compare::Eq, request)?]);
    denied.insert(libc::SYS_ioctl, TYPING.into_iter().map(typing).collect::<Result<_, _>>()?);
    denied.insert(libc::SYS_socket, sockets(level, network)?);
    // Its flags are in memory, which a filter cannot read. Without it the C library uses `clone`.
    let absent = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let filter = |calls, errno| {
        let action = SeccompAction::Errno(u32::try_from(errno).unwrap_or_default());
        SeccompFilter::new(with_other_interface(calls), SeccompAction::Allow, action, architecture)?.try_into()
    };
    Ok([filter(absent, libc::ENOSYS)?, filter(denied, libc::EPERM)?])
}

fn with_other_interface(calls: BTreeMap<i64, Vec<Rule>>) -> BTreeMap<i64, Vec<Rule>> {
    let others: Vec<_> = OTHER_INTERFACE
        .into_iter()
        .flat_map(|bit| calls.iter().map(move |(call, rules)| (call | bit, rules.clone())))
        .collect();
    calls.into_iter().chain(others).collect()
}

/// The sockets that are denied. No rule: all of them.
fn sockets(level: Level, network: Network) -> Result<Vec<Rule>, seccompiler::BackendError> {
    let is = |argument, compare, value: i32| {
        Condition::new(argument, Length::Dword, compare, u64::from(value.unsigned_abs()))
    };
    let mut families = vec![libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    match (level, network) {
        // A socket of another program may lie in any folder, and the file's rights alone keep a program from it.
        (Level::None | Level::Confined, Network::Denied) => return Ok(Vec::new()),
        // In a network of its own.
        (Level::Isolated, Network::Denied) => {}
        (_, Network::Allowed) => families.push(libc::AF_NETLINK),
    }
    let other = families.iter().map(|family| is(0, Compare::Ne, *family)).collect::<Result<_, _>>()?;
    let raw = |kind| Rule::new(vec![is(1, Compare::MaskedEq(0xf), kind)?, is(0, Compare::Ne, libc::AF_NETLINK)?]);
    let netlink = vec![is(0, Compare::Eq, libc::AF_NETLINK)?, is(2, Compare::Ne, NETLINK_ROUTE)?];
    Ok(vec![Rule::new(other)?, raw(libc::SOCK_RAW)?, raw(SOCK_PACKET)?, Rule::new(netlink)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_can_be_made_for_every_level_and_stays_small() {
        for level in [Level::Confined, Level::Isolated] {
            for network in [Network::Denied, Network::Allowed] {
                let programs = programs(level, network).unwrap();
                assert!(programs.iter().all(|program| (3..1000).contains(&program.len())));
            }
        }
    }

    #[test]
    fn a_filter_binds_the_thread_that_enters_it() {
        let entered = std::thread::spawn(|| {
            enter(Level::Confined, Network::Denied).unwrap();
            let denied = std::net::UdpSocket::bind("127.0.0.1:0").unwrap_err();
            assert_eq!(denied.kind(), io::ErrorKind::PermissionDenied);
            assert!(std::os::unix::net::UnixStream::pair().is_ok());
        });
        entered.join().unwrap();
        assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_ok());
    }
}
