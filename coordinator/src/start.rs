//! Starts the parts of a coordinator, each after those that it needs, and ends them in the reverse order: the API
//! first, then the shards are released, then the rest.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use ::hooks::Hooks;
use ::objects::Objects;
use ::owner::membership::CARRIES;
use run::{PoolId, Shard};

use crate::auth::callers::{Callers, CallersReload};
use crate::auth::tls::{CertificateReload, Current};
use crate::fleet::pools::{PoolRules, PoolsReload};
use crate::fleet::registry::Registry;
use crate::hook_notices::{self, HookNotices};
use crate::index::Index;
use crate::index::projector::Projector;
use crate::index::redis::RedisStore;
use crate::nats::Broker;
use crate::nats::journal::Journals;
use crate::nats::pauses::Pauses;
use crate::nats::requests::Requests;
use crate::nats::scan::Log;
use crate::nats::setup::LogOptions;
use crate::nats::signals::Signals;
use crate::objects::Results;
use crate::objects::uploads::Uploads;
use crate::overview::{Overview, OverviewShare};
use crate::owner::OwnerHandle;
use crate::quotas::Quotas;
use crate::schedules::{ScheduleTask, Schedules};
use crate::shards::Owned;
use crate::turns::TurnOrder;
use crate::{
    ConsoleOptions, Coordinator, DRAIN, Error, api, history_writer, index, monitor, nats, notifications, owner, runs,
};

/// Capacity of the channel of shards that were saved: more than can be in progress.
const WRITTEN_MAX: usize = 2 * ::owner::SHARDS_MAX;

/// The tasks of a coordinator beside its API.
struct Tasks {
    set: JoinSet<()>,
    /// Cancelled when the process is signalled to stop.
    stop: CancellationToken,
    /// Ends the tasks of `set`, after the shards were released.
    inner: CancellationToken,
}

impl Tasks {
    fn new(stop: CancellationToken) -> Self {
        Self { set: JoinSet::new(), stop, inner: CancellationToken::new() }
    }

    /// Starts a task that ends when its token is cancelled.
    fn spawn<T: Future<Output = ()> + Send + 'static>(&mut self, task: impl FnOnce(CancellationToken) -> T) {
        self.set.spawn(task(self.inner.clone()));
    }

    fn start_hook_notices(&mut self, hooks: &Hooks, registry: &watch::Receiver<Arc<Registry>>) -> HookNotices {
        let (notices, waiting) = hook_notices::new(hooks.clone(), registry.clone());
        self.spawn(|end| hook_notices::deliver(hooks.clone(), waiting, end));
        notices
    }

    fn start_quotas(
        &mut self,
        (callers, owned, turns): (&Callers, &watch::Receiver<Owned>, &TurnOrder),
        redis: Option<RedisStore>,
        log_bytes_max: i64,
    ) -> Quotas {
        let quotas = Quotas::new(callers.clone(), owned.clone(), (redis.is_some(), log_bytes_max));
        self.spawn(|end| quotas.clone().keep(redis, turns.clone(), end));
        quotas
    }

    /// Ends all tasks and leaves the broker, within [`DRAIN`].
    async fn end(mut self, uploads: Uploads, broker: &Broker) {
        self.inner.cancel();
        let leave_broker = async {
            uploads.end().await;
            while self.set.join_next().await.is_some() {}
            broker.flush().await;
        };
        if tokio::time::timeout(DRAIN, leave_broker).await.is_err() {
            tracing::warn!("shutdown did not finish within the drain time; the broker was not told");
        }
    }
}

/// Files from the options that a running coordinator reads again when they change.
struct Files {
    tls: Option<Current>,
    callers: Callers,
    rules: watch::Receiver<Arc<PoolRules>>,
}

impl Files {
    fn follow(
        tls: Option<(Current, CertificateReload)>,
        callers: Option<(Callers, CallersReload)>,
        pools: Option<(watch::Receiver<Arc<PoolRules>>, PoolsReload)>,
        tasks: &mut Tasks,
    ) -> Self {
        let (tls, reload) = tls.unzip();
        if let Some(reload) = reload {
            tasks.spawn(|end| reload.keep(end));
        }
        let (callers, reload) = callers.unzip();
        if let Some(reload) = reload {
            tasks.spawn(|end| reload.keep(end));
        }
        let (rules, reload) = pools.unzip();
        if let Some(reload) = reload {
            tasks.spawn(|end| reload.keep(end));
        }
        // Without a task that rereads the file, the rules stay as they are.
        let rules = rules.unwrap_or_else(|| watch::channel(Arc::default()).1);
        Self { tls, callers: callers.unwrap_or_default(), rules }
    }
}

