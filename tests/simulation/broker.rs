//! The broker: one log with compare-and-set by subject, a queue for each pool that redelivers what is not acknowledged,
//! leases, and subjects that nobody stores. As with a real one, acknowledgements name the
//! message and not the delivery, a negative one may ask for a delay, and delivery counts may be forgotten.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use owner::membership::{Answer, Found, Key, Operation};
use run::{CallIndex, Entry, Event, PoolId, Route, RunId, Shard, Timestamp, WorkerId};

use crate::net::{Delivery, LeaseChange, Message, Net, Node, Place, Settle, Stored};
use crate::rim::JOB_LEASE;
use crate::shard::{Snapshot, is_orphan};

/// Requests for jobs that a worker leaves open are forgotten after this long.
const PULL_EXPIRES: Duration = Duration::from_secs(5);

#[derive(Default)]
pub(crate) struct Broker {
    pub(crate) log: Vec<Stored>,
    last: BTreeMap<(RunId, Place), u64>,
    jobs: BTreeMap<u64, Job>,
    pulls: VecDeque<(Node, PoolId, Timestamp)>,
    /// Every change of the lease bucket; its place plus one is its revision.
    pub(crate) leases: Vec<LeaseChange>,
    pub(crate) snapshots: BTreeMap<Shard, (u64, Arc<Snapshot>)>,
}

struct Job {
    pool: PoolId,
    delivery: Delivery,
    holder: Node,
    state: JobState,
}

#[derive(PartialEq)]
enum JobState {
    Waiting { not_before: Timestamp },
    Pending { until: Timestamp },
    Done,
}

impl Broker {
    /// Takes a step. `coordinators` and `workers` receive published messages.
    pub(crate) fn hear(&mut self, from: Node, message: Message, net: &mut Net<'_>, everybody: &[Node]) {
        match message {
            Message::Append { token, run, events, expected, not_after } => {
                let answer = match self.append(run, events, (expected, not_after), net) {
                    Some(_) => Message::Appended { token },
                    None => Message::Conflict { token },
                };
                net.send(from, answer);
                let through = self.log.len() as u64;
                tell(net, everybody, |node| matches!(node, Node::Coordinator(_)), &Message::LogGrew { through });
            }
            Message::LastOutput { token, run, call } => {
                let sequence = self.last.get(&(run, Place::Output(call))).copied().unwrap_or(0);
                net.send(from, Message::LastOutputIs { token, sequence });
            }
            Message::Pull { pool } => self.pulls.push_back((from, pool, net.now)),
            Message::Settle { sequence, how, asked } => self.settle(from, sequence, (how, asked), net),
            Message::LookAtQueues => {
                let mut given = BTreeMap::new();
                for (sequence, job) in self.jobs.iter().filter(|(_, job)| job.holder != Node::Broker) {
                    given.insert(job.pool.clone(), *sequence);
                }
                net.send(from, Message::Given(given.into_iter().collect()));
            }
            Message::LeaseRequest { token, key, operation, revision } => {
                let answer = self.lease(key, operation, revision, net.now);
                net.send(from, Message::LeaseAnswer { token, answer });
                let through = self.leases.len();
                tell(net, everybody, |node| matches!(node, Node::Coordinator(_)), &Message::LeasesChanged { through });
            }
            Message::WriteSnapshot { token, shard, snapshot, revision } => {
                let (last, _) = self.snapshots.entry(shard).or_default();
                let result = if revision.is_none_or(|revision| revision == *last) {
                    let next = *last + 1;
                    self.snapshots.insert(shard, (next, snapshot));
                    Ok(next)
                } else {
                    Err(*last)
                };
                net.send(from, Message::SnapshotAnswer { token, result });
            }
            Message::Purge { token, run, through } => {
                self.purge(run, through, net);
                net.send(from, Message::Purged { token });
            }
            Message::Notify { token, notifications } => {
                // The queue may be full.
                let count = match net.rough && net.chance.percent(20) {
                    true => usize::try_from(net.chance.next()).unwrap_or(0) % (notifications.len() + 1),
                    false => notifications.len(),
                };
                notifications.iter().take(count).for_each(|notification| net.promises.notified(notification));
                let is_accepting = count == notifications.len();
                net.send(from, Message::Notified { token, count, is_accepting });
            }
            Message::Alive { .. } => {
                tell(net, everybody, |node| matches!(node, Node::Coordinator(_)), &message);
            }
            Message::Ask(_) | Message::AskUser { .. } => {
                let asked = Message::Forwarded(from, Box::new(message));
                tell(net, everybody, |node| matches!(node, Node::Coordinator(_)), &asked);
            }
            Message::Stop { .. } => tell(net, everybody, |node| matches!(node, Node::Worker(_)), &message),
            other => unreachable!("nobody sends the broker {other:?}"),
        }
        self.deliver(net);
    }

    /// A change of the lease bucket, by compare-and-set.
    fn lease(&mut self, key: Key, operation: Operation, revision: u64, at: Timestamp) -> Answer {
        let last = self.leases.iter().rfind(|change| change.key == key);
        if last.map_or(0, |change| change.revision) != revision {
            return Answer::Conflict(
                last.map(|change| Found { value: change.value.clone(), revision: change.revision }),
            );
        }
        let revision = self.leases.len() as u64 + 1;
        let value = match operation {
            Operation::Put(value) => Some(value),
            Operation::Delete | Operation::Purge => None,
        };
        self.leases.push(LeaseChange { key, value, revision, at });
        Answer::Stored(revision)
    }

