//! A Landlock domain: what enters it, and everything that it starts, has fewer rights from then on, root too.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible as _, LandlockStatus, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capability_is_in_bounding_set, remove_capability_from_bounding_set, set_capabilities,
};

use super::Isolation;
use crate::level::{Level, Network};
use crate::sandbox::Rules;

/// The capabilities that root keeps in a program: enough to install packages, but none to look into other processes,
/// to mount, or to change the kernel.
const RIGHTS_OF_ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT);

/// The rights that are removed for hidden files and kept for all others. Later versions add rights over devices,
/// which unconfined programs need unchanged.
const RIGHTS: ABI = ABI::V3;
/// All rights over files that the kernel knows: a confined program has none that it is not given.
const ALL_RIGHTS: ABI = ABI::V10;

/// The folders of the system that confined programs read, and whose programs they start. In `/proc` the kernel checks
/// each process for itself.
pub(super) const SYSTEM: [&str; 12] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/opt", "/nix", "/gnu", "/snap"];
/// The devices that confined programs use.
pub(super) const DEVICES: [&str; 5] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"];
/// Where the name servers are listed on a machine with systemd: `/etc/resolv.conf` is a link to it.
const NAME_SERVERS: &str = "/run/systemd/resolve";

pub(super) fn probe() -> Isolation {
    let scoped = Ruleset::default().set_compatibility(CompatLevel::BestEffort).scope(Scope::Signal);
    let entered = scoped.and_then(|ruleset| ruleset.handle_access(AccessFs::ReadFile)?.create()?.restrict_self());
    match entered {
        Ok(status) => {
            let version = match status.landlock {
                LandlockStatus::Available { effective_abi, .. } => Some(effective_abi),
                _ => None,
            };
            Isolation {
                files: version.is_some() && status.ruleset != RulesetStatus::NotEnforced,
                whole_files: version.is_some_and(|version| version >= RIGHTS),
                signals: status.ruleset == RulesetStatus::FullyEnforced,
            }
        }
        Err(_) => Isolation::default(),
    }
}

/// The paths of one program.
#[derive(Debug)]
pub(super) struct Paths<'a> {
    pub(super) writable: Vec<&'a Path>,
}

pub(super) fn enter(rules: &Rules, paths: &Paths<'_>) -> io::Result<()> {
    match rules.level {
        Level::None => hide(&rules.hidden),
        Level::Confined | Level::Isolated => confine(rules, paths),
    }
    .map_err(io::Error::other)
}

/// Binds the thread and processes that it starts. A program that root starts has the capabilities of the bounding
/// set.
pub(super) fn drop_rights_of_root() -> io::Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let mut kept = CapabilitySet::empty();
    for number in 0..u64::BITS {
        let right = CapabilitySet::from_bits_retain(1 << number);
        match capability_is_in_bounding_set(right) {
            Ok(true) if RIGHTS_OF_ROOT.contains(right) => kept |= right,
            Ok(true) => remove_capability_from_bounding_set(right)?,
            Ok(false) => {}
            // The kernel knows no further ones.
            Err(_) => break,
        }
    }
    // It may have had fewer.
    let kept = kept & rustix::thread::capabilities(None)?.permitted;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    Ok(set_capabilities(None, sets)?)
}

/// A program reads the system and writes its own folders, and nothing else.
fn confine(rules: &Rules, paths: &Paths<'_>) -> Result<(), RulesetError> {
    let all = AccessFs::from_all(ALL_RIGHTS);
    let read: BitFlags<AccessFs> = AccessFs::Execute | AccessFs::ReadFile | AccessFs::ReadDir;
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(all)?;
    ruleset = ruleset.scope(Scope::Signal | Scope::AbstractUnixSocket)?;
    // A network of its own has nothing that must be denied.
    if rules.network == Network::Denied && rules.level == Level::Confined {
        ruleset = ruleset.handle_access(AccessNet::BindTcp | AccessNet::ConnectTcp)?;
    }
    let readable = SYSTEM.iter().map(Path::new).chain([Path::new("/proc"), Path::new(NAME_SERVERS)]);
    let readable = readable.chain(rules.readable.iter().map(PathBuf::as_path));
    let closed = closed(&rules.hidden);
    let (readable, ways) = open(readable, &closed);
    let (writable, more_ways) = open(paths.writable.iter().copied(), &closed);
    let mut created = ruleset.create()?;
    created = created.add_rules(path_beneath_rules(readable, read))?;
    created = created.add_rules(path_beneath_rules(ways.into_iter().chain(more_ways), AccessFs::ReadDir))?;
    let device = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    created = created.add_rules(path_beneath_rules(DEVICES, device))?;
    if rules.level == Level::Isolated {
        // Nothing is there but what it may see, and the folder for shared memory is its own.
        created = created.add_rules(path_beneath_rules(["/"], AccessFs::ReadDir))?;
        created = created.add_rules(path_beneath_rules(["/dev/shm"], all))?;
    }
    created.add_rules(path_beneath_rules(writable, all))?.restrict_self()?;
    Ok(())
}