/// State shared by several parts of a coordinator.
struct Shared {
    broker: Box<Broker>,
    objects: Objects,
    index: Index,
    callers: Callers,
    notices: Option<api::Notices>,
    hook_notices: HookNotices,
    journals: Journals,
    log: Log,
    requests: Requests,
    signals: Signals,
    quotas: Quotas,
    turns: TurnOrder,
    overview: Overview,
    pauses: Pauses,
    schedules: Schedules,
    registry: watch::Receiver<Arc<Registry>>,
    owned: watch::Receiver<Owned>,
    floor_policies: Arc<[run::AddedPolicy]>,
}

impl Shared {
    /// Starts the owner of this coordinator's shards and the tasks that work for it.
    fn start_owner(&self, written: mpsc::Sender<Shard>, tasks: &mut Tasks) -> OwnerHandle {
        let (projector, index_task) = index::projector::new(self.index.clone(), self.log.clone(), self.owned.clone());
        let figures = nats::overview::own_share();
        let shares = nats::overview::Shares::new(&self.broker, self.overview.clone(), figures.subscribe());
        let (handle, owner_task) = owner::new(self.owner_io(projector, written, figures));
        tasks.spawn(|end| owner_task.keep(end));
        tasks.spawn(|end| index_task.keep(end));
        let files = nats::files::FileRequests::new(&self.broker);
        tasks.spawn(|end| owner::files::serve(files, self.objects.clone(), handle.clone(), self.owned.clone(), end));
        if let Some(history) = self.journals.history().cloned() {
            let (journals, owner, owned) = (self.journals.clone(), handle.clone(), self.owned.clone());
            let results = Results { objects: self.objects.clone(), history: Some(history.clone()) };
            let writer = history_writer::HistoryWriter::new((history, journals, results), owner, owned);
            tasks.spawn(|end| writer.keep(end));
        }
        tasks.spawn(|end| shares.keep(end));
        let records = nats::records::Records::of(&self.broker);
        tasks.spawn(|end| owner::records::serve(records, handle.clone(), self.owned.clone(), end));
        handle
    }

    /// The IO of the owner of this coordinator's shards.
    fn owner_io(
        &self,
        index: Projector,
        written: mpsc::Sender<Shard>,
        overview: watch::Sender<OverviewShare>,
    ) -> owner::Io {
        let (webhooks, letters) = self.notices.clone().map(|notices| (notices.webhooks, notices.queue)).unzip();
        owner::Io {
            feeds: nats::feed::Feeds::new(&self.broker),
            journals: self.journals.clone(),
            requests: self.requests.clone(),
            snapshots: nats::snapshots::Snapshots::new(&self.broker),
            signals: self.signals.clone(),
            queues: nats::queues::Queues::new(&self.broker),
            owned: self.owned.clone(),
            written,
            registry: self.registry.clone(),
            index,
            callers: self.callers.clone(),
            quotas: self.quotas.clone(),
            turns: self.turns.clone(),
            overview,
            paused: self.pauses.current.clone(),
            webhooks: webhooks.unwrap_or_default(),
            letters,
            hook_notices: self.hook_notices.clone(),
            objects: self.objects.clone(),
            history: self.journals.history().cloned(),
            log: self.log.clone(),
        }
    }

    /// Reads the registry of tools and workers, and follows it.
    async fn start_registry(
        &self,
        registry: watch::Sender<Arc<Registry>>,
        (rules, on_demand): (watch::Receiver<Arc<PoolRules>>, HashSet<PoolId>),
        tasks: &mut Tasks,
    ) -> Result<(), Error> {
        let limits = nats::tools::Limits::default().with_on_demand(on_demand);
        let rules = (rules, self.callers.clone());
        let mut advertisements = nats::tools::RegistryTask::new(&self.broker, registry, rules, limits);
        advertisements.load().await?;
        tasks.spawn(|end| advertisements.keep(end));
        Ok(())
    }

