//! Filters of runs and calls, their order, and how a page is continued.
//!
//! The order is that of the ids, which begin with their creation time: the newest first. A new run comes before every
//! page that was returned, so it does not move any.

use std::fmt;
use std::str::FromStr;

use proto::v1::{CallState, RunStatus};
use run::{CallIndex, RunId, TenantId, Timestamp, ToolName};

use super::summary::{CallSummary, Summary, is_final, is_over};

/// A run's position in the order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    uuid: u128,
    shard: u8,
}

/// A position among calls: its run's, then its own. As text it sorts the same way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) run: Key,
    pub(crate) call: CallIndex,
}

impl From<RunId> for Key {
    fn from(id: RunId) -> Self {
        Self { uuid: id.uuid().as_u128(), shard: id.shard().0 }
    }
}

impl Key {
    /// The first position of a run created at this moment.
    pub(crate) fn at(moment: Timestamp) -> Self {
        Self { uuid: u128::from(moment.0) << 80, shard: 0 }
    }

    pub(crate) fn created_at(self) -> Timestamp {
        Timestamp(u64::try_from(self.uuid >> 80).unwrap_or_default())
    }

    pub(crate) fn run_id(self) -> Option<RunId> {
        format!("run_{:02x}_{:032x}", self.shard, self.uuid).parse().ok()
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}{:02x}", self.uuid, self.shard)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:04x}", self.run, self.call.0)
    }
}

/// A text that is not a position.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NoPlace;

/// Digits of a run's position as text.
pub(crate) const KEY_DIGITS: usize = 34;

impl FromStr for Key {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let (uuid, shard) = text.split_at_checked(32).filter(|_| text.len() == KEY_DIGITS).ok_or(NoPlace)?;
        let uuid = u128::from_str_radix(uuid, 16).map_err(|_| NoPlace)?;
        let shard = u8::from_str_radix(shard, 16).map_err(|_| NoPlace)?;
        Ok(Self { uuid, shard })
    }
}

impl FromStr for Place {
    type Err = NoPlace;

    fn from_str(text: &str) -> Result<Self, NoPlace> {
        let (run, call) = text.split_at_checked(KEY_DIGITS).ok_or(NoPlace)?;
        let call = u16::from_str_radix(call, 16).map_err(|_| NoPlace)?;
        Ok(Self { run: run.parse()?, call: CallIndex(call) })
    }
}

/// Range of creation times: the beginning is included, the end is not.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Created {
    pub(crate) from: Option<Timestamp>,
    pub(crate) before: Option<Timestamp>,
}

impl Created {
    pub(crate) fn first(self) -> Option<Key> {
        self.from.map(Key::at)
    }

