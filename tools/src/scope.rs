//! How far the side effects of a tool reach: the words that manifests have for it.

/// It changes nothing.
pub(super) const NONE: &str = "NONE";
/// Files and processes of the machine that its worker runs on.
pub(super) const LOCAL_STATE: &str = "LOCAL_STATE";
/// Anything that the network reaches.
pub(super) const NETWORK: &str = "NETWORK";
