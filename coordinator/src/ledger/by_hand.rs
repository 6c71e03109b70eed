//! A ledger whose words a test says.

use std::sync::Arc;

use run::Entry;
use tokio::sync::mpsc;

use super::watcher::{Standing, Watcher};
use super::{Ledger, Request};

pub(crate) struct ByHand(mpsc::Receiver<Request>);

/// The line to one who watches.
pub(crate) struct Feed(Watcher);

impl ByHand {
    pub(crate) fn new() -> (Ledger, Self) {
        let (sender, requests) = mpsc::channel(1);
        (Ledger(sender), Self(requests))
    }

    /// Waits for somebody who watches, and tells them that the feed stands from now on.
    pub(crate) async fn joined(&mut self) -> Feed {
        let Some(Request::Watch { watcher, standing, .. }) = self.0.recv().await else {
            panic!("nobody asks for anything but to watch")
        };
        standing.send(Standing::Joined).expect("whoever watches waits for it");
        Feed(watcher)
    }
}

impl Feed {
    pub(crate) fn brings(&self, entry: Entry) {
        assert!(self.0.hand(&Arc::new(entry), 1), "there is room for it");
    }
}