    fn append(
        &mut self,
        run: RunId,
        events: Vec<Event>,
        (expected, not_after): (Option<u64>, Option<Timestamp>),
        net: &mut Net<'_>,
    ) -> Option<u64> {
        let place = Place::of(&events);
        let last = self.last.get(&(run, place)).copied().unwrap_or(0);
        if expected.is_some_and(|expected| expected != last) {
            return None;
        }
        let sequence = self.log.len() as u64 + 1;
        let entry = Arc::new(Entry { sequence, at: net.now, not_after, hooked: false, events });
        let stored = Stored { run, place, entry, is_erased: false };
        net.promises.stored(&stored);
        self.last.insert((run, place), sequence);
        if let Place::Job(call) = place
            && let Some((pool, delivery)) = self.job(run, call, &stored, net)
        {
            self.jobs.insert(
                sequence,
                Job { pool, delivery, holder: Node::Broker, state: JobState::Waiting { not_before: net.now } },
            );
        }
        self.log.push(stored);
        Some(sequence)
    }

    /// Removes the entries of a run, and its jobs with them. Its subjects are as if nothing had been there.
    fn purge(&mut self, run: RunId, through: u64, net: &mut Net<'_>) {
        if !is_orphan(&self.log, run, through) {
            net.promises.purged(run, through, net.now);
        }
        let entries = self.log.iter_mut().filter(|stored| stored.run == run && stored.entry.sequence <= through);
        entries.for_each(|stored| stored.is_erased = true);
        self.last.retain(|(of, _), sequence| *of != run || *sequence > through);
        self.jobs.retain(|sequence, job| job.delivery.run != run || *sequence > through);
    }

    /// The entry of a dispatch is the job. Its spec goes with it, as accepted.
    fn job(&self, run: RunId, call: CallIndex, stored: &Stored, net: &Net<'_>) -> Option<(PoolId, Delivery)> {
        let spec = Arc::clone(net.promises.run(run).and_then(|run| run.call(call))?.spec());
        let Route::Pool { pool, .. } = &spec.route else { return None };
        let (sequence, published, is_late) = (stored.entry.sequence, stored.entry.at, stored.entry.is_late());
        Some((pool.clone(), Delivery { sequence, run, call, spec, delivered: 0, published, is_late }))
    }

    fn settle(&mut self, from: Node, sequence: u64, (how, asked): (Settle, Timestamp), net: &mut Net<'_>) {
        let Some(job) = self.jobs.get_mut(&sequence) else { return };
        match (&job.state, how) {
            (JobState::Done, _) => {}
            (_, Settle::Ack) => {
                job.state = JobState::Done;
                if !job.delivery.is_late {
                    net.promises.acknowledged(job.delivery.run, job.delivery.call, net.now);
                }
            }
            (JobState::Pending { .. }, Settle::Nak(delay)) => {
                job.state = JobState::Waiting { not_before: net.now.after(delay) };
            }
            (JobState::Pending { .. }, Settle::InProgress) => {
                job.state = JobState::Pending { until: net.now.after(JOB_LEASE) };
                net.send(from, Message::StillYours { sequence, asked });
            }
            (JobState::Waiting { .. }, Settle::Nak(_) | Settle::InProgress) => {}
        }
    }

    /// Hands out waiting jobs to the workers, in the order of their requests.
    pub(crate) fn deliver(&mut self, net: &mut Net<'_>) {
        for job in self.jobs.values_mut() {
            if matches!(job.state, JobState::Pending { until } if until <= net.now) {
                job.state = JobState::Waiting { not_before: net.now };
            }
        }
        self.pulls.retain(|(_, _, since)| net.now.since(*since) < PULL_EXPIRES);
        for job in self.jobs.values_mut() {
            let is_paused = net.paused.pools.contains_key(job.pool.as_str());
            let is_due = matches!(job.state, JobState::Waiting { not_before } if not_before <= net.now) && !is_paused;
            let pull = self.pulls.iter().position(|(_, pool, _)| is_due && *pool == job.pool);
            let Some((worker, ..)) = pull.and_then(|pull| self.pulls.remove(pull)) else { continue };
            job.state = JobState::Pending { until: net.now.after(JOB_LEASE) };
            job.delivery.delivered += 1;
            job.holder = worker;
            net.send(worker, Message::Job(job.delivery.clone()));
            // A consumer that is reset just then delivers at once to the next.
            if net.rough && net.chance.percent(2) {
                net.promises.jobs_repeat = true;
                job.state = JobState::Waiting { not_before: net.now };
            }
        }
    }

    /// A consumer that is reset forgets how often it delivered what, and delivers it again.
    pub(crate) fn forget_deliveries(&mut self, now: Timestamp) {
        for job in self.jobs.values_mut().filter(|job| job.state != JobState::Done) {
            job.state = JobState::Waiting { not_before: now };
            job.delivery.delivered = 0;
        }
    }

    /// State in memory is lost.
    pub(crate) fn restart(&mut self) {
        self.pulls.clear();
    }

    /// A worker that died takes its open requests along, once the broker has noticed.
    pub(crate) fn forget_pulls(&mut self, of: Node) {
        self.pulls.retain(|(node, ..)| *node != of);
    }
}

fn tell(net: &mut Net<'_>, everybody: &[Node], whom: impl Fn(&Node) -> bool, message: &Message) {
    for node in everybody.iter().filter(|node| whom(node)) {
        net.send(*node, message.clone());
    }
}

/// The name of a worker in its nth life.
pub(crate) fn worker_id(node: usize, life: u32) -> WorkerId {
    format!("worker-{node}-{life}").parse().expect("a worker id")
}
