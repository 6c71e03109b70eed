//! Names and numbers, parsed once at the edge. Inside, an id is never a `String` and a count never a bare integer.

use std::fmt::{self, Write as _};
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::limit::{CALL_ID_BYTES_MAX, CALLER_BYTES_MAX, TOKEN_BYTES_MAX, TOOL_NAME_BYTES_MAX};

/// Why a text is not the id it should be. Carries the text (shortened) so that a caller can be told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{kind} {text:?} is malformed: {expected}")]
pub struct InvalidId {
    /// What kind of id was expected, in words.
    pub kind: &'static str,
    /// The offending text, at most 64 characters of it.
    pub text: String,
    /// What it should look like.
    pub expected: &'static str,
}

impl InvalidId {
    pub(crate) fn new(kind: &'static str, text: &str, expected: &'static str) -> Self {
        Self { kind, text: text.chars().take(64).collect(), expected }
    }
}

/// Milliseconds since the Unix epoch. In a fold it is always the log's time, which the broker gives: one clock for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct Timestamp(pub u64);

impl Timestamp {
    #[must_use]
    pub fn after(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
    }

    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to this moment; zero when `earlier` is the later one.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// A part of the log: a stream of its own at the broker, with the runs of its own shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(u8);

impl Partition {
    /// Every deployment has it.
    pub const FIRST: Self = Self(0);
    /// The most partitions of one log: the number of a shard is one byte.
    pub const MAX: usize = 16;
    /// The shards of each. It is fixed for the life of a log, because run ids contain their shard.
    pub const SHARDS: u8 = 16;

    /// The first `count` partitions, at most [`Self::MAX`].
    pub fn first(count: usize) -> impl Iterator<Item = Self> + Clone {
        (0..16).map(Self).take(count)
    }

    /// Its number, from 0.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::from(self.0)
    }

    /// Its shards, in ascending order.
    pub fn shards(self) -> impl Iterator<Item = Shard> + Clone {
        (0..Self::SHARDS).map(move |place| Shard(self.0 * Self::SHARDS + place))
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A fixed slice of all runs, owned by one coordinator at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shard(pub u8);

impl Shard {
    /// The partition whose stream has its runs.
    #[must_use]
    pub fn partition(self) -> Partition {
        Partition(self.0 / Partition::SHARDS)
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without what `{:02x}` brings: it stands in the subject of every entry, twice.
        for digit in [self.0 >> 4, self.0 & 15] {
            f.write_char(char::from_digit(digit.into(), 16).unwrap_or_default())?;
        }
        Ok(())
    }
}

impl FromStr for Shard {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let canonical = text.len() == 2 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        canonical
            .then(|| u8::from_str_radix(text, 16).ok())
            .flatten()
            .map(Self)
            .ok_or_else(|| InvalidId::new("shard", text, "two lower-case hexadecimal digits"))
    }
}

/// The id of a run: its shard and a version 7 uuid, so that ids sort by time and a run is found without a directory.
/// Written `run_<shard>_<uuid>`, for example `run_0b_0193…`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunId {
    shard: Shard,
    uuid: Uuid,
}

impl RunId {
    const EXPECTED: &'static str = "run_ followed by two hexadecimal digits, _ and a version 7 uuid without dashes";

    /// # Panics
    /// When `uuid` is not of version 7: the caller makes it, so this is a bug and not input.
    #[must_use]
    pub fn new(shard: Shard, uuid: Uuid) -> Self {
        assert_eq!(uuid.get_version_num(), 7, "a run id is made of a version 7 uuid");
        Self { shard, uuid }
    }

    #[must_use]
    pub fn shard(&self) -> Shard {
        self.shard
    }

    /// What sorts by time: the id without its shard.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        self.uuid
    }

    /// When the id was made, by the broker's clock as its maker knew it.
    #[must_use]
    pub fn created_at(&self) -> Timestamp {
        let bytes = self.uuid.as_bytes();
        Timestamp(bytes[..6].iter().fold(0, |ms, byte| ms << 8 | u64::from(*byte)))
    }
}

