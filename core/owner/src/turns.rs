//! Which waiting call of a pool is handed out next. Calls that are not handed out are not in the broker's queue, so
//! cancelling, pausing and reordering apply to them at once.
//!
//! - The queue at the broker is short: a lane hands out as many calls as it has room for, and more only when workers
//!   have begun some of them.
//! - Tenants share a lane by weight (start-time fair queueing): a tenant that was idle is not behind the backlog of
//!   another one.
//! - Within a tenant, calls of a higher priority come first. A call that has been waiting for [`AGING`] rises by one
//!   priority, so it is served in the end. Runs of one priority take turns.
//!
//! The state follows from the log and from the calls that wait, so it is not stored: a new owner builds it again.

mod divide;
pub(crate) mod fair;
mod lane;
mod rotation;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use run::{CallIndex, PoolId, Priority, RunId, Shard, TenantId, Timestamp, ToolName};

use self::lane::LaneState;

pub use divide::room;

/// How long a call waits before it counts as one of the next higher priority.
pub const AGING: Duration = Duration::from_secs(30);
/// How long a call that may be handed out may take to appear in the log. Then its place is free again.
const HAND_OUT: Duration = Duration::from_secs(30);
/// The largest weight of a tenant.
pub const WEIGHT_MAX: u32 = 1000;

/// A call of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallKey {
    /// The run.
    pub run: RunId,
    /// The call in the run.
    pub call: CallIndex,
}

/// The tenant of a run; runs without a tenant share as one.
pub type Tenant = Option<TenantId>;

/// Calls that share a queue and compete for the same slots.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane {
    /// The pool whose workers execute the calls.
    pub pool: PoolId,
    /// Set for a tool that not every free slot of the pool takes: its calls must not hold up those of other tools.
    pub tool: Option<ToolName>,
    /// No live worker takes the calls: they must not hold up other calls of their tool.
    pub is_stranded: bool,
}

/// The number of a lane in its [`Turns`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(usize);

/// A call that asks for its turn.
#[derive(Debug, Clone)]
pub struct Ticket {
    /// The lane of the call.
    pub lane: LaneId,
    /// By what its place in the order is decided.
    pub claim: Claim,
}

/// By what the place of a waiting call is decided.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The tenant of its run.
    pub tenant: Tenant,
    /// The weight of the tenant, at least 1.
    pub weight: u32,
    /// The priority of the call.
    pub priority: Priority,
    /// When it began to wait.
    pub since: Timestamp,
}

/// The position of a waiting call in the order of its lane, if no further calls come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// Calls that are handed out before it.
    pub ahead: usize,
    /// Whether these are all; otherwise there are more.
    pub is_exact: bool,
    /// All calls that wait in the lane.
    pub waiting: usize,
    /// The priority that it has now.
    pub priority: Priority,
}

/// How many runs and tenants are looked at to compute a position.
const LOOK_MAX: usize = 256;

/// A look at the order of waiting calls, of bounded length.
#[derive(Debug)]
struct Look {
    left: usize,
    is_cut: bool,
}

impl Default for Look {
    fn default() -> Self {
        Self { left: LOOK_MAX, is_cut: false }
    }
}

impl Look {
    fn at<T>(&mut self, all: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
        all.take_while(|_| {
            self.is_cut |= self.left == 0;
            self.left = self.left.saturating_sub(1);
            !self.is_cut
        })
    }
}

/// Where a call is.
#[derive(Debug, Clone)]
enum Place {
    Waiting {
        lane: LaneId,
        tenant: Tenant,
    },
    /// It may be handed out, and the log does not show it yet. `charged`: its tenant, if it waited before.
    Granted {
        lane: LaneId,
        at: Timestamp,
        charged: Option<Tenant>,
    },
    /// The log shows it, and no worker has stored its start.
    Queued {
        lane: LaneId,
    },
}

/// The turns of the calls of one coordinator's shards.
#[derive(Debug, Default)]
pub struct Turns {
    lanes: Vec<LaneState>,
    by_name: BTreeMap<Lane, LaneId>,
    places: BTreeMap<CallKey, Place>,
    /// Lanes with waiting calls.
    backlogged: BTreeSet<LaneId>,
    /// Calls that had their turn and could not use it.
    returned: BTreeSet<CallKey>,
}

impl Turns {
    /// The lane of this name, if it exists.
    #[must_use]
    pub fn find_lane(&self, name: &Lane) -> Option<LaneId> {
        self.by_name.get(name).copied()
    }

    /// Adds a lane. It has room for so many calls that no worker has begun.
    pub fn add_lane(&mut self, name: Lane, room: u32) -> LaneId {
        let id = LaneId(self.lanes.len());
        self.lanes.push(LaneState::new(room));
        self.by_name.insert(name, id);
        id
    }

    /// Changes the room of a lane.
    pub fn set_room(&mut self, lane: LaneId, room: u32) {
        if let Some(lane) = self.lanes.get_mut(lane.0) {
            lane.room = room;
        }
    }

