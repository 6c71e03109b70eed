//! Free loopback ports for programs that need a port as an argument.
//!
//! The kernel chooses a port (port 0) from the range that it also uses for connections, so a connection may take the
//! port before the program starts. Ports below that range are used only by programs that name them.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The first port; the range ends at the kernel's own.
const FIRST: u32 = 12_000;
/// The first of the kernel's own ports, if the kernel does not report it.
const KERNELS: u32 = 32_768;

/// Processes begin to look at different places, and a process gives no port twice until it has been through all.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A port without a listener.
///
/// # Errors
/// When none is free.
pub fn free_port() -> io::Result<u16> {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let kernels = range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(KERNELS);
    let count = kernels.clamp(FIRST + 1_000, u32::from(u16::MAX)) - FIRST;
    let begin = std::process::id().wrapping_mul(613);
    let mut error = io::ErrorKind::AddrInUse.into();
    for _ in 0..count {
        let port = FIRST + begin.wrapping_add(NEXT.fetch_add(1, Relaxed)) % count;
        let port = u16::try_from(port).map_err(io::Error::other)?;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => return Ok(port),
            Err(refused) => error = refused,
        }
    }
    Err(error)
}