/// As far as the kernel can. It also takes the right to gain new ones, as by `sudo`. There is always a domain if the
/// kernel has Landlock, because any domain keeps programs from looking into processes outside of it.
fn hide(hidden: &[PathBuf]) -> Result<(), RulesetError> {
    let scoped = || Ruleset::default().set_compatibility(CompatLevel::BestEffort).scope(Scope::Signal);
    if hidden.is_empty() && scoped()?.create()?.restrict_self()?.ruleset != RulesetStatus::NotEnforced {
        return Ok(());
    }
    // Before Linux 6.12 only rights over files make a domain. They are not the first choice if nothing is hidden,
    // because a domain with such rights also denies mounts, even in a user namespace of the program.
    let all = AccessFs::from_all(RIGHTS);
    let (open, ways) = open([Path::new("/")], &closed(hidden));
    let ruleset = scoped()?.handle_access(all)?.create()?;
    let ruleset = ruleset.add_rules(path_beneath_rules(open, all))?;
    ruleset.add_rules(path_beneath_rules(ways, AccessFs::ReadDir))?.restrict_self()?;
    Ok(())
}

/// Both the paths and their targets, because a mounted secret is a link.
fn closed(hidden: &[PathBuf]) -> BTreeSet<PathBuf> {
    hidden.iter().flat_map(|file| [std::path::absolute(file).ok(), file.canonicalize().ok()]).flatten().collect()
}

/// Rules can only give. So below each root everything beside the way to a hidden file is opened, and the folders on the
/// way can be listed. Keys (`.nk`) that lie beside the way are hidden too.
fn open<'a>(
    roots: impl IntoIterator<Item = &'a Path>,
    closed: &BTreeSet<PathBuf>,
) -> (Vec<PathBuf>, BTreeSet<PathBuf>) {
    let ways: BTreeSet<&Path> = closed.iter().flat_map(|file| file.ancestors().skip(1)).collect();
    let (mut open, mut on_the_way) = (Vec::new(), BTreeSet::new());
    let mut roots: Vec<PathBuf> = roots.into_iter().filter_map(|root| root.canonicalize().ok()).collect();
    while let Some(root) = roots.pop() {
        if closed.contains(&root) || on_the_way.contains(&root) {
            continue;
        }
        if !ways.contains(root.as_path()) {
            open.push(root);
            continue;
        }
        for entry in root.read_dir().into_iter().flatten().flatten() {
            // The target of a link is opened or hidden at its own path.
            let is_link = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            let is_key = entry.path().extension().is_some_and(|kind| kind == "nk");
            if !is_link && !is_key {
                roots.push(entry.path());
            }
        }
        on_the_way.insert(root);
    }
    (open, on_the_way)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn everything_is_open_but_hidden_files_other_keys_and_links() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        fs::create_dir_all(folder.join("etc/keys")).unwrap();
        for file in ["etc/keys/pool.nk", "etc/keys/other.nk", "etc/keys/ca.pem", "etc/hosts", "work"] {
            fs::write(folder.join(file), "").unwrap();
        }
        std::os::unix::fs::symlink("etc/keys/pool.nk", folder.join("link")).unwrap();
        for root in [Path::new("/"), &folder] {
            let (open, ways) = open([root], &closed(&[folder.join("etc/keys/pool.nk")]));
            let inside: BTreeSet<_> =
                open.iter().filter_map(|path| path.strip_prefix(&folder).ok()?.to_str()).collect();
            assert_eq!(inside, BTreeSet::from(["etc/hosts", "etc/keys/ca.pem", "work"]));
            assert!(ways.contains(&folder.join("etc/keys")) && ways.contains(root));
        }
    }

    #[test]
    fn a_root_without_hidden_files_is_open_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        assert_eq!(open([root.as_path()], &closed(&["/elsewhere/key".into()])), (vec![root], BTreeSet::new()));
    }
}
