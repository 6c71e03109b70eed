//! Reads how far the queues of pools were delivered, and takes jobs back.

use std::collections::HashMap;

use futures::StreamExt as _;
use futures::stream;
use owner::Queue;

use super::OwnerTask;
use super::surroundings::Surroundings;
use crate::nats::queues::Given;

/// The most queues that are read concurrently.
const ASKED_MAX: usize = 8;

/// How far each queue was delivered.
pub(super) type Look = HashMap<Queue, Given>;

impl OwnerTask {
    pub(super) fn ask_queues(&mut self, asked: Vec<Queue>) {
        let queues = self.io.queues.clone();
        self.looks.spawn(async move {
            let asked = stream::iter(asked).map(|queue| {
                let queues = &queues;
                async move { queues.given(&queue).await.map(|given| (queue, given)) }
            });
            asked.buffer_unordered(ASKED_MAX).filter_map(std::future::ready).collect().await
        });
    }

    pub(super) fn queues_answered(&mut self, look: Look) {
        let through = look.iter().map(|(queue, given)| (queue.clone(), given.through)).collect();
        self.given = look;
        let world = Surroundings::new(&self.io, self.limited);
        self.owner.handle_queues(&through, ::nats::now(), &world);
    }

    pub(super) fn take_back(&mut self, queue: Queue, job: u64) {
        let Some(given) = self.given.get(&queue).copied() else { return };
        let queues = self.io.queues.clone();
        self.send(async move { queues.take_back(&queue, job, given).await });
    }
}
