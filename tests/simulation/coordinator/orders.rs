//! A client's wishes on their way into the log: decided on the coordinator's fold, or on the log itself, and appended
//! if nobody was faster. Follows `coordinator/src/runs`.

use std::borrow::Cow;

use owner::Known;
use run::{Command, Event, Opening, Run, RunId, Shard, Timestamp};

use super::{Coordinator, hand_back, replayed};
use crate::SHARDS;
use crate::fleet::LIMITED;
use crate::net::{Flaw, Message, Net, Node};
use crate::rim::{CLOCKS_APART, DECISIONS_MAX, ORDER_PATIENCE};

/// A client's wish on its way into the log.
pub(super) struct Order {
    client: Node,
    token: u64,
    run: RunId,
    /// `None` for the opening of the run.
    command: Option<Command>,
    waiting: Vec<Event>,
    /// The run as it was decided on: an entry that came since refuses the append.
    decided_on: Option<Known>,
    append: u64,
    /// When it was sent.
    since: Timestamp,
    decisions: u32,
}

impl Order {
    /// A command of a client.
    pub(super) fn of(client: Node, token: u64, run: RunId, command: Command, now: Timestamp) -> Self {
        let (waiting, append, since, decisions) = (Vec::new(), 0, now, 0);
        Self { client, token, run, command: Some(command), waiting, decided_on: None, append, since, decisions }
    }
}

impl Coordinator {
    pub(super) fn create(&mut self, client: Node, token: u64, mut opening: Opening, net: &mut Net<'_>) {
        let waits = |tool: &str| tool == LIMITED || self.paused.tools.contains_key(tool);
        opening.apart = opening.calls.iter().any(|call| waits(call.tool.as_str()));
        let Ok(events) = Run::open(opening, net.now) else { return };
        let held: Vec<u8> = (0..SHARDS).filter(|shard| self.holds(Shard(*shard), net.now)).collect();
        let shard = net.chance.of(&held).copied().unwrap_or(0);
        let run = crate::run_id(Shard(shard), net.now, net.chance.next());
        let append = net.append(run, events, (net.flaw != Flaw::UnfencedOpening).then_some(0));
        let (waiting, since) = (Vec::new(), net.now);
        let (command, decided_on) = (None, None);
        self.orders.push(Order { client, token, run, command, waiting, decided_on, append, since, decisions: 0 });
    }

    /// As `coordinator/src/nats/journal/append.rs`: answers when no copy counts any more.
    pub(super) fn give_up(&mut self, net: &mut Net<'_>) {
        let is_over = |order: &mut Order| net.now.since(order.since) > run::STORED_WITHIN + CLOCKS_APART;
        for order in self.orders.extract_if(.., is_over).collect::<Vec<_>>() {
            if order.command.is_none() {
                net.promises.unconfirmed(order.run);
            }
            net.send(order.client, Message::Unconfirmed { token: order.token });
        }
    }

    /// Decides on the fold, or, where that refuses or was overtaken, on the log itself.
    pub(super) fn decide(&mut self, mut order: Order, replay: bool, net: &mut Net<'_>) {
        let Some(command) = order.command.clone() else { return };
        let own = self.owner.run(order.run).filter(|_| !replay).map(Cow::into_owned);
        let own = own.and_then(|known| Some((known.run.decide(command.clone(), net.now).ok()?, known)));
        let decided = own.map_or_else(
            || {
                let known = replayed(order.run, u64::MAX, net);
                Ok((known.run.decide(command, net.now)?, known))
            },
            Ok,
        );
        match decided {
            Ok((events, known)) => {
                (order.waiting, order.decided_on) = (events, Some(known));
                order.decisions += 1;
                self.append_next(order, net);
            }
            Err(rejection) => {
                net.send(order.client, Message::Done { token: order.token, result: Err(rejection) });
            }
        }
    }

    fn append_next(&mut self, mut order: Order, net: &mut Net<'_>) {
        if order.waiting.is_empty() {
            return net.send(order.client, Message::Done { token: order.token, result: Ok(()) });
        }
        let events = vec![order.waiting.remove(0)];
        let place = owner::SubjectKind::of(&events).expect("it has events");
        let expected = order.decided_on.as_ref().map_or(0, |known| known.revision(&place));
        (order.append, order.since) = (net.append(order.run, events, Some(expected)), net.now);
        self.orders.push(order);
    }

    fn take_order(&mut self, append: u64, now: Timestamp) -> Option<Order> {
        let in_time = |order: &Order| order.append == append && now.since(order.since) < ORDER_PATIENCE;
        let place = self.orders.iter().position(in_time)?;
        Some(self.orders.swap_remove(place))
    }

    pub(super) fn appended(&mut self, append: u64, net: &mut Net<'_>) {
        if let Some(performing) = self.effect_done(append, net) {
            performing.hand_back.iter().for_each(|job| hand_back(job, net));
            return;
        }
        let fleet = self.fleet(net.now);
        if self.askings.stored(append, true, &self.owner, &fleet, net) {
            return;
        }
        let Some(order) = self.take_order(append, net.now) else { return };
        match order.command {
            None => net.send(order.client, Message::Created { token: order.token, run: order.run }),
            Some(_) => self.append_next(order, net),
        }
    }

    pub(super) fn conflicted(&mut self, append: u64, net: &mut Net<'_>) {
        if self.effect_done(append, net).is_some() {
            return;
        }
        let fleet = self.fleet(net.now);
        if self.askings.stored(append, false, &self.owner, &fleet, net) {
            return;
        }
        let Some(order) = self.take_order(append, net.now) else { return };
        if order.command.is_some() && order.decisions < DECISIONS_MAX {
            self.decide(order, true, net);
        }
    }
}
