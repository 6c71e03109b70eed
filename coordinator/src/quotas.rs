//! Quotas: how many runs and calls each tenant may have in progress, and at what rate it may add calls. They are shared
//! fairly among tenants, and among coordinators.
//!
//! The owner of each shard counts what is in progress, because it knows it from the log. A coordinator admits against
//! its own exact counts and the counts that the other coordinators report. They exchange counts through Redis, once a
//! second, and never while a request waits. Without Redis each coordinator enforces its part of the quota, in
//! proportion to the shards that it owns.

mod running;
mod waiting;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use owner::InProgress;
use owner::slots::{Counts, Slots, Whose};
use run::{RunId, TenantId};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::auth::callers::{Callers, Exceeded, Quota};
use crate::index::redis::RedisStore;
use crate::shards::Owned;
use crate::turns::TurnOrder;

/// How often coordinators exchange counts.
const EXCHANGE: Duration = Duration::from_secs(1);
/// How long a report is valid. A coordinator that has not reported for longer is gone, and others own its shards.
const REPORT_VALID: Duration = Duration::from_secs(5);
/// How long an admitted run may take to appear in the log.
const APPEND: Duration = Duration::from_secs(30);
/// Calls that may be added in a burst: those of a second.
const BURST: Duration = Duration::from_secs(1);
/// The retry hint if no time can be computed, because runs may end at any moment.
const AGAIN: Duration = Duration::from_secs(1);

/// The default quota of a tenant is the log divided by this: half of it. The space above 85 % of the log is for
/// accepted work, so one tenant leaves a third of the log to others.
const LOG_PARTS: u64 = 2;
/// Running calls of a tenant at its limit may write this fraction of the limit in addition: results of accepted calls.
const OUTPUT_PARTS: u64 = 8;
/// The retry hint if the log quota is reached: the oldest entries may age out at any moment, but it takes hours.
const LOG_AGAIN: Duration = Duration::from_secs(60);

/// Counts of a tenant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Usage {
    runs: u32,
    calls: u32,
    /// Calls that were accepted in the last second.
    accepted: u32,
    #[serde(default)]
    log_bytes: u64,
}

/// Bytes of a tenant in the log.
#[derive(Debug, Default)]
struct LogUse {
    /// In the shards that we own.
    stored: u64,
    /// Of requests that were admitted since `stored` was counted.
    admitted: u64,
}

/// The quotas of all tenants. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Quotas {
    callers: Callers,
    owned: watch::Receiver<Owned>,
    counted: Arc<Mutex<Counted>>,
    /// Whether coordinators exchange counts.
    shared: bool,
    /// Bytes that a tenant may have in the log if the file sets no limit.
    log_bytes: u64,
}

#[derive(Debug, Default)]
struct Counted {
    tenants: HashMap<TenantId, Tenant>,
    log: HashMap<TenantId, LogUse>,
    /// Counts that the others reported.
    others: HashMap<TenantId, Usage>,
    /// Calls that are queued or running, and those that wait for a slot of their tenant or tool.
    slots: Slots,
    /// What is queued or running at the others: calls that no running call made, and calls that running calls made.
    others_running: [Counts; 2],
}

#[derive(Debug, Default)]
struct Tenant {
    /// Runs that are not at rest.
    runs: HashMap<RunId, Under>,
    /// Runs at rest, and their calls.
    resting: InProgress,
    /// Calls of all of them.
    calls: u32,
    /// When the accepted calls are paid for, at the rate of the quota.
    paid: Option<Instant>,
    /// Accepted since the last report to the others.
    accepted: u32,
}

/// What a recount found of a tenant.
#[derive(Debug, Default)]
struct Seen {
    runs: HashMap<RunId, Under>,
    resting: InProgress,
}

#[derive(Debug)]
struct Under {
    /// Calls that have not ended.
    calls: u32,
    /// When it was admitted; `None` once the log has shown it.
    admitted: Option<Instant>,
}