/// A cheap hash, because every log entry is looked up by it several times.
impl Hash for RunId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.uuid.as_u128());
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("run_")?;
        self.shard.fmt(f)?;
        f.write_str("_")?;
        f.write_str(self.uuid.simple().encode_lower(&mut Uuid::encode_buffer()))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for RunId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let invalid = || InvalidId::new("run id", text, Self::EXPECTED);
        let rest = text.strip_prefix("run_").ok_or_else(invalid)?;
        let (shard, uuid) = rest.split_once('_').ok_or_else(invalid)?;
        let shard = shard.parse().map_err(|_| invalid())?;
        let canonical = uuid.len() == 32 && uuid.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let uuid = canonical.then(|| Uuid::try_parse(uuid).ok()).flatten().ok_or_else(invalid)?;
        if uuid.get_version_num() != 7 {
            return Err(invalid());
        }
        Ok(Self { shard, uuid })
    }
}

/// A name that is one token of a subject, or a name that a model may use; `$allowed` says which bytes.
macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $expected:literal, $max:expr, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(Box<str>);

        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let allowed: fn(char) -> bool = $allowed;
                if text.is_empty() || text.len() > $max || !text.chars().all(allowed) {
                    return Err(InvalidId::new($kind, text, $expected));
                }
                Ok(Self(text.into()))
            }
        }
    };
}

name!(
    /// The client's id of a call: kept and returned, never interpreted. Unique within its run.
    CallId, "call id", "1 to 128 bytes without control characters", CALL_ID_BYTES_MAX, |c| !c.is_control()
);
name!(
    /// The caller's id of a request: requests with the same id make one run.
    RequestId, "request id", "1 to 128 bytes without control characters", CALL_ID_BYTES_MAX, |c| !c.is_control()
);
name!(
    /// The name by which a model calls a tool.
    ToolName, "tool name", "1 to 128 of A-Z a-z 0-9 _ . -", TOOL_NAME_BYTES_MAX,
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
);
name!(
    /// Workers that share a queue: a deployment that hosts the same tools.
    PoolId, "pool name", "1 to 64 of A-Z a-z 0-9 _ -", TOKEN_BYTES_MAX,
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
);
name!(
    /// A hash of the manifests that a worker hosts: the same manifests have the same id.
    ToolSetId, "tool set", "1 to 64 of A-Z a-z 0-9 _ -", TOKEN_BYTES_MAX,
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
);
name!(
    /// The tenant of a run: given by its caller, or fixed by the caller's key.
    TenantId, "tenant", "1 to 64 of A-Z a-z 0-9 _ -", TOKEN_BYTES_MAX,
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
);
name!(
    /// The caller of a run, if callers are configured: its configured name, and after a slash the subject of its token.
    CallerName, "caller", "1 to 640 bytes without control characters", CALLER_BYTES_MAX, |c| !c.is_control()
);
name!(
    /// One worker process, from its start to its end.
    WorkerId, "worker id", "1 to 64 of A-Z a-z 0-9 _ -", TOKEN_BYTES_MAX,
    |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
);

/// A call's position in the order in which its run's calls were asked for, from 0. It is the call's token in subjects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CallIndex(pub u16);

impl CallIndex {
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::from(self.0)
    }
}

impl fmt::Display for CallIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl FromStr for CallIndex {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        let canonical = text == "0" || (text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0'));
        canonical
            .then(|| text.parse().ok())
            .flatten()
            .map(Self)
            .ok_or_else(|| InvalidId::new("call index", text, "a decimal number"))
    }
}

/// The number of an execution of a call, from 1. It is the fence: events of a lower number are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptNumber(pub u32);

/// Distinguishes two executions of the same number, which a reset of the broker's delivery count makes possible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Nonce(pub u64);

/// A chunk's place in the output of its attempt, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
pub struct ChunkIndex(pub u32);
