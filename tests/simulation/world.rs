//! The world: virtual time, links that delay, lose and repeat, processes that crash, pause and are cut off, each by
//! the seed.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use run::Timestamp;

use crate::broker::{Broker, worker_id};
use crate::chance::Chance;
use crate::client::Client;
use crate::coordinator::Coordinator;
use crate::net::{Flaw, Message, Net, Node, Paused};
use crate::promises::Promises;
use crate::worker::Worker;
use crate::{CLIENTS, COORDINATORS, POOLS, TOOLS, WORKERS};

pub(crate) const START: u64 = 1_700_000_000_000;
/// How much a process's clock may differ from the broker's.
pub(crate) const SKEW_MS: u64 = 400;
const BROKER_TICK: u64 = 250;
const TICK: u64 = 500;
/// How long faults happen, and how long the world goes on well afterwards, before everybody leaves but one
/// coordinator.
const FAULTS_MS: (u64, u64) = (15_000, 60_000);
const CALM_MS: u64 = 12_000;
const WORLD_ENDS_MS: u64 = 400_000;
/// The time that an owner may need beyond a deadline: to take the shard over, to wake, and to append.
const SLACK: Duration = Duration::from_secs(15);

#[derive(Debug, PartialEq)]
pub(crate) struct Report {
    pub(crate) trace: u64,
    pub(crate) steps: u64,
    pub(crate) broken: Option<String>,
    /// The log of the run that it is about.
    pub(crate) story: String,
    pub(crate) tally: BTreeMap<&'static str, u32>,
}