impl Quotas {
    pub(crate) fn new(callers: Callers, owned: watch::Receiver<Owned>, (shared, log_bytes_max): (bool, i64)) -> Self {
        let log_bytes = u64::try_from(log_bytes_max).unwrap_or(u64::MAX) / LOG_PARTS;
        Self { callers, owned, counted: Arc::default(), shared, log_bytes }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        // After a panic the counts may be half updated; the next recount from the log corrects them.
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits calls of a tenant that are added to an open run, or refuses them.
    pub(crate) fn admit<'a>(
        &self,
        run: RunId,
        tenant: Option<&TenantId>,
        calls: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<(), Exceeded> {
        self.admit_calls((run, false), tenant, calls)
    }

    /// Calls that were admitted are not added to their run, because it refused them.
    pub(crate) fn refused(&self, run: RunId, tenant: Option<&TenantId>, calls: usize) {
        if let Some(tenant) = tenant.filter(|_| self.counts()) {
            self.counted().refused(run, tenant, u32::try_from(calls).unwrap_or(u32::MAX));
        }
    }

    fn admit_calls<'a>(
        &self,
        (run, is_new): (RunId, bool),
        tenant: Option<&TenantId>,
        calls: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<(), Exceeded> {
        let Some(tenant) = tenant.filter(|_| self.counts_log()) else { return Ok(()) };
        let count = u32::try_from(calls.len()).unwrap_or(u32::MAX);
        let bytes = calls.map(|arguments| arguments.len() as u64).sum();
        let (limits, now, quota) = (self.limits(), Instant::now(), self.callers.quota(tenant));
        let mut counted = self.counted();
        counted.admit_bytes(tenant, bytes, self.log_limit(tenant), &limits)?;
        quota.map_or(Ok(()), |quota| counted.admit((run, is_new, tenant), count, quota, &limits, now))
    }

    /// As [`Self::admit`], for a run that is about to be opened. It is given back if it is dropped before it is kept.
    pub(crate) fn admit_new<'a>(
        &self,
        run: RunId,
        tenant: Option<&TenantId>,
        calls: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<Admitted<'_>, Exceeded> {
        self.admit_calls((run, true), tenant, calls)?;
        Ok(Admitted { quotas: self, run, tenant: tenant.filter(|_| self.counts()).cloned(), is_kept: false })
    }

    /// Whether the tenants' bytes in the log are counted: if callers are authenticated, each tenant has a quota of it.
    pub(crate) fn counts_log(&self) -> bool {
        self.callers.are_known()
    }

    fn log_limit(&self, tenant: &TenantId) -> u64 {
        self.callers.quota(tenant).and_then(|quota| quota.log_bytes).unwrap_or(self.log_bytes)
    }

    /// Stores the tenants' bytes in the log of our shards. Returns how many more bytes their running calls may write.
    pub(crate) fn see_log(&self, totals: HashMap<TenantId, u64>) -> HashMap<TenantId, u64> {
        let mut counted = self.counted();
        let left = |(tenant, stored): (&TenantId, &u64)| (tenant.clone(), self.output_left(tenant, *stored, &counted));
        let left = totals.iter().map(left).collect();
        counted.log = totals.into_iter().map(|(tenant, stored)| (tenant, LogUse { stored, admitted: 0 })).collect();
        left
    }

    /// How many bytes the running calls of a tenant may write that has none counted in the log of our shards.
    pub(crate) fn log_left(&self, tenant: &TenantId) -> u64 {
        self.output_left(tenant, 0, &self.counted())
    }

    fn output_left(&self, tenant: &TenantId, stored: u64, counted: &Counted) -> u64 {
        let limit = self.log_limit(tenant);
        let may = self.limits().bytes(limit.saturating_add(limit / OUTPUT_PARTS), counted.others_log(tenant));
        may.saturating_sub(stored)
    }

    /// Why a call is cancelled that writes output beyond its tenant's quota of the log.
    pub(crate) fn log_full_for(&self, tenant: &TenantId) -> String {
        format!(
            "the runs of tenant {tenant} exceed their {} bytes of the log (quota log_bytes), and this call kept \
            producing output",
            self.log_limit(tenant)
        )
    }

