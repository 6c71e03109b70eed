//! How strongly programs are confined, and how much they may use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How strongly programs are confined. A later level has everything of the earlier ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A guard, limits and hidden files. A program reads and writes whatever its user may.
    #[default]
    None,
    /// Landlock and seccomp: a program reads the system and its workspace, writes its workspace and a temporary folder
    /// of its own, has no network unless allowed, and cannot use dangerous system calls.
    Confined,
    /// Everything of `Confined`, in namespaces of its own: a program sees no other processes, files, network interfaces
    /// or IPC objects than those it is given.
    Isolated,
}

/// The level that a worker asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// `Confined` if the machine can give all of it, else `Isolated`, else `None`.
    Auto,
    /// This level or none at all: a machine that cannot give it is refused.
    Exactly(Level),
}

/// Whether programs reach a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// No network. In `Isolated` a loopback interface of their own. Has no effect on `Level::None`.
    #[default]
    Denied,
    /// The network of the machine, its loopback interface included.
    Allowed,
}

/// How much a program may use. The kernel enforces these through rlimits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of private memory of one process (`RLIMIT_DATA`).
    pub memory: Option<u64>,
    /// Processes and threads: in `Isolated` of the program alone, else of its user, beyond those that the machine has
    /// when the program starts. The kernel does not hold root to it.
    pub processes: u64,
    /// Open files of one process.
    pub open_files: Option<u64>,
    /// Bytes of one file that the program writes.
    pub file_bytes: u64,
    /// Seconds of processor time of one process.
    pub cpu_seconds: Option<u64>,
    /// Bytes of the temporary folder of a program in `Isolated`.
    pub temporary_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: None,
            // A large build has some hundred; a fork bomb ends here.
            processes: 4096,
            open_files: None,
            // More than a container image, less than a disk.
            file_bytes: 16 * 1024 * 1024 * 1024,
            cpu_seconds: None,
            temporary_bytes: 1024 * 1024 * 1024,
        }
    }
}

impl Level {
    const NAMES: [(Self, &'static str); 3] =
        [(Self::None, "none"), (Self::Confined, "confined"), (Self::Isolated, "isolated")];
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(level, _)| level == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

impl Wanted {
    /// The names that `from_str` takes.
    pub const NAMES: [&'static str; 4] = ["auto", "none", "confined", "isolated"];
}

impl Default for Wanted {
    fn default() -> Self {
        Self::Exactly(Level::None)
    }
}

impl FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let found = Level::NAMES.into_iter().find(|(_, name)| *name == text);
        let level = found.ok_or_else(|| format!("{text:?} is not one of {}", Self::NAMES.join(", ")))?;
        Ok(Self::Exactly(level.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_known_by_its_name_and_levels_are_ordered() {
        for name in Wanted::NAMES {
            let wanted: Wanted = name.parse().unwrap();
            assert!(matches!(wanted, Wanted::Auto) || wanted == Wanted::Exactly(Level::None) || name.len() == 8);
        }
        assert_eq!("isolated".parse(), Ok(Wanted::Exactly(Level::Isolated)));
        assert!("strict".parse::<Wanted>().unwrap_err().contains("confined"));
        assert!(Level::None < Level::Confined && Level::Confined < Level::Isolated);
        assert_eq!(Level::Confined.to_string(), "confined");
    }
}
