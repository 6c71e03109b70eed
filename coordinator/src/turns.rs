//! The turns of waiting calls: connects [`owner::turns`] with this coordinator's runs, workers, quotas and requests.
//!
//! The owner task asks here before it dispatches a call, and learns which calls it may dispatch when workers have begun
//! others. A request for a single call asks before the run is stored: if nothing waits in the pool, its job is stored
//! together with the run. If calls wait, but only for a moment, the request waits too, which saves an entry in the log.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use owner::turns::{CallKey, Claim, Lane, LaneId, Position, Tenant, Ticket, Turns, room};
use run::{Call, CallIndex, CallSpec, CallState, PoolId, Priority, Route, Run, RunId, Shard, TenantId, Timestamp};
use tokio::sync::{oneshot, watch};

use crate::auth::callers::Callers;
use crate::fleet::paused::Paused;
use crate::fleet::registry::Registry;
use crate::shards::Owned;

/// How many calls are handed out to a lane without known slots, so that the first worker finds some.
const ROOM_WITHOUT_WORKERS: u32 = 16;
/// How long a request waits for its call's turn before it stores the run without a job.
const HOLD: Duration = Duration::from_millis(300);
/// Requests that wait for turns at once. Further ones store their runs without a job.
const HELD_MAX: usize = 4096;

/// The turns of the calls in this coordinator's shards. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct TurnOrder {
    callers: Callers,
    owned: watch::Receiver<Owned>,
    paused: watch::Receiver<Arc<Paused>>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    turns: Turns,
    /// Requests that wait until their call may be handed out.
    held: HashMap<CallKey, oneshot::Sender<()>>,
    /// Calls that wait at the other coordinators, by pool. Empty if coordinators exchange no counts.
    others: BTreeMap<PoolId, BTreeMap<Tenant, u32>>,
}

/// When the call of a request has its turn.
enum Entered {
    Granted,
    /// Soon: the requester waits for the message.
    Soon(oneshot::Receiver<()>),
    /// Not for a while.
    Later,
}

impl State {
    fn enter(&mut self, key: CallKey, ticket: &Ticket, now: Timestamp) -> Entered {
        if self.turns.request(key, ticket, now) {
            return Entered::Granted;
        }
        let is_soon = self.turns.expected_wait(ticket.lane, now).is_some_and(|wait| wait <= HOLD);
        if !is_soon || self.held.len() >= HELD_MAX {
            return Entered::Later;
        }
        let (sender, granted) = oneshot::channel();
        self.held.insert(key, sender);
        Entered::Soon(granted)
    }
}

/// The turn of the only call of a run that is about to be stored. It is given back if it is dropped before it is used.
#[derive(Debug)]
pub(crate) struct Turn {
    order: TurnOrder,
    key: CallKey,
    is_used: bool,
}

impl Turn {
    /// The call's job is stored, or may be.
    pub(crate) fn is_used(&mut self) {
        self.is_used = true;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.is_used {
            let mut state = self.order.state();
            state.held.remove(&self.key);
            state.turns.leave_unqueued(self.key);
        }
    }
}