    /// Whether calls of a tenant would be admitted, without admitting them. `run`: the run that they are added to.
    pub(crate) fn check(&self, run: Option<RunId>, tenant: Option<&TenantId>, calls: usize) -> Result<(), Exceeded> {
        let Some(tenant) = tenant.filter(|_| self.counts_log()) else { return Ok(()) };
        let calls = u32::try_from(calls).unwrap_or(u32::MAX);
        let (limits, now, quota) = (self.limits(), Instant::now(), self.callers.quota(tenant));
        let mut counted = self.counted();
        counted.admit_bytes(tenant, 0, self.log_limit(tenant), &limits)?;
        quota.map_or(Ok(()), |quota| counted.check((run.is_none(), tenant), calls, quota, &limits, now))
    }

    fn limits(&self) -> Limits {
        let owned = self.owned.borrow();
        Limits { shards: owned.shards().len() as u64, of_all: owned.of_all() as u64, shared: self.shared }
    }

    /// Called when a run has ended or was not stored.
    pub(crate) fn ended(&self, run: RunId, tenant: Option<&TenantId>) {
        if let Some(tenant) = tenant.filter(|_| self.counts()) {
            self.counted().ended(run, tenant);
        }
    }

    /// Whether any tenant has a quota: otherwise nothing needs to be counted.
    pub(crate) fn counts(&self) -> bool {
        self.callers.has_quotas()
    }

    /// Recounts all open runs of the shards that we own: those that are awake, each with its calls that have not ended,
    /// and those at rest, of each shard.
    pub(crate) fn look<'a>(
        &self,
        awake: impl Iterator<Item = (RunId, TenantId, u32)>,
        resting: impl Iterator<Item = (&'a TenantId, InProgress)>,
        is_at_rest: impl Fn(RunId) -> bool,
    ) {
        let now = Instant::now();
        let mut seen: HashMap<TenantId, Seen> = HashMap::new();
        for (run, tenant, calls) in awake {
            seen.entry(tenant).or_default().runs.insert(run, Under { calls, admitted: None });
        }
        for (tenant, more) in resting {
            let InProgress { runs, calls } = &mut seen.entry(tenant.clone()).or_default().resting;
            (*runs, *calls) = (runs.saturating_add(more.runs), calls.saturating_add(more.calls));
        }
        self.counted().see(seen, is_at_rest, now);
    }

    /// A run was at rest with so many calls that had not ended, and is no more.
    pub(crate) fn woken(&self, run: RunId, tenant: Option<&TenantId>, calls: u32) {
        if let Some(tenant) = tenant.filter(|_| self.counts()) {
            self.counted().woken(run, tenant, calls);
        }
    }

    /// Reports our counts to the other coordinators, and reads theirs.
    pub(crate) async fn keep(self, redis: Option<RedisStore>, turns: TurnOrder, stop: CancellationToken) {
        let member = format!("{:016x}", rand::random::<u64>());
        let mut tick = tokio::time::interval(EXCHANGE);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = tick.tick() => {}
            }
            let report = Report { waiting: waiting::report(turns.waiting()), ..self.counted().report() };
            let Some(redis) = redis.as_ref() else { continue };
            let text = serde_json::to_string(&report).expect("texts and numbers are JSON");
            match redis.exchange(&member, &text).await {
                Ok(reports) => {
                    let reports: Vec<Report> = reports.iter().filter_map(|report| fresh_report(report)).collect();
                    let mut counted = self.counted();
                    counted.others_running = running::sum(&reports);
                    turns.see_others(waiting::sum(&reports));
                    counted.others = sum(reports.into_iter());
                }
                // The last reports stay in effect, because we cannot tell that their coordinators are gone.
                Err(error) => tracing::debug!(%error, "exchanging quota counts failed"),
            }
        }
    }
}

/// A run that counts in its tenant's quota before it is opened.
#[derive(Debug)]
pub(crate) struct Admitted<'here> {
    quotas: &'here Quotas,
    run: RunId,
    tenant: Option<TenantId>,
    is_kept: bool,
}

