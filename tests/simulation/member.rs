//! A coordinator's membership: [`owner::membership`] with the simulated lease bucket. The watch of the bucket brings
//! every change in order, or breaks and begins again with the bucket's content.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use owner::Claims;
use owner::membership::{Action, Answer, Change, Key, Membership, Notice, Operation, REQUEST_PATIENCE, Request};
use run::{Shard, Timestamp};

use crate::SHARDS;
use crate::net::{Flaw, LeaseChange, Message, Net, Node, instant};

/// Longer than any world: the lease of a member that does not heed it.
const FOREVER: Duration = Duration::from_secs(3600);

pub(crate) struct Member {
    machine: Membership,
    /// Requests to the bucket without an answer yet, by token.
    requests: BTreeMap<u64, (Request, Timestamp)>,
    /// How many changes of the bucket the watch has brought; `None` while it is broken.
    watched: Option<usize>,
    claims: Claims,
    until: Instant,
}

impl Member {
    pub(crate) fn join(net: &mut Net<'_>) -> Self {
        let (name, now) = (format!("{:016x}", net.chance.next()), instant(net.now));
        let mut member = Self {
            machine: Membership::new(name, "a coordinator".to_owned(), usize::from(SHARDS), now),
            requests: BTreeMap::new(),
            watched: None,
            claims: Claims::default(),
            until: now,
        };
        member.perform(net);
        member
    }

    /// Whether it may act for the shard now.
    pub(crate) fn holds(&self, shard: Shard, now: Timestamp) -> bool {
        self.claims.keeps(shard) && instant(now) < self.until
    }

    /// The revision by which the shard is ours, also while we are leaving it.
    pub(crate) fn claim(&self, shard: Shard) -> Option<u64> {
        self.claims.revision(shard)
    }

    pub(crate) fn is_leaving(&self, shard: Shard) -> bool {
        self.claims.leaving().contains(shard)
    }

    /// The snapshot of a shard that we are leaving is written, or will not be.
    pub(crate) fn let_go(&mut self, shard: Shard, net: &mut Net<'_>) {
        self.machine.handle_snapshot_stored(shard, instant(net.now));
        self.perform(net);
    }

    /// Checks that no shard for which it acts now has had a newer owner.
    pub(crate) fn check(&self, net: &mut Net<'_>) {
        for shard in self.claims.kept().iter().filter(|shard| self.holds(*shard, net.now)) {
            net.promises.owned(shard, self.claims.revision(shard).unwrap_or(0));
        }
    }

    pub(crate) fn wake(&mut self, net: &mut Net<'_>) {
        let now = instant(net.now);
        let is_overdue = |sent: Timestamp| net.now.since(sent) >= REQUEST_PATIENCE;
        let overdue: Vec<u64> =
            self.requests.iter().filter(|(_, (_, sent))| is_overdue(*sent)).map(|(t, _)| *t).collect();
        for token in overdue {
            self.answered(token, Answer::Unknown, net);
        }
        if self.machine.poll_timeout().is_some_and(|at| at <= now) {
            self.machine.handle_timeout(now);
        }
        self.perform(net);
    }

    /// The bucket has had so many changes.
    pub(crate) fn changed(&mut self, through: usize, net: &mut Net<'_>) {
        if net.rough && net.chance.percent(1) && self.watched.take().is_some() {
            self.machine.handle_missed(instant(net.now));
        }
        let leases = net.leases;
        let through = through.min(leases.len());
        if let Some(watched) = self.watched {
            for change in leases.get(watched..through).unwrap_or_default() {
                self.note(change, net);
            }
            self.watched = Some(watched.max(through));
        } else {
            // Of each key the last change, in the order of the changes.
            let changes = leases.get(..through).unwrap_or_default();
            let is_last = |at: usize| !changes.iter().skip(at + 1).any(|later| later.key == changes[at].key);
            for (_, change) in changes.iter().enumerate().filter(|(at, _)| is_last(*at)) {
                self.note(change, net);
            }
            self.machine.handle_all_seen(instant(net.now));
            self.watched = Some(through);
        }
        self.perform(net);
    }

    fn note(&mut self, change: &LeaseChange, net: &Net<'_>) {
        let LeaseChange { key, value, revision, at } = change.clone();
        let change = Change { key, value, revision, age: net.now.since(at) };
        self.machine.handle_change(change, instant(net.now));
    }

    pub(crate) fn answered(&mut self, token: u64, answer: Answer, net: &mut Net<'_>) {
        if let Some((request, _)) = self.requests.remove(&token) {
            self.machine.handle_answer(request, answer, instant(net.now));
            self.perform(net);
        }
    }

    fn perform(&mut self, net: &mut Net<'_>) {
        while let Some(action) = self.machine.poll_action() {
            match action {
                Action::Publish => {
                    (self.claims, self.until) = (*self.machine.claims(), self.machine.until());
                    if net.flaw == Flaw::EndlessLease {
                        self.until += FOREVER;
                    }
                }
                Action::Send(request) => self.send(request, net),
                Action::Report(Notice::Evicted { .. }) => net.promises.note("evicted"),
                Action::Report(Notice::MemberLost { .. }) => net.promises.note("member lost"),
                Action::Report(Notice::ReleasedWithoutSnapshot { .. }) => net.promises.note("released late"),
            }
        }
    }

    fn send(&mut self, request: Request, net: &mut Net<'_>) {
        let evicts = matches!((&request.key, &request.operation), (Key::Member(_), Operation::Delete));
        if evicts && net.flaw == Flaw::UnfencedEviction {
            return self.machine.handle_answer(request, Answer::Stored(0), instant(net.now));
        }
        let token = net.token();
        let (key, operation, revision) = (request.key.clone(), request.operation.clone(), request.revision);
        net.send(Node::Broker, Message::LeaseRequest { token, key, operation, revision });
        self.requests.insert(token, (request, net.now));
    }
}