    pub(crate) fn end(self) -> Option<Key> {
        self.before.map(Key::at)
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct RunFilter {
    pub(crate) status: Option<RunStatus>,
    pub(crate) tenant: Option<TenantId>,
    /// Only runs of this schedule.
    pub(crate) schedule: Option<String>,
    pub(crate) created: Created,
}

impl RunFilter {
    pub(crate) fn admits(&self, run: &Summary) -> bool {
        self.status.is_none_or(|status| run.status == status)
            && self.tenant.as_ref().is_none_or(|tenant| run.tenant.as_ref() == Some(tenant))
            && self.schedule.as_ref().is_none_or(|schedule| run.schedule.as_ref() == Some(schedule))
    }

    /// Whether the filter only matches runs that have not ended.
    pub(crate) fn is_of_open_runs(&self) -> bool {
        self.status.is_some_and(|status| !is_final(status))
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct CallFilter {
    pub(crate) state: Option<CallState>,
    pub(crate) tool: Option<ToolName>,
    pub(crate) tenant: Option<TenantId>,
    pub(crate) parked: bool,
    pub(crate) created: Created,
}

impl CallFilter {
    pub(crate) fn admits(&self, run: &Summary, call: &CallSummary) -> bool {
        self.state.is_none_or(|state| call.state == state)
            && self.tool.as_ref().is_none_or(|tool| call.tool == *tool)
            && self.tenant.as_ref().is_none_or(|tenant| run.tenant.as_ref() == Some(tenant))
            && (!self.parked || call.parked)
    }

    /// Whether the filter only matches calls of runs that have not ended.
    pub(crate) fn is_of_open_runs(&self) -> bool {
        self.state.is_some_and(|state| !is_over(state))
    }
}

/// A page token: the position after which a list continues. Bound to the filter, because a position makes no sense in
/// another list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<P> {
    /// A fingerprint of the filter.
    filter: u64,
    pub(crate) behind: P,
}

impl<P: fmt::Display + FromStr> Token<P> {
    pub(crate) fn new(filter: &[u8], behind: P) -> Self {
        Self { filter: fingerprint(filter), behind }
    }

    /// The position in a client's token; `None` if the token is invalid or from another list.
    pub(crate) fn parse(text: &str, filter: &[u8]) -> Option<P> {
        let (hash, behind) = text.split_at_checked(16)?;
        let is_ours = u64::from_str_radix(hash, 16).ok()? == fingerprint(filter);
        if is_ours { behind.parse().ok() } else { None }
    }
}

impl<P: fmt::Display> fmt::Display for Token<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{}", self.filter, self.behind)
    }
}

/// FNV-1a, because it is the same in every process of every version, which the standard library's hash does not
/// promise.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// A request for a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask<P> {
    pub(crate) size: usize,
    /// Only items after this position.
    pub(crate) behind: Option<P>,
}

/// A part of a list.
#[derive(Debug)]
pub(crate) struct Page<T, P> {
    pub(crate) items: Vec<T>,
    /// Where the next page begins; `None` on the last one.
    pub(crate) behind: Option<P>,
    pub(crate) coverage: Coverage,
}

/// Which part of all runs the index knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Shards that are being read into it.
    pub(crate) reading: usize,
    /// Shards that it lacks and that are not being read.
    pub(crate) unread: usize,
    /// Ended runs created before this may be missing.
    pub(crate) cut_before: Option<Timestamp>,
}

impl Coverage {
    pub(crate) fn is_complete(self) -> bool {
        self.reading == 0 && self.unread == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> RunId {
        text.parse().unwrap()
    }

    #[test]
    fn places_sort_as_text_as_they_sort_as_numbers() {
        let early = id("run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f");
        let late = id("run_00_01980f3c2a5c7c3e8d4f5a6b7c8d9e0f");
        let place = |run: RunId, call| Place { run: run.into(), call: CallIndex(call) };
        let places = [place(early, 2), place(early, 10), place(late, 0), place(late, 300)];
        assert!(places.is_sorted());
        assert!(places.map(|place| place.to_string()).is_sorted());
        for place in places {
            assert_eq!(place.to_string().parse::<Place>().ok(), Some(place));
        }
        assert_eq!(Key::from(early).run_id(), Some(early));
        assert_eq!(Key::from(early).created_at(), early.created_at());
        assert!(Key::at(early.created_at()) <= early.into() && Key::at(late.created_at()) > early.into());
    }

    #[test]
    fn a_token_is_of_one_list_only() {
        let behind: Key = id("run_0f_01980f3c2a5b7c3e8d4f5a6b7c8d9e0f").into();
        let token = Token::new(b"one filter", behind).to_string();
        assert_eq!(Token::<Key>::parse(&token, b"one filter"), Some(behind));
        assert_eq!(Token::<Key>::parse(&token, b"another"), None);
        assert_eq!(Token::<Place>::parse(&token, b"one filter"), None, "calls are another list");
        for text in ["", "x", "0123456789abcdef", "é123456789abcdef0000", "0123456789abcdef01980f3c"] {
            assert_eq!(Token::<Key>::parse(text, b""), None);
        }
    }
}