impl Admitted<'_> {
    /// Its run is opened under another id.
    pub(crate) fn rename(&mut self, run: RunId) {
        if let Some(tenant) = self.tenant.as_ref().filter(|_| run != self.run) {
            self.quotas.counted().rename(tenant, self.run, run);
        }
        self.run = run;
    }

    /// Its run is opened.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            self.quotas.ended(self.run, self.tenant.as_ref());
        }
    }
}

/// The report of a coordinator to the others.
#[derive(Debug, Serialize, Deserialize)]
struct Report {
    at_ms: u64,
    tenants: BTreeMap<String, Usage>,
    /// Calls that are queued or running, by tenant and by tool, if any of them is limited.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    running_of_tenants: BTreeMap<String, u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    running_of_tools: BTreeMap<String, u32>,
    /// The same of calls that running calls made.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    made_of_tenants: BTreeMap<String, u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    made_of_tools: BTreeMap<String, u32>,
    /// Calls that wait for their turn, by pool and by tenant; runs without a tenant have an empty name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    waiting: BTreeMap<String, BTreeMap<String, u32>>,
}

fn fresh_report(text: &str) -> Option<Report> {
    let report: Report = serde_json::from_str(text).ok()?;
    let age = ::nats::now().since(run::Timestamp(report.at_ms));
    (age <= REPORT_VALID).then_some(report)
}

fn sum(reports: impl Iterator<Item = Report>) -> HashMap<TenantId, Usage> {
    let mut all: HashMap<TenantId, Usage> = HashMap::new();
    for (tenant, usage) in reports.flat_map(|report| report.tenants) {
        let Ok(tenant) = tenant.parse() else { continue };
        let sum = all.entry(tenant).or_default();
        sum.runs = sum.runs.saturating_add(usage.runs);
        sum.calls = sum.calls.saturating_add(usage.calls);
        sum.accepted = sum.accepted.saturating_add(usage.accepted);
        sum.log_bytes = sum.log_bytes.saturating_add(usage.log_bytes);
    }
    all
}

struct Limits {
    /// How many of all shards we own.
    shards: u64,
    of_all: u64,
    shared: bool,
}

impl Limits {
    /// The part of a limit that is left for us.
    fn left(&self, limit: u32, others: u32) -> u32 {
        if self.shared { limit.saturating_sub(others) } else { self.own(limit) }
    }

    /// The part of a rate that the others leave, and never less than our part, because they may be about to leave more.
    fn rate(&self, limit: u32, others: u32) -> u32 {
        if self.shared { limit.saturating_sub(others).max(self.own(limit)) } else { self.own(limit) }
    }

    /// The part of a tenant's bytes that is left for us. A coordinator without shards counts as having one, because it
    /// has just started.
    fn bytes(&self, limit: u64, others: u64) -> u64 {
        if self.shared {
            return limit.saturating_sub(others);
        }
        let part = u128::from(limit) * u128::from(self.shards.max(1)) / u128::from(self.of_all.max(1));
        u64::try_from(part).unwrap_or(u64::MAX)
    }

    /// Our part of a limit, at least one.
    fn own(&self, limit: u32) -> u32 {
        let shards = self.of_all.max(1);
        let own = (u64::from(limit) * self.shards).div_ceil(shards).max(1);
        u32::try_from(own).unwrap_or(u32::MAX).min(limit)
    }
}

impl Tenant {
    fn runs(&self) -> u32 {
        u32::try_from(self.runs.len()).unwrap_or(u32::MAX).saturating_add(self.resting.runs)
    }
}

impl Counted {
    /// Bytes of a tenant in the log of the other coordinators' shards.
    fn others_log(&self, tenant: &TenantId) -> u64 {
        self.others.get(tenant).map_or(0, |others| others.log_bytes)
    }

