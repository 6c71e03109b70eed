//! Open runs at rest ([`Run::is_at_rest`]), packed. An entry, a timer or a check unpacks one; reading its state does
//! not.

use std::collections::BTreeMap;

use run::{CallState, Run, RunId, TenantId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::known::Known;
use crate::shard::{Carried, CarriedTo, OpenRun, Span};

/// Open runs of one shard that are at rest.
#[derive(Debug, Clone, Default)]
pub struct Resting {
    /// Each as a [`Head`], and then as [`Run::pack`] writes it.
    runs: BTreeMap<RunId, Box<[u8]>>,
    waiting: Waiting,
    tenants: BTreeMap<TenantId, InProgress>,
}

/// What calls at rest wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waiting {
    pub client_calls: u32,
    pub approvals: u32,
}

/// Runs of a tenant, and their calls that have not ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InProgress {
    pub runs: u32,
    pub calls: u32,
}

/// What is needed of a run without unpacking it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Head {
    first: u64,
    pub(crate) last: u64,
    carried: u64,
    stored_bytes: u64,
    carried_last: Option<Carried>,
    /// When the run is checked again.
    pub(crate) timer: Option<Timestamp>,
}

impl Resting {
    /// Takes a run if it is at rest. Returns whether it is.
    pub fn take(&mut self, open: &OpenRun, now: Timestamp) -> bool {
        let (known, run) = (&open.known, &*open.known.run);
        if !known.is_all_read() || !run.is_at_rest(now) {
            return false;
        }
        let head = Head {
            first: known.first,
            last: known.last,
            carried: known.carried,
            stored_bytes: open.stored_bytes,
            carried_last: open.carried,
            timer: run.next_deadline(),
        };
        let Some(packed) = run.pack().and_then(|state| head.before(&state)) else { return false };
        // It may be here already, if a shard is read twice.
        self.wake(run.id());
        self.count(run, u32::saturating_add);
        self.runs.insert(run.id(), packed);
        true
    }

    /// Takes a run out, because it is not at rest any more.
    pub(crate) fn wake(&mut self, id: RunId) -> Option<OpenRun> {
        let (head, run) = unpack(&self.runs.remove(&id)?)?;
        self.count(&run, u32::saturating_sub);
        let woken = Some(open_calls(&run));
        let (timer, stored_bytes, carried) = (head.timer, head.stored_bytes, head.carried_last);
        Some(OpenRun { known: head.known(run), timer, stored_bytes, carried, woken })
    }

    /// The state of a run.
    #[must_use]
    pub fn run(&self, id: RunId) -> Option<Known> {
        unpack(self.runs.get(&id)?).map(|(head, run)| head.known(run))
    }

    #[must_use]
    pub fn contains(&self, id: RunId) -> bool {
        self.runs.contains_key(&id)
    }

    /// The number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// What their calls wait for.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        self.waiting
    }

    /// The tenants that have runs here.
    pub fn tenants(&self) -> impl Iterator<Item = (&TenantId, InProgress)> {
        self.tenants.iter().map(|(tenant, counted)| (tenant, *counted))
    }

    pub(crate) fn heads(&self) -> impl Iterator<Item = (RunId, Head)> {
        self.runs.iter().filter_map(|(id, packed)| Some((*id, split(packed)?.0)))
    }

    /// As [`Span::handle_carried`].
    pub(crate) fn handle_carried(&mut self, id: RunId, to: CarriedTo, now: Timestamp) {
        let Some(packed) = self.runs.get_mut(&id) else { return };
        let Some((mut head, state)) = split(packed) else { return };
        let span = head.span().handle_carried(to, now);
        (head.carried, head.carried_last) = (span.carried, span.unsettled);
        if let Some(carried) = head.before(state) {
            *packed = carried;
        }
    }

    fn count(&mut self, run: &Run, add: fn(u32, u32) -> u32) {
        for call in run.calls() {
            let Waiting { client_calls, approvals } = &mut self.waiting;
            match call.state() {
                CallState::WaitingForClient => *client_calls = add(*client_calls, 1),
                CallState::AwaitingApproval => *approvals = add(*approvals, 1),
                _ => {}
            }
        }
        let Some(tenant) = run.tenant() else { return };
        let counted = self.tenants.entry(tenant.clone()).or_default();
        *counted = InProgress { runs: add(counted.runs, 1), calls: add(counted.calls, open_calls(run)) };
        if counted.runs == 0 {
            self.tenants.remove(tenant);
        }
    }
}

impl Head {
    /// The first entry of the run, if none of it is carried; otherwise 0.
    pub(crate) fn first_in_log(&self) -> u64 {
        if self.carried == 0 { self.first } else { 0 }
    }

    pub(crate) fn span(&self) -> Span {
        Span { first: self.first, last: self.last, carried: self.carried, unsettled: self.carried_last }
    }

    /// As [`OpenRun::needed_from`]: no call of the run has a job in use.
    pub(crate) fn needed_from(&self, now: Timestamp) -> u64 {
        self.span().uncarried_from(now)
    }

    /// The head, with the packed state behind it.
    fn before(&self, state: &[u8]) -> Option<Box<[u8]>> {
        let head = postcard::to_allocvec(self).ok()?;
        Some([head.as_slice(), state].concat().into_boxed_slice())
    }

    fn known(self, run: Run) -> Known {
        Known::at(run, (self.first, self.last), self.carried)
    }
}

fn split(packed: &[u8]) -> Option<(Head, &[u8])> {
    postcard::take_from_bytes(packed).ok()
}

fn unpack(packed: &[u8]) -> Option<(Head, Run)> {
    let (head, state) = split(packed)?;
    Some((head, Run::unpack(state)?))
}

/// The calls of a run that have not ended.
#[must_use]
pub fn open_calls(run: &Run) -> u32 {
    let calls = run.calls().iter().filter(|call| call.outcome().is_none()).count();
    u32::try_from(calls).unwrap_or(u32::MAX)
}