    /// Starts the tasks that watch the broker, the workers and this process.
    fn start_monitoring(&self, log: &LogOptions, served: watch::Sender<bool>, tasks: &mut Tasks) {
        let (led_sender, led) = watch::channel(tokio::time::Instant::now());
        let partitions = nats::partitions::Partitions {
            broker: (*self.broker).clone(),
            journals: self.journals.clone(),
            signals: self.signals.clone(),
            registry: self.registry.clone(),
            owned: self.owned.clone(),
            pauses: self.pauses.clone(),
            tail: log.tail,
            led: led_sender,
        };
        tasks.spawn(|end| partitions.keep(end));
        let (told, stop) = (served.subscribe(), tasks.stop.clone());
        let memory = ((*self.broker).clone(), log.broker_memory);
        tasks.spawn(|end| monitor::usage::keep(memory, self.journals.clone(), self.index.clone(), end));
        tasks.spawn(|end| monitor::health::keep(led, self.owned.clone(), served, (stop.clone(), end)));
        let told = (told, self.registry.clone(), self.signals.clone());
        tasks.spawn(|end| monitor::health::tell_workers(told, (stop.clone(), end)));
    }

    /// The commands and readers of runs, for the API.
    fn runs(&self, handle: OwnerHandle, hooks: Hooks, (erase_after, attached_only): (Duration, bool)) -> runs::Runs {
        runs::Runs::new(runs::Parts {
            journals: self.journals.clone(),
            objects: self.objects.clone(),
            requests: self.requests.clone(),
            positions: nats::positions::Positions::new(&self.broker),
            ledger: handle,
            registry: self.registry.clone(),
            owned: self.owned.clone(),
            hooks,
            hook_notices: self.hook_notices.clone(),
            callers: self.callers.clone(),
            quotas: self.quotas.clone(),
            turns: self.turns.clone(),
            overview: self.overview.clone(),
            pauses: self.pauses.clone(),
            signals: self.signals.clone(),
            erase_after,
            attached_only,
            turn_offset: u64::from(rand::random::<u32>()),
        })
    }

    /// The API, and its uploads in progress; starts the delivery of notifications and the firing of schedules.
    fn api(
        &self,
        runs: runs::Runs,
        (is_tls, console): (bool, Option<ConsoleOptions>),
        tasks: &mut Tasks,
    ) -> (api::Api, Uploads) {
        if let Some(api::Notices { webhooks, queue }) = self.notices.clone() {
            tasks.spawn(|end| notifications::keep(webhooks, queue, self.owned.clone(), end));
        }
        let (owners, owned) = (runs.clone(), self.owned.clone());
        let find = move |request| owners.waits(request);
        let is_ours = move |shard| owned.borrow().holds(shard);
        tasks.spawn(|end| nats::positions::Positions::new(&self.broker).serve(find, is_ours, end));
        let uploads = Uploads::default();
        let firing = ScheduleTask::new(self.schedules.clone(), runs.clone(), self.owned.clone());
        tasks.spawn(|end| firing.keep(end));
        let (abandoned, left) = api::abandoned::queue(tasks.stop.clone());
        tasks.spawn(|end| api::abandoned::cancel(left, end));
        let parts = api::Parts {
            index: self.index.clone(),
            log: self.log.clone(),
            notices: self.notices.clone(),
            schedules: self.schedules.clone(),
            uploads: uploads.clone(),
            mcp: Arc::new(api::mcp::Shared::new(is_tls)),
            floor_policies: Arc::clone(&self.floor_policies),
            abandoned,
            inlined: Default::default(),
            console: console.map(Arc::new),
            stop: tasks.stop.clone(),
        };
        (api::Api::new(runs, parts), uploads)
    }

    /// The state that the admin port reports: ready while requests are served and the broker can store entries.
    fn process(
        &self,
        serving: Arc<AtomicBool>,
        served: watch::Receiver<bool>,
        stop: CancellationToken,
    ) -> telemetry::admin::Process {
        let (queues, registry) = (nats::queues::Queues::new(&self.broker), self.registry.clone());
        telemetry::admin::Process {
            is_ready: Box::new(move || serving.load(Ordering::Relaxed) && *served.borrow() && !stop.is_cancelled()),
            stats: Box::new(move || {
                let (queues, registry) = (queues.clone(), Arc::clone(&registry.borrow()));
                Box::pin(async move { queues.stats(&registry).await })
            }),
        }
    }
}