    fn admit_bytes(&mut self, tenant: &TenantId, bytes: u64, limit: u64, limits: &Limits) -> Result<(), Exceeded> {
        let may = limits.bytes(limit, self.others_log(tenant));
        let used = match self.log.get_mut(tenant) {
            Some(used) => used,
            None => self.log.entry(tenant.clone()).or_default(),
        };
        let wanted = used.stored.saturating_add(used.admitted).saturating_add(bytes);
        if wanted > may {
            let remedy = ". They become free 25 hours after they were stored. Raise log_bytes in the callers' file, \
                store less (large inputs as objects, `store: false`), or retry later";
            return Err(Exceeded { what: "bytes in the log", limit, remedy, retry_after: LOG_AGAIN });
        }
        used.admitted += bytes;
        Ok(())
    }

    fn admit(
        &mut self,
        (run, is_new, name): (RunId, bool, &TenantId),
        calls: u32,
        quota: Quota,
        limits: &Limits,
        now: Instant,
    ) -> Result<(), Exceeded> {
        self.check((is_new, name), calls, quota, limits, now)?;
        let others = self.others.get(name).copied().unwrap_or_default();
        let tenant = self.tenants.entry(name.clone()).or_default();
        if let Some(limit) = quota.calls_per_second {
            let paid = tenant.paid.unwrap_or(now).max(now);
            let rate = limits.rate(limit, others.accepted);
            tenant.paid = Some(paid + Duration::from_secs_f64(f64::from(calls) / f64::from(rate)));
        }
        tenant.accepted = tenant.accepted.saturating_add(calls);
        tenant.calls = tenant.calls.saturating_add(calls);
        let under = tenant.runs.entry(run).or_insert(Under { calls: 0, admitted: Some(now) });
        under.calls = under.calls.saturating_add(calls);
        Ok(())
    }

    fn check(
        &self,
        (is_new, name): (bool, &TenantId),
        calls: u32,
        quota: Quota,
        limits: &Limits,
        now: Instant,
    ) -> Result<(), Exceeded> {
        let others = self.others.get(name).copied().unwrap_or_default();
        let tenant = self.tenants.get(name);
        let exceeded =
            |what, limit: u32, retry_after| Err(Exceeded { what, limit: limit.into(), remedy: "", retry_after });
        let (runs, has_calls) = tenant.map_or((0, 0), |tenant| (tenant.runs(), tenant.calls));
        if let Some(limit) = quota.open_runs
            && is_new
            && runs >= limits.left(limit, others.runs)
        {
            return exceeded("open runs", limit, AGAIN);
        }
        if let Some(limit) = quota.calls_at_once
            && has_calls.saturating_add(calls) > limits.left(limit, others.calls)
        {
            return exceeded("calls at once", limit, AGAIN);
        }
        if let Some(limit) = quota.calls_per_second
            // A request may be larger than the rate; then the next one waits for it.
            && let Some(paid) = tenant.and_then(|tenant| tenant.paid)
            && let Some(wait) = paid.checked_duration_since(now + BURST).filter(|wait| !wait.is_zero())
        {
            return exceeded("calls a second", limit, wait);
        }
        Ok(())
    }

