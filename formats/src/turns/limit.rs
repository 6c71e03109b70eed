//! Every limit of a turn, with its reason. Exceeding a limit is a typed error; nothing is cut silently.

/// The most bytes of a turn as JSON text. Several times the limit for the arguments of one run's calls together (768
/// KiB), to leave room for text and reasoning. Uploads by a client do not belong in a turn.
pub const TURN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// The deepest nesting of arrays and objects. It is the most that `serde_json` reads, which checks the arguments later.
pub const DEPTH_MAX: usize = 127;
/// The most calls in one turn, which equals the limit of one run.
pub const CALLS_MAX: usize = 128;
/// The most elements of a list that is searched: items, blocks, parts. Most are not calls.
pub const ELEMENTS_MAX: usize = 4096;
/// The most members of an object that is searched. The largest known object, a whole response, has about forty.
pub const MEMBERS_MAX: usize = 256;
/// The most bytes of a call's id, which equals the limit of a run. If a vendor's id is longer, the call gets a
/// generated id.
pub const CALL_ID_BYTES_MAX: usize = 128;
/// The most characters of foreign text that an error or a report repeats.
pub const QUOTE_CHARS_MAX: usize = 64;
