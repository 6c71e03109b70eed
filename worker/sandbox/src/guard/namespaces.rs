//! Namespaces of its own for a program: no other processes, mounts, network interfaces or IPC objects are in them.

use std::fs;
use std::io;

use nix::sched::{CloneFlags, unshare};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socket_with};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
    set_capabilities,
};
use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::User;
use crate::level::Network;

/// Changes to the user of the program, for good. The process must have one thread.
pub(super) fn become_user(user: Option<User>) -> io::Result<()> {
    if let Some(User { uid, gid }) = user {
        set_thread_groups(&[])?;
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    Ok(())
}

/// A user namespace, in which this process has all rights over the namespaces that it makes there, and none outside.
/// The user keeps its number. The process must have one thread.
pub(super) fn enter_user() -> io::Result<()> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // Otherwise root would own the files of this process in /proc.
    set_dumpable_behavior(DumpableBehavior::Dumpable)?;
    unshare(CloneFlags::CLONE_NEWUSER)?;
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    fs::write("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    pass_rights_on()
}

/// A program that is not root's loses all rights when it starts, unless they are ambient: the first process of the
/// namespaces needs them.
fn pass_rights_on() -> io::Result<()> {
    let rights = capabilities(None)?;
    set_capabilities(None, CapabilitySets { inheritable: rights.permitted, ..rights })?;
    for right in rights.permitted.iter() {
        configure_capability_in_ambient_set(right, true)?;
    }
    Ok(())
}

/// The program gets none of the rights that the first process of its namespaces has, unless it is root's.
pub(super) fn keep_rights_back() -> io::Result<()> {
    clear_ambient_capability_set()?;
    let rights = capabilities(None)?;
    Ok(set_capabilities(None, CapabilitySets { inheritable: CapabilitySet::empty(), ..rights })?)
}

/// The other namespaces by their names. Processes that this process starts from now on are in the new one for
/// processes, in which the first has the number 1.
pub(super) const OTHERS: [(CloneFlags, &str); 6] = [
    (CloneFlags::CLONE_NEWNS, "mount"),
    (CloneFlags::CLONE_NEWPID, "process"),
    (CloneFlags::CLONE_NEWIPC, "IPC"),
    (CloneFlags::CLONE_NEWUTS, "host name"),
    (CloneFlags::CLONE_NEWCGROUP, "cgroup"),
    (CloneFlags::CLONE_NEWNET, "network"),
];

pub(super) fn enter_others(network: Network) -> io::Result<()> {
    let wanted = OTHERS.iter().map(|(flag, _)| *flag);
    let wanted = wanted.filter(|flag| network == Network::Denied || *flag != CloneFlags::CLONE_NEWNET);
    unshare(wanted.collect())?;
    nix::unistd::sethostname("toolyard")?;
    if network == Network::Denied {
        start_loopback()?;
    }
    Ok(())
}

/// A request of rtnetlink: sets the flag `IFF_UP` of the interface 1, which is the loopback of a new namespace.
fn start_loopback() -> io::Result<()> {
    const LENGTH: u32 = 32;
    const RTM_NEWLINK: u16 = 16;
    const NLM_F_REQUEST: u16 = 1;
    const IFF_UP: u32 = 1;
    let mut message = Vec::with_capacity(32);
    // The header: length, type, flags, sequence number, port.
    message.extend(LENGTH.to_ne_bytes());
    message.extend(RTM_NEWLINK.to_ne_bytes());
    message.extend(NLM_F_REQUEST.to_ne_bytes());
    message.extend([0; 8]);
    // The interface: family and kind, its number, its flags, and which of them to change.
    message.extend([0; 4]);
    message.extend(1_i32.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    message.extend(IFF_UP.to_ne_bytes());
    // The protocol of routes has the number 0.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    send(&socket, &message, SendFlags::empty())?;
    Ok(())
}
