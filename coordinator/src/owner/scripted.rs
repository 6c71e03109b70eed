//! A ledger whose words a test says, and a call of which they may be.

use std::sync::Arc;

use run::{CallSpec, Entry, Route, Timestamp};
use tokio::sync::{mpsc, oneshot};

use super::watcher::{Standing, Watcher};
use super::{OwnerHandle, Request};

/// A call that its client answers, in its own time.
pub(crate) fn call(id: &str) -> CallSpec {
    CallSpec::new(id.parse().expect("an id"), "ask".parse().expect("a tool"), "{}", Route::Client, Timestamp(u64::MAX))
}

pub(crate) struct ByHand(mpsc::Receiver<Request>);

/// The line to one who watches.
pub(crate) struct Feed(Watcher);

impl ByHand {
    pub(crate) fn new() -> (OwnerHandle, Self) {
        let (sender, requests) = mpsc::channel(1);
        (OwnerHandle(sender), Self(requests))
    }

    /// Waits for somebody who watches, and tells them that the feed stands from now on.
    pub(crate) async fn joined(&mut self) -> Feed {
        let (feed, standing) = self.asked().await;
        standing.send(Standing::Joined).expect("whoever watches waits for it");
        feed
    }

    /// Waits for somebody who watches, and leaves it to the test when they are told where the feed stands.
    pub(crate) async fn asked(&mut self) -> (Feed, oneshot::Sender<Standing>) {
        let Some(Request::Watch { watcher, standing, .. }) = self.0.recv().await else {
            panic!("nobody asks for anything but to watch")
        };
        (Feed(watcher), standing)
    }
}

impl Feed {
    pub(crate) fn brings(&self, entry: Entry) {
        assert!(self.0.hand(&Arc::new(entry), 1), "there is room for it");
    }
}