#[expect(clippy::large_enum_variant, reason = "a test holds few of them")]
enum What {
    Message {
        from: Node,
        to: Node,
        life: u32,
        message: Message,
    },
    /// `regular` wakes come again by themselves.
    Wake {
        node: Node,
        life: u32,
        regular: bool,
    },
    Fault(Fault),
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    Crash(Node),
    Restart(Node),
    Pause(Node, u64),
    Cut(Node, u64),
    Outage(u64),
    ForgetDeliveries,
    Drain(usize),
    StallAndDrain(usize, u64),
    PauseTool(&'static str, u64),
    PausePool(&'static str, u64),
    Resume(&'static str),
    Calm,
    Alone,
}

enum Process {
    Coordinator(Box<Coordinator>),
    Worker(Worker),
    Client(Box<Client>),
}

struct Host {
    process: Option<Process>,
    life: u32,
    skew: u64,
    paused_until: u64,
    cut_until: u64,
}

struct World {
    flaw: Flaw,
    now: u64,
    ties: u64,
    queue: BTreeMap<(u64, u64), What>,
    chance: Chance,
    broker: Broker,
    broker_down_until: u64,
    paused: Paused,
    hosts: BTreeMap<Node, Host>,
    /// When the last message on a link arrives: a connection keeps its order.
    /// A feed is delivered by a consumer of its own, and has an order of its own.
    links: BTreeMap<(Node, Node, bool), u64>,
    promises: Promises,
    tokens: u64,
    rough: bool,
    link_was_cut: bool,
    alone: bool,
    /// When the last fault was over.
    quiet: u64,
    hasher: DefaultHasher,
    steps: u64,
}

/// Plays a world to its end.
pub(crate) fn play(seed: u64, flaw: Flaw) -> Report {
    let mut world = World::new(seed, flaw);
    world.begin();
    while world.promises.broken.is_none()
        && let Some(((at, _), what)) = world.queue.pop_first()
    {
        world.now = at;
        if at > START + WORLD_ENDS_MS || world.is_over() {
            break;
        }
        world.steps += 1;
        world.step(what);
    }
    world.promises.all_ended(Timestamp(world.quiet), SLACK);
    let read = world.clients().all(Client::has_read_all);
    world.promises.check(read, || "a client did not hear its run's end".to_owned());
    let World { hasher, steps, promises, .. } = world;
    let story = promises.story();
    Report { trace: hasher.finish(), steps, broken: promises.broken, story, tally: promises.tally }
}

impl World {
    fn new(seed: u64, flaw: Flaw) -> Self {
        Self {
            flaw,
            now: START,
            ties: 0,
            queue: BTreeMap::new(),
            chance: Chance::new(seed),
            broker: Broker::default(),
            broker_down_until: 0,
            paused: Paused::default(),
            hosts: BTreeMap::new(),
            links: BTreeMap::new(),
            promises: Promises::default(),
            tokens: 0,
            rough: true,
            link_was_cut: false,
            alone: false,
            quiet: START,
            hasher: DefaultHasher::new(),
            steps: 0,
        }
    }

    fn begin(&mut self) {
        let nodes = (0..COORDINATORS).map(Node::Coordinator).chain((0..WORKERS).map(Node::Worker));
        for node in nodes.chain((0..CLIENTS).map(Node::Client)) {
            let skew = self.chance.between(0, 2 * SKEW_MS);
            let host = Host { process: None, life: 0, skew, paused_until: 0, cut_until: 0 };
            self.hosts.insert(node, host);
            self.start(node);
        }
        self.later(BROKER_TICK, What::Wake { node: Node::Broker, life: 0, regular: true });
        let until = self.chance.between(FAULTS_MS.0, FAULTS_MS.1);
        for _ in 0..self.chance.between(0, 14) {
            let at = self.chance.between(0, until);
            let fault = self.any_fault();
            let over = match fault {
                Fault::Pause(_, ms)
                | Fault::Cut(_, ms)
                | Fault::Outage(ms)
                | Fault::StallAndDrain(_, ms)
                | Fault::PauseTool(_, ms)
                | Fault::PausePool(_, ms) => ms + 10_000,
                _ => 10_000,
            };
            self.quiet = self.quiet.max(START + at + over);
            self.later(at, What::Fault(fault));
        }
        self.quiet = self.quiet.max(START + until);
        let calm = self.quiet - START;
        self.later(calm, What::Fault(Fault::Calm));
        let left = self.chance.between(0, CALM_MS);
        self.later(calm + left, What::Fault(Fault::Alone));
        self.quiet += left;
    }

    fn any_fault(&mut self) -> Fault {
        let coordinator = Node::Coordinator(self.below(COORDINATORS));
        let worker = Node::Worker(self.below(WORKERS));
        let client = Node::Client(self.below(CLIENTS));
        match self.chance.between(0, 20) {
            0..2 => Fault::Crash(coordinator),
            2..5 => Fault::Crash(worker),
            5 => Fault::Pause(coordinator, self.chance.between(500, 20_000)),
            6..8 => Fault::Pause(worker, self.chance.between(500, 50_000)),
            8 => Fault::Cut(coordinator, self.chance.between(500, 20_000)),
            9 => Fault::Cut(worker, self.chance.between(500, 50_000)),
            10 => Fault::Cut(client, self.chance.between(500, 20_000)),
            11 => Fault::Outage(self.chance.between(500, 12_000)),
            12..14 => Fault::ForgetDeliveries,
            14..16 => Fault::Pause(worker, self.chance.between(100, 6000)),
            16 => Fault::StallAndDrain(self.below(WORKERS), self.chance.between(4000, 12_000)),
            18 => Fault::PauseTool(TOOLS[self.below(TOOLS.len())], self.chance.between(2000, 60_000)),
            19 => Fault::PausePool(POOLS[self.below(POOLS.len())], self.chance.between(2000, 60_000)),
            _ => Fault::Drain(self.below(WORKERS)),
        }
    }

    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.chance.next()).unwrap_or(0) % count
    }

    fn later(&mut self, ms: u64, what: What) {
        self.ties += 1;
        self.queue.insert((self.now + ms, self.ties), what);
    }

    fn clients(&self) -> impl Iterator<Item = &Client> {
        self.hosts.values().filter_map(|host| match &host.process {
            Some(Process::Client(client)) => Some(&**client),
            Some(Process::Coordinator(_) | Process::Worker(_)) | None => None,
        })
    }

    fn is_over(&self) -> bool {
        self.alone
            && self.promises.runs().all(|run| run.status().is_final())
            && self.promises.is_settled()
            && self.clients().all(Client::has_read_all)
    }

    // Processes.

    fn start(&mut self, node: Node) {
        let life = self.hosts.get(&node).map_or(0, |host| host.life + 1);
        let process = self.with_net(node, |_, _, net| match node {
            Node::Broker => None,
            Node::Coordinator(_) => Some(Process::Coordinator(Box::new(Coordinator::new(net)))),
            Node::Worker(index) => {
                let pool = POOLS[index % POOLS.len()].parse().expect("a pool name");
                Some(Process::Worker(Worker::new(worker_id(index, life), pool, net.now)))
            }
            Node::Client(_) => Some(Process::Client(Box::new(Client::new(net)))),
        });
        let first = self.chance.between(1, TICK);
        if let Some(host) = self.hosts.get_mut(&node) {
            (host.process, host.life, host.paused_until) = (process, life, 0);
        }
        self.later(first, What::Wake { node, life, regular: true });
    }

    /// Lets a process see the world, and does what it wants afterwards.
    fn with_net<T>(&mut self, me: Node, step: impl FnOnce(&mut Broker, &mut Option<Process>, &mut Net<'_>) -> T) -> T {
        let (mut process, skew, life) = match self.hosts.get_mut(&me) {
            Some(host) => (host.process.take(), host.skew, host.life),
            None => (None, SKEW_MS, 0),
        };
        let is_broker = me == Node::Broker;
        let log = if is_broker { Vec::new() } else { std::mem::take(&mut self.broker.log) };
        let leases = if is_broker { Vec::new() } else { std::mem::take(&mut self.broker.leases) };
        let snapshots = if is_broker { BTreeMap::new() } else { std::mem::take(&mut self.broker.snapshots) };
        let mut net = Net {
            now: Timestamp(self.now + skew - SKEW_MS),
            flaw: self.flaw,
            chance: &mut self.chance,
            log: &log,
            leases: &leases,
            snapshots: &snapshots,
            paused: &self.paused,
            promises: &mut self.promises,
            tokens: &mut self.tokens,
            outbox: Vec::new(),
            wake_in: Vec::new(),
            gone: false,
            rough: self.rough,
            link_was_cut: self.link_was_cut,
        };
        let result = step(&mut self.broker, &mut process, &mut net);
        let Net { outbox, wake_in, gone, .. } = net;
        if !is_broker {
            (self.broker.log, self.broker.leases, self.broker.snapshots) = (log, leases, snapshots);
        }
        if let Some(host) = self.hosts.get_mut(&me) {
            host.process = process.filter(|_| !gone);
        }
        for (to, message) in outbox {
            self.send(me, to, message);
        }
        for wait in wake_in {
            let wait = u64::try_from(wait.as_millis()).unwrap_or(0);
            self.later(wait, What::Wake { node: me, life, regular: false });
        }
        if gone && self.rough {
            let ms = self.chance.between(500, 8000);
            self.later(ms, What::Fault(Fault::Restart(me)));
        }
        result
    }

    // Links.

    fn send(&mut self, from: Node, to: Node, message: Message) {
        let through_broker = from == Node::Broker || to == Node::Broker;
        let is_feed = matches!(message, Message::LogGrew { .. } | Message::LeasesChanged { .. });
        let is_stream = is_feed || matches!(message, Message::Pieces { .. });
        let is_append = matches!(
            message,
            Message::Append { .. } | Message::WriteSnapshot { .. } | Message::Purge { .. } | Message::Notify { .. }
        );
        // Of what a coordinator appends, some waits for its connection.
        if self.rough && is_append && matches!(from, Node::Coordinator(_)) && self.chance.percent(2) {
            let wait = self.chance.between(10_000, 40_000);
            return self.later(wait, What::Message { from, to, life: 0, message });
        }
        let lost = (through_broker && self.now < self.broker_down_until)
            || self.is_cut(from)
            || self.is_cut(to)
            || (self.rough && !is_stream && self.chance.percent(if is_append { 3 } else { 1 }));
        if lost {
            return;
        }
        let usual = self.chance.between(1, 6);
        let delay = if self.rough && self.chance.percent(if is_feed || is_append { 10 } else { 3 }) {
            self.chance.between(10, 3000)
        } else {
            usual
        };
        let arrival = self.links.entry((from, to, is_feed)).or_insert(0);
        *arrival = (self.now + delay).max(*arrival);
        let delay = *arrival - self.now;
        let life = self.hosts.get(&to).map_or(0, |host| host.life);
        // A publisher that was cut off may find that it sent a message twice.
        if self.rough && is_append && self.chance.percent(1) {
            // A client library keeps what it could not send for as long as it takes.
            let longest = if matches!(from, Node::Coordinator(_)) { 40_000 } else { 5000 };
            let again = delay + self.chance.between(0, longest);
            self.later(again, What::Message { from, to, life, message: message.clone() });
        }
        self.later(delay, What::Message { from, to, life, message });
    }

    fn is_cut(&self, node: Node) -> bool {
        self.hosts.get(&node).is_some_and(|host| self.now < host.cut_until)
    }

    // Steps.

    fn step(&mut self, what: What) {
        let node = match &what {
            What::Message { to: node, .. } | What::Wake { node, .. } => *node,
            What::Fault(fault) => {
                let fault = *fault;
                format!("{fault:?}").hash(&mut self.hasher);
                return self.fault(fault);
            }
        };
        if node == Node::Broker {
            return self.broker_step(what);
        }
        let Some(host) = self.hosts.get(&node) else { return };
        let (What::Message { life, .. } | What::Wake { life, .. }) = what else { return };
        if host.life != life || host.process.is_none() {
            return;
        }
        if self.now < host.paused_until {
            // A process that wakes up goes on with what it knew, and then gets the messages that came meanwhile.
            let wait = host.paused_until - self.now;
            return self.later(wait, what);
        }
        match what {
            What::Message { from, message, .. } => {
                (self.now, node, from, format!("{message:?}")).hash(&mut self.hasher);
                self.with_net(node, |_, process, net| match process {
                    Some(Process::Coordinator(coordinator)) => coordinator.hear(from, message, net),
                    Some(Process::Worker(worker)) => worker.hear(message, net),
                    Some(Process::Client(client)) => client.hear(message, net),
                    None => {}
                });
            }
            What::Wake { regular, .. } => {
                (self.now, node).hash(&mut self.hasher);
                self.with_net(node, |_, process, net| match process {
                    Some(Process::Coordinator(coordinator)) => {
                        // A lost message is replaced by the log, in time.
                        if net.chance.percent(10) {
                            coordinator.hear(Node::Broker, Message::LogGrew { through: net.log.len() as u64 }, net);
                        }
                        coordinator.wake(net);
                    }
                    Some(Process::Worker(worker)) => worker.wake(net),
                    Some(Process::Client(client)) => client.wake(net),
                    None => {}
                });
                if regular {
                    self.later(TICK, What::Wake { node, life, regular });
                }
            }
            What::Fault(_) => {}
        }
    }

    fn broker_step(&mut self, what: What) {
        let is_down = self.now < self.broker_down_until;
        match what {
            What::Message { from, message, .. } if !is_down => {
                (self.now, from, format!("{message:?}")).hash(&mut self.hasher);
                let everybody: Vec<Node> =
                    self.hosts.iter().filter(|(_, host)| host.process.is_some()).map(|(node, _)| *node).collect();
                self.with_net(Node::Broker, |broker, _, net| broker.hear(from, message, net, &everybody));
            }
            What::Wake { .. } => {
                if !is_down {
                    self.with_net(Node::Broker, |broker, _, net| broker.deliver(net));
                }
                self.later(BROKER_TICK, What::Wake { node: Node::Broker, life: 0, regular: true });
            }
            What::Message { .. } | What::Fault(_) => {}
        }
    }

    fn fault(&mut self, fault: Fault) {
        let now = self.now;
        match fault {
            Fault::Crash(node) => {
                if let Some(host) = self.hosts.get_mut(&node) {
                    host.process = None;
                    host.life += 1;
                }
                self.broker.forget_pulls(node);
                let ms = self.chance.between(500, 9000);
                self.later(ms, What::Fault(Fault::Restart(node)));
            }
            Fault::Restart(node) => {
                let is_dead = self.hosts.get(&node).is_some_and(|host| host.process.is_none());
                if is_dead && !self.alone {
                    self.start(node);
                }
            }
            Fault::Pause(node, ms) => {
                if let Some(host) = self.hosts.get_mut(&node) {
                    host.paused_until = now + ms;
                }
            }
            Fault::Cut(node, ms) => {
                if let Some(host) = self.hosts.get_mut(&node) {
                    host.cut_until = now + ms;
                    self.link_was_cut = true;
                }
            }
            Fault::Outage(ms) => {
                self.broker_down_until = now + ms;
                self.broker.restart();
            }
            Fault::ForgetDeliveries => {
                self.promises.jobs_repeat = true;
                self.broker.forget_deliveries(Timestamp(now));
            }
            Fault::Drain(index) => {
                if let Some(Host { process: Some(Process::Worker(worker)), .. }) =
                    self.hosts.get_mut(&Node::Worker(index))
                {
                    worker.leaving = true;
                }
            }
            Fault::StallAndDrain(index, ms) => {
                self.fault(Fault::Drain(index));
                self.fault(Fault::Pause(Node::Worker(index), ms));
            }
            Fault::PauseTool(tool, ms) => {
                self.paused.tools.entry(tool).or_insert(Timestamp(now));
                self.later(ms, What::Fault(Fault::Resume(tool)));
            }
            Fault::PausePool(pool, ms) => {
                self.paused.pools.entry(pool).or_insert(Timestamp(now));
                self.later(ms, What::Fault(Fault::Resume(pool)));
            }
            Fault::Resume(name) => {
                self.paused.tools.remove(name);
                self.paused.pools.remove(name);
            }
            Fault::Calm => self.rough = false,
            Fault::Alone => self.leave_one_coordinator(),
        }
    }

    fn leave_one_coordinator(&mut self) {
        self.alone = true;
        let stays = Node::Coordinator(self.below(COORDINATORS));
        for (_, host) in self.hosts.iter_mut().filter(|(node, _)| **node != stays) {
            match &mut host.process {
                Some(Process::Client(client)) => client.only_read(),
                Some(Process::Coordinator(_) | Process::Worker(_)) | None => host.process = None,
            }
        }
        if self.hosts.get(&stays).is_some_and(|host| host.process.is_none()) {
            self.start(stays);
        }
    }
}
