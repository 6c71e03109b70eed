//! The world that is tortured: a broker, a store, coordinators and workers, and the hands that strike them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use futures::StreamExt as _;
use harness::{Direction, Proxy};
use proto::names;
use run::Partition;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::Signal;
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use crate::brokers::Brokers;
use crate::check::{Broken, Violation};
use crate::language::{Language, Package};
use crate::process::{Launch, Process, memory_kib};
use crate::schedule::{Blow, Fault, Lane, Part};

pub(crate) const POOL: &str = "main";
/// Calls that one worker runs at once.
const SLOTS: u32 = 384;
/// How long a worker that is told to stop lets its calls end before it gives them back.
const DRAIN_S: u64 = 2;
/// With a history: messages of each partition of the log, and the part of them that runs which have ended may take. A
/// storm stores so many within a minute, so runs leave the log, and those that are open for longer are carried.
const LOG_MESSAGES: u64 = 400_000;
const TAIL_PERCENT: u8 = 1;
/// Workers of each package.
const PACKAGE_WORKERS: usize = 2;
/// How long after its end a run is erased that is not to be stored; the default of the product.
pub(crate) const ERASE_AFTER: Duration = Duration::from_secs(60);
/// How long a part may take to come back; with a broker that is down meanwhile.
const RETURN_LIMIT: Duration = Duration::from_secs(90);
/// How often it is tried.
const RETURN_POLL: Duration = Duration::from_millis(200);
/// How often processes without faults are checked.
const WATCH: Duration = Duration::from_millis(250);

/// A fault as it happened.
#[derive(Debug, Clone)]
pub(crate) struct Struck {
    pub(crate) part: Part,
    pub(crate) blow: Blow,
    pub(crate) index: usize,
    /// By this machine's clock, in ms: when it was struck, and when it was back.
    pub(crate) from: u64,
    pub(crate) until: u64,
}

/// Messages of the tasks that cause faults.
#[derive(Debug)]
pub(crate) enum Word {
    Struck(Struck),
    Violation(Violation),
}

#[derive(Debug)]
struct Slot {
    part: Part,
    index: usize,
    launch: Launch,
    /// Its way to each node of the broker.
    links: Vec<Proxy>,
    /// Locked while a lane has its hands on it.
    process: Mutex<Option<Process>>,
}

#[derive(Debug)]
pub(crate) struct World {
    folder: PathBuf,
    brokers: Mutex<Brokers>,
    store: Mutex<local::Store>,
    coordinators: Vec<Slot>,
    workers: Vec<Slot>,
    addresses: Vec<SocketAddr>,
    /// The clients' way to each coordinator.
    doors: Vec<Proxy>,
    /// The folder of the history, if there is one.
    history: Option<PathBuf>,
}

/// How many of each, and where they come from.
#[derive(Debug, Clone)]
pub(crate) struct Size {
    pub(crate) brokers: usize,
    pub(crate) coordinators: usize,
    pub(crate) workers: usize,
    /// Each has some more workers.
    pub(crate) packages: Vec<Package>,
    /// Runs leave the log soon, and are kept in a history.
    pub(crate) has_history: bool,
}

/// What a storm with a history is to show besides: that runs leave the log, and that open ones are carried.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// Entries that have left each partition of the log.
    pub(crate) entries: Vec<u64>,
    /// Parts of runs that are carried.
    pub(crate) parts: usize,
}

