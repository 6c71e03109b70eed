//! Connections to the broker. The workers of a pool that share a thread share one, so that what they send and receive
//! at about the same time goes together.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;
use std::rc::{Rc, Weak};

use async_nats::Client;
use nats::ConnectError;
use nats::access::Party;
use run::{PoolId, WorkerId};
use tokio::sync::OnceCell;

use crate::Options;

/// What makes connections equal for the broker.
type Key = (String, PoolId, [Option<PathBuf>; 2]);

thread_local! {
    static SHARED: RefCell<HashMap<Key, Weak<OnceCell<Client>>>> = RefCell::default();
}

/// A connection, which is closed when none of its workers has it any more.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    client: Client,
    _shared: Rc<OnceCell<Client>>,
}

impl Connection {
    /// The connection of this thread for the worker's pool. If it is made now, the broker knows it by this worker's id.
    pub(super) async fn for_worker(options: &Options, worker: &WorkerId) -> Result<Self, ConnectError> {
        let shared = SHARED.with_borrow_mut(|all| {
            all.retain(|_, connection| connection.strong_count() > 0);
            let known = all.entry(key(options)).or_default();
            known.upgrade().unwrap_or_else(|| {
                let made = Rc::default();
                *known = Rc::downgrade(&made);
                made
            })
        });
        let party = Party::Pool(options.pool.clone());
        let connect = || nats::connect(&options.nats_url, &options.credentials, worker.as_str(), &party);
        let client = shared.get_or_try_init(connect).await?.clone();
        Ok(Self { client, _shared: shared })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }
}

fn key(options: &Options) -> Key {
    let credentials = [options.credentials.nkey.clone(), options.credentials.ca.clone()];
    (options.nats_url.clone(), options.pool.clone(), credentials)
}
