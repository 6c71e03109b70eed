//! Every limit of a turn, with its reason. Reaching one is a typed error, never a silent cut.

/// Bytes of a turn, as JSON text. Several times what the arguments of one run's calls may take together (768 KiB), for
/// the text and the reasoning around them; what a client uploads belongs elsewhere.
pub const TURN_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How deep arrays and objects may be nested: the deepest that `serde_json`, which checks the arguments later, reads.
pub const DEPTH_MAX: usize = 127;
/// Calls in one turn: as many as one run takes.
pub const CALLS_MAX: usize = 128;
/// Elements of a list that is looked through: items, blocks, parts. Most are not calls.
pub const ELEMENTS_MAX: usize = 4096;
/// Members of an object that is looked through. The largest known, a whole response, has some forty.
pub const MEMBERS_MAX: usize = 256;
/// Bytes of a call's id: what a run takes. A vendor's id that is longer stays outside, and the call gets one that is
/// made.
pub const CALL_ID_BYTES_MAX: usize = 128;
/// Characters of a foreign word that an error or a report repeats.
pub const QUOTE_CHARS_MAX: usize = 64;