impl World {
    /// Starts everything; `folder` takes the logs.
    pub(crate) async fn start(size: &Size, folder: &Path) -> anyhow::Result<Self> {
        let fixture = fixture()?;
        let brokers = Brokers::start(size.brokers).await?;
        let store = local::Store::start(|line| eprintln!("{line}")).await?;
        let history = size.has_history.then(|| folder.join("runs"));
        let slot = |part, index: usize, links: Vec<Proxy>, (program, arguments): (PathBuf, Vec<String>)| {
            let log = folder.join(format!("{part:?}-{index}.log").to_lowercase());
            let filter = std::env::var("TOOLYARD_LOG").unwrap_or_else(|_| "info".to_owned());
            let durability = brokers.durability().to_owned();
            let mut environment = Package::environment();
            environment.extend([
                ("TOOLYARD_REDIS_URL", store.url()),
                ("TOOLYARD_LOG", filter),
                ("TOOLYARD_DURABILITY", durability),
                ("TOOLYARD_ERASE_AFTER", ERASE_AFTER.as_secs().to_string()),
            ]);
            if let Some(history) = &history {
                environment.extend([
                    ("TOOLYARD_HISTORY", format!("file://{}", history.display())),
                    ("TOOLYARD_LOG_MAX_MESSAGES", LOG_MESSAGES.to_string()),
                    ("TOOLYARD_TAIL_PERCENT", TAIL_PERCENT.to_string()),
                ]);
            }
            let launch = Launch { program, arguments, environment, log };
            Slot { part, index, launch, links, process: Mutex::new(None) }
        };
        let addresses = free_addresses(size.coordinators)?;
        let (mut coordinators, mut doors, mut workers) = (Vec::new(), Vec::new(), Vec::new());
        for (index, address) in addresses.iter().enumerate() {
            let (links, url) = links(&brokers).await?;
            let arguments = vec!["coordinator".to_owned(), url, address.to_string()];
            coordinators.push(slot(Part::Coordinator, index, links, (fixture.clone(), arguments)));
            doors.push(Proxy::to(*address).await?);
        }
        for index in 0..size.workers {
            let (links, url) = links(&brokers).await?;
            let (slots, drain) = (SLOTS.to_string(), DRAIN_S.to_string());
            let arguments = vec!["worker".to_owned(), url, POOL.to_owned(), slots, drain];
            workers.push(slot(Language::Rust.part(), index, links, (fixture.clone(), arguments)));
        }
        for package in &size.packages {
            for index in 0..PACKAGE_WORKERS {
                let (links, url) = links(&brokers).await?;
                workers.push(slot(package.language.part(), index, links, package.command(&url, SLOTS, DRAIN_S)));
            }
        }
        let (brokers, store) = (Mutex::new(brokers), Mutex::new(store));
        let world =
            Self { folder: folder.to_owned(), brokers, store, coordinators, workers, addresses, doors, history };
        for slot in world.slots() {
            *slot.process.lock().await = Some(slot.launch.start().await?);
        }
        Ok(world)
    }

    /// Gives the log so many partitions.
    pub(crate) async fn partition(&self, count: usize) -> anyhow::Result<()> {
        let url = self.brokers.lock().await.urls().join(",");
        let operator = coordinator::Operator::connect(&url, &nats::Credentials::default()).await?;
        operator.partition(count).await?;
        Ok(())
    }

    /// What has left the log, and what is carried beside it.
    pub(crate) async fn left(&self, partitions: usize) -> anyhow::Result<Left> {
        let urls = self.brokers.lock().await.urls();
        let nats = async_nats::jetstream::new(async_nats::connect(urls).await?);
        let mut entries = Vec::new();
        for partition in Partition::first(partitions) {
            let log = nats.get_stream(names::stream(partition)).await?;
            entries.push(log.cached_info().state.first_sequence.saturating_sub(1));
        }
        let carried = nats.get_stream(format!("KV_{}", names::CARRIED_BUCKET)).await?;
        let mut subjects = carried.info_with_subjects(">").await?;
        let mut parts = 0;
        while let Some(subject) = subjects.next().await {
            parts += usize::from(!subject?.0.contains(".fence."));
        }
        Ok(Left { entries, parts })
    }

    /// The addresses of the coordinators; they stay the same.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where clients reach the coordinators: through links that are held.
    pub(crate) fn doors(&self) -> Vec<SocketAddr> {
        self.doors.iter().map(Proxy::address).collect()
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.coordinators.iter().chain(&self.workers)
    }

