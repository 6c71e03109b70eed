//! The files that an isolated program sees: the system's folders read-only, its workspace, and its own `/proc`, `/dev`
//! and `/tmp`. Everything else is absent.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change, mount_remount, unmount,
};

use super::domain::{DEVICES, SYSTEM};
use crate::sandbox::Rules;

/// Folders on which the new root can be mounted while it is made: one of them is on every machine.
const BASES: [&str; 4] = ["/tmp", "/run", "/var", "/usr"];
/// The files of the machine while the view is made.
const OLD: &str = "/.machine";

/// Makes the view but for the workspace. Call it as the first process of a process namespace.
pub(super) fn make(rules: &Rules) -> io::Result<()> {
    during("keeping mounts apart", enter_root())?;
    for path in SYSTEM {
        during(&format!("mounting {path}"), show(Path::new(path)))?;
    }
    for path in ["/proc", "/dev", "/tmp", "/var", "/run"] {
        fs::create_dir_all(path)?;
    }
    std::os::unix::fs::symlink("/tmp", "/var/tmp")?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    during("mounting /proc", mount("proc", "/proc", "proc", flags, None).map_err(Into::into))?;
    let size = rules.limits.temporary_bytes;
    during("mounting /tmp", temporary(Path::new("/tmp"), &format!("mode=1777,size={size}")))?;
    during("mounting /dev", devices(size))?;
    // They may lie below the folders above.
    for path in &rules.readable {
        during(&format!("mounting {}", path.display()), inside_machine(path).and_then(|path| show(&path)))?;
    }
    during("mounting the list of name servers", name_servers())
}

fn during(what: &str, result: io::Result<()>) -> io::Result<()> {
    result.map_err(|error| io::Error::new(error.kind(), format!("{what}: {error}")))
}

/// An empty root, with the files of the machine at [`OLD`].
fn enter_root() -> io::Result<()> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?;
    let base = BASES.iter().map(Path::new).find(|base| base.is_dir());
    let base = base.ok_or_else(|| io::Error::other(format!("there is none of the folders {BASES:?}")))?;
    temporary(base, "mode=755,size=4m")?;
    let old = base.join(&OLD[1..]);
    fs::create_dir(&old)?;
    nix::unistd::pivot_root(base, &old)?;
    std::env::set_current_dir("/")
}

/// Adds the folders that the program writes, and takes the rest of the machine's files away.
pub(super) fn finish(writable: &[&Path]) -> io::Result<()> {
    for path in writable {
        let path = inside_machine(path)?;
        make_place(&path, true)?;
        let mounted = mount_bind_recursive(on_machine(&path), &path);
        during(&format!("mounting {}", path.display()), mounted.map_err(Into::into))?;
    }
    unmount(OLD, UnmountFlags::DETACH)?;
    fs::remove_dir(OLD)?;
    Ok(mount_remount("/", MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV, c"")?)
}

fn on_machine(path: &Path) -> PathBuf {
    Path::new(OLD).join(path.strip_prefix("/").unwrap_or(path))
}

/// The path without links, as the machine resolves it. Links are absolute in the machine, not in this view, so each part
/// is resolved by itself.
fn inside_machine(path: &Path) -> io::Result<PathBuf> {
    const LINKS_MAX: usize = 40;
    let (mut resolved, mut links) = (PathBuf::from("/"), 0);
    let mut parts: Vec<PathBuf> = path.iter().rev().map(PathBuf::from).collect();
    while let Some(part) = parts.pop() {
        match part.to_str() {
            Some("/") => resolved = PathBuf::from("/"),
            Some("..") => drop(resolved.pop()),
            _ => match fs::read_link(on_machine(&resolved.join(&part))) {
                Ok(target) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(io::Error::other(format!("{} has too many links", path.display())));
                    }
                    parts.extend(target.iter().rev().map(PathBuf::from));
                }
                Err(_) => resolved.push(part),
            },
        }
    }
    Ok(resolved)
}

/// Shows a folder or file of the machine, read-only. What is not there is not shown.
fn show(path: &Path) -> io::Result<()> {
    let Ok(found) = fs::symlink_metadata(on_machine(path)) else { return Ok(()) };
    if found.is_symlink() {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        return std::os::unix::fs::symlink(fs::read_link(on_machine(path))?, path);
    }
    make_place(path, found.is_dir())?;
    mount_bind_recursive(on_machine(path), path)?;
    make_read_only(path)
}

/// A folder or file to mount on.
fn make_place(path: &Path, is_folder: bool) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    if is_folder {
        return fs::create_dir_all(path);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, "")
}

/// The mounts at and below a path, which the kernel only changes one by one. It lets nobody take the flags away that a
/// mount has.
fn make_read_only(path: &Path) -> io::Result<()> {
    let mounts = fs::read_to_string(on_machine(Path::new("/proc/self/mountinfo")))?;
    for line in mounts.lines() {
        let mut fields = line.split_ascii_whitespace().skip(4);
        let (Some(place), Some(options)) = (fields.next(), fields.next()) else { continue };
        let place = unescape(place);
        if Path::new(&place).starts_with(path) {
            let flags = options.split(',').fold(MountFlags::empty(), |flags, option| flags | flag(option));
            let flags = flags | MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID;
            mount_remount(&place, flags, c"")?;
        }
    }
    Ok(())
}

fn flag(option: &str) -> MountFlags {
    match option {
        "nosuid" => MountFlags::NOSUID,
        "nodev" => MountFlags::NODEV,
        "noexec" => MountFlags::NOEXEC,
        "noatime" => MountFlags::NOATIME,
        "nodiratime" => MountFlags::NODIRATIME,
        "relatime" => MountFlags::RELATIME,
        _ => MountFlags::empty(),
    }
}

/// Spaces and the like are written as octal numbers.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut whole = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                whole.push(char::from(byte));
                whole.push_str(&part[3..]);
            }
            None => whole.push_str(part),
        }
    }
    whole
}

fn temporary(path: &Path, options: &str) -> io::Result<()> {
    let options = CString::new(options)?;
    Ok(mount("tmpfs", path, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, options.as_c_str())?)
}

fn devices(shared_memory_bytes: u64) -> io::Result<()> {
    temporary(Path::new("/dev"), "mode=755,size=64k")?;
    for device in DEVICES {
        fs::write(device, "")?;
        mount_bind_recursive(on_machine(Path::new(device)), device)?;
    }
    let links = [("fd", "/proc/self/fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")];
    for (name, target) in links {
        std::os::unix::fs::symlink(target, Path::new("/dev").join(name))?;
    }
    fs::create_dir("/dev/shm")?;
    fs::set_permissions("/dev/shm", fs::Permissions::from_mode(0o1777))?;
    temporary(Path::new("/dev/shm"), &format!("mode=1777,size={shared_memory_bytes}"))
}

/// On some machines `/etc/resolv.conf` is a link to a file outside of the folders that are shown.
fn name_servers() -> io::Result<()> {
    let file = inside_machine(Path::new("/etc/resolv.conf"))?;
    if file.exists() || !on_machine(&file).exists() {
        return Ok(());
    }
    show(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_with_a_space_in_its_name_is_found() {
        assert_eq!(unescape("/mnt/a\\040b\\134c"), "/mnt/a b\\c");
        assert_eq!(unescape("/plain"), "/plain");
    }
}
