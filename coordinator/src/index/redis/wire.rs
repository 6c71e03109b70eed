//! Summaries as the store holds them: the API's own message, which saves a second form.

use prost::Message as _;
use proto::v1;

use crate::index::summary::Summary;

pub(super) fn encode(summary: &Summary) -> Vec<u8> {
    v1::RunSummary::from(summary).encode_to_vec()
}

/// `None` if it is not a summary: it is treated as missing, and the comparison with the log reports it.
pub(super) fn decode(bytes: &[u8]) -> Option<Summary> {
    Summary::try_from(v1::RunSummary::decode(bytes).ok()?).ok()
}

pub(super) fn status_name(status: v1::RunStatus) -> String {
    short_name(status.as_str_name(), "RUN_STATUS_")
}

pub(super) fn state_name(state: v1::CallState) -> String {
    short_name(state.as_str_name(), "CALL_STATE_")
}

fn short_name(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap_or(name).to_ascii_lowercase()
}