    /// Divides the weights of a lane's tenants among the owners: a tenant whose calls wait at several owners is served
    /// by each of them, so it counts at each by the part of its calls that wait there.
    pub fn set_shares(&mut self, lane: LaneId, own: &BTreeMap<Tenant, u32>, others: &BTreeMap<Tenant, u32>) {
        let count =
            |calls: &BTreeMap<Tenant, u32>, tenant: &Tenant| u64::from(calls.get(tenant).copied().unwrap_or_default());
        if let Some(lane) = self.lanes.get_mut(lane.0) {
            lane.queue.set_shares(|tenant| {
                let (own, others) = (count(own, tenant), count(others, tenant));
                (fair::WHOLE * own).checked_div(own + others).unwrap_or(fair::WHOLE)
            });
        }
    }

    /// All lanes.
    pub fn lanes(&self) -> impl Iterator<Item = (&Lane, LaneId)> {
        self.by_name.iter().map(|(name, id)| (name, *id))
    }

    /// Calls of a lane that wait, by priority from low to high.
    #[must_use]
    pub fn waiting(&self, lane: LaneId) -> [usize; 3] {
        self.lanes.get(lane.0).map(|lane| lane.queue.waiting_by_priority()).unwrap_or_default()
    }

    /// Calls of a lane that were handed out, and that no worker has begun.
    #[must_use]
    pub fn handed_out(&self, lane: LaneId) -> u32 {
        self.lanes.get(lane.0).map(|lane| lane.handed_out).unwrap_or_default()
    }

    /// How many calls of each tenant wait in a lane.
    pub fn demand(&self, lane: LaneId) -> impl Iterator<Item = (&Tenant, u32)> {
        self.lanes.get(lane.0).into_iter().flat_map(|lane| lane.queue.demand())
    }

