//! A feed that a test controls, and a call for its entries.

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

/// The sending side of a watcher.
pub(crate) struct Feed(Watcher);

impl ByHand {
    pub(crate) fn new() -> (OwnerHandle, Self) {
        let (sender, requests) = mpsc::channel(1);
        (OwnerHandle(sender), Self(requests))
    }

    /// Waits for a watcher, and reports to it that the feed is established from now on.
    pub(crate) async fn joined(&mut self) -> Feed {
        let (feed, standing) = self.asked().await;
        standing.send(Standing::Joined).expect("the watcher waits for it");
        feed
    }

    /// Waits for a watcher, and lets the test decide when the feed's position is reported.
    pub(crate) async fn asked(&mut self) -> (Feed, oneshot::Sender<Standing>) {
        let Some(Request::Watch { watcher, standing, .. }) = self.0.recv().await else {
            panic!("only watch requests are expected")
        };
        (Feed(watcher), standing)
    }
}

impl Feed {
    pub(crate) fn brings(&self, entry: Entry) {
        assert!(self.0.hand(&Arc::new(entry), 1), "there is room for it");
    }
}