    /// Called when the run ended or was not stored.
    fn ended(&mut self, run: RunId, name: &TenantId) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        if let Some(under) = tenant.runs.remove(&run) {
            tenant.calls = tenant.calls.saturating_sub(under.calls);
        }
    }

    /// Gives back calls that were admitted for a run and not added to it. If the run's calls were counted from the
    /// log since then, the count does not include them and nothing is given back.
    fn refused(&mut self, run: RunId, name: &TenantId, calls: u32) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let Entry::Occupied(mut under) = tenant.runs.entry(run) else { return };
        if under.get().admitted.is_none() {
            return;
        }
        let left = under.get().calls.saturating_sub(calls);
        tenant.calls = tenant.calls.saturating_sub(under.get().calls - left);
        if left == 0 {
            under.remove();
        } else {
            under.get_mut().calls = left;
        }
    }

    fn woken(&mut self, run: RunId, name: &TenantId, calls: u32) {
        let Some(tenant) = self.tenants.get_mut(name).filter(|tenant| tenant.resting.runs > 0) else { return };
        match tenant.runs.entry(run) {
            Entry::Vacant(place) => drop(place.insert(Under { calls, admitted: None })),
            // Calls that are added to it were admitted.
            Entry::Occupied(mut under) if under.get().admitted.is_some() => {
                let under = under.get_mut();
                *under = Under { calls: under.calls.saturating_add(calls), admitted: None };
            }
            // A recount has found it awake.
            Entry::Occupied(_) => return,
        }
        let InProgress { runs, calls: resting } = &mut tenant.resting;
        (*runs, *resting) = (runs.saturating_sub(1), resting.saturating_sub(calls));
    }

    /// A run that is not opened yet gets another id. If the log shows that run already, it is counted there.
    fn rename(&mut self, name: &TenantId, from: RunId, to: RunId) {
        let Some(tenant) = self.tenants.get_mut(name) else { return };
        let Some(under) = tenant.runs.remove(&from) else { return };
        match tenant.runs.entry(to) {
            Entry::Vacant(free) => {
                free.insert(under);
            }
            Entry::Occupied(_) => tenant.calls = tenant.calls.saturating_sub(under.calls),
        }
    }

    /// The log replaces our counts, except for runs that were admitted just now.
    fn see(&mut self, mut seen: HashMap<TenantId, Seen>, is_at_rest: impl Fn(RunId) -> bool, now: Instant) {
        for (name, tenant) in &mut self.tenants {
            let Seen { mut runs, resting } = seen.remove(name).unwrap_or_default();
            for (run, under) in tenant.runs.drain() {
                if under.admitted.is_some_and(|admitted| now < admitted + APPEND) && !is_at_rest(run) {
                    runs.entry(run).or_insert(under);
                }
            }
            (tenant.runs, tenant.resting) = (runs, resting);
        }
        let new = seen.into_iter();
        let new = new.map(|(name, Seen { runs, resting })| (name, Tenant { runs, resting, ..Tenant::default() }));
        self.tenants.extend(new);
        self.tenants.retain(|_, tenant| {
            let awake: u32 = tenant.runs.values().map(|under| under.calls).sum();
            tenant.calls = awake.saturating_add(tenant.resting.calls);
            tenant.runs() > 0 || tenant.accepted > 0 || tenant.paid.is_some_and(|paid| paid > now)
        });
    }

    /// The report to the others, and whether any running calls are limited.
    fn report(&mut self) -> Report {
        let [(running_of_tenants, running_of_tools), (made_of_tenants, made_of_tools)] =
            [false, true].map(|are_made| {
                let (mut of_tenants, mut of_tools) = (BTreeMap::new(), BTreeMap::new());
                for (whose, count) in self.slots.counts(are_made) {
                    let sum: &mut u32 = match whose {
                        Whose::Tenant(tenant) => of_tenants.entry(tenant.to_string()).or_default(),
                        Whose::Tool(tool) => of_tools.entry(tool.to_string()).or_default(),
                    };
                    *sum = sum.saturating_add(count);
                }
                (of_tenants, of_tools)
            });
        let (at_ms, tenants, waiting) = (::nats::now().0, self.usages(), BTreeMap::new());
        Report { at_ms, tenants, running_of_tenants, running_of_tools, made_of_tenants, made_of_tools, waiting }
    }

    /// Our counts, for the others.
    fn usages(&mut self) -> BTreeMap<String, Usage> {
        let of = |tenant: &mut Tenant| Usage {
            runs: tenant.runs(),
            calls: tenant.calls,
            accepted: std::mem::take(&mut tenant.accepted),
            log_bytes: 0,
        };
        let mut usages: BTreeMap<String, Usage> =
            self.tenants.iter_mut().map(|(name, tenant)| (name.to_string(), of(tenant))).collect();
        for (name, used) in self.log.iter().filter(|(_, used)| used.stored > 0) {
            usages.entry(name.to_string()).or_default().log_bytes = used.stored;
        }
        usages
    }
}

#[cfg(test)]
mod tests;
