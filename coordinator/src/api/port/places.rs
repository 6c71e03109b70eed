//! Limits of connections and of bytes of unfinished requests: in total, and per address.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Bytes of unfinished requests, in total: a part of what a small coordinator has (1 GiB in the chart).
const ROOM_BYTES: usize = 128 * 1024 * 1024;
/// One address gets the total divided by this, so that one client does not block others: the same as for connections.
const SHARE: usize = 2;

/// The limits and their use.
#[derive(Debug, Clone)]
pub(in crate::api) struct Places(Arc<All>);

#[derive(Debug)]
struct All {
    connections_max: usize,
    connections: AtomicUsize,
    bytes: AtomicUsize,
    addresses: Mutex<HashMap<IpAddr, Arc<Address>>>,
}

/// Files that a coordinator needs beside its connections: for the broker, the index, webhooks, hooks and logs.
const OTHER_FILES: u64 = 128;

/// The wanted number of connections, bounded by the number of files that the process may open. It raises its own limit
/// first, as far as allowed.
pub(crate) fn affordable(wanted: usize) -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    if let (Some(current), Some(most)) = (limit.current, limit.maximum)
        && current < most
        && setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..limit }).is_ok()
    {
        limit.current = Some(most);
    }
    let Some(files) = limit.current else { return wanted };
    let free = files.saturating_sub(OTHER_FILES).max(files / 2);
    let affordable = wanted.min(usize::try_from(free).unwrap_or(usize::MAX));
    if affordable < wanted {
        tracing::warn!(
            files,
            connections = affordable,
            wanted,
            "the limit of open files allows fewer connections \
            than configured"
        );
    }
    affordable
}

/// The use of one address.
#[derive(Debug, Default)]
struct Address {
    connections: AtomicUsize,
    bytes: AtomicUsize,
}

/// A slot of a connection, until it is dropped.
#[derive(Debug)]
pub(in crate::api) struct Place {
    all: Arc<All>,
    of: IpAddr,
    address: Arc<Address>,
}

/// Reserved bytes of an unfinished request.
#[derive(Debug)]
pub(in crate::api) struct Room {
    all: Arc<All>,
    address: Arc<Address>,
    bytes: usize,
}

impl Places {
    pub(in crate::api) fn new(connections_max: usize) -> Self {
        let (connections, bytes, addresses) = Default::default();
        Self(Arc::new(All { connections_max, connections, bytes, addresses }))
    }

    /// `None` if the limit of connections is reached, in total or of this address.
    pub(in crate::api) fn take(&self, from: IpAddr) -> Option<Place> {
        let all = &self.0;
        let of = network(from);
        let mut addresses = all.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = addresses.get(&of).map_or(0, |address| address.connections.load(Relaxed));
        if all.connections.load(Relaxed) >= all.connections_max || mine >= share(all.connections_max) {
            return None;
        }
        let address = Arc::clone(addresses.entry(of).or_default());
        address.connections.fetch_add(1, Relaxed);
        all.connections.fetch_add(1, Relaxed);
        Some(Place { all: Arc::clone(all), of, address })
    }
}

impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = self.0.connections_max;
        write!(f, "{max} in total, {} per address", share(max))
    }
}

fn share(all: usize) -> usize {
    (all / SHARE).max(1)
}

/// IPv6 addresses are counted by network, because a client has all addresses in its network.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
    }
}

impl Place {
    /// Reserves bytes for a request of the connection.
    pub(in crate::api) fn room(&self) -> Room {
        Room { all: Arc::clone(&self.all), address: Arc::clone(&self.address), bytes: 0 }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut addresses = self.all.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        self.all.connections.fetch_sub(1, Relaxed);
        if self.address.connections.fetch_sub(1, Relaxed) == 1 {
            addresses.remove(&self.of);
        }
    }
}

impl Room {
    /// `false` if there is no room for that many more bytes.
    pub(in crate::api) fn grow(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        let all = self.all.bytes.fetch_add(bytes, Relaxed) + bytes;
        let mine = self.address.bytes.fetch_add(bytes, Relaxed) + bytes;
        all <= ROOM_BYTES && mine <= share(ROOM_BYTES)
    }

    pub(in crate::api) fn free(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes > 0 {
            self.all.bytes.fetch_sub(bytes, Relaxed);
            self.address.bytes.fetch_sub(bytes, Relaxed);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.free();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn one_address_leaves_places_and_room_to_others() {
        let places = Places::new(8);
        let held: Vec<Place> = (0..4).filter_map(|_| places.take(address("10.0.0.1"))).collect();
        assert_eq!(held.len(), 4);
        assert!(places.take(address("10.0.0.1")).is_none());
        assert!(places.take(address("::ffff:10.0.0.1")).is_none(), "the same address");
        let others: Vec<Place> = (1..9).filter_map(|last| places.take(address(&format!("2001:db8::{last}")))).collect();
        assert_eq!(others.len(), 4, "one network, and then all places are taken");
        assert!(places.take(address("10.0.0.2")).is_none());
        let mut room = held[0].room();
        assert!(room.grow(ROOM_BYTES / 2) && !held[1].room().grow(1), "that address has its part");
        assert!(others[0].room().grow(1024), "others have room");
        room.free();
        assert!(held[1].room().grow(1));
        drop((held, others));
        assert!(places.take(address("10.0.0.1")).is_some());
        assert_eq!(places.0.bytes.load(Relaxed), 0);
    }
}
