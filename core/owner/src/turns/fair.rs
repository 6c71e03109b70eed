//! Waiting calls in a fair order: tenants share by weight, and each tenant's calls come by priority.

use std::collections::{BTreeMap, BTreeSet};

use run::Timestamp;

use super::waiting::Waiting;
use super::{CallKey, Claim, Look, Position, Tenant, WEIGHT_MAX};

/// What one call of a tenant with weight 1 costs, in virtual time.
const COST: u64 = 1 << 30;
/// A tenant's share is in thousandths.
pub(super) const WHOLE: u64 = 1000;
/// So many tenants are remembered whether or not calls of theirs wait.
const IDLE_TENANTS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    /// The virtual time at which the last call was taken.
    now: u64,
    tenants: BTreeMap<Tenant, TenantState>,
    /// Tenants with waiting calls, by the virtual time at which their next call starts.
    order: BTreeSet<(u64, Tenant)>,
    waiting: usize,
    /// The number of tenants above which idle ones are looked for.
    tenants_max: usize,
}

#[derive(Debug)]
struct TenantState {
    weight: u32,
    /// The part of its waiting calls that wait here, in thousandths: the others are served elsewhere.
    share: u64,
    /// When its next call starts, in virtual time.
    next: u64,
    calls: Waiting,
}

impl TenantState {
    fn cost(&self) -> u64 {
        COST * WHOLE / (u64::from(self.weight.clamp(1, WEIGHT_MAX)) * self.share)
    }
}

impl FairQueue {
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting > 0
    }

    pub(crate) fn waiting_by_priority(&self) -> [usize; 3] {
        let mut all = [0; 3];
        for tenant in self.tenants.values() {
            all.iter_mut().zip(tenant.calls.by_priority()).for_each(|(sum, count)| *sum += count);
        }
        all
    }

    pub(crate) fn demand(&self) -> impl Iterator<Item = (&Tenant, u32)> {
        let waits = self.tenants.iter().filter(|(_, tenant)| tenant.calls.len() > 0);
        waits.map(|(name, tenant)| (name, u32::try_from(tenant.calls.len()).unwrap_or(u32::MAX)))
    }

    /// Sets the parts of the tenants' waiting calls that wait here.
    pub(super) fn set_shares(&mut self, share: impl Fn(&Tenant) -> u64) {
        self.tenants.iter_mut().for_each(|(name, tenant)| tenant.share = share(name).clamp(1, WHOLE));
    }

    /// `is_first`: the call has had its turn and could not use it.
    pub(crate) fn insert(&mut self, (key, is_first): (CallKey, bool), claim: &Claim, now: Timestamp) {
        let Claim { tenant: name, weight, .. } = claim;
        let start = self.now;
        let tenant = self.tenants.entry(name.clone()).or_insert_with(|| TenantState {
            weight: *weight,
            share: WHOLE,
            next: start,
            calls: Waiting::default(),
        });
        tenant.weight = *weight;
        let before = tenant.calls.len();
        if before == 0 {
            tenant.next = tenant.next.max(start);
            self.order.insert((tenant.next, name.clone()));
        }
        tenant.calls.insert((key, is_first), claim, now);
        self.waiting += tenant.calls.len() - before;
    }

    pub(crate) fn remove(&mut self, name: &Tenant, key: CallKey) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let before = tenant.calls.len();
        tenant.calls.remove(key);
        self.waiting -= before - tenant.calls.len();
        if tenant.calls.len() == 0 {
            self.order.remove(&(tenant.next, name.clone()));
        }
        self.forget_idle();
    }

    pub(crate) fn take(&mut self, now: Timestamp) -> Option<(Tenant, CallKey)> {
        let (start, name) = self.order.pop_first()?;
        let tenant = self.tenants.get_mut(&name)?;
        let key = tenant.calls.take(now)?;
        self.waiting -= 1;
        self.now = start;
        tenant.next = start + tenant.cost();
        if tenant.calls.len() > 0 {
            self.order.insert((tenant.next, name.clone()));
        }
        self.forget_idle();
        Some((name, key))
    }

    /// A call that was taken was not handed out, so it costs its tenant nothing.
    pub(crate) fn refund(&mut self, name: &Tenant) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let waits = self.order.remove(&(tenant.next, name.clone()));
        tenant.next = tenant.next.saturating_sub(tenant.cost());
        if waits {
            self.order.insert((tenant.next, name.clone()));
        }
    }

    /// The position of a call. A reader may ask for it over and over, and calls are not handed out meanwhile, so it
    /// looks at a bounded number of runs and tenants.
    pub(crate) fn position(&mut self, name: &Tenant, key: CallKey, now: Timestamp) -> Option<Position> {
        let mut look = Look::default();
        let tenant = self.tenants.get_mut(name)?;
        let (own, priority) = tenant.calls.ahead(key, now, &mut look)?;
        let at = tenant.next + own as u64 * tenant.cost();
        let start_before = look.at(self.order.range(..(at, name.clone())));
        let of_others = start_before.filter(|(_, other)| other != name).map(|(next, other)| {
            let Some(tenant) = self.tenants.get(other) else { return 0 };
            let (full, rest) = ((at - next) / tenant.cost(), (at - next) % tenant.cost());
            // Of two that start at the same time, the tenant whose name sorts first is taken first.
            let starts = full + u64::from(rest > 0 || other < name);
            tenant.calls.len().min(usize::try_from(starts).unwrap_or(usize::MAX))
        });
        let ahead = own + of_others.sum::<usize>();
        Some(Position { ahead, is_exact: !look.is_cut, waiting: self.waiting, priority })
    }

    /// Tenants that owe nothing are forgotten.
    fn forget_idle(&mut self) {
        if self.waiting == 0 {
            self.tenants.clear();
            (self.now, self.tenants_max) = (0, 0);
        } else if self.tenants.len() > self.tenants_max.max(IDLE_TENANTS_MAX) {
            let now = self.now;
            self.tenants.retain(|_, tenant| tenant.calls.len() > 0 || tenant.next > now);
            // Each look costs as much as there are tenants.
            self.tenants_max = 2 * self.tenants.len();
        }
    }
}