impl Coordinator {
    /// As [`Coordinator::serve`].
    pub(crate) async fn serve_in_place(
        self,
        stop: CancellationToken,
        ready: impl FnOnce() + Send,
    ) -> Result<(), Error> {
        let Self { broker, objects, history, index, notices, log: log_options, address, .. } = self;
        let mut tasks = Tasks::new(stop.clone());
        let clock = nats::clock::begin(&broker).await?;
        tasks.spawn(|end| nats::clock::keep(clock, end));
        let files = Files::follow(self.tls, self.callers, self.pools, &mut tasks);
        let (owned_sender, owned) = watch::channel(Owned::nothing());
        let (registry_sender, registry) = watch::channel(Arc::default());
        let (written_sender, written) = mpsc::channel(WRITTEN_MAX);
        let (served_sender, served) = watch::channel(false);
        let (pauses, pauses_watch) = nats::pauses::Pauses::load(&broker).await?;
        tasks.spawn(|end| pauses_watch.keep(registry.clone(), end));
        let schedules = Schedules::load(&broker, api::read_run).await?;
        let turns = TurnOrder::new(files.callers.clone(), owned.clone(), pauses.current.clone());
        let quotas = tasks.start_quotas((&files.callers, &owned, &turns), index.redis(), log_options.bytes_max);
        let journals = Journals::new(&broker, history);
        let hook_notices = tasks.start_hook_notices(&self.hooks, &registry);
        let shared = Shared {
            log: Log::new(&broker, journals.clone()),
            requests: Requests::new(&broker, log_options.request_ids_for),
            signals: Signals::new(&broker),
            broker,
            objects,
            index,
            callers: files.callers,
            notices,
            hook_notices,
            journals,
            quotas,
            turns,
            overview: Overview::default(),
            pauses,
            schedules,
            registry,
            owned,
            floor_policies: self.floor_policies.into(),
        };
        let handle = shared.start_owner(written_sender, &mut tasks);
        shared.start_registry(registry_sender, (files.rules, self.on_demand), &mut tasks).await?;
        shared.start_monitoring(&log_options, served_sender, &mut tasks);
        telemetry::process::begin("coordinator");
        let serving = Arc::new(AtomicBool::new(false));
        let [hosts, admin_hosts] = self.hosts;
        if let Some(listener) = self.admin {
            let process = shared.process(Arc::clone(&serving), served.clone(), stop.clone());
            tasks.spawn(|end| telemetry::admin::serve(listener, process, admin_hosts, end));
        }
        let who = format!("{address} {} {CARRIES}", env!("CARGO_PKG_VERSION"));
        let published = (owned_sender, shared.journals.counts());
        let membership = Box::pin(nats::leases::Membership::join(&shared.broker, who, published)).await?;
        let (leave, mut holding) = (CancellationToken::new(), JoinSet::new());
        holding.spawn(membership.hold(written, leave.clone()));
        let runs = shared.runs(handle, self.hooks, (self.erase_after, self.attached_only));
        let (api, uploads) = shared.api(runs, (files.tls.is_some(), self.console), &mut tasks);
        let (listener, tls, connections_max) = (self.listener, files.tls, self.connections_max);
        let requests = api::serve(api::Port { listener, tls, connections_max, hosts }, api, served, || {
            tracing::info!(%address, "serving");
            serving.store(true, Ordering::Relaxed);
            ready();
        });
        until_stopped(requests, &mut tasks, &mut holding).await?;
        leave.cancel();
        holding.join_next().await;
        tasks.end(uploads, &shared.broker).await;
        Ok(())
    }
}

/// Serves requests until the process is signalled to stop and they have ended, or [`DRAIN`] has passed.
async fn until_stopped(
    requests: impl Future<Output = ()>,
    tasks: &mut Tasks,
    holding: &mut JoinSet<()>,
) -> Result<(), Error> {
    let stop = tasks.stop.clone();
    let overdue = async {
        stop.cancelled().await;
        tokio::time::sleep(DRAIN).await;
    };
    tokio::select! {
        () = requests => Ok(()),
        () = overdue => {
            tracing::warn!("requests did not end within {DRAIN:?}, dropping them");
            Ok(())
        }
        _ = tasks.set.join_next() => Err(Error::Died),
        _ = holding.join_next() => Err(Error::Died),
    }
}