    /// Strikes as a lane says until told to stop; what is down then is brought back first.
    pub(crate) async fn torment(&self, lane: Lane, words: mpsc::Sender<Word>, stop: CancellationToken) {
        for fault in lane {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(fault.after) => {}
            }
            let from = ::nats::now().0;
            let word = match self.strike(&fault, &words).await {
                Ok((part, index)) => {
                    let blow = fault.blow;
                    Word::Struck(Struck { part, blow, index, from, until: ::nats::now().0 })
                }
                Err(error) => {
                    let what = format!("{fault}: {error:#}");
                    Word::Violation(Violation { broken: Broken::Process, what })
                }
            };
            if words.send(word).await.is_err() {
                return;
            }
        }
    }

    /// Strikes, waits, and brings it back. Returns what was struck.
    async fn strike(&self, fault: &Fault, words: &mpsc::Sender<Word>) -> anyhow::Result<(Part, usize)> {
        let index = match fault.part {
            Part::Worker | Part::PythonWorker | Part::NodeWorker => {
                return strike_slot(&self.workers, fault, words).await;
            }
            Part::Coordinator => return strike_slot(&self.coordinators, fault, words).await,
            Part::Broker => self.brokers.lock().await.strike(fault.blow, fault.pick, fault.lasts).await?,
            Part::Store => {
                let mut store = self.store.lock().await;
                if fault.blow == Blow::Flush {
                    flush(store.port()).await.context("the store does not take FLUSHALL")?;
                } else {
                    store.kill().await;
                    tokio::time::sleep(fault.lasts).await;
                    store.restart().await.context("the store does not come back")?;
                }
                0
            }
            Part::CoordinatorLink => strike_link(&self.coordinators, fault).await,
            Part::WorkerLink => strike_link(&self.workers, fault).await,
            Part::History => {
                self.withhold_history(fault.lasts).await?;
                0
            }
            Part::ClientLink => {
                let index = fault.pick % self.doors.len().max(1);
                hold(self.doors.get(index..=index).unwrap_or_default(), fault).await;
                index
            }
        };
        Ok((fault.part, index))
    }

    /// Takes the files of the history away, so that nothing can be read or written there.
    async fn withhold_history(&self, lasts: Duration) -> anyhow::Result<()> {
        let folder = self.history.as_deref().context("there is a history only with --history")?;
        // A file in its place. Exchanged, so that nobody makes a folder in between.
        let (here, aside) = (folder.join("history"), folder.join("aside"));
        std::fs::write(&aside, b"")?;
        let exchange = || renameat_with(CWD, &here, CWD, &aside, RenameFlags::EXCHANGE);
        exchange().context("the history was written by now")?;
        tokio::time::sleep(lasts).await;
        exchange()?;
        Ok(std::fs::remove_file(&aside)?)
    }

    /// Restarts processes that ended without a fault.
    pub(crate) async fn look_after(&self, words: mpsc::Sender<Word>, stop: CancellationToken) {
        while !stop.is_cancelled() {
            for slot in self.slots() {
                // A lane that has its hands on it looks after it.
                let Ok(mut process) = slot.process.try_lock() else { continue };
                let Some(ended) = process.as_mut().and_then(Process::ended) else { continue };
                let what = format!(
                    "{:?} {} ended by itself with {ended}: {}",
                    slot.part,
                    slot.index,
                    last_words(&slot.launch.log)
                );
                let word = Word::Violation(Violation { broken: Broken::Process, what });
                if words.send(word).await.is_err() {
                    return;
                }
                match come_back(slot).await {
                    Ok(next) => *process = Some(next),
                    Err(error) => {
                        let what = format!("{:?} {} does not come back: {error:#}", slot.part, slot.index);
                        let violation = Violation { broken: Broken::Process, what };
                        drop(words.send(Word::Violation(violation)).await);
                        return;
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(WATCH) => {}
            }
        }
    }

    /// The memory of each kind of process: the most that one of them holds, in KiB.
    pub(crate) async fn memory_kib(&self) -> Vec<(&'static str, u64)> {
        let mut held = std::collections::BTreeMap::new();
        for slot in self.slots() {
            let Ok(process) = slot.process.try_lock() else { continue };
            let Some((_, most)) = process.as_ref().and_then(Process::pid).and_then(memory_kib) else { continue };
            let kind = match slot.part {
                Part::Worker => "worker",
                Part::PythonWorker => "worker in Python",
                Part::NodeWorker => "worker in Node",
                Part::Coordinator
                | Part::Broker
                | Part::Store
                | Part::CoordinatorLink
                | Part::WorkerLink
                | Part::ClientLink
                | Part::History => "coordinator",
            };
            let held: &mut u64 = held.entry(kind).or_default();
            *held = most.max(*held);
        }
        if let Ok(brokers) = self.brokers.try_lock() {
            held.insert("broker", brokers.memory_kib().unwrap_or_default());
        }
        held.into_iter().collect()
    }

    /// The end of the world.
    pub(crate) async fn end(self) {
        for slot in self.coordinators.into_iter().chain(self.workers) {
            if let Some(mut process) = slot.process.into_inner() {
                drop(process.kill().await);
            }
        }
        self.brokers.into_inner().stop(&self.folder).await;
        self.store.into_inner().stop().await;
    }
}

async fn strike_slot(slots: &[Slot], fault: &Fault, words: &mpsc::Sender<Word>) -> anyhow::Result<(Part, usize)> {
    // Another lane may have its hands on the one that was picked: then it is the next one's turn.
    let start = fault.pick % slots.len().max(1);
    let free = (start..start + slots.len()).find_map(|at| {
        let slot = slots.get(at % slots.len())?;
        Some((slot, slot.process.try_lock().ok()?))
    });
    let (slot, mut process) = free.context("every one of them is struck already")?;
    let victim = process.as_mut().context("it does not run")?;
    match fault.blow {
        Blow::Pause => {
            victim.signal(Signal::STOP)?;
            tokio::time::sleep(fault.lasts).await;
            victim.signal(Signal::CONT)?;
            return Ok((slot.part, slot.index));
        }
        Blow::Terminate => {
            let ended = victim.terminate().await?;
            if !ended.success() {
                let (part, index, log) = (slot.part, slot.index, last_words(&slot.launch.log));
                let what = format!("{part:?} {index} was told to stop and ended with {ended}: {log}");
                drop(words.send(Word::Violation(Violation { broken: Broken::Process, what })).await);
            }
        }
        Blow::Kill | Blow::Flush | Blow::Stall | Blow::HoldRequests | Blow::HoldAnswers | Blow::HoldBoth => {
            victim.kill().await?
        }
    }
    tokio::time::sleep(fault.lasts).await;
    *process = Some(come_back(slot).await?);
    Ok((slot.part, slot.index))
}

async fn strike_link(slots: &[Slot], fault: &Fault) -> usize {
    let index = fault.pick % slots.len().max(1);
    hold(slots.get(index).map(|slot| slot.links.as_slice()).unwrap_or_default(), fault).await;
    index
}

/// Holds all of these links, then heals or cuts them.
async fn hold(links: &[Proxy], fault: &Fault) {
    let direction = match fault.blow {
        Blow::HoldRequests => Direction::ToServer,
        Blow::HoldAnswers => Direction::ToClient,
        Blow::Kill | Blow::Pause | Blow::Terminate | Blow::Flush | Blow::Stall | Blow::HoldBoth => Direction::Both,
    };
    links.iter().for_each(|link| link.hold(direction));
    tokio::time::sleep(fault.lasts).await;
    links.iter().for_each(|link| if fault.cut { link.cut() } else { link.heal() });
}

/// A way to each node of the broker for one process, and the URL under which the process goes it.
async fn links(brokers: &Brokers) -> anyhow::Result<(Vec<Proxy>, String)> {
    let mut links = Vec::new();
    for url in brokers.urls() {
        links.push(Proxy::to_broker(&url).await?);
    }
    let urls: Vec<String> = links.iter().map(Proxy::nats_url).collect();
    Ok((links, urls.join(",")))
}

/// Starts it as often as is needed: where the broker is down too, it ends at once, as it should.
async fn come_back(slot: &Slot) -> anyhow::Result<Process> {
    let until = tokio::time::Instant::now() + RETURN_LIMIT;
    loop {
        match slot.launch.start().await {
            Ok(process) => return Ok(process),
            Err(error) if tokio::time::Instant::now() > until => return Err(error),
            Err(_) => tokio::time::sleep(RETURN_POLL).await,
        }
    }
}

async fn flush(port: u16) -> anyhow::Result<()> {
    let mut stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    stream.write_all(b"FLUSHALL\r\n").await?;
    let mut answer = [0; 5];
    tokio::io::AsyncReadExt::read_exact(&mut stream, &mut answer).await?;
    ensure!(&answer == b"+OK\r\n", "it answers {:?}", String::from_utf8_lossy(&answer));
    Ok(())
}

/// Ports that coordinators keep when they are started again.
fn free_addresses(count: usize) -> anyhow::Result<Vec<SocketAddr>> {
    let listeners = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let listeners = listeners.collect::<Result<Vec<_>, _>>()?;
    Ok(listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?)
}

/// The program that plays coordinators and workers lies beside this one.
fn fixture() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let fixture = own.with_file_name("fixture");
    ensure!(
        fixture.exists(),
        "{} is missing: build it with `cargo build --bins -p toolyard-tests`, with --release for this one",
        fixture.display()
    );
    Ok(fixture)
}

fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].join(" | ")
}