    /// Whether any call waits.
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        !self.backlogged.is_empty()
    }

    /// How soon the calls that wait in a lane have had their turns, at the present rate; `None` if none is begun.
    #[must_use]
    pub fn expected_wait(&self, lane: LaneId, now: Timestamp) -> Option<Duration> {
        self.lanes.get(lane.0)?.expected_wait(now)
    }

    /// Whether the call may be handed out. If not, it waits, and [`Self::next_granted`] returns it when its turn comes.
    pub fn request(&mut self, key: CallKey, ticket: &Ticket, now: Timestamp) -> bool {
        match self.places.get(&key) {
            Some(Place::Granted { .. } | Place::Queued { .. }) => return true,
            Some(Place::Waiting { .. }) => return false,
            None => {}
        }
        let Some(lane) = self.lanes.get_mut(ticket.lane.0) else { return true };
        if lane.queue.has_waiting() || !lane.has_room(now) {
            self.wait(key, ticket, now);
            return false;
        }
        lane.handed_out += 1;
        self.places.insert(key, Place::Granted { lane: ticket.lane, at: now, charged: None });
        true
    }

    /// The call had its turn, and another limit does not let it begin. When it asks again, its run comes first among
    /// those of its tenant and priority: otherwise others could take what it waits for each time.
    pub fn give_back(&mut self, key: CallKey) {
        let has_waited = matches!(self.places.get(&key), Some(Place::Granted { charged: Some(_), .. }));
        let is_returned = has_waited || self.returned.contains(&key);
        self.leave(key);
        if is_returned {
            self.returned.insert(key);
        }
    }

    /// Whether the call waits for its turn.
    #[must_use]
    pub fn is_waiting(&self, key: CallKey) -> bool {
        matches!(self.places.get(&key), Some(Place::Waiting { .. }))
    }

    /// The call does not ask for its turn any more, or does not use it.
    pub fn leave(&mut self, key: CallKey) {
        self.returned.remove(&key);
        match self.places.remove(&key) {
            Some(Place::Waiting { lane, tenant }) => self.stop_waiting(lane, &tenant, key),
            Some(Place::Granted { lane, charged, .. }) => {
                if let Some(lane) = self.lanes.get_mut(lane.0) {
                    lane.handed_out = lane.handed_out.saturating_sub(1);
                    charged.iter().for_each(|tenant| lane.queue.refund(tenant));
                }
            }
            Some(Place::Queued { lane }) => self.take_from_queue(lane),
            None => {}
        }
    }

    /// As [`Self::leave`], unless the log shows the call's job.
    pub fn leave_unqueued(&mut self, key: CallKey) {
        if !matches!(self.places.get(&key), Some(Place::Queued { .. })) {
            self.leave(key);
        }
    }

    /// The log shows the call's job, and no worker has begun it. `lane`: its lane, if it did not ask for its turn here.
    pub fn handle_queued(&mut self, key: CallKey, lane: LaneId) {
        self.returned.remove(&key);
        match self.places.get(&key) {
            Some(Place::Queued { .. }) => {}
            Some(Place::Granted { lane, .. }) => {
                let lane = *lane;
                self.places.insert(key, Place::Queued { lane });
            }
            Some(Place::Waiting { .. }) | None => {
                self.leave(key);
                self.places.insert(key, Place::Queued { lane });
                if let Some(lane) = self.lanes.get_mut(lane.0) {
                    lane.handed_out += 1;
                }
            }
        }
    }

    /// A worker has begun the call, or it has ended.
    pub fn handle_begun(&mut self, key: CallKey, now: Timestamp) {
        self.returned.remove(&key);
        match self.places.get(&key) {
            Some(Place::Granted { lane, .. } | Place::Queued { lane }) => {
                let lane = *lane;
                self.places.remove(&key);
                self.take_from_queue(lane);
                if let Some(lane) = self.lanes.get_mut(lane.0) {
                    lane.begun.note(now);
                }
            }
            Some(Place::Waiting { .. }) => self.leave(key),
            None => {}
        }
    }

    /// The call belongs to this lane now.
    pub fn move_to(&mut self, key: CallKey, ticket: &Ticket, now: Timestamp) {
        match self.places.get(&key) {
            Some(Place::Waiting { lane, .. }) if *lane != ticket.lane => {
                self.leave(key);
                self.wait(key, ticket, now);
            }
            Some(Place::Queued { lane }) if *lane != ticket.lane => {
                self.take_from_queue(*lane);
                self.places.insert(key, Place::Queued { lane: ticket.lane });
                if let Some(lane) = self.lanes.get_mut(ticket.lane.0) {
                    lane.handed_out += 1;
                }
            }
            Some(Place::Waiting { .. } | Place::Queued { .. } | Place::Granted { .. }) | None => {}
        }
    }

    /// The lane of a call that waits or is in the broker's queue.
    #[must_use]
    pub fn lane_of(&self, key: CallKey) -> Option<LaneId> {
        match self.places.get(&key)? {
            Place::Waiting { lane, .. } | Place::Granted { lane, .. } | Place::Queued { lane } => Some(*lane),
        }
    }

    /// The next call whose turn has come, if a lane has room.
    pub fn next_granted(&mut self, now: Timestamp) -> Option<CallKey> {
        let ready = |lane: &&LaneId| self.lanes.get(lane.0).is_some_and(|lane| lane.has_room(now));
        let id = *self.backlogged.iter().find(ready)?;
        let lane = self.lanes.get_mut(id.0)?;
        let taken = lane.queue.take(now);
        if !lane.queue.has_waiting() {
            self.backlogged.remove(&id);
        }
        let (tenant, key) = taken?;
        lane.handed_out += 1;
        self.places.insert(key, Place::Granted { lane: id, at: now, charged: Some(tenant) });
        Some(key)
    }

    /// The position of a call; `None` if it does not wait here.
    pub fn position(&mut self, key: CallKey, now: Timestamp) -> Option<Position> {
        let Some(Place::Waiting { lane, tenant }) = self.places.get(&key) else { return None };
        self.lanes.get_mut(lane.0)?.queue.position(tenant, key, now)
    }

    /// Forgets the calls of a shard, because another coordinator owns it.
    pub fn forget_shard(&mut self, shard: Shard) {
        let of_shard: Vec<CallKey> = self.places.keys().filter(|key| key.run.shard() == shard).copied().collect();
        of_shard.into_iter().for_each(|key| self.leave(key));
        self.returned.retain(|key| key.run.shard() != shard);
    }

    /// Forgets calls that might have been handed out long ago, and that the log does not show.
    pub fn forget_late(&mut self, now: Timestamp) {
        let is_late = |place: &Place| matches!(place, Place::Granted { at, .. } if now.since(*at) >= HAND_OUT);
        let late: Vec<CallKey> = self.places.iter().filter(|(_, place)| is_late(place)).map(|(key, _)| *key).collect();
        late.into_iter().for_each(|key| self.leave(key));
    }

    fn wait(&mut self, key: CallKey, ticket: &Ticket, now: Timestamp) {
        if let Some(lane) = self.lanes.get_mut(ticket.lane.0) {
            lane.queue.insert((key, self.returned.contains(&key)), &ticket.claim, now);
            self.backlogged.insert(ticket.lane);
            self.places.insert(key, Place::Waiting { lane: ticket.lane, tenant: ticket.claim.tenant.clone() });
        }
    }

    fn stop_waiting(&mut self, id: LaneId, tenant: &Tenant, key: CallKey) {
        if let Some(lane) = self.lanes.get_mut(id.0) {
            lane.queue.remove(tenant, key);
            if !lane.queue.has_waiting() {
                self.backlogged.remove(&id);
            }
        }
    }

    fn take_from_queue(&mut self, lane: LaneId) {
        if let Some(lane) = self.lanes.get_mut(lane.0) {
            lane.handed_out = lane.handed_out.saturating_sub(1);
        }
    }
}