impl TurnOrder {
    pub(crate) fn new(callers: Callers, owned: watch::Receiver<Owned>, paused: watch::Receiver<Arc<Paused>>) -> Self {
        Self { callers, owned, paused, state: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // After a panic a count may be wrong by a call, which makes the queue at the broker longer or shorter by one.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The turn of the only call of a run that is about to be stored. `None`: its job is left to the shard's owner.
    pub(crate) async fn enter(
        &self,
        run: RunId,
        (tenant, spec, priority): (Option<&TenantId>, &CallSpec, Priority),
        registry: &watch::Receiver<Arc<Registry>>,
    ) -> Option<Turn> {
        if !self.owned.borrow().holds(run.shard()) {
            return None;
        }
        let key = CallKey { run, call: CallIndex(0) };
        let entered = {
            let registry = registry.borrow();
            let name = self.lane_name(spec, tenant, &registry)?;
            let (now, mut state) = (::nats::now(), self.state());
            let lane = self.lane(&mut state, name, &registry);
            let weight = self.weight(tenant);
            let claim = Claim { tenant: tenant.cloned(), weight, priority, since: now };
            state.enter(key, &Ticket { lane, claim }, now)
        };
        // Not before the state is unlocked, because a turn that is dropped locks it.
        let turn = Turn { order: self.clone(), key, is_used: false };
        match entered {
            Entered::Granted => Some(turn),
            Entered::Later => None,
            Entered::Soon(granted) => match tokio::time::timeout(HOLD, granted).await {
                Ok(Ok(())) => Some(turn),
                // Too late, or the shard is not ours any more.
                Ok(Err(_)) | Err(_) => None,
            },
        }
    }

    /// Whether the owner may dispatch a call now. If not, the call waits for its turn.
    pub(crate) fn take(&self, run: &Run, call: &Call, registry: &Registry) -> bool {
        let Some(name) = self.lane_name(call.spec(), run.tenant(), registry) else { return true };
        let mut state = self.state();
        let lane = self.lane(&mut state, name, registry);
        state.turns.request(key(run, call), &self.ticket(run, call, lane), ::nats::now())
    }

    /// The call does not use its turn, or does not wait for one any more.
    pub(crate) fn leave(&self, run: RunId, call: CallIndex) {
        self.state().turns.leave(CallKey { run, call });
    }

    /// The call had its turn, and finds no slot of its tenant or tool.
    pub(crate) fn give_back(&self, run: RunId, call: CallIndex) {
        self.state().turns.give_back(CallKey { run, call });
    }

    /// Whether the call waits for its turn.
    pub(crate) fn is_waiting(&self, run: RunId, call: CallIndex) -> bool {
        self.state().turns.is_waiting(CallKey { run, call })
    }

    /// Counts a call of a shard that is ours, as the log has it.
    pub(crate) fn note(&self, run: &Run, call: &Call, registry: &Registry) {
        let mut state = self.state();
        match call.state() {
            // A call that is tried again may wait for long, and no worker takes it meanwhile.
            CallState::Queued { .. } if call.is_untried() => {
                let Some(name) = self.lane_name(call.spec(), run.tenant(), registry) else { return };
                let lane = self.lane(&mut state, name, registry);
                state.turns.handle_queued(key(run, call), lane);
            }
            CallState::Queued { .. } | CallState::Running(_) | CallState::Ended(_) => {
                state.turns.handle_begun(key(run, call), ::nats::now());
            }
            CallState::Accepted | CallState::AwaitingApproval | CallState::Delayed | CallState::WaitingForClient => {}
        }
    }

    /// Puts a waiting or queued call into another lane, if its tool can be executed by other workers than before.
    /// Returns whether it waits for its turn.
    pub(crate) fn check(&self, run: &Run, call: &Call, registry: &Registry) -> bool {
        if !matches!(call.state(), CallState::Accepted | CallState::Queued { .. }) {
            return false;
        }
        let key = key(run, call);
        let mut state = self.state();
        if state.turns.lane_of(key).is_none() {
            return false;
        }
        if let Some(name) = self.lane_name(call.spec(), run.tenant(), registry) {
            let lane = self.lane(&mut state, name, registry);
            state.turns.move_to(key, &self.ticket(run, call, lane), ::nats::now());
        }
        *call.state() == CallState::Accepted
    }

    /// Runs with calls that may be dispatched now. Requests that wait for their turn go on.
    pub(crate) fn granted(&self) -> BTreeSet<RunId> {
        let (now, mut runs, mut state) = (::nats::now(), BTreeSet::new(), self.state());
        while let Some(key) = state.turns.next_granted(now) {
            match state.held.remove(&key) {
                // A requester that has gone gives its turn back when its request is dropped.
                Some(request) => drop(request.send(())),
                None => {
                    runs.insert(key.run);
                }
            }
        }
        runs
    }

    /// The position of a call that waits for its turn in one of our shards.
    pub(crate) fn position(&self, key: CallKey) -> Option<Position> {
        self.state().turns.position(key, ::nats::now())
    }

    /// Forgets the calls of a shard that is not ours any more.
    pub(crate) fn forget_shard(&self, shard: Shard) {
        let mut state = self.state();
        state.held.retain(|key, _| key.run.shard() != shard);
        state.turns.forget_shard(shard);
    }

    /// Forgets the calls of a run that is not open any more.
    pub(crate) fn forget_run(&self, run: &Run) {
        let (now, mut state) = (::nats::now(), self.state());
        run.calls().iter().for_each(|call| state.turns.handle_begun(key(run, call), now));
    }

    /// Computes the room of each lane again, from the slots that workers report and from what waits elsewhere.
    pub(crate) fn count_slots(&self, registry: &Registry) {
        let mut state = self.state();
        state.turns.forget_late(::nats::now());
        let lanes: Vec<(Lane, LaneId)> = state.turns.lanes().map(|(name, lane)| (name.clone(), lane)).collect();
        let waiting = waiting(&state.turns);
        for (name, lane) in lanes {
            let room = self.room(&state, &name, Some(lane), registry);
            let State { turns, others, .. } = &mut *state;
            turns.set_room(lane, room);
            // Without calls that wait elsewhere, each tenant has its whole share here again.
            let nothing = BTreeMap::new();
            let [own, others] = [&waiting, others].map(|of| of.get(&name.pool).unwrap_or(&nothing));
            turns.set_shares(lane, own, others);
        }
    }

    /// Calls that wait in each pool, by tenant, for the other coordinators.
    pub(crate) fn waiting(&self) -> BTreeMap<PoolId, BTreeMap<Tenant, u32>> {
        waiting(&self.state().turns)
    }

    /// Stores what waits at the other coordinators.
    pub(crate) fn see_others(&self, others: BTreeMap<PoolId, BTreeMap<Tenant, u32>>) {
        self.state().others = others;
    }

    /// Calls that wait in each pool, by priority from low to high.
    pub(crate) fn by_priority(&self) -> BTreeMap<PoolId, [usize; 3]> {
        let state = self.state();
        let mut all: BTreeMap<PoolId, [usize; 3]> = BTreeMap::new();
        for (name, lane) in state.turns.lanes() {
            let sums = all.entry(name.pool.clone()).or_default();
            sums.iter_mut().zip(state.turns.waiting(lane)).for_each(|(sum, calls)| *sum += calls);
        }
        all
    }

    /// The lane of a call; `None` for a call that no pool executes.
    fn lane_name(&self, spec: &CallSpec, tenant: Option<&TenantId>, registry: &Registry) -> Option<Lane> {
        let Route::Pool { pool, .. } = &spec.route else { return None };
        let entry = registry.catalog_of(tenant).find(&spec.tool).map(|entry| entry.of(pool));
        let is_limited = entry.is_some_and(|entry| entry.hosted.manifest.max_concurrent.is_some());
        let is_paused = || {
            let paused = self.paused.borrow();
            paused.tools().next().is_some() && paused.holds(registry.real_name(&spec.tool))
        };
        let takers = registry.takers(spec, tenant);
        let is_stranded = registry.settled && takers == 0;
        // Not every free slot of the pool takes it.
        let is_apart = is_limited || is_stranded || takers < registry.living(pool).taking || is_paused();
        Some(Lane { pool: pool.clone(), tool: is_apart.then(|| spec.tool.clone()), is_stranded })
    }

    fn lane(&self, state: &mut State, name: Lane, registry: &Registry) -> LaneId {
        let found = state.turns.find_lane(&name);
        match found {
            // What other coordinators report is considered once a second.
            Some(lane) if state.others.contains_key(&name.pool) => lane,
            Some(lane) => {
                let room = self.room(state, &name, found, registry);
                state.turns.set_room(lane, room);
                lane
            }
            None => {
                let room = self.room(state, &name, None, registry);
                state.turns.add_lane(name, room)
            }
        }
    }

    /// Calls of a lane that this coordinator may hand out before workers begin them: one for each slot of the pool, or
    /// this coordinator's part of that.
    fn room(&self, state: &State, name: &Lane, lane: Option<LaneId>, registry: &Registry) -> u32 {
        let hosts = name.tool.as_ref().and_then(|tool| registry.catalog.find(tool));
        let living =
            hosts.map_or_else(|| registry.living(&name.pool), |entry| registry.living_hosts(&name.pool, entry));
        let slots = u32::try_from(living.slots).unwrap_or(u32::MAX);
        if slots == 0 || name.is_stranded {
            return ROOM_WITHOUT_WORKERS;
        }
        let (shards, all) = {
            let owned = self.owned.borrow();
            (owned.shards().len() as u64, owned.of_all() as u64)
        };
        let by_shards = u32::try_from((u64::from(slots) * shards).div_ceil(all)).unwrap_or(u32::MAX).max(1);
        let own = lane.into_iter().flat_map(|lane| state.turns.demand(lane));
        let own = own.map(|(tenant, calls)| (tenant.clone(), calls)).collect();
        room((slots, by_shards), &own, state.others.get(&name.pool), |tenant| self.weight(tenant.as_ref()))
    }

    fn ticket(&self, run: &Run, call: &Call, lane: LaneId) -> Ticket {
        Ticket { lane, claim: claim(&self.callers, run, call) }
    }

    fn weight(&self, tenant: Option<&TenantId>) -> u32 {
        weight(&self.callers, tenant)
    }
}

fn weight(callers: &Callers, tenant: Option<&TenantId>) -> u32 {
    tenant.and_then(|tenant| callers.quota(tenant)?.weight).unwrap_or(1)
}

/// By what the place of a call is decided, among calls that wait for the same.
pub(crate) fn claim(callers: &Callers, run: &Run, call: &Call) -> Claim {
    let tenant = run.tenant();
    let (weight, priority) = (weight(callers, tenant), run.priority_of(call));
    Claim { tenant: tenant.cloned(), weight, priority, since: call.in_turn_since() }
}

fn waiting(turns: &Turns) -> BTreeMap<PoolId, BTreeMap<Tenant, u32>> {
    let mut all: BTreeMap<PoolId, BTreeMap<Tenant, u32>> = BTreeMap::new();
    for (name, lane) in turns.lanes() {
        for (tenant, calls) in turns.demand(lane) {
            *all.entry(name.pool.clone()).or_default().entry(tenant.clone()).or_default() += calls;
        }
    }
    all
}

fn key(run: &Run, call: &Call) -> CallKey {
    CallKey { run: run.id(), call: call.index() }
}
